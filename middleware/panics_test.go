package middleware_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// What panics, if told to.
type panickyClaims struct {
	jwt.RegisteredClaims
	where string
}

func (c *panickyClaims) panicAt(where string) {
	if c.where == where {
		panic(errors.New("at " + where))
	}
}

func (c *panickyClaims) UnmarshalJSON(data []byte) error {
	c.panicAt("UnmarshalJSON")
	return json.Unmarshal(data, &c.RegisteredClaims)
}

func (c *panickyClaims) GetIssuer() (string, error) {
	c.panicAt("GetIssuer")
	return "", nil
}

func (c *panickyClaims) GetAudience() (jwt.ClaimStrings, error) {
	c.panicAt("GetAudience")
	return nil, nil
}

type panickyMethod struct{ jwt.SigningMethod }

func (panickyMethod) Verify(string, []byte, any) error { panic("at Verify") }

// A panic of what belongs to others is an error of the one call: 500, and where it
// happened.
func TestPanicsOfOthers(t *testing.T) {
	keyfunc := func(value any) jwt.Keyfunc { return func(*jwt.Token) (any, error) { panic(value) } }
	setUp := true // WithClaims looks at claims, too
	claims := func(where string) middleware.Option {
		return middleware.WithClaims(func() jwt.Claims {
			switch {
			case setUp:
				return new(panickyClaims)
			case where == "newClaims":
				panic("at newClaims")
			}
			return &panickyClaims{where: where}
		})
	}
	audience := middleware.WithAudience(tokens.Audience)
	issuer := middleware.WithIssuer(tokens.Issuer)
	for _, test := range []struct {
		name    string
		keyfunc jwt.Keyfunc
		options []middleware.Option
		want    string
	}{
		{"Keyfunc", keyfunc("at Keyfunc"), nil, "panics_test.go"},
		{"Keyfunc, an error", keyfunc(jwt.ErrTokenExpired), nil, "token is expired"},
		{"Keyfunc, anything", keyfunc(&panickyClaims{where: "secret"}), nil, "panickyClaims"},
		{"Keyfunc, nil map", func(token *jwt.Token) (any, error) { token.Header = nil; token.Header["x"] = 1; return nil, nil }, nil, "nil map"},
		{"method", func(token *jwt.Token) (any, error) { token.Method = panickyMethod{}; return 1, nil }, nil, "at Verify"},
		{"no method", func(token *jwt.Token) (any, error) { token.Method = nil; return 1, nil }, nil, "nil pointer"},
		{"new claims", testKeyfunc, []middleware.Option{claims("newClaims")}, "at newClaims"},
		{"UnmarshalJSON", testKeyfunc, []middleware.Option{claims("UnmarshalJSON")}, "at UnmarshalJSON"},
		{"GetIssuer", testKeyfunc, []middleware.Option{claims("GetIssuer"), issuer}, "at GetIssuer"},
		{"GetAudience", testKeyfunc, []middleware.Option{claims("GetAudience"), audience}, "at GetAudience"},
	} {
		for _, remember := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				options := test.options
				if remember {
					options = append(options, middleware.WithTokenCache(1))
				}
				setUp = true
				v := middleware.NewVerifier(test.keyfunc, options...)
				setUp = false
				text := signed(t, nil)
				_, err := v.Verify(t.Context(), text)
				if middleware.StatusOf(err) != http.StatusInternalServerError || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want a 500 with %q", err, test.want)
				}
				if err != nil && (strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "secret")) {
					t.Errorf("the error %v tells too much", err)
				}
				check(t, serve(t, v.Handler, "Bearer "+text), serverFault)
			})
		}
	}
}

// The claims type's own check sees good tokens only.
func TestValidatePanics(t *testing.T) {
	newClaims := func() jwt.Claims { return &validating{} }
	v := middleware.NewVerifier(testKeyfunc, middleware.WithClaims(newClaims))
	if _, err := v.Verify(t.Context(), signed(t, nil)); middleware.StatusOf(err) != http.StatusInternalServerError {
		t.Errorf("got %v, want a 500", err)
	}
	check(t, serve(t, v.Handler, "Bearer "+tokens.Forge(signed(t, nil))), invalidToken)
	check(t, serve(t, v.Handler, "Bearer "+signed(t, jwt.MapClaims{"exp": 1})), invalidToken)
}

type validating struct{ jwt.RegisteredClaims }

func (*validating) Validate() error { panic("secret") }

// http.ErrAbortHandler is a way to end a request, and stays one.
func TestErrAbortHandler(t *testing.T) {
	abort := func() { panic(http.ErrAbortHandler) }
	good := signed(t, nil)
	for name, handler := range map[string]http.Handler{
		"handler": middleware.New(testKeyfunc)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { abort() })),
		"error handler": middleware.New(func(*jwt.Token) (any, error) { return nil, errors.New("no") },
			middleware.WithErrorHandler(func(http.ResponseWriter, *http.Request, error) { abort() }))(http.NotFoundHandler()),
		"extractor": middleware.New(testKeyfunc, middleware.WithExtractor(extractor(func(*http.Request) (string, error) { abort(); return "", nil })))(http.NotFoundHandler()),
		"Keyfunc":   middleware.New(func(*jwt.Token) (any, error) { abort(); return nil, nil })(http.NotFoundHandler()),
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := recover(); got != http.ErrAbortHandler {
					t.Errorf("got the panic %v, want %v", got, http.ErrAbortHandler)
				}
			}()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer "+good)
			handler.ServeHTTP(httptest.NewRecorder(), r)
		})
	}

	// A Verifier by itself panics for nobody: other transports don't know the value.
	v := middleware.NewVerifier(func(*jwt.Token) (any, error) { abort(); return nil, nil })
	if _, err := v.Verify(t.Context(), good); middleware.StatusOf(err) != http.StatusInternalServerError {
		t.Errorf("got %v, want a 500", err)
	}
}

func TestExtractorPanics(t *testing.T) {
	auth := middleware.New(testKeyfunc, middleware.WithOptional(),
		middleware.WithExtractor(extractor(func(*http.Request) (string, error) { panic("secret") })))
	check(t, serve(t, auth, "Bearer "+signed(t, nil)), serverFault)
	failing := middleware.New(testKeyfunc, middleware.WithExtractor(extractor(func(*http.Request) (string, error) { return "x", http.ErrAbortHandler })))
	check(t, serve(t, failing), invalidToken) // returned, it is an error as any other
}

// C27: zero values refuse everything.
func TestZeroVerifier(t *testing.T) {
	for _, v := range []*middleware.Verifier{nil, new(middleware.Verifier)} {
		if token, err := v.Verify(t.Context(), signed(t, nil)); token != nil || !errors.Is(err, middleware.ErrMissingConfig) {
			t.Errorf("got %v, %v, want %v", token, err, middleware.ErrMissingConfig)
		}
		check(t, serve(t, v.Handler, "Bearer "+signed(t, nil)), serverFault)
		check(t, serve(t, v.Handler), serverFault)
	}
	var none context.Context
	if _, err := middleware.NewVerifier(testKeyfunc).Verify(none, signed(t, nil)); err != nil {
		t.Errorf("without a context: %v", err)
	}
}

// For a call that has ended nothing is done.
func TestContextEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	v := middleware.NewVerifier(func(*jwt.Token) (any, error) {
		t.Error("the Keyfunc was called")
		return nil, nil
	})
	_, err := v.Verify(ctx, signed(t, nil))
	if !errors.Is(err, context.Canceled) || middleware.StatusOf(err) != http.StatusServiceUnavailable {
		t.Errorf("got %v, want %v and a 503", err, context.Canceled)
	}
}
