package oauth2_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	xoauth2 "golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// A constructor makes a source of one of the grants.
type constructor = func(context.Context, oauth2.ExchangeConfig) (xoauth2.TokenSource, error)

var constructors = map[string]constructor{
	"JWTBearer":         oauth2.NewJWTBearerSource,
	"ClientCredentials": oauth2.NewClientCredentialsSource,
}

// An exchangeRig is a service account on a server, and a token endpoint that knows it.
type exchangeRig struct {
	google   *testutil.IAM
	endpoint *testutil.TokenServer
	client   testutil.TokenClient
	ctx      context.Context
	config   oauth2.ExchangeConfig
}

func startExchange(t *testing.T, opts ...testutil.Option) *exchangeRig {
	t.Helper()
	google, iam := systest.StartIAM(t, opts...)
	iam.Logger = slog.New(slog.DiscardHandler)
	endpoint := systest.StartToken(t, opts...)
	client := systest.TokenClient(google)
	endpoint.Register(client)
	return &exchangeRig{google, endpoint, client, gcpjwt.NewIAMContext(t.Context(), iam), oauth2.ExchangeConfig{
		Config:   oauth2.Config{Method: gcpjwt.SigningMethodIAMJWT, Issuer: account, Subject: account},
		TokenURL: endpoint.TokenURL(),
		Client:   endpoint.Client(),
	}}
}

// source makes a source that must work.
func (r *exchangeRig) source(t *testing.T, make constructor) xoauth2.TokenSource {
	t.Helper()
	source, err := make(r.ctx, r.config)
	if err != nil {
		t.Fatalf("make a source: %v", err)
	}
	return source
}

// get calls the endpoint's API with a token of the source.
func (r *exchangeRig) get(t *testing.T, source xoauth2.TokenSource) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.endpoint.APIURL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	mustToken(t, source).SetAuthHeader(request)
	response, err := r.endpoint.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the API answered %s", response.Status)
	}
	return read(t, response)
}

// assertion returns the claims of an assertion.
func assertion(t *testing.T, text string) jwt.MapClaims {
	t.Helper()
	claims := jwt.MapClaims{}
	if _, _, err := jwt.NewParser(jwt.WithJSONNumber()).ParseUnverified(text, claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

// What goes to the endpoint is what RFC 7523 wants there.
func TestExchange(t *testing.T) {
	bearer := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}}
	credentials := url.Values{
		"grant_type":            {"client_credentials"},
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
		"client_id":             {account},
	}
	for _, test := range []struct {
		name      string
		make      constructor
		change    func(*exchangeRig)
		parameter string
		form      url.Values // without the assertion
		claims    jwt.MapClaims
		answer    string
	}{
		{
			"bearer", oauth2.NewJWTBearerSource, func(r *exchangeRig) {
				r.config.Subject = ""
				r.client.Subjects = []string{""}
			}, "assertion", bearer, jwt.MapClaims{}, "hello, , with read write",
		},
		{
			"bearer with scopes", oauth2.NewJWTBearerSource, func(r *exchangeRig) {
				r.config.Scopes = []string{"write", "read"}
				r.config.Subject = "user@example.com"
				r.client.Subjects = []string{"user@example.com"}
				r.client.ScopeClaim = true
			}, "assertion", url.Values{"scope": {"write read"}},
			jwt.MapClaims{"sub": "user@example.com", "scope": "write read"}, "hello, user@example.com, with write read",
		},
		{
			"bearer with a claim scope", oauth2.NewJWTBearerSource, func(r *exchangeRig) {
				r.config.Claims = map[string]any{"scope": "write"}
				r.client.ScopeClaim = true
			}, "assertion", bearer, jwt.MapClaims{"sub": account, "scope": "write"}, "hello, " + account + ", with write",
		},
		{
			"bearer with parameters", oauth2.NewJWTBearerSource, func(r *exchangeRig) {
				r.config.EndpointParams = url.Values{"resource": {"https://api.example.com"}, "client_secret": {"hush"}}
				r.config.Audience = []string{"https://other.example.com", "https://audience.example.com"}
				r.client.Audience = "https://audience.example.com"
			}, "assertion", url.Values{"resource": {"https://api.example.com"}, "client_secret": {"hush"}},
			jwt.MapClaims{"sub": account, "aud": []any{"https://other.example.com", "https://audience.example.com"}},
			"hello, " + account + ", with read write",
		},
		{
			"credentials", oauth2.NewClientCredentialsSource, func(r *exchangeRig) { r.config.Subject = "" },
			"client_assertion", credentials, jwt.MapClaims{"sub": account}, "hello, " + account + ", with read write",
		},
		{
			"credentials with scopes", oauth2.NewClientCredentialsSource, func(r *exchangeRig) { r.config.Scopes = []string{"read"} },
			"client_assertion", url.Values{"scope": {"read"}}, jwt.MapClaims{"sub": account}, "hello, " + account + ", with read",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rig := startExchange(t, testutil.InMemory())
				test.change(rig)
				rig.endpoint.Register(rig.client)
				source := rig.source(t, test.make)
				if got := rig.get(t, source); got != test.answer {
					t.Errorf("the API says %q, want %q", got, test.answer)
				}

				want := url.Values{}
				base := bearer
				if test.parameter == "client_assertion" {
					base = credentials
				}
				maps.Copy(want, base)
				maps.Copy(want, test.form)
				form := rig.endpoint.Form()
				claims := assertion(t, form.Get(test.parameter))
				form.Del(test.parameter)
				if diff := cmp.Diff(want, form); diff != "" {
					t.Errorf("the form differs (-want +got):\n%s", diff)
				}

				if exp, iat := unixTime(t, claims, "exp"), unixTime(t, claims, "iat"); exp.Sub(iat) != 5*time.Minute {
					t.Errorf("the assertion lives for %v, want 5 minutes", exp.Sub(iat))
				}
				if jti, _ := claims["jti"].(string); len(jti) < 22 {
					t.Errorf("jti is %v, want 128 bits at least", claims["jti"])
				}
				wanted := jwt.MapClaims{"iss": account, "aud": rig.endpoint.TokenURL()}
				maps.Copy(wanted, test.claims)
				for _, name := range []string{"exp", "iat", "nbf", "jti"} {
					delete(claims, name)
				}
				if diff := cmp.Diff(wanted, claims); diff != "" {
					t.Errorf("claims differ (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A token lives for as long as the endpoint says, counted from the request, and an hour
// if that says nothing.
func TestExchangeExpiry(t *testing.T) {
	for name, make := range constructors {
		for _, test := range []struct {
			expiresIn   any
			contentType string
			want        time.Duration
		}{
			{3600, "application/json", time.Hour},
			{1, "application/json", time.Second},
			{math31, "application/json", math31 * time.Second},
			{nil, "application/json", time.Hour},
			{"", "application/x-www-form-urlencoded", time.Hour},
			{"90", "application/x-www-form-urlencoded", 90 * time.Second},
			{"90", "text/plain; charset=utf-8", 90 * time.Second},
		} {
			synctest.Test(t, func(t *testing.T) {
				rig := startExchange(t, testutil.InMemory())
				rig.endpoint.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
					time.Sleep(500 * time.Millisecond)
					w.Header().Set("Content-Type", test.contentType)
					answer := map[string]any{"access_token": "token", "token_type": "bearer", "instance_url": "https://eu1.example.com"}
					if test.expiresIn != nil {
						answer["expires_in"] = test.expiresIn
					}
					write(w, answer)
				})
				began := time.Now()
				token := mustToken(t, rig.source(t, make))
				if got := token.Expiry.Sub(began); got != test.want {
					t.Errorf("%s: with expires_in %v the token lives for %v, want %v", name, test.expiresIn, got, test.want)
				}
				if token.Type() != "Bearer" || token.AccessToken != "token" || token.Extra("instance_url") != "https://eu1.example.com" {
					t.Errorf("%s: got %v with %v", name, token, token.Extra("instance_url"))
				}
			})
		}
	}
}

const math31 = 1<<31 - 1

// write writes an answer as the Content-Type says.
func write(w http.ResponseWriter, answer map[string]any) {
	if w.Header().Get("Content-Type") == "application/json" {
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	form := url.Values{}
	for name, value := range answer {
		if text, _ := value.(string); text != "" {
			form.Set(name, text)
		}
	}
	_, _ = w.Write([]byte(form.Encode()))
}

// A thousand renewals are a thousand signatures and requests, each with a jti of its own.
// The first half is fetched in the background, for the second half a caller waits.
func TestExchangeRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const renewals = 1000
		rig := startExchange(t, testutil.InMemory())
		source := rig.source(t, oauth2.NewJWTBearerSource)
		last := mustToken(t, source)
		for i := range renewals {
			time.Sleep(55*time.Minute + 30*time.Second)
			if i >= renewals/2 {
				time.Sleep(time.Hour)
			}
			mustToken(t, source)
			synctest.Wait()
			token := mustToken(t, source)
			if token == last || !token.Valid() {
				t.Fatalf("renewal %d: got the old token, or an expired one", i)
			}
			last = token
		}
		if got := rig.endpoint.JTIs(); got != renewals+1 {
			t.Errorf("the endpoint accepted %d assertions, each with a jti of its own, want %d", got, renewals+1)
		}
		if got := rig.endpoint.Calls("token"); got != renewals+1 {
			t.Errorf("the endpoint got %d requests, want %d", got, renewals+1)
		}
		if got := rig.google.Calls("signJwt"); got != renewals+1 {
			t.Errorf("%d signatures were made, want %d", got, renewals+1)
		}
		if got, want := rig.get(t, source), "hello, "+account+", with read write"; got != want {
			t.Errorf("the API says %q, want %q", got, want)
		}
	})
}

// Any number of callers share an exchange, at the start of an outage too.
func TestExchangeConcurrentCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := startExchange(t, testutil.InMemory())
		source := rig.source(t, oauth2.NewJWTBearerSource)
		rig.endpoint.SetLatency(time.Second)
		time.Sleep(2 * time.Hour)
		rig.endpoint.ResetCalls()
		rig.google.ResetCalls()

		tokens := make([]*xoauth2.Token, 200)
		var callers sync.WaitGroup
		for i := range tokens {
			callers.Go(func() { tokens[i] = mustToken(t, source) })
		}
		callers.Wait()
		if slices.ContainsFunc(tokens, func(token *xoauth2.Token) bool { return token != tokens[0] || !token.Valid() }) {
			t.Error("the callers got different tokens, or an expired one")
		}
		if got := [2]int{rig.google.Calls("signJwt"), rig.endpoint.Calls("token")}; got != [2]int{1, 1} {
			t.Errorf("%d signatures and requests were made, want one of each", got)
		}
	})
}

// A configuration that cannot work fails at start-up, without any call.
func TestExchangeConstructionErrors(t *testing.T) {
	rig := startExchange(t)
	blob := func(c *oauth2.ExchangeConfig) { c.Method = gcpjwt.SigningMethodIAMBlob }
	params := func(name string) func(*oauth2.ExchangeConfig) {
		return func(c *oauth2.ExchangeConfig) { c.EndpointParams = url.Values{name: {"x"}} }
	}
	tokenURL := func(text string) func(*oauth2.ExchangeConfig) {
		return func(c *oauth2.ExchangeConfig) { c.TokenURL = text }
	}
	for _, test := range []struct {
		name   string
		change func(*oauth2.ExchangeConfig)
		only   string // the constructor that refuses; "": both
		text   string
	}{
		{"no TokenURL", tokenURL(""), "", "TokenURL"},
		{"http", tokenURL("http://login.example.com/token"), "", "https"},
		{"http to something like loopback", tokenURL("http://127.0.0.1.example.com/token"), "", "https"},
		{"no host", tokenURL("https:///token"), "", "TokenURL"},
		{"no scheme", tokenURL("login.example.com/token"), "", "TokenURL"},
		{"another scheme", tokenURL("ftp://login.example.com/token"), "", "https"},
		{"no URL", tokenURL("https://login.example.com/%zz"), "", "TokenURL"},
		{"user", tokenURL("https://user:password@login.example.com/token"), "", "TokenURL"},
		{"fragment", tokenURL("https://login.example.com/token#"), "", "TokenURL"},
		{"no issuer", func(c *oauth2.ExchangeConfig) { c.Issuer = "" }, "", "Issuer"},
		{"no method", func(c *oauth2.ExchangeConfig) { c.Method = nil }, "", "Signer or Method"},
		{"grant_type", params("grant_type"), "", "grant_type"},
		{"scope", params("scope"), "", "scope"},
		{"assertion", params("assertion"), "", "assertion"},
		{"client_assertion", params("client_assertion"), "", "client_assertion"},
		{"client_assertion_type", params("client_assertion_type"), "", "client_assertion_type"},
		{"GRANT_TYPE", params("GRANT_TYPE"), "", "GRANT_TYPE"},
		{"client_id", params("client_id"), "ClientCredentials", "client_id"},
		{"client_secret", params("client_secret"), "ClientCredentials", "client_secret"},
		{"empty scope", func(c *oauth2.ExchangeConfig) { c.Scopes = []string{"a", ""} }, "", "Scopes"},
		{"two scopes in one", func(c *oauth2.ExchangeConfig) { c.Scopes = []string{"a b"} }, "", "Scopes"},
		{"scope twice", func(c *oauth2.ExchangeConfig) {
			c.Scopes, c.Claims = []string{"a"}, map[string]any{"scope": "a"}
		}, "", "scope"},
		{"jti", func(c *oauth2.ExchangeConfig) { c.Claims = map[string]any{"jti": "1"} }, "", "jti"},
		{"empty audience", func(c *oauth2.ExchangeConfig) { c.Audience = []string{""} }, "", "Audience"},
		{"Backdate", func(c *oauth2.ExchangeConfig) { c.Backdate = time.Hour }, "", "Backdate"},
		{"header of signJwt", func(c *oauth2.ExchangeConfig) { c.Header = map[string]any{"typ": "JWT"} }, "", "Header"},
		{"alg", func(c *oauth2.ExchangeConfig) { blob(c); c.Header = map[string]any{"alg": "none"} }, "", "alg"},
	} {
		for name, make := range constructors {
			t.Run(test.name+"/"+name, func(t *testing.T) {
				config := rig.config
				test.change(&config)
				source, err := make(rig.ctx, config)
				if test.only != "" && test.only != name {
					if errors.Is(err, gcpjwt.ErrInvalidConfig) {
						t.Errorf("got %v, want none", err)
					}
					return
				}
				if source != nil || !errors.Is(err, gcpjwt.ErrInvalidConfig) || !strings.Contains(err.Error(), test.text) {
					t.Errorf("got %v, %v, want %v with %q", source, err, gcpjwt.ErrInvalidConfig, test.text)
				}
				if err != nil && strings.Contains(err.Error(), "password") {
					t.Errorf("the error %v shows a password", err)
				}
			})
		}
	}
	// Two parameters are allowed with the other grant.
	if got := [2]int{rig.google.Calls(""), rig.endpoint.Calls("")}; got != [2]int{2, 2} {
		t.Errorf("%d calls were made, want 2 of each", got)
	}
}

// What the caller does to its configuration later changes no request.
func TestExchangeConfigIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := startExchange(t, testutil.InMemory())
		client := *rig.endpoint.Client()
		rig.config.Client = &client
		rig.config.Scopes = []string{"read"}
		rig.config.EndpointParams = url.Values{"resource": {"first"}}
		source := rig.source(t, oauth2.NewClientCredentialsSource)
		first := rig.endpoint.Form()
		rig.config.Scopes[0] = "write"
		rig.config.EndpointParams["resource"][0] = "second"
		rig.config.EndpointParams.Set("other", "third")
		client.Transport = nil
		time.Sleep(2 * time.Hour)
		mustToken(t, source)
		second := rig.endpoint.Form()
		first.Del("client_assertion")
		second.Del("client_assertion")
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("the form changed (-first +second):\n%s", diff)
		}
	})
}
