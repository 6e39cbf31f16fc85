package gcpjwt

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// issuedHeader is a header that SignedString has written: alg, kid, and JWT as typ.
type issuedHeader struct {
	alg     string
	fields  map[string]any
	segment string // of the fields, as it stands in a token
}

// issuedHeaders are those of all signers, by kid.
var issuedHeaders = newRegistry[string, issuedHeader]()

// headerOf returns the header of a kid as it was issued first: should two signers use
// one kid, its alg may be the other's.
func headerOf(alg, kid string) *issuedHeader {
	return issuedHeaders.get(kid, func() *issuedHeader {
		fields := map[string]any{"alg": alg, "kid": kid, "typ": "JWT"}
		data, err := json.Marshal(fields)
		if err != nil {
			panic(err) // not for strings
		}
		return &issuedHeader{alg, fields, base64.RawURLEncoding.EncodeToString(data)}
	})
}

// setKeyID writes a kid into the token's header, which has its alg already.
func setKeyID(token *jwt.Token, alg, kid string) *issuedHeader {
	token.Header["kid"] = kid
	return headerOf(alg, kid)
}

// signingInput is token.SigningString, which encodes the same header for each token
// of a signer. issued is what setKeyID returned, nil if the caller set the kid.
func signingInput(token *jwt.Token, issued *issuedHeader) (string, error) {
	if issued == nil || token.Header["alg"] != issued.alg || token.Header["typ"] != "JWT" || len(token.Header) > 3 {
		return token.SigningString()
	}
	claims, err := json.Marshal(token.Claims)
	if err != nil {
		return "", err
	}
	return withSegment(issued.segment, claims), nil
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
	_, issued := issuedHeaders.peek(kid)
	return !issued, nil
}

// finish joins a signing string and its signature into a token.
func finish(token *jwt.Token, signingString string, sig []byte) string {
	token.Signature = sig
	return withSegment(signingString, sig)
}

// withSegment appends a segment to those of a token.
func withSegment(segments string, data []byte) string {
	var text strings.Builder
	text.Grow(len(segments) + 1 + base64.RawURLEncoding.EncodedLen(len(data)))
	text.WriteString(segments)
	text.WriteByte('.')
	// In pieces of whole groups of 3 bytes, as a segment may be long and a Builder
	// cannot be encoded into.
	var encoded [1024]byte
	for piece := range slices.Chunk(data, 768) {
		text.Write(base64.RawURLEncoding.AppendEncode(encoded[:0], piece))
	}
	return text.String()
}

// forgetKeyID removes a kid that SignedString has written if signing failed.
func forgetKeyID(token *jwt.Token, err *error) {
	if *err != nil {
		delete(token.Header, "kid")
	}
}

// remember stores the key ID that a signer used last.
func remember(last *atomic.Pointer[string], kid string) {
	if known := last.Load(); known == nil || *known != kid {
		stored := kid // so that only this allocates
		last.Store(&stored)
	}
}

// misses is how often a signer whose key is known only after signing may use
// another key than expected before the token goes without a kid.
const misses = 3

// signLearningKeyID signs with a signer that says only afterwards which key it
// used. last is the key ID that it used last, "" before the first time.
func signLearningKeyID(token *jwt.Token, alg string, last *atomic.Pointer[string], sign func(signingString string) (kid string, sig []byte, err error)) (_ string, err error) {
	fixed, err := hasOwnKeyID(token)
	if err != nil {
		return "", err
	}
	if !fixed {
		defer forgetKeyID(token, &err)
	}
	for miss := 0; ; miss++ {
		expected := ""
		var header *issuedHeader
		if !fixed {
			delete(token.Header, "kid")
			if kid := last.Load(); kid != nil && miss < misses {
				expected = *kid
				header = setKeyID(token, alg, expected)
			}
		}
		text, err := signingInput(token, header)
		if err != nil {
			return "", err
		}
		kid, sig, err := sign(text)
		if err != nil {
			return "", err
		}
		remember(last, kid)
		if fixed || kid == expected || miss == misses {
			return finish(token, text, sig), nil
		}
	}
}
