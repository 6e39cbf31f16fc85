package testutil

import (
	"bytes"
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/appengine/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func startAppEngine(t *testing.T, opts ...Option) *AppEngine {
	t.Helper()
	s, err := NewAppEngine(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// overHTTP points the SDK to a server.
func overHTTP(t *testing.T, s *AppEngine) context.Context {
	t.Setenv("API_HOST", s.Host())
	t.Setenv("API_PORT", s.Port())
	return context.Background()
}

func inProcess(_ *testing.T, s *AppEngine) context.Context {
	return s.Context(context.Background())
}

// transports are the two ways from the SDK to a server. What is seen through
// them must be the same.
var transports = []struct {
	name    string
	context func(t *testing.T, s *AppEngine) context.Context
}{
	{"HTTP", overHTTP},
	{"in process", inProcess},
}

func TestAppEngineSigns(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.name, func(t *testing.T) {
			s := startAppEngine(t)
			ctx := transport.context(t, s)
			name, signature, err := appengine.SignBytes(ctx, []byte("data"))
			if err != nil {
				t.Fatal(err)
			}
			if want := s.KeyNames()[0]; name != want {
				t.Errorf("signed by %q, want %q", name, want)
			}
			certificates, err := appengine.PublicCertificates(ctx)
			if err != nil {
				t.Fatal(err)
			}
			published := make(map[string]*rsa.PublicKey)
			for _, certificate := range certificates {
				published[certificate.KeyName] = certifiedKey(t, string(certificate.Data))
			}
			if len(published) != 1 || !s.PublicKey(name).Equal(published[name]) {
				t.Errorf("published %v, want %s", published, name)
			}
			verify(t, published[name], "data", signature)

			account, err := appengine.ServiceAccount(ctx)
			if err != nil || account != s.ServiceAccount() {
				t.Errorf("service account %q, %v, want %q", account, err, s.ServiceAccount())
			}
			for method, want := range map[string]int{methodSign: 1, methodCertificates: 1, methodAccount: 1, "": 3} {
				if got := s.Calls(method); got != want {
					t.Errorf("Calls(%q) = %d, want %d", method, got, want)
				}
			}
			s.ResetCalls()
			if got := s.Calls(""); got != 0 {
				t.Errorf("%d calls after ResetCalls", got)
			}
		})
	}
}

// cacheTime reads max_client_cache_time_in_second, which the SDK drops.
func cacheTime(t *testing.T, ctx context.Context) (seconds uint64, ok bool) {
	t.Helper()
	var out emptypb.Empty
	if err := appengine.APICall(ctx, identityService, methodCertificates, &emptypb.Empty{}, &out); err != nil {
		t.Fatal(err)
	}
	for fields := []byte(out.ProtoReflect().GetUnknown()); len(fields) > 0; {
		number, kind, n := protowire.ConsumeTag(fields)
		fields = fields[n:]
		if number == 2 {
			seconds, _ = protowire.ConsumeVarint(fields)
			ok = true
		}
		fields = fields[protowire.ConsumeFieldValue(number, kind, fields):]
	}
	return seconds, ok
}

func TestAppEngineCacheTime(t *testing.T) {
	s := startAppEngine(t, InMemory())
	ctx := inProcess(t, s)
	if got, ok := cacheTime(t, ctx); got != 3600 || !ok {
		t.Errorf("by default %d, %t, want 3600", got, ok)
	}
	s.SetMaxCacheTime(90 * time.Second)
	if got, ok := cacheTime(t, ctx); got != 90 || !ok {
		t.Errorf("got %d, %t, want 90", got, ok)
	}
	s.SetMaxCacheTime(0)
	if got, ok := cacheTime(t, ctx); ok {
		t.Errorf("got %d, want no field", got)
	}
}

func TestAppEngineRotation(t *testing.T) {
	s := startAppEngine(t, InMemory())
	ctx := inProcess(t, s)
	first := s.KeyNames()[0]
	second, err := s.AddKey()
	if err != nil {
		t.Fatal(err)
	}
	signers := func() []string {
		var names []string
		// That one of two keys is never chosen in 40 has probability 2^-39.
		for range 40 {
			name, signature, err := appengine.SignBytes(ctx, []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			verify(t, s.PublicKey(name), "x", signature)
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	if got, want := signers(), []string{first}; !slices.Equal(got, want) {
		t.Errorf("signing before its time: %v, want %v", got, want)
	}
	s.SetSigningKeys(first, second)
	if got, want := signers(), slices.Sorted(slices.Values([]string{first, second})); !slices.Equal(got, want) {
		t.Errorf("phasing in: signed by %v, want %v", got, want)
	}
	s.RemoveKey(first)
	if got, want := signers(), []string{second}; !slices.Equal(got, want) {
		t.Errorf("after removal: signed by %v, want %v", got, want)
	}
	if got, want := s.KeyNames(), []string{second}; !slices.Equal(got, want) {
		t.Errorf("after removal: published %v, want %v", got, want)
	}
	s.RemoveKey(second)
	if _, _, err := appengine.SignBytes(ctx, nil); err == nil || !strings.Contains(err.Error(), "UNKNOWN_ERROR") {
		t.Errorf("without keys: got %v, want UNKNOWN_ERROR", err)
	}
	for name, f := range map[string]func(){
		"unknown key":    func() { s.SetSigningKeys(first) },
		"unknown method": func() { s.Fail("Sign", nil) },
	} {
		if !panics(f) {
			t.Errorf("%s: no panic", name)
		}
	}
}

// What the SDK reports of each failure is the same on both transports.
func TestAppEngineFailures(t *testing.T) {
	sign := func(ctx context.Context) error {
		_, _, err := appengine.SignBytes(ctx, []byte("four"))
		return err
	}
	fail := func(err error) func(*AppEngine) {
		return func(s *AppEngine) { s.Fail(methodSign, func() error { return err }) }
	}
	for _, test := range []struct {
		name    string
		set     func(*AppEngine)
		call    func(context.Context) error
		want    string // "" for success
		timeout bool
	}{
		{name: "none", set: fail(nil), call: sign},
		{name: "payload at the limit", set: func(s *AppEngine) { s.SetMaxPayload(4) }, call: sign},
		{name: "payload over the limit", set: func(s *AppEngine) { s.SetMaxPayload(3) }, call: sign, want: "API error 1000 (app_identity_service: BLOB_TOO_LARGE)"},
		{name: "application error", set: fail(&AppEngineError{App: true, Code: 1005, Detail: "no"}), call: sign, want: "API error 1005 (app_identity_service: NOT_ALLOWED): no"},
		{name: "application error 0", set: fail(&AppEngineError{App: true}), call: sign, want: "APIError <empty>"},
		{name: "application error 0 with detail", set: fail(&AppEngineError{App: true, Detail: "no"}), call: sign, want: "no"},
		{name: "unknown", set: fail(&AppEngineError{Detail: "what"}), call: sign, want: "what"},
		{name: "over quota", set: fail(&AppEngineError{Code: 4, Detail: "much"}), call: sign, want: "Over quota: much"},
		{name: "capability", set: fail(&AppEngineError{Code: 6, Detail: "off"}), call: sign, want: "Capability disabled: off"},
		{name: "cancelled", set: fail(&AppEngineError{Code: 10, Detail: "x"}), call: sign, want: "Canceled: x (timeout)", timeout: true},
		{name: "deadline", set: fail(&AppEngineError{Code: 12, Detail: "x"}), call: sign, want: "Call error 12: x (timeout)", timeout: true},
		{name: "negative code", set: fail(&AppEngineError{Code: -1, Detail: "x"}), call: sign, want: "Call error -1: x"},
		{name: "HTTP status", set: fail(&HTTPError{Status: 502, Body: "bad"}), call: sign, want: `service bridge returned HTTP 502 ("bad")`},
		{name: "other error", set: fail(errors.New("odd")), call: sign, want: `service bridge returned HTTP 500 ("odd\n")`},
		{name: "other service", call: func(ctx context.Context) error {
			return appengine.APICall(ctx, "mail", "Send", &emptypb.Empty{}, &emptypb.Empty{})
		}, want: "Call error 1: The API package 'mail' or call 'Send()' was not found."},
		{name: "other method", call: func(ctx context.Context) error {
			_, _, err := appengine.AccessToken(ctx, "scope")
			return err
		}, want: "Call error 1: The API package 'app_identity_service' or call 'GetAccessToken()' was not found."},
		{name: "unknown field", call: func(ctx context.Context) error {
			return appengine.APICall(ctx, identityService, methodCertificates, wrapperspb.String("x"), &emptypb.Empty{})
		}, want: "Call error 2: unknown field 1 of type 2"},
		{name: "field type", call: func(ctx context.Context) error {
			return appengine.APICall(ctx, identityService, methodSign, wrapperspb.Bool(true), &emptypb.Empty{})
		}, want: "Call error 2: unknown field 1 of type 0"},
		{name: "ended context", call: func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return sign(ctx)
		}, want: "context canceled"},
		{name: "late", set: func(s *AppEngine) { s.SetLatency(time.Minute) }, call: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			return sign(ctx)
		}, want: "Canceled: Deadline exceeded (timeout)", timeout: true},
	} {
		for _, transport := range transports {
			t.Run(test.name+" "+transport.name, func(t *testing.T) {
				s := startAppEngine(t)
				if test.set != nil {
					test.set(s)
				}
				err := test.call(transport.context(t, s))
				if test.want == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if err == nil || err.Error() != test.want {
					t.Fatalf("got %v, want %s", err, test.want)
				}
				if got := appengine.IsTimeoutError(err); got != test.timeout {
					t.Errorf("IsTimeoutError = %t, want %t", got, test.timeout)
				}
			})
		}
	}
}

// Requests that the SDK doesn't make are refused.
func TestAppEngineRefuses(t *testing.T) {
	s := startAppEngine(t)
	request := appendBytesField(nil, 2, []byte(identityService))
	request = appendBytesField(request, 3, []byte(methodAccount))
	complete := appendBytesField(request, 4, nil)
	for _, test := range []struct {
		name         string
		method, path string
		drop         string // a header
		body         []byte
		status       int
		want         string
	}{
		{name: "none", body: complete, status: 200, want: s.ServiceAccount()},
		{name: "path", path: "/rpc", body: complete, status: 404},
		{name: "method", method: http.MethodPut, body: complete, status: 405},
		{name: "content type", drop: "Content-Type", body: complete, status: 400, want: "Content-Type"},
		{name: "endpoint", drop: "X-Google-RPC-Service-Endpoint", body: complete, status: 400, want: "Endpoint"},
		{name: "RPC method", drop: "X-Google-RPC-Service-Method", body: complete, status: 400, want: "Method"},
		{name: "deadline", drop: "X-Google-RPC-Service-Deadline", body: complete, status: 400, want: "Deadline"},
		{name: "missing field", body: request, status: 200, want: "field 4 is missing"},
		{name: "unknown field", body: appendVarintField(complete, 6, 1), status: 200, want: "unknown field 6"},
		{name: "cut tag", body: []byte{0xff}, status: 200, want: "unexpected EOF"},
		{name: "cut value", body: complete[:len(complete)-1], status: 200, want: "unexpected EOF"},
	} {
		t.Run(test.name, func(t *testing.T) {
			method, path := test.method, test.path
			if method == "" {
				method = http.MethodPost
			}
			if path == "" {
				path = appEnginePath
			}
			r, err := http.NewRequest(method, "http://"+net.JoinHostPort(s.Host(), s.Port())+path, bytes.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range appEngineHeader {
				r.Header.Set(name, value)
			}
			r.Header.Set(appEngineDeadlineHeader, "60")
			r.Header.Del(test.drop)
			response, body := do(t, s.Client(), r)
			if response.StatusCode != test.status || !strings.Contains(body, test.want) {
				t.Errorf("got %s %q, want %d %q", response.Status, body, test.status, test.want)
			}
		})
	}
}

func TestAppEngineInterceptResponse(t *testing.T) {
	s := startAppEngine(t, InMemory())
	ctx := inProcess(t, s)
	s.InterceptResponse(methodSign, func(response []byte) []byte {
		return appendBytesField(response, 1, []byte("other")) // the last one counts
	})
	if name, _, err := appengine.SignBytes(ctx, nil); name != "other" || err != nil {
		t.Errorf("signed by %q, %v, want other", name, err)
	}
	s.InterceptResponse(methodSign, func(response []byte) []byte { return response[:len(response)-1] })
	if _, _, err := appengine.SignBytes(ctx, nil); err == nil {
		t.Error("a truncated response was accepted")
	}
	s.InterceptResponse(methodSign, nil)
	if name, _, err := appengine.SignBytes(ctx, nil); name != s.KeyNames()[0] || err != nil {
		t.Errorf("signed by %q, %v, want %q", name, err, s.KeyNames()[0])
	}
}

func TestAppEngineOutage(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.name, func(t *testing.T) {
			s := startAppEngine(t)
			ctx := transport.context(t, s)
			s.Fail(methodSign, func() error {
				s.Stop()
				return nil
			})
			for _, when := range []string{"under way", "during an outage"} {
				if _, _, err := appengine.SignBytes(ctx, nil); err == nil || !strings.HasPrefix(err.Error(), "service bridge HTTP failed: ") {
					t.Errorf("%s: got %v", when, err)
				}
			}
			s.Fail(methodSign, nil)
			port := s.Port()
			if err := s.Restart(); err != nil {
				t.Fatal(err)
			}
			if got := s.Port(); got != port {
				t.Errorf("restarted on port %s, want %s", got, port)
			}
			if _, _, err := appengine.SignBytes(ctx, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// In a bubble, the end of a context without a deadline doesn't end a call, as
// in production; a deadline does, and so does the SDK's own of a minute.
func TestAppEngineLatencyInBubble(t *testing.T) {
	for _, test := range []struct {
		name            string
		latency         time.Duration
		cancel, timeout time.Duration
		took            time.Duration
		want            string
	}{
		{name: "patience", latency: 10 * time.Second, took: 10 * time.Second},
		{name: "cancel", latency: 10 * time.Second, cancel: time.Second, took: 10 * time.Second},
		{name: "deadline", latency: 10 * time.Second, timeout: 2 * time.Second, took: 2 * time.Second, want: "Canceled: Deadline exceeded (timeout)"},
		{name: "the SDK's deadline", latency: time.Hour, took: time.Minute, want: "Canceled: Deadline exceeded (timeout)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startAppEngine(t, InMemory())
				s.SetLatency(test.latency)
				ctx := inProcess(t, s)
				if test.cancel != 0 {
					cancelled, cancel := context.WithCancel(ctx)
					time.AfterFunc(test.cancel, cancel)
					ctx = cancelled
				}
				if test.timeout != 0 {
					limited, cancel := context.WithTimeout(ctx, test.timeout)
					defer cancel()
					ctx = limited
				}
				start := time.Now()
				_, _, err := appengine.SignBytes(ctx, nil)
				if got := time.Since(start); got != test.took {
					t.Errorf("took %v, want %v", got, test.took)
				}
				if got := fmt.Sprint(err); got != test.want && (test.want != "" || err != nil) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				if got := s.Calls(methodSign); got != 1 {
					t.Errorf("%d calls, want 1", got)
				}
			})
		})
	}
}

// A backend that hangs holds its calls until their clients give up or it
// recovers. What has been given up doesn't count any more.
func TestAppEngineHangInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startAppEngine(t, InMemory())
		ctx := inProcess(t, s)
		sign := func(ctx context.Context, timeout time.Duration) error {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			_, _, err := appengine.SignBytes(ctx, nil)
			return err
		}
		s.Hang(methodSign, true)
		s.Hang(methodSign, true)
		results := make(chan error, 12)
		for i := range cap(results) {
			timeout := time.Second
			if i >= 8 {
				timeout = time.Minute
			}
			go func() { results <- sign(ctx, timeout) }()
		}
		wantInFlight := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := s.InFlight(methodSign); got != want || s.InFlight("") != want {
				t.Errorf("InFlight = %d, want %d", got, want)
			}
		}
		wantInFlight(12)
		if _, err := appengine.PublicCertificates(ctx); err != nil {
			t.Errorf("another method: %v", err)
		}
		time.Sleep(2 * time.Second)
		wantInFlight(4)
		for range 8 {
			if err := <-results; err == nil || !appengine.IsTimeoutError(err) {
				t.Errorf("a call that gave up: %v", err)
			}
		}
		s.Hang(methodSign, false)
		s.Hang(methodSign, false)
		for range 4 {
			if err := <-results; err != nil {
				t.Errorf("a call that waited: %v", err)
			}
		}
		wantInFlight(0)
		if err := sign(ctx, time.Second); err != nil {
			t.Errorf("the next call: %v", err)
		}
		if got := s.Calls(methodSign); got != 13 {
			t.Errorf("Calls = %d, want 13", got)
		}

		s.Hang("", true)
		if err := sign(ctx, time.Second); err == nil {
			t.Error("a hang of all methods had no effect")
		}
		s.Close()
	})
}

// The SDK's own transport, over TCP.
func TestAppEngineHang(t *testing.T) {
	s := startAppEngine(t)
	ctx := overHTTP(t, s)
	s.Hang(methodSign, true)
	limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, _, err := appengine.SignBytes(limited, nil); err == nil {
		t.Error("a call to a hanging backend succeeded")
	}
	// The server notices in its own time that the client has gone.
	waitInFlight(t, s, 0)
	const calls = 100
	results := make(chan error, calls)
	for range calls {
		go func() {
			_, _, err := appengine.SignBytes(ctx, nil)
			results <- err
		}()
	}
	waitInFlight(t, s, calls)
	s.Hang(methodSign, false)
	for range calls {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if _, _, err := appengine.SignBytes(ctx, nil); err != nil {
		t.Errorf("the next call: %v", err)
	}
	waitInFlight(t, s, 0)
}

// waitInFlight returns when that many calls are being served.
func waitInFlight(t *testing.T, s *AppEngine, want int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); s.InFlight("") != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("InFlight = %d, want %d", s.InFlight(""), want)
		}
	}
}
