package middleware_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// Tokens of each kind of signer pass, with no method overridden.
func TestSigners(t *testing.T) {
	_, iam := startIAM(t)
	kms := gcpjwttest.NewKMS(t)
	es256 := kms.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	hs256 := kms.NewKey(kmspb.CryptoKeyVersion_HMAC_SHA256)
	mldsa := kms.NewKey(kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65)
	iamContext := gcpjwt.NewIAMContext(t.Context(), iam)
	kmsContext := func(config *gcpjwt.KMSConfig) context.Context { return gcpjwt.NewKMSContext(t.Context(), config) }
	newHandler := middleware.NewHandler(t.Context(), iam, audience)
	newKMS := func(config *gcpjwt.KMSConfig) func(http.Handler) http.Handler {
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		return middleware.New(keyfunc, middleware.WithAudience(audience))
	}
	for _, test := range []struct {
		method jwt.SigningMethod
		ctx    context.Context
		auth   func(http.Handler) http.Handler
		others answer // for a token that is for another audience
	}{
		{gcpjwt.SigningMethodIAMBlob, iamContext, newHandler, forbidden},
		{gcpjwt.SigningMethodIAMJWT, iamContext, newHandler, forbidden},
		{gcpjwt.SigningMethodKMSES256, kmsContext(es256), newKMS(es256), forbidden},
		{gcpjwt.SigningMethodKMSHS256, kmsContext(hs256), newKMS(hs256), invalidToken}, // its MAC isn't checked
		{gcpjwt.SigningMethodKMSMLDSA65, kmsContext(mldsa), newKMS(mldsa), forbidden},
	} {
		t.Run(test.method.Alg(), func(t *testing.T) {
			good := signWith(t, test.ctx, test.method, audience)
			check(t, serve(t, test.auth, "Bearer "+good), letIn)
			check(t, serve(t, test.auth, "Bearer "+tokens.Forge(good)), invalidToken)
			check(t, serve(t, test.auth, "Bearer "+signed(t, jwt.MapClaims{"aud": audience})), invalidToken)
			check(t, serve(t, test.auth, "Bearer "+signWith(t, test.ctx, test.method, "other")), test.others)
			check(t, serve(t, test.auth), noToken)
		})
	}
}

// Without keys, a token may be good for all we know: 503.
func TestKeysUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, config := startIAM(t, testutil.InMemory())
		token := "Bearer " + signWith(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, audience)
		auth := middleware.NewHandler(t.Context(), config, audience)
		server.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Error(w, "secret", http.StatusInternalServerError)
		})
		check(t, serve(t, auth, token), unavailable)
		check(t, serve(t, auth, token), unavailable)
		check(t, serve(t, auth), noToken)
		check(t, serve(t, auth, "Bearer x"), invalidToken)

		server.Intercept(nil)
		time.Sleep(time.Second)
		check(t, serve(t, auth, token), letIn)

		server.Stop() // the keys are known
		check(t, serve(t, auth, token), letIn)
	})
}

// A MAC that could not be checked is as good as unknown keys, although jwt calls
// its signature invalid.
func TestMACUnavailable(t *testing.T) {
	server := gcpjwttest.NewKMS(t)
	config := server.NewKey(kmspb.CryptoKeyVersion_HMAC_SHA256)
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	auth := middleware.New(keyfunc)
	token := signWith(t, gcpjwt.NewKMSContext(t.Context(), config), gcpjwt.SigningMethodKMSHS256, audience)
	check(t, serve(t, auth, "Bearer "+token), letIn)
	server.Fail("MacVerify", status.Error(codes.Internal, "secret"))
	check(t, serve(t, auth, "Bearer "+token), unavailable)
}

// C32: 100 forged, expired tokens for another audience cost no call, and a good one costs
// one, also where Keyfuncs are wrapped.
func TestBadClaimsCostNoMACVerify(t *testing.T) {
	server, config := systest.StartKMSKey(t, kmspb.CryptoKeyVersion_HMAC_SHA256)
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(claims jwt.MapClaims) string {
		ctx := gcpjwt.NewKMSContext(t.Context(), config)
		text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodKMSHS256, claims))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := sign(jwt.MapClaims{"iss": account, "aud": audience, "exp": far})
	bad := tokens.Forge(sign(jwt.MapClaims{"iss": account, "aud": "other", "exp": 1}))
	for name, keyfunc := range map[string]jwt.Keyfunc{
		"plain":     keyfunc,
		"by issuer": middleware.ByIssuer(map[string]jwt.Keyfunc{account: keyfunc}),
		"wrapped":   func(token *jwt.Token) (any, error) { return keyfunc(token) },
	} {
		t.Run(name, func(t *testing.T) {
			auth := middleware.New(keyfunc, middleware.WithAudience(audience), middleware.WithIssuer(account))
			server.ResetCalls()
			for range 100 {
				check(t, serve(t, auth, "Bearer "+bad), invalidToken)
			}
			if n := server.Calls("MacVerify"); n != 0 {
				t.Errorf("100 bad tokens cost %d calls, want none", n)
			}
			check(t, serve(t, auth, "Bearer "+good), letIn)
			check(t, serve(t, auth, "Bearer "+tokens.Forge(good)), invalidToken)
			if n := server.Calls("MacVerify"); n != 2 {
				t.Errorf("two tokens with good claims cost %d calls, want 2", n)
			}
		})
	}
}

// B30, of the middleware: the end of NewHandler's context is not the end of its
// certificates.
func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, config := startIAM(t, testutil.InMemory())
		ctx, cancel := context.WithCancel(t.Context())
		auth := middleware.NewHandler(ctx, config, audience)
		cancel()
		for range 3 {
			token := signWith(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, audience)
			check(t, serve(t, auth, "Bearer "+token), letIn)
			time.Sleep(12 * time.Hour) // longer than certificates are kept
		}
	})
}

// Many requests at once need one fetch, and the middleware may be shared.
func TestConcurrentRequests(t *testing.T) {
	server, config := startIAM(t)
	token := "Bearer " + signWith(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, audience)
	auth := middleware.NewHandler(t.Context(), config, audience)
	var requests sync.WaitGroup
	for range 50 {
		requests.Go(func() { check(t, serve(t, auth, token), letIn) })
	}
	requests.Wait()
	if n := server.Calls("certificates"); n != 1 {
		t.Errorf("%d certificate fetches, want 1", n)
	}
}

// Over a real connection the rules are the same.
func TestServer(t *testing.T) {
	server := httptest.NewServer(middleware.New(testKeyfunc)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer server.Close()
	good := "Bearer " + signed(t, nil)
	for _, test := range []struct {
		name   string
		values []string
		want   answer
	}{
		{"good", []string{good}, letIn},
		{"none", nil, noToken},
		{"two headers", []string{good, good}, invalidToken},
	} {
		r, err := http.NewRequest(http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header["Authorization"] = test.values
		response, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		got := answer{response.StatusCode, response.Header.Get("WWW-Authenticate"), response.Header.Get("Retry-After")}
		if got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}

func BenchmarkMiddleware(b *testing.B) {
	_, config := startIAM(b)
	keyfunc := gcpjwt.IAMVerifyKeyfunc(b.Context(), config)
	token := signWith(b, gcpjwt.NewIAMContext(b.Context(), config), gcpjwt.SigningMethodIAMJWT, audience)

	b.Run("jwt.Parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := jwt.Parse(token, keyfunc, jwt.WithAudience(audience), jwt.WithExpirationRequired()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("request", func(b *testing.B) {
		handler := middleware.New(keyfunc, middleware.WithAudience(audience))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		b.ReportAllocs()
		for b.Loop() {
			handler.ServeHTTP(w, r)
		}
		if w.Code != http.StatusOK {
			b.Fatalf("got status %d", w.Code)
		}
	})
}
