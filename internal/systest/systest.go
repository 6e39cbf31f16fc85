// Package systest has what the tests of the whole library share. Each of its
// folders tests one subject, through the exported names only.
package systest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// The times that the documentation promises.
const (
	FetchLimit = 10 * time.Second // of reading keys, certificates and lists
	CallLimit  = time.Minute      // of every other call whose caller sets no limit
	Backoff    = time.Minute      // the longest between attempts in an outage
	Refresh    = 5 * time.Minute  // the default KeyRefresh
	Stale      = time.Hour        // for which keys serve beyond their lifetime in an outage
	Cooldown   = time.Minute      // between readings that unknown kids set off
	NotReady   = 3 * time.Second  // between questions for what is not there, ready or allowed
)

// MaxText is how long an error may be.
const MaxText = 2048

// Claim is the value of a claim that no error and no log may hold.
const Claim = "claim-that-stays-private"

// Token returns an unsigned token with Claim in it.
func Token(method jwt.SigningMethod) *jwt.Token {
	return jwt.NewWithClaims(method, jwt.MapClaims{"sub": Claim, "exp": time.Now().Add(10 * time.Hour).Unix()})
}

// Sign signs claims, by default a subject only, with SignedString.
func Sign(t testing.TB, ctx context.Context, method jwt.SigningMethod, claims jwt.MapClaims) string {
	t.Helper()
	if claims == nil {
		claims = jwt.MapClaims{"sub": "somebody"}
	}
	return SignToken(t, ctx, jwt.NewWithClaims(method, claims))
}

// SignToken signs a token with SignedString.
func SignToken(t testing.TB, ctx context.Context, token *jwt.Token) string {
	t.Helper()
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		t.Fatalf("SignedString: %v", err)
	}
	return text
}

// Verify parses a token that must be good.
func Verify(text string, keyfunc jwt.Keyfunc) error {
	_, err := jwt.Parse(text, keyfunc)
	return err
}

// Header returns a token's header.
func Header(t testing.TB, text string) map[string]any {
	t.Helper()
	segment, _, _ := strings.Cut(text, ".")
	raw, err := base64.RawURLEncoding.DecodeString(segment)
	if err != nil {
		t.Fatalf("the header of %q: %v", text, err)
	}
	var header map[string]any
	if err := json.Unmarshal(raw, &header); err != nil {
		t.Fatalf("the header %s: %v", raw, err)
	}
	return header
}

// Split returns a token's signing string and its signature.
func Split(t testing.TB, text string) (signingString string, sig []byte) {
	t.Helper()
	i := strings.LastIndexByte(text, '.')
	sig, err := base64.RawURLEncoding.DecodeString(text[i+1:])
	if err != nil {
		t.Fatalf("the signature of %q: %v", text, err)
	}
	return text[:i], sig
}

// Relabel changes a field of a token's header, and not its signature. A nil value
// takes the field out.
func Relabel(t testing.TB, text, field string, value any) string {
	t.Helper()
	header := Header(t, text)
	header[field] = value
	if value == nil {
		delete(header, field)
	}
	raw, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(text, ".")
	return base64.RawURLEncoding.EncodeToString(raw) + "." + rest
}

// Forge changes a bit of a token's signature.
func Forge(text string) string {
	last := strings.LastIndexByte(text, '.') + 1
	other := byte('A')
	if text[last] == other {
		other = 'B'
	}
	return text[:last] + string(other) + text[last+1:]
}

// CheckText checks that a text is fit for a line of a log.
func CheckText(t *testing.T, text string) {
	t.Helper()
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }) {
		t.Errorf("the text has characters that forge lines or control terminals: %.300q", text)
	}
	if len(text) > MaxText {
		t.Errorf("the text is %d bytes long, want at most %d: %.100q", len(text), MaxText, text)
	}
}

var caches atomic.Int64

// OwnCache returns an expiration for AppEngineVerifyKeyfunc that nobody else in the
// process has. A process is one app, so tests that play several of them keep their
// certificates apart by it. It is a few nanoseconds, as good as none.
func OwnCache() time.Duration { return time.Duration(caches.Add(1)) }

// Transport is a function that answers requests.
type Transport func(*http.Request) (*http.Response, error)

// RoundTrip answers a request.
func (f Transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Status answers a request with an error as Google's APIs write it.
func Status(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(code)
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"code": code, "message": "As the test wants it.", "status": "X"}})
	_, _ = w.Write(body)
}

// Body returns the body of an answer.
func Body(handler http.Handler, r *http.Request) []byte {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r)
	return recorder.Body.Bytes()
}
