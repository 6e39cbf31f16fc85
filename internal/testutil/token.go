package testutil

import (
	"crypto"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// What a token server counts.
const (
	callToken        = "token"
	callInstallation = "installation"
	callAPI          = "api"
)

// TokenServer is the token endpoint of an authorization server that knows its
// clients by signed assertions (RFC 7523), and an API that takes its access
// tokens. It refuses whatever RFC 6749, 7521 and 7523 let it refuse. It is also
// a little of GitHub: an API for Apps, which gives tokens for installations.
type TokenServer struct {
	httpServer

	// Guarded by httpServer.mu.
	clients   map[string]TokenClient // by ID
	seen      map[string]bool        // a client's ID and a jti
	tokens    map[string]accessToken
	expiresIn time.Duration
	extra     map[string]any
	ahead     time.Duration
	form      url.Values
	intercept func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

// A TokenClient is who may get access tokens, and by which assertions.
type TokenClient struct {
	// ID is the iss of the client's assertions and its client_id.
	ID string

	// Key returns the public key of a kid, which is "" if a header has none. A nil
	// key is not the client's.
	Key func(kid string) crypto.PublicKey

	// Algorithms are those that assertions may be signed with.
	Algorithms []string

	// Subjects are what sub may be. Without any it must be the ID.
	Subjects []string

	// Audience is what aud must have. "" means the URL of the token endpoint. A
	// JWT that is sent to the API itself needs no aud.
	Audience string

	// MaxLifetime is how far exp may be ahead. 0 means an hour.
	MaxLifetime time.Duration

	// Scopes are those that the client may ask for, and what it gets without asking.
	Scopes []string

	// ScopeClaim says that they are read from the claim scope, as Google does it,
	// and not from the request's parameter.
	ScopeClaim bool

	// Header are fields that the header of an assertion must have.
	Header map[string]string

	// Installation is the number of the client's installation, if it is a GitHub
	// App.
	Installation string
}

// An accessToken is what the server knows of a token that it gave.
type accessToken struct {
	subject string
	scopes  []string
	expiry  time.Time
}

// NewTokenServer starts a server without clients, whose tokens live for an hour.
func NewTokenServer(opts ...Option) (*TokenServer, error) {
	s := &TokenServer{
		clients:   make(map[string]TokenClient),
		seen:      make(map[string]bool),
		tokens:    make(map[string]accessToken),
		expiresIn: time.Hour,
	}
	if err := s.start(opts, s.serve); err != nil {
		return nil, err
	}
	return s, nil
}

// TokenURL returns the token endpoint.
func (s *TokenServer) TokenURL() string { return s.URL() + "/token" }

// APIURL returns the API. It greets the bearer of an access token, or of a JWT
// that a client signed itself.
func (s *TokenServer) APIURL() string { return s.URL() + "/api" }

// Register makes a client known.
func (s *TokenServer) Register(client TokenClient) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[client.ID] = client
}

// SetExpiresIn sets how long access tokens live from now on. 0 means an hour that
// answers don't tell.
func (s *TokenServer) SetExpiresIn(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiresIn = d
}

// SetExtra adds fields to the answers of the token endpoint.
func (s *TokenServer) SetExtra(extra map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extra = maps.Clone(extra)
}

// SetClock puts the server's clock that far ahead of the machine's.
func (s *TokenServer) SetClock(ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = ahead
}

// Form returns the parameters of the last request to the token endpoint.
func (s *TokenServer) Form() url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.form
}

// JTIs returns how many assertions were accepted. Each had a jti of its own.
func (s *TokenServer) JTIs() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// Intercept lets f answer every request, as [IAM.Intercept] does.
func (s *TokenServer) Intercept(f func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

func (s *TokenServer) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.ahead)
}

func (s *TokenServer) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	routes := http.NewServeMux()
	routes.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) { s.serveToken(w, r, string(body)) })
	routes.HandleFunc("/api", s.serveAPI)
	routes.HandleFunc("GET /app", s.serveApp)
	routes.HandleFunc("POST /app/installations/{id}/access_tokens", s.serveInstallation)

	what := callAPI
	switch {
	case r.URL.Path == "/token":
		what = callToken
	case strings.HasSuffix(r.URL.Path, "/access_tokens"):
		what = callInstallation
	}
	if !s.arrive(r.Context(), what) {
		return
	}
	s.mu.Lock()
	intercept := s.intercept
	s.mu.Unlock()
	if intercept != nil {
		intercept(w, r, routes)
		return
	}
	routes.ServeHTTP(w, r)
}

// A tokenError is an error of RFC 6749 section 5.2.
type tokenError struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`
}

func (e *tokenError) Error() string { return e.Description }

func refuse(code, format string, args ...any) *tokenError {
	return &tokenError{code, fmt.Sprintf(format, args...)}
}

func (s *TokenServer) serveToken(w http.ResponseWriter, r *http.Request, body string) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Pragma", "no-cache")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	answer, refused := s.exchange(r, body)
	if refused != nil {
		status := http.StatusBadRequest
		if refused.Code == "invalid_client" {
			status = http.StatusUnauthorized
		}
		writeJSON(w, status, refused)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// exchange checks a request and makes its answer.
func (s *TokenServer) exchange(r *http.Request, body string) (map[string]any, *tokenError) {
	form, refused := parseTokenForm(r, body)
	if refused != nil {
		return nil, refused
	}
	s.mu.Lock()
	s.form = form
	s.mu.Unlock()

	var parameter, code string
	switch form.Get("grant_type") {
	case "urn:ietf:params:oauth:grant-type:jwt-bearer":
		parameter, code = "assertion", "invalid_grant"
		if form.Has("client_assertion") || form.Has("client_assertion_type") {
			return nil, refuse("invalid_request", "a client assertion beside a grant")
		}
	case "client_credentials":
		parameter, code = "client_assertion", "invalid_client"
		if got := form.Get("client_assertion_type"); got != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" {
			return nil, refuse("invalid_client", "client_assertion_type %q", got)
		}
		if form.Has("client_secret") {
			return nil, refuse("invalid_request", "two ways to authenticate")
		}
	case "":
		return nil, refuse("invalid_request", "no grant_type")
	default:
		return nil, refuse("unsupported_grant_type", "grant_type %q", form.Get("grant_type"))
	}
	if !form.Has(parameter) {
		return nil, refuse("invalid_request", "no %s", parameter)
	}

	client, claims, err := s.verify(form.Get(parameter), true)
	if err != nil {
		return nil, refuse(code, "%v", err)
	}
	subject, _ := claims.GetSubject()
	if id := form.Get("client_id"); id != "" && parameter == "client_assertion" && id != subject {
		return nil, refuse("invalid_client", "client_id %q is not the sub", id)
	}
	asked := form.Get("scope")
	if client.ScopeClaim {
		asked, _ = claims["scope"].(string)
	}
	scopes := strings.Fields(asked)
	for _, scope := range scopes {
		if !slices.Contains(client.Scopes, scope) {
			return nil, refuse("invalid_scope", "scope %q is not for this client", scope)
		}
	}
	if len(scopes) == 0 {
		scopes = client.Scopes
	}
	if !s.firstUse(client, claims) {
		return nil, refuse(code, "the jti was seen before")
	}
	return s.grant(subject, scopes), nil
}

// parseTokenForm reads a request's parameters (RFC 6749 section 3.2).
func parseTokenForm(r *http.Request, body string) (url.Values, *tokenError) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, refuse("invalid_request", "Content-Type %q", r.Header.Get("Content-Type"))
	}
	if r.Header.Get("Authorization") != "" {
		return nil, refuse("invalid_request", "credentials beside an assertion")
	}
	form, err := url.ParseQuery(body)
	if err != nil {
		return nil, refuse("invalid_request", "the body is no form")
	}
	for name, values := range form {
		if len(values) > 1 {
			return nil, refuse("invalid_request", "parameter %s stands there %d times", name, len(values))
		}
		if r.URL.Query().Has(name) {
			return nil, refuse("invalid_request", "parameter %s is in the URL", name)
		}
		if values[0] == "" {
			form.Del(name) // the RFC has it treated as absent
		}
	}
	return form, nil
}

// verify checks an assertion, or a JWT that a client sends to the API itself.
func (s *TokenServer) verify(text string, assertion bool) (TokenClient, jwt.MapClaims, error) {
	var client TokenClient
	claims := jwt.MapClaims{}
	now := s.now()
	parser := jwt.NewParser(
		jwt.WithTimeFunc(func() time.Time { return now }),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithStrictDecoding(),
		jwt.WithJSONNumber(),
	)
	token, err := parser.ParseWithClaims(text, claims, func(token *jwt.Token) (any, error) {
		issuer, _ := claims.GetIssuer()
		s.mu.Lock()
		client = s.clients[issuer]
		s.mu.Unlock()
		switch {
		case issuer == "" || client.ID == "":
			return nil, errors.New("iss is no client")
		case !slices.Contains(client.Algorithms, token.Method.Alg()):
			return nil, fmt.Errorf("alg %s is not the client's", token.Method.Alg())
		}
		kid, _ := token.Header["kid"].(string)
		key := client.Key(kid)
		if key == nil {
			return nil, fmt.Errorf("kid %q is not the client's", kid)
		}
		return key, nil
	})
	if err != nil {
		return client, nil, err
	}

	for name, want := range client.Header {
		if got := token.Header[name]; got != want {
			return client, nil, fmt.Errorf("header field %s is %v", name, got)
		}
	}
	subject, _ := claims.GetSubject()
	subjects := client.Subjects
	if len(subjects) == 0 {
		subjects = []string{client.ID}
	}
	if !slices.Contains(subjects, subject) && (assertion || subject != "") {
		return client, nil, fmt.Errorf("sub %q is not for this client", subject)
	}
	want := client.Audience
	if want == "" {
		want = s.TokenURL()
	}
	if audience, _ := claims.GetAudience(); assertion && !slices.Contains(audience, want) {
		return client, nil, fmt.Errorf("aud %q lacks %q", audience, want)
	}
	issued, err := claims.GetIssuedAt()
	if err != nil || issued == nil {
		return client, nil, errors.New("no iat")
	}
	longest := client.MaxLifetime
	if longest == 0 {
		longest = time.Hour
	}
	if expiry, _ := claims.GetExpirationTime(); expiry.After(now.Add(longest)) {
		return client, nil, errFarExpiry
	}
	if jti, _ := claims["jti"].(string); assertion && jti == "" {
		return client, nil, errors.New("no jti")
	}
	return client, claims, nil
}

var errFarExpiry = errors.New("exp is too far ahead")

// firstUse reports whether the jti is new, and takes note of it.
func (s *TokenServer) firstUse(client TokenClient, claims jwt.MapClaims) bool {
	id := fmt.Sprintf("%s %v", client.ID, claims["jti"])
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.seen[id]
	s.seen[id] = true
	return first
}

// grant makes an access token and the answer with it (RFC 6749 section 5.1).
func (s *TokenServer) grant(subject string, scopes []string) map[string]any {
	token := "at-" + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := map[string]any{"access_token": token, "token_type": "Bearer"}
	lifetime := time.Hour
	if s.expiresIn > 0 {
		lifetime = s.expiresIn
		answer["expires_in"] = int64(lifetime / time.Second)
	}
	if len(scopes) > 0 {
		answer["scope"] = strings.Join(scopes, " ")
	}
	maps.Copy(answer, s.extra)
	s.tokens[token] = accessToken{subject, scopes, time.Now().Add(s.ahead + lifetime)}
	return answer
}

// bearer returns the token of a request's one Authorization header.
func bearer(r *http.Request) string {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

// serveAPI greets a bearer by name.
func (s *TokenServer) serveAPI(w http.ResponseWriter, r *http.Request) {
	text := bearer(r)
	s.mu.Lock()
	token, ok := s.tokens[text]
	s.mu.Unlock()
	if ok && s.now().After(token.expiry) {
		ok = false
	}
	if !ok {
		_, claims, err := s.verify(text, false)
		if err != nil {
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		token.subject, _ = claims.GetSubject()
	}
	if token.scopes == nil {
		fmt.Fprintf(w, "hello, %s", token.subject)
		return
	}
	fmt.Fprintf(w, "hello, %s, with %s", token.subject, strings.Join(token.scopes, " "))
}

// app checks the JWT of a GitHub App.
func (s *TokenServer) app(w http.ResponseWriter, r *http.Request) (TokenClient, bool) {
	client, _, err := s.verify(bearer(r), false)
	if err == nil && client.Installation != "" {
		return client, true
	}
	message := "A JSON web token could not be decoded"
	switch {
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		message = "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
	case errors.Is(err, errFarExpiry):
		message = "'Expiration time' claim ('exp') is too far in the future"
	case errors.Is(err, jwt.ErrTokenExpired):
		message = "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion expires"
	}
	writeJSON(w, http.StatusUnauthorized, map[string]string{"message": message})
	return TokenClient{}, false
}

func (s *TokenServer) serveApp(w http.ResponseWriter, r *http.Request) {
	if client, ok := s.app(w, r); ok {
		writeJSON(w, http.StatusOK, map[string]string{"client_id": client.ID})
	}
}

// serveInstallation gives a token for an installation of an App.
func (s *TokenServer) serveInstallation(w http.ResponseWriter, r *http.Request) {
	client, ok := s.app(w, r)
	if !ok {
		return
	}
	id := r.PathValue("id")
	if id != client.Installation {
		writeJSON(w, http.StatusNotFound, map[string]string{"message": "Not Found"})
		return
	}
	token := "ghs_" + rand.Text()
	s.mu.Lock()
	expiry := time.Now().Add(s.ahead + time.Hour)
	s.tokens[token] = accessToken{"installation " + id, client.Scopes, expiry}
	s.mu.Unlock()
	permissions := make(map[string]json.RawMessage, len(client.Scopes))
	for _, scope := range client.Scopes {
		permissions[scope] = json.RawMessage(`"read"`)
	}
	writeJSON(w, http.StatusCreated, map[string]any{
		"token":       token,
		"expires_at":  expiry.UTC().Format(time.RFC3339),
		"permissions": permissions,
	})
}
