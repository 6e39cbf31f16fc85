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

	// get returns the signer's keys, renew those after an unknown kid.
	get(ctx context.Context) (*keySet, error)
	renew(ctx context.Context, seen *keySet) (*keySet, error)

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
		key := set.lookup[keyName{kid, alg}]
		if key == nil && !set.knows(kid) && plausibleKeyID(kid) {
			if set, err = src.renew(ctx, set); err != nil {
				return nil, unavailable(fmt.Errorf("%w %s: %w", ErrUnknownKeyID, quote(kid), err))
			}
			key = set.lookup[keyName{kid, alg}]
		}
		switch {
		case key != nil:
			return oneKey(ctx, src, key, token)
		case set.knows(kid):
			return nil, fmt.Errorf("%w: key %s is not one for alg %s", ErrAlgorithmMismatch, quote(kid), alg)
		}
		return nil, fmt.Errorf("%w: %s", ErrUnknownKeyID, quote(kid))
	}
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
	case len(keys.Keys) == 1:
		return keys.Keys[0], nil
	case len(keys.Keys) > 1:
		return keys, nil
	case failure != nil:
		return nil, failure
	}
	return nil, fmt.Errorf("%w: the signer has no key for alg %s", ErrAlgorithmMismatch, alg)
}

// unavailable marks an error as one that says nothing about the token, unless
// it is about the configuration.
func unavailable(err error) error {
	if errors.Is(err, ErrInvalidConfig) || errors.Is(err, ErrMissingConfig) || errors.Is(err, ErrKeysUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrKeysUnavailable, err)
}

// refuse is a Keyfunc that fails with err.
func refuse(err error) jwt.Keyfunc {
	return func(*jwt.Token) (any, error) { return nil, err }
}

// KMSVerifyKeyfunc returns a Keyfunc for tokens that the key in config signed.
//
// ...
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

// IAMVerifyKeyfunc ...
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

// AppEngineVerifyKeyfunc ...
func AppEngineVerifyKeyfunc(ctx context.Context, enableCache bool, cacheExpiration time.Duration) jwt.Keyfunc {
	return keyfunc(ctx, appEngineCertificates(enableCache, cacheExpiration))
}
