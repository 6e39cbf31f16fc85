package middleware_test

import (
	"context"
	"encoding/json"
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

// C37: a challenge names a realm, and what the Verifier says of itself, with each
// status.
func TestChallenge(t *testing.T) {
	const metadata = "https://api.example.com/.well-known/oauth-protected-resource"
	v := middleware.NewVerifier(tokens.Keyfunc,
		middleware.WithAudience(tokens.Audience), middleware.WithScope("a", "b"),
		middleware.WithRealm(`the "API"`), middleware.WithResourceMetadata(metadata))
	payload := func(changes ...string) string {
		return "Bearer " + signedRaw(tokens.Payload(time.Now(), changes...))
	}
	for _, test := range []struct {
		name, authorization string
		status              int
		want                string
	}{
		{"no token", "", 401, `Bearer realm="the \"API\"", resource_metadata="` + metadata + `"`},
		{"another scheme", "Basic x", 401, `Bearer realm="the \"API\"", resource_metadata="` + metadata + `"`},
		{"malformed", "Bearer x", 401, `Bearer realm="the \"API\"", error="invalid_token", resource_metadata="` + metadata + `"`},
		{"audience", payload("aud", `"x"`), 403, `Bearer realm="the \"API\"", error="invalid_token", resource_metadata="` + metadata + `"`},
		{"scope", payload("scope", `"a"`), 403, `Bearer realm="the \"API\"", error="insufficient_scope", scope="a b", resource_metadata="` + metadata + `"`},
		{"good", payload("scope", `"b a"`), 200, ""},
		{"unavailable", "Bearer " + tokens.Sign(`{"alg":"EdDSA","kid":"down"}`, tokens.Payload(time.Now())), 503, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var values []string
			if test.authorization != "" {
				values = append(values, test.authorization)
			}
			w := serve(t, v.Handler, values...)
			if got := w.Header().Get("WWW-Authenticate"); w.Code != test.status || got != test.want {
				t.Errorf("got %d %q, want %d %q", w.Code, got, test.status, test.want)
			}

			// Other transports answer the same.
			_, err := v.Verify(t.Context(), strings.TrimPrefix(test.authorization, "Bearer "))
			if err == nil || test.name == "another scheme" {
				return
			}
			w = httptest.NewRecorder()
			middleware.Respond(w, nil, fmt.Errorf("wrapped: %w", err))
			if got := w.Header().Get("WWW-Authenticate"); w.Code != test.status || got != test.want {
				t.Errorf("Respond: got %d %q, want %d %q", w.Code, got, test.status, test.want)
			}
		})
	}
}

// Respond and StatusOf with errors that no Verifier made.
func TestRespond(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int // StatusOf's
		want   answer
	}{
		{nil, 200, serverFault},
		{errors.New("secret"), 401, invalidToken},
		{request.ErrNoTokenInRequest, 401, noToken},
		{middleware.ErrInsufficientScope, 403, answer{403, `Bearer realm="api", error="insufficient_scope"`, ""}},
		{fmt.Errorf("%w: %w", jwt.ErrTokenInvalidClaims, middleware.ErrInsufficientScope), 401, invalidToken},
		{fmt.Errorf("%w: %w", jwt.ErrTokenUnverifiable, middleware.ErrInsufficientScope), 401, invalidToken},
		{fmt.Errorf("%w: %w", jwt.ErrTokenSignatureInvalid, middleware.ErrKeysUnavailable), 503, unavailable},
		{fmt.Errorf("%w: %w", jwt.ErrTokenUnverifiable, middleware.ErrMissingConfig), 500, serverFault},
	} {
		if got := middleware.StatusOf(test.err); got != test.status {
			t.Errorf("StatusOf(%v) = %d, want %d", test.err, got, test.status)
		}
		w := httptest.NewRecorder()
		middleware.Respond(w, nil, test.err)
		check(t, w, test.want)
	}
}

// The errors are those of package gcpjwt.
func TestErrorsAreShared(t *testing.T) {
	for _, pair := range [][2]error{
		{middleware.ErrKeysUnavailable, gcpjwt.ErrKeysUnavailable},
		{middleware.ErrUnknownKeyID, gcpjwt.ErrUnknownKeyID},
		{middleware.ErrInvalidConfig, gcpjwt.ErrInvalidConfig},
		{middleware.ErrMissingConfig, gcpjwt.ErrMissingConfig},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%v is not gcpjwt's", pair[0])
		}
	}
}

// C03: a token by another issuer than the configured account is a 403, however good.
func TestNewHandlerChecksIssuer(t *testing.T) {
	_, config := startIAM(t)
	auth := middleware.NewHandler(t.Context(), config, audience)
	byHost := middleware.NewHandler(t.Context(), config, "")
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	for iss, want := range map[any]answer{
		account: letIn, "other@test.iam.gserviceaccount.com": forbidden, "": forbidden, nil: forbidden, 5: invalidToken,
	} {
		claims := jwt.MapClaims{"aud": audience, "exp": time.Now().Add(time.Hour).Unix()}
		if iss != nil {
			claims["iss"] = iss
		}
		text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, claims))
		if err != nil {
			t.Fatal(err)
		}
		check(t, serve(t, auth, "Bearer "+text), want)
		check(t, serve(t, byHost, "Bearer "+text), want)
	}
}

func TestWithOptional(t *testing.T) {
	v := middleware.NewVerifier(testKeyfunc, middleware.WithOptional(), middleware.WithAudience(audience))
	good := signed(t, jwt.MapClaims{"aud": audience})
	for _, test := range []struct {
		name   string
		values []string
		status int
		token  bool
	}{
		{"good token", []string{"Bearer " + good}, 200, true},
		{"none", nil, 200, false},
		{"another scheme", []string{"Basic x"}, 200, false},
		{"scheme alone", []string{"Bearer"}, 401, false},
		{"scheme and blanks", []string{"Bearer  "}, 401, false},
		{"two headers", []string{"Bearer " + good, "Basic x"}, 401, false},
		{"forged", []string{"Bearer " + tokens.Forge(good)}, 401, false},
		{"for others", []string{"Bearer " + signed(t, jwt.MapClaims{"aud": "x"})}, 403, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			handler := v.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if _, ok := middleware.TokenFromContext(r.Context()); ok != test.token {
					t.Errorf("the context has a token: %v, want %v", ok, test.token)
				}
			}))
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header["Authorization"] = test.values
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != test.status {
				t.Errorf("got status %d, want %d", w.Code, test.status)
			}
		})
	}
	if _, err := v.Verify(t.Context(), ""); !errors.Is(err, request.ErrNoTokenInRequest) {
		t.Errorf("Verify of no token: got %v, want %v", err, request.ErrNoTokenInRequest)
	}
}

func TestCookieExtractor(t *testing.T) {
	good := signed(t, nil)
	auth := middleware.New(testKeyfunc, middleware.WithExtractor(middleware.CookieExtractor("session")))
	for _, test := range []struct {
		cookies []string
		want    answer
	}{
		{[]string{"session=" + good}, letIn},
		{[]string{"a=b; session=" + good + "; c=d"}, letIn},
		{nil, noToken},
		{[]string{"session="}, noToken},
		{[]string{"Session=" + good}, noToken},
		{[]string{"session=x"}, invalidToken},
		{[]string{"session=" + tokens.Forge(good)}, invalidToken},
		{[]string{"session=" + good + "; session=" + good}, invalidToken},
		{[]string{"session=" + good, "session=x"}, invalidToken},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Cookie"] = test.cookies
		check(t, serveRequest(t, auth, r), test.want)
	}
}

// The extractors fit into jwt's MultiExtractor, and stay strict there.
func TestMultiExtractor(t *testing.T) {
	good := signed(t, nil)
	auth := middleware.New(testKeyfunc, middleware.WithExtractor(request.MultiExtractor{
		middleware.BearerExtractor, middleware.CookieExtractor("session"),
	}))
	for _, test := range []struct {
		authorization []string
		cookie        string
		want          answer
	}{
		{[]string{"Bearer " + good}, "x", letIn},
		{nil, good, letIn},
		{[]string{"Basic x"}, good, letIn},
		{nil, "", noToken},
		{[]string{"Bearer"}, good, invalidToken},
		{[]string{"Bearer x"}, good, invalidToken},
		{[]string{"Bearer " + good, "Bearer " + good}, good, invalidToken},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Authorization"] = test.authorization
		r.Header.Set("Cookie", "session="+test.cookie)
		check(t, serveRequest(t, auth, r), test.want)
	}

	// An empty cookie, as a logout leaves it, doesn't hide what comes next.
	auth = middleware.New(testKeyfunc, middleware.WithExtractor(request.MultiExtractor{
		middleware.CookieExtractor("session"), middleware.BearerExtractor,
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+good)
	r.Header.Set("Cookie", "session=")
	check(t, serveRequest(t, auth, r), letIn)
}

// An issuer can't sign in another's name, and unknown ones cost nothing.
func TestByIssuer(t *testing.T) {
	calls := map[string]int{}
	keyfunc := func(name string, key any) jwt.Keyfunc {
		return func(*jwt.Token) (any, error) {
			calls[name]++
			return key, nil
		}
	}
	other := make([]byte, 32)
	keyfuncs := map[string]jwt.Keyfunc{"a": keyfunc("a", testKey.Public()), "b": keyfunc("b", other)}
	byIssuer := middleware.ByIssuer(keyfuncs)
	clear(keyfuncs) // a caller's map is the caller's
	for _, claims := range claimTypes {
		auth := middleware.New(byIssuer, claims.option)
		for _, test := range []struct {
			payload string
			want    answer
			asked   string
		}{
			{tokens.Payload(time.Now(), "iss", `"a"`), letIn, "a"},
			{tokens.Payload(time.Now(), "iss", `"b"`), invalidToken, "b"},
			{tokens.Payload(time.Now(), "iss", `"c"`), invalidToken, ""},
			{tokens.Payload(time.Now(), "iss", ""), invalidToken, ""},
			{tokens.Payload(time.Now(), "iss", `5`), invalidToken, ""},
			{tokens.Payload(time.Now(), "iss", `"b","iss":"a"`), invalidToken, ""},
			{tokens.Payload(time.Now(), "iss", `"c"`, "ISS", `"a"`), invalidToken, ""},
		} {
			clear(calls)
			check(t, serve(t, auth, "Bearer "+signedRaw(test.payload)), test.want)
			if len(calls) > 1 || test.asked != "" && calls[test.asked] != 1 || test.asked == "" && len(calls) > 0 {
				t.Errorf("%s: %s: the Keyfuncs were called: %v, want %q", claims.name, test.payload, calls, test.asked)
			}
		}
	}
	for _, token := range []*jwt.Token{nil, {}, {Claims: jwt.MapClaims(nil)}, {Claims: (*jwt.RegisteredClaims)(nil)}} {
		if key, err := byIssuer(token); err == nil {
			t.Errorf("got %v for the token %v, want an error", key, token)
		}
	}
	_, err := byIssuer(&jwt.Token{Claims: jwt.MapClaims{"iss": "secret"}})
	if !errors.Is(err, middleware.ErrUnknownKeyID) || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want %v and nothing of the token", err, middleware.ErrUnknownKeyID)
	}
}

func TestContext(t *testing.T) {
	token := &jwt.Token{Claims: &userClaims{Role: "admin"}}
	ctx := middleware.NewContext(t.Context(), token)
	if got, ok := middleware.TokenFromContext(ctx); !ok || got != token {
		t.Errorf("got %v, %v, want the token", got, ok)
	}
	if got, ok := middleware.ClaimsFromContext[*userClaims](ctx); !ok || got.Role != "admin" {
		t.Errorf("got %v, %v, want the claims", got, ok)
	}
	if got, ok := middleware.ClaimsFromContext[jwt.MapClaims](ctx); ok || got != nil {
		t.Errorf("got %v, %v as claims of another type", got, ok)
	}
	for _, ctx := range []context.Context{
		t.Context(), middleware.NewContext(t.Context(), nil), middleware.NewContext(t.Context(), &jwt.Token{}),
	} {
		if got, ok := middleware.ClaimsFromContext[jwt.Claims](ctx); ok || got != nil {
			t.Errorf("got %v, %v, want no claims", got, ok)
		}
	}
	if got, ok := middleware.TokenFromContext(middleware.NewContext(t.Context(), nil)); ok {
		t.Errorf("got %v, %v of a nil token", got, ok)
	}
}

// C35: numbers keep all their digits, also when the token is remembered.
func TestWithJSONNumber(t *testing.T) {
	const id = "9007199254740993"
	text := signedRaw(tokens.Payload(time.Now(), "id", id, "nested", `[`+id+`]`))
	for _, options := range [][]middleware.Option{
		{middleware.WithJSONNumber()},
		{middleware.WithJSONNumber(), middleware.WithTokenCache(10)},
	} {
		v := middleware.NewVerifier(testKeyfunc, append(options, middleware.WithAudience(tokens.Audience))...)
		for range 3 {
			token, err := v.Verify(t.Context(), text)
			if err != nil {
				t.Fatal(err)
			}
			claims := token.Claims.(jwt.MapClaims)
			if got := fmt.Sprintf("%v%v", claims["id"], claims["nested"]); got != id+"["+id+"]" {
				t.Errorf("got %s", got)
			}
			if _, ok := claims["id"].(json.Number); !ok {
				t.Errorf("the number is a %T", claims["id"])
			}
		}
	}
	type claims struct {
		jwt.RegisteredClaims
		ID any `json:"id"`
	}
	v := middleware.NewVerifier(testKeyfunc, middleware.WithJSONNumber(), middleware.WithTokenCache(10),
		middleware.WithClaims(func() jwt.Claims { return new(claims) }))
	for range 3 {
		token, err := v.Verify(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		if got := token.Claims.(*claims).ID; got != json.Number(id) {
			t.Errorf("got the %T %v", got, got)
		}
	}
}
