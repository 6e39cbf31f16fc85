package middleware_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// countingMethod is jwt's EdDSA, counting verifications.
type countingMethod struct {
	*jwt.SigningMethodEd25519
	verifications atomic.Int32
}

func (m *countingMethod) Verify(signingString string, sig []byte, key any) error {
	m.verifications.Add(1)
	return m.SigningMethodEd25519.Verify(signingString, sig, key)
}

// countingKeyfunc returns what key returns, and a counter of the verifications
// by it.
func countingKeyfunc(key func() (any, error)) (jwt.Keyfunc, *atomic.Int32) {
	method := &countingMethod{SigningMethodEd25519: jwt.SigningMethodEdDSA}
	return func(token *jwt.Token) (any, error) {
		if _, err := testKeyfunc(token); err != nil {
			return nil, err
		}
		token.Method = method
		return key()
	}, &method.verifications
}

func publicTestKey() (any, error) { return testKey.Public(), nil }

// seen serves requests with each token in turn and reports how many were
// verified. All must be let in.
func seen(t *testing.T, auth func(http.Handler) http.Handler, verifications *atomic.Int32, tokens ...string) int {
	t.Helper()
	before := verifications.Load()
	for _, token := range tokens {
		check(t, serve(t, auth, "Bearer "+token), letIn)
	}
	return int(verifications.Load() - before)
}

func TestTokenCache(t *testing.T) {
	keyfunc, verifications := countingKeyfunc(publicTestKey)
	auth := middleware.New(keyfunc, middleware.WithTokenCache(2), middleware.WithAudience(audience))
	a := signed(t, jwt.MapClaims{"aud": audience, "sub": "a"})

	if got := seen(t, auth, verifications, a, a, a); got != 1 {
		t.Errorf("a token seen three times: got %d verifications, want 1", got)
	}
	check(t, serve(t, auth, "Bearer "+tokens.Forge(a)), invalidToken)
	if got := seen(t, auth, verifications, a); got != 0 {
		t.Errorf("a remembered token after a forgery of it: got %d verifications, want 0", got)
	}

	// What didn't pass every check isn't remembered.
	other := signed(t, jwt.MapClaims{"aud": "other"})
	before := verifications.Load()
	for range 3 {
		check(t, serve(t, auth, "Bearer "+other), forbidden)
	}
	if got := verifications.Load() - before; got != 3 {
		t.Errorf("a token for others seen three times: got %d verifications, want 3", got)
	}
}

// At most n tokens are remembered, whatever n is.
func TestTokenCacheSize(t *testing.T) {
	for _, n := range []int{1, 2, 63, 64, 65, 200} {
		keyfunc, verifications := countingKeyfunc(publicTestKey)
		auth := middleware.New(keyfunc, middleware.WithTokenCache(n))
		var tokens []string
		for i := range 2*n + 200 {
			tokens = append(tokens, signed(t, jwt.MapClaims{"sub": fmt.Sprint(i)}))
		}
		seen(t, auth, verifications, tokens...)
		slices.Reverse(tokens) // those that are still remembered first
		hits := 0
		for _, token := range tokens {
			if seen(t, auth, verifications, token) == 0 {
				hits++
			}
		}
		if hits == 0 || hits > n {
			t.Errorf("WithTokenCache(%d): got %d tokens remembered, want 1 to %d", n, hits, n)
		}
	}
}

// Tokens spread over the shards: a cache of twice their number holds all of them.
func TestTokenCacheSpreads(t *testing.T) {
	const many = 500
	keyfunc, verifications := countingKeyfunc(publicTestKey)
	v := middleware.NewVerifier(keyfunc, middleware.WithTokenCache(2*many))
	for range 2 {
		for i := range many {
			if _, err := v.Verify(t.Context(), signed(t, jwt.MapClaims{"sub": fmt.Sprint(i), "exp": far})); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := verifications.Load(); got != many {
		t.Errorf("got %d verifications of %d tokens seen twice, want one each", got, many)
	}
}

// A key that the Keyfunc doesn't return any more ends the memory at once.
func TestTokenCacheKeys(t *testing.T) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	token := signed(t, nil)
	for _, test := range []struct {
		name          string
		key           func() (any, error) // from the second request on
		want          answer
		verifications int
	}{
		{"the same", publicTestKey, letIn, 0},
		{"a copy of it", func() (any, error) { return slices.Clone(testKey.Public().(ed25519.PublicKey)), nil }, letIn, 0},
		{"withdrawn", func() (any, error) { return nil, gcpjwt.ErrUnknownKeyID }, invalidToken, 0},
		{"unavailable", func() (any, error) { return nil, gcpjwt.ErrKeysUnavailable }, unavailable, 0},
		{"another", func() (any, error) { return public, nil }, invalidToken, 1},
		{"of another type", func() (any, error) { return rsaKey.Public(), nil }, invalidToken, 1},
		{"none", func() (any, error) { return nil, nil }, invalidToken, 1},
		{"a set with it", func() (any, error) {
			return jwt.VerificationKeySet{Keys: []jwt.VerificationKey{public, testKey.Public()}}, nil
		}, letIn, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			key := publicTestKey
			keyfunc, verifications := countingKeyfunc(func() (any, error) { return key() })
			auth := middleware.New(keyfunc, middleware.WithTokenCache(10))
			seen(t, auth, verifications, token)

			key = test.key
			before := verifications.Load()
			check(t, serve(t, auth, "Bearer "+token), test.want)
			if got := int(verifications.Load() - before); got != test.verifications {
				t.Errorf("got %d verifications, want %d", got, test.verifications)
			}
			key = publicTestKey
			check(t, serve(t, auth, "Bearer "+token), letIn)
		})
	}
}

// A Keyfunc that has a token verified in another way isn't overheard.
func TestTokenCacheMethods(t *testing.T) {
	counting := &countingMethod{SigningMethodEd25519: jwt.SigningMethodEdDSA}
	method := jwt.SigningMethod(jwt.SigningMethodEdDSA)
	v := middleware.NewVerifier(func(token *jwt.Token) (any, error) {
		token.Method = method
		return testKey.Public(), nil
	}, middleware.WithTokenCache(10))
	text := signed(t, nil)
	for range 2 {
		if _, err := v.Verify(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	method = counting
	for range 2 {
		if _, err := v.Verify(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	if got := counting.verifications.Load(); got != 1 {
		t.Errorf("got %d verifications by the other method, want 1", got)
	}
}

// A token without a single public key isn't remembered.
func TestTokenCacheLeavesOut(t *testing.T) {
	other, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keyfunc, verifications := countingKeyfunc(func() (any, error) {
		return jwt.VerificationKeySet{Keys: []jwt.VerificationKey{other, testKey.Public()}}, nil
	})
	auth := middleware.New(keyfunc, middleware.WithTokenCache(10))
	token := signed(t, nil)
	if got := seen(t, auth, verifications, token, token); got != 4 {
		t.Errorf("a set of two keys: got %d verifications for two requests, want 4", got)
	}

	server, config := systest.StartKMSKey(t, kmspb.CryptoKeyVersion_HMAC_SHA256)
	macs, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	mac := signWith(t, gcpjwt.NewKMSContext(t.Context(), config), gcpjwt.SigningMethodKMSHS256, audience)
	auth = middleware.New(macs, middleware.WithTokenCache(10))
	server.ResetCalls()
	for range 3 {
		check(t, serve(t, auth, "Bearer "+mac), letIn)
	}
	if got := server.Calls("MacVerify"); got != 3 {
		t.Errorf("an HMAC token seen three times: got %d MacVerify calls, want 3", got)
	}
}

// A claims type may look elsewhere each time, at a list of those who have left, say.
type listedClaims struct {
	jwt.RegisteredClaims
	left *bool
}

func (c *listedClaims) Validate() error {
	if *c.left {
		return errors.New("they have left")
	}
	return nil
}

func TestTokenCacheValidates(t *testing.T) {
	keyfunc, verifications := countingKeyfunc(publicTestKey)
	var left bool
	auth := middleware.New(keyfunc, middleware.WithTokenCache(10),
		middleware.WithClaims(func() jwt.Claims { return &listedClaims{left: &left} }))
	token := signed(t, nil)
	if got := seen(t, auth, verifications, token, token); got != 1 {
		t.Errorf("got %d verifications, want 1", got)
	}
	left = true
	check(t, serve(t, auth, "Bearer "+token), invalidToken)
}

// A remembered token expires as any other.
func TestTokenCacheTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keyfunc, verifications := countingKeyfunc(publicTestKey)
		auth := middleware.New(keyfunc, middleware.WithTokenCache(10), middleware.WithLeeway(0))
		token := signed(t, jwt.MapClaims{"exp": time.Now().Add(time.Minute).Unix()})
		seen(t, auth, verifications, token)
		time.Sleep(time.Minute - time.Second)
		if got := seen(t, auth, verifications, token); got != 0 {
			t.Errorf("a second before exp: got %d verifications, want 0", got)
		}
		time.Sleep(time.Second)
		check(t, serve(t, auth, "Bearer "+token), invalidToken)
	})
}

func TestTokenCacheConcurrently(t *testing.T) {
	var withdrawn atomic.Bool
	keyfunc, verifications := countingKeyfunc(func() (any, error) {
		if withdrawn.Load() {
			return nil, errors.New("withdrawn")
		}
		return testKey.Public(), nil
	})
	auth := middleware.New(keyfunc, middleware.WithTokenCache(50))
	var tokens []string
	for i := range 100 {
		tokens = append(tokens, signed(t, jwt.MapClaims{"sub": fmt.Sprint(i)}))
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { seen(t, auth, verifications, tokens...) })
	}
	group.Wait()
	withdrawn.Store(true)
	for _, token := range tokens {
		check(t, serve(t, auth, "Bearer "+token), invalidToken)
	}
}

func TestTokenCachePanics(t *testing.T) {
	for _, n := range []int{0, -1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("WithTokenCache(%d) did not panic", n)
				}
			}()
			middleware.New(testKeyfunc, middleware.WithTokenCache(n))
		}()
	}
}

// BenchmarkTokenCache compares a request with a remembered token to one whose
// RS256 signature is verified.
func BenchmarkTokenCache(b *testing.B) {
	_, config := startIAM(b)
	keyfunc := gcpjwt.IAMVerifyKeyfunc(b.Context(), config)
	token := signWith(b, gcpjwt.NewIAMContext(b.Context(), config), gcpjwt.SigningMethodIAMJWT, audience)
	for _, bench := range []struct {
		name    string
		options []middleware.Option
	}{
		{"verified", nil},
		{"remembered", []middleware.Option{middleware.WithTokenCache(1000)}},
	} {
		handler := middleware.New(keyfunc, bench.options...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		b.Run(bench.name, func(b *testing.B) {
			w := httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(w, r)
			}
		})
		b.Run(bench.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				w := httptest.NewRecorder()
				for pb.Next() {
					handler.ServeHTTP(w, r)
				}
			})
		})
	}
}
