// Package tokens has a table of tokens, good and bad, with the HTTP status that each
// deserves, so that every transport is tested with the same.
package tokens

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// What a verifier of the tokens demands.
const (
	Issuer   = "https://issuer.example.com"
	Audience = "https://api.example.com"
	Scope    = "invoices.read"
)

// Key signs the tokens. It is the same in each process.
var Key = func() ed25519.PrivateKey {
	seed := sha256.Sum256([]byte("a key for tests of what verifies tokens"))
	return ed25519.NewKeyFromSeed(seed[:])
}()

// secret is that of the MAC key whose checks count as calls.
var secret = []byte("a secret for tests of what verifies tokens")

// Calls is how many checks of a MAC were made.
var Calls atomic.Int64

// MACKey is a key that never leaves its keeper.
type MACKey struct{}

// VerifiedByCall says so.
func (MACKey) VerifiedByCall() {}

// macMethod is HS256 with a MACKey.
type macMethod struct{ *jwt.SigningMethodHMAC }

func (m macMethod) Verify(signingString string, sig []byte, key any) error {
	if _, ok := key.(MACKey); !ok {
		return jwt.ErrInvalidKeyType
	}
	Calls.Add(1)
	return m.SigningMethodHMAC.Verify(signingString, sig, secret)
}

// Keyfunc is a Keyfunc for the tokens. It looks at the kid for what else can happen
// to a Keyfunc.
func Keyfunc(token *jwt.Token) (any, error) {
	switch token.Header["kid"] {
	case "down":
		return nil, errs.Errorf("%w: secret", errs.ErrKeysUnavailable)
	case "misconfigured":
		return nil, errs.Errorf("%w: secret", errs.ErrInvalidConfig)
	case "unconfigured":
		return nil, errs.Errorf("%w: secret", errs.ErrMissingConfig)
	case "panic":
		panic("secret")
	case "forbidden": // nobody knows yet whether the token is good
		return nil, fmt.Errorf("%w: secret", jwt.ErrTokenInvalidAudience)
	case "set":
		return jwt.VerificationKeySet{Keys: []jwt.VerificationKey{make(ed25519.PublicKey, ed25519.PublicKeySize), Key.Public()}}, nil
	case "no set":
		return jwt.VerificationKeySet{}, nil
	case nil, "known":
	default:
		return nil, errs.Errorf("%w: secret", errs.ErrUnknownKeyID)
	}
	switch token.Method {
	case jwt.SigningMethodEdDSA:
		return Key.Public(), nil
	case jwt.SigningMethodHS256:
		token.Method = macMethod{jwt.SigningMethodHS256}
		return MACKey{}, nil
	}
	return nil, errors.New("secret: another algorithm")
}

// A Case is a token and its HTTP status.
type Case struct {
	Name   string
	Text   string
	Status int
}

// Sign returns a token with exactly the header and the payload that are given.
func Sign(header, payload string) string {
	signed := encode([]byte(header)) + "." + encode([]byte(payload))
	return signed + "." + encode(ed25519.Sign(Key, []byte(signed)))
}

func signMAC(payload string) string {
	signed := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(payload))
	mac, err := jwt.SigningMethodHS256.Sign(signed, secret)
	if err != nil {
		panic(err)
	}
	return signed + "." + encode(mac)
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// Forge flips a bit of a token's signature.
func Forge(token string) string {
	dot := strings.LastIndexByte(token, '.')
	sig, err := base64.RawURLEncoding.DecodeString(token[dot+1:])
	if err != nil {
		panic(err)
	}
	sig[0] ^= 1
	return token[:dot+1] + encode(sig)
}

// Payload returns the payload of a good token at a time, with the members changed
// that are given as pairs of a name and a value in JSON; "" leaves a member out.
func Payload(now time.Time, changes ...string) string {
	members := [][2]string{
		{"iss", `"` + Issuer + `"`},
		{"aud", `"` + Audience + `"`},
		{"sub", `"somebody"`},
		{"iat", fmt.Sprint(now.Unix())},
		{"exp", fmt.Sprint(now.Add(time.Hour).Unix())},
		{"scope", `"invoices.read invoices.write"`},
	}
	for i := 0; i < len(changes); i += 2 {
		name, value := changes[i], changes[i+1]
		found := false
		for j := range members {
			if members[j][0] == name {
				members[j][1], found = value, true
			}
		}
		if !found {
			members = append(members, [2]string{name, value})
		}
	}
	var parts []string
	for _, member := range members {
		if member[1] != "" {
			parts = append(parts, `"`+member[0]+`":`+member[1])
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}
