package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// userClaims is what a server may use in place of MapClaims.
type userClaims struct {
	jwt.RegisteredClaims
	Role string `json:"role"`
}

// Validate makes the parser ask for a role.
func (c *userClaims) Validate() error {
	if c.Role == "banned" {
		return jwt.ErrTokenInvalidSubject
	}
	return nil
}

// v4Claims have the check of jwt v4, which v5 never calls.
type v4Claims struct{ jwt.RegisteredClaims }

func (*v4Claims) Valid() error { return errors.New("never called") }

// bothClaims have the checks of v4 and v5.
type bothClaims struct{ v4Claims }

func (*bothClaims) Validate() error { return nil }

type pointerClaims struct{ *jwt.RegisteredClaims }

// R08: what would turn a check off, or fail on each request, panics at once.
func TestPanics(t *testing.T) {
	shared := new(jwt.RegisteredClaims)
	sharedMap := jwt.MapClaims{}
	with := func(option func() middleware.Option) func() {
		return func() { middleware.New(testKeyfunc, option()) }
	}
	claims := func(newClaims func() jwt.Claims) func() {
		return with(func() middleware.Option { return middleware.WithClaims(newClaims) })
	}
	handler := func(config *gcpjwt.IAMConfig) func() {
		return func() { middleware.NewHandler(context.Background(), config, audience) }
	}
	for _, test := range []struct {
		name string
		call func()
		want string
	}{
		{"nil Keyfunc", func() { middleware.New(nil) }, "Keyfunc"},
		{"no audience", with(func() middleware.Option { return middleware.WithAudience() }), "WithAudience"},
		{"empty audience", with(func() middleware.Option { return middleware.WithAudience("") }), "WithAudience"},
		{"an empty audience", with(func() middleware.Option { return middleware.WithAudience("a", "") }), "WithAudience"},
		{"no issuer", with(func() middleware.Option { return middleware.WithIssuer() }), "WithIssuer"},
		{"empty issuer", with(func() middleware.Option { return middleware.WithIssuer("") }), "WithIssuer"},
		{"negative leeway", with(func() middleware.Option { return middleware.WithLeeway(-1) }), "WithLeeway"},
		{"no size", with(func() middleware.Option { return middleware.WithMaxTokenSize(0) }), "WithMaxTokenSize"},
		{"negative size", with(func() middleware.Option { return middleware.WithMaxTokenSize(-1) }), "WithMaxTokenSize"},
		{"nil extractor", with(func() middleware.Option { return middleware.WithExtractor(nil) }), "WithExtractor"},
		{"nil handler", with(func() middleware.Option { return middleware.WithErrorHandler(nil) }), "WithErrorHandler"},
		{"nil claims function", claims(nil), "WithClaims"},
		{"no claims", claims(func() jwt.Claims { return nil }), "non-nil pointer"},
		{"nil claims", claims(func() jwt.Claims { return (*jwt.RegisteredClaims)(nil) }), "non-nil pointer"},
		{"nil map", claims(func() jwt.Claims { return jwt.MapClaims(nil) }), "non-nil pointer"},
		{"claims by value", claims(func() jwt.Claims { return jwt.RegisteredClaims{} }), "non-nil pointer"},
		{"shared claims", claims(func() jwt.Claims { return shared }), "new value"},
		{"shared map", claims(func() jwt.Claims { return sharedMap }), "new value"},
		{"embedded pointer", claims(func() jwt.Claims { return new(pointerClaims) }), "embedded as a pointer"},
		{"v4 claims", claims(func() jwt.Claims { return new(v4Claims) }), "Validate"}, // C34
		{"nil Keyfunc of a Verifier", func() { middleware.NewVerifier(nil) }, "Keyfunc"},
		{"nil handler behind", func() { middleware.New(testKeyfunc)(nil) }, "Handler"},
		{"nil extractor in an interface", with(func() middleware.Option { return middleware.WithExtractor(extractor(nil)) }), "WithExtractor"},
		{"no scope", with(func() middleware.Option { return middleware.WithScope() }), "WithScope"},
		{"empty scope", with(func() middleware.Option { return middleware.WithScope("a", "") }), "WithScope"},
		{"two scopes in one", with(func() middleware.Option { return middleware.WithScope("a b") }), "WithScope"},
		{"scope with a quote", with(func() middleware.Option { return middleware.WithScope(`a"`) }), "WithScope"},
		{"scope with a letter", with(func() middleware.Option { return middleware.WithScope("ä") }), "WithScope"},
		{"empty realm", with(func() middleware.Option { return middleware.WithRealm("") }), "WithRealm"},
		{"realm with a line break", with(func() middleware.Option { return middleware.WithRealm("a\r\nb: c") }), "WithRealm"},
		{"no metadata", with(func() middleware.Option { return middleware.WithResourceMetadata("") }), "WithResourceMetadata"},
		{"metadata over http", with(func() middleware.Option { return middleware.WithResourceMetadata("http://example.com/") }), "WithResourceMetadata"},
		{"metadata with a fragment", with(func() middleware.Option { return middleware.WithResourceMetadata("https://example.com/#") }), "WithResourceMetadata"},
		{"metadata without a host", with(func() middleware.Option { return middleware.WithResourceMetadata("https:///x") }), "WithResourceMetadata"},
		{"metadata and more", with(func() middleware.Option { return middleware.WithResourceMetadata("https://example.com/\r\nx") }), "WithResourceMetadata"},
		{"no cookie", func() { middleware.CookieExtractor("") }, "CookieExtractor"},
		{"odd cookie", func() { middleware.CookieExtractor("a=b") }, "CookieExtractor"},
		{"no issuers", func() { middleware.ByIssuer(nil) }, "ByIssuer"},
		{"issuer without name", func() { middleware.ByIssuer(map[string]jwt.Keyfunc{"": testKeyfunc}) }, "ByIssuer"},
		{"issuer without Keyfunc", func() { middleware.ByIssuer(map[string]jwt.Keyfunc{"a": testKeyfunc, "b": nil}) }, "ByIssuer"},
		{"nil configuration", handler(nil), "NewHandler: the Issuer is nil"},
		{"no Issuer", func() { middleware.NewHandler(context.Background(), nil, audience) }, "NewHandler: the Issuer is nil"},
		{"no account", handler(&gcpjwt.IAMConfig{}), "NewHandler: the Issuer has an empty issuer"},
		{"impossible account", handler(&gcpjwt.IAMConfig{ServiceAccount: "a/b"}), "NewHandler: gcpjwt: invalid configuration"},
		{"plain http", handler(&gcpjwt.IAMConfig{ServiceAccount: account, CertificateURL: "http://example.com/"}), "NewHandler: gcpjwt: invalid configuration"},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				if !strings.HasPrefix(text, "middleware: ") || !strings.Contains(text, test.want) {
					t.Errorf("got the panic %q, want one about %q", text, test.want)
				}
			}()
			test.call()
		})
	}
	handler(&gcpjwt.IAMConfig{ServiceAccount: account})() // doesn't panic, nor make any call
	claims(func() jwt.Claims { return new(bothClaims) })()
	with(func() middleware.Option { return middleware.WithResourceMetadata("http://127.0.0.1:8080/x") })()
}

func TestTokenFromContext(t *testing.T) {
	if token, ok := middleware.TokenFromContext(t.Context()); ok || token != nil {
		t.Errorf("got %v, %v from a bare context, want none", token, ok)
	}
	text := signed(t, jwt.MapClaims{"sub": "somebody"})
	auth := middleware.New(testKeyfunc)
	handler := auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := middleware.TokenFromContext(r.Context())
		if !ok || !token.Valid || token.Raw != text {
			t.Fatalf("got %v, %v, want the token", token, ok)
		}
		if subject, _ := token.Claims.GetSubject(); subject != "somebody" {
			t.Errorf("got the subject %q", subject)
		}
		if r.Context().Value(http.ServerContextKey) != "kept" {
			t.Error("the request's own context got lost")
		}
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+text)
	handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(t.Context(), http.ServerContextKey, "kept")))
}

func TestWithClaims(t *testing.T) {
	auth := middleware.New(testKeyfunc, middleware.WithClaims(func() jwt.Claims { return new(userClaims) }))
	roles := make(map[string]bool)
	handler := auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := middleware.TokenFromContext(r.Context())
		roles[token.Claims.(*userClaims).Role] = true
	}))
	for _, role := range []string{"admin", "reader", "banned"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+signed(t, jwt.MapClaims{"role": role}))
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	if len(roles) != 2 || !roles["admin"] || !roles["reader"] {
		t.Errorf("got the roles %v, want admin and reader", roles)
	}
	check(t, serve(t, auth, "Bearer "+signed(t, jwt.MapClaims{"role": "banned"})), invalidToken)
	check(t, serve(t, auth, "Bearer "+signed(t, jwt.MapClaims{"role": 5})), invalidToken)
}

// The fields of a claims type count under their exact names only, as registered
// claims do.
func TestFieldNamesAreCaseSensitive(t *testing.T) {
	type embedded struct {
		Tenant string `json:"tenant,omitempty"`
	}
	type claims struct {
		jwt.RegisteredClaims
		embedded
		Admin    bool
		Hidden   string `json:"-"`
		internal string
	}
	_ = claims{internal: "not decoded"}
	auth := middleware.New(testKeyfunc, middleware.WithClaims(func() jwt.Claims { return new(claims) }))
	for payload, want := range map[string]answer{
		`"tenant":"a","Admin":true`:    letIn,
		`"other":1,"OTHER":2`:          letIn,
		`"hidden":1,"INTERNAL":2`:      letIn,
		`"registeredclaims":1`:         letIn,
		`"Tenant":"a"`:                 invalidToken,
		`"tenant":"a","TENANT":"b"`:    invalidToken,
		`"admin":true`:                 invalidToken,
		`"\u0061dmin":true`:            invalidToken,
		`"\u017fub":"x"`:               invalidToken, // a long s, which folds to s
		`"Sub":"x"`:                    invalidToken,
		`"ten\u0061nt":"a"`:            letIn,
		`"ten\u0061nt":"a","tenant":1`: invalidToken,
	} {
		token := signedRaw(fmt.Sprintf(`{"exp":%d,%s}`, far, payload))
		if w := serve(t, auth, "Bearer "+token); w.Code != want.status {
			t.Errorf("%s: got status %d, want %d", payload, w.Code, want.status)
		}
	}
}

type extractor func(*http.Request) (string, error)

func (f extractor) ExtractToken(r *http.Request) (string, error) { return f(r) }

func TestWithExtractor(t *testing.T) {
	good := signed(t, nil)
	for _, test := range []struct {
		name  string
		token string
		err   error
		want  answer
	}{
		{"token", good, nil, letIn},
		{"none", "", request.ErrNoTokenInRequest, noToken},
		{"wrapped", "", fmt.Errorf("no cookie: %w", request.ErrNoTokenInRequest), noToken},
		{"empty", "", nil, noToken},
		{"failure", "", errors.New("secret"), invalidToken},
		{"failure with a token", good, errors.New("secret"), invalidToken},
		{"forged", tokens.Forge(good), nil, invalidToken},
		{"line break", good + "\n", nil, invalidToken},
		{"too long", strings.Repeat("x", 16<<10+1), nil, invalidToken},
	} {
		t.Run(test.name, func(t *testing.T) {
			auth := middleware.New(testKeyfunc, middleware.WithExtractor(extractor(func(*http.Request) (string, error) {
				return test.token, test.err
			})))
			check(t, serve(t, auth, "Bearer "+good), test.want) // the header is not looked at
		})
	}
}

// Of two options that set the same, the last one holds, and what the caller does
// to its slices afterwards doesn't matter.
func TestOptions(t *testing.T) {
	audiences, issuers := []string{"a"}, []string{"i"}
	auth := middleware.New(testKeyfunc,
		middleware.WithAudience("first"), middleware.WithAudience(audiences...),
		middleware.WithIssuer("first"), middleware.WithIssuer(issuers...),
		middleware.WithLeeway(time.Hour), middleware.WithLeeway(time.Minute),
	)
	audiences[0], issuers[0] = "changed", "changed"
	for _, test := range []struct {
		aud, iss string
		ago      time.Duration
		want     answer
	}{
		{"a", "i", 0, letIn},
		{"a", "i", 50 * time.Second, letIn},
		{"a", "i", 70 * time.Second, invalidToken},
		{"first", "i", 0, forbidden},
		{"changed", "i", 0, forbidden},
		{"a", "first", 0, forbidden},
		{"a", "changed", 0, forbidden},
	} {
		token := signed(t, jwt.MapClaims{"aud": test.aud, "iss": test.iss, "exp": time.Now().Add(-test.ago).Unix()})
		check(t, serve(t, auth, "Bearer "+token), test.want)
	}
}
