package oauth2_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// C36: an issue time can lie back, without a change of exp.
func TestBackdate(t *testing.T) {
	for _, test := range []struct{ backdate, want time.Duration }{
		{0, 0},
		{time.Second - 1, 0},
		{90*time.Second + time.Second/2, 90 * time.Second},
		{10 * time.Minute, 10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, config := systest.StartKMSKey(t, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, testutil.InMemory())
			source, err := oauth2.NewTokenSource(gcpjwt.NewKMSContext(t.Context(), config), oauth2.Config{
				Method:   gcpjwt.SigningMethodKMSES256,
				Lifetime: time.Minute,
				Backdate: test.backdate,
			})
			if err != nil {
				t.Fatal(err)
			}
			now := time.Now()
			token := mustToken(t, source)
			claims := assertion(t, token.AccessToken)
			for _, name := range []string{"iat", "nbf"} {
				if got := now.Sub(unixTime(t, claims, name)); got != test.want {
					t.Errorf("Backdate %v: %s lies %v back, want %v", test.backdate, name, got, test.want)
				}
			}
			if exp := unixTime(t, claims, "exp"); !exp.Equal(token.Expiry) || exp.Sub(now) != time.Minute {
				t.Errorf("Backdate %v: exp is %v from now, Expiry %v, want a minute", test.backdate, exp.Sub(now), token.Expiry.Sub(now))
			}
		})
	}
}

// C36: GitHub refuses tokens from a future that is five seconds away by its clock.
func TestBackdateForGitHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		google, config := systest.StartIAM(t, testutil.InMemory())
		github := systest.StartToken(t, testutil.InMemory())
		client := systest.TokenClient(google)
		client.Installation = "42"
		client.MaxLifetime = 10 * time.Minute
		github.Register(client)
		github.SetClock(-5 * time.Second)
		for _, test := range []struct {
			backdate, lifetime time.Duration
			want               int
		}{
			{0, 9 * time.Minute, http.StatusUnauthorized},
			{5 * time.Second, 9 * time.Minute, http.StatusOK},
			{time.Minute, 9 * time.Minute, http.StatusOK},
			{time.Minute, 11 * time.Minute, http.StatusUnauthorized},
		} {
			source, err := oauth2.NewTokenSource(gcpjwt.NewIAMContext(t.Context(), config), oauth2.Config{
				Method:   gcpjwt.SigningMethodIAMJWT,
				Issuer:   account,
				Lifetime: test.lifetime,
				Backdate: test.backdate,
			})
			if err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, github.URL()+"/app", nil)
			if err != nil {
				t.Fatal(err)
			}
			mustToken(t, source).SetAuthHeader(request)
			response, err := github.Client().Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body := read(t, response)
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
			if response.StatusCode != test.want {
				t.Errorf("Backdate %v, Lifetime %v: got %s, want %d: %s", test.backdate, test.lifetime, response.Status, test.want, body)
			}
		}
	})
}

// C36: each token has a jti of its own, if it has one.
func TestJWTID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, config := systest.StartKMSKey(t, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, testutil.InMemory())
		seen := make(map[any]bool)
		for _, on := range []bool{true, false} {
			source, err := oauth2.NewTokenSource(gcpjwt.NewKMSContext(t.Context(), config), oauth2.Config{
				Method: gcpjwt.SigningMethodKMSES256,
				JWTID:  on,
			})
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				jti, ok := assertion(t, mustToken(t, source).AccessToken)["jti"]
				if ok != on {
					t.Errorf("JWTID %v: got jti %v", on, jti)
				}
				if on && seen[jti] {
					t.Errorf("jti %v has been there before", jti)
				}
				seen[jti] = true
				time.Sleep(2 * time.Hour)
			}
		}
	})
}

// C36: the header takes further fields, and keeps those of the signer. What the caller does to
// the map later changes no token.
func TestHeader(t *testing.T) {
	for _, method := range []jwt.SigningMethod{gcpjwt.SigningMethodKMSES256, gcpjwt.SigningMethodIAMBlob} {
		synctest.Test(t, func(t *testing.T) {
			_, kms := systest.StartKMSKey(t, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, testutil.InMemory())
			_, iam := systest.StartIAM(t, testutil.InMemory())
			ctx := gcpjwt.NewIAMContext(gcpjwt.NewKMSContext(t.Context(), kms), iam)
			header := map[string]any{"typ": "client-authentication+jwt", "x5t": "dGh1bWI"}
			source, err := oauth2.NewTokenSource(ctx, oauth2.Config{Method: method, Header: header})
			if err != nil {
				t.Fatal(err)
			}
			header["typ"] = "changed"
			time.Sleep(2 * time.Hour)
			token, _, err := jwt.NewParser().ParseUnverified(mustToken(t, source).AccessToken, jwt.MapClaims{})
			if err != nil {
				t.Fatal(err)
			}
			got := token.Header
			if got["typ"] != "client-authentication+jwt" || got["x5t"] != "dGh1bWI" || got["kid"] == nil || got["alg"] == nil {
				t.Errorf("%s: the header is %v", method.Alg(), got)
			}
		})
	}
}
