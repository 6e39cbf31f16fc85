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
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
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
				time.Sleep(time.Minute) // renewals under way come to their end
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

// B24 and C20: certificates are kept for as long as their response says, or for
// CacheExpiration where it doesn't. Package fetch tests what responses say.
func TestCertificateLifetime(t *testing.T) {
	t.Parallel()
	const expiration = 30 * time.Minute
	cacheControl := func(lines ...string) http.Header { return http.Header{"Cache-Control": lines} }
	tests := []struct {
		name       string
		header     http.Header
		expiration time.Duration
		want       time.Duration
	}{
		{"nothing", nil, expiration, expiration},
		{"nothing, anywhere", nil, 0, 0},
		{"nothing, for days", nil, 48 * time.Hour, 24 * time.Hour},
		{"odd", cacheControl("max-age=-5"), expiration, expiration},
		{"Google's", cacheControl("public, max-age=21600, must-revalidate, no-transform"), 0, 6 * time.Hour},
		{"two lines", cacheControl("public", "max-age=100"), expiration, 100 * time.Second},
		{"over 24 hours", cacheControl("max-age=86401"), expiration, 24 * time.Hour},
		{"no-store", cacheControl("no-store"), expiration, 0},
		{"Expires 0", http.Header{"Expires": {"0"}}, expiration, 0},
		{"Expires -1 and public", http.Header{"Cache-Control": {"public"}, "Expires": {"-1"}}, expiration, 0},
		{"Expires foo and public", http.Header{"Cache-Control": {"public"}, "Expires": {"foo"}}, expiration, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.want > 0 && !certFreshFor(t, test.header, test.expiration, test.want-1) {
				t.Errorf("not kept until %v", test.want)
			}
			if certFreshFor(t, test.header, test.expiration, test.want) {
				t.Errorf("kept beyond %v", test.want)
			}
		})
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

// B28: a fetch takes 10 seconds at most, though the caller has no deadline.
func TestCertificateTimeout(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{false, true} {
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			server.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { // a byte a second
				for r.Context().Err() == nil {
					_, _ = io.WriteString(w, " ")
					w.(http.Flusher).Flush()
					time.Sleep(time.Second)
				}
			})
			config.EnableCache = cached
			keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
			certWantAfter(t, keyfunc, text, context.DeadlineExceeded, 10*time.Second)
			if cached { // now it is known
				certWant(t, keyfunc, text, gcpjwt.ErrKeysUnavailable)
			}
		})
	}
}

// B28: connections are used again.
func TestCertificateConnections(t *testing.T) {
	t.Parallel()
	// In a bubble, as net/http gives a connection up if it takes 50 ms to see that
	// the request was sent.
	synctest.Test(t, func(t *testing.T) {
		server, config := systest.StartIAM(t, testutil.InMemory())
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

// A refused connection is an outage, not a bad token.
func TestCertificateOutage(t *testing.T) {
	t.Parallel()
	server, config := systest.StartIAM(t, testutil.InMemory()) // where nobody else can take the port
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

// certLifetime is what the server states in these tests. Certificates are
// renewed in the background from certRenewal on.
const (
	certLifetime = time.Hour
	certRenewal  = certLifetime - 5*time.Minute
)

// certBubble runs f in a bubble with a server whose account's certificates are
// cached, and a token of that account.
func certBubble(t *testing.T, f func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server, config := systest.StartIAM(t, testutil.InMemory())
		server.SetCertificateHeader(http.Header{"Cache-Control": {fmt.Sprintf("max-age=%d", int(certLifetime/time.Second))}})
		config.EnableCache = true
		text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
		f(t, server, config, text)
		server.SetLatency(0)
		server.Intercept(nil)
		time.Sleep(time.Hour) // fetches under way come to their end
	})
}

// certWant checks what comes of a token, and that it takes no time.
func certWant(t *testing.T, keyfunc jwt.Keyfunc, text string, want error) {
	t.Helper()
	certWantAfter(t, keyfunc, text, want, 0)
}

func certWantAfter(t *testing.T, keyfunc jwt.Keyfunc, text string, want error, took time.Duration) {
	t.Helper()
	began := time.Now()
	if _, err := jwt.Parse(text, keyfunc); !errors.Is(err, want) {
		t.Errorf("Parse: got %v, want %v", err, want)
	}
	if got := time.Since(began); got != took {
		t.Errorf("Parse took %v, want %v", got, took)
	}
}

// certWantFetches checks the number of requests so far.
func certWantFetches(t *testing.T, server *testutil.IAM, want int) {
	t.Helper()
	synctest.Wait()
	if got := server.Calls("certificates"); got != want {
		t.Errorf("%d requests for certificates, want %d", got, want)
	}
}

// certForged is a token as a Keyfunc gets it, whose kid names no key.
func certForged(kid string) *jwt.Token {
	return &jwt.Token{Method: jwt.SigningMethodRS256, Header: map[string]any{"alg": "RS256", "kid": kid}}
}

func certRandomKeyID() string { return rand.Text() }

func TestCacheKeepsCertificates(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		for range 100 {
			certWant(t, keyfunc, text, nil)
			time.Sleep(certRenewal / 101)
		}
		certWantFetches(t, server, 1)
	})
}

func TestCacheIsOptIn(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		config.EnableCache = false
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		for range 5 {
			certWant(t, keyfunc, text, nil)
		}
		certWantFetches(t, server, 5)

		// An unknown kid is worth no second look at what was fetched for it.
		if _, err := keyfunc(certForged(certRandomKeyID())); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
			t.Errorf("got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
		}
		certWantFetches(t, server, 6)
	})
}

// B20: a new key is learnt from its first token, and a withdrawn one is
// forgotten by that.
func TestCacheRotation(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, oldText string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, oldText, nil)
		certWantFetches(t, server, 1)

		oldKid := server.KeyIDs(account)[0]
		kid, err := server.AddKey(account)
		if err != nil {
			t.Fatal(err)
		}
		server.SetSigningKeys(account, kid)
		server.RemoveKey(account, oldKid)
		text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
		certWant(t, keyfunc, text, nil)
		certWantFetches(t, server, 2)
		certWant(t, keyfunc, oldText, gcpjwt.ErrUnknownKeyID)
		certWantFetches(t, server, 2)
	})
}

// B27: an account that hangs is no matter to others.
func TestCacheAccountsAreIndependent(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		const hanging = "hanging@test.iam.gserviceaccount.com"
		if _, err := server.CreateAccount(hanging); err != nil {
			t.Fatal(err)
		}
		server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.HasSuffix(r.URL.Path, hanging) {
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		})
		other := *config
		other.ServiceAccount = hanging
		var stuck sync.WaitGroup
		for range 100 {
			stuck.Go(func() {
				certWantAfter(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), &other), text, gcpjwt.ErrKeysUnavailable, 10*time.Second)
			})
		}
		synctest.Wait()
		certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), config), text, nil)
		stuck.Wait()
		certWantFetches(t, server, 2)
	})
}

// Certificates are the process's: equal configurations share them, whoever made
// them, and others don't.
func TestCacheSharing(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(server *testutil.IAM, config *gcpjwt.IAMConfig)
		shared bool
	}{
		{"equal", func(*testutil.IAM, *gcpjwt.IAMConfig) {}, true},
		{"other signing fields", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) {
			c.IAMService, c.IAMType, c.Delegates = nil, gcpjwt.IAMJwtType, []string{"a@b"}
		}, true},
		{"other logger", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.Logger = slog.New(slog.DiscardHandler) }, true},
		{"StaleIfError spelt out", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.StaleIfError = time.Hour }, true},
		{"other client", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { client := *c.Client; c.Client = &client }, false},
		{"other URL", func(s *testutil.IAM, c *gcpjwt.IAMConfig) {
			c.CertificateURL = s.URL() + "/service_accounts/v1/metadata/x509/"
		}, false},
		{"without cache", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.EnableCache = false }, false},
		{"other CacheExpiration", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.CacheExpiration = time.Minute }, false},
		{"other StaleIfError", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.StaleIfError = -1 }, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
				certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), config), text, nil)
				other := *config
				test.change(server, &other)
				certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), &other), text, nil)
				want := 2
				if test.shared {
					want = 1
				}
				certWantFetches(t, server, want)
			})
		})
	}

	t.Run("other account", func(t *testing.T) {
		t.Parallel()
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			const name = "other@test.iam.gserviceaccount.com"
			if _, err := server.CreateAccount(name); err != nil {
				t.Fatal(err)
			}
			certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), config), text, nil)
			other := *config
			other.ServiceAccount = name
			certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), &other), text, gcpjwt.ErrUnknownKeyID)
		})
	})
}

// A verification with warm keys allocates no more than one with a key at hand.
func TestCacheHitAllocatesNothing(t *testing.T) {
	server, config := systest.StartIAM(t)
	config.EnableCache = true
	text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
	key := any(server.PublicKey(account, server.KeyIDs(account)[0]))
	allocations := func(keyfunc jwt.Keyfunc) float64 {
		return testing.AllocsPerRun(200, func() {
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Fatal(err)
			}
		})
	}
	want := allocations(func(*jwt.Token) (any, error) { return key, nil })
	if got := allocations(gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); got > want {
		t.Errorf("%v allocations, want %v as with a key at hand", got, want)
	}
	if got := server.Calls("certificates"); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}

	// The Keyfunc on its own tells more exactly than the whole of Parse.
	token, _, err := jwt.NewParser().ParseUnverified(text, jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
	if got := testing.AllocsPerRun(200, func() { _, _ = keyfunc(token) }); got != 0 {
		t.Errorf("the Keyfunc makes %v allocations, want none", got)
	}
}

// C17: a connection that breaks is repeated once, on a new one.
func TestCertificateCutConnection(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{false, true} {
		for cuts, want := range map[int]bool{1: true, 2: false} {
			server, config := systest.StartIAM(t)
			config.EnableCache = cached
			text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
			server.Client().CloseIdleConnections()
			server.Cut("certificates", cuts)
			_, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config))
			if (err == nil) != want || err != nil && !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
				t.Errorf("%d connections cut: got %v, want a good token: %v", cuts, err, want)
			}
			if got := server.Calls("certificates"); got != 2 {
				t.Errorf("%d connections cut: %d requests, want 2", cuts, got)
			}
		}
	}
}

// cachingTransport answers as a cache on the way does: with the first answer, unless it is
// asked for a new one.
type cachingTransport struct {
	http.RoundTripper
	mu   sync.Mutex
	body []byte
}

func (c *cachingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.body == nil || r.Header.Get("Cache-Control") == "no-cache" {
		response, err := c.RoundTripper.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		c.body, err = io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Cache-Control": {"max-age=3600"}}, Body: io.NopCloser(bytes.NewReader(c.body)), Request: r}, nil
}

// C21: a cache on the way doesn't hide a new key, with our cache and without.
func TestCertificateCacheOnTheWay(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{false, true} {
		server, config := systest.StartIAM(t)
		config.EnableCache = cached
		config.Client = &http.Client{Transport: &cachingTransport{RoundTripper: server.Client().Transport}}
		ctx := gcpjwt.NewIAMContext(t.Context(), config)
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		for range 2 {
			if _, err := jwt.Parse(systest.Sign(t, ctx, gcpjwt.SigningMethodIAMJWT, nil), keyfunc); err != nil {
				t.Errorf("cached %v: %v", cached, err)
			}
			kid, err := server.AddKey(account)
			if err != nil {
				t.Fatal(err)
			}
			server.SetSigningKeys(account, kid)
		}
	}
}

// C22: in another universe domain certificates are elsewhere. The error says where they were
// looked for, and what to set.
func TestCertificateUniverseDomain(t *testing.T) {
	t.Parallel()
	client := &http.Client{Transport: &certOrigin{status: http.StatusNotFound}}
	service, err := iamcredentials.NewService(t.Context(), option.WithUniverseDomain("universe.example"), option.WithHTTPClient(client))
	if err != nil {
		t.Fatal(err)
	}
	config := &gcpjwt.IAMConfig{ServiceAccount: account, IAMService: service, Client: client}
	_, err = jwt.Parse(certToken(t, "k"), gcpjwt.IAMVerifyKeyfunc(t.Context(), config))
	if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Fatalf("got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
	}
	for _, want := range []string{account, "404", "www.googleapis.com", "CertificateURL", "universe domain"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v doesn't say %s", err, want)
		}
	}
}

// C38: without the cache tokens share the next fetch that begins after they came. Two at most
// are under way, however many tokens come, good or forged, and nobody gets older keys.
func TestCertificateUncached(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		config.EnableCache = false
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		connections := server.Connections()
		server.SetLatency(time.Second)
		var tokens sync.WaitGroup
		for range 100 {
			tokens.Go(func() {
				if _, err := jwt.Parse(text, keyfunc); err != nil {
					t.Error(err)
				}
			})
			tokens.Go(func() {
				if _, err := keyfunc(certForged(certRandomKeyID())); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
					t.Errorf("a forged kid: got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
				}
			})
		}
		time.Sleep(time.Second / 2)
		synctest.Wait()
		kid, err := server.AddKey(account)
		if err != nil {
			t.Fatal(err)
		}
		server.SetSigningKeys(account, kid)
		server.SetLatency(0)
		rotated := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
		server.SetLatency(time.Second)
		for range 100 {
			tokens.Go(func() { certWantAfter(t, keyfunc, rotated, nil, 3*time.Second/2) })
		}
		tokens.Wait()
		certWantFetches(t, server, 3)
		// signJwt has one.
		if got := server.Connections() - connections; got > 3 {
			t.Errorf("%d connections for 300 tokens, want 3 at most", got)
		}

		server.RemoveKey(account, server.KeyIDs(account)[0])
		certWantAfter(t, keyfunc, text, gcpjwt.ErrUnknownKeyID, time.Second)
	})
}

// C24: a process that is frozen while it renews certificates, until they have expired, works
// when it wakes up, as the endpoint is well.
func TestCertificateFreeze(t *testing.T) {
	const variable = "GCPJWT_TEST_FREEZE"
	if settings := os.Getenv(variable); settings != "" {
		url, text, _ := strings.Cut(settings, " ")
		certFrozen(t, url, text)
		return
	}
	t.Parallel()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell to send signals with")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server, config := systest.StartIAM(t)
	server.SetCertificateHeader(http.Header{"Cache-Control": {fmt.Sprintf("max-age=%d", int(freezeLife.Seconds()))}})
	text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
	for {
		server.ResetCalls()
		renewing := make(chan struct{})
		server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if server.Calls("certificates") == 2 {
				close(renewing)
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		})
		var output bytes.Buffer
		child := exec.CommandContext(t.Context(), binary, "-test.run=^TestCertificateFreeze$", "-test.v", "-test.count=1")
		child.Env = append(os.Environ(), variable+"="+server.CertificateURL()+" "+text)
		child.Stdout, child.Stderr = &output, &output
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		select {
		case <-renewing:
			for _, signal := range []string{"STOP", "CONT"} {
				if err := exec.Command("sh", "-c", fmt.Sprint("kill -", signal, " ", child.Process.Pid)).Run(); err != nil {
					t.Fatalf("kill -%s: %v", signal, err)
				}
				if signal == "STOP" {
					time.Sleep(freezeTimeout + time.Second)
				}
			}
			err = <-ended
		case err = <-ended:
		}
		if strings.Contains(output.String(), freezeLate) {
			continue
		}
		if err != nil || !strings.Contains(output.String(), "--- PASS: TestCertificateFreeze") {
			t.Errorf("the process that was frozen: %v\n%s", err, &output)
		}
		return
	}
}

const (
	freezeLife    = 5 * time.Second // of certificates, which are renewed a second before its end
	freezeTimeout = 3 * time.Second // of a fetch
	freezeLate    = "the machine is too busy: once more"
)

// certFrozen is the process that is frozen.
func certFrozen(t *testing.T, url, text string) {
	client := &http.Client{Timeout: freezeTimeout}
	defer client.CloseIdleConnections()
	keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), &gcpjwt.IAMConfig{
		ServiceAccount: account, CertificateURL: url, Client: client, EnableCache: true, StaleIfError: -1,
	})
	began := time.Now()
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		t.Fatal(err)
	}
	fetched := time.Now()
	time.Sleep(freezeLife*4/5 + time.Since(began) - time.Since(fetched))
	if _, err := jwt.Parse(text, keyfunc); err != nil || time.Since(began) > freezeLife {
		t.Skip(freezeLate, err)
	}
	for time.Since(fetched) < freezeLife { // frozen meanwhile
		time.Sleep(time.Millisecond)
	}
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Errorf("on waking up: %v", err)
			}
		})
	}
	callers.Wait()
}
