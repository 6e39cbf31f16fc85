package keyset

import (
	"context"
	"errors"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// maxCandidates bounds the keys that a token without kid is checked with, so that a forged
// one costs a bounded time. The newest keys come first.
const maxCandidates = 16

// Keyfunc makes a Keyfunc of a source. A token gets a key only if its algorithm is the one
// the key was made for; its kid, if it has one, must name the key. ctx lends its values to
// the calls that the Keyfunc makes; its end ends none of them. A token waits 10 seconds at
// most.
func Keyfunc(ctx context.Context, source Source) jwt.Keyfunc {
	ctx = context.WithoutCancel(ctx)
	return func(token *jwt.Token) (any, error) {
		a, kid, named, err := read(token, source)
		if err != nil {
			return nil, err
		}
		if a.Strict {
			token.Method = a.Method
		}
		if set := source.Current(); set != nil && named {
			if key := set.lookup[name{kid, a.Key}]; key != nil {
				return one(ctx, key, token)
			}
		}
		ctx, cancel := Waiting(ctx) // which takes memory
		defer cancel()
		set, err := source.Get(ctx)
		if err != nil {
			return nil, Unavailable(err)
		}
		if !named {
			return candidates(ctx, set, token, a)
		}
		key, err := find(ctx, source, set, name{kid, a.Key})
		if err != nil {
			return nil, err
		}
		return one(ctx, key, token)
	}
}

// read returns the algorithm of a token that may be good, its kid, and whether it has one.
func read(token *jwt.Token, source Source) (
	a *algorithm.Algorithm, kid string, named bool, err error,
) {
	if token == nil {
		return nil, "", false, errs.Errorf("%w: nil token", jwt.ErrTokenMalformed)
	}
	a = algorithm.OfToken(token)
	if a == nil {
		return nil, "", false, errs.Errorf("%w: a token with alg %s is not accepted",
			errs.ErrAlgorithmMismatch, algOf(token))
	}
	if !source.Accepts(a.Key) {
		return nil, "", false, noKey(a)
	}
	if _, ok := token.Header["crit"]; ok {
		return nil, "", false, errs.Errorf("%w: crit names extensions, and none is supported "+
			"(RFC 7515 section 4.1.11)", jwt.ErrTokenMalformed)
	}
	value, named := token.Header["kid"]
	kid, ok := value.(string)
	if named && !ok {
		return nil, "", false, errs.Errorf("%w: the kid is not a string", jwt.ErrTokenMalformed)
	}
	return a, kid, named, nil
}

func noKey(a *algorithm.Algorithm) error {
	return errs.Errorf("%w: the signer has no key for alg %s", errs.ErrAlgorithmMismatch, a.Name)
}

func algOf(token *jwt.Token) string {
	if token.Method == nil {
		return "none at all"
	}
	return errs.Quote(token.Method.Alg())
}

// find returns the key of a name, renewing the set for a kid that is not in it.
func find(ctx context.Context, source Source, set *Set, name name) (*Key, error) {
	if key := set.lookup[name]; key != nil {
		return key, nil
	}
	unknown := func(set *Set) bool { return !set.knows(name.id) }
	if unknown(set) && plausible(name.id) {
		var err error
		if set, err = source.Renew(ctx, set, unknown); err != nil {
			return nil, Unavailable(errs.Errorf("%w %s: %w", errs.ErrUnknownKeyID, errs.Quote(name.id), err))
		}
	}
	key := set.lookup[name]
	switch {
	case key != nil:
		return key, nil
	case unknown(set):
		return nil, errs.Errorf("%w: %s", errs.ErrUnknownKeyID, errs.Quote(name.id))
	}
	return nil, errs.Errorf("%w: key %s is not one for alg %s",
		errs.ErrAlgorithmMismatch, errs.Quote(name.id), name.alg)
}

// plausible tells a kid that a signer may have chosen from one that is not worth asking
// for. Google's are 40 characters long.
func plausible(kid string) bool { return kid != "" && len(kid) <= 256 }

// one returns what a token by one key verifies with.
func one(ctx context.Context, key *Key, token *jwt.Token) (any, error) {
	value, method, err := key.resolve(ctx)
	if err != nil {
		return nil, Unavailable(err)
	}
	if method != nil {
		token.Method = method
	}
	return value, nil
}

// candidates returns all keys of an algorithm, for a token that doesn't say which one
// signed it.
func candidates(
	ctx context.Context, set *Set, token *jwt.Token, a *algorithm.Algorithm,
) (any, error) {
	var (
		keys    jwt.VerificationKeySet
		joined  Joiner
		failure error
		tried   int
	)
	for _, key := range set.keys {
		if key.Alg != a.Key {
			continue
		}
		if tried++; tried > maxCandidates {
			break
		}
		value, err := one(ctx, key, token)
		if err != nil {
			if failure == nil {
				failure = err // the first, as the last may only be that of ctx
			}
			continue
		}
		if joiner, ok := value.(Joiner); ok {
			if joined != nil {
				joiner = joined.Join(joiner).(Joiner)
			}
			joined = joiner
			continue
		}
		keys.Keys = append(keys.Keys, value)
	}
	switch {
	case joined != nil:
		return joined, nil
	case failure != nil && len(keys.Keys) == 0:
		return nil, failure
	case failure != nil:
		token.Method = incomplete{token.Method}
		keys.Keys = append(keys.Keys, missing{failure})
		return keys, nil
	case len(keys.Keys) == 1:
		return keys.Keys[0], nil
	case len(keys.Keys) > 1:
		return keys, nil
	}
	return nil, noKey(a)
}

// incomplete is a token's method where not every key that may have signed it could be had:
// if none of the others did, nothing can be said of the token.
type incomplete struct{ jwt.SigningMethod }

// missing stands for the keys that could not be had.
type missing struct{ err error }

func (m incomplete) Verify(signingString string, sig []byte, key any) error {
	if missing, ok := key.(missing); ok {
		return missing.err
	}
	return m.SigningMethod.Verify(signingString, sig, key)
}

// Unavailable marks an error as one that says nothing about the token, unless it is one
// that no waiting mends.
func Unavailable(err error) error {
	for _, known := range []error{
		errs.ErrInvalidConfig, errs.ErrMissingConfig, errs.ErrAlgorithmMismatch, errs.ErrKeysUnavailable,
	} {
		if errors.Is(err, known) {
			return err
		}
	}
	return errs.Errorf("%w: %w", errs.ErrKeysUnavailable, err)
}

// Refuse is a Keyfunc that fails with err.
func Refuse(err error) jwt.Keyfunc {
	return func(*jwt.Token) (any, error) { return nil, err }
}
