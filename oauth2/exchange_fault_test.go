package oauth2_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	xoauth2 "golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

const (
	faultSecret = "hush-hush"

	// faultMaxText is how long an error may be.
	faultMaxText = 2048
)

// An exchangeFault is what can go wrong between the source and the endpoint. sent is
// the assertion that the endpoint got.
type exchangeFault struct {
	name   string
	answer func(w http.ResponseWriter, r *http.Request, sent string)
	start  func(*testutil.TokenServer) // instead of answer

	status int           // of the RetrieveError; 0: there is none
	code   string        // its ErrorCode
	is     error         // what errors.Is finds
	limit  time.Duration // 0: at once
}

// Answers that say something are of this status and type.
func say(status int, contentType, body string) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, _ *http.Request, sent string) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Echo", sent)
		w.Header().Set("Set-Cookie", "session="+faultSecret)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "ECHO", sent+" "+faultSecret))
	}
}

func redirect(status int, location string) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, _ *http.Request, sent string) {
		w.Header().Set("Location", strings.ReplaceAll(location, "ECHO", sent))
		w.WriteHeader(status)
	}
}

// raw answers with bytes that are no HTTP, or not all of it, and cuts the connection.
func raw(text string) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, _ *http.Request, sent string) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, strings.ReplaceAll(text, "ECHO", sent))
		_ = conn.Close()
	}
}

// gzipBomb is two megabytes in two kilobytes.
var gzipBomb = func() []byte {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	_, _ = zip.Write(bytes.Repeat([]byte(" "), 2<<20))
	_ = zip.Close()
	return out.Bytes()
}()

const (
	asJSON = "application/json"
	good   = `"access_token":"a-token-of-the-server","token_type":"Bearer"`
)

var exchangeFaults = []exchangeFault{
	{name: "refused connection", start: (*testutil.TokenServer).Stop},
	{name: "cut connection", answer: raw("")},
	{name: "no HTTP", answer: raw("SSH-2.0 ECHO\r\n")},
	{name: "odd status line", answer: raw("HTTP/1.1 2OO ECHO\r\n\r\n")},
	{name: "odd header", answer: raw("HTTP/1.1 200 OK\r\nECHO\r\n\r\n")},
	{name: "half a body", status: 200, is: io.ErrUnexpectedEOF, answer: raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")},
	{name: "odd chunk", status: 200, answer: raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nECHO\r\n")},
	{
		name: "silence", is: context.DeadlineExceeded, limit: 10 * time.Second,
		answer: func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() },
	},
	{
		name: "silence after the header", status: 200, is: context.DeadlineExceeded, limit: 10 * time.Second,
		answer: func(w http.ResponseWriter, r *http.Request, _ string) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	},
	{
		name: "slow drip", status: 200, is: context.DeadlineExceeded, limit: 10 * time.Second,
		answer: func(w http.ResponseWriter, r *http.Request, _ string) {
			for _, b := range []byte("{" + good + "}") {
				if r.Context().Err() != nil {
					return
				}
				_, _ = w.Write([]byte{b})
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
		},
	},
	{name: "a megabyte of JSON", status: 200, answer: say(200, asJSON, "{"+good+`,"x":"`+strings.Repeat("x", 1<<20)+`"}`)},
	{name: "a megabyte of blanks", status: 200, answer: say(200, asJSON, "{"+good+"}"+strings.Repeat(" ", 1<<20))},
	{name: "a megabyte of a form", status: 200, answer: say(200, "text/plain", "access_token=a&x="+strings.Repeat("x", 1<<20))},
	{name: "a megabyte with 500", status: 500, answer: say(500, asJSON, strings.Repeat("ECHO", 1<<12))},
	{
		name: "endless", status: 200, answer: func(w http.ResponseWriter, r *http.Request, _ string) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		},
	},
	{
		name: "gzip bomb", status: 200, answer: func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(gzipBomb)
		},
	},
	{name: "broken gzip", status: 200, answer: func(w http.ResponseWriter, _ *http.Request, sent string) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, sent)
	}},
	{name: "HTML", status: 200, answer: say(200, "text/html", "<html>ECHO</html>")},
	{name: "HTML as JSON", status: 200, answer: say(200, asJSON, "<html>ECHO</html>")},
	{name: "HTML as text", status: 200, answer: say(200, "text/plain", "<html>ECHO</html>")},
	{name: "an odd form", status: 200, answer: say(200, "text/plain", "access_token=%zz&ECHO")},
	{name: "nothing", status: 200, answer: say(200, asJSON, "")},
	{name: "no content", status: 204, answer: func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(204) }},
	{name: "null", status: 200, answer: say(200, asJSON, "null")},
	{name: "a list", status: 200, answer: say(200, asJSON, `["ECHO"]`)},
	{name: "a string", status: 200, answer: say(200, asJSON, `"ECHO"`)},
	{name: "half of JSON", status: 200, answer: say(200, asJSON, `{"access_token":"ECHO`)},
	{name: "two objects", status: 200, answer: say(200, asJSON, `{`+good+`}{"ECHO":1}`)},
	{name: "no access_token", status: 200, answer: say(200, asJSON, `{"token_type":"Bearer","id_token":"ECHO"}`)},
	{name: "empty access_token", status: 200, answer: say(200, asJSON, `{"access_token":"","id_token":"ECHO"}`)},
	{name: "access_token no string", status: 200, answer: say(200, asJSON, `{"access_token":{"ECHO":1}}`)},
	{name: "expires_in in quotes", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":"3600"}`)},
	{name: "expires_in words", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":"ECHO"}`)},
	{name: "expires_in empty", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":""}`)},
	{name: "expires_in 0", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":0}`)},
	{name: "expires_in -1", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":-1}`)},
	{name: "expires_in 0.5", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":0.5}`)},
	{name: "expires_in 1e300", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":1e300}`)},
	{name: "expires_in 1e400", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":1e400}`)},
	{name: "expires_in beyond int32", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":2147483648}`)},
	{name: "expires_in beyond int64", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":9223372036854775808}`)},
	{name: "expires_in far below 0", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":-4294967295}`)},
	{name: "expires_in true", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":true}`)},
	{name: "expires_in a list", status: 200, answer: say(200, asJSON, `{`+good+`,"expires_in":[3600]}`)},
	{name: "expires_in of a form, 0", status: 200, answer: say(200, "text/plain", "access_token=a&expires_in=0")},
	{name: "expires_in of a form, words", status: 200, answer: say(200, "text/plain", "access_token=a&expires_in=soon")},
	{name: "expires_in of a form, 1.5", status: 200, answer: say(200, "text/plain", "access_token=a&expires_in=1.5")},
	{
		name: "expired on its way", status: 200, limit: 9 * time.Second,
		answer: func(w http.ResponseWriter, r *http.Request, sent string) {
			time.Sleep(9 * time.Second)
			say(200, asJSON, `{`+good+`,"expires_in":5}`)(w, r, sent)
		},
	},
	{name: "error with 200", status: 200, code: "invalid_grant", answer: say(200, asJSON, `{`+good+`,"error":"invalid_grant","error_description":"ECHO"}`)},
	{name: "error with 200 and no token", status: 200, code: "slow_down", answer: say(200, asJSON, `{"error":"slow_down"}`)},
	{name: "error", status: 400, code: "invalid_grant", answer: say(400, asJSON, `{"error":"invalid_grant","error_description":"bad ECHO","error_uri":"https://example.com/?ECHO"}`)},
	{name: "error of the client", status: 401, code: "invalid_client", answer: say(401, asJSON, `{"error":"invalid_client"}`)},
	{name: "error as a form", status: 400, code: "invalid_grant", answer: say(400, "application/x-www-form-urlencoded", "error=invalid_grant&error_description=ECHO")},
	{name: "error in a list", status: 400, answer: say(400, asJSON, `{"error":{"message":"ECHO"}}`)},
	{name: "long error", status: 400, code: "invalid_grant", answer: say(400, asJSON, `{"error":"invalid_grant","error_description":"`+strings.Repeat("ECHO ", 20)+`"}`)},
	{name: "error with control characters", status: 400, code: "bad  [31m", answer: say(400, asJSON, `{"error":"bad \u001b[31m","error_description":"\r\n\u2028\u202e\u0000"}`)},
	{name: "forbidden by a proxy", status: 403, answer: say(403, "text/html", "<h1>\xff\xfe\r\nForbidden: ECHO</h1>")},
	{name: "not found", status: 404, answer: say(404, "text/plain", "404 page not found")},
	{name: "too many", status: 429, answer: say(429, asJSON, `{}`)},
	{name: "internal error", status: 500, answer: say(500, "text/html", "ECHO")},
	{name: "long page", status: 500, answer: say(500, "text/html", strings.Repeat("too long ", 10000))},
	{name: "unavailable", status: 503, answer: say(503, "text/plain", "")},
	{name: "token with 500", status: 500, answer: say(500, asJSON, `{`+good+`}`)},
	{name: "301", status: 301, answer: redirect(301, "/api?assertion=ECHO")},
	{name: "302", status: 302, answer: redirect(302, "/api?assertion=ECHO")},
	{name: "303", status: 303, answer: redirect(303, "/api")},
	{name: "307", status: 307, answer: redirect(307, "/api")},
	{name: "308", status: 308, answer: redirect(308, "/api?ECHO")},
	{name: "308 to an odd place", status: 308, answer: redirect(308, "https://evil.example/%zz?ECHO")},
	{name: "304", status: 304, answer: redirect(304, "/api")},
	{name: "300", status: 300, answer: redirect(300, "/api")},
}

// startFault makes a rig whose requests hold a secret where they can, and remembers the
// assertions.
func startFault(t *testing.T, name string) (rig *exchangeRig, sent *atomic.Value) {
	rig = startExchange(t, testutil.InMemory())
	parameter := "client_secret"
	if name == "ClientCredentials" {
		parameter = "subject_token"
	}
	rig.config.EndpointParams = url.Values{parameter: {faultSecret}}
	return rig, new(atomic.Value)
}

// inject puts a fault in place.
func (f exchangeFault) inject(rig *exchangeRig, sent *atomic.Value) {
	if f.start != nil {
		f.start(rig.endpoint)
		return
	}
	rig.endpoint.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		form, err := url.ParseQuery(string(body))
		if err != nil {
			panic(err)
		}
		text := form.Get("assertion") + form.Get("client_assertion")
		if text != "" {
			sent.Store(text)
		}
		f.answer(w, r, text)
	})
}

// check checks an error that came of the fault.
func (f exchangeFault) check(t *testing.T, err error, sent string) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	if f.is != nil && !errors.Is(err, f.is) {
		t.Errorf("got error %v, want one that is %v", err, f.is)
	}
	if !strings.HasPrefix(err.Error(), "gcpjwt: ") || strings.Count(err.Error(), "gcpjwt: ") != 1 {
		t.Errorf("got error %q, want the prefix once", err)
	}
	if strings.ContainsFunc(err.Error(), func(r rune) bool { return unicode.IsControl(r) || !unicode.IsPrint(r) }) || len(err.Error()) > faultMaxText {
		t.Errorf("the error is not fit for a log: %.300q", err)
	}
	checkConcealed(t, sent, chain(err)...)

	retrieve, ok := errors.AsType[*xoauth2.RetrieveError](err)
	if ok != (f.status != 0) {
		t.Fatalf("got error %v, want a RetrieveError: %v", err, f.status != 0)
	}
	if !ok {
		return
	}
	response := retrieve.Response
	if response.StatusCode != f.status || retrieve.ErrorCode != f.code {
		t.Errorf("got status %d and error %q, want %d and %q", response.StatusCode, retrieve.ErrorCode, f.status, f.code)
	}
	if !strings.Contains(err.Error(), fmt.Sprint(f.status)) || !strings.Contains(err.Error(), f.code) {
		t.Errorf("got error %v, want %d and %q in it", err, f.status, f.code)
	}
	if f.status/100 == 2 && len(retrieve.Body) > 0 {
		t.Errorf("Body is %q, want none, as it may hold a token", retrieve.Body)
	}
	if len(retrieve.Body) > 4<<10 {
		t.Errorf("Body is %d bytes long", len(retrieve.Body))
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	if response.Header.Get("Set-Cookie") != "" {
		t.Error("the header has a cookie")
	}
	if response.Request.URL == nil || response.Request.Body != nil || response.Request.GetBody != nil {
		t.Errorf("Request is %+v, want one with a URL and without a body", response.Request)
	}
	texts := []string{string(retrieve.Body), string(body), fmt.Sprintf("%+v", *retrieve), fmt.Sprintf("%+v", *response), fmt.Sprintf("%+v", *response.Request)}
	checkConcealed(t, sent, texts...)
}

// chain returns the texts of an error and of all that it wraps.
func chain(err error) (texts []string) {
	if err == nil {
		return nil
	}
	texts = append(texts, err.Error(), fmt.Sprintf("%+v", err))
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		texts = append(texts, chain(err.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, err := range err.Unwrap() {
			texts = append(texts, chain(err)...)
		}
	}
	return texts
}

// checkConcealed looks for parts of an assertion and for the secret.
func checkConcealed(t *testing.T, sent string, texts ...string) {
	t.Helper()
	forbidden := []string{faultSecret, url.QueryEscape(faultSecret), base64.StdEncoding.EncodeToString([]byte(faultSecret)), "a-token-of-the-server"}
	for rest := sent; len(rest) >= 16; rest = rest[16:] {
		forbidden = append(forbidden, rest[:16])
	}
	for _, text := range texts {
		for _, secret := range forbidden {
			if strings.Contains(text, secret) {
				t.Errorf("a text holds a secret, %q: %.300q", secret, text)
				break
			}
		}
	}
}

// TestExchangeFaults crosses both grants with all faults, once for the first token and
// once for a renewal.
func TestExchangeFaults(t *testing.T) {
	for name, make := range constructors {
		for _, fault := range exchangeFaults {
			t.Run(name+"/"+fault.name+"/first", func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { fault.first(t, name, make) })
			})
			t.Run(name+"/"+fault.name+"/renewal", func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { fault.renewal(t, name, make) })
			})
		}
	}
}

// first checks that the constructor returns the error, after one request, and that all is
// well afterwards.
func (f exchangeFault) first(t *testing.T, name string, make constructor) {
	rig, sent := startFault(t, name)
	f.inject(rig, sent)
	began := time.Now()
	source, err := make(rig.ctx, rig.config)
	if took := time.Since(began); took != f.limit {
		t.Errorf("took %v, want %v", took, f.limit)
	}
	if source != nil {
		t.Error("got a source")
	}
	text, _ := sent.Load().(string)
	f.check(t, err, text)
	if calls := rig.endpoint.Calls("token"); calls != 1 && f.start == nil {
		t.Errorf("the endpoint got %d requests, want 1", calls)
	}
	if calls := rig.endpoint.Calls("api"); calls != 0 {
		t.Errorf("%d requests went elsewhere", calls)
	}

	rig.lift(t)
	rig.get(t, rig.source(t, make))
}

// lift ends all faults.
func (r *exchangeRig) lift(t *testing.T) {
	r.endpoint.Intercept(nil)
	time.Sleep(time.Second) // for a handler at work to end
	if err := r.endpoint.Restart(); err != nil {
		t.Fatal(err)
	}
}

// renewal checks that the old token serves until shortly before its expiry and no longer,
// that nobody waits for a renewal, that requests are few, and that a token comes soon
// after the fault.
func (f exchangeFault) renewal(t *testing.T, name string, make constructor) {
	rig, sent := startFault(t, name)
	source := rig.source(t, make)
	first := mustToken(t, source)
	f.inject(rig, sent)
	rig.endpoint.ResetCalls()
	time.Sleep(54 * time.Minute)
	for time.Until(first.Expiry) > 10*time.Second {
		began := time.Now()
		if mustToken(t, source) != first {
			t.Fatal("got another token")
		}
		if waited := time.Since(began); waited > 0 {
			t.Fatalf("a caller with a valid token waited for %v", waited)
		}
		time.Sleep(10 * time.Second)
	}
	if calls := rig.endpoint.Calls("token"); f.start == nil && (calls < 3 || calls > 15) {
		t.Errorf("the endpoint got %d requests in 5 minutes, want some, but few", calls)
	}
	synctest.Wait()
	_, err := source.Token()
	text, _ := sent.Load().(string)
	f.check(t, err, text)
	if calls := rig.endpoint.Calls("api"); calls != 0 {
		t.Errorf("%d requests went elsewhere", calls)
	}

	rig.lift(t)
	time.Sleep(2 * time.Minute)
	if token := mustToken(t, source); token == first || !token.Valid() {
		t.Error("got no new token after the fault")
	}
	rig.get(t, source)
}

// A transport of the user's may fail in any way, and its errors may show the request.
func TestExchangeTransportErrors(t *testing.T) {
	for name, make := range constructors {
		for _, test := range []struct {
			name string
			trip func(*http.Request, string) (*http.Response, error)
			is   error
		}{
			{"talkative", func(_ *http.Request, body string) (*http.Response, error) {
				return nil, errors.New("cannot send " + body)
			}, nil},
			{"talkative about the end", func(_ *http.Request, body string) (*http.Response, error) {
				return nil, fmt.Errorf("cannot send %s: %w", body, context.DeadlineExceeded)
			}, context.DeadlineExceeded},
			{"terse", func(*http.Request, string) (*http.Response, error) {
				return nil, io.ErrUnexpectedEOF
			}, io.ErrUnexpectedEOF},
			{"nothing", func(*http.Request, string) (*http.Response, error) { return nil, nil }, nil},
			{"no body", func(*http.Request, string) (*http.Response, error) {
				return &http.Response{StatusCode: 200}, nil
			}, nil},
			{"panic", func(_ *http.Request, body string) (*http.Response, error) { panic(body) }, nil},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				rig, _ := startFault(t, name)
				var sent string
				rig.config.Client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					form, _ := url.ParseQuery(string(body))
					sent = form.Get("assertion") + form.Get("client_assertion")
					return test.trip(r, string(body))
				})}
				_, err := make(rig.ctx, rig.config)
				if err == nil || test.is != nil && !errors.Is(err, test.is) {
					t.Fatalf("got error %v, want one that is %v", err, test.is)
				}
				checkConcealed(t, sent, chain(err)...)
			})
		}
	}
}

// A query of the TokenURL may hold a key.
func TestExchangeQuery(t *testing.T) {
	for _, answer := range []func(http.ResponseWriter, *http.Request, string){raw(""), say(400, asJSON, "{}")} {
		rig, sent := startFault(t, "JWTBearer")
		rig.config.TokenURL += "?code=of-a-function"
		exchangeFault{answer: answer}.inject(rig, sent)
		_, err := oauth2.NewJWTBearerSource(rig.ctx, rig.config)
		texts := chain(err)
		if retrieve, ok := errors.AsType[*xoauth2.RetrieveError](err); ok {
			texts = append(texts, retrieve.Response.Request.URL.String())
		}
		if err == nil || !strings.Contains(err.Error(), rig.endpoint.TokenURL()) || strings.Contains(strings.Join(texts, "\n"), "of-a-function") {
			t.Errorf("got error %v, want one that names the endpoint without its query", err)
		}
	}
}

// The client's own time limit counts if it is shorter.
func TestExchangeClientTimeout(t *testing.T) {
	for _, test := range []struct{ timeout, want time.Duration }{
		{0, 10 * time.Second},
		{3 * time.Second, 3 * time.Second},
		{time.Minute, 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			rig := startExchange(t, testutil.InMemory())
			rig.endpoint.SetLatency(time.Hour)
			rig.config.Client.Timeout = test.timeout
			began := time.Now()
			_, err := oauth2.NewJWTBearerSource(rig.ctx, rig.config)
			if took := time.Since(began); took != test.want || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("timeout %v: got %v after %v, want %v", test.timeout, err, took, test.want)
			}
		})
	}
}

// A signature that fails is no request.
func TestExchangeUnsigned(t *testing.T) {
	rig := startExchange(t)
	rig.google.Deny("iam.serviceAccounts.signJwt")
	_, err := oauth2.NewClientCredentialsSource(rig.ctx, rig.config)
	if err == nil || !strings.Contains(err.Error(), "iam.serviceAccounts.signJwt") || errors.Is(err, gcpjwt.ErrInvalidConfig) {
		t.Errorf("got %v, want an error that names the permission", err)
	}
	if calls := rig.endpoint.Calls(""); calls != 0 {
		t.Errorf("%d requests were made, want none", calls)
	}
}
