package gcpjwt

import (
	"context"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// PublicKeys returns the keys that tokens by the configuration's key may be verified with now:
// the version that KeyPath names, or every ENABLED version of a CryptoKey, newest first, from the
// moment it is listed. It returns none for a CryptoKey without an ENABLED version, and none for
// MAC keys, which have no public key. A *KMSConfig is a [jwks.Source].
//
// The keys are those that [KMSVerifyKeyfunc] keeps: once they are known, a call costs nothing.
// A key that cannot be read is an error, since a set without it would make good tokens fail. It
// takes the permissions that KMSVerifyKeyfunc takes, and its errors are the same. ctx bounds the
// wait, which is 10 seconds at most.
func (c *KMSConfig) PublicKeys(ctx context.Context) ([]jwks.Key, error) {
	switch {
	case c == nil:
		return nil, errs.Errorf("%w: nil *KMSConfig", ErrMissingConfig)
	case ctx == nil:
		return nil, errNilContext("PublicKeys")
	}
	ctx, cancel := keyset.Waiting(ctx)
	defer cancel()
	key, err := c.key(ctx)
	if err != nil {
		return nil, keyset.Unavailable(err)
	}
	var source keyset.Source = key.source
	switch {
	case key.rotating != nil:
		// That no version is ENABLED is for verifiers to know, not an error.
		_, err = key.source.list(ctx)
	case key.pinned.isMAC():
		return []jwks.Key{}, nil
	default:
		source, err = key.verifyKeys(ctx)
	}
	if err != nil {
		return nil, keyset.Unavailable(err)
	}
	return publishedKeys(ctx, source)
}

// PublicKeys returns the account's keys as Google publishes them, which tokens may be verified
// with now. It uses the cache that the process shares, whatever EnableCache says. An *IAMConfig
// is a [jwks.Source].
//
// The error is [ErrMissingConfig], [ErrInvalidConfig] or [ErrKeysUnavailable]. ctx bounds the
// wait.
func (c *IAMConfig) PublicKeys(ctx context.Context) ([]jwks.Key, error) {
	if ctx == nil {
		return nil, errNilContext("PublicKeys")
	}
	source, err := c.certificates(true)
	if err != nil {
		return nil, err
	}
	return publishedKeys(ctx, source)
}

// publishedKeys returns the keys of a source that have a public half.
func publishedKeys(ctx context.Context, source keyset.Source) ([]jwks.Key, error) {
	set, err := source.Get(ctx)
	if err != nil {
		return nil, keyset.Unavailable(err)
	}
	keys := make([]jwks.Key, 0, len(set.Keys()))
	for _, key := range set.Keys() {
		public, err := key.PublicKey(ctx)
		if err != nil {
			return nil, keyset.Unavailable(err)
		}
		if public != nil {
			keys = append(keys, jwks.Key{KeyID: key.ID, Algorithm: key.Alg, Public: public})
		}
	}
	return keys, nil
}
