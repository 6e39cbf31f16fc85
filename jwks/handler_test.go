package jwks_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// answer returns what the handler says to one request over a real connection.
func answer(t *testing.T, server *httptest.Server, method, path string, header http.Header) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequest(method, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func serve(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// headers returns those named, each on a line.
func headers(response *http.Response, names ...string) string {
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%s: %s\n", name, strings.Join(response.Header.Values(name), " | "))
	}
	return text.String()
}

func TestHandler(t *testing.T) {
	keys := allKeys(t)
	server := serve(t, jwks.NewHandler(constant(keys...)))
	want, err := jwks.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}

	response, body := answer(t, server, http.MethodGet, "/", nil)
	if body != string(want) {
		t.Errorf("body %s, want %s", body, want)
	}
	etag := response.Header.Get("ETag")
	if len(etag) < 10 || etag[0] != '"' || etag[len(etag)-1] != '"' {
		t.Errorf("ETag %s, want a strong one", etag)
	}
	wantHeaders := `Content-Type: application/jwk-set+json
Cache-Control: public, max-age=300
Access-Control-Allow-Origin: *
X-Content-Type-Options: nosniff
`
	names := []string{"Content-Type", "Cache-Control", "Access-Control-Allow-Origin", "X-Content-Type-Options"}
	if diff := cmp.Diff(wantHeaders, headers(response, names...)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}

	for _, test := range []struct {
		method, path, match string
		status              int
		body                string
	}{
		{"GET", "/any/path?and=query", "", 200, string(want)},
		{"GET", "/", `"other"`, 200, string(want)},
		{"GET", "/", etag, 304, ""},
		{"GET", "/", "W/" + etag, 304, ""},
		{"GET", "/", `"a", W/"b,c" , ` + etag, 304, ""},
		{"GET", "/", "*", 304, ""},
		{"GET", "/", strings.Trim(etag, `"`), 200, string(want)},
		{"HEAD", "/", "", 200, ""},
		{"HEAD", "/", etag, 304, ""},
	} {
		t.Run(test.method+" "+test.path+" "+test.match, func(t *testing.T) {
			header := http.Header{}
			if test.match != "" {
				header.Set("If-None-Match", test.match)
			}
			response, body := answer(t, server, test.method, test.path, header)
			if response.StatusCode != test.status || body != test.body {
				t.Errorf("%s with body %q, want %d with %q", response.Status, body, test.status, test.body)
			}
			names := []string{"ETag", "Cache-Control", "Access-Control-Allow-Origin"}
			if got, want := headers(response, names...), "ETag: "+etag+"\nCache-Control: public, max-age=300\nAccess-Control-Allow-Origin: *\n"; got != want {
				t.Errorf("headers %s, want %s", got, want)
			}
			if test.method == "HEAD" && test.status == 200 && response.ContentLength != int64(len(want)) {
				t.Errorf("Content-Length %d, want %d", response.ContentLength, len(want))
			}
		})
	}

	t.Run("If-None-Match on two lines", func(t *testing.T) {
		if response, _ := answer(t, server, "GET", "/", http.Header{"If-None-Match": {`"a"`, etag}}); response.StatusCode != 304 {
			t.Errorf("%s, want 304", response.Status)
		}
	})
	t.Run("the whole set, whatever Range says", func(t *testing.T) {
		response, body := answer(t, server, "GET", "/", http.Header{"Range": {"bytes=0-4"}})
		if response.StatusCode != 200 || body != string(want) {
			t.Errorf("%s with body %q, want all of it", response.Status, body)
		}
	})
	t.Run("no body for HEAD, whatever the server does", func(t *testing.T) {
		failing := sourceFunc(func(context.Context) ([]jwks.Key, error) { return nil, errors.New("down") })
		captureLog(t)
		for _, source := range []jwks.Source{constant(keys...), failing} {
			recorder := httptest.NewRecorder()
			jwks.NewHandler(source).ServeHTTP(recorder, httptest.NewRequest("HEAD", "/", nil))
			if recorder.Body.Len() > 0 {
				t.Errorf("%d with body %s", recorder.Code, recorder.Body)
			}
		}
	})
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		t.Run(method, func(t *testing.T) {
			response, body := answer(t, server, method, "/", nil)
			if got := headers(response, "Allow", "Content-Type"); response.StatusCode != 405 || body != "Method Not Allowed\n" ||
				got != "Allow: GET, HEAD\nContent-Type: text/plain; charset=utf-8\n" {
				t.Errorf("%s with body %q and headers %s", response.Status, body, got)
			}
		})
	}
}

// TestHandlerETag sees other bytes and another tag as soon as the keys are others,
// as the handler asks for them each time.
func TestHandlerETag(t *testing.T) {
	keys := allKeys(t)
	var current atomic.Pointer[[]jwks.Key]
	set := func(keys ...jwks.Key) { current.Store(&keys) }
	server := serve(t, jwks.NewHandler(sourceFunc(func(context.Context) ([]jwks.Key, error) { return *current.Load(), nil })))

	set(keys[1])
	first, body1 := answer(t, server, "GET", "/", nil)
	set(keys[2], keys[1])
	second, body2 := answer(t, server, "GET", "/", http.Header{"If-None-Match": {first.Header.Get("ETag")}})
	if second.StatusCode != 200 || body1 == body2 || first.Header.Get("ETag") == second.Header.Get("ETag") {
		t.Errorf("the second answer is %s with ETag %s, the first had %s", second.Status, second.Header.Get("ETag"), first.Header.Get("ETag"))
	}
	if p384, p256 := strings.Index(body2, `"p384"`), strings.Index(body2, `"p256"`); p384 < 0 || p384 > p256 {
		t.Errorf("the keys aren't in the order of the source: %s", body2)
	}
}

// TestHandlerChanges sees each change of a single key, although the document of the same keys is
// made once.
func TestHandlerChanges(t *testing.T) {
	var current jwks.Key
	handler := jwks.NewHandler(sourceFunc(func(context.Context) ([]jwks.Key, error) { return []jwks.Key{current}, nil }))
	get := func(key jwks.Key) string {
		current = key
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		if recorder.Code != http.StatusOK {
			t.Fatalf("status %d", recorder.Code)
		}
		return recorder.Body.String() + recorder.Header().Get("ETag")
	}
	public := func() ed25519.PublicKey {
		public, _, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		return public
	}
	first, second := public(), public()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := []jwks.Key{
		{KeyID: "k", Algorithm: "EdDSA", Public: first},
		{KeyID: "k", Algorithm: "EdDSA", Public: second},
		{KeyID: "k2", Algorithm: "EdDSA", Public: second},
		{KeyID: "k2", Public: second},
		{KeyID: "k2", Algorithm: "ES256", Public: &private.PublicKey},
		{KeyID: "k", Algorithm: "EdDSA", Public: first},
	}
	for i, key := range keys {
		answer := get(key)
		if again := get(key); again != answer {
			t.Errorf("key %d: the same key is published as %s and as %s", i, answer, again)
		}
		if next := get(keys[(i+1)%len(keys)]); i < len(keys)-1 && next == answer {
			t.Errorf("key %d: the next one is published as %s, too", i, answer)
		}
	}
}

func TestHandlerUnavailable(t *testing.T) {
	key := allKeys(t)[1]
	mismatched := key
	mismatched.Algorithm = "RS256"
	for _, test := range []struct {
		name   string
		source jwks.Source
	}{
		{"an error", sourceFunc(func(context.Context) ([]jwks.Key, error) { return nil, errors.New("token=secret") })},
		{"an error beside keys", sourceFunc(func(context.Context) ([]jwks.Key, error) { return []jwks.Key{key}, errors.New("secret") })},
		{"a panic", sourceFunc(func(context.Context) ([]jwks.Key, error) { panic("secret") })},
		{"a nil pointer", (*nilSource)(nil)},
		{"a key that can't be published", constant(key, mismatched)},
		{"one of two", jwks.Join(constant(key), sourceFunc(func(context.Context) ([]jwks.Key, error) { return nil, errors.New("secret") }))},
		{"a panic of one of two", jwks.Join(constant(key), sourceFunc(func(context.Context) ([]jwks.Key, error) { panic("secret") }))},
	} {
		for path, handler := range map[string]http.Handler{
			"/":                                 jwks.NewHandler(test.source),
			"/only":                             jwks.NewHandler(test.source, jwks.WithAlgorithms("ES256", "RS256")),
			"/.well-known/jwks.json":            jwks.NewDiscoveryHandler("https://issuer.example", test.source),
			"/.well-known/openid-configuration": jwks.NewDiscoveryHandler("https://issuer.example", test.source),
		} {
			t.Run(test.name+" "+path, func(t *testing.T) {
				logged := captureLog(t)
				server := serve(t, handler)
				for _, method := range []string{"GET", "HEAD"} {
					response, body := answer(t, server, method, path, nil)
					want := "Service Unavailable\n"
					if method == "HEAD" {
						want = ""
					}
					if response.StatusCode != 503 || body != want {
						t.Errorf("%s: %s with body %q, want 503", method, response.Status, body)
					}
					got := headers(response, "Retry-After", "Cache-Control", "ETag", "Access-Control-Allow-Origin", "Content-Type")
					if want := "Retry-After: 10\nCache-Control: no-store\nETag: \nAccess-Control-Allow-Origin: *\nContent-Type: text/plain; charset=utf-8\n"; got != want {
						t.Errorf("%s: headers %s, want %s", method, got, want)
					}
				}
				if got := strings.Count(logged(), "no public keys to publish"); got != 1 {
					t.Errorf("logged %d times, want once:\n%s", got, logged())
				}
			})
		}
	}
}

// nilSource panics as a nil pointer does.
type nilSource struct{ keys []jwks.Key }

func (s *nilSource) PublicKeys(context.Context) ([]jwks.Key, error) { return s.keys, nil }

// captureLog has the default logger write into memory for the time of the test.
func captureLog(t *testing.T) func() string {
	t.Helper()
	before := slog.Default()
	var buffer syncBuffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&buffer, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return buffer.String
}

type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(data)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// TestHandlerLog tells of an outage once in a while.
func TestHandlerLog(t *testing.T) {
	logged := captureLog(t)
	synctest.Test(t, func(t *testing.T) {
		handler := jwks.NewHandler(sourceFunc(func(context.Context) ([]jwks.Key, error) { return nil, errors.New("the reason") }))
		for range 301 { // half a minute
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			time.Sleep(100 * time.Millisecond)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		time.Sleep(time.Hour)
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, "GET", "/", nil))
	})
	if got := strings.Count(logged(), "the reason"); got != 4 {
		t.Errorf("logged %d times in half a minute, want 4:\n%s", got, logged())
	}
}

// TestHandlerEmpty publishes an empty set for a source that has no keys.
func TestHandlerEmpty(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler http.Handler
	}{
		{"none", jwks.NewHandler(constant())},
		{"none of the algorithm", jwks.NewHandler(constant(allKeys(t)...), jwks.WithAlgorithms("ML-DSA-87"))},
		{"no sources", jwks.NewHandler(jwks.Join())},
	} {
		t.Run(test.name, func(t *testing.T) {
			response, body := answer(t, serve(t, test.handler), "GET", "/", nil)
			if response.StatusCode != 200 || body != `{"keys":[]}` || response.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s with %s and Cache-Control %s; want an empty set that nobody keeps", response.Status, body, response.Header.Get("Cache-Control"))
			}
		})
	}
}

func TestWithMaxAge(t *testing.T) {
	for maxAge, want := range map[time.Duration]string{
		0:                       "public, max-age=0",
		time.Second:             "public, max-age=1",
		1999 * time.Millisecond: "public, max-age=1",
		24 * time.Hour:          "public, max-age=86400",
	} {
		recorder := httptest.NewRecorder()
		jwks.NewHandler(constant(allKeys(t)...), jwks.WithMaxAge(maxAge)).ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil))
		if got := recorder.Header().Get("Cache-Control"); got != want {
			t.Errorf("WithMaxAge(%v): Cache-Control %s, want %s", maxAge, got, want)
		}
	}
}

func TestWithAlgorithms(t *testing.T) {
	keys := append(allKeys(t), jwks.Key{KeyID: "any RSA", Public: allKeys(t)[0].Public}, jwks.Key{KeyID: "any P-256", Public: allKeys(t)[1].Public})
	for _, test := range []struct {
		algorithms []string
		want       string // kids
		supported  string
	}{
		{[]string{"ES256"}, "p256, any P-256", "ES256"},
		{[]string{"PS256", "ES384"}, "rsa, p384", "PS256, ES384"},
		{[]string{"EdDSA"}, "ed25519", "EdDSA, Ed25519"},
		{[]string{"Ed25519"}, "ed25519", "EdDSA, Ed25519"},
		{[]string{"RS256"}, "", ""},
		{[]string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, "rsa, any RSA", "PS256, RS256, RS384, RS512, PS384, PS512"},
		{[]string{"ML-DSA-44", "ES256K"}, "secp256k1, mldsa", "ES256K, ML-DSA-44"},
	} {
		t.Run(strings.Join(test.algorithms, " "), func(t *testing.T) {
			server := serve(t, jwks.NewDiscoveryHandler("https://issuer.example", constant(keys...), jwks.WithAlgorithms(test.algorithms...)))
			_, body := answer(t, server, "GET", "/.well-known/jwks.json", nil)
			var set struct{ Keys []struct{ Kid string } }
			if err := json.Unmarshal([]byte(body), &set); err != nil {
				t.Fatal(err)
			}
			var kids []string
			for _, key := range set.Keys {
				kids = append(kids, key.Kid)
			}
			if got := strings.Join(kids, ", "); got != test.want {
				t.Errorf("published %s, want %s", got, test.want)
			}
			_, body = answer(t, server, "GET", "/.well-known/openid-configuration", nil)
			var document struct {
				Algorithms []string `json:"id_token_signing_alg_values_supported"`
			}
			if err := json.Unmarshal([]byte(body), &document); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(document.Algorithms, ", "); got != test.supported {
				t.Errorf("supported %s, want %s", got, test.supported)
			}
		})
	}
}

func TestPanics(t *testing.T) {
	source := constant()
	for name, f := range map[string]func(){
		"NewHandler(nil)":            func() { jwks.NewHandler(nil) },
		"NewDiscoveryHandler(nil)":   func() { jwks.NewDiscoveryHandler("https://issuer.example", nil) },
		"Join(nil)":                  func() { jwks.Join(source, nil) },
		"WithMaxAge(-1)":             func() { jwks.NewHandler(source, jwks.WithMaxAge(-1)) },
		"WithAlgorithms()":           func() { jwks.NewHandler(source, jwks.WithAlgorithms()) },
		"WithAlgorithms(HS256)":      func() { jwks.NewHandler(source, jwks.WithAlgorithms("ES256", "HS256")) },
		"WithAlgorithms(empty)":      func() { jwks.NewHandler(source, jwks.WithAlgorithms("")) },
		"WithAlgorithms(lower case)": func() { jwks.NewHandler(source, jwks.WithAlgorithms("es256")) },
	} {
		t.Run(name, func(t *testing.T) {
			if message := panicOf(f); !strings.HasPrefix(message, "jwks: ") {
				t.Errorf("the panic is %q, want one of this package", message)
			}
		})
	}
}

// panicOf returns what f panics with.
func panicOf(f func()) (message string) {
	defer func() {
		if p := recover(); p != nil {
			message = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

func TestJoin(t *testing.T) {
	keys := allKeys(t)
	other := keys[1]
	other.KeyID = "another kid"
	got, err := jwks.Join(constant(keys[2], keys[1]), constant(), constant(keys[1], other, keys[4], keys[4])).PublicKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]jwks.Key{keys[2], keys[1], other, keys[4]}, got, sameKeys); diff != "" {
		t.Errorf("PublicKeys (-want +got):\n%s", diff)
	}
}

// TestJoinAtOnce asks all sources before one of them has answered, and leaves none
// behind once one has failed.
func TestJoinAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		slow := sourceFunc(func(ctx context.Context) ([]jwks.Key, error) {
			asked.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		reason := errors.New("the reason")
		failing := sourceFunc(func(context.Context) ([]jwks.Key, error) {
			time.Sleep(time.Second)
			return nil, reason
		})
		keys, err := jwks.Join(slow, slow, failing).PublicKeys(t.Context())
		if keys != nil || !errors.Is(err, reason) || asked.Load() != 2 {
			t.Errorf("PublicKeys = %v, %v with %d asked; want the reason", keys, err, asked.Load())
		}
	})
}

func BenchmarkHandler(b *testing.B) {
	handler := jwks.NewHandler(constant(allKeys(b)[:5]...))
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
}
