package errs_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// A message has the prefix once, at its beginning, however often it was wrapped.
func TestErrorfPrefix(t *testing.T) {
	t.Parallel()
	inner := errs.Errorf("%w: read the key: %w", errs.ErrIntegrity, io.EOF)
	outer := errs.Errorf("%w: %w", errs.ErrKeysUnavailable, inner)
	const want = "gcpjwt: keys unavailable: response failed an integrity check: read the key: EOF"
	if got := outer.Error(); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	for _, target := range []error{errs.ErrKeysUnavailable, errs.ErrIntegrity, io.EOF, inner} {
		if !errors.Is(outer, target) {
			t.Errorf("errors.Is(%v, %v) = false, want true", outer, target)
		}
	}
	if errors.Is(outer, errs.ErrUnknownKeyID) {
		t.Errorf("errors.Is(%v, ErrUnknownKeyID) = true, want false", outer)
	}
}

// What was sent doesn't come back in an error, however the error has escaped it.
func TestMask(t *testing.T) {
	t.Parallel()
	payload := `{"sub":"somebody","pin":"83749183","note":"a<b> & more","name":"Zoë Ångström"}`
	quotedOnce, _ := json.Marshal(payload)
	quotedTwice, _ := json.Marshal(string(quotedOnce))
	for name, text := range map[string]string{
		"as it is":      payload,
		"JSON":          string(quotedOnce),
		"JSON twice":    string(quotedTwice),
		"Go":            strconv.Quote(payload),
		"Go, ASCII":     strconv.QuoteToASCII(payload),
		"query":         url.QueryEscape(payload),
		"query twice":   url.QueryEscape(url.QueryEscape(payload)),
		"path":          url.PathEscape(payload),
		"base64":        base64.StdEncoding.EncodeToString([]byte(payload)),
		"base64url":     base64.RawURLEncoding.EncodeToString([]byte(payload)),
		"with blanks":   strings.ReplaceAll(payload, ",", ",\n    "),
		"a part of it":  payload[8:60],
		"with an octet": payload + "\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := errs.Mask("Invalid value at 'payload': "+text+" is not allowed", payload)
			for _, secret := range []string{"83749183", "somebody", "more", "Zo", "ngstr", text[len(text)/3 : len(text)/3+10]} {
				if strings.Contains(got, secret) {
					t.Errorf("Mask left %q in %q", secret, got)
				}
			}
			for _, want := range []string{"Invalid value at", "[...]", "is not allowed"} {
				if !strings.Contains(got, want) {
					t.Errorf("Mask left %q, want %q in it", got, want)
				}
			}
		})
	}
	signingString := "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	if got := errs.Mask("Claims "+payload+" are odd", signingString); strings.Contains(got, "83749183") {
		t.Errorf("Mask left claims in %q, which were sent as %s", got, signingString)
	}
	const harmless = "Permission 'cloudkms.cryptoKeyVersions.useToSign' denied"
	if got := errs.Mask(harmless, payload); got != harmless {
		t.Errorf("Mask(%q) = %q, want it as it is", harmless, got)
	}
	if got := errs.Mask("a token of 3 parts", ""); got != "a token of 3 parts" {
		t.Errorf("Mask without a secret = %q", got)
	}
}

// Without escapes, a secret of 8 letters and digits or more is never left as it is.
func FuzzMask(f *testing.F) {
	f.Add(`a \"b\" %2`, `{"a":"b"}`)
	f.Add("\\", "\\")
	f.Add("%25252", "%")
	f.Add("0", "0000000"+strings.Repeat(" ", 200))
	f.Add("0", "00000000"+strings.Repeat(" ", 200))
	isLetter := func(c rune) bool {
		return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
	}
	f.Fuzz(func(t *testing.T, text, secret string) {
		got := errs.Mask(text+secret, secret)
		letters := 0
		for _, c := range secret {
			if isLetter(c) {
				letters++
			}
		}
		if letters >= 8 && !strings.ContainsAny(text+secret, `%\[`) && strings.Contains(got, secret) {
			t.Errorf("Mask left %q in %q", secret, got)
		}
	})
}
