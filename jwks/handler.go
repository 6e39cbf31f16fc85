package jwks

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
	"github.com/someone1/gcp-jwt-go/v3/internal/logs"
)

// A HandlerOption changes what [NewHandler] and [NewDiscoveryHandler] return. Of
// two that set the same thing the last one holds. A value that makes no sense
// panics in the constructor.
type HandlerOption func(*handler)

// WithMaxAge sets how long consumers may use an answer before they ask again, in
// whole seconds: the max-age of Cache-Control. The default is 5 minutes. It bounds
// how soon a new key may sign and how soon a disabled one is refused: see
// [NewHandler].
func WithMaxAge(maxAge time.Duration) HandlerOption {
	return func(h *handler) {
		if maxAge < 0 {
			panic("jwks: WithMaxAge: the duration is negative")
		}
		h.maxAge = maxAge
	}
}

// WithAlgorithms publishes keys for those algorithms, by their RFC names, and no
// others. EdDSA and Ed25519 stand for one another. A key without Algorithm is
// published only if all algorithms of its type are named.
func WithAlgorithms(algorithms ...string) HandlerOption {
	return func(h *handler) {
		if len(algorithms) == 0 {
			panic("jwks: WithAlgorithms: want one algorithm at least")
		}
		var err error
		if h.algorithms, err = publicAlgorithms(algorithms); err != nil {
			panic("jwks: WithAlgorithms: " + err.Error())
		}
	}
}

// publicAlgorithms returns the names under which keys for the algorithms are listed.
func publicAlgorithms(names []string) ([]string, error) {
	var listed []string
	for _, name := range names {
		a := algorithm.ByName(name)
		if a == nil || a.MAC {
			return nil, fmt.Errorf("no public key is for %q", name)
		}
		listed = append(listed, a.Key)
	}
	return listed, nil
}

// NewHandler returns a handler that publishes the source's keys as a JWK Set. Set
// gcpjwt.KMSConfig.ActivationDelay to max-age (see [WithMaxAge]) + KeyRefresh at least, so
// that consumers have a key before it signs.
//
// The default of ActivationDelay suits verifiers that read Cloud KMS themselves. Some
// consumers keep a set for longer than its max-age. Then take the longest such time in
// place of max-age.
//
// Some consumers (jwx v3.4, go-jose v4.1 on Go 1.26, Kubernetes 1.37) refuse a whole set
// for one key of a kind that they don't know: ML-DSA (AKP) and secp256k1. Keep those apart
// with [WithAlgorithms], in a handler of their own.
//
// The answer to GET and HEAD is application/jwk-set+json. It has Cache-Control, a strong
// ETag (If-None-Match is answered with 304) and Access-Control-Allow-Origin *. It has the
// same bytes for as long as the keys are the same. Other methods are 405.
//
// The handler asks the source for its keys at each request. The source must not alter a
// key in place. If it fails or panics, the answer is 503 with Retry-After: 10 and no-store,
// without the error's text. That goes to [slog.Default], once in 10 seconds at most. A
// source without keys, such as one of MACs, makes it 200 with an empty set and no-store:
// nobody takes it for an outage, and nobody keeps it.
//
// NewHandler panics if source is nil.
func NewHandler(source Source, options ...HandlerOption) http.Handler {
	h := newHandler("NewHandler", source, options)
	return http.HandlerFunc(h.serveSet)
}

// handler publishes keys.
type handler struct {
	source     Source
	maxAge     time.Duration
	algorithms []string     // nil: all
	loggedAt   atomic.Int64 // when a failure was last logged, in Unix nanoseconds
	set        *document
}

// document is one that is made of keys.
type document struct {
	contentType string
	render      func([]Key) ([]byte, error)
	last        atomic.Pointer[answer]
}

// answer is a document with the keys that it was made of. It doesn't change.
type answer struct {
	keys []Key
	body []byte
	tag  string
}

// of returns the document of keys. As long as they are the same it is the last one, which
// saves more than half of what an answer takes: 10,000 consumers may ask at once.
func (d *document) of(keys []Key) (*answer, error) {
	if last := d.last.Load(); last != nil && slices.EqualFunc(last.keys, keys, same) {
		return last, nil
	}
	body, err := d.render(keys)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	made := &answer{slices.Clone(keys), body, `"` + encode(sum[:16]) + `"`}
	d.last.Store(made)
	return made, nil
}

// same reports whether two keys are the same to the letter. Other than by Ed25519, a public key
// that there is a document of is a pointer.
func same(a, b Key) bool {
	if a.KeyID != b.KeyID || a.Algorithm != b.Algorithm {
		return false
	}
	if public, ok := a.Public.(ed25519.PublicKey); ok {
		other, ok := b.Public.(ed25519.PublicKey)
		return ok && public.Equal(other)
	}
	return a.Public == b.Public
}

func newHandler(constructor string, source Source, options []HandlerOption) *handler {
	if source == nil {
		panic("jwks: " + constructor + ": the source is nil")
	}
	h := &handler{
		source: source,
		maxAge: 5 * time.Minute,
		set:    &document{contentType: "application/jwk-set+json", render: Marshal},
	}
	for _, option := range options {
		option(h)
	}
	return h
}

func (h *handler) serveSet(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, h.set)
}

// serve answers with what the document is of the keys.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, d *document) {
	header := w.Header()
	header.Set("Access-Control-Allow-Origin", "*") // the keys are public
	header.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		refuse(w, r, http.StatusMethodNotAllowed)
		return
	}
	keys, err := h.keys(r.Context())
	var current *answer
	if err == nil {
		current, err = d.of(keys)
	}
	if err != nil {
		h.log(r.Context(), err)
		header.Set("Cache-Control", "no-store")
		header.Set("Retry-After", "10")
		refuse(w, r, http.StatusServiceUnavailable)
		return
	}
	header.Set("Content-Type", d.contentType)
	header.Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int64(h.maxAge/time.Second)))
	if len(keys) == 0 {
		header.Set("Cache-Control", "no-store")
	}
	header.Set("ETag", current.tag)
	// ServeContent knows the rules of If-None-Match and HEAD. Of the rest that it
	// knows, a part of the set is of no use to anybody.
	conditional := &http.Request{Method: r.Method, Header: http.Header{
		"If-None-Match": {strings.Join(r.Header.Values("If-None-Match"), ", ")},
	}}
	http.ServeContent(w, conditional, "", time.Time{}, bytes.NewReader(current.body))
}

// keys returns the keys to publish.
func (h *handler) keys(ctx context.Context) ([]Key, error) {
	keys, err := keysOf(ctx, h.source)
	if err != nil || h.algorithms == nil {
		return keys, err
	}
	var published []Key
	for _, key := range keys {
		if _, err := key.check(); err != nil {
			return nil, err
		}
		other := func(alg string) bool { return !slices.Contains(h.algorithms, alg) }
		if !slices.ContainsFunc(key.serves(), other) {
			published = append(published, key)
		}
	}
	return published, nil
}

// logInterval keeps an outage from filling the log.
const logInterval = 10 * time.Second

// log tells of a failure, as the client isn't told the reason.
func (h *handler) log(ctx context.Context, err error) {
	now, last := time.Now().UnixNano(), h.loggedAt.Load()
	if ctx.Err() != nil || last != 0 && now-last < int64(logInterval) || !h.loggedAt.CompareAndSwap(last, now) {
		return
	}
	logs.To(nil, slog.LevelError, "no public keys to publish", "error", err)
}

// refuse answers with a status and its text.
func refuse(w http.ResponseWriter, r *http.Request, status int) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintln(w, http.StatusText(status))
	}
}
