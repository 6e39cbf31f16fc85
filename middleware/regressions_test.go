package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// What a Keyfunc does to a token isn't remembered.
func TestTokenCacheForgetsWhatTheKeyfuncAdded(t *testing.T) {
	for _, cached := range []bool{false, true} {
		admin := true
		keyfunc := func(token *jwt.Token) (any, error) {
			if admin {
				token.Claims.(jwt.MapClaims)["role"] = "admin"
				token.Header["x-tenant"] = "root"
			}
			return testKeyfunc(token)
		}
		options := []middleware.Option{}
		if cached {
			options = append(options, middleware.WithTokenCache(10))
		}
		auth := middleware.New(keyfunc, options...)
		token := signed(t, nil)
		serve(t, auth, "Bearer "+token)
		admin = false
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token, _ := middleware.TokenFromContext(r.Context())
			if role := token.Claims.(jwt.MapClaims)["role"]; role != nil {
				t.Errorf("cached %v: role is still %v; header %v", cached, role, token.Header)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
	}
}

// A request whose token is remembered waits for keys once.
func TestTokenCacheWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, config := startIAM(t, testutil.InMemory())
		config.EnableCache = false
		auth := middleware.New(gcpjwt.IAMVerifyKeyfunc(t.Context(), config), middleware.WithTokenCache(10))
		token := signWith(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, audience)
		check(t, serve(t, auth, "Bearer "+token), letIn)
		server.ResetCalls()
		server.SetLatency(time.Hour)
		start := time.Now()
		check(t, serve(t, auth, "Bearer "+token), unavailable)
		if d := time.Since(start); d > 11*time.Second {
			t.Errorf("a 503 took %v and %d fetches", d, server.Calls("certificates"))
		}
		server.SetLatency(0)
		time.Sleep(2 * time.Hour)
	})
}

// An outage is no reason to forget a token.
func TestTokenCacheSurvivesOutage(t *testing.T) {
	var down bool
	keyfunc, verifications := countingKeyfunc(func() (any, error) {
		if down {
			return nil, gcpjwt.ErrKeysUnavailable
		}
		return testKey.Public(), nil
	})
	auth := middleware.New(keyfunc, middleware.WithTokenCache(10))
	token := signed(t, nil)
	serve(t, auth, "Bearer "+token)
	down = true
	serve(t, auth, "Bearer "+token)
	down = false
	if got := seen(t, auth, verifications, token); got != 0 {
		t.Errorf("%d verifications", got)
	}
}

// encoding/json matches the names of fields in any case. RFC 7519 doesn't.
func TestClaimNamesAreCaseSensitive(t *testing.T) {
	past, future := time.Now().Add(-time.Hour).Unix(), time.Now().Add(time.Hour).Unix()
	text := signedRaw(fmt.Sprintf(`{"exp":%d,"aud":"https://other","EXP":%d,"AUD":%q}`, past, future, audience))
	for name, options := range map[string][]middleware.Option{
		"map":    {middleware.WithAudience(audience)},
		"struct": {middleware.WithAudience(audience), middleware.WithClaims(func() jwt.Claims { return new(jwt.RegisteredClaims) })},
	} {
		if w := serve(t, middleware.New(testKeyfunc, options...), "Bearer "+text); w.Code == 200 {
			t.Errorf("%s: a token that expired an hour ago and is for another server passes", name)
		}
	}
}
