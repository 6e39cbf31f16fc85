package middleware_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	account  = systest.Account
	audience = "https://api.example.com"
)

// testKey signs the tokens of tests that are about the middleware alone.
var testKey = tokens.Key

// testKeyfunc returns the public key of testKey.
func testKeyfunc(token *jwt.Token) (any, error) {
	if token.Method != jwt.SigningMethodEdDSA {
		return nil, errors.New("not a token by testKey")
	}
	return testKey.Public(), nil
}

// signed returns a token by testKey with the given claims and, unless they
// say otherwise, an exp in an hour.
func signed(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	all := jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		all[name] = value
	}
	text, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, all).SignedString(testKey)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// far is a date that is far ahead, but within the year 9999.
const far = int64(1 << 37)

// signedRaw returns a token by testKey whose payload is exactly the one given.
func signedRaw(payload string) string { return tokens.Sign(`{"alg":"EdDSA","typ":"JWT"}`, payload) }

// raw is a claim in JSON.
func raw(text string) json.RawMessage { return json.RawMessage(text) }

// serve sends a request with the given Authorization headers through auth, to a
// handler that checks the token in its context.
func serve(t testing.TB, auth func(http.Handler) http.Handler, authorization ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "https://api.example.com/", nil)
	for _, value := range authorization {
		r.Header.Add("Authorization", value)
	}
	return serveRequest(t, auth, r)
}

func serveRequest(t testing.TB, auth func(http.Handler) http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	handler := auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, ok := middleware.TokenFromContext(r.Context()); !ok || !token.Valid {
			t.Errorf("the context's token is %v, %v, want a valid one", token, ok)
		}
		w.Write([]byte("let in"))
	}))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// What a client is told.
type answer struct {
	status     int
	challenge  string
	retryAfter string
}

var (
	letIn        = answer{status: http.StatusOK}
	noToken      = answer{status: http.StatusUnauthorized, challenge: `Bearer realm="api"`}
	invalidToken = answer{status: http.StatusUnauthorized, challenge: `Bearer realm="api", error="invalid_token"`}
	forbidden    = answer{status: http.StatusForbidden, challenge: `Bearer realm="api", error="invalid_token"`}
	scopeNeeded  = answer{status: http.StatusForbidden, challenge: `Bearer realm="api", error="insufficient_scope", scope="` + tokens.Scope + `"`}
	unavailable  = answer{status: http.StatusServiceUnavailable, retryAfter: "10"}
	serverFault  = answer{status: http.StatusInternalServerError}
)

// check checks a response down to the last byte: nothing else may be in it
// (B34).
func check(t testing.TB, w *httptest.ResponseRecorder, want answer) {
	t.Helper()
	got := answer{w.Code, w.Header().Get("WWW-Authenticate"), w.Header().Get("Retry-After")}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
		return
	}
	if want == letIn {
		if w.Body.String() != "let in" {
			t.Errorf("got the body %q, want the handler's", w.Body)
		}
		return
	}
	if text := http.StatusText(want.status) + "\n"; w.Body.String() != text {
		t.Errorf("got the body %q, want %q", w.Body, text)
	}
	for name, values := range w.Header() {
		switch name {
		case "Content-Type", "X-Content-Type-Options": // http.Error's
		case "Www-Authenticate", "Retry-After":
			if len(values) != 1 {
				t.Errorf("got %s headers %q, want one", name, values)
			}
		default:
			t.Errorf("got an unexpected header %s: %q", name, values)
		}
	}
}

// startIAM is systest.StartIAM with a configuration that caches certificates.
func startIAM(t testing.TB, opts ...testutil.Option) (*testutil.IAM, *gcpjwt.IAMConfig) {
	t.Helper()
	server, config := systest.StartIAM(t, opts...)
	config.EnableCache = true
	return server, config
}

// signWith signs a token for audience, which expires in an hour.
func signWith(t testing.TB, ctx context.Context, method jwt.SigningMethod, audience string) string {
	t.Helper()
	text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(method, jwt.MapClaims{
		"iss": account, "sub": "somebody", "aud": audience, "exp": time.Now().Add(time.Hour).Unix(),
	}))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
