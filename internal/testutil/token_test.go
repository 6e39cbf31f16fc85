package testutil

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	grantJWT      = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	assertionJWT  = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	tokenClientID = "client"
)

// A tokenRig is a server with one client, which has the key "key".
type tokenRig struct {
	*TokenServer
	key *ecdsa.PrivateKey
	n   int // assertions so far
}

func startToken(t *testing.T, change func(*TokenClient)) *tokenRig {
	t.Helper()
	server, err := NewTokenServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	client := TokenClient{
		ID:         tokenClientID,
		Algorithms: []string{"ES256"},
		Scopes:     []string{"read", "write"},
		Key: func(kid string) crypto.PublicKey {
			if kid == "key" {
				return key.Public()
			}
			return nil
		},
	}
	if change != nil {
		change(&client)
	}
	server.Register(client)
	return &tokenRig{TokenServer: server, key: key}
}

// sign makes a good assertion with changes. A claim or field of nil is left out.
func (r *tokenRig) sign(t *testing.T, header, claims map[string]any) string {
	t.Helper()
	r.n++
	now := time.Now().Truncate(time.Second)
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": tokenClientID, "sub": tokenClientID, "aud": r.TokenURL(), "jti": fmt.Sprint(r.n),
		"iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	})
	token.Header["kid"] = "key"
	change := func(into, from map[string]any) {
		maps.Copy(into, from)
		maps.DeleteFunc(into, func(_ string, value any) bool { return value == nil })
	}
	change(token.Header, header)
	change(token.Claims.(jwt.MapClaims), claims)
	text, err := token.SignedString(r.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// post sends a form to the token endpoint.
func (r *tokenRig) post(t *testing.T, form url.Values, change func(*http.Request)) (int, map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.TokenURL(), strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if change != nil {
		change(request)
	}
	return r.do(t, request)
}

func (r *tokenRig) do(t *testing.T, request *http.Request) (int, map[string]any) {
	t.Helper()
	response, err := r.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer := make(map[string]any)
	if json.Unmarshal(body, &answer) != nil {
		answer["text"] = string(body)
	}
	return response.StatusCode, answer
}

// bearer asks a path with a bearer token.
func (r *tokenRig) bearer(t *testing.T, method, path, token string) (int, map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	return r.do(t, request)
}

// The server gives tokens to its client, and takes them.
func TestTokenServer(t *testing.T) {
	r := startToken(t, nil)
	r.SetExpiresIn(90 * time.Second)
	r.SetExtra(map[string]any{"instance_url": "https://example.com"})
	for _, form := range []url.Values{
		{"grant_type": {grantJWT}, "assertion": {r.sign(t, nil, nil)}, "scope": {"write"}},
		{"grant_type": {"client_credentials"}, "client_assertion_type": {assertionJWT}, "client_assertion": {r.sign(t, nil, nil)}, "scope": {"write"}},
	} {
		status, answer := r.post(t, form, nil)
		if status != http.StatusOK || answer["token_type"] != "Bearer" || answer["expires_in"] != 90.0 ||
			answer["scope"] != "write" || answer["instance_url"] != "https://example.com" {
			t.Fatalf("got %d, %v", status, answer)
		}
		token := answer["access_token"].(string)
		if status, answer := r.bearer(t, http.MethodGet, "/api", token); status != http.StatusOK || answer["text"] != "hello, client, with write" {
			t.Errorf("the API says %d, %v", status, answer)
		}
		r.SetClock(91 * time.Second)
		if status, _ := r.bearer(t, http.MethodGet, "/api", token); status != http.StatusUnauthorized {
			t.Errorf("the API says %d to an expired token", status)
		}
		r.SetClock(0)
	}
	if r.Calls("token") != 2 || r.Calls("api") != 4 || r.JTIs() != 2 {
		t.Errorf("counted %d, %d calls and %d assertions", r.Calls("token"), r.Calls("api"), r.JTIs())
	}
}

// What RFC 6749, 7521 and 7523 let a server refuse is refused.
func TestTokenServerRefuses(t *testing.T) {
	now := time.Now().Unix()
	for _, test := range []struct {
		name           string
		client         func(*TokenClient)
		header, claims map[string]any
		form           url.Values // "": without it
		request        func(*http.Request)
		want           string // "": let through; invalid_grant is invalid_client for a client
	}{
		{name: "good"},
		{name: "no grant_type", form: url.Values{"grant_type": {""}}, want: "invalid_request"},
		{name: "another grant_type", form: url.Values{"grant_type": {"password"}}, want: "unsupported_grant_type"},
		{name: "no assertion", form: url.Values{"assertion": {""}, "client_assertion": {""}}, want: "invalid_request"},
		{name: "a parameter twice", form: url.Values{"scope": {"read", "write"}}, want: "invalid_request"},
		{name: "two ways to authenticate", request: func(r *http.Request) { r.SetBasicAuth("a", "b") }, want: "invalid_request"},
		{name: "JSON", request: func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }, want: "invalid_request"},
		{name: "a parameter in the URL", request: func(r *http.Request) { r.URL.RawQuery = "grant_type=x" }, want: "invalid_request"},
		{name: "no JWT", form: url.Values{"assertion": {"a.b.c"}, "client_assertion": {"a.b.c"}}, want: "invalid_grant"},
		{name: "another alg", client: func(c *TokenClient) { c.Algorithms = []string{"RS256"} }, want: "invalid_grant"},
		{name: "unknown kid", header: map[string]any{"kid": "other"}, want: "invalid_grant"},
		{name: "no kid", header: map[string]any{"kid": nil}, want: "invalid_grant"},
		{name: "another key", client: func(c *TokenClient) {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				panic(err)
			}
			c.Key = func(string) crypto.PublicKey { return key.Public() }
		}, want: "invalid_grant"},
		{name: "no x5t", client: func(c *TokenClient) { c.Header = map[string]string{"x5t": "a"} }, want: "invalid_grant"},
		{name: "x5t", client: func(c *TokenClient) { c.Header = map[string]string{"x5t": "a"} }, header: map[string]any{"x5t": "a"}},
		{name: "unknown iss", claims: map[string]any{"iss": "other"}, want: "invalid_grant"},
		{name: "no iss", claims: map[string]any{"iss": nil}, want: "invalid_grant"},
		{name: "another sub", claims: map[string]any{"sub": "other"}, want: "invalid_grant"},
		{name: "no sub", claims: map[string]any{"sub": nil}, want: "invalid_grant"},
		{name: "a sub of the client's", client: func(c *TokenClient) { c.Subjects = []string{"user"} }, claims: map[string]any{"sub": "user"}},
		{name: "another aud", claims: map[string]any{"aud": "https://example.com"}, want: "invalid_grant"},
		{name: "no aud", claims: map[string]any{"aud": nil}, want: "invalid_grant"},
		{name: "the client's aud", client: func(c *TokenClient) { c.Audience = "a" }, claims: map[string]any{"aud": []string{"b", "a"}}},
		{name: "expired", claims: map[string]any{"exp": now - 1}, want: "invalid_grant"},
		{name: "no exp", claims: map[string]any{"exp": nil}, want: "invalid_grant"},
		{name: "exp far ahead", claims: map[string]any{"exp": now + 3700}, want: "invalid_grant"},
		{name: "iat to come", claims: map[string]any{"iat": now + 60}, want: "invalid_grant"},
		{name: "no iat", claims: map[string]any{"iat": nil}, want: "invalid_grant"},
		{name: "nbf to come", claims: map[string]any{"nbf": now + 60}, want: "invalid_grant"},
		{name: "no jti", claims: map[string]any{"jti": nil}, want: "invalid_grant"},
		{name: "another's scope", form: url.Values{"scope": {"read admin"}}, want: "invalid_scope"},
		{name: "a scope in a claim", client: func(c *TokenClient) { c.ScopeClaim = true }, claims: map[string]any{"scope": "admin"}, want: "invalid_scope"},
		{name: "a scope elsewhere", client: func(c *TokenClient) { c.ScopeClaim = true }, form: url.Values{"scope": {"admin"}}},
	} {
		for _, credentials := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", test.name, credentials), func(t *testing.T) {
				r := startToken(t, test.client)
				text := r.sign(t, test.header, test.claims)
				form := url.Values{"grant_type": {grantJWT}, "assertion": {text}}
				want, wantStatus := test.want, http.StatusBadRequest
				if credentials {
					form = url.Values{"grant_type": {"client_credentials"}, "client_assertion_type": {assertionJWT}, "client_assertion": {text}}
					if want == "invalid_grant" {
						want, wantStatus = "invalid_client", http.StatusUnauthorized
					}
				}
				for name, values := range test.form {
					if form.Has(name) || !strings.HasSuffix(name, "assertion") { // not that of the other grant
						form[name] = values
					}
				}
				status, answer := r.post(t, form, test.request)
				if want == "" {
					wantStatus = http.StatusOK
				}
				if got, _ := answer["error"].(string); got != want || status != wantStatus {
					t.Errorf("got %d, %v, want %d, %q", status, answer, wantStatus, want)
				}
			})
		}
	}
}

// What concerns one grant only.
func TestTokenServerRefusesGrants(t *testing.T) {
	r := startToken(t, nil)
	once := r.sign(t, nil, nil)
	for _, test := range []struct {
		name   string
		form   url.Values
		status int
		want   any
	}{
		{"first use", url.Values{"grant_type": {grantJWT}, "assertion": {once}}, 200, nil},
		{"second use", url.Values{"grant_type": {grantJWT}, "assertion": {once}}, 400, "invalid_grant"},
		{"second use by a client", url.Values{"grant_type": {"client_credentials"}, "client_assertion_type": {assertionJWT}, "client_assertion": {once}}, 401, "invalid_client"},
		{"both", url.Values{"grant_type": {grantJWT}, "assertion": {r.sign(t, nil, nil)}, "client_assertion": {once}}, 400, "invalid_request"},
		{"no type", url.Values{"grant_type": {"client_credentials"}, "client_assertion": {r.sign(t, nil, nil)}}, 401, "invalid_client"},
		{"a secret", url.Values{"grant_type": {"client_credentials"}, "client_assertion_type": {assertionJWT}, "client_assertion": {r.sign(t, nil, nil)}, "client_secret": {"x"}}, 400, "invalid_request"},
		{"another client_id", url.Values{"grant_type": {"client_credentials"}, "client_assertion_type": {assertionJWT}, "client_assertion": {r.sign(t, nil, nil)}, "client_id": {"x"}}, 401, "invalid_client"},
	} {
		if status, answer := r.post(t, test.form, nil); status != test.status || answer["error"] != test.want {
			t.Errorf("%s: got %d, %v, want %d, %v", test.name, status, answer, test.status, test.want)
		}
	}
	if status, _ := r.post(t, nil, func(r *http.Request) { r.Method = http.MethodGet }); status != http.StatusMethodNotAllowed {
		t.Errorf("GET: got %d", status)
	}
}

// GitHub gives an App tokens for its installation.
func TestTokenServerGitHub(t *testing.T) {
	r := startToken(t, func(c *TokenClient) { c.Installation, c.MaxLifetime = "42", 10*time.Minute })
	now := time.Now().Unix()
	for _, test := range []struct {
		name    string
		claims  map[string]any
		message string // "": let through
	}{
		{"good", nil, ""},
		{"without aud, sub and jti", map[string]any{"aud": nil, "sub": nil, "jti": nil}, ""},
		{"again", map[string]any{"jti": "again"}, ""},
		{"and again", map[string]any{"jti": "again"}, ""},
		{"iat to come", map[string]any{"iat": now + 60}, "'Issued at' claim"},
		{"exp far ahead", map[string]any{"exp": now + 700}, "too far in the future"},
		{"expired", map[string]any{"exp": now - 1}, "'Expiration time' claim"},
		{"another App", map[string]any{"iss": "other"}, "could not be decoded"},
	} {
		status, answer := r.bearer(t, http.MethodPost, "/app/installations/42/access_tokens", r.sign(t, nil, test.claims))
		if test.message != "" {
			if message, _ := answer["message"].(string); status != http.StatusUnauthorized || !strings.Contains(message, test.message) {
				t.Errorf("%s: got %d, %v, want %q", test.name, status, answer, test.message)
			}
			continue
		}
		token, _ := answer["token"].(string)
		expiry, err := time.Parse(time.RFC3339, fmt.Sprint(answer["expires_at"]))
		if status != http.StatusCreated || err != nil || time.Until(expiry) < 59*time.Minute {
			t.Errorf("%s: got %d, %v", test.name, status, answer)
		}
		if status, answer := r.bearer(t, http.MethodGet, "/api", token); status != http.StatusOK || answer["text"] != "hello, installation 42, with read write" {
			t.Errorf("%s: the API says %d, %v", test.name, status, answer)
		}
	}
	if status, _ := r.bearer(t, http.MethodPost, "/app/installations/43/access_tokens", r.sign(t, nil, nil)); status != http.StatusNotFound {
		t.Errorf("another installation: got %d", status)
	}
	if status, answer := r.bearer(t, http.MethodGet, "/app", r.sign(t, nil, nil)); status != http.StatusOK || answer["client_id"] != tokenClientID {
		t.Errorf("/app: got %d, %v", status, answer)
	}
	if status, _ := r.bearer(t, http.MethodGet, "/api", "at-made-up"); status != http.StatusUnauthorized {
		t.Errorf("a token made up: got %d", status)
	}
}
