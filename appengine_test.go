package gcpjwt_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/appengine/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/protoadapt"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// aeServer starts an App Engine API server, and has the process forget the keys
// of any other: in production there is but one app.
func aeServer(t testing.TB, opts ...testutil.Option) *testutil.AppEngine {
	t.Helper()
	gcpjwt.ResetAppEngine()
	server, err := testutil.NewAppEngine(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

func aeStart(t testing.TB, opts ...testutil.Option) *iamSigner {
	t.Helper()
	server := aeServer(t, opts...)
	ctx := server.Context(context.Background())
	return &iamSigner{
		method:         gcpjwt.SigningMethodAppEngine,
		ctx:            ctx,
		keyfunc:        gcpjwt.AppEngineVerifyKeyfunc(ctx, false, 0),
		calls:          func() int { return server.Calls("SignForApp") },
		latency:        server.SetLatency,
		keyIDs:         server.KeyNames,
		publicKey:      server.PublicKey,
		addKey:         server.AddKey,
		setSigningKeys: server.SetSigningKeys,
		beforeSigning: func(f func()) {
			server.Fail("SignForApp", func() error {
				f()
				return nil
			})
		},
		lastKeyID: gcpjwt.SigningMethodAppEngine.KeyID,
	}
}

// aeTransports are the two ways from the SDK to a server.
var aeTransports = []struct {
	name    string
	context func(t *testing.T, server *testutil.AppEngine) context.Context
}{
	{"API_HOST", func(t *testing.T, server *testutil.AppEngine) context.Context {
		t.Setenv("API_HOST", server.Host())
		t.Setenv("API_PORT", server.Port())
		return context.Background()
	}},
	{"context", func(_ *testing.T, server *testutil.AppEngine) context.Context {
		return server.Context(context.Background())
	}},
}

func TestAppEngine(t *testing.T) {
	for _, transport := range aeTransports {
		t.Run(transport.name, func(t *testing.T) {
			server := aeServer(t)
			ctx := transport.context(t, server)
			kid := server.KeyNames()[0]
			if got := gcpjwt.SigningMethodAppEngine.KeyID(); got != "" {
				t.Errorf("KeyID before the first signature: got %q, want none", got)
			}

			// Without Override the header that jwt writes says AppEngine.
			text, err := jwt.New(gcpjwt.SigningMethodAppEngine).SignedString(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if got := iamHeader(t, text)["alg"]; got != "AppEngine" {
				t.Errorf("alg %v, want AppEngine", got)
			}
			if got := gcpjwt.SigningMethodAppEngine.KeyID(); got != kid {
				t.Errorf("KeyID: got %q, want %q", got, kid)
			}
			for _, text := range []string{text, systest.Sign(t, ctx, gcpjwt.SigningMethodAppEngine, nil)} {
				if !iamSignedBy(text, server.PublicKey(kid)) {
					t.Error("the app's key didn't sign")
				}
				for _, cached := range []bool{false, true} {
					if _, err := jwt.Parse(text, gcpjwt.AppEngineVerifyKeyfunc(ctx, cached, time.Hour)); err != nil {
						t.Errorf("cached %v: %v", cached, err)
					}
				}
			}
			if got := server.Calls("SignForApp"); got != 2 {
				t.Errorf("%d calls for two tokens, want 2: the first one has told the key", got)
			}
			if got := server.Calls("GetPublicCertificatesForApp"); got != 3 {
				t.Errorf("%d requests for certificates, want 2 uncached ones and 1", got)
			}
		})
	}
}

// aeBubble runs f in a bubble with a server and a token that it signed. What
// the process knows of the app's keys belongs to the bubble and ends with it.
func aeBubble(t *testing.T, f func(t *testing.T, server *testutil.AppEngine, ctx context.Context, text string)) {
	t.Helper()
	defer gcpjwt.ResetAppEngine()
	synctest.Test(t, func(t *testing.T) {
		server := aeServer(t, testutil.InMemory())
		ctx := server.Context(context.Background())
		f(t, server, ctx, systest.Sign(t, ctx, gcpjwt.SigningMethodAppEngine, nil))
		server.SetLatency(0)
		time.Sleep(time.Hour) // calls under way come to their end
	})
}

func aeWantFetches(t *testing.T, server *testutil.AppEngine, want int) {
	t.Helper()
	synctest.Wait()
	if got := server.Calls("GetPublicCertificatesForApp"); got != want {
		t.Errorf("%d requests for certificates, want %d", got, want)
	}
}

// App Engine says for how long its certificates may be kept. Where it doesn't,
// the caller does.
func TestAppEngineCacheTime(t *testing.T) {
	const minute = time.Minute
	tests := []struct {
		stated, configured, want time.Duration
	}{
		{time.Hour, 0, time.Hour},
		{time.Hour, minute, time.Hour},
		{10 * minute, time.Hour, 10 * minute},
		{0, 20 * minute, 20 * minute},
		{0, 0, 0},
		{48 * time.Hour, 0, 24 * time.Hour},
		{0, 48 * time.Hour, 24 * time.Hour},
		{-time.Second, 20 * minute, 20 * minute}, // odd, so it states nothing
		{-time.Second, 0, 0},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("stated %v, configured %v", test.stated, test.configured), func(t *testing.T) {
			fetches := func(after time.Duration) (fetches int) {
				aeBubble(t, func(t *testing.T, server *testutil.AppEngine, ctx context.Context, text string) {
					server.SetMaxCacheTime(test.stated)
					keyfunc := gcpjwt.AppEngineVerifyKeyfunc(ctx, true, test.configured)
					certWant(t, keyfunc, text, nil)
					server.SetLatency(time.Second)
					time.Sleep(after)
					began := time.Now()
					if _, err := jwt.Parse(text, keyfunc); err != nil {
						t.Error(err)
					}
					if time.Since(began) > 0 {
						fetches++
					}
				})
				return fetches
			}
			if test.want > 0 && fetches(test.want-1) != 0 {
				t.Errorf("not kept until %v", test.want)
			}
			if fetches(test.want) == 0 {
				t.Errorf("kept beyond %v", test.want)
			}
		})
	}
}

func TestAppEngineNegativeCacheTime(t *testing.T) {
	server := aeServer(t)
	keyfunc := gcpjwt.AppEngineVerifyKeyfunc(server.Context(t.Context()), true, -time.Second)
	if _, err := keyfunc(certForged("x")); !errors.Is(err, gcpjwt.ErrInvalidConfig) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("got %v, want %v", err, gcpjwt.ErrInvalidConfig)
	}
}

func TestAppEngineCache(t *testing.T) {
	t.Run("opt-in", func(t *testing.T) {
		aeBubble(t, func(t *testing.T, server *testutil.AppEngine, ctx context.Context, text string) {
			keyfunc := gcpjwt.AppEngineVerifyKeyfunc(ctx, false, time.Hour)
			for range 3 {
				certWant(t, keyfunc, text, nil)
			}
			aeWantFetches(t, server, 3)
		})
	})
	t.Run("B19", func(t *testing.T) {
		aeBubble(t, func(t *testing.T, server *testutil.AppEngine, ctx context.Context, text string) {
			keyfunc := gcpjwt.AppEngineVerifyKeyfunc(ctx, true, 0)
			for range 1000 {
				if _, err := keyfunc(certForged(certRandomKeyID())); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
					t.Fatalf("got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
				}
			}
			aeWantFetches(t, server, 2)
		})
	})
	t.Run("B20", func(t *testing.T) {
		aeBubble(t, func(t *testing.T, server *testutil.AppEngine, ctx context.Context, oldText string) {
			keyfunc := gcpjwt.AppEngineVerifyKeyfunc(ctx, true, 0)
			certWant(t, keyfunc, oldText, nil)
			name, err := server.AddKey()
			if err != nil {
				t.Fatal(err)
			}
			server.RemoveKey(server.KeyNames()[0])
			server.SetSigningKeys(name)
			certWant(t, keyfunc, systest.Sign(t, ctx, gcpjwt.SigningMethodAppEngine, nil), nil)
			certWant(t, keyfunc, oldText, gcpjwt.ErrUnknownKeyID)
			aeWantFetches(t, server, 2)
		})
	})
	t.Run("outage", func(t *testing.T) {
		aeBubble(t, func(t *testing.T, server *testutil.AppEngine, ctx context.Context, text string) {
			keyfunc := gcpjwt.AppEngineVerifyKeyfunc(ctx, true, 0)
			certWant(t, keyfunc, text, nil)
			server.Stop()
			time.Sleep(time.Hour)
			certWant(t, keyfunc, text, nil)
			time.Sleep(time.Hour - 1)
			certWant(t, keyfunc, text, nil)
			time.Sleep(time.Nanosecond)
			certWant(t, keyfunc, text, gcpjwt.ErrKeysUnavailable)
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			certWant(t, keyfunc, text, nil)
		})
	})
	// The request that happened to make the Keyfunc may end.
	t.Run("callers leave", func(t *testing.T) {
		for _, cached := range []bool{false, true} {
			aeBubble(t, func(t *testing.T, server *testutil.AppEngine, ctx context.Context, text string) {
				server.SetLatency(5 * time.Second)
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				keyfunc := gcpjwt.AppEngineVerifyKeyfunc(short, cached, 0)
				certWantAfter(t, keyfunc, text, nil, 5*time.Second)
				time.Sleep(3 * time.Hour)
				certWantAfter(t, keyfunc, text, nil, 5*time.Second)
				aeWantFetches(t, server, 2)
			})
		}
	})
	t.Run("10 seconds", func(t *testing.T) {
		aeBubble(t, func(t *testing.T, server *testutil.AppEngine, ctx context.Context, text string) {
			server.SetLatency(time.Hour)
			for _, cached := range []bool{false, true} {
				keyfunc := gcpjwt.AppEngineVerifyKeyfunc(ctx, cached, 0)
				certWantAfter(t, keyfunc, text, gcpjwt.ErrKeysUnavailable, 10*time.Second)
			}
		})
	})
}

// The SDK takes no notice of a context that is cancelled but has no deadline.
// Callers leave all the same.
func TestAppEngineCancellation(t *testing.T) {
	for _, transport := range aeTransports {
		t.Run(transport.name, func(t *testing.T) {
			server := aeServer(t)
			ctx, cancel := context.WithCancel(transport.context(t, server))
			defer cancel()
			server.SetLatency(time.Minute)
			failed := make(chan error, 1)
			go func() {
				_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodAppEngine))
				failed <- err
			}()
			for server.Calls("SignForApp") == 0 {
				select {
				case err := <-failed:
					t.Fatalf("came back early: %v", err)
				case <-time.After(time.Millisecond):
				}
			}
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
		})
	}
}

// The SDK's error for a deadline isn't context.DeadlineExceeded. Ours is.
func TestAppEngineDeadline(t *testing.T) {
	for _, transport := range aeTransports {
		t.Run(transport.name, func(t *testing.T) {
			server := aeServer(t)
			ctx, cancel := context.WithTimeout(transport.context(t, server), 50*time.Millisecond)
			defer cancel()
			server.SetLatency(time.Minute)
			if _, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodAppEngine)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("SignedString: got %v, want %v", err, context.DeadlineExceeded)
			}
		})
	}

	// The SDK's own error, where the server gives up before the context ends.
	t.Run("by the server", func(t *testing.T) {
		server := aeServer(t)
		server.Fail("SignForApp", func() error {
			return &testutil.AppEngineError{Code: 12, Detail: "too slow"} // DEADLINE_EXCEEDED
		})
		_, err := gcpjwt.SignedString(server.Context(t.Context()), jwt.New(gcpjwt.SigningMethodAppEngine))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "too slow") {
			t.Errorf("got %v, want %v with the server's words", err, context.DeadlineExceeded)
		}
	})
}

// An answer that has come is what the caller gets, however soon it came.
func TestAppEngineAnswersAtOnce(t *testing.T) {
	gcpjwt.ResetAppEngine()
	refused := errors.New("refused")
	ctx := appengine.WithAPICallFunc(t.Context(), func(context.Context, string, string, protoadapt.MessageV1, protoadapt.MessageV1) error {
		return refused
	})
	const goroutines, calls = 16, 2000 // whether an answer is lost is a matter of scheduling
	var running sync.WaitGroup
	for range goroutines {
		running.Go(func() {
			for range calls {
				if _, err := gcpjwt.SigningMethodAppEngine.Sign("e30.e30", ctx); !errors.Is(err, refused) || errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want %v", err, refused)
					return
				}
			}
		})
	}
	running.Wait()
}

// B29: off App Engine there is an error within the deadline, and no panic.
func TestAppEngineElsewhere(t *testing.T) {
	// Nobody is asked about names, as the network may be slow or none.
	resolver := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no name server")
	}}
	defer func() { net.DefaultResolver = resolver }()
	// Nothing listens on port 1. A port that was free a moment ago may not be now.
	for _, address := range [][2]string{{"127.0.0.1", "1"}, {"appengine.invalid", "10001"}, {"127.0.0.1", "no port"}, {"bad host", "1"}} {
		t.Run(strings.Join(address[:], ":"), func(t *testing.T) {
			gcpjwt.ResetAppEngine()
			t.Setenv("API_HOST", address[0])
			t.Setenv("API_PORT", address[1])
			const timeout = 5 * time.Second
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			began := time.Now()
			_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodAppEngine))
			if err == nil || !strings.Contains(err.Error(), "app_engine_apis") {
				t.Errorf("SignedString: got %v, want an error that says what an app needs", err)
			}
			for _, cached := range []bool{false, true} {
				if _, err := gcpjwt.AppEngineVerifyKeyfunc(ctx, cached, time.Hour)(certForged("x")); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
					t.Errorf("Keyfunc, cached %v: got %v, want %v", cached, err, gcpjwt.ErrKeysUnavailable)
				}
			}
			// The SDK itself gives up after a minute.
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("took %v, want %v at most", took, timeout)
			}
		})
	}
}

// aeField appends a field of bytes.
func aeField(message []byte, number protowire.Number, value string) []byte {
	message = protowire.AppendTag(message, number, protowire.BytesType)
	return protowire.AppendString(message, value)
}

func TestAppEngineSigningFails(t *testing.T) {
	tests := []struct {
		name  string
		fault func(server *testutil.AppEngine)
		want  error  // nil: any
		text  string // in the error
	}{
		{"NOT_A_VALID_APP", aeFail("SignForApp", &testutil.AppEngineError{App: true, Code: 1002, Detail: "who are you"}), nil, "NOT_A_VALID_APP"},
		{"OVER_QUOTA", aeFail("SignForApp", &testutil.AppEngineError{Code: 4, Detail: "too many"}), nil, "too many"},
		{"CAPABILITY_DISABLED", aeFail("SignForApp", &testutil.AppEngineError{Code: 6, Detail: "closed"}), nil, "closed"},
		{"HTTP 500", aeFail("SignForApp", &testutil.HTTPError{Status: 500, Body: "oops"}), nil, "500"},
		{"HTTP 404", aeFail("SignForApp", &testutil.HTTPError{Status: http.StatusNotFound, Body: "none"}), nil, "404"},
		{"too long", func(s *testutil.AppEngine) { s.SetMaxPayload(1) }, nil, "BLOB_TOO_LARGE"},
		{"no key", func(s *testutil.AppEngine) { s.RemoveKey(s.KeyNames()[0]) }, nil, "no key signs"},
		{"truncated", aeAnswer("SignForApp", func(b []byte) []byte { return b[:len(b)-1] }), nil, ""},
		{"empty", aeAnswer("SignForApp", func([]byte) []byte { return nil }), gcpjwt.ErrIntegrity, ""},
		{"no signature", aeAnswer("SignForApp", func([]byte) []byte { return aeField(nil, 1, "k") }), gcpjwt.ErrIntegrity, ""},
		{"empty signature", aeAnswer("SignForApp", func([]byte) []byte { return aeField(aeField(nil, 1, "k"), 2, "") }), gcpjwt.ErrIntegrity, ""},
		{"no key name", aeAnswer("SignForApp", func([]byte) []byte { return aeField(nil, 2, strings.Repeat("s", 256)) }), gcpjwt.ErrIntegrity, ""},
		{"short signature", aeAnswer("SignForApp", func([]byte) []byte { return aeField(aeField(nil, 1, "k"), 2, "s") }), gcpjwt.ErrIntegrity, ""},
		{"other fields", aeAnswer("SignForApp", func([]byte) []byte { return aeField(aeField(nil, 7, "k"), 8, "s") }), gcpjwt.ErrIntegrity, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := aeServer(t)
			test.fault(server)
			ctx := server.Context(t.Context())
			token := jwt.New(gcpjwt.SigningMethodAppEngine)
			text, err := gcpjwt.SignedString(ctx, token)
			if text != "" || err == nil || !strings.Contains(err.Error(), "SignForApp") || !strings.Contains(err.Error(), test.text) {
				t.Errorf("SignedString: got %q, %v, want an error of SignForApp that says %q", text, err, test.text)
			}
			if test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("SignedString: got %v, want %v", err, test.want)
			}
			if sig, err := gcpjwt.SigningMethodAppEngine.Sign("e30.e30", ctx); err == nil || sig != nil {
				t.Errorf("Sign: got %v, %v, want an error", sig, err)
			}
			if got := gcpjwt.SigningMethodAppEngine.KeyID(); got != "" {
				t.Errorf("KeyID: got %q, want none", got)
			}
		})
	}
}

func aeFail(method string, err error) func(server *testutil.AppEngine) {
	return func(server *testutil.AppEngine) { server.Fail(method, func() error { return err }) }
}

func aeAnswer(method string, f func([]byte) []byte) func(server *testutil.AppEngine) {
	return func(server *testutil.AppEngine) { server.InterceptResponse(method, f) }
}

// Whatever becomes of the certificates, it says nothing about the token.
func TestAppEngineCertificatesFail(t *testing.T) {
	const call = "GetPublicCertificatesForApp"
	tests := []struct {
		name  string
		fault func(server *testutil.AppEngine)
	}{
		{"NOT_ALLOWED", aeFail(call, &testutil.AppEngineError{App: true, Code: 1005})},
		{"OVER_QUOTA", aeFail(call, &testutil.AppEngineError{Code: 4})},
		{"HTTP 500", aeFail(call, errors.New("oops"))},
		{"truncated", aeAnswer(call, func(b []byte) []byte { return b[:len(b)/2] })},
		{"empty", aeAnswer(call, func([]byte) []byte { return nil })},
		{"no certificates", aeAnswer(call, func([]byte) []byte {
			return protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 3600)
		})},
		{"other fields", aeAnswer(call, func(b []byte) []byte { return aeField(nil, 3, string(b)) })},
		{"certificate of another type", aeAnswer(call, func([]byte) []byte {
			return protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
		})},
		{"broken certificate", aeAnswer(call, func([]byte) []byte { return aeField(nil, 1, "\xff") })},
		{"no PEM", aeAnswer(call, func([]byte) []byte { return aeCertificates(nil, "k", "x") })},
		{"no name", aeAnswer(call, func([]byte) []byte { return aeCertificates(nil, "", certificateOf(t, certKey().Public(), certKey())) })},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := aeServer(t)
			ctx := server.Context(t.Context())
			text := systest.Sign(t, ctx, gcpjwt.SigningMethodAppEngine, nil)
			cached := gcpjwt.AppEngineVerifyKeyfunc(ctx, true, 0)
			if _, err := jwt.Parse(text, cached); err != nil {
				t.Fatal(err)
			}
			test.fault(server)
			_, err := jwt.Parse(text, gcpjwt.AppEngineVerifyKeyfunc(ctx, false, 0))
			if !errors.Is(err, gcpjwt.ErrKeysUnavailable) || !strings.Contains(err.Error(), call) {
				t.Errorf("got %v, want %v that names the call", err, gcpjwt.ErrKeysUnavailable)
			}
			if _, err := cached(certForged("unknown")); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
				t.Errorf("an unknown kid: got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
			}
			if _, err := jwt.Parse(text, cached); err != nil {
				t.Errorf("with good keys in the cache: %v", err)
			}
		})
	}
}

// Golden: the development server's certificate was valid for a day in 2011, and
// is signed with SHA-1. Neither is of interest, nor are fields to come.
func TestAppEngineCertificatesAreContainers(t *testing.T) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "test@localhost"},
		NotBefore:    time.Date(2011, 2, 23, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2011, 2, 24, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, certKey().Public(), certKey())
	if err != nil {
		t.Fatal(err)
	}
	der[len(der)-1] ^= 1 // breaks the signature
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))

	server := aeServer(t)
	server.InterceptResponse("GetPublicCertificatesForApp", func([]byte) []byte {
		response := protowire.AppendFixed32(protowire.AppendTag(nil, 9, protowire.Fixed32Type), 1)
		response = protowire.AppendFixed64(protowire.AppendTag(response, 10, protowire.Fixed64Type), 1)
		response = aeField(response, 11, "unknown")
		return aeCertificates(response, "key", certificate)
	})
	keyfunc := gcpjwt.AppEngineVerifyKeyfunc(server.Context(t.Context()), false, 0)
	for _, kid := range []any{"key", nil} {
		if _, err := jwt.Parse(certToken(t, kid), keyfunc); err != nil {
			t.Errorf("kid %v: %v", kid, err)
		}
	}
}

// C29: a backend that hangs holds 32 goroutines at most, however many callers leave, and
// further calls fail at once. When it recovers, calls succeed.
func TestAppEngineHangs(t *testing.T) {
	defer gcpjwt.ResetAppEngine()
	synctest.Test(t, func(t *testing.T) {
		server := aeServer(t, testutil.InMemory())
		release := make(chan struct{})
		var mu sync.Mutex
		underWay, most := 0, 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			underWay += n
			most = max(most, underWay)
		}
		hanging := appengine.WithAPICallFunc(t.Context(), func(context.Context, string, string, protoadapt.MessageV1, protoadapt.MessageV1) error {
			count(1)
			defer count(-1)
			<-release // whatever becomes of the context
			return errors.New("the backend was down")
		})
		sign := func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodAppEngine))
			return time.Since(began), err
		}

		// A caller without a deadline leaves after 10 seconds.
		if took, err := sign(hanging); took != 10*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a deadline: got %v after %v, want %v after 10s", err, took, context.DeadlineExceeded)
		}

		goroutines := runtime.NumGoroutine()
		for range 50 {
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() {
					ctx, cancel := context.WithCancel(hanging)
					defer cancel()
					time.AfterFunc(time.Second, cancel)
					if took, err := sign(ctx); err == nil || took > time.Second {
						t.Errorf("got %v after %v, want an error after a second at most", err, took)
					}
				})
			}
			callers.Wait()
		}
		synctest.Wait()
		if most > 32 {
			t.Errorf("%d calls under way, want 32 at most", most)
		}
		if got := runtime.NumGoroutine() - goroutines; got > 32+5 {
			t.Errorf("%d goroutines are left of 5,000 calls, want 32 or so", got)
		}
		for _, ctx := range []context.Context{hanging, server.Context(t.Context())} {
			if took, err := sign(ctx); took != 0 || err == nil || !strings.Contains(err.Error(), "32 earlier calls hang") {
				t.Errorf("while all hang: got %v after %v, want an error at once that says why", err, took)
			}
		}
		_, err := gcpjwt.AppEngineVerifyKeyfunc(server.Context(t.Context()), false, 0)(certForged("x"))
		if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
			t.Errorf("Keyfunc while all hang: got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
		}

		close(release)
		synctest.Wait()
		if took, err := sign(server.Context(t.Context())); took != 0 || err != nil {
			t.Errorf("after the backend has recovered: got %v after %v, want a token", err, took)
		}
		if underWay != 0 {
			t.Errorf("%d calls are still under way, want none", underWay)
		}
		server.SetLatency(time.Second)
		var callers sync.WaitGroup
		for range 100 { // which take turns
			callers.Go(func() {
				if took, err := sign(server.Context(t.Context())); took > 4*time.Second || err != nil {
					t.Errorf("of 100 calls at once: got %v after %v, want a token within 4s", err, took)
				}
			})
		}
		callers.Wait()
	})
}

// C38: without the cache tokens share the next call that begins after they came, of which two
// at most are under way.
func TestAppEngineUncached(t *testing.T) {
	aeBubble(t, func(t *testing.T, server *testutil.AppEngine, ctx context.Context, text string) {
		server.SetLatency(time.Second)
		var tokens sync.WaitGroup
		for range 200 {
			tokens.Go(func() {
				// A Keyfunc for each request is as good as one for all.
				if _, err := jwt.Parse(text, gcpjwt.AppEngineVerifyKeyfunc(ctx, false, 0)); err != nil {
					t.Error(err)
				}
			})
		}
		tokens.Wait()
		aeWantFetches(t, server, 3)
		name, err := server.AddKey()
		if err != nil {
			t.Fatal(err)
		}
		server.SetSigningKeys(name)
		server.RemoveKey(server.KeyNames()[0])
		keyfunc := gcpjwt.AppEngineVerifyKeyfunc(ctx, false, 0)
		certWantAfter(t, keyfunc, text, gcpjwt.ErrUnknownKeyID, time.Second)
		certWantAfter(t, keyfunc, systest.Sign(t, ctx, gcpjwt.SigningMethodAppEngine, nil), nil, time.Second)
	})
}
