package middleware_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// Each token of the table gets its status, whatever it is decoded into, and again when
// it comes a second time. Package grpcauth has the same table.
func TestTable(t *testing.T) {
	cases := tokens.Cases(time.Now())
	if len(cases) < 60 {
		t.Fatalf("the table has %d tokens, want 60 at least", len(cases))
	}
	for _, claims := range claimTypes {
		for name, options := range map[string][]middleware.Option{
			"plain":       nil,
			"remembering": {middleware.WithTokenCache(len(cases))},
			"json.Number": {middleware.WithJSONNumber(), middleware.WithTokenCache(len(cases))},
		} {
			v := middleware.NewVerifier(tokens.Keyfunc, append(options, claims.option,
				middleware.WithIssuer(tokens.Issuer), middleware.WithAudience(tokens.Audience), middleware.WithScope(tokens.Scope),
				middleware.WithLeeway(tokens.Leeway))...)
			for _, test := range cases {
				t.Run(claims.name+"/"+name+"/"+test.Name, func(t *testing.T) {
					for range 2 {
						token, err := v.Verify(t.Context(), test.Text)
						if got := middleware.StatusOf(err); got != test.Status {
							t.Errorf("Verify: got status %d (%v), want %d", got, err, test.Status)
						}
						if good := test.Status == http.StatusOK; good != (token != nil) || good && (!token.Valid || token.Raw != test.Text) {
							t.Errorf("Verify: got the token %v", token)
						}
						checkSilent(t, err)
						w := serve(t, v.Handler, "Bearer "+test.Text)
						if w.Code != test.Status {
							t.Errorf("over HTTP: got status %d, want %d", w.Code, test.Status)
						}
						checkChallenge(t, w)
					}
				})
			}
		}
	}
}

// checkChallenge checks that a response has the headers that belong to its status.
func checkChallenge(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	for _, want := range []answer{letIn, invalidToken, forbidden, scopeNeeded, unavailable, serverFault} {
		if got := (answer{w.Code, w.Header().Get("WWW-Authenticate"), w.Header().Get("Retry-After")}); got == want {
			check(t, w, want)
			return
		}
	}
	t.Errorf("got status %d with the headers %v", w.Code, w.Header())
}

// checkSilent checks that an error has nothing of a token in it.
func checkSilent(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, secret := range []string{tokens.Issuer, tokens.Audience, "somebody", "invoices", "1e400", "9223372036854775807"} {
		if text := err.Error(); strings.Contains(text, secret) {
			t.Errorf("the error %q has %q in it", text, secret)
		}
	}
}

// C32: a token that can't be good costs no call, and nothing is said of its claims.
func TestNoCallForBadClaims(t *testing.T) {
	wrapped := func(token *jwt.Token) (any, error) { return tokens.Keyfunc(token) }
	inSet := func(token *jwt.Token) (any, error) {
		key, err := tokens.Keyfunc(token)
		return jwt.VerificationKeySet{Keys: []jwt.VerificationKey{key}}, err
	}
	for name, keyfunc := range map[string]jwt.Keyfunc{
		"plain": tokens.Keyfunc, "wrapped": wrapped, "in a set": inSet,
		"by issuer": middleware.ByIssuer(map[string]jwt.Keyfunc{tokens.Issuer: tokens.Keyfunc, "x": wrapped}),
	} {
		for _, claims := range claimTypes {
			v := middleware.NewVerifier(keyfunc, claims.option,
				middleware.WithIssuer(tokens.Issuer), middleware.WithAudience(tokens.Audience), middleware.WithScope(tokens.Scope),
				middleware.WithLeeway(tokens.Leeway))
			for _, test := range tokens.Cases(time.Now()) {
				if strings.HasPrefix(test.Name, "MAC") {
					t.Run(name+"/"+claims.name+"/"+test.Name, func(t *testing.T) { checkCalls(t, v, test) })
				}
			}
		}
	}
}

// checkCalls verifies a token with a MAC, and checks what that costs and says.
func checkCalls(t *testing.T, v *middleware.Verifier, test tokens.Case) {
	t.Helper()
	want := int64(0)
	if test.Status == http.StatusOK || test.Name == "MAC, forged" {
		want = 1
	}
	before := tokens.Calls.Load()
	_, err := v.Verify(t.Context(), test.Text)
	if got := tokens.Calls.Load() - before; got != want {
		t.Errorf("got %d calls, want %d", got, want)
	}
	if got := middleware.StatusOf(err); got != test.Status {
		t.Errorf("got status %d (%v), want %d", got, err, test.Status)
	}
	if want == 1 {
		return
	}
	if !errors.Is(err, jwt.ErrTokenUnverifiable) {
		t.Errorf("got %v, want %v", err, jwt.ErrTokenUnverifiable)
	}
	for _, told := range []error{
		jwt.ErrTokenInvalidClaims, jwt.ErrTokenExpired, jwt.ErrTokenNotValidYet, jwt.ErrTokenInvalidAudience,
		jwt.ErrTokenInvalidIssuer, jwt.ErrTokenSignatureInvalid, middleware.ErrInsufficientScope,
	} {
		if errors.Is(err, told) {
			t.Errorf("%v tells that %v", err, told)
		}
	}
}
