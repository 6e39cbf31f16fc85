package middleware_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// FuzzAuthorization sends any Authorization header through the middleware. Only a
// token in it that jwt's own method verifies, and whose claims are right, is let
// in; all others are the client's fault.
func FuzzAuthorization(f *testing.F) {
	if seeds, err := os.ReadDir("testdata/fuzz/FuzzAuthorization"); err != nil || len(seeds) < 5 {
		f.Fatalf("%d seed files, %v: want 5 at least", len(seeds), err)
	}
	good := signed(f, jwt.MapClaims{"aud": audience, "iss": "i", "exp": int64(1 << 40)})
	for _, token := range []string{
		good,
		forge(good),
		good + " x",
		good[:len(good)-4] + "\n" + good[len(good)-4:],
		signed(f, jwt.MapClaims{"aud": []any{audience, 5}, "iss": "i"}),
		signed(f, jwt.MapClaims{"aud": audience, "iss": "i", "exp": raw("1e400")}),
		strings.Repeat(".", 20_000),
		"..",
		"",
	} {
		for _, scheme := range []string{"Bearer ", "bEARER\t", "Basic ", "Bearer,", ""} {
			f.Add(scheme, token)
		}
	}

	for _, claims := range claimTypes {
		// Fails at once if the good token is not let in, since then nothing is.
		auth := middleware.New(testKeyfunc, middleware.WithAudience(audience), middleware.WithIssuer("i"), claims.option)
		check(f, serve(f, auth, "Bearer "+good), letIn)
	}
	f.Fuzz(func(t *testing.T, scheme, token string) {
		for _, claims := range claimTypes {
			auth := middleware.New(testKeyfunc, middleware.WithAudience(audience), middleware.WithIssuer("i"), claims.option)
			var raw string
			handler := auth(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				token, _ := middleware.TokenFromContext(r.Context())
				raw = token.Raw
			}))
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", scheme+token)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			switch w.Code {
			case http.StatusOK:
				if !strings.Contains(scheme+token, raw) {
					t.Errorf("%s: the token %q isn't in %q", claims.name, raw, scheme+token)
				}
				checkGood(t, raw)
			case http.StatusUnauthorized, http.StatusForbidden:
			default:
				t.Errorf("%s: got status %d for %q", claims.name, w.Code, scheme+token)
			}
		}
	})
}

// checkGood checks a token for audience by testKey without jwt's parser.
func checkGood(t *testing.T, token string) {
	t.Helper()
	dot := strings.LastIndexByte(token, '.')
	sig, err := base64.RawURLEncoding.Strict().DecodeString(token[dot+1:])
	if err != nil || strings.ContainsAny(token, "\r\n") {
		t.Fatalf("the encoding of %q is not strict: %v", token, err)
	}
	if err := jwt.SigningMethodEdDSA.Verify(token[:dot], sig, testKey.Public().(ed25519.PublicKey)); err != nil {
		t.Fatalf("%q doesn't verify: %v", token, err)
	}
	_, encoded, _ := strings.Cut(token[:dot], ".")
	payload, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Issuer   string          `json:"iss"`
		Audience json.RawMessage `json:"aud"`
		Expiry   float64         `json:"exp"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	if claims.Issuer != "i" || !strings.Contains(string(claims.Audience), `"`+audience+`"`) ||
		claims.Expiry < float64(time.Now().Add(-time.Minute).Unix()) {
		t.Errorf("let in with the claims %s", payload)
	}
}
