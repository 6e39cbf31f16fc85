package gcpjwt

import (
	"encoding/base64"
	"errors"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// What is signed is what jwt would make of the same token, whether or not the header
// is one that is remembered, and the caller's header stays as it is.
func TestSigningString(t *testing.T) {
	t.Parallel()
	var plain plainHeader
	for name, header := range map[string]map[string]any{
		"remembered":    {"alg": "alias", "typ": "JWT"},
		"no alg, more":  {"typ": "JWT", "x5t": "1"},
		"typ null":      {"alg": "alias", "typ": nil},
		"a field more":  {"alg": "alias", "typ": "JWT", "x5t": "1"},
		"another typ":   {"alg": "alias", "typ": "at+jwt"},
		"no typ":        {"alg": "alias"},
		"no alg":        {"typ": "JWT"},
		"empty":         {},
		"cty for typ":   {"alg": "alias", "cty": "JWT"},
		"typ no string": {"alg": "alias", "typ": []string{"JWT"}},
		"own kid":       {"alg": "alias", "typ": "JWT", "kid": "own"},
		"none":          nil,
	} {
		for _, kid := range []string{"a-kid", "", "<signing>&\"input\" \u2028é", "not UTF-8 \xff", string(make([]byte, 2000))} {
			for _, alg := range []string{"RS256", "ES256", "RS256"} {
				claims := jwt.MapClaims{"sub": "<é>", "n": 1}
				before := maps.Clone(header)
				d, err := newDraft(header, claims)
				if err != nil {
					t.Fatal(err)
				}
				got, err := d.signingString(alg, kid, &plain)
				want := maps.Clone(header)
				if want == nil {
					want = map[string]any{"typ": "JWT"}
				}
				want["alg"] = alg
				if want["kid"] == nil && kid != "" {
					want["kid"] = kid
				}
				wantText, wantErr := (&jwt.Token{Header: want, Claims: claims}).SigningString()
				if got != wantText || err != nil || wantErr != nil {
					t.Errorf("%s, kid %q, %s: got %q, %v, want %q, %v", name, kid, alg, got, err, wantText, wantErr)
				}
				if !reflect.DeepEqual(header, before) {
					t.Errorf("%s: the caller's header became %v", name, header)
				}
			}
		}
	}
}

// A plain header is encoded once.
func TestPlainHeaderIsKept(t *testing.T) {
	t.Parallel()
	var plain plainHeader
	want := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"k","typ":"JWT"}`))
	if got := plain.segment("ES256", "k"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	kept := plain.last.Load()
	if got := plain.segment("ES256", "k"); got != want || kept == nil || plain.last.Load() != kept {
		t.Errorf("the same header once more: got %s, or it was encoded again", got)
	}
}

// The fast encoder is base64's, for each length and each pair of characters.
func TestAppendBase64URL(t *testing.T) {
	t.Parallel()
	data := make([]byte, 3<<12)
	for i := range 1 << 12 { // all that 12 bits may be, twice
		copy(data[3*i:], []byte{byte(i >> 4), byte(i<<4 | i>>8), byte(i)})
	}
	for length := range 64 {
		for _, from := range []int{0, 1, 1000, len(data) - length} {
			piece := data[from : from+length]
			want := base64.RawURLEncoding.AppendEncode([]byte("a."), piece)
			if got := appendBase64URL([]byte("a."), piece); string(got) != string(want) {
				t.Errorf("%d bytes: got %s, want %s", length, got, want)
			}
		}
	}
	for shift := range 6 { // so that the pairs come to stand at each place
		want := base64.RawURLEncoding.EncodeToString(data[shift:])
		if got := appendBase64URL(nil, data[shift:]); string(got) != want {
			t.Errorf("got another text than base64's from byte %d on", shift)
		}
		if got := withSegment("a.b", data[shift:]); got != "a.b."+want {
			t.Errorf("withSegment: got another text than base64's from byte %d on", shift)
		}
	}
}

type panickingClaims struct{ jwt.MapClaims }

func (panickingClaims) MarshalJSON() ([]byte, error) { panic("secret") }

// Claims that make no JSON object are refused (C26), and so is a kid that is none.
func TestNewDraft(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]jwt.Claims{
		"nil":             nil,
		"a nil map":       jwt.MapClaims(nil),
		"a nil pointer":   (*jwt.RegisteredClaims)(nil),
		"a function":      jwt.MapClaims{"f": func() {}},
		"a panic":         panickingClaims{},
		"an array":        arrayClaims{},
		"an invalid date": jwt.MapClaims{"n": math.NaN()},
	} {
		d, err := newDraft(nil, claims)
		if d != nil || !errors.Is(err, jwt.ErrTokenInvalidClaims) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, %v, want %v", name, d, err, jwt.ErrTokenInvalidClaims)
		}
	}
	for _, kid := range []any{"", 42, nil, []string{"a"}} {
		if _, err := newDraft(map[string]any{"kid": kid}, jwt.MapClaims{}); err == nil {
			t.Errorf("kid %v: no error", kid)
		}
	}
}

type arrayClaims struct{ jwt.MapClaims }

func (arrayClaims) MarshalJSON() ([]byte, error) { return []byte("[1]"), nil }

// A payload is refused if it is JSON but no object.
func TestCheckPayload(t *testing.T) {
	t.Parallel()
	for payload, good := range map[string]bool{
		`{}`: true, `{"a":1}`: true, ` {"a":1}`: true, `{`: true, ``: true, `text`: true, `{"a":"é"}`: true,
		`null`: false, `1`: false, `"a"`: false, `[]`: false, `true`: false, ` null`: false,
	} {
		err := checkPayload("header." + base64.RawURLEncoding.EncodeToString([]byte(payload)))
		if (err == nil) != good {
			t.Errorf("payload %q: error %v, want good: %v", payload, err, good)
		}
	}
	for _, text := range []string{"", "header", "header.payload", ".", "a.%%%"} {
		if err := checkPayload(text); err != nil {
			t.Errorf("signing string %q: %v", text, err)
		}
	}
}

// The header of an answer is the one that it has, not the one that is expected.
func TestParseSignedJWTHeader(t *testing.T) {
	t.Parallel()
	segment := func(header string) string { return base64.RawURLEncoding.EncodeToString([]byte(header)) }
	rest := "." + segment("{}") + "." + segment(string(make([]byte, 256)))
	for header, good := range map[string]bool{
		`{"alg":"RS256","kid":"k","typ":"JWT"}`:         true,
		`{"kid":"k","alg":"RS256"}`:                     true,
		`{"alg":"RS256","kid":"k","typ":"JWT","x":[1]}`: true,
		`{"alg":"PS256","kid":"k","typ":"JWT"}`:         false,
		`{"alg":"RS256","kid":"other","typ":"JWT"}`:     false,
		`{"alg":"RS256","kid":1}`:                       false,
		`{"alg":"RS256"}`:                               false,
		`null`:                                          false,
		`not JSON`:                                      false,
	} {
		if _, err := parseSignedJWT(segment(header)+rest, "k", new(plainHeader)); (err == nil) != good {
			t.Errorf("%s: error %v, want good: %v", header, err, good)
		}
	}
}
