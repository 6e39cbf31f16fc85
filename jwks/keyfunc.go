package jwks

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"weak"

	strictjson "github.com/go-jose/go-jose/v4/json"
	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/fetch"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/internal/registry"
)

// A Config says whose tokens a Keyfunc is for, and how it gets their keys. Exactly
// one of URL and Issuer is set. URLs are https, or http on loopback.
type Config struct {
	// URL is where the JWK Set is.
	URL string

	// Issuer is the issuer as tokens have it in iss. Its discovery document, at
	// /.well-known/openid-configuration below Issuer, names the JWK Set and must name
	// the same issuer to the letter.
	Issuer string

	// Algorithms are the RFC names of the algorithms that tokens may have. nil: all
	// that the keys are for. EdDSA and Ed25519 stand for one another.
	Algorithms []string

	// CacheExpiration is how long a set is used if its response states no lifetime, in
	// Cache-Control or Expires. Set it if the server states none. With 0 such a set isn't
	// kept: each token waits for a fetch, and no outage is survived. A set whose response
	// states no-store, no-cache or a lifetime of 0 is never kept.
	CacheExpiration time.Duration

	// StaleIfError is how long past their expiry keys may serve while the server is
	// down. 0: one hour, negative: not at all. It is for sets that are kept: see
	// CacheExpiration.
	StaleIfError time.Duration

	// Client makes the requests. nil: http.DefaultClient. If a server hangs, the first
	// token after a set has expired waits for 10 seconds, or for the Client's Timeout if
	// that is shorter. Then known keys serve.
	Client *http.Client

	// Logger is told of failures that no caller sees. nil: slog.Default().
	Logger *slog.Logger
}

// NewKeyfunc returns a Keyfunc for tokens by whoever publishes the JWK Set that
// config names. It makes no call itself. Its error is [ErrInvalidConfig] and says
// what is wrong.
//
// The Keyfunc accepts a token if a key of the set is for its algorithm. That is the JWK's
// alg, or those of its kty and crv if it has none. A token with a kid is checked with the
// key of that kid only. One without is checked with each key of its algorithm, the first
// 16 at most. [Parse] says which keys are left out. PS256 and its like need a salt as long
// as the hash (RFC 7518 section 3.5). MACs are never accepted, and neither is a token with
// a crit header. Errors are [ErrAlgorithmMismatch], [ErrUnknownKeyID],
// [ErrKeysUnavailable] and [jwt.ErrTokenMalformed].
//
// It doesn't check iss, aud and the dates. Give the parser jwt.WithIssuer and
// jwt.WithAudience, or use package middleware with WithIssuer and WithAudience.
//
// The first token has the set read. To know at start-up whether the keys can be had, call
// the Keyfunc with a token that has a Method only, of an algorithm that config allows:
// &jwt.Token{Method: jwt.SigningMethodES256}. It reads the set, and returns
// ErrKeysUnavailable if that fails. No key for ES256 is ErrAlgorithmMismatch.
//
// Sets are kept for the process, by URL or Issuer, Client and lifetimes, up to 4,096 of
// them. A set is used for as long as its response says, less Age, and for a day at most.
// Config.CacheExpiration says which sets aren't kept. A token that comes shortly before a
// set expires has it renewed in the background. For a kid that it doesn't have, a set is
// read once more, past any cache on the way, once a minute at most. Any number of tokens
// share one fetch, which takes 10 seconds at most. By Issuer each renewal reads the
// discovery document, too.
//
// While the server is down a set that is kept serves for StaleIfError past its expiry.
// Without one the error is ErrKeysUnavailable, at once. Only a 200 with a set of 1 MiB at
// most replaces known keys, and only if it has a key for signatures. No redirect to plain
// http is followed.
//
// The end of ctx ends nothing. The Keyfunc may be used concurrently.
func NewKeyfunc(ctx context.Context, config *Config) (jwt.Keyfunc, error) {
	if ctx == nil || config == nil {
		return nil, errs.Errorf("%w: NewKeyfunc needs a context and a *Config", errs.ErrInvalidConfig)
	}
	source, err := config.source()
	if err != nil {
		return nil, err
	}
	return keyset.Keyfunc(ctx, source), nil
}

// sets holds the JWK Sets in use. Configurations that differ in how long they keep them
// don't share them.
var sets = registry.New[setID, keyset.Shared]()

type setID struct {
	place      place
	client     weak.Pointer[http.Client]
	expiration time.Duration
	stale      time.Duration
}

// A place is where a JWK Set is: at a URL, or wherever its issuer says. One of the two
// is empty.
type place struct{ url, issuer string }

// source returns the source of the keys.
func (c *Config) source() (*keyset.Published, error) {
	from := place{c.URL, c.Issuer}
	if err := from.check(); err != nil {
		return nil, err
	}
	if c.CacheExpiration < 0 {
		return nil, errs.Errorf("%w: CacheExpiration is negative", errs.ErrInvalidConfig)
	}
	allows, err := c.allows()
	if err != nil {
		return nil, err
	}
	client := c.Client
	if client == nil {
		client = http.DefaultClient
	}
	id := setID{from, weak.Make(client), c.CacheExpiration, fetch.StaleIfError(c.StaleIfError)}
	source := &keyset.Published{
		Shared: sets.Get(id, func() *keyset.Shared { return new(keyset.Shared) }),
		Read: func(ctx context.Context, fresh bool) (*keyset.Set, fetch.Lifetime, error) {
			return from.read(ctx, client, fresh)
		},
		Allows:     allows,
		Cached:     true,
		Expiration: c.CacheExpiration,
		Stale:      c.StaleIfError,
		Signer:     from.String(),
	}
	source.Tell(c.Logger)
	return source, nil
}

// allows returns which algorithms keys may be for, by the names under which keys are
// listed.
func (c *Config) allows() (func(alg string) bool, error) {
	if c.Algorithms == nil {
		return func(alg string) bool {
			a := algorithm.ByName(alg)
			return a != nil && !a.MAC
		}, nil
	}
	listed, err := publicAlgorithms(c.Algorithms)
	if err != nil || len(listed) == 0 {
		return nil, errs.Errorf("%w: Algorithms %q: want nil, or RFC names of algorithms with public keys", errs.ErrInvalidConfig, c.Algorithms)
	}
	return func(alg string) bool { return slices.Contains(listed, alg) }, nil
}

// String names the place in the log. A query may have something to hide.
func (p place) String() string {
	base, _, _ := strings.Cut(p.url, "?")
	return p.issuer + base
}

func (p place) check() error {
	switch {
	case (p.url == "") == (p.issuer == ""):
		return errs.Errorf("%w: want either a URL or an Issuer", errs.ErrInvalidConfig)
	case p.issuer != "":
		return fetch.CheckURL("Issuer", p.issuer)
	}
	return checkSetURL("URL", p.url)
}

// checkSetURL is fetch.CheckURL, but lets a query through: some say there for which
// tenant the set is.
func checkSetURL(field, text string) error {
	if u, err := url.Parse(text); err != nil || u.Fragment != "" {
		return errs.Errorf("%w: %s is no URL, or has a fragment", errs.ErrInvalidConfig, field)
	}
	base, _, _ := strings.Cut(text, "?")
	return fetch.CheckURL(field, base)
}

// read reads the keys; fresh asks for answers of now.
func (p place) read(ctx context.Context, client *http.Client, fresh bool) (*keyset.Set, fetch.Lifetime, error) {
	if p.issuer != "" {
		var err error
		if p.url, err = p.discover(ctx, client, fresh); err != nil {
			return nil, fetch.Lifetime{}, errs.Errorf("discover the keys of %s: %w", errs.Quote(p.issuer), err)
		}
	}
	response, err := fetch.Get(ctx, fetch.Request{Client: client, URL: p.url, Fresh: fresh})
	if err != nil {
		return nil, fetch.Lifetime{}, errs.Errorf("read the JWK Set: %w", err)
	}
	keys, err := Parse(response.Body)
	if err != nil {
		return nil, fetch.Lifetime{}, err
	}
	set, err := newSet(keys)
	return set, response.Lifetime, err
}

// discover returns where an issuer's keys are, by its discovery document (OpenID
// Connect Discovery 1.0 section 4.3).
func (p place) discover(ctx context.Context, client *http.Client, fresh bool) (string, error) {
	target := strings.TrimSuffix(p.issuer, "/") + pathDiscovery
	response, err := fetch.Get(ctx, fetch.Request{Client: client, URL: target, Fresh: fresh})
	if err != nil {
		return "", err
	}
	var document struct {
		Issuer string `json:"issuer"`
		Set    string `json:"jwks_uri"`
	}
	if err := strictjson.Unmarshal(response.Body, &document); err != nil {
		return "", errs.Errorf("the discovery document is no JSON object: %w", err)
	}
	if document.Issuer != p.issuer {
		return "", errs.Errorf("the discovery document is one of issuer %s", errs.Quote(document.Issuer))
	}
	if err := checkSetURL("jwks_uri", document.Set); err != nil {
		return "", errs.Errorf("the discovery document: %v", err) // it isn't the configuration that is invalid
	}
	// Keys that https vouches for don't come over plain http, not even from loopback.
	if strings.HasPrefix(p.issuer, "https:") && !strings.HasPrefix(document.Set, "https:") {
		return "", errs.Errorf("the discovery document: jwks_uri %s: want https", errs.Quote(document.Set))
	}
	return document.Set, nil
}

// newSet returns the keys under each algorithm that they are for. Of two that a token
// cannot tell apart the first one holds.
func newSet(keys []Key) (*keyset.Set, error) {
	var listed []*keyset.Key
	seen := make(map[[2]string]bool)
	for _, key := range keys {
		for _, alg := range key.serves() {
			name := [2]string{key.KeyID, alg}
			if key.KeyID == "" || !seen[name] {
				seen[name] = true
				listed = append(listed, &keyset.Key{ID: key.KeyID, Alg: alg, Public: key.Public})
			}
		}
	}
	if len(listed) == 0 {
		return nil, errs.Errorf("the JWK Set has no key for signatures")
	}
	return keyset.New(listed), nil
}
