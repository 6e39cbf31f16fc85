package middleware_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// FuzzAuthorization sends any Authorization header through the middleware. Only a
// token in it that jwt's own method verifies, and whose claims are right, is let
// in; all others are the client's fault.
func FuzzAuthorization(f *testing.F) {
	if seeds, err := os.ReadDir("testdata/fuzz/FuzzAuthorization"); err != nil || len(seeds) < 5 {
		f.Fatalf("%d seed files, %v: want 5 at least", len(seeds), err)
	}
	good := signed(f, jwt.MapClaims{"aud": audience, "iss": "i", "exp": far})
	for _, token := range []string{
		good,
		tokens.Forge(good),
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

// FuzzVerify signs any header and any claims. They are good if, and but for claims of
// other types only if, a reading of the rules with nothing but encoding/json says so.
func FuzzVerify(f *testing.F) {
	for _, header := range []string{
		`{"alg":"EdDSA"}`, `{"alg":"EdDSA","crit":["b64"],"b64":false}`, `{"alg":"none","alg":"EdDSA"}`, `{"ALG":"EdDSA"}`,
		` { "alg" : "EdDS\u0041" , "x" : {"alg":[1,"]}"]} } `, `{"alg":5}`, `null`, `[{"alg":"EdDSA"}]`, `{"alg":"EdDSA"}x`, "{\"alg\":\"EdDSA\",\"\xff\":1,\"\xfe\":2}",
	} {
		f.Add(header, tokens.Payload(time.Now(), "exp", fmt.Sprint(far)))
	}
	for _, changes := range [][]string{
		{"exp", "1e400"}, {"exp", `"1796092101"`}, {"nbf", "1e19"}, {"exp", "253402300799.5"}, {"iat", "null"}, {"exp", ""}, {"EXP", "1"},
		{"aud", `["` + audience + `",5]`}, {"aud", `"x","aud":"` + audience + `"`}, {"\\u0061ud", "null"}, {"scope", `["a"]`}, {"x", `{"aud":[{}],"":"\"}"}`},
		{"iss", `{}`}, {"iss", `"i","\u0131ss":"x"`}, {"sub", "5"}, {"ſub", "5"},
	} {
		f.Add(`{"alg":"EdDSA"}`, tokens.Payload(time.Now(), append([]string{"exp", fmt.Sprint(far)}, changes...)...))
	}
	f.Add(`{"alg":"EdDSA"}`, `{"exp":253402300799}`+strings.Repeat(" ", 100)+"x")
	f.Add(`{"alg":"EdDSA"}`, `[`)

	verifiers := make(map[string]*middleware.Verifier)
	for _, claims := range append(claimTypes, struct {
		name   string
		option middleware.Option
	}{"json.Number", middleware.WithJSONNumber()}) {
		for _, name := range []string{claims.name, claims.name + ", remembering"} {
			options := []middleware.Option{claims.option, middleware.WithAudience(audience), middleware.WithIssuer(tokens.Issuer), middleware.WithMaxTokenSize(1 << 20)}
			if name != claims.name {
				options = append(options, middleware.WithTokenCache(10))
			}
			verifiers[name] = middleware.NewVerifier(testKeyfunc, options...)
		}
	}
	f.Fuzz(func(t *testing.T, header, payload string) {
		text := tokens.Sign(header, payload)
		want := isGood([]byte(header), []byte(payload))
		for name, v := range verifiers {
			for range 2 {
				token, err := v.Verify(t.Context(), text)
				if status := middleware.StatusOf(err); status == http.StatusInternalServerError || (token != nil) != (err == nil) {
					t.Fatalf("%s: got %v, %v for %s %s", name, token, err, header, payload)
				}
				isMap := !strings.HasPrefix(name, "RegisteredClaims")
				if err == nil && !want || err != nil && want && isMap {
					t.Fatalf("%s: got %v for %s %s", name, err, header, payload)
				}
			}
		}
	})
}

// isGood reports whether a token by testKey with a header and a payload is good.
func isGood(header, payload []byte) bool {
	h, ok := object(header)
	if !ok || h["crit"] != nil {
		return false
	}
	var alg any
	if json.Unmarshal(h["alg"], &alg) != nil || alg != "EdDSA" {
		return false
	}
	c, ok := object(payload)
	if !ok || c["exp"] == nil {
		return false
	}
	now := float64(time.Now().Unix())
	for name, limits := range map[string][2]float64{"exp": {now - 30, 253402300799}, "nbf": {0, now + 30}, "iat": {0, now + 30}} {
		if c[name] == nil {
			continue
		}
		var value any
		if json.Unmarshal(c[name], &value) != nil {
			return false
		}
		if seconds, ok := value.(float64); !ok || seconds < limits[0] || seconds > limits[1] {
			return false
		}
	}
	var iss, aud any
	if json.Unmarshal(c["iss"], &iss) != nil || iss != tokens.Issuer || json.Unmarshal(c["aud"], &aud) != nil {
		return false
	}
	if aud == audience {
		return true
	}
	list, ok := aud.([]any)
	for _, element := range list {
		if _, isString := element.(string); !isString {
			return false
		}
	}
	return ok && slices.Contains(list, any(audience))
}

// object reads an object in which no name stands twice.
func object(data []byte) (map[string]json.RawMessage, bool) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') || !json.Valid(data) {
		return nil, false
	}
	members := make(map[string]json.RawMessage)
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, false
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil || members[name.(string)] != nil {
			return nil, false
		}
		members[name.(string)] = value
	}
	return members, true
}
