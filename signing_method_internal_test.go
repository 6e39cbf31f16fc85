package gcpjwt

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// What is signed is what jwt would make of the same token, whether or not the header
// is one that is remembered.
func TestSigningInput(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]map[string]any{
		"remembered":     {"alg": "RS256", "kid": "signing-input-1", "typ": "JWT"},
		"a field more":   {"alg": "RS256", "kid": "signing-input-2", "typ": "JWT", "x5t": "1"},
		"another typ":    {"alg": "RS256", "kid": "signing-input-3", "typ": "at+jwt"},
		"no typ":         {"alg": "RS256", "kid": "signing-input-4"},
		"cty for typ":    {"alg": "RS256", "kid": "signing-input-5", "cty": "JWT"},
		"typ no string":  {"alg": "RS256", "kid": "signing-input-6", "typ": []string{"JWT"}},
		"escaped":        {"alg": "RS256", "kid": "<signing>&\"input\" \u2028é", "typ": "JWT"},
		"not UTF-8":      {"alg": "RS256", "kid": "signing-input-\xff", "typ": "JWT"},
		"very long":      {"alg": "RS256", "kid": string(make([]byte, 2000)), "typ": "JWT"},
		"known with alg": {"alg": "ES256", "kid": "signing-input-1", "typ": "JWT"},
	} {
		token := &jwt.Token{Header: maps.Clone(header), Claims: jwt.MapClaims{"sub": "<é>", "n": 1}}
		headerOf("RS256", "signing-input-1") // before the one with another alg
		for range 2 {
			issued := setKeyID(token, header["alg"].(string), header["kid"].(string))
			got, err := signingInput(token, issued)
			want, wantErr := (&jwt.Token{Header: header, Claims: token.Claims}).SigningString()
			if got != want || err != nil || wantErr != nil {
				t.Errorf("%s: got %q, %v, want %q, %v", name, got, err, want, wantErr)
			}
		}
	}
	_, err := signingInput(&jwt.Token{
		Header: map[string]any{"alg": "RS256", "kid": "signing-input-1", "typ": "JWT"},
		Claims: jwt.MapClaims{"f": func() {}},
	}, headerOf("RS256", "signing-input-1"))
	if err == nil {
		t.Error("claims that aren't JSON: no error")
	}
}

// The header of an answer is the one that it has, not the one that is expected.
func TestParseSignedJWTHeader(t *testing.T) {
	t.Parallel()
	segment := func(header string) string { return base64.RawURLEncoding.EncodeToString([]byte(header)) }
	rest := "." + segment("{}") + "." + segment(string(make([]byte, 256)))
	for kid, alg := range map[string]string{"parse-1": "RS256", "parse-2": "ES256"} {
		headerOf(alg, kid)
		for _, header := range []string{
			`{"alg":"` + alg + `","kid":"` + kid + `","typ":"JWT"}`,
			`{"alg":"RS256","kid":"` + kid + `","typ":"JWT"}`,
			`{"kid":"` + kid + `","alg":"PS256"}`,
		} {
			var want map[string]any
			if err := json.Unmarshal([]byte(header), &want); err != nil {
				t.Fatal(err)
			}
			signed, err := parseSignedJWT(segment(header)+rest, kid)
			if err != nil {
				t.Errorf("%s: %v", header, err)
			} else if !maps.Equal(signed.header, want) {
				t.Errorf("got the header %v, want %v", signed.header, want)
			}
		}
	}
}
