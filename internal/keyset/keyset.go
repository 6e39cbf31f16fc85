// Package keyset finds the public keys that a token verifies with: by kid and algorithm,
// in sets that are renewed while they are used.
package keyset

import (
	"context"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
)

// A Key verifies tokens of one kid and one algorithm. It doesn't change.
type Key struct {
	ID  string
	Alg string // as algorithm.Algorithm.Key has it

	// Public is the key, or nil where Resolver supplies it on use.
	Public   any
	Resolver Resolver
}

// A Resolver supplies what tokens verify with where the key itself isn't in the set.
type Resolver interface {
	// Resolve returns the value that a method verifies with, and the method itself if no
	// other can use that value. A value that makes calls later doesn't make them with ctx,
	// which ends.
	Resolve(ctx context.Context) (value any, method jwt.SigningMethod, err error)
}

// A Joiner is a resolved value that stands for several keys in one.
type Joiner interface {
	// Join returns the value that stands for this one and for other, of the same type.
	Join(other any) any
}

// resolve returns what a token verifies with.
func (k *Key) resolve(ctx context.Context) (any, jwt.SigningMethod, error) {
	if k.Resolver == nil {
		return k.Public, nil, nil
	}
	return k.Resolver.Resolve(ctx)
}

// PublicKey returns the key, nil if it is a secret one.
func (k *Key) PublicKey(ctx context.Context) (any, error) {
	if algorithm.ByName(k.Alg).MAC {
		return nil, nil
	}
	public, _, err := k.resolve(ctx)
	return public, err
}

// A Set holds the keys of a signer. It doesn't change.
type Set struct {
	keys   []*Key
	lookup map[name]*Key
	ids    map[string]bool
	made   time.Time
}

type name struct{ id, alg string }

// New returns a set of keys, in the order in which to try them.
func New(keys []*Key) *Set {
	s := &Set{keys, make(map[name]*Key, len(keys)), make(map[string]bool, len(keys)), time.Now()}
	for _, key := range keys {
		s.lookup[name{key.ID, key.Alg}] = key
		s.ids[key.ID] = true
	}
	return s
}

// Keys returns the keys, in order. They must not be changed.
func (s *Set) Keys() []*Key { return s.keys }

// Age returns how long ago the keys were read.
func (s *Set) Age() time.Duration { return time.Since(s.made).Round(time.Second) }

// knows reports whether id names a key, of whatever algorithm.
func (s *Set) knows(id string) bool { return s.ids[id] }

// A Source supplies the keys of one signer.
type Source interface {
	// Accepts reports whether the signer can have a key of an algorithm.
	Accepts(alg string) bool

	// Current returns the signer's keys if they are at hand, and else nil.
	Current() *Set

	// Get returns the signer's keys, Renew newer ones if those seen are wanting.
	Get(ctx context.Context) (*Set, error)
	Renew(ctx context.Context, seen *Set, wanting func(*Set) bool) (*Set, error)
}
