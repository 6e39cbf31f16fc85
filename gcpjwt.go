// Package gcpjwt signs and verifies JSON Web Tokens with keys that Google Cloud
// holds, so that a program never has a private key. It plugs Cloud KMS, the IAM
// Credentials API and App Engine's App Identity service into
// [github.com/golang-jwt/jwt/v5].
//
// # First call
//
// Put the configuration of a signer into a context, and sign with
// [SignedString]; make a Keyfunc of the same configuration, and verify with
// jwt.Parse:
//
//	config := &gcpjwt.KMSConfig{KeyPath: "projects/p/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1"}
//	ctx = gcpjwt.NewKMSContext(ctx, config)
//
//	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, claims)
//	text, err := gcpjwt.SignedString(ctx, token)
//
//	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config) // once per process
//	verified, err := jwt.Parse(text, keyfunc, jwt.WithExpirationRequired())
//
// SignedString writes the RFC algorithm and the right kid into the header, so
// that any JWT library can verify the token. [jwt.Token.SignedString] with the
// context as its key works too; it leaves the header as it is, alias and all.
//
// # Choosing a signer
//
//   - Cloud KMS ([KMSConfig], [SigningMethodKMSES256] and its siblings) runs
//     anywhere, has the choice of algorithms, and leaves it to you when a key is
//     rotated. One call per signature, none per verification (except HMAC).
//   - signBlob ([IAMConfig], [SigningMethodIAMBlob]) and signJwt
//     ([SigningMethodIAMJWT]) run anywhere and sign RS256 as a service account whose
//     keys Google rotates. signJwt insists on a header of its own and an exp within
//     12 hours; signBlob signs what it is given.
//   - App Engine ([SigningMethodAppEngine]) signs RS256 as the app's own account,
//     in App Engine Standard only, and needs no configuration.
//
// # Keys and rotation
//
// A KeyPath that names a CryptoKeyVersion stands for that version alone. One that
// names a CryptoKey follows its versions: signatures come from the newest ENABLED
// version of the method's algorithm, and tokens by every ENABLED version are
// accepted. A new version is picked up, and a disabled one given up, within
// [KMSConfig].KeyRefresh; verifiers learn of a new version before signers take it
// into use. Until a version is disabled everywhere, Cloud KMS itself may take
// hours, and the public key of a disabled version cannot be read any more: a
// verifier that starts afterwards doesn't know it. ROTATION.md in the repository
// has the order of steps, for planned and for emergency rotation.
//
// The kid of a Cloud KMS token is [KMSKeyID] of the version's name; those of
// service accounts and App Engine are Google's. A token with a kid is checked with
// that key only, one without with every key of its signer.
//
// # Caching
//
// Public keys in Cloud KMS never change and are always kept. Certificates of
// service accounts are kept if [IAMConfig].EnableCache says so, those of App
// Engine if AppEngineVerifyKeyfunc is told to. Whatever is kept is shared by the
// process, fetched once for any number of callers, renewed in the background
// before it expires, fetched again for an unknown kid once a minute at most, and
// used for a bounded time past its expiry while its origin is down.
//
// # Errors
//
// Every error is matched with [errors.Is]; Google's own stays reachable through
// [errors.As] (an *apierror.APIError or a *googleapi.Error) and status.Code. Of
// those of a Keyfunc, [ErrKeysUnavailable] says nothing about the token: answer 503
// rather than 401, as package middleware does. No error holds a token, a
// signature or a payload.
//
// # Concurrency
//
// Signing methods, configurations, Keyfuncs and what they share may be used
// concurrently. A [jwt.Token] that is being signed must not be shared. The end of
// a context ends the call that waits with it, and nothing that others wait for.
package gcpjwt

import (
	"context"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// Errors of this package. They are matched with [errors.Is] and wrapped
// together with their cause, so that a Google error stays reachable through
// [errors.As].
var (
	// ErrMissingConfig reports a signing key that is a context without the
	// configuration of the signing method, or a nil configuration or context.
	ErrMissingConfig = errs.ErrMissingConfig

	// ErrInvalidConfig reports a configuration that cannot work whatever the
	// token, such as a malformed KeyPath or ServiceAccount.
	ErrInvalidConfig = errs.ErrInvalidConfig

	// ErrAlgorithmMismatch reports a key that is made for another algorithm
	// than the signing method or the token asks for.
	ErrAlgorithmMismatch = errs.ErrAlgorithmMismatch

	// ErrIntegrity reports an answer of Google's that failed its checksum,
	// name or signature check, three times where the call can be repeated.
	ErrIntegrity = errs.ErrIntegrity

	// ErrUnknownKeyID reports a token whose kid names no key of the signer, or
	// one whose HMAC key has been disabled.
	ErrUnknownKeyID = errs.ErrUnknownKeyID

	// ErrKeysUnavailable reports that public keys could not be fetched, or
	// that Cloud KMS could not check a MAC, for whatever reason: Google's error,
	// which is its cause, tells an outage from a missing permission. The token
	// may still be good: it is a reason to answer 503 rather than 401.
	ErrKeysUnavailable = errs.ErrKeysUnavailable

	// ErrSigningStringChanged reports that signJwt signed another header or
	// payload than the one it was given. [SignedString] returns the token as
	// Google made it and so has no use for this error, unless a claim or a
	// header field that the caller set got lost.
	ErrSigningStringChanged = errs.ErrSigningStringChanged
)

// Each configuration has a context key type of its own, so that a context can
// carry all of them.
type (
	kmsContextKey struct{}
	iamContextKey struct{}
)

// NewKMSContext returns a copy of parent that carries config. It is the key
// that the KMS signing methods take. The configuration must not be changed
// while calls use it. A nil parent stands for [context.Background].
func NewKMSContext(parent context.Context, config *KMSConfig) context.Context {
	return withConfig(parent, kmsContextKey{}, config)
}

// KMSFromContext returns the configuration that ctx carries, if any.
func KMSFromContext(ctx context.Context) (*KMSConfig, bool) {
	return configOf[KMSConfig](ctx, kmsContextKey{})
}

// NewIAMContext returns a copy of parent that carries config. It is the key
// that the IAM signing methods take. The configuration must not be changed
// while calls use it. A nil parent stands for [context.Background].
func NewIAMContext(parent context.Context, config *IAMConfig) context.Context {
	return withConfig(parent, iamContextKey{}, config)
}

// IAMFromContext returns the configuration that ctx carries, if any.
func IAMFromContext(ctx context.Context) (*IAMConfig, bool) {
	return configOf[IAMConfig](ctx, iamContextKey{})
}

func withConfig(parent context.Context, key, config any) context.Context {
	if parent == nil {
		parent = context.Background()
	}
	return context.WithValue(parent, key, config)
}

func configOf[T any](ctx context.Context, key any) (*T, bool) {
	if ctx == nil {
		return nil, false
	}
	config, _ := ctx.Value(key).(*T)
	return config, config != nil
}

// SignedString signs token with its method, which must be one of this
// package, and returns the finished JWT. ctx carries the configuration (see
// [NewKMSContext] and [NewIAMContext]; App Engine needs none), and its end ends
// the call. [Signer] does the same without a context that carries anything.
//
// The header of the JWT is token.Header with the method's RFC algorithm, no matter
// whether the method was overridden, and with a kid that names the key that signs. A kid
// that token.Header has is kept. With [SigningMethodIAMBlob] and
// [SigningMethodAppEngine] Google says only afterwards which key it used: the
// last one seen is tried first, and if Google used another, the header is
// corrected and signed again. After three such misses, which happen while a new key
// is phased in, the token is signed without a kid, which verifiers check
// against each of the signer's keys.
//
// With [SigningMethodIAMJWT] the header is Google's: the token is returned byte
// for byte as signJwt made it.
//
// The error is [ErrMissingConfig], [ErrInvalidConfig], [ErrAlgorithmMismatch],
// [ErrIntegrity], [ErrSigningStringChanged], jwt.ErrInvalidKeyType for a method of
// another package, jwt.ErrTokenInvalidClaims for claims that make no JSON object,
// jwt.ErrTokenExpired, jwt.ErrTokenInvalidClaims or jwt.ErrInvalidType for an exp that
// signJwt refuses, the context's, or Google's, which errors.As and status.Code
// find. Give ctx a deadline: without one a call may take a minute.
//
// SignedString reads token and changes nothing in it: one token may be signed again, by
// another signer too, and from several goroutines.
func SignedString(ctx context.Context, token *jwt.Token) (string, error) {
	if ctx == nil {
		return "", errs.Errorf("SignedString needs a context.Context: %w", jwt.ErrInvalidKeyType)
	}
	if token == nil {
		return "", errs.Errorf("%w: nil token", jwt.ErrTokenMalformed)
	}
	method, ok := token.Method.(interface {
		signedString(ctx context.Context, d *draft) (string, error)
		isMethod() bool
	})
	if !ok {
		return "", errs.Errorf("SignedString needs a signing method of this package, not %T: %w", token.Method, jwt.ErrInvalidKeyType)
	}
	if !method.isMethod() {
		return "", errNoMethod
	}
	d, err := newDraft(token.Header, token.Claims)
	if err != nil {
		return "", err
	}
	return method.signedString(ctx, d)
}
