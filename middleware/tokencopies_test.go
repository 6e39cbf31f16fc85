package middleware_test

import (
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// A header may have more than strings in it.
func TestTokenCacheCopiesHeaders(t *testing.T) {
	v := middleware.NewVerifier(testKeyfunc, middleware.WithTokenCache(10))
	text := tokens.Sign(`{"alg":"EdDSA","x5c":["a",{"b":["c"]}],"kid":"k"}`, fmt.Sprintf(`{"exp":%d}`, far))
	for range 3 {
		token, err := v.Verify(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]any{"alg": "EdDSA", "kid": "k", "x5c": []any{"a", map[string]any{"b": []any{"c"}}}}
		if diff := cmp.Diff(want, token.Header); diff != "" {
			t.Errorf("the header differs (-want +got):\n%s", diff)
		}
		x5c := token.Header["x5c"].([]any)
		x5c[1].(map[string]any)["b"].([]any)[0] = "altered"
		x5c[0] = "altered"
		token.Header["kid"] = "altered"
	}
}

// Signatures of all lengths are copied.
func TestTokenCacheCopiesSignatures(t *testing.T) {
	for _, bits := range []int{2048, 3072} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"exp": far}).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		want, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return key.Public(), nil })
		if err != nil {
			t.Fatal(err)
		}
		v := middleware.NewVerifier(func(*jwt.Token) (any, error) { return key.Public(), nil }, middleware.WithTokenCache(10))
		for range 3 {
			got, err := v.Verify(t.Context(), text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the token differs from jwt.Parse's (-want +got):\n%s", diff)
			}
			clear(got.Signature)
		}
	}
}

// Handlers cannot alter what is remembered.
func TestTokenCacheCopies(t *testing.T) {
	type claims struct {
		jwt.RegisteredClaims
		Roles []string `json:"roles"`
	}
	text := signed(t, jwt.MapClaims{"sub": "a", "roles": []string{"reader"}, "deep": map[string]any{"list": []any{"x"}}})
	for _, test := range []struct {
		name   string
		option middleware.Option
		alter  func(jwt.Claims)
	}{
		{"MapClaims", middleware.WithMaxTokenSize(1000), func(c jwt.Claims) {
			m := c.(jwt.MapClaims)
			m["sub"] = "b"
			m["roles"].([]any)[0] = "admin"
			m["deep"].(map[string]any)["list"].([]any)[0] = "y"
		}},
		{"own type", middleware.WithClaims(func() jwt.Claims { return new(claims) }), func(c jwt.Claims) {
			m := c.(*claims)
			m.Subject = "b"
			m.Roles[0] = "admin"
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			keyfunc, verifications := countingKeyfunc(publicTestKey)
			auth := middleware.New(keyfunc, middleware.WithTokenCache(10), test.option)
			want, err := jwt.ParseWithClaims(text, jwt.MapClaims{}, testKeyfunc)
			if err != nil {
				t.Fatal(err)
			}
			if test.name == "own type" {
				want, err = jwt.ParseWithClaims(text, new(claims), testKeyfunc)
				if err != nil {
					t.Fatal(err)
				}
			}
			handler := auth(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				got, _ := middleware.TokenFromContext(r.Context())
				ignore := cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Method" }, cmp.Ignore())
				if diff := cmp.Diff(want, got, ignore); diff != "" {
					t.Errorf("the handler's token differs from jwt.Parse's (-want +got):\n%s", diff)
				}
				test.alter(got.Claims)
				got.Header["alg"] = "none"
				clear(got.Signature)
			}))
			for range 3 {
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.Header.Set("Authorization", "Bearer "+text)
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
			if got := verifications.Load(); got != 1 {
				t.Errorf("got %d verifications, want 1", got)
			}
		})
	}
}
