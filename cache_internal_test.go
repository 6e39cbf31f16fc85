package gcpjwt

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What the process keeps is bounded: the least recently used goes first.
func TestRegistryIsBounded(t *testing.T) {
	t.Parallel()
	r := newRegistry[int, int]()
	zero := func() *int { return new(int) }
	first := r.get(0, zero)
	for key := range registrySize + 100 {
		r.get(key, zero)
		if r.get(0, zero) != first {
			t.Fatalf("the value in use is gone after %d others", key)
		}
	}
	if got := r.entries.Len(); got != registrySize {
		t.Errorf("%d values, want %d", got, registrySize)
	}
	if _, ok := r.peek(1); ok {
		t.Error("the value that was used least recently is still there")
	}
	for key := range registrySize + 100 { // that are new, so nobody else is looked up
		r.peek(0)
		r.get(-1-key, zero)
	}
	r.peek(-registrySize)
	if value, ok := r.peek(0); !ok || value != first {
		t.Error("the value in constant use is gone")
	}
	last := -1 - (registrySize + 99)
	if _, ok := r.peek(last); !ok {
		t.Error("the value that was used last is gone")
	}
}

// Whoever asks for a key at the same time gets the same value.
func TestRegistryMakesOneValue(t *testing.T) {
	t.Parallel()
	r := newRegistry[string, int]()
	inner := new(int)
	outer := r.get("k", func() *int {
		if got := r.get("k", func() *int { return inner }); got != inner {
			t.Errorf("the first call got %p, want %p", got, inner)
		}
		return new(int)
	})
	if outer != inner {
		t.Error("the second call got a value of its own")
	}
}

// FuzzLifetime holds what must be true whatever a server sends as caching
// headers.
func FuzzLifetime(f *testing.F) {
	if seeds, err := filepath.Glob("testdata/fuzz/FuzzLifetime/*"); err != nil || len(seeds) < 5 {
		f.Fatalf("%d seeds, %v, want at least 5", len(seeds), err)
	}
	f.Add("public, max-age=21600, must-revalidate, no-transform", "", "", "")
	f.Add("", "Sat, 01 Jan 2000 01:00:00 GMT", "Sat, 01 Jan 2000 00:00:00 GMT", "60")
	f.Fuzz(func(t *testing.T, cacheControl, expires, date, age string) {
		header := http.Header{"Cache-Control": strings.Split(cacheControl, "\n")}
		for name, value := range map[string]string{"Expires": expires, "Date": date, "Age": age} {
			if value != "" {
				header.Set(name, value)
			}
		}
		now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
		lifetime, ok := statedLifetime(header, now)
		switch lower := strings.ToLower(cacheControl); {
		case lifetime < 0:
			t.Errorf("lifetime %v, want 0 at least", lifetime)
		case !ok && lifetime != 0:
			t.Errorf("lifetime %v, which isn't stated", lifetime)
		case (strings.Contains(lower, "no-store") || strings.Contains(lower, "no-cache")) && (lifetime != 0 || !ok):
			t.Errorf("kept for %v (stated: %v) against the server's will", lifetime, ok)
		}
		if again, okAgain := statedLifetime(header, now); again != lifetime || okAgain != ok {
			t.Errorf("%v, %v the second time, %v, %v the first time", again, okAgain, lifetime, ok)
		}
	})
}
