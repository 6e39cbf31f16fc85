package fetch_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/fetch"
)

const limit = 1 << 20 // of an answer

// transport is a function that answers requests.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answer is what a transport returns.
func answer(r *http.Request, status int, body io.Reader) *http.Response {
	return &http.Response{StatusCode: status, Header: make(http.Header), Body: io.NopCloser(body), Request: r}
}

// get makes a request through a transport.
func get(ctx context.Context, f transport) (fetch.Response, error) {
	return fetch.Get(ctx, fetch.Request{Client: &http.Client{Transport: f}, URL: "https://keys.example/path"})
}

// Only a 200 is an answer. Of the others, those of a server that is down or busy are asked
// for three times in all.
func TestStatus(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status   int
		requests int
	}{
		{200, 1},
		{203, 1}, {204, 1}, {206, 1}, {304, 1}, {400, 1}, {401, 1}, {403, 1}, {404, 1}, {410, 1}, {501, 1}, {505, 1},
		{429, 3}, {500, 3}, {502, 3}, {503, 3}, {504, 3},
	}
	for _, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			requests, began := 0, time.Now()
			response, err := get(t.Context(), func(r *http.Request) (*http.Response, error) {
				requests++
				return answer(r, test.status, strings.NewReader("keys")), nil
			})
			var status *fetch.StatusError
			switch {
			case test.status == 200 && (err != nil || string(response.Body) != "keys"):
				t.Errorf("200: got %q, %v, want the body", response.Body, err)
			case test.status != 200 && (!errors.As(err, &status) || status.Code != test.status || len(response.Body) > 0):
				t.Errorf("%d: got %q, %v, want a StatusError", test.status, response.Body, err)
			case requests != test.requests:
				t.Errorf("%d: %d requests, want %d", test.status, requests, test.requests)
			}
			if took := time.Since(began); test.requests == 1 && took != 0 || took > 300*time.Millisecond {
				t.Errorf("%d: it took %v, want 0.3 s at most and no time without a second request", test.status, took)
			}
		})
	}
}

// A server that comes back in time is no error.
func TestStatusOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		statuses := []int{503, 429, 200}
		response, err := get(t.Context(), func(r *http.Request) (*http.Response, error) {
			status := statuses[0]
			statuses = statuses[1:]
			return answer(r, status, strings.NewReader("keys")), nil
		})
		if err != nil || string(response.Body) != "keys" {
			t.Errorf("got %q, %v, want the body of the third answer", response.Body, err)
		}
	})
}

// A connection that breaks is repeated once, on a new one.
func TestCutConnection(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before the header", "within the body"} {
		for cuts, want := range map[int32]bool{1: true, 2: false} {
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if requests.Add(1) > cuts {
					_, _ = io.WriteString(w, "keys")
					return
				}
				if when == "within the body" {
					w.Header().Set("Content-Length", "100")
					_, _ = io.WriteString(w, "k")
					_ = http.NewResponseController(w).Flush()
				}
				panic(http.ErrAbortHandler) // closes the connection
			}))
			response, err := fetch.Get(t.Context(), fetch.Request{Client: server.Client(), URL: server.URL})
			server.Close()
			if (err == nil) != want || want && string(response.Body) != "keys" {
				t.Errorf("%d connections cut %s: got %q, %v, want an answer: %v", cuts, when, response.Body, err, want)
			}
			if got := requests.Load(); got != 2 {
				t.Errorf("%d connections cut %s: %d requests, want 2", cuts, when, got)
			}
		}
	}
}

// watched is a body that tells what became of it.
type watched struct {
	io.Reader
	read   int
	closed bool
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read += n
	return n, err
}

func (b *watched) Close() error {
	b.closed = true
	return nil
}

// endless is a body of blanks without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// A body is read up to the limit, that of an error not at all, and closed.
func TestBody(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		status  int
		body    io.Reader
		maxRead int
		good    bool
	}{
		{"just so", 200, strings.NewReader(strings.Repeat(" ", limit)), limit, true},
		{"a byte too long", 200, strings.NewReader(strings.Repeat(" ", limit+1)), limit + 1, false},
		{"endless", 200, endless{}, limit + 1, false},
		{"endless error", 404, endless{}, 0, false},
	}
	for _, test := range tests {
		body := &watched{Reader: test.body}
		response, err := get(t.Context(), func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: test.status, Header: make(http.Header), Body: body, Request: r}, nil
		})
		if (err == nil) != test.good || test.good != (len(response.Body) > 0) {
			t.Errorf("%s: got %d bytes, %v, want an answer: %v", test.name, len(response.Body), err, test.good)
		}
		if test.status == 200 && !test.good && !strings.Contains(err.Error(), "longer than 1048576 bytes") {
			t.Errorf("%s: error %v doesn't name the limit", test.name, err)
		}
		if body.read > test.maxRead || !body.closed {
			t.Errorf("%s: %d bytes read, closed: %v; want %d at most, and closed", test.name, body.read, body.closed, test.maxRead)
		}
	}
}

// The limit is one of what a compressed body stands for.
func TestCompressedBody(t *testing.T) {
	const size = 32 << 20
	var bomb bytes.Buffer
	compress := gzip.NewWriter(&bomb)
	if _, err := io.Copy(compress, io.LimitReader(endless{}, size)); err != nil {
		t.Fatal(err)
	}
	if err := compress.Close(); err != nil {
		t.Fatal(err)
	}
	if bomb.Len() > limit {
		t.Fatalf("%d bytes compressed, want less than the limit", bomb.Len())
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb.Bytes())
	}))
	defer server.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := fetch.Get(t.Context(), fetch.Request{Client: server.Client(), URL: server.URL})
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "longer than 1048576 bytes") {
		t.Errorf("error %v, want one that names the limit", err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > size/4 {
		t.Errorf("%d bytes allocated for a body of %d, want a few times the limit", got, size)
	}
}

// slow is a body that sends a byte a second until its request ends.
type slow struct{ ctx context.Context }

func (s slow) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
		p[0] = ' '
		return 1, nil
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
}

// All of it takes 10 seconds at most, though the caller has no deadline, and less if it has.
func TestTimeout(t *testing.T) {
	t.Parallel()
	silent := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	trickle := func(r *http.Request) (*http.Response, error) {
		return answer(r, 200, slow{r.Context()}), nil
	}
	down := func(r *http.Request) (*http.Response, error) { // an answer takes long each time
		time.Sleep(4 * time.Second)
		return answer(r, 503, strings.NewReader("")), nil
	}
	for name, f := range map[string]transport{"silent": silent, "a byte a second": trickle, "slowly down": down} {
		for _, deadline := range []time.Duration{0, 3 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				ctx, want := context.Background(), 10*time.Second
				if deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, deadline)
					defer cancel()
					want = deadline
				}
				began := time.Now()
				_, err := get(ctx, f)
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "keys.example") {
					t.Errorf("%s: error %v, want %v that names the host", name, err, context.DeadlineExceeded)
				}
				// A transport that takes no notice of the end is not waited for any less.
				if took := time.Since(began); took < want || took > want+4*time.Second {
					t.Errorf("%s: it took %v, want %v", name, took, want)
				}
			})
		}
	}
}

// A redirect must not lead out of https, whatever it passes on the way.
func TestRedirects(t *testing.T) {
	t.Parallel()
	var plainRequests atomic.Int32
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		plainRequests.Add(1)
		_, _ = io.WriteString(w, "keys")
	}))
	t.Cleanup(plain.Close)
	var secure *httptest.Server
	secure = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good":
			_, _ = io.WriteString(w, "keys")
		case "/other-path":
			http.Redirect(w, r, "/good", http.StatusFound)
		case "/other-host":
			http.Redirect(w, r, strings.Replace(secure.URL, "127.0.0.1", "localhost", 1)+"/good", http.StatusTemporaryRedirect)
		case "/plain":
			http.Redirect(w, r, plain.URL, http.StatusMovedPermanently)
		case "/plain-later":
			http.Redirect(w, r, "/plain", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		}
	}))
	t.Cleanup(secure.Close)
	client := secure.Client()
	client.Transport.(*http.Transport).TLSClientConfig.ServerName = "example.com" // what its certificate says

	for path, want := range map[string]string{ // text in the error; "": none
		"/good":        "",
		"/other-path":  "",
		"/other-host":  "",
		"/plain":       "redirected to plain http",
		"/plain-later": "redirected to plain http",
		"/loop":        "10 redirects",
	} {
		_, err := fetch.Get(t.Context(), fetch.Request{Client: client, URL: secure.URL + path})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want an error that says %q", path, err, want)
		}
	}
	if got := plainRequests.Load(); got != 0 {
		t.Errorf("%d requests over plain http, want none", got)
	}
	if client.CheckRedirect != nil {
		t.Error("the caller's client was changed")
	}
}

// Plain http is for loopback only, also at the end of a redirect.
func TestRedirectOffLoopback(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]bool{"http://keys.example/": false, "http://127.0.0.1:81/": true, "https://keys.example/": true} {
		client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			response := answer(r, 200, strings.NewReader("keys"))
			if r.URL.Host == "127.0.0.1" {
				response.StatusCode = http.StatusFound
				response.Header.Set("Location", target)
			}
			return response, nil
		})}
		_, err := fetch.Get(t.Context(), fetch.Request{Client: client, URL: "http://127.0.0.1/"})
		if (err == nil) != want {
			t.Errorf("redirected to %s: got %v, want an answer: %v", target, err, want)
		}
	}
}

// The caller's own rule for redirects holds as well.
func TestOwnCheckRedirect(t *testing.T) {
	t.Parallel()
	refused := errors.New("no redirects here")
	server := httptest.NewTLSServer(http.RedirectHandler("/elsewhere", http.StatusFound))
	t.Cleanup(server.Close)
	client := server.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return refused }
	if _, err := fetch.Get(t.Context(), fetch.Request{Client: client, URL: server.URL}); !errors.Is(err, refused) {
		t.Errorf("got %v, want %v", err, refused)
	}
}

// Who asks for an answer of now says so to the caches on the way (C21).
func TestFresh(t *testing.T) {
	t.Parallel()
	for _, fresh := range []bool{false, true} {
		var header http.Header
		client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			header = r.Header
			return answer(r, 200, strings.NewReader("keys")), nil
		})}
		if _, err := fetch.Get(t.Context(), fetch.Request{Client: client, URL: "https://keys.example/", Fresh: fresh}); err != nil {
			t.Fatal(err)
		}
		want := ""
		if fresh {
			want = "no-cache"
		}
		if got := header.Get("Cache-Control"); got != want {
			t.Errorf("Fresh %v: Cache-Control %q, want %q", fresh, got, want)
		}
	}
}

// An error names the host, its cause, and nothing that may be a secret.
func TestErrors(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name      string
		ctx       context.Context
		transport transport
		want      error  // nil: any
		text      string // in the message
	}{
		{"no connection", t.Context(), func(*http.Request) (*http.Response, error) { return nil, refused }, refused, "refused"},
		{"404", t.Context(), func(r *http.Request) (*http.Response, error) {
			return answer(r, 404, strings.NewReader("hunter2")), nil
		}, nil, "404 Not Found"},
		{"panic", t.Context(), func(*http.Request) (*http.Response, error) { panic("hunter2") }, nil, "panicked with a string"},
		{"cancelled", ended, func(r *http.Request) (*http.Response, error) { return nil, r.Context().Err() }, context.Canceled, ""},
	}
	for _, test := range tests {
		_, err := fetch.Get(test.ctx, fetch.Request{
			Client: &http.Client{Transport: test.transport},
			URL:    "https://keys.example:8443/path?key=hunter2",
		})
		switch {
		case err == nil || test.want != nil && !errors.Is(err, test.want):
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
		case !strings.HasPrefix(err.Error(), `gcpjwt: ask "keys.example:8443": `) || !strings.Contains(err.Error(), test.text):
			t.Errorf("%s: message %q, want the host and %q", test.name, err, test.text)
		case strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: message %q tells a secret", test.name, err)
		}
	}
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"https://keys.example":           true,
		"https://keys.example:8443/a/b/": true,
		"HTTPS://keys.example/a%2Fb/":    true,
		"http://127.8.9.1:80/x":          true,
		"http://[::1]:80/":               true,
		"http://localhost/":              true,

		"":                                    false,
		"keys.example":                        false,
		"/x":                                  false,
		"//keys.example/":                     false,
		"https:///x":                          false,
		"https:keys.example":                  false,
		"ftp://keys.example/":                 false,
		"file:///etc/keys":                    false,
		"http://keys.example/":                false,
		"http://127.0.0.1.example/":           false,
		"http://localhost.example/":           false,
		"http://10.0.0.1/":                    false,
		"http://0.0.0.0/":                     false,
		"http://[::]/":                        false,
		"https://:443/":                       false,
		"https://keys.example/?account=":      false,
		"https://keys.example/?":              false,
		"https://keys.example/#x":             false,
		"https://keys.example/#":              false,
		"https://user:secret@keys.example/":   false,
		"https://@keys.example/":              false,
		"https://keys.example/\n":             false,
		"https://keys.example/%zz":            false,
		"https://keys.example:x/":             false,
		"https://user:secret@keys.example:x/": false,
	} {
		err := fetch.CheckURL("URL", text)
		switch {
		case (err == nil) != want || err != nil && !errors.Is(err, errs.ErrInvalidConfig):
			t.Errorf("CheckURL(%q): got %v, want good: %v", text, err, want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("CheckURL(%q): %v tells the password", text, err)
		}
	}
}
