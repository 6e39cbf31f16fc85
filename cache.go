package gcpjwt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/pquerna/cachecontrol/cacheobject"

	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
)

const (
	// unknownCooldown is how long after the fetch that an unknown kid set off
	// further unknown kids set off none.
	unknownCooldown = time.Minute

	// defaultStaleIfError is how long past their expiry keys serve in an outage.
	defaultStaleIfError = time.Hour

	// maxLifetime bounds how long a response may ask to be kept. Google
	// withdraws a key 6 hours after its last use at the earliest.
	maxLifetime = 24 * time.Hour

	// maxRenewEarly bounds how long before its expiry a key set is renewed.
	maxRenewEarly = 5 * time.Minute

	// registrySize bounds what is kept of each kind, in keys or accounts. What
	// is dropped is fetched again on its next use.
	registrySize = 4096
)

// registry holds one value per key for the whole process, dropping the least
// recently used beyond registrySize.
type registry[K comparable, V any] struct {
	entries *lru.Cache[K, *entry[K, V]]
	last    atomic.Pointer[entry[K, V]] // was looked up last, and most often is next too
}

type entry[K comparable, V any] struct {
	key   K
	value *V
}

func newRegistry[K comparable, V any]() *registry[K, V] {
	entries, err := lru.New[K, *entry[K, V]](registrySize)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return &registry[K, V]{entries: entries}
}

// get returns the value of key, making it on first use.
func (r *registry[K, V]) get(key K, make func() *V) *V {
	if value, ok := r.peek(key); ok {
		return value
	}
	made := &entry[K, V]{key, make()}
	if last := r.last.Load(); last != nil {
		r.entries.Get(last.key) // is in use, though entries hasn't seen it
	}
	if previous, ok, _ := r.entries.PeekOrAdd(key, made); ok {
		return previous.value
	}
	return made.value
}

// recent returns the value that was looked up last, if it is the wanted one. It is
// for callers to whom making a key to look up costs more than comparing.
func (r *registry[K, V]) recent(wanted func(key K) bool) (*V, bool) {
	if last := r.last.Load(); last != nil && wanted(last.key) {
		return last.value, true
	}
	return nil, false
}

func (r *registry[K, V]) peek(key K) (*V, bool) {
	if value, ok := r.recent(func(last K) bool { return last == key }); ok {
		return value, true
	}
	found, ok := r.entries.Get(key)
	if !ok {
		return nil, false
	}
	r.last.Store(found)
	return found.value, true
}

// verifyKey verifies tokens of one kid and one algorithm.
type verifyKey struct {
	kid, alg string
	key      any               // the public key; nil where it is the version's
	version  *kmsVersion       // nil unless the key is in Cloud KMS
	method   *SigningMethodKMS // that the version is for
	settled  time.Time         // when verifiers everywhere have had the time to read of it
}

// keySet holds the keys of a signer. It doesn't change.
type keySet struct {
	keys   []*verifyKey // in the order in which to try them
	lookup map[keyName]*verifyKey
}

type keyName struct{ kid, alg string }

func newKeySet(keys []*verifyKey) *keySet {
	lookup := make(map[keyName]*verifyKey, len(keys))
	for _, key := range keys {
		lookup[keyName{key.kid, key.alg}] = key
	}
	return &keySet{keys, lookup}
}

// knows reports whether kid names a key, of whatever algorithm.
func (s *keySet) knows(kid string) bool {
	return slices.ContainsFunc(s.keys, func(k *verifyKey) bool { return k.kid == kid })
}

func (s *keySet) has(version *kmsVersion) bool {
	return slices.ContainsFunc(s.keys, func(k *verifyKey) bool { return k.version == version })
}

// newest returns the first version of an algorithm that is settled, or if none
// is, the first.
func (s *keySet) newest(alg string, except *kmsVersion) *kmsVersion {
	var first *kmsVersion
	now := time.Now()
	for _, k := range s.keys {
		if k.alg != alg || k.version == except {
			continue
		}
		if !now.Before(k.settled) {
			return k.version
		}
		if first == nil {
			first = k.version
		}
	}
	return first
}

// certificates is the key source of a signer whose RS256 keys Google rotates
// and publishes as certificates.
type certificates struct {
	// fetch reads them. lifetime is what the response states; ok is false if it
	// states none.
	fetch func(ctx context.Context) (set *keySet, lifetime time.Duration, ok bool, err error)

	cached     *refresh.Value[*keySet] // nil: fetched for each token
	expiration time.Duration           // where the response states no lifetime
	stale      time.Duration
	signer     string // for the log
	logger     *slog.Logger
}

func (c *certificates) Fetch(ctx context.Context) (*keySet, refresh.Lifetime, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	set, lifetime, ok, err := c.fetch(ctx)
	if !ok {
		lifetime = c.expiration
	}
	lifetime = min(lifetime, maxLifetime)
	return set, refresh.Lifetime{
		Renew: lifetime - min(lifetime/5, maxRenewEarly),
		Fresh: lifetime,
		Stale: c.stale,
	}, err
}

func (c *certificates) Replaced(_, _ *keySet) {}

func (c *certificates) Failed(err error, _ *keySet) {
	if c.logger != nil {
		c.logger.Warn("gcpjwt: keeping the known certificates", "signer", c.signer, "error", err)
	}
}

func (c *certificates) accepts(alg string) bool { return alg == certificateAlg }

func (c *certificates) get(ctx context.Context) (*keySet, error) {
	if c.cached == nil {
		set, _, err := c.Fetch(ctx)
		return set, err
	}
	return c.cached.Get(ctx, c)
}

func (c *certificates) renew(ctx context.Context, seen *keySet, wanting func(*keySet) bool) (*keySet, error) {
	if c.cached == nil {
		return seen, nil // it was fetched for this very token
	}
	return c.cached.Renew(ctx, c, seen, unknownCooldown, wanting)
}

func (c *certificates) resolve(_ context.Context, key *verifyKey) (any, error) { return key.key, nil }

// maxBody bounds a response with certificates; Google's have a few KiB.
const maxBody = 1 << 20

// readBody returns the body of a 200 response. It reads no more of others, as
// they may be anything.
func readBody(response *http.Response) ([]byte, error) {
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("the response is longer than %d bytes", maxBody)
	}
	return body, err
}

// statedLifetime returns for how long a response may be kept (RFC 9111 section
// 4.2), and false if it doesn't say, or says it in a way that cannot be
// understood.
func statedLifetime(header http.Header, now time.Time) (time.Duration, bool) {
	value := strings.Join(header.Values("Cache-Control"), ", ")
	// A prohibition stands in whatever odd company it is.
	if lower := strings.ToLower(value); strings.Contains(lower, "no-store") || strings.Contains(lower, "no-cache") {
		return 0, true
	}
	control, err := cacheobject.ParseResponseCacheControl(value)
	if err != nil {
		return 0, false
	}
	var lifetime time.Duration
	if control.MaxAge >= 0 {
		lifetime = time.Duration(control.MaxAge) * time.Second
	} else {
		expires, err := http.ParseTime(header.Get("Expires"))
		if err != nil {
			return 0, false
		}
		if date, err := http.ParseTime(header.Get("Date")); err == nil {
			now = date
		}
		lifetime = max(expires.Sub(now), 0)
	}
	age, err := strconv.ParseUint(header.Get("Age"), 10, 31)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		lifetime -= time.Duration(age) * time.Second
	}
	return max(lifetime, 0), true
}

var errNoKey = errors.New("the response holds no usable key")
