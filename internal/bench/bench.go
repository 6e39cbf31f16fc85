// Package bench compares the library with the bare calls that it is made of, and
// with the libraries that one might take instead. The same comparisons serve the
// benchmarks of this package, which show what each way costs, and
// cmd/paired, which shows how much one costs of the other.
//
// Whatever signs is a server on loopback with signatures prepared, so that what is
// measured is the client's side of a call.
package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A Comparison is one job that is done in several ways.
type Comparison struct {
	Name   string
	Ours   []Way
	Others []Other
}

// A Way does the job once per call of Do, which may be called concurrently.
type Way struct {
	Name string
	Do   func() error
}

// An Other is a way without this library. A limit is what ours may cost, in multiples of
// what this one does.
type Other struct {
	Way
	Limit float64

	// Limits that are other ones.
	Of       map[string]float64 // of some of ours, by their names
	AllCores float64            // on all cores at once; 0: the same
}

// LimitOf returns the limit of one of ours.
func (o Other) LimitOf(ours string, goroutines int) float64 {
	if limit, ok := o.Of[ours]; ok {
		return limit
	}
	if goroutines > 1 && o.AllCores > 0 {
		return o.AllCores
	}
	return o.Limit
}

// Ways are all ways of a comparison, those of this library first.
func (c Comparison) Ways() []Way {
	ways := slices.Clone(c.Ours)
	for _, other := range c.Others {
		ways = append(ways, other.Way)
	}
	return ways
}

// The claims that all tokens carry and all verifiers check.
const (
	issuer   = "https://issuer.example"
	audience = "https://api.example"
)

// claims are those of a token that was issued now.
func claims() jwt.RegisteredClaims {
	now := time.Now()
	return jwt.RegisteredClaims{
		Issuer:    issuer,
		Subject:   "somebody",
		Audience:  jwt.ClaimStrings{audience},
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour)),
	}
}

// parser returns the parser that everything built on jwt verifies with.
func parser(alg string) *jwt.Parser {
	return jwt.NewParser(
		jwt.WithValidMethods([]string{alg}),
		jwt.WithIssuer(issuer),
		jwt.WithAudience(audience),
		jwt.WithExpirationRequired(),
	)
}

// A Suite holds the servers, keys and tokens of all comparisons.
type Suite struct {
	ctx        context.Context
	claims     jwt.RegisteredClaims // always the same, as prepared answers go with them
	keys       []*key
	rsa        *key   // RS256 with 2048 bits, which most services have
	webKeysURL string // has a JSON Web Key Set per key, by its name, and one of all: see allKeys
	google     googleKeys
	closers    []func()
}

// NewSuite starts the servers and makes the keys and tokens, which takes a few
// seconds.
func NewSuite(ctx context.Context) (_ *Suite, err error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &Suite{ctx: ctx, claims: claims(), closers: []func(){cancel}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for _, algorithm := range algorithms {
		key, err := s.newKey(algorithm)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", algorithm.name, err)
		}
		s.keys = append(s.keys, key)
	}
	s.rsa = s.keys[0]
	if s.webKeysURL, err = s.publish(s.keys); err != nil {
		return nil, err
	}
	s.google, err = s.newGoogleKeys()
	return s, err
}

// Close stops the servers.
func (s *Suite) Close() {
	for _, f := range slices.Backward(s.closers) {
		f()
	}
}

// onClose has Close call f, after whatever is registered later.
func (s *Suite) onClose(f func()) { s.closers = append(s.closers, f) }

// serve starts a server on loopback.
func (s *Suite) serve(handler http.Handler) (url string) {
	server := httptest.NewServer(handler)
	s.onClose(server.Close)
	return server.URL
}

// replay asks target once per path and gives its answer to everybody.
func replay(target string) http.Handler {
	var answers sync.Map
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers.Load(r.URL.Path)
		if !ok {
			var err error
			if answer, err = forward(target, r); err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			answers.Store(r.URL.Path, answer)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer.([]byte))
	})
}

func forward(target string, r *http.Request) ([]byte, error) {
	request, err := http.NewRequestWithContext(r.Context(), r.Method, target+r.URL.RequestURI(), r.Body)
	if err != nil {
		return nil, err
	}
	request.Header = r.Header
	return send(request)
}

// send returns the body of a 200 response.
func send(request *http.Request) ([]byte, error) {
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return body, err
}
