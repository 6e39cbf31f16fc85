package jwks_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/mldsa"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	secp256k1ecdsa "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// A publisher is a server with a JWK Set and a discovery document. Its clients reach it
// through net.Pipe, so that it works in a bubble of testing/synctest.
type publisher struct {
	issuer string
	client *http.Client

	mu      sync.Mutex
	keys    []jwks.Key
	header  http.Header      // further ones of an answer
	answer  http.HandlerFunc // nil: as it should be
	latency time.Duration
	calls   map[string]int // by path
	fresh   int            // of these, with Cache-Control: no-cache
}

const (
	setPath       = "/.well-known/jwks.json"
	discoveryPath = "/.well-known/openid-configuration"
)

// publish starts a publisher whose answers may be kept for an hour.
func publish(t testing.TB, keys ...jwks.Key) *publisher {
	t.Helper()
	p := &publisher{issuer: "http://127.0.0.1", keys: keys, calls: make(map[string]int)}
	p.header = http.Header{"Cache-Control": {"max-age=3600"}}
	conns := make(chan net.Conn)
	closed := make(chan struct{})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		client, server := net.Pipe()
		select {
		case conns <- server:
			return client, nil
		case <-closed:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.client = &http.Client{Transport: &http.Transport{DialContext: dial, DialTLSContext: dial}}
	server := &http.Server{Handler: p}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(pipes{conns, closed}) })
	t.Cleanup(func() {
		close(closed)
		p.client.CloseIdleConnections()
		_ = server.Close()
		serving.Wait()
	})
	return p
}

// pipes is a net.Listener.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *publisher) PublicKeys(context.Context) ([]jwks.Key, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys, nil
}

func (p *publisher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.calls[r.URL.Path]++
	if r.Header.Get("Cache-Control") == "no-cache" {
		p.fresh++
	}
	header, answer, latency := p.header, p.answer, p.latency
	p.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-r.Context().Done():
			return
		}
	}
	if answer != nil {
		answer(w, r)
		return
	}
	p.serve(headerWriter{w, header}, r)
}

// serve answers as it should be.
func (p *publisher) serve(w http.ResponseWriter, r *http.Request) {
	jwks.NewDiscoveryHandler(p.issuer, p).ServeHTTP(w, r)
}

// headerWriter sets headers in place of those that the handler has.
type headerWriter struct {
	http.ResponseWriter
	header http.Header
}

func (w headerWriter) WriteHeader(status int) {
	w.Header().Del("Cache-Control")
	for name, values := range w.header {
		w.Header()[name] = values
	}
	w.ResponseWriter.WriteHeader(status)
}

// set changes the publisher.
func (p *publisher) set(change func(p *publisher)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// wantCalls checks the number of requests for the set so far.
func (p *publisher) wantCalls(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := p.calls[setPath]; got != want {
		t.Errorf("%d requests for the JWK Set, want %d", got, want)
	}
}

func (p *publisher) byURL() *jwks.Config {
	return &jwks.Config{URL: p.issuer + setPath, Client: p.client, Logger: slog.New(slog.DiscardHandler)}
}

func (p *publisher) byIssuer() *jwks.Config {
	return &jwks.Config{Issuer: p.issuer, Client: p.client, Logger: slog.New(slog.DiscardHandler)}
}

func keyfunc(t testing.TB, config *jwks.Config) jwt.Keyfunc {
	t.Helper()
	f, err := jwks.NewKeyfunc(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A signer signs the tokens of tests.
type signer struct {
	key  jwks.Key
	sign func(text string) []byte
}

// token returns a token with the header {"alg":alg,"kid":kid}, without kid if that is
// empty.
func (s signer) token(alg, kid string) string {
	header := fmt.Sprintf(`{"alg":%q,"kid":%q}`, alg, kid)
	if kid == "" {
		header = fmt.Sprintf(`{"alg":%q}`, alg)
	}
	return s.tokenOf(header)
}

func (s signer) tokenOf(header string) string {
	text := b64([]byte(header)) + "." + b64([]byte(`{"sub":"test"}`))
	return text + "." + b64(s.sign(text))
}

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// edSigner returns a signer of an Ed25519 key that the kid decides.
func edSigner(kid string) signer {
	seed := sha256.Sum256([]byte(kid))
	private := ed25519.NewKeyFromSeed(seed[:])
	return signer{
		jwks.Key{KeyID: kid, Algorithm: "EdDSA", Public: private.Public()},
		func(text string) []byte { return ed25519.Sign(private, []byte(text)) },
	}
}

var rsaPrivate = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// rsaSigner signs RS256, or PS256 with a salt of so many bytes.
func rsaSigner(alg string, salt int) signer {
	return signer{
		jwks.Key{KeyID: "rsa", Algorithm: alg, Public: &rsaPrivate().PublicKey},
		func(text string) []byte {
			digest := sha256.Sum256([]byte(text))
			var sig []byte
			var err error
			if alg == "PS256" {
				sig, err = rsa.SignPSS(rand.Reader, rsaPrivate(), crypto.SHA256, digest[:], &rsa.PSSOptions{SaltLength: salt})
			} else {
				sig, err = rsa.SignPKCS1v15(rand.Reader, rsaPrivate(), crypto.SHA256, digest[:])
			}
			if err != nil {
				panic(err)
			}
			return sig
		},
	}
}

func ecSigner(t testing.TB, method *jwt.SigningMethodECDSA, curve elliptic.Curve) signer {
	t.Helper()
	private, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{
		jwks.Key{KeyID: "ec", Algorithm: method.Alg(), Public: &private.PublicKey},
		func(text string) []byte {
			sig, err := method.Sign(text, private)
			if err != nil {
				panic(err)
			}
			return sig
		},
	}
}

func secp256k1Signer(t testing.TB) signer {
	t.Helper()
	private, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return signer{
		jwks.Key{KeyID: "secp256k1", Algorithm: "ES256K", Public: private.PubKey()},
		func(text string) []byte {
			digest := sha256.Sum256([]byte(text))
			return secp256k1ecdsa.SignCompact(private, digest[:], false)[1:]
		},
	}
}

func mldsaSigner(t testing.TB) signer {
	t.Helper()
	private, err := mldsa.GenerateKey(mldsa.MLDSA65())
	if err != nil {
		t.Fatal(err)
	}
	return signer{
		jwks.Key{KeyID: "mldsa", Algorithm: "ML-DSA-65", Public: private.PublicKey()},
		func(text string) []byte {
			sig, err := private.Sign(nil, []byte(text), &mldsa.Options{})
			if err != nil {
				panic(err)
			}
			return sig
		},
	}
}

// wantParse checks what comes of a token.
func wantParse(t *testing.T, f jwt.Keyfunc, token string, want error) {
	t.Helper()
	if _, err := jwt.Parse(token, f); !errors.Is(err, want) {
		t.Errorf("Parse: got %v, want %v", err, want)
	}
}

// TestKeyfuncAlgorithms verifies by a set with a key of each kind, which have an alg or
// not.
func TestKeyfuncAlgorithms(t *testing.T) {
	signers := map[string]signer{
		"RS256":     rsaSigner("RS256", 0),
		"PS256":     rsaSigner("PS256", 32),
		"ES256":     ecSigner(t, jwt.SigningMethodES256, elliptic.P256()),
		"ES384":     ecSigner(t, jwt.SigningMethodES384, elliptic.P384()),
		"ES256K":    secp256k1Signer(t),
		"EdDSA":     edSigner("ed"),
		"Ed25519":   edSigner("ed"),
		"ML-DSA-65": mldsaSigner(t),
	}
	for alg, s := range signers {
		for _, stated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s alg stated %t", alg, stated), func(t *testing.T) {
				key := s.key
				if !stated && alg != "ML-DSA-65" {
					key.Algorithm = ""
				}
				p := publish(t, edSigner("another").key, key)
				for name, config := range map[string]*jwks.Config{"URL": p.byURL(), "Issuer": p.byIssuer()} {
					f := keyfunc(t, config)
					wantParse(t, f, s.token(alg, key.KeyID), nil)
					wantParse(t, f, s.token(alg, ""), nil)
					wantParse(t, f, s.token(alg, "another"), anyOf(alg))
					for other := range signers {
						if other != alg && (alg != "EdDSA" || other != "Ed25519") && (alg != "Ed25519" || other != "EdDSA") {
							if _, err := jwt.Parse(s.token(other, key.KeyID), f); err == nil {
								t.Errorf("by %s: accepted as %s", name, other)
							}
						}
					}
				}
			})
		}
	}
}

// anyOf is the error of a token by the algorithm whose kid names a key of EdDSA.
func anyOf(alg string) error {
	if alg == "EdDSA" || alg == "Ed25519" {
		return jwt.ErrTokenSignatureInvalid
	}
	return jwks.ErrAlgorithmMismatch
}

func TestKeyfuncRefuses(t *testing.T) {
	rs, ed := rsaSigner("RS256", 0), edSigner("ed")
	ps := rsaSigner("PS256", 20)
	p := publish(t, rs.key, ed.key, jwks.Key{KeyID: "ps", Algorithm: "PS256", Public: ps.key.Public})
	hmac := signer{sign: func(text string) []byte {
		sig, err := jwt.SigningMethodHS256.Sign(text, []byte("secret"))
		if err != nil {
			t.Fatal(err)
		}
		return sig
	}}
	f := keyfunc(t, p.byURL())
	for _, test := range []struct {
		name, token string
		want        error
	}{
		{"a salt of another length", ps.token("PS256", "ps"), jwt.ErrTokenSignatureInvalid},
		{"RS256 by a key for PS256", rs.token("RS256", "ps"), jwks.ErrAlgorithmMismatch},
		{"RS512", rs.token("RS512", "rsa"), jwks.ErrAlgorithmMismatch},
		{"a MAC", hmac.token("HS256", "rsa"), jwks.ErrAlgorithmMismatch},
		{"none", b64([]byte(`{"alg":"none"}`)) + "." + b64([]byte(`{}`)) + ".", jwks.ErrAlgorithmMismatch},
		{"another key", edSigner("forged").token("EdDSA", "ed"), jwt.ErrTokenSignatureInvalid},
		{"another key without kid", edSigner("forged").token("EdDSA", ""), jwt.ErrTokenSignatureInvalid},
		{"an unknown kid", ed.token("EdDSA", "unknown"), jwks.ErrUnknownKeyID},
		{"a kid that is a number", ed.tokenOf(`{"alg":"EdDSA","kid":7}`), jwt.ErrTokenMalformed},
		{"crit", ed.tokenOf(`{"alg":"EdDSA","kid":"ed","crit":["b64"],"b64":true}`), jwt.ErrTokenMalformed},
	} {
		t.Run(test.name, func(t *testing.T) { wantParse(t, f, test.token, test.want) })
	}
	if _, err := f(nil); err == nil {
		t.Error("a nil token got a key")
	}

	t.Run("Algorithms", func(t *testing.T) {
		config := p.byURL()
		config.Algorithms = []string{"Ed25519", "ES384"}
		f := keyfunc(t, config)
		wantParse(t, f, ed.token("EdDSA", "ed"), nil)
		wantParse(t, f, ed.token("Ed25519", "ed"), nil)
		wantParse(t, f, rs.token("RS256", "rsa"), jwks.ErrAlgorithmMismatch)
	})
	t.Run("without any call", func(t *testing.T) {
		p := publish(t, ed.key)
		f := keyfunc(t, p.byURL())
		for _, token := range []string{
			hmac.token("HS256", "ed"), ed.tokenOf(`{"alg":"EdDSA","kid":[]}`), ed.tokenOf(`{"alg":"EdDSA","crit":[]}`), "a.b.c", "",
			b64([]byte(`{"alg":"none"}`)) + "." + b64([]byte(`{}`)) + ".",
		} {
			if _, err := jwt.Parse(token, f); err == nil {
				t.Errorf("%q was accepted", token)
			}
		}
		p.set(func(p *publisher) {
			if p.calls[setPath] != 0 {
				t.Errorf("%d calls, want none", p.calls[setPath])
			}
		})
	})
}

// TestKeyfuncSameKid takes the first of two keys of one name, and both where they have
// none.
func TestKeyfuncSameKid(t *testing.T) {
	first, second := edSigner("first"), edSigner("second")
	one, two := first.key, second.key
	one.KeyID, two.KeyID = "same", "same"
	f := keyfunc(t, publish(t, one, two).byURL())
	wantParse(t, f, first.token("EdDSA", "same"), nil)
	wantParse(t, f, second.token("EdDSA", "same"), jwt.ErrTokenSignatureInvalid)

	one.KeyID, two.KeyID = "", ""
	f = keyfunc(t, publish(t, one, two).byURL())
	wantParse(t, f, first.token("EdDSA", ""), nil)
	wantParse(t, f, second.token("EdDSA", ""), nil)
	wantParse(t, f, second.token("EdDSA", "second"), jwks.ErrUnknownKeyID)
}

func TestNewKeyfuncErrors(t *testing.T) {
	good := "https://issuer.example"
	for _, test := range []struct {
		name   string
		config *jwks.Config
		says   string
	}{
		{"nil", nil, "*Config"},
		{"nothing", &jwks.Config{}, "either a URL or an Issuer"},
		{"both", &jwks.Config{URL: good + "/keys", Issuer: good}, "either a URL or an Issuer"},
		{"plain http", &jwks.Config{URL: "http://issuer.example/keys"}, "https"},
		{"plain http of an issuer", &jwks.Config{Issuer: "http://issuer.example"}, "https"},
		{"another scheme", &jwks.Config{URL: "ftp://issuer.example/keys"}, "https"},
		{"no scheme", &jwks.Config{Issuer: "accounts.example"}, "absolute URL"},
		{"no host", &jwks.Config{URL: "https:///keys"}, "absolute URL"},
		{"a user", &jwks.Config{URL: "https://user:password@issuer.example/keys"}, "without user"},
		{"a password in what is no URL", &jwks.Config{URL: "https://user:password@issuer.example:port/keys"}, "URL"},
		{"a fragment", &jwks.Config{URL: good + "/keys#1"}, "fragment"},
		{"a fragment behind a query", &jwks.Config{URL: good + "/keys?a=b#1"}, "fragment"},
		{"a line break", &jwks.Config{URL: good + "/keys\n"}, "URL"},
		{"an issuer's query", &jwks.Config{Issuer: good + "?a=b"}, "query"},
		{"a negative time", &jwks.Config{URL: good, CacheExpiration: -1}, "CacheExpiration"},
		{"no algorithm", &jwks.Config{URL: good, Algorithms: []string{}}, "Algorithms"},
		{"an unknown algorithm", &jwks.Config{URL: good, Algorithms: []string{"ES256", "rs256"}}, "Algorithms"},
		{"a MAC", &jwks.Config{URL: good, Algorithms: []string{"HS256"}}, "Algorithms"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := jwks.NewKeyfunc(t.Context(), test.config)
			if f != nil || !errors.Is(err, jwks.ErrInvalidConfig) {
				t.Fatalf("got %v, want %v", err, jwks.ErrInvalidConfig)
			}
			if text := err.Error(); !strings.Contains(text, test.says) || strings.Contains(text, "password") || strings.Count(text, "gcpjwt: ") != 1 {
				t.Errorf("the error is %q, want %q in it", text, test.says)
			}
		})
	}
	for _, config := range []*jwks.Config{
		{URL: good}, {URL: good + "/keys?tenant=a"}, {URL: "http://localhost:8080/keys"}, {URL: "http://[::1]/keys"}, {Issuer: good + "/"}, {Issuer: good, StaleIfError: -1},
	} {
		if _, err := jwks.NewKeyfunc(t.Context(), config); err != nil {
			t.Errorf("%+v: %v", config, err)
		}
	}
	var none context.Context
	if _, err := jwks.NewKeyfunc(none, &jwks.Config{URL: good}); !errors.Is(err, jwks.ErrInvalidConfig) {
		t.Errorf("without a context: %v, want %v", err, jwks.ErrInvalidConfig)
	}
}

// bubble runs f in a bubble with a publisher of one key.
func bubble(t *testing.T, f func(t *testing.T, p *publisher, a signer)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := edSigner("a")
		p := publish(t, a.key)
		f(t, p, a)
		p.set(func(p *publisher) { p.latency, p.answer = 0, nil })
		time.Sleep(time.Hour) // fetches under way come to their end
	})
}

// TestKeyfuncOneFetch has 1,000 callers of two Keyfuncs share one fetch, and further
// ones none, until the set is renewed in the background.
func TestKeyfuncOneFetch(t *testing.T) {
	for _, by := range []string{"URL", "Issuer"} {
		t.Run(by, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *publisher, a signer) {
				config := p.byURL()
				if by == "Issuer" {
					config = p.byIssuer()
				}
				p.set(func(p *publisher) { p.latency = time.Second })
				f, again := keyfunc(t, config), keyfunc(t, config)
				p.wantCalls(t, 0)
				var callers sync.WaitGroup
				for i := range 1000 {
					callers.Go(func() { wantParse(t, []jwt.Keyfunc{f, again}[i%2], a.token("EdDSA", "a"), nil) })
				}
				callers.Wait()
				p.wantCalls(t, 1)

				time.Sleep(54 * time.Minute) // 55 minutes of an hour are over when the renewal is due
				began := time.Now()
				wantParse(t, f, a.token("EdDSA", "a"), nil)
				p.wantCalls(t, 1)
				time.Sleep(2 * time.Minute)
				wantParse(t, f, a.token("EdDSA", "a"), nil)
				if took := time.Since(began) - 2*time.Minute; took != 0 {
					t.Errorf("a token waited %v for the renewal", took)
				}
				time.Sleep(2 * time.Second)
				p.wantCalls(t, 2)
			})
		})
	}
}

// TestKeyfuncUnknownKid reads the set once a minute for forged kids, past caches on the
// way, and finds a new key so.
func TestKeyfuncUnknownKid(t *testing.T) {
	bubble(t, func(t *testing.T, p *publisher, a signer) {
		f := keyfunc(t, p.byIssuer())
		wantParse(t, f, a.token("EdDSA", "a"), nil)
		forge := func() {
			for i := range 10_000 {
				token := &jwt.Token{Method: jwt.SigningMethodEdDSA, Header: map[string]any{"alg": "EdDSA", "kid": fmt.Sprint("forged", i)}}
				if _, err := f(token); !errors.Is(err, jwks.ErrUnknownKeyID) || errors.Is(err, jwks.ErrKeysUnavailable) {
					t.Fatalf("got %v, want %v", err, jwks.ErrUnknownKeyID)
				}
			}
		}
		forge()
		p.wantCalls(t, 2)
		p.set(func(p *publisher) {
			if p.fresh != 2 {
				t.Errorf("%d requests say no-cache, want one for either document", p.fresh)
			}
		})
		time.Sleep(time.Minute - 1)
		forge()
		p.wantCalls(t, 2)
		time.Sleep(time.Nanosecond)

		b := edSigner("b")
		p.set(func(p *publisher) { p.keys = []jwks.Key{b.key} })
		wantParse(t, f, b.token("EdDSA", "b"), nil)
		wantParse(t, f, a.token("EdDSA", "a"), jwks.ErrUnknownKeyID) // B20: withdrawn
		p.wantCalls(t, 3)
	})
}

// TestKeyfuncOutage uses the last keys for StaleIfError, answers at once without any,
// and comes back.
func TestKeyfuncOutage(t *testing.T) {
	for name, test := range map[string]struct{ stated, want time.Duration }{
		"default": {0, time.Hour}, "none": {-1, 0}, "a day": {24 * time.Hour, 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *publisher, a signer) {
				var log syncBuffer
				config := p.byIssuer()
				config.StaleIfError = test.stated
				config.Logger = slog.New(slog.NewTextHandler(&log, nil))
				f := keyfunc(t, config)
				wantParse(t, f, a.token("EdDSA", "a"), nil)
				p.set(func(p *publisher) {
					p.answer = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusInternalServerError) }
				})
				time.Sleep(time.Hour - time.Second)
				wantParse(t, f, a.token("EdDSA", "a"), nil)
				time.Sleep(test.want - 9*time.Second) // and no more, as that takes three tries
				wantParse(t, f, a.token("EdDSA", "a"), nil)
				time.Sleep(time.Minute)
				wantParse(t, f, a.token("EdDSA", "a"), jwks.ErrKeysUnavailable)
				if !strings.Contains(log.String(), "keeping the known keys") || !strings.Contains(log.String(), p.issuer) {
					t.Errorf("the log doesn't say that the keys are old: %s", log.String())
				}
				began, before := time.Now(), p.calls[discoveryPath]
				for range 1000 {
					wantParse(t, f, a.token("EdDSA", "a"), jwks.ErrKeysUnavailable)
				}
				synctest.Wait()
				p.mu.Lock()
				got := p.calls[discoveryPath] - before
				p.answer = nil
				p.mu.Unlock()
				if took := time.Since(began); took > 10*time.Second || got > 3 {
					t.Errorf("1,000 tokens took %v and %d requests", took, got)
				}
				time.Sleep(2 * time.Minute)
				wantParse(t, f, a.token("EdDSA", "a"), nil)
			})
		})
	}
}

// TestKeyfuncAtStart asks for the keys before there is a token.
func TestKeyfuncAtStart(t *testing.T) {
	bubble(t, func(t *testing.T, p *publisher, a signer) {
		f := keyfunc(t, p.byURL())
		p.set(func(p *publisher) { p.answer = http.NotFound })
		if _, err := f(&jwt.Token{Method: jwt.SigningMethodES256}); !errors.Is(err, jwks.ErrKeysUnavailable) {
			t.Errorf("without keys: error %v, want %v", err, jwks.ErrKeysUnavailable)
		}
		time.Sleep(time.Minute)
		p.set(func(p *publisher) { p.answer = nil })
		if _, err := f(&jwt.Token{Method: jwt.SigningMethodEdDSA}); err != nil {
			t.Errorf("with a key for EdDSA: %v", err)
		}
		if _, err := f(&jwt.Token{Method: jwt.SigningMethodES256}); !errors.Is(err, jwks.ErrAlgorithmMismatch) {
			t.Errorf("with no key for ES256: error %v, want %v", err, jwks.ErrAlgorithmMismatch)
		}
		wantParse(t, f, a.token("EdDSA", "a"), nil)
		p.wantCalls(t, 2)
	})
}

// TestKeyfuncLifetime keeps a set for as long as its response says.
func TestKeyfuncLifetime(t *testing.T) {
	for _, test := range []struct {
		name       string
		header     http.Header
		expiration time.Duration
		calls      int // for 10 tokens in 9 minutes
	}{
		{"none", nil, 0, 10},
		{"none, and CacheExpiration", nil, time.Hour, 1},
		{"no-store", http.Header{"Cache-Control": {"no-store"}}, time.Hour, 10},
		{"no-cache", http.Header{"Cache-Control": {"no-cache"}}, time.Hour, 10},
		{"an hour", http.Header{"Cache-Control": {"public, max-age=3600"}}, 0, 1},
		{"an hour less its age", http.Header{"Cache-Control": {"max-age=3600"}, "Age": {"3600"}}, time.Hour, 10},
		{"past", http.Header{"Expires": {"0"}}, time.Hour, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *publisher, a signer) {
				p.set(func(p *publisher) { p.header = test.header })
				config := p.byURL()
				config.CacheExpiration = test.expiration
				f := keyfunc(t, config)
				for range 10 {
					wantParse(t, f, a.token("EdDSA", "a"), nil)
					time.Sleep(time.Minute)
				}
				p.wantCalls(t, test.calls)
			})
		})
	}
}

// TestKeyfuncShares has configurations share a set if they have all in common that
// decides on it.
func TestKeyfuncShares(t *testing.T) {
	bubble(t, func(t *testing.T, p *publisher, a signer) {
		token := a.token("EdDSA", "a")
		ctx, cancel := context.WithCancel(t.Context())
		f, err := jwks.NewKeyfunc(ctx, p.byURL())
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		wantParse(t, f, token, nil) // C23: the end of the context ends nothing
		p.wantCalls(t, 1)

		config := p.byURL()
		config.Algorithms = []string{"EdDSA"}
		wantParse(t, keyfunc(t, config), token, nil)
		p.wantCalls(t, 1)

		config = p.byURL()
		config.CacheExpiration = time.Hour
		wantParse(t, keyfunc(t, config), token, nil)
		p.wantCalls(t, 2)
		config.StaleIfError = time.Minute
		wantParse(t, keyfunc(t, config), token, nil)
		p.wantCalls(t, 3)
		other := *p.client
		config = p.byURL()
		config.Client = &other
		wantParse(t, keyfunc(t, config), token, nil)
		p.wantCalls(t, 4)
		wantParse(t, keyfunc(t, p.byIssuer()), token, nil)
		p.wantCalls(t, 5)
		config = p.byURL()
		config.URL += "?tenant=a"
		wantParse(t, keyfunc(t, config), token, nil)
		p.wantCalls(t, 6)
	})
}

// TestKeyfuncBadAnswers answers in ways that never replace known keys, and are
// ErrKeysUnavailable where there are none.
func TestKeyfuncBadAnswers(t *testing.T) {
	a := edSigner("a")
	body := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
	}
	discovery := func(issuer, set string) http.HandlerFunc {
		return body(fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, issuer, set))
	}
	good, err := jwks.Marshal([]jwks.Key{a.key})
	if err != nil {
		t.Fatal(err)
	}
	padded := append(good, bytes.Repeat([]byte(" "), 1<<20)...)
	var compressed bytes.Buffer
	compressor := gzip.NewWriter(&compressed)
	if _, err := compressor.Write(padded); err != nil {
		t.Fatal(err)
	}
	if err := compressor.Close(); err != nil {
		t.Fatal(err)
	}
	endless := func(part []byte, encoding string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", encoding)
			for r.Context().Err() == nil {
				w.Write(part)
			}
		}
	}
	for _, test := range []struct {
		name   string
		path   string // what is bad
		answer http.HandlerFunc
	}{
		{"500", setPath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); w.Write(good) }},
		{"404", setPath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); w.Write(good) }},
		{"201", setPath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); w.Write(good) }},
		{"HTML", setPath, body("<html>Please log in</html>")},
		{"nothing", setPath, body("")},
		{"an empty set", setPath, body(`{"keys":[]}`)},
		{"no keys", setPath, body(`{}`)},
		{"no usable key", setPath, body(`{"keys":[{"kty":"oct","kid":"a","k":"AAAA"},{"kty":"RSA","kid":"a","n":"AQ","e":"AQAB"}]}`)},
		{"cut off", setPath, body(string(good[:len(good)-3]))},
		{"over 1 MiB", setPath, body(string(padded))},
		{"over 1 MiB once it is decompressed", setPath, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(compressed.Bytes())
		}},
		{"endless", setPath, endless(padded, "identity")},
		{"endless once it is decompressed", setPath, endless(compressed.Bytes(), "gzip")},
		{"not gzip", setPath, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(good)
		}},
		{"silent", setPath, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"a byte a second", setPath, func(w http.ResponseWriter, r *http.Request) {
			for _, b := range good {
				if r.Context().Err() != nil {
					return
				}
				w.Write([]byte{b})
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		}},
		{"to plain http", setPath, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://issuer.example/keys", http.StatusFound)
		}},
		{"a circle", setPath, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, setPath, http.StatusFound) }},
		{"a cut connection", setPath, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},

		{"404 for the document", discoveryPath, http.NotFound},
		{"HTML for the document", discoveryPath, body("<html></html>")},
		{"an empty document", discoveryPath, body("{}")},
		{"another issuer", discoveryPath, discovery("http://127.0.0.1/", "http://127.0.0.1"+setPath)},
		{"a foreign issuer", discoveryPath, discovery("https://issuer.example", "http://127.0.0.1"+setPath)},
		{"two issuers", discoveryPath, body(`{"issuer":"https://issuer.example","issuer":"http://127.0.0.1","jwks_uri":"http://127.0.0.1` + setPath + `"}`)},
		{"an issuer in another case", discoveryPath, body(`{"Issuer":"http://127.0.0.1","jwks_uri":"http://127.0.0.1` + setPath + `"}`)},
		{"no jwks_uri", discoveryPath, body(`{"issuer":"http://127.0.0.1"}`)},
		{"a jwks_uri of plain http", discoveryPath, discovery("http://127.0.0.1", "http://issuer.example/keys")},
		{"a relative jwks_uri", discoveryPath, discovery("http://127.0.0.1", setPath)},
		{"a jwks_uri of another scheme", discoveryPath, discovery("http://127.0.0.1", "file:///etc/keys")},
		{"a document over 1 MiB", discoveryPath, body(`{"issuer":"http://127.0.0.1","jwks_uri":"http://127.0.0.1` + setPath + `"}` + string(padded[len(good):]))},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *publisher, _ signer) {
				bad := func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == test.path {
						test.answer(w, r)
						return
					}
					p.serve(w, r)
				}
				config := p.byIssuer()
				f := keyfunc(t, config)
				p.set(func(p *publisher) { p.answer = bad })
				began := time.Now()
				wantParse(t, f, a.token("EdDSA", "a"), jwks.ErrKeysUnavailable)
				if _, err := jwt.Parse(a.token("EdDSA", "a"), f); errors.Is(err, jwks.ErrInvalidConfig) || strings.Contains(fmt.Sprint(err), "Please") {
					t.Errorf("the error is %v", err)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("took %v, want 10 s a try at most", took)
				}
				p.set(func(p *publisher) { p.answer = nil })
				time.Sleep(time.Minute)
				wantParse(t, f, a.token("EdDSA", "a"), nil)
				p.set(func(p *publisher) { p.answer = bad })
				time.Sleep(58 * time.Minute)
				for range 10 {
					wantParse(t, f, a.token("EdDSA", "a"), nil)
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

// TestKeyfuncHTTPSIssuer doesn't follow an https issuer to plain http, be it on loopback.
func TestKeyfuncHTTPSIssuer(t *testing.T) {
	bubble(t, func(t *testing.T, p *publisher, a signer) {
		p.issuer = "https://issuer.example/tenant" // over the same pipe
		config := p.byIssuer()
		f := keyfunc(t, config)
		p.set(func(p *publisher) {
			p.answer = func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"http://127.0.0.1/keys"}`, p.issuer)
			}
		})
		wantParse(t, f, a.token("EdDSA", "a"), jwks.ErrKeysUnavailable)
		p.set(func(p *publisher) {
			p.answer = nil
			if p.calls["/keys"] != 0 {
				t.Error("the keys were read over plain http")
			}
		})
		time.Sleep(time.Minute)
		wantParse(t, f, a.token("EdDSA", "a"), nil)
		p.set(func(p *publisher) {
			if got := p.calls["/tenant"+discoveryPath]; got == 0 {
				t.Errorf("no discovery document was read: %v", p.calls)
			}
		})
	})
}

// TestKeyfuncSlashes finds the document of an issuer whose URL ends in a slash.
func TestKeyfuncSlashes(t *testing.T) {
	for _, issuer := range []string{"http://127.0.0.1/", "http://127.0.0.1/tenant/"} {
		t.Run(issuer, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *publisher, a signer) {
				p.issuer = issuer
				wantParse(t, keyfunc(t, p.byIssuer()), a.token("EdDSA", "a"), nil)
			})
		})
	}
}

// TestKeyfuncPanics survives a transport that panics.
func TestKeyfuncPanics(t *testing.T) {
	config := &jwks.Config{URL: "https://issuer.example/keys", Client: &http.Client{Transport: panicking{}}, Logger: slog.New(slog.DiscardHandler)}
	wantParse(t, keyfunc(t, config), edSigner("a").token("EdDSA", "a"), jwks.ErrKeysUnavailable)
}

type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("secret") }

func BenchmarkKeyfunc(b *testing.B) {
	a := ecSigner(b, jwt.SigningMethodES256, elliptic.P256())
	f := keyfunc(b, publish(b, a.key).byURL())
	token := a.token("ES256", "ec")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := jwt.Parse(token, f); err != nil {
			b.Fatal(err)
		}
	}
}
