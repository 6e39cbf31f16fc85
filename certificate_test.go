package gcpjwt_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

// The servers don't hand out their private keys. This one is the tests' own, for
// tokens that no server would make.
var certKey = sync.OnceValue(func() *rsa.PrivateKey { return certGenerate(2048) })

func certGenerate(bits int) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		panic(err)
	}
	return key
}

// certificateOf returns a PEM certificate of a key, which issuer signs.
func certificateOf(t testing.TB, key crypto.PublicKey, issuer crypto.Signer) string {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: account},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key, issuer)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func certPublicKey(t testing.TB, key crypto.PublicKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func certJSON(t testing.TB, keys map[string]any) string {
	t.Helper()
	body, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// certToken returns a token that certKey signed, with any kid but nil in its header.
func certToken(t testing.TB, kid any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"sub": "somebody"})
	if kid != nil {
		token.Header["kid"] = kid
	}
	text, err := token.SignedString(certKey())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A certOrigin answers requests for certificates without any network.
type certOrigin struct {
	mu       sync.Mutex
	status   int // 0: 200
	header   http.Header
	body     string
	latency  time.Duration
	requests []*http.Request
}

func (o *certOrigin) RoundTrip(r *http.Request) (*http.Response, error) {
	o.mu.Lock()
	o.requests = append(o.requests, r)
	status, header, body, latency := o.status, o.header.Clone(), o.body, o.latency
	o.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if status == 0 {
		status = http.StatusOK
	}
	if header == nil {
		header = make(http.Header)
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func (o *certOrigin) set(f func(o *certOrigin)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

func (o *certOrigin) fetches() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.requests)
}

// config returns a configuration whose certificates are the origin's. The
// caller may change it.
func (o *certOrigin) config() *gcpjwt.IAMConfig {
	return &gcpjwt.IAMConfig{ServiceAccount: account, Client: &http.Client{Transport: o}}
}

// B22: what is no set of keys is an error that says what came from where, and
// never displaces good keys.
func TestCertificateResponses(t *testing.T) {
	t.Parallel()
	good := certPublicKey(t, certKey().Public())
	small := certGenerate(1024)
	nearly := certGenerate(2047)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edPublic, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// A certificate is but a container of the key: that its dates have passed
	// and that nobody knows its issuer is of no interest.
	certificate := certificateOf(t, certKey().Public(), certKey())
	foreign := certificateOf(t, certKey().Public(), small)
	broken := strings.Replace(good, "MII", "MXX", 1)
	const header = "-----BEGIN PUBLIC KEY-----\n"
	bad := map[string]any{
		"broken":               broken,
		"not base64":           header + "!\n-----END PUBLIC KEY-----\n",
		"not DER":              header + "AAAA\n-----END PUBLIC KEY-----\n",
		"no PEM":               "x",
		"empty":                "",
		"RSA key of 1024 bits": certPublicKey(t, small.Public()),
		"RSA key of 2047 bits": certPublicKey(t, nearly.Public()),
		"certificate of one":   certificateOf(t, small.Public(), small),
		"EC key":               certPublicKey(t, curve.Public()),
		"EC certificate":       certificateOf(t, curve.Public(), curve),
		"Ed25519 key":          certPublicKey(t, edPublic),
		"private key":          string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(certKey())})),
		"other type":           strings.ReplaceAll(good, "PUBLIC KEY", "PUBLIC KE"),
		"number":               42,
		"null":                 nil,
		"object":               map[string]string{"pem": good},
		"list":                 []string{good},
	}

	type response struct {
		name   string
		status int
		body   string
		good   bool
	}
	tests := []response{
		{"public key", 200, certJSON(t, map[string]any{"good": good}), true},
		{"certificate", 200, certJSON(t, map[string]any{"good": certificate}), true},
		{"certificate by another issuer", 200, certJSON(t, map[string]any{"good": foreign}), true},
		{"text before the PEM", 200, certJSON(t, map[string]any{"good": "Bag Attributes\n" + certificate}), true},
		{"500", 500, `{"error":{"code":500}}`, false},
		{"500 with keys", 500, certJSON(t, map[string]any{"good": good}), false},
		{"404", 404, `{"error":{"code":404,"message":"Not found"}}`, false},
		{"404 with keys", 404, certJSON(t, map[string]any{"good": good}), false},
		{"203", 203, certJSON(t, map[string]any{"good": good}), false},
		{"204", 204, "", false},
		{"206", 206, certJSON(t, map[string]any{"good": good}), false},
		{"304", 304, "", false},
		{"{}", 200, `{}`, false},
		{"empty", 200, ``, false},
		{"null", 200, `null`, false},
		{"list", 200, `[` + certJSON(t, map[string]any{"good": good}) + `]`, false},
		{"string", 200, `"x"`, false},
		{"HTML", 200, `<html><body>Sign in</body></html>`, false},
		{"cut off", 200, strings.TrimSuffix(certJSON(t, map[string]any{"good": good}), "}"), false},
		{"twice", 200, strings.Repeat(certJSON(t, map[string]any{"good": good}), 2), false},
		{"no name", 200, certJSON(t, map[string]any{"": good}), false},
		{"JWKS", 200, `{"keys":[{"kty":"RSA","kid":"good","n":"AQAB","e":"AQAB"}]}`, false},
	}
	for name, entry := range bad {
		tests = append(tests,
			response{name + " alone", 200, certJSON(t, map[string]any{"good": entry}), false},
			response{name + " beside a good one", 200, certJSON(t, map[string]any{"good": good, "bad": entry}), true})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := &certOrigin{status: test.status, body: test.body}
				text := certToken(t, "good")
				config := o.config()
				_, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config))
				if test.good {
					if err != nil {
						t.Fatalf("got %v, want a valid token", err)
					}
					key, err := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)(jwt.New(jwt.SigningMethodRS256))
					if public, ok := key.(*rsa.PublicKey); !ok || !public.Equal(certKey().Public()) {
						t.Errorf("without kid: got %T, %v, want the good key alone", key, err)
					}
					return
				}
				if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
					t.Errorf("got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
				} else if !strings.Contains(err.Error(), account) {
					t.Errorf("%v doesn't name the account", err)
				} else if test.status != 200 && !strings.Contains(err.Error(), fmt.Sprint(test.status)) {
					t.Errorf("%v doesn't name the status %d", err, test.status)
				}

				// Good keys stay through it.
				config.EnableCache = true
				keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
				o.set(func(o *certOrigin) {
					o.status, o.body = 200, certJSON(t, map[string]any{"good": good})
					o.header = http.Header{"Cache-Control": {"max-age=3600"}}
				})
				if _, err := jwt.Parse(text, keyfunc); err != nil {
					t.Fatal(err)
				}
				o.set(func(o *certOrigin) { o.status, o.body = test.status, test.body })
				for _, wait := range []time.Duration{55 * time.Minute, 0, 10 * time.Minute, time.Minute} {
					time.Sleep(wait)
					synctest.Wait()
					if _, err := jwt.Parse(text, keyfunc); err != nil {
						t.Errorf("with good keys in the cache: %v", err)
					}
				}
				synctest.Wait()
				if got := o.fetches(); got < 4 {
					t.Errorf("%d requests, want 2, one in the background and at least one after the expiry", got)
				}
			})
		})
	}
}

// certFreshFor reports whether certificates with a header still serve after d
// without a request that their user waits for.
func certFreshFor(t *testing.T, status http.Header, expiration, d time.Duration) (fresh bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := &certOrigin{header: status, body: certJSON(t, map[string]any{"k": certPublicKey(t, certKey().Public())})}
		config := o.config()
		config.EnableCache, config.CacheExpiration = true, expiration
		keyfunc, text := gcpjwt.IAMVerifyKeyfunc(t.Context(), config), certToken(t, "k")
		verify := func() {
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Error(err)
			}
		}
		verify()
		o.set(func(o *certOrigin) { o.latency = time.Second })
		time.Sleep(d)
		began := time.Now()
		verify()
		fresh = time.Since(began) == 0
		time.Sleep(time.Second) // the background ends
	})
	return fresh
}

// B24: how long certificates are kept (RFC 9111). What is odd states no
// lifetime, so that CacheExpiration holds.
func TestCertificateLifetime(t *testing.T) {
	t.Parallel()
	const expiration = 30 * time.Minute
	// The clock in a bubble starts here.
	at := func(d time.Duration) string {
		return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(d).Format(http.TimeFormat)
	}
	cacheControl := func(lines ...string) http.Header { return http.Header{"Cache-Control": lines} }
	tests := []struct {
		name   string
		header http.Header
		want   time.Duration
	}{
		{"nothing", nil, expiration},
		{"empty", cacheControl(""), expiration},
		{"private,", cacheControl("private,"), expiration},
		{"public", cacheControl("public"), expiration},
		{"only commas", cacheControl(" , ,, "), expiration},
		{"max-age=foo", cacheControl("max-age=foo"), expiration},
		{"max-age", cacheControl("max-age"), expiration},
		{"max-age=", cacheControl("max-age="), expiration},
		{"max-age=-5", cacheControl("max-age=-5"), expiration},
		{"max-age=1.5", cacheControl("max-age=1.5"), expiration},
		{"max-age2=100", cacheControl("max-age2=100"), expiration},
		{"s-maxage=100", cacheControl("s-maxage=100"), expiration}, // for shared caches
		{"quote left open", cacheControl(`max-age="100`), expiration},
		{"Google's", cacheControl("public, max-age=21600, must-revalidate, no-transform"), 6 * time.Hour},
		{"max-age=100", cacheControl("max-age=100"), 100 * time.Second},
		{"quoted", cacheControl(`max-age="100"`), 100 * time.Second},
		{"other case", cacheControl("Public, MAX-AGE=100"), 100 * time.Second},
		{"without blanks", cacheControl("public,max-age=100,must-revalidate"), 100 * time.Second},
		{"two lines", cacheControl("public", "max-age=100"), 100 * time.Second},
		{"unknown directive", cacheControl(`x="a, max-age=5", max-age=100`), 100 * time.Second},
		{"24 hours", cacheControl("max-age=86400"), 24 * time.Hour},
		{"over 24 hours", cacheControl("max-age=86401"), 24 * time.Hour},
		{"ever so long", cacheControl("max-age=99999999999999999999"), 24 * time.Hour},
		{"max-age=0", cacheControl("max-age=0"), 0},
		{"no-store", cacheControl("no-store"), 0},
		{"no-store beside max-age", cacheControl("max-age=100, no-store"), 0},
		{"no-store in another line", cacheControl("max-age=100", "no-store"), 0},
		{"no-cache", cacheControl("public, max-age=100, No-Cache"), 0},
		{"no-cache for a field", cacheControl(`no-cache="Set-Cookie", max-age=100`), 0},
		{"no-store beside what is odd", cacheControl("max-age=foo, NO-STORE"), 0},
		{"no-cache beside what is odd", cacheControl("no-cache, max-age=-5"), 0},
		{"no-store with a value", cacheControl("no-store=1"), 0},
		{"no-store after a field name", cacheControl("private=x,no-store"), 0},

		{"Age", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"40"}}, time.Minute},
		{"Age over max-age", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"101"}}, 0},
		{"Age beyond measure", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"99999999999"}}, 0},
		{"Age -5", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"-5"}}, 100 * time.Second},
		{"Age foo", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"foo"}}, 100 * time.Second},
		{"Age alone", http.Header{"Age": {"40"}}, expiration},

		{"Expires", http.Header{"Expires": {at(time.Minute)}}, time.Minute},
		{"Expires after Date", http.Header{"Date": {at(time.Hour)}, "Expires": {at(time.Hour + time.Minute)}}, time.Minute},
		{"Expires, Date and Age", http.Header{"Date": {at(-time.Hour)}, "Expires": {at(0)}, "Age": {"60"}}, 59 * time.Minute},
		{"Expires before Date", http.Header{"Date": {at(0)}, "Expires": {at(-time.Minute)}}, 0},
		{"Expires in the past", http.Header{"Expires": {at(-time.Minute)}}, 0},
		{"Expires in a year", http.Header{"Expires": {at(365 * 24 * time.Hour)}}, 24 * time.Hour},
		{"max-age over Expires", http.Header{"Cache-Control": {"max-age=100"}, "Expires": {at(time.Minute)}}, 100 * time.Second},
		{"Expires foo", http.Header{"Expires": {"foo"}}, expiration},
		{"Date foo", http.Header{"Date": {"foo"}, "Expires": {at(time.Minute)}}, time.Minute},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.want > 0 && !certFreshFor(t, test.header, expiration, test.want-1) {
				t.Errorf("not kept until %v", test.want)
			}
			if certFreshFor(t, test.header, expiration, test.want) {
				t.Errorf("kept beyond %v", test.want)
			}
		})
	}
}

// What states no lifetime isn't kept unless the configuration says how long. A
// lifetime that is stated holds all the same.
func TestCertificateExpirationZero(t *testing.T) {
	t.Parallel()
	if certFreshFor(t, nil, 0, 0) {
		t.Error("kept without any lifetime")
	}
	if !certFreshFor(t, http.Header{"Cache-Control": {"max-age=100"}}, 0, 99*time.Second) {
		t.Error("not kept for the lifetime stated")
	}
	if certFreshFor(t, nil, 48*time.Hour, 24*time.Hour) {
		t.Error("kept for longer than a day")
	}
}

func TestCertificateURLs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		url  string
		want string // the request's, without the account; "": refused
	}{
		{"", "https://www.googleapis.com/robot/v1/metadata/x509/"},
		{"https://certs.example/", "https://certs.example/"},
		{"https://certs.example:8443/a/b/", "https://certs.example:8443/a/b/"},
		{"HTTPS://certs.example/a%2Fb/", "https://certs.example/a%2Fb/"},
		{"http://127.0.0.1/", "http://127.0.0.1/"},
		{"http://127.8.9.1:80/x/", "http://127.8.9.1:80/x/"},
		{"http://[::1]:80/", "http://[::1]:80/"},
		{"http://localhost:80/", "http://localhost:80/"},

		{"http://certs.example/", ""},
		{"http://127.0.0.1.example/", ""},
		{"http://localhost.example/", ""},
		{"http://10.0.0.1/", ""},
		{"http://0.0.0.0/", ""},
		{"http://[::]/", ""},
		{"ftp://certs.example/", ""},
		{"file:///etc/certs/", ""},
		{"https:///x/", ""},
		{"https:certs.example/", ""},
		{"//certs.example/", ""},
		{"certs.example/", ""},
		{"/x/", ""},
		{"https://certs.example/?account=", ""},
		{"https://certs.example/?", ""},
		{"https://certs.example/#x", ""},
		{"https://certs.example/#", ""},
		{"https://user@certs.example/", ""},
		{"https://user:secret@certs.example/", ""},
		{"https://@certs.example/", ""},
		{"https://certs.example/\n", ""},
		{"https://certs.example/%zz/", ""},
		{"https://certs.example:x/", ""},
		// The account would become part of the host.
		{"https://certs.example", ""},
		{"https://certs.example:80", ""},
	}
	for _, test := range tests {
		t.Run(test.url, func(t *testing.T) {
			t.Parallel()
			for _, name := range []string{account, "100000000000000000001", "a+b.c_d-e@example.com"} {
				o := &certOrigin{body: certJSON(t, map[string]any{"k": certPublicKey(t, certKey().Public())})}
				config := o.config()
				config.CertificateURL, config.ServiceAccount = test.url, name
				_, err := jwt.Parse(certToken(t, "k"), gcpjwt.IAMVerifyKeyfunc(t.Context(), config))
				if test.want == "" {
					if !errors.Is(err, gcpjwt.ErrInvalidConfig) || o.fetches() != 0 {
						t.Errorf("got %v after %d requests, want %v and none", err, o.fetches(), gcpjwt.ErrInvalidConfig)
					}
					continue
				}
				if err != nil || o.fetches() != 1 {
					t.Fatalf("got %v after %d requests, want nil after one", err, o.fetches())
				}
				request := o.requests[0]
				if got := request.URL.String(); got != test.want+name || request.Method != http.MethodGet {
					t.Errorf("%s %s, want GET %s", request.Method, got, test.want+name)
				}
			}
		})
	}
}

func TestNegativeCacheExpiration(t *testing.T) {
	t.Parallel()
	o := &certOrigin{}
	config := o.config()
	config.CacheExpiration = -1
	if _, err := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)(jwt.New(jwt.SigningMethodRS256)); !errors.Is(err, gcpjwt.ErrInvalidConfig) {
		t.Errorf("got %v, want %v", err, gcpjwt.ErrInvalidConfig)
	}
}

// B28: a body without end is cut off, and closed.
func TestCertificateBodyLimit(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	good := certJSON(t, map[string]any{"k": certPublicKey(t, certKey().Public())})
	tests := []struct {
		name string
		body io.Reader
		good bool
	}{
		{"just so", strings.NewReader(good + strings.Repeat(" ", limit-len(good))), true},
		{"a byte too long", strings.NewReader(good + strings.Repeat(" ", limit-len(good)+1)), false},
		{"endless", certEndless{}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			body := &certBody{Reader: test.body}
			client := &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: make(http.Header), Body: body, Request: r}, nil
			})}
			config := &gcpjwt.IAMConfig{ServiceAccount: account, Client: client}
			_, err := jwt.Parse(certToken(t, "k"), gcpjwt.IAMVerifyKeyfunc(t.Context(), config))
			if test.good && err != nil {
				t.Errorf("got %v, want a valid token", err)
			}
			if !test.good && (!errors.Is(err, gcpjwt.ErrKeysUnavailable) || !strings.Contains(err.Error(), "longer than 1048576 bytes")) {
				t.Errorf("got %v, want %v that names the limit", err, gcpjwt.ErrKeysUnavailable)
			}
			if body.read > 2*limit {
				t.Errorf("%d bytes read, want little more than %d", body.read, limit)
			}
			if !body.closed {
				t.Error("the body isn't closed")
			}
		})
	}
}

// The body of an error is closed too, and never read at length.
func TestCertificateErrorBody(t *testing.T) {
	t.Parallel()
	body := &certBody{Reader: certEndless{}}
	client := &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 503, Header: make(http.Header), Body: body, Request: r}, nil
	})}
	config := &gcpjwt.IAMConfig{ServiceAccount: account, Client: client}
	if _, err := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)(jwt.New(jwt.SigningMethodRS256)); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
	}
	if !body.closed || body.read > 1<<20 {
		t.Errorf("%d bytes read, closed: %v; want few and closed", body.read, body.closed)
	}
}

type certEndless struct{}

func (certEndless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

type certBody struct {
	io.Reader
	read   int
	closed bool
}

func (b *certBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read += n
	return n, err
}

func (b *certBody) Close() error {
	b.closed = true
	return nil
}

// B28: a fetch takes 10 seconds at most, though the caller has no deadline.
func TestCertificateTimeout(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		slow func(w http.ResponseWriter, r *http.Request)
	}{
		{"silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"headers only", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
		{"a byte a second", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		}},
	}
	for _, test := range tests {
		for _, cached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cached %v", test.name, cached), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					server, config := start.IAM(t, testutil.InMemory())
					server.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { test.slow(w, r) })
					config.EnableCache = cached
					began := time.Now()
					_, err := gcpjwt.IAMVerifyKeyfunc(context.Background(), config)(jwt.New(jwt.SigningMethodRS256))
					if !errors.Is(err, gcpjwt.ErrKeysUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("got %v, want %v and %v", err, gcpjwt.ErrKeysUnavailable, context.DeadlineExceeded)
					}
					if took := time.Since(began); took != 10*time.Second {
						t.Errorf("came back after %v, want 10s", took)
					}
					time.Sleep(time.Minute) // the server's handler ends
				})
			})
		}
	}
}

// B28: connections are used again.
func TestCertificateConnections(t *testing.T) {
	t.Parallel()
	// In a bubble, as net/http gives a connection up if it takes 50 ms to see that
	// the request was sent.
	synctest.Test(t, func(t *testing.T) {
		server, config := start.IAM(t, testutil.InMemory())
		text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		for range 100 {
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Fatal(err)
			}
		}
		if got := server.Calls("certificates"); got != 100 {
			t.Errorf("%d requests, want 100 as nothing is cached", got)
		}
		if got := server.Connections(); got != 1 {
			t.Errorf("%d connections, want 1", got)
		}
	})
}

// B28: a redirect must not lead out of https, whatever it passes on the way.
func TestCertificateRedirects(t *testing.T) {
	t.Parallel()
	good := certJSON(t, map[string]any{"k": certPublicKey(t, certKey().Public())})
	var mu sync.Mutex
	plainRequests := 0
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		plainRequests++
		mu.Unlock()
		_, _ = io.WriteString(w, good)
	}))
	t.Cleanup(plain.Close)
	var secure *httptest.Server
	secure = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); first {
		case "good":
			_, _ = io.WriteString(w, good)
		case "other-path":
			http.Redirect(w, r, "/good/", http.StatusFound)
		case "other-host":
			http.Redirect(w, r, strings.Replace(secure.URL, "127.0.0.1", "localhost", 1)+"/good/", http.StatusTemporaryRedirect)
		case "plain":
			http.Redirect(w, r, plain.URL, http.StatusMovedPermanently)
		case "plain-later":
			http.Redirect(w, r, "/plain/", http.StatusFound)
		case "loop":
			http.Redirect(w, r, "/loop/", http.StatusFound)
		}
	}))
	t.Cleanup(secure.Close)
	client := secure.Client()
	client.Transport.(*http.Transport).TLSClientConfig.ServerName = "example.com" // what its certificate says

	tests := []struct {
		path, text string // text in the error, "": none
	}{
		{"good", ""},
		{"other-path", ""},
		{"other-host", ""},
		{"plain", "redirected to plain http"},
		{"plain-later", "redirected to plain http"},
		{"loop", "10 redirects"},
	}
	for _, test := range tests {
		t.Run(test.path, func(t *testing.T) {
			config := &gcpjwt.IAMConfig{ServiceAccount: account, Client: client, CertificateURL: secure.URL + "/" + test.path + "/"}
			_, err := jwt.Parse(certToken(t, "k"), gcpjwt.IAMVerifyKeyfunc(t.Context(), config))
			if test.text == "" && err != nil {
				t.Errorf("got %v, want a valid token", err)
			}
			if test.text != "" && (!errors.Is(err, gcpjwt.ErrKeysUnavailable) || !strings.Contains(err.Error(), test.text)) {
				t.Errorf("got %v, want %v that says %q", err, gcpjwt.ErrKeysUnavailable, test.text)
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if plainRequests != 0 {
		t.Errorf("%d requests over plain http, want none", plainRequests)
	}
	if client.CheckRedirect != nil {
		t.Error("the caller's client was changed")
	}
}

// Plain http is for loopback only, also at the end of a redirect.
func TestCertificateRedirectOffLoopback(t *testing.T) {
	t.Parallel()
	good := certJSON(t, map[string]any{"k": certPublicKey(t, certKey().Public())})
	for target, want := range map[string]bool{"http://certs.example/": false, "http://127.0.0.1:81/": true, "https://certs.example/": true} {
		client := &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
			response := &http.Response{StatusCode: 200, Header: make(http.Header), Body: io.NopCloser(strings.NewReader(good)), Request: r}
			if r.URL.Host == "127.0.0.1" {
				response.StatusCode = http.StatusFound
				response.Header.Set("Location", target)
			}
			return response, nil
		})}
		config := &gcpjwt.IAMConfig{ServiceAccount: account, Client: client, CertificateURL: "http://127.0.0.1/"}
		if _, err := jwt.Parse(certToken(t, "k"), gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); (err == nil) != want {
			t.Errorf("redirected to %s: got %v, want valid: %v", target, err, want)
		}
	}
}

// The caller's own rule for redirects holds as well.
func TestCertificateCheckRedirect(t *testing.T) {
	t.Parallel()
	refused := errors.New("no redirects here")
	secure := httptest.NewTLSServer(http.RedirectHandler("/elsewhere/", http.StatusFound))
	t.Cleanup(secure.Close)
	client := secure.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return refused }
	config := &gcpjwt.IAMConfig{ServiceAccount: account, Client: client, CertificateURL: secure.URL + "/"}
	_, err := jwt.Parse(certToken(t, "k"), gcpjwt.IAMVerifyKeyfunc(t.Context(), config))
	if !errors.Is(err, refused) || !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("got %v, want %v and %v", err, gcpjwt.ErrKeysUnavailable, refused)
	}
}

// A refused connection is an outage, not a bad token.
func TestCertificateOutage(t *testing.T) {
	t.Parallel()
	server, config := start.IAM(t, testutil.InMemory()) // where nobody else can take the port
	text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
	server.Stop()
	_, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config))
	if !errors.Is(err, gcpjwt.ErrKeysUnavailable) || errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		t.Errorf("got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); err != nil {
		t.Errorf("after the outage: %v", err)
	}
}

// Two keys of one name cannot both count; what matters is that no more than the
// set is accepted.
func TestCertificateNamedTwice(t *testing.T) {
	t.Parallel()
	var body bytes.Buffer
	good, _ := json.Marshal(certPublicKey(t, certKey().Public()))
	fmt.Fprintf(&body, `{"k":"x","k":%s}`, good)
	o := &certOrigin{body: body.String()}
	if _, err := jwt.Parse(certToken(t, "k"), gcpjwt.IAMVerifyKeyfunc(t.Context(), o.config())); err != nil {
		t.Errorf("got %v, want the last one to count", err)
	}
}

// An Expires in the year 1, which some servers send for never, doesn't underflow.
func TestCertificateExpiresLongAgo(t *testing.T) {
	if certFreshFor(t, http.Header{"Expires": {"Mon, 01 Jan 0001 00:00:00 GMT"}, "Age": {"5"}}, 0, time.Hour) {
		t.Error("certificates whose Expires is the year 1 are kept an hour")
	}
}
