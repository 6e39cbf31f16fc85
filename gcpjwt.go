// Package gcpjwt signs and verifies JSON Web Tokens with keys that Google Cloud holds. The
// program never has a private key. The package works with [github.com/golang-jwt/jwt/v5], and
// signs with Cloud KMS, the IAM Credentials API or App Engine's App Identity service.
//
// # First call
//
// A [Signer] makes tokens with one key. Make it at start-up, once:
//
//	signer, err := gcpjwt.NewKMSSigner(ctx, &gcpjwt.KMSConfig{
//		KeyPath: "projects/p/locations/global/keyRings/r/cryptoKeys/k",
//	})
//
//	text, err := signer.Sign(ctx, claims)
//
//	token, err := jwt.Parse(text, signer.Keyfunc, jwt.WithExpirationRequired())
//
// The key decides on the algorithm. The token's header has the algorithm's RFC name and the kid
// of the key, so that every JWT library can verify the token.
//
// A service that only verifies makes a Keyfunc instead: [KMSVerifyKeyfunc], [IAMVerifyKeyfunc]
// or [AppEngineVerifyKeyfunc]. Package jwks publishes public keys and verifies with published
// ones. Package middleware checks the bearer tokens of HTTP requests. Neither links Google's
// clients.
//
// [SignedString] is for programs that choose the method themselves, or that come from v2: it
// signs a [jwt.Token] with a configuration that the context carries.
//
// # Choosing a signer
//
//   - Cloud KMS ([NewKMSSigner]) runs anywhere. You choose the algorithm, and when to rotate
//     the key. A signature costs a call. A verification costs none, except with HMAC keys.
//   - A service account ([NewIAMSigner]) runs anywhere. It signs RS256 with keys that Google
//     rotates. signBlob signs what it is given. signJwt writes a header of its own and wants an
//     exp within 12 hours.
//   - App Engine ([NewAppEngineSigner]) signs RS256 as the app's own account, in App Engine
//     Standard only. There is nothing to configure.
//
// # Keys and rotation
//
// A KeyPath that names a CryptoKey follows its versions. Tokens by every ENABLED version are
// accepted, and the newest one signs. A new version is accepted as soon as it is listed, and signs
// only after [KMSConfig].ActivationDelay, so that verifiers know it first. A change is noticed
// within [KMSConfig].KeyRefresh. A KeyPath that names a CryptoKeyVersion stands for that version
// alone.
//
// Cloud KMS itself may take hours until a disabled version is disabled everywhere. The public key
// of a disabled version cannot be read, so a verifier that starts afterwards doesn't know it.
// ROTATION.md in the repository has the steps of a rotation in their order, planned or not.
//
// The kid of a Cloud KMS token is [KMSKeyID] of the version's name. Those of service accounts and
// of App Engine are Google's. A token with a kid is checked with that key only. A token without
// one is checked with the signer's keys of its algorithm, the 16 newest at most.
//
// # Contexts
//
// The context of Sign and SignedString is that of the call: its end ends the call. A constructor's
// context lends its values to later calls; its end ends only the constructor's own reads. What
// callers share, such as keys, is read with a context of its own: it carries nobody's values.
//
// # Caching
//
// Public keys in Cloud KMS never change and are always kept. Certificates of service accounts are
// kept if [IAMConfig].EnableCache says so, those of App Engine if AppEngineVerifyKeyfunc is told
// to. The process shares what it keeps. Any number of callers cause one read. Keys are renewed in
// the background before they expire, and read once more for an unknown kid, though at most once a
// minute. In an outage they are used past their expiry, for a time that is bounded.
//
// Without the cache tokens share reads, too. A token gets keys that were asked for after it came,
// and at most two reads of a signer's certificates are under way.
//
// # Errors
//
// Match errors with [errors.Is]. Google's own error is in the chain: [errors.As] finds the
// *apierror.APIError or *googleapi.Error, and status.Code the code. No message holds a token, a
// signature or a payload.
//
// Of a Keyfunc's errors look for [ErrKeysUnavailable] first. It means that the keys could not be
// read. The token may be good: answer 503, not 401.
//
// # Calls that fail
//
// All calls obey one policy, over gRPC and REST alike. It is that of package jwks, too.
//
//	CALL          TRIED AGAIN           WITHIN                          A FAILURE IS REMEMBERED
//	sign          while time is left    ctx's deadline, or 1 minute     no
//	verify a MAC  3 attempts in all     10 seconds                      no
//	read keys     3 attempts in all     10 seconds                      refused: 3 seconds
//	                                                                    else: 100 ms to 1 minute
//	App Engine    no                    ctx's deadline, or 10 seconds   of certificates: as above
//
// Reading keys is reading public keys, lists of versions, certificates and JWK Sets.
//
// A call is tried again if the service is down or busy. It says so by UNAVAILABLE,
// DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED, or by HTTP status 429, 500, 502, 503 or 504. Attempts
// are 50 to 100 ms apart at first, then twice as long each time, up to 5 to 10 seconds. A call
// whose connection breaks is repeated once, and one whose answer fails its checksum is made 3
// times in all, both without a pause.
//
// A read that failed is remembered so that not every token waits for another one. Until it is
// tried again, the last keys serve; without any, callers get the same error at once. Refused is
// what isn't there, ready or allowed yet: NOT_FOUND, FAILED_PRECONDITION, PERMISSION_DENIED,
// UNAUTHENTICATED and INVALID_ARGUMENT, or any other HTTP status. For all else the time doubles
// with each failure, and also for what is refused while the last keys serve. Nothing is
// remembered of certificates without the cache, and for a minute that a caller may not read the
// public key that it signs with.
//
// # Concurrency
//
// Signers, signing methods, configurations and Keyfuncs may be used concurrently. A configuration
// must not be changed while it is in use. SignedString only reads the token that it is given.
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
	var carried *kmsCarried // none hides that of parent
	if config != nil {
		carried = &kmsCarried{config: config}
	}
	return withValue(parent, kmsContextKey{}, carried)
}

// KMSFromContext returns the configuration that ctx carries, if any.
func KMSFromContext(ctx context.Context) (*KMSConfig, bool) {
	if carried, ok := valueOf[kmsCarried](ctx, kmsContextKey{}); ok {
		return carried.config, true
	}
	return nil, false
}

// NewIAMContext returns a copy of parent that carries config. It is the key
// that the IAM signing methods take. The configuration must not be changed
// while calls use it. A nil parent stands for [context.Background].
func NewIAMContext(parent context.Context, config *IAMConfig) context.Context {
	return withValue(parent, iamContextKey{}, config)
}

// IAMFromContext returns the configuration that ctx carries, if any.
func IAMFromContext(ctx context.Context) (*IAMConfig, bool) {
	return valueOf[IAMConfig](ctx, iamContextKey{})
}

func withValue(parent context.Context, key, value any) context.Context {
	if parent == nil {
		parent = context.Background()
	}
	return context.WithValue(parent, key, value)
}

func valueOf[T any](ctx context.Context, key any) (*T, bool) {
	if ctx == nil {
		return nil, false
	}
	value, _ := ctx.Value(key).(*T)
	return value, value != nil
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
		return "", errs.Errorf("SignedString needs a signing method of this package, not %T: %w",
			token.Method, jwt.ErrInvalidKeyType)
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
