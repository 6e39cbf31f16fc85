package gcpjwt

import (
	"context"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
)

// errNilContext is for constructors that are given no context.
func errNilContext(constructor string) error {
	return errs.Errorf("%w: %s needs a context.Context", ErrMissingConfig, constructor)
}

// KMSVerifyKeyfunc returns a Keyfunc for tokens by the key that config names.
// It reads that key, or a CryptoKey's versions and their public keys, before it
// returns, so that a bad configuration shows at start-up. The error is
// [ErrMissingConfig], [ErrInvalidConfig], [ErrAlgorithmMismatch] (a key that no
// signing method is for) or [ErrKeysUnavailable], which also stands for a key that
// doesn't exist, a missing permission and missing credentials. It takes
// cloudkms.cryptoKeyVersions.viewPublicKey (roles/cloudkms.publicKeyViewer), and
// cloudkms.cryptoKeyVersions.list (roles/cloudkms.viewer) for a CryptoKey. Who has
// cloudkms.cryptoKeys.get too is told if a version is one for encryption.
//
// Where KeyPath names a CryptoKeyVersion, the Keyfunc makes no further call, and
// goes on to accept the version's tokens if it is disabled later. Where it names
// a CryptoKey, every ENABLED version is accepted: the list is renewed in the
// background within KeyRefresh, and once more for a kid that it doesn't have,
// though at most once a minute. While Cloud KMS is down, the last list serves for
// an hour past its KeyRefresh.
//
// An HMAC key never leaves Cloud KMS. For tokens by one the Keyfunc replaces
// token.Method by the method of this package, which makes one MacVerify call for
// each token (it takes cloudkms.cryptoKeyVersions.useToVerify).
//
// The Keyfunc accepts a token whose method is one of this package's or jwt's own
// if its RFC algorithm is the one that the key is made for; Override isn't
// needed. A token with a kid (see [KMSKeyID]) is checked with that key only, one
// without with each key of its algorithm, the 16 newest at most. PS256 and PS512
// signatures must have the salt of RFC 7518 section 3.5, which jwt's own methods don't check:
// the Keyfunc sets token.Method to one that does. A token with a crit header is refused, as
// no extension is supported (RFC 7515 section 4.1.11). Its errors are
// [ErrAlgorithmMismatch], [ErrUnknownKeyID], [ErrKeysUnavailable] and
// [jwt.ErrTokenMalformed]. It may be used concurrently.
//
// ctx lends its values to the calls that serve this Keyfunc alone, which are those for MACs.
// Its end ends only what the constructor reads. A call takes 10 seconds at most.
func KMSVerifyKeyfunc(ctx context.Context, config *KMSConfig) (jwt.Keyfunc, error) {
	switch {
	case config == nil:
		return nil, errs.Errorf("%w: KMSVerifyKeyfunc needs a *KMSConfig", ErrMissingConfig)
	case ctx == nil:
		return nil, errNilContext("KMSVerifyKeyfunc")
	}
	key, err := config.key(ctx)
	if err != nil {
		return nil, keyset.Unavailable(err)
	}
	ctx, cancel := keyset.Waiting(ctx)
	defer cancel()
	source, err := key.verifyKeys(ctx)
	if err != nil {
		return nil, keyset.Unavailable(err)
	}
	return keyset.Keyfunc(ctx, source), nil
}

// IAMVerifyKeyfunc returns a Keyfunc for RS256 tokens by the service account
// that config names, whether signBlob or signJwt made them. It makes no call
// itself; that config is nil or invalid ([ErrMissingConfig], [ErrInvalidConfig])
// shows at the first token.
//
// Without EnableCache each token costs a fetch of the account's certificates, which tokens
// that come at the same time share: two at most are under way.
// With it they are shared by the process and kept for as long as their response
// says, at most 24 hours: renewed in the background before they expire, fetched
// once more for an unknown kid, though at most once a minute, and kept in use for
// StaleIfError beyond their expiry while the endpoint is down.
//
// What is said of [KMSVerifyKeyfunc]'s Keyfunc about algorithms, kid, errors and
// concurrency is true of this one too. ctx lends nothing and ends nothing: all that the
// Keyfunc reads is shared.
func IAMVerifyKeyfunc(ctx context.Context, config *IAMConfig) jwt.Keyfunc {
	keyfunc, err := config.VerifyKeyfunc(ctx)
	if err != nil {
		return keyset.Refuse(err)
	}
	return keyfunc
}

// VerifyKeyfunc is [IAMVerifyKeyfunc] with the error of a configuration that cannot work:
// [ErrMissingConfig] for a nil config or ctx, else [ErrInvalidConfig]. It is for package
// middleware.
func (c *IAMConfig) VerifyKeyfunc(ctx context.Context) (jwt.Keyfunc, error) {
	if ctx == nil {
		return nil, errNilContext("IAMVerifyKeyfunc")
	}
	source, err := c.certificates(c != nil && c.EnableCache)
	if err != nil {
		return nil, err
	}
	return keyset.Keyfunc(ctx, source), nil
}

// AppEngineVerifyKeyfunc returns a Keyfunc for RS256 tokens by the App Engine app
// that the program runs as. enableCache keeps the app's certificates between
// verifications, for as long as App Engine says or else for cacheExpiration (0:
// not at all); they then behave as those of [IAMVerifyKeyfunc] do with a
// StaleIfError of one hour.
//
// ctx lends its values, such as a request's ticket, to the calls that the App Engine SDK makes;
// its end ends none of them. A process is one app: with the cache, certificates that one Keyfunc
// has read serve all others, so that making a Keyfunc for each request, of its context, costs
// next to nothing. Without a cache, tokens that come at the same time share a call.
func AppEngineVerifyKeyfunc(
	ctx context.Context, enableCache bool, cacheExpiration time.Duration,
) jwt.Keyfunc {
	switch {
	case ctx == nil:
		return keyset.Refuse(errNilContext("AppEngineVerifyKeyfunc"))
	case cacheExpiration < 0:
		return keyset.Refuse(errs.Errorf("%w: cacheExpiration is negative", ErrInvalidConfig))
	}
	return keyset.Keyfunc(ctx, appEngineCertificates(ctx, enableCache, cacheExpiration))
}

// KMSVerfiyKeyfunc is KMSVerifyKeyfunc under the name that v2 gave it.
//
// Deprecated: Use [KMSVerifyKeyfunc].
//
//go:fix inline
func KMSVerfiyKeyfunc(ctx context.Context, config *KMSConfig) (jwt.Keyfunc, error) {
	return KMSVerifyKeyfunc(ctx, config)
}

// IAMVerfiyKeyfunc is IAMVerifyKeyfunc under the name that v2 gave it.
//
// Deprecated: Use [IAMVerifyKeyfunc].
//
//go:fix inline
func IAMVerfiyKeyfunc(ctx context.Context, config *IAMConfig) jwt.Keyfunc {
	return IAMVerifyKeyfunc(ctx, config)
}

// AppEngineVerfiyKeyfunc is AppEngineVerifyKeyfunc under the name that v2 gave it.
//
// Deprecated: Use [AppEngineVerifyKeyfunc].
//
//go:fix inline
func AppEngineVerfiyKeyfunc(
	ctx context.Context, enableCache bool, cacheExpiration time.Duration,
) jwt.Keyfunc {
	return AppEngineVerifyKeyfunc(ctx, enableCache, cacheExpiration)
}
