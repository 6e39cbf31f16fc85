package gcpjwt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A keySource supplies the public keys of one signer.
type keySource interface {
	// accepts reports whether the signer can have a key of an RFC algorithm.
	accepts(alg string) bool

	// get returns the signer's keys, renew newer ones if those seen are wanting.
	get(ctx context.Context) (*keySet, error)
	renew(ctx context.Context, seen *keySet, wanting func(*keySet) bool) (*keySet, error)

	// resolve returns what the token's method verifies with.
	resolve(ctx context.Context, key *verifyKey) (any, error)
}

// keyfunc makes a Keyfunc of a key source. A token gets a key only if its
// algorithm is the one the key was made for; its kid, if it has one, must name
// the key.
func keyfunc(ctx context.Context, src keySource) jwt.Keyfunc {
	return func(token *jwt.Token) (any, error) {
		if token == nil {
			return nil, fmt.Errorf("%w: nil token", jwt.ErrTokenMalformed)
		}
		alg, err := tokenAlg(token)
		if err != nil {
			return nil, err
		}
		if !src.accepts(alg) {
			return nil, fmt.Errorf("%w: the signer has no keys for alg %s", ErrAlgorithmMismatch, alg)
		}
		if _, ok := token.Header["crit"]; ok {
			return nil, fmt.Errorf("%w: crit names extensions, and none is supported (RFC 7515 section 4.1.11)", jwt.ErrTokenMalformed)
		}
		header, named := token.Header["kid"]
		kid, ok := header.(string)
		if named && !ok {
			return nil, fmt.Errorf("%w: the kid is not a string", jwt.ErrTokenMalformed)
		}

		set, err := src.get(ctx)
		if err != nil {
			return nil, unavailable(err)
		}
		if !named {
			return everyKey(ctx, src, set, token, alg)
		}
		key, err := findKey(ctx, src, set, keyName{kid, alg})
		if err != nil {
			return nil, err
		}
		return oneKey(ctx, src, key, token)
	}
}

// findKey returns the key of a name, renewing the set for a kid that is not in it.
func findKey(ctx context.Context, src keySource, set *keySet, name keyName) (*verifyKey, error) {
	if key := set.lookup[name]; key != nil {
		return key, nil
	}
	unknown := func(set *keySet) bool { return !set.knows(name.kid) }
	if unknown(set) && plausibleKeyID(name.kid) {
		var err error
		if set, err = src.renew(ctx, set, unknown); err != nil {
			return nil, unavailable(fmt.Errorf("%w %s: %w", ErrUnknownKeyID, quote(name.kid), err))
		}
	}
	key := set.lookup[name]
	switch {
	case key != nil:
		return key, nil
	case unknown(set):
		return nil, fmt.Errorf("%w: %s", ErrUnknownKeyID, quote(name.kid))
	}
	return nil, fmt.Errorf("%w: key %s is not one for alg %s", ErrAlgorithmMismatch, quote(name.kid), name.alg)
}

// plausibleKeyID tells a kid that a signer may have chosen from one that is not
// worth asking for. Google's are 40 characters long.
func plausibleKeyID(kid string) bool { return kid != "" && len(kid) <= 256 }

func oneKey(ctx context.Context, src keySource, key *verifyKey, token *jwt.Token) (any, error) {
	value, err := src.resolve(ctx, key)
	if err != nil {
		return nil, unavailable(err)
	}
	if mac, ok := value.(*macKey); ok {
		token.Method = mac.method
	}
	return value, nil
}

// everyKey returns all keys of an algorithm, for a token that doesn't say which
// one signed it.
func everyKey(ctx context.Context, src keySource, set *keySet, token *jwt.Token, alg string) (any, error) {
	var (
		keys    jwt.VerificationKeySet
		mac     *macKey
		failure error
	)
	for _, key := range set.keys {
		if key.alg != alg {
			continue
		}
		value, err := oneKey(ctx, src, key, token)
		if err != nil {
			failure = err
			continue
		}
		if one, ok := value.(*macKey); ok {
			mac = one.and(mac)
			continue
		}
		keys.Keys = append(keys.Keys, value)
	}
	switch {
	case mac != nil:
		return mac, nil
	case failure != nil && len(keys.Keys) == 0:
		return nil, failure
	case failure != nil:
		token.Method = incomplete{token.Method}
		keys.Keys = append(keys.Keys, missingKey{failure})
		return keys, nil
	case len(keys.Keys) == 1:
		return keys.Keys[0], nil
	case len(keys.Keys) > 1:
		return keys, nil
	}
	return nil, fmt.Errorf("%w: the signer has no key for alg %s", ErrAlgorithmMismatch, alg)
}

// incomplete is a token's method where not every key that may have signed it
// could be had: if none of the others did, nothing can be said of the token.
type incomplete struct{ jwt.SigningMethod }

// missingKey stands for the keys that could not be had.
type missingKey struct{ err error }

func (m incomplete) Verify(signingString string, sig []byte, key any) error {
	if missing, ok := key.(missingKey); ok {
		return missing.err
	}
	return m.SigningMethod.Verify(signingString, sig, key)
}

// unavailable marks an error as one that says nothing about the token, unless
// it is one that no waiting mends.
func unavailable(err error) error {
	for _, permanent := range []error{ErrInvalidConfig, ErrMissingConfig, ErrAlgorithmMismatch, ErrKeysUnavailable} {
		if errors.Is(err, permanent) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrKeysUnavailable, err)
}

// refuse is a Keyfunc that fails with err.
func refuse(err error) jwt.Keyfunc {
	return func(*jwt.Token) (any, error) { return nil, err }
}

// KMSVerifyKeyfunc returns a Keyfunc for tokens by the key that config names.
// It reads that key, or a CryptoKey's versions and their public keys, before it
// returns, so that a bad configuration shows at start-up. The error is
// [ErrMissingConfig], [ErrInvalidConfig], [ErrAlgorithmMismatch] (a key that no
// signing method is for) or [ErrKeysUnavailable], which also stands for a key that
// doesn't exist, a missing permission and missing credentials. It takes
// cloudkms.cryptoKeyVersions.viewPublicKey (roles/cloudkms.publicKeyViewer), and
// cloudkms.cryptoKeyVersions.list (roles/cloudkms.viewer) for a CryptoKey.
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
// each token, bounded by ctx (it takes cloudkms.cryptoKeyVersions.useToVerify).
//
// The Keyfunc accepts a token whose method is one of this package's or jwt's own
// if its RFC algorithm is the one that the key is made for; Override isn't
// needed. A token with a kid (see [KMSKeyID]) is checked with that key only, one
// without with each key of its algorithm. A token with a crit header is refused, as
// no extension is supported (RFC 7515 section 4.1.11). Its errors are
// [ErrAlgorithmMismatch], [ErrUnknownKeyID], [ErrKeysUnavailable] and
// [jwt.ErrTokenMalformed]. It may be used concurrently.
//
// ctx must live as long as the Keyfunc: its end ends the calls that a token waits
// for. A call takes 10 seconds at most.
func KMSVerifyKeyfunc(ctx context.Context, config *KMSConfig) (jwt.Keyfunc, error) {
	if config == nil {
		return nil, fmt.Errorf("%w: KMSVerifyKeyfunc needs a *KMSConfig", ErrMissingConfig)
	}
	src, err := config.verifyKeys(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	return keyfunc(ctx, src), nil
}

// IAMVerifyKeyfunc returns a Keyfunc for RS256 tokens by the service account
// that config names, whether signBlob or signJwt made them. It makes no call
// itself; that config is nil or invalid ([ErrMissingConfig], [ErrInvalidConfig])
// shows at the first token.
//
// Without EnableCache each token costs a fetch of the account's certificates.
// With it they are shared by the process and kept for as long as their response
// says, at most 24 hours: renewed in the background before they expire, fetched
// once more for an unknown kid, though at most once a minute, and kept in use for
// StaleIfError beyond their expiry while the endpoint is down.
//
// What is said of [KMSVerifyKeyfunc]'s Keyfunc about algorithms, kid, errors,
// concurrency and ctx, which must live as long as the Keyfunc, is true of this one
// too.
func IAMVerifyKeyfunc(ctx context.Context, config *IAMConfig) jwt.Keyfunc {
	if config == nil {
		return refuse(fmt.Errorf("%w: IAMVerifyKeyfunc needs an *IAMConfig", ErrMissingConfig))
	}
	src, err := config.certificates()
	if err != nil {
		return refuse(err)
	}
	return keyfunc(ctx, src)
}

// AppEngineVerifyKeyfunc returns a Keyfunc for RS256 tokens by the App Engine app
// that the program runs as. enableCache keeps the app's certificates between
// verifications, for as long as App Engine says or else for cacheExpiration (0:
// not at all); they then behave as those of [IAMVerifyKeyfunc] do with a
// StaleIfError of one hour.
//
// ctx is the context that the App Engine SDK makes its calls with, and must live
// as long as the Keyfunc. With the cache, making a Keyfunc for each request, of
// its context, costs next to nothing.
func AppEngineVerifyKeyfunc(ctx context.Context, enableCache bool, cacheExpiration time.Duration) jwt.Keyfunc {
	if cacheExpiration < 0 {
		return refuse(fmt.Errorf("%w: cacheExpiration is negative", ErrInvalidConfig))
	}
	return keyfunc(ctx, appEngineCertificates(enableCache, cacheExpiration))
}

// KMSVerfiyKeyfunc is KMSVerifyKeyfunc under the name that v2 gave it.
//
// Deprecated: Use [KMSVerifyKeyfunc].
func KMSVerfiyKeyfunc(ctx context.Context, config *KMSConfig) (jwt.Keyfunc, error) {
	return KMSVerifyKeyfunc(ctx, config)
}

// IAMVerfiyKeyfunc is IAMVerifyKeyfunc under the name that v2 gave it.
//
// Deprecated: Use [IAMVerifyKeyfunc].
func IAMVerfiyKeyfunc(ctx context.Context, config *IAMConfig) jwt.Keyfunc {
	return IAMVerifyKeyfunc(ctx, config)
}

// AppEngineVerfiyKeyfunc is AppEngineVerifyKeyfunc under the name that v2 gave it.
//
// Deprecated: Use [AppEngineVerifyKeyfunc].
func AppEngineVerfiyKeyfunc(ctx context.Context, enableCache bool, cacheExpiration time.Duration) jwt.Keyfunc {
	return AppEngineVerifyKeyfunc(ctx, enableCache, cacheExpiration)
}
