package gcpjwt

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/golang-jwt/jwt/v5"
)

// method is what all signing methods share: two names and a verifier. jwt
// knows a method by its alias, so that importing this package changes nothing
// for users of jwt's own methods.
type method struct {
	alias      string
	alg        string // RFC 7518, RFC 8037 or RFC 9964
	verifier   verifier
	self       jwt.SigningMethod // the method that Override registers
	original   *method           // that of self
	overridden atomic.Bool
}

// A verifier checks signatures of one algorithm. jwt's own methods are
// verifiers.
type verifier interface {
	Verify(signingString string, sig []byte, key any) error
}

// Alg returns the name that jwt writes into the header of a new token: the
// method's alias until Override is called, its RFC name afterwards.
// [SignedString] always writes the RFC name.
func (m *method) Alg() string {
	if m.overridden.Load() {
		return m.alg
	}
	return m.alias
}

// Override registers the method with jwt under its RFC name, in place of jwt's
// own, for the whole process: tokens that jwt.Parse reads from then on have
// this method. It may be called at any time and more than once; of two methods
// with the same RFC name the last one overridden is registered. Nothing in this
// package needs it: [SignedString] and the Keyfuncs work without.
func (m *method) Override() {
	m.original.overridden.Store(true)
	jwt.RegisterSigningMethod(m.alg, func() jwt.SigningMethod { return m.self })
}

// Verify checks a signature of signingString with key, which is the public key
// that jwt's own method of the same RFC name takes.
func (m *method) Verify(signingString string, sig []byte, key any) error {
	return m.verifier.Verify(signingString, sig, key)
}

func (m *method) rfcAlg() string { return m.alg }

// register makes the method known to jwt under its alias.
func (m *method) register(self jwt.SigningMethod) {
	m.self, m.original = self, m
	jwt.RegisterSigningMethod(m.alias, func() jwt.SigningMethod { return self })
}

func init() {
	for _, m := range kmsMethods {
		m.register(m)
		if m.standalone {
			m.answerToRFCName()
		}
	}
	SigningMethodIAMBlob.register(SigningMethodIAMBlob)
	SigningMethodIAMJWT.register(SigningMethodIAMJWT)
	SigningMethodAppEngine.register(SigningMethodAppEngine)
}

// stockMethods are jwt's own methods of the algorithms that Google's keys have.
var stockMethods = map[string]jwt.SigningMethod{
	"RS256": jwt.SigningMethodRS256,
	"RS512": jwt.SigningMethodRS512,
	"PS256": jwt.SigningMethodPS256,
	"PS512": jwt.SigningMethodPS512,
	"ES256": jwt.SigningMethodES256,
	"ES384": jwt.SigningMethodES384,
	"EdDSA": jwt.SigningMethodEdDSA,
	"HS256": jwt.SigningMethodHS256,
	"HS384": jwt.SigningMethodHS384,
	"HS512": jwt.SigningMethodHS512,
}

// tokenAlg returns the RFC algorithm of a parsed token whose method is ours or
// jwt's own, whichever of the two jwt found under the name in the header.
func tokenAlg(token *jwt.Token) (string, error) {
	switch m := token.Method.(type) {
	case nil:
		return "", fmt.Errorf("%w: token has no signing method", ErrAlgorithmMismatch)
	case interface{ rfcAlg() string }:
		return m.rfcAlg(), nil
	default:
		alg := m.Alg()
		if stockMethods[alg] != m {
			return "", fmt.Errorf("%w: a token with alg %s is not accepted", ErrAlgorithmMismatch, quote(alg))
		}
		return alg, nil
	}
}

// signingContext returns the context that Sign was given as its key.
func signingContext(key any) (context.Context, error) {
	ctx, ok := key.(context.Context)
	if !ok || ctx == nil {
		return nil, fmt.Errorf("gcpjwt: Sign takes a context.Context that carries the configuration, not %T: %w", key, jwt.ErrInvalidKeyType)
	}
	return ctx, nil
}

// setAlg writes the RFC algorithm into the token's header.
func setAlg(token *jwt.Token, alg string) {
	if token.Header == nil {
		token.Header = map[string]any{"typ": "JWT"}
	}
	token.Header["alg"] = alg
}

// issuedKeyIDs are the key IDs that SignedString has written, of all signers.
var (
	issuedKeyIDs    = newRegistry[string, struct{}]()
	lastIssuedKeyID atomic.Pointer[string] // most often the next one too
)

// setKeyID writes a kid into the token's header.
func setKeyID(token *jwt.Token, kid string) {
	if last := lastIssuedKeyID.Load(); last == nil || *last != kid {
		issuedKeyIDs.get(kid, func() *struct{} { return new(struct{}) })
		issued := kid
		lastIssuedKeyID.Store(&issued)
	}
	token.Header["kid"] = kid
}

// hasOwnKeyID reports whether the caller set a kid in the token's header. One that
// is from an earlier SignedString doesn't count: the signer's key may have changed
// since.
func hasOwnKeyID(token *jwt.Token) (bool, error) {
	value, set := token.Header["kid"]
	if !set {
		return false, nil
	}
	kid, _ := value.(string)
	if kid == "" {
		return false, errors.New("gcpjwt: the kid in the token's header must be a non-empty string; remove it to have it set")
	}
	_, issued := issuedKeyIDs.peek(kid)
	return !issued, nil
}

// finish joins a signing string and its signature into a token.
func finish(token *jwt.Token, signingString string, sig []byte) string {
	token.Signature = sig
	var text strings.Builder
	text.Grow(len(signingString) + 1 + base64.RawURLEncoding.EncodedLen(len(sig)))
	text.WriteString(signingString)
	text.WriteByte('.')
	var buffer [1024]byte // enough for all but ML-DSA
	text.Write(base64.RawURLEncoding.AppendEncode(buffer[:0], sig))
	return text.String()
}

// forgetKeyID removes a kid that SignedString has written if signing failed.
func forgetKeyID(token *jwt.Token, err *error) {
	if *err != nil {
		delete(token.Header, "kid")
	}
}

// misses is how often a signer whose key is known only after signing may use
// another key than expected before the token goes without a kid.
const misses = 3

// signLearningKeyID signs with a signer that says only afterwards which key it
// used. last is the key ID that it used last, "" before the first time.
func signLearningKeyID(token *jwt.Token, last *atomic.Pointer[string], sign func(signingString string) (kid string, sig []byte, err error)) (text string, err error) {
	fixed, err := hasOwnKeyID(token)
	if err != nil {
		return "", err
	}
	if !fixed {
		defer forgetKeyID(token, &err)
	}
	for miss := 0; ; miss++ {
		expected := ""
		if !fixed {
			delete(token.Header, "kid")
			if kid := last.Load(); kid != nil && miss < misses {
				expected = *kid
				setKeyID(token, expected)
			}
		}
		signingString, err := token.SigningString()
		if err != nil {
			return "", err
		}
		kid, sig, err := sign(signingString)
		if err != nil {
			return "", err
		}
		last.Store(&kid)
		if fixed || kid == expected || miss == misses {
			return finish(token, signingString, sig), nil
		}
	}
}
