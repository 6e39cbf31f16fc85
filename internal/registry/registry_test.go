package registry_test

import (
	"testing"

	"github.com/someone1/gcp-jwt-go/v3/internal/registry"
)

// What the process keeps is bounded: the least recently used goes first.
func TestBounded(t *testing.T) {
	t.Parallel()
	r := registry.New[int, int]()
	zero := func() *int { return new(int) }
	first := r.Get(0, zero)
	for key := range registry.Size + 100 {
		r.Get(key, zero)
		if r.Get(0, zero) != first {
			t.Fatalf("the value in use is gone after %d others", key)
		}
	}
	if got := r.Len(); got != registry.Size {
		t.Errorf("%d values, want %d", got, registry.Size)
	}
	if _, ok := r.Peek(1); ok {
		t.Error("the value that was used least recently is still there")
	}
	if _, ok := r.Peek(registry.Size + 99); !ok {
		t.Error("the value that was used last is gone")
	}
}

// Whoever asks for a key at the same time gets the same value.
func TestOneValue(t *testing.T) {
	t.Parallel()
	r := registry.New[string, int]()
	inner := new(int)
	outer := r.Get("k", func() *int {
		if got := r.Get("k", func() *int { return inner }); got != inner {
			t.Errorf("the first call got %p, want %p", got, inner)
		}
		return new(int)
	})
	if outer != inner {
		t.Error("the second call got a value of its own")
	}
}
