// Package registry keeps what belongs to the process: one value per key, bounded.
package registry

import lru "github.com/hashicorp/golang-lru/v2"

// Size bounds what a registry holds. What is dropped is fetched again on its next use.
const Size = 4096

// A Registry holds one value per key. It drops the least recently used beyond Size.
// It may be used concurrently.
type Registry[K comparable, V any] struct {
	entries *lru.Cache[K, *V]
}

// New returns an empty registry.
func New[K comparable, V any]() *Registry[K, V] {
	entries, err := lru.New[K, *V](Size)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return &Registry[K, V]{entries}
}

// Get returns the value of key, making it on first use.
func (r *Registry[K, V]) Get(key K, make func() *V) *V {
	if value, ok := r.entries.Get(key); ok {
		return value
	}
	made := make()
	if previous, ok, _ := r.entries.PeekOrAdd(key, made); ok {
		return previous
	}
	return made
}

// Peek returns the value of key, if there is one.
func (r *Registry[K, V]) Peek(key K) (*V, bool) { return r.entries.Get(key) }

// Len returns the number of values.
func (r *Registry[K, V]) Len() int { return r.entries.Len() }

// Purge forgets all values.
func (r *Registry[K, V]) Purge() { r.entries.Purge() }
