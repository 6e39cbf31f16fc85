package middleware_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// Tokens of several issuers, each with its own keys. A Keyfunc may come from anywhere:
// from gcpjwt, as those of service accounts and Cloud KMS keys, or from jwks.
func ExampleByIssuer() {
	reports, orders := newIssuer("https://reports.example.com"), newIssuer("https://orders.example.com")
	auth := middleware.New(
		middleware.ByIssuer(map[string]jwt.Keyfunc{
			reports.name: reports.keyfunc,
			orders.name:  orders.keyfunc,
		}),
		middleware.WithAudience("https://api.example.com"),
	)
	server := httptest.NewServer(auth(whoami))
	defer server.Close()

	get(server.URL, reports.token(jwt.MapClaims{"sub": "alice"}))
	get(server.URL, orders.token(jwt.MapClaims{"sub": "bob"}))
	get(server.URL, orders.token(jwt.MapClaims{"sub": "bob", "iss": reports.name})) // in another's name
	get(server.URL, newIssuer("https://stranger.example.com").token(nil))
	// Output:
	// 200: hello, alice
	// 200: hello, bob
	// 401: Unauthorized
	// 401: Unauthorized
}

// A browser's session is in a cookie, which the browser also sends with requests that
// other sites make: http.CrossOriginProtection turns those away.
func ExampleCookieExtractor() {
	issuer := newIssuer("https://login.example.com")
	auth := middleware.New(issuer.keyfunc,
		middleware.WithAudience("https://api.example.com"),
		// The Authorization header goes first, for clients that aren't browsers.
		middleware.WithExtractor(request.MultiExtractor{
			middleware.BearerExtractor,
			middleware.CookieExtractor("__Host-session"),
		}),
	)
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "another site's request", http.StatusForbidden)
	}))
	server := httptest.NewServer(protection.Handler(auth(whoami)))
	defer server.Close()

	post := func(origin string) {
		r := newRequest(http.MethodPost, server.URL, "")
		r.Header.Set("Origin", origin)
		// After the login: http.SetCookie with Secure, HttpOnly and SameSite.
		r.AddCookie(&http.Cookie{Name: "__Host-session", Value: issuer.token(jwt.MapClaims{"sub": "alice"})})
		show(r)
	}
	post(server.URL)
	post("https://evil.example.com")
	get(server.URL, "")
	// Output:
	// 200: hello, alice
	// 403: another site's request
	// 401: Unauthorized
}

// A browser asks with a preflight, which never has a token, whether it may send a
// request. What answers preflights goes in front of the middleware, outside.
func ExampleVerifier_Handler_preflight() {
	cors := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Origin") == "https://app.example.com" {
				w.Header().Set("Access-Control-Allow-Origin", "https://app.example.com")
			}
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				w.Header().Set("Access-Control-Allow-Headers", "Authorization")
				w.WriteHeader(http.StatusNoContent)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	issuer := newIssuer("https://login.example.com")
	verifier := middleware.NewVerifier(issuer.keyfunc, middleware.WithAudience("https://api.example.com"))
	server := httptest.NewServer(cors(verifier.Handler(whoami)))
	defer server.Close()

	preflight := newRequest(http.MethodOptions, server.URL, "")
	preflight.Header.Set("Origin", "https://app.example.com")
	preflight.Header.Set("Access-Control-Request-Method", http.MethodGet)
	preflight.Header.Set("Access-Control-Request-Headers", "authorization")
	show(preflight)
	get(server.URL, issuer.token(jwt.MapClaims{"sub": "alice"}))
	get(server.URL, "")
	// Output:
	// 204
	// 200: hello, alice
	// 401: Unauthorized
}

// A browser can't set the Authorization header of a WebSocket, so the token travels as
// a subprotocol beside the one that both speak, and is verified before the handshake
// is answered. It must not be sent back. A token ends, but a connection doesn't: close
// it when exp comes.
func ExampleVerifier_Verify_webSocket() {
	issuer := newIssuer("https://login.example.com")
	verifier := middleware.NewVerifier(issuer.keyfunc, middleware.WithAudience("https://api.example.com"))

	upgrade := func(w http.ResponseWriter, r *http.Request) {
		text := ""
		for protocol := range strings.SplitSeq(r.Header.Get("Sec-WebSocket-Protocol"), ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(protocol), "bearer."); ok {
				text = token
			}
		}
		token, err := verifier.Verify(r.Context(), text)
		if err != nil {
			middleware.Respond(w, r, err)
			return
		}
		subject, _ := token.Claims.GetSubject()
		// A WebSocket library takes over here.
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-WebSocket-Protocol", "chat.v1")
		w.WriteHeader(http.StatusSwitchingProtocols)
		connection, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer connection.Close()
		fmt.Fprintf(buffer, "welcome, %s\n", subject)
		buffer.Flush()
	}
	server := httptest.NewServer(http.HandlerFunc(upgrade))
	defer server.Close()

	dial := func(token string) {
		r := newRequest(http.MethodGet, server.URL, "")
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Sec-WebSocket-Protocol", "chat.v1, bearer."+token)
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			log.Fatal(err)
		}
		defer response.Body.Close()
		line, _ := bufio.NewReader(response.Body).ReadString('\n')
		fmt.Println(response.StatusCode, response.Header.Get("Sec-WebSocket-Protocol"), line)
	}
	dial(issuer.token(jwt.MapClaims{"sub": "alice"}))
	dial(issuer.token(jwt.MapClaims{"sub": "alice", "aud": "https://other.example.com"}))
	// Output:
	// 101 chat.v1 welcome, alice
	//
	// 403  Forbidden
}

// Messages of a queue have their token in an attribute, and no status but to be
// taken, thrown away, or delivered again.
func ExampleStatusOf() {
	issuer := newIssuer("https://orders.example.com")
	verifier := middleware.NewVerifier(issuer.keyfunc, middleware.WithAudience("https://api.example.com"))
	receive := func(token string) {
		switch _, err := verifier.Verify(context.Background(), token); middleware.StatusOf(err) {
		case http.StatusOK:
			fmt.Println("taken")
		case http.StatusUnauthorized, http.StatusForbidden:
			fmt.Println("thrown away:", err)
		default: // the keys are unavailable, or the program is at fault
			fmt.Println("later:", err)
		}
	}

	receive(issuer.token(nil))
	receive(issuer.token(jwt.MapClaims{"exp": time.Now().Add(-time.Hour).Unix()}))
	receive(issuer.token(jwt.MapClaims{"aud": "https://other.example.com"}))
	issuer.down = true
	receive(issuer.token(nil))
	// Output:
	// taken
	// thrown away: gcpjwt: token has invalid claims: token is expired
	// thrown away: gcpjwt: token has invalid audience
	// later: gcpjwt: token is unverifiable: keys unavailable
}

// Google's API Gateway puts a token of its own into Authorization and the caller's into
// X-Forwarded-Authorization. That header is worth no more than the one that everybody
// can write, and no less: the token in it is verified just as well. Forwarded
// claims that nobody signed, as in X-Apigateway-Api-Userinfo, are for servers that
// only the gateway can reach.
func ExampleWithExtractor_apiGateway() {
	issuer := newIssuer("https://login.example.com")
	auth := middleware.New(issuer.keyfunc,
		middleware.WithAudience("https://api.example.com"),
		middleware.WithExtractor(forwardedExtractor{}),
	)
	server := httptest.NewServer(auth(whoami))
	defer server.Close()

	r := newRequest(http.MethodGet, server.URL, "the gateway's own token")
	r.Header.Set("X-Forwarded-Authorization", "Bearer "+issuer.token(jwt.MapClaims{"sub": "alice"}))
	show(r)
	get(server.URL, issuer.token(jwt.MapClaims{"sub": "mallory"})) // around the gateway, in the other header
	// Output:
	// 200: hello, alice
	// 401: Unauthorized
}

// forwardedExtractor is BearerExtractor on another header, with all its rules.
type forwardedExtractor struct{}

func (forwardedExtractor) ExtractToken(r *http.Request) (string, error) {
	return middleware.BearerExtractor.ExtractToken(&http.Request{
		Header: http.Header{"Authorization": r.Header.Values("X-Forwarded-Authorization")},
	})
}

// A test of a handler needs no signer: the handler finds whatever token is put into
// the context.
func ExampleNewContext() {
	token := &jwt.Token{Valid: true, Claims: jwt.MapClaims{"sub": "alice"}}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := httptest.NewRecorder()

	whoami(w, r.WithContext(middleware.NewContext(r.Context(), token)))

	fmt.Println(w.Code, w.Body)
	// Output:
	// 200 hello, alice
}

// What a token may do is in its scopes. One Verifier per kind of right does it.
func ExampleWithScope() {
	issuer := newIssuer("https://login.example.com")
	protect := func(scope string) func(http.Handler) http.Handler {
		return middleware.New(issuer.keyfunc,
			middleware.WithAudience("https://api.example.com"),
			middleware.WithScope(scope),
		)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", protect("invoices.read")(whoami))
	mux.Handle("DELETE /", protect("invoices.write")(whoami))
	server := httptest.NewServer(mux)
	defer server.Close()

	token := issuer.token(jwt.MapClaims{"sub": "alice", "scope": "invoices.read profile"})
	get(server.URL, token)
	show(newRequest(http.MethodDelete, server.URL, token))
	// Output:
	// 200: hello, alice
	// 403: Forbidden, Bearer realm="api", error="insufficient_scope", scope="invoices.write"
}

// Claims of a type of one's own, without a type assertion in each handler.
func ExampleClaimsFromContext() {
	issuer := newIssuer("https://login.example.com")
	auth := middleware.New(issuer.keyfunc,
		middleware.WithAudience("https://api.example.com"),
		middleware.WithClaims(func() jwt.Claims { return new(tenantClaims) }),
	)
	server := httptest.NewServer(auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if claims, ok := middleware.ClaimsFromContext[*tenantClaims](r.Context()); ok {
			fmt.Fprintf(w, "%s of tenant %s\n", claims.Subject, claims.Tenant)
		}
	})))
	defer server.Close()

	get(server.URL, issuer.token(jwt.MapClaims{"sub": "alice", "tenant": "t-1"}))
	// Output:
	// 200: alice of tenant t-1
}

// Everybody may read, and those who are logged in are greeted by name.
func ExampleWithOptional() {
	issuer := newIssuer("https://login.example.com")
	auth := middleware.New(issuer.keyfunc,
		middleware.WithAudience("https://api.example.com"),
		middleware.WithOptional(),
	)
	server := httptest.NewServer(auth(whoami))
	defer server.Close()

	get(server.URL, issuer.token(jwt.MapClaims{"sub": "alice"}))
	get(server.URL, "")
	get(server.URL, "x")
	// Output:
	// 200: hello, alice
	// 200: hello, stranger
	// 401: Unauthorized
}

// whoami greets its caller.
var whoami = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	name := "stranger"
	if token, ok := middleware.TokenFromContext(r.Context()); ok {
		name, _ = token.Claims.GetSubject()
	}
	fmt.Fprintf(w, "hello, %s\n", name)
})

// exampleIssuer stands for one whose keys are in Google Cloud.
type exampleIssuer struct {
	name string
	key  ed25519.PrivateKey
	down bool // its keys can't be had
}

func newIssuer(name string) *exampleIssuer {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		log.Fatal(err)
	}
	return &exampleIssuer{name: name, key: key}
}

func (i *exampleIssuer) keyfunc(token *jwt.Token) (any, error) {
	switch {
	case i.down:
		return nil, middleware.ErrKeysUnavailable
	case token.Method != jwt.SigningMethodEdDSA:
		return nil, errors.New("not an algorithm of this issuer")
	}
	return i.key.Public(), nil
}

// token returns one for the API, for an hour unless the claims say otherwise.
func (i *exampleIssuer) token(claims jwt.MapClaims) string {
	all := jwt.MapClaims{"iss": i.name, "aud": "https://api.example.com", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		all[name] = value
	}
	text, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, all).SignedString(i.key)
	if err != nil {
		log.Fatal(err)
	}
	return text
}

// get prints what a server answers to a request with a token, if there is one.
func get(url, token string) { show(newRequest(http.MethodGet, url, token)) }

func newRequest(method, url, token string) *http.Request {
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func show(r *http.Request) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(response.StatusCode)
	if len(body) > 0 {
		fmt.Printf(": %s", strings.TrimSuffix(string(body), "\n"))
	}
	if challenge := response.Header.Get("WWW-Authenticate"); strings.Contains(challenge, "scope") {
		fmt.Printf(", %s", challenge)
	}
	fmt.Println()
}
