package oauth2_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	xoauth2 "golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

func mustToken(t testing.TB, source xoauth2.TokenSource) *xoauth2.Token {
	t.Helper()
	token, err := source.Token()
	if err != nil {
		t.Fatalf("Token: %v", err)
	}
	return token
}

// Every kind of method makes tokens whose claims are those of the Config and
// whose Expiry is the JWT's exp (R07).
func TestNewTokenSource(t *testing.T) {
	ctx := context.Background()
	iam := gcpjwttest.NewIAM(t).NewAccount(account)
	kms := gcpjwttest.NewKMS(t)
	es256 := kms.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	hs256 := kms.NewKey(kmspb.CryptoKeyVersion_HMAC_SHA256)
	app, err := testutil.NewAppEngine()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	kmsKeyfunc := func(config *gcpjwt.KMSConfig) jwt.Keyfunc {
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		return keyfunc
	}

	for _, test := range []struct {
		method  jwt.SigningMethod
		ctx     context.Context
		keyfunc jwt.Keyfunc
	}{
		{gcpjwt.SigningMethodKMSES256, gcpjwt.NewKMSContext(ctx, es256), kmsKeyfunc(es256)},
		{gcpjwt.SigningMethodKMSHS256, gcpjwt.NewKMSContext(ctx, hs256), kmsKeyfunc(hs256)},
		{gcpjwt.SigningMethodIAMBlob, gcpjwt.NewIAMContext(ctx, iam), gcpjwt.IAMVerifyKeyfunc(ctx, iam)},
		{gcpjwt.SigningMethodIAMJWT, gcpjwt.NewIAMContext(ctx, iam), gcpjwt.IAMVerifyKeyfunc(ctx, iam)},
		{gcpjwt.SigningMethodAppEngine, app.Context(ctx), gcpjwt.AppEngineVerifyKeyfunc(app.Context(ctx), false, 0)},
	} {
		t.Run(test.method.Alg(), func(t *testing.T) {
			before := time.Now().Truncate(time.Second)
			source, err := oauth2.NewTokenSource(test.ctx, oauth2.Config{
				Method:   test.method,
				Issuer:   "issuer",
				Subject:  "subject",
				Audience: []string{audience},
				Lifetime: 90*time.Minute + 700*time.Millisecond,
				Claims:   map[string]any{"scope": "read", "tenant": map[string]any{"id": "t-1"}},
			})
			if err != nil {
				t.Fatalf("NewTokenSource: %v", err)
			}
			token := mustToken(t, source)
			if token.TokenType != "Bearer" || !token.Valid() {
				t.Errorf("got type %q, valid %v, want a valid Bearer token", token.TokenType, token.Valid())
			}
			claims := parse(t, token.AccessToken, test.keyfunc)
			if exp := unixTime(t, claims, "exp"); !token.Expiry.Equal(exp) {
				t.Errorf("Expiry is %v, exp %v", token.Expiry, exp)
			}
			iat := unixTime(t, claims, "iat")
			if iat.Before(before) || iat.After(time.Now()) {
				t.Errorf("iat is %v, want now", iat)
			}
			if got := token.Expiry.Sub(iat); got != 90*time.Minute {
				t.Errorf("the token lives for %v, want 90 minutes", got)
			}
			want := jwt.MapClaims{
				"iss": "issuer", "sub": "subject", "aud": audience,
				"scope": "read", "tenant": map[string]any{"id": "t-1"},
				"iat": claims["iat"], "nbf": claims["iat"], "exp": claims["exp"],
			}
			if diff := cmp.Diff(want, claims); diff != "" {
				t.Errorf("claims differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestJWTAccessTokenSource(t *testing.T) {
	for _, test := range []struct {
		name string
		kind gcpjwt.IAMType
		call string
	}{
		{"signBlob", gcpjwt.IAMBlobType, "signBlob"},
		{"signJwt", gcpjwt.IAMJwtType, "signJwt"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := gcpjwttest.NewIAM(t)
			config := server.NewAccount(account)
			config.IAMType = test.kind
			source, err := oauth2.JWTAccessTokenSource(context.Background(), config, audience)
			if err != nil {
				t.Fatalf("JWTAccessTokenSource: %v", err)
			}
			if server.Calls(test.call) == 0 || server.Calls(test.call) != server.Calls("") {
				t.Errorf("%d of %d calls were %s, want all", server.Calls(test.call), server.Calls(""), test.call)
			}
			claims := parse(t, mustToken(t, source).AccessToken, gcpjwt.IAMVerifyKeyfunc(context.Background(), config))
			want := jwt.MapClaims{
				"iss": account, "sub": account, "aud": audience,
				"iat": claims["iat"], "nbf": claims["iat"], "exp": claims["exp"],
			}
			if diff := cmp.Diff(want, claims); diff != "" {
				t.Errorf("claims differ (-want +got):\n%s", diff)
			}
			if got := unixTime(t, claims, "exp").Sub(unixTime(t, claims, "iat")); got != time.Hour {
				t.Errorf("the token lives for %v, want an hour", got)
			}
		})
	}
}

// Claims that are empty are left out, and several audiences are an array.
func TestClaims(t *testing.T) {
	config := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	ctx := gcpjwt.NewKMSContext(context.Background(), config)
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	times := []string{"exp", "iat", "nbf"}
	for _, test := range []struct {
		name   string
		config oauth2.Config
		want   jwt.MapClaims
	}{
		{"none", oauth2.Config{}, jwt.MapClaims{}},
		{"one audience", oauth2.Config{Audience: []string{"a"}}, jwt.MapClaims{"aud": "a"}},
		{"two audiences", oauth2.Config{Audience: []string{"a", "b"}}, jwt.MapClaims{"aud": []any{"a", "b"}}},
		{"issuer", oauth2.Config{Issuer: "i"}, jwt.MapClaims{"iss": "i"}},
		{"subject", oauth2.Config{Subject: "s"}, jwt.MapClaims{"sub": "s"}},
		{"another", oauth2.Config{Claims: map[string]any{"jti": "j"}}, jwt.MapClaims{"jti": "j"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.config.Method = gcpjwt.SigningMethodKMSES256
			source, err := oauth2.NewTokenSource(ctx, test.config)
			if err != nil {
				t.Fatalf("NewTokenSource: %v", err)
			}
			got := parse(t, mustToken(t, source).AccessToken, keyfunc)
			for _, name := range times {
				if _, ok := got[name]; !ok {
					t.Errorf("%s is missing", name)
				}
				delete(got, name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("claims differ (-want +got):\n%s", diff)
			}
		})
	}
}

// What the caller does to its Config later changes no token.
func TestConfigIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, config := systest.StartIAM(t, testutil.InMemory())
		given := oauth2.Config{
			Method:   gcpjwt.SigningMethodIAMJWT,
			Audience: []string{"a", "b"},
			Claims:   map[string]any{"scope": "read"},
		}
		source, err := oauth2.NewTokenSource(gcpjwt.NewIAMContext(t.Context(), config), given)
		if err != nil {
			t.Fatal(err)
		}
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		first := parse(t, mustToken(t, source).AccessToken, keyfunc)
		given.Audience[0], given.Claims["scope"], given.Claims["exp"] = "other", "write", 1
		time.Sleep(2 * time.Hour)
		second := parse(t, mustToken(t, source).AccessToken, keyfunc)
		for _, claims := range []jwt.MapClaims{first, second} {
			maps.DeleteFunc(claims, func(name string, _ any) bool { return name == "iat" || name == "nbf" || name == "exp" })
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("claims changed (-first +second):\n%s", diff)
		}
	})
}

// A configuration that cannot work fails at start-up, without any call.
func TestConstructionErrors(t *testing.T) {
	iamServer, kmsServer := gcpjwttest.NewIAM(t), gcpjwttest.NewKMS(t)
	iam, kms := iamServer.NewAccount(account), kmsServer.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	iam.IAMType = gcpjwt.IAMJwtType
	var noContext context.Context
	both := gcpjwt.NewKMSContext(gcpjwt.NewIAMContext(context.Background(), iam), kms)
	account := func(change func(*gcpjwt.IAMConfig)) *gcpjwt.IAMConfig {
		config := *iam
		change(&config)
		return &config
	}
	source := func(ctx context.Context, config oauth2.Config) func() error {
		return func() error {
			_, err := oauth2.NewTokenSource(ctx, config)
			return err
		}
	}
	access := func(config *gcpjwt.IAMConfig, audience string) func() error {
		return func() error {
			_, err := oauth2.JWTAccessTokenSource(context.Background(), config, audience)
			return err
		}
	}
	with := func(name string) oauth2.Config {
		return oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, Claims: map[string]any{name: "x"}}
	}

	for _, test := range []struct {
		name string
		make func() error
		want error
		text string
	}{
		{"no method", source(both, oauth2.Config{}), gcpjwt.ErrInvalidConfig, "Signer or Method"},
		{"no context", source(noContext, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256}), gcpjwt.ErrMissingConfig, "context.Context"},
		{"access: no context", func() error {
			_, err := oauth2.JWTAccessTokenSource(noContext, iam, audience)
			return err
		}, gcpjwt.ErrMissingConfig, "context.Context"},
		{"jwt's method", source(both, oauth2.Config{Method: jwt.SigningMethodES256}), gcpjwt.ErrInvalidConfig, "*jwt.SigningMethodECDSA"},
		{"no KMS configuration", source(context.Background(), oauth2.Config{Method: gcpjwt.SigningMethodKMSES256}), gcpjwt.ErrMissingConfig, "KMSConfig"},
		{"no IAM configuration", source(context.Background(), oauth2.Config{Method: gcpjwt.SigningMethodIAMJWT}), gcpjwt.ErrMissingConfig, "IAMConfig"},
		{"negative lifetime", source(both, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, Lifetime: -time.Hour}), gcpjwt.ErrInvalidConfig, "-1h0m0s"},
		{"short lifetime", source(both, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, Lifetime: time.Second - 1}), gcpjwt.ErrInvalidConfig, "one second"},
		{"signJwt over 12 hours", source(both, oauth2.Config{Method: gcpjwt.SigningMethodIAMJWT, Lifetime: 12*time.Hour + 1}), gcpjwt.ErrInvalidConfig, "12 hours"},
		{"iss twice", source(both, with("iss")), gcpjwt.ErrInvalidConfig, "iss is not for it: set Issuer"},
		{"sub twice", source(both, with("sub")), gcpjwt.ErrInvalidConfig, "sub is not for it: set Subject"},
		{"aud twice", source(both, with("aud")), gcpjwt.ErrInvalidConfig, "aud is not for it: set Audience"},
		{"exp twice", source(both, with("exp")), gcpjwt.ErrInvalidConfig, "exp is not for it: set Lifetime"},
		{"nbf twice", source(both, with("nbf")), gcpjwt.ErrInvalidConfig, "nbf is not for it"},
		{"iat twice", source(both, with("iat")), gcpjwt.ErrInvalidConfig, "iat is not for it"},
		{"jti twice", source(both, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, JWTID: true, Claims: map[string]any{"jti": "1"}}), gcpjwt.ErrInvalidConfig, "jti is not for it"},
		{"negative Backdate", source(both, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, Backdate: -1}), gcpjwt.ErrInvalidConfig, "Backdate -1ns"},
		{"long Backdate", source(both, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, Backdate: 10*time.Minute + 1}), gcpjwt.ErrInvalidConfig, "Backdate 10m0.000000001s"},
		{"alg", source(both, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, Header: map[string]any{"alg": "none"}}), gcpjwt.ErrInvalidConfig, "alg is not for it"},
		{"KID", source(both, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, Header: map[string]any{"KID": "1"}}), gcpjwt.ErrInvalidConfig, "KID is not for it"},
		{"header of signJwt", source(both, oauth2.Config{Method: gcpjwt.SigningMethodIAMJWT, Header: map[string]any{"typ": "at+jwt"}}), gcpjwt.ErrInvalidConfig, "Header"},
		{"empty audience", source(both, oauth2.Config{Method: gcpjwt.SigningMethodKMSES256, Audience: []string{"a", ""}}), gcpjwt.ErrInvalidConfig, "Audience"},
		{"access: no configuration", access(nil, audience), gcpjwt.ErrMissingConfig, "IAMConfig"},
		{"access: no type", access(account(func(c *gcpjwt.IAMConfig) { c.IAMType = 0 }), audience), gcpjwt.ErrInvalidConfig, "IAMType"},
		{"access: unknown type", access(account(func(c *gcpjwt.IAMConfig) { c.IAMType = 7 }), audience), gcpjwt.ErrInvalidConfig, "IAMType"},
		{"access: no audience", access(iam, ""), gcpjwt.ErrInvalidConfig, "Audience"},
		{"access: no account", access(account(func(c *gcpjwt.IAMConfig) { c.ServiceAccount = "" }), audience), gcpjwt.ErrInvalidConfig, "ServiceAccount"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.make()
			if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q", err, test.want, test.text)
			}
		})
	}
	if n := iamServer.Calls("") + kmsServer.Calls(""); n != 0 {
		t.Errorf("%d calls were made, want none", n)
	}
}

// An error of the first signature is the constructor's.
func TestFirstTokenFails(t *testing.T) {
	server, config := systest.StartIAM(t)
	server.Deny("iam.serviceAccounts.signJwt")
	source, err := oauth2.JWTAccessTokenSource(context.Background(), config, audience)
	if source != nil || err == nil || !strings.Contains(err.Error(), "iam.serviceAccounts.signJwt") {
		t.Errorf("got %v, %v, want no source and an error that names the permission", source, err)
	}
}

// B11: Google's clock may be behind ours, so exp keeps away from the limit.
func TestLongLifetime(t *testing.T) {
	config := gcpjwttest.NewIAM(t).NewAccount(account)
	ctx := gcpjwt.NewIAMContext(context.Background(), config)
	for _, test := range []struct {
		method         jwt.SigningMethod
		lifetime, want time.Duration
	}{
		{gcpjwt.SigningMethodIAMJWT, 12 * time.Hour, 12*time.Hour - time.Minute},
		{gcpjwt.SigningMethodIAMJWT, 11 * time.Hour, 11 * time.Hour},
		{gcpjwt.SigningMethodIAMBlob, 48 * time.Hour, 48 * time.Hour},
	} {
		source, err := oauth2.NewTokenSource(ctx, oauth2.Config{Method: test.method, Lifetime: test.lifetime})
		if err != nil {
			t.Errorf("%s, %v: %v", test.method.Alg(), test.lifetime, err)
			continue
		}
		claims := parse(t, mustToken(t, source).AccessToken, gcpjwt.IAMVerifyKeyfunc(ctx, config))
		if got := unixTime(t, claims, "exp").Sub(unixTime(t, claims, "iat")); got != test.want {
			t.Errorf("%s, %v: the token lives for %v, want %v", test.method.Alg(), test.lifetime, got, test.want)
		}
	}
}

// Failures that no caller sees go to the Logger of the method's configuration.
func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, config := systest.StartIAM(t, testutil.InMemory())
		var log, other bytes.Buffer
		config.Logger = slog.New(slog.NewTextHandler(&log, nil))
		ctx := gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{Logger: slog.New(slog.NewTextHandler(&other, nil))})
		source, err := oauth2.JWTAccessTokenSource(ctx, config, audience)
		if err != nil {
			t.Fatal(err)
		}
		server.Deny("iam.serviceAccounts.signJwt")
		time.Sleep(56 * time.Minute)
		mustToken(t, source)
		synctest.Wait()
		for _, want := range []string{"level=WARN", "keeping the known token", account, "iam.serviceAccounts.signJwt"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log %q lacks %q", log.String(), want)
			}
		}
		if other.Len() > 0 {
			t.Errorf("another method's logger was told: %q", other.String())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		server, config := systest.StartKMSKey(t, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, testutil.InMemory())
		var log bytes.Buffer
		config.Logger = slog.New(slog.NewTextHandler(&log, nil))
		source, err := oauth2.NewTokenSource(gcpjwt.NewKMSContext(t.Context(), config), oauth2.Config{Method: gcpjwt.SigningMethodKMSES256})
		if err != nil {
			t.Fatal(err)
		}
		server.Deny("cloudkms.cryptoKeyVersions.useToSign")
		time.Sleep(56 * time.Minute)
		mustToken(t, source)
		synctest.Wait()
		if !strings.Contains(log.String(), "useToSign") {
			t.Errorf("the log %q lacks the permission", log.String())
		}
	})
}

// Any number of transports may share a source, which the race detector confirms.
func TestTransports(t *testing.T) {
	_, config := systest.StartIAM(t)
	source, err := oauth2.JWTAccessTokenSource(context.Background(), config, audience)
	if err != nil {
		t.Fatal(err)
	}
	want := "Bearer " + mustToken(t, source).AccessToken
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		if got := r.Header.Get("Authorization"); got != want {
			t.Errorf("got Authorization %q, want %q", got, want)
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			client := http.Client{Transport: &xoauth2.Transport{Source: source, Base: base}}
			for range 20 {
				if _, err := client.Get(audience); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// B18: importing the package changes no stock method.
func TestStockMethods(t *testing.T) {
	for _, method := range []jwt.SigningMethod{
		jwt.SigningMethodRS256, jwt.SigningMethodRS512, jwt.SigningMethodPS256, jwt.SigningMethodES256,
		jwt.SigningMethodES384, jwt.SigningMethodEdDSA, jwt.SigningMethodHS256,
	} {
		if got := jwt.GetSigningMethod(method.Alg()); got != method {
			t.Errorf("%s is a %T, want jwt's own", method.Alg(), got)
		}
	}
}

// A hit costs nothing.
func TestTokenAllocates(t *testing.T) {
	_, config := systest.StartIAM(t)
	signed, err := oauth2.JWTAccessTokenSource(context.Background(), config, audience)
	if err != nil {
		t.Fatal(err)
	}
	exchanged := startExchange(t).source(t, oauth2.NewJWTBearerSource)
	for name, source := range map[string]xoauth2.TokenSource{"signed": signed, "exchanged": exchanged} {
		if n := testing.AllocsPerRun(1000, func() { mustToken(t, source) }); n != 0 {
			t.Errorf("%s: Token makes %v allocations, want none", name, n)
		}
	}
}

func BenchmarkToken(b *testing.B) {
	_, config := systest.StartIAM(b)
	source, err := oauth2.JWTAccessTokenSource(context.Background(), config, audience)
	if err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name   string
		source xoauth2.TokenSource
	}{
		{"source", source},
		{"ReuseTokenSource", xoauth2.ReuseTokenSource(nil, source)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bench.source.Token(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(bench.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := bench.source.Token(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
