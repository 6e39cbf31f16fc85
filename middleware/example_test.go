package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// Tokens of a service account, in front of a handler that wants to know whose
// they are.
func ExampleNewHandler() {
	config, stop := exampleAccount()
	defer stop()
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := middleware.TokenFromContext(r.Context())
		subject, _ := token.Claims.GetSubject()
		fmt.Fprintf(w, "hello, %s\n", subject)
	})

	// config is &gcpjwt.IAMConfig{ServiceAccount: "...", EnableCache: true}.
	auth := middleware.NewHandler(context.Background(), config, "https://api.example.com")
	server := httptest.NewServer(auth(hello))
	defer server.Close()

	get(server.URL, exampleToken(config, jwt.MapClaims{"sub": "alice", "aud": "https://api.example.com"}))
	get(server.URL, exampleToken(config, jwt.MapClaims{"sub": "alice", "aud": "https://other.example.com"}))
	get(server.URL, "")
	// Output:
	// 200: hello, alice
	// 403: Forbidden
	// 401: Unauthorized
}

// With a ServeMux, some paths need a token and others don't.
func ExampleNew_serveMux() {
	config, stop := exampleAccount()
	defer stop()
	text := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, text) })
	}

	keyfunc := gcpjwt.IAMVerifyKeyfunc(context.Background(), config)
	auth := middleware.New(keyfunc, middleware.WithAudience("https://api.example.com"))
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", text("ok"))
	mux.Handle("GET /invoices", auth(text("invoice 1")))
	server := httptest.NewServer(mux)
	defer server.Close()

	get(server.URL+"/healthz", "")
	get(server.URL+"/invoices", "")
	get(server.URL+"/invoices", exampleToken(config, jwt.MapClaims{"aud": "https://api.example.com"}))
	// Output:
	// 200: ok
	// 401: Unauthorized
	// 200: invoice 1
}

// An error handler of one's own gets errors that it can tell apart. It owes the
// client a status and the headers that belong to it.
func ExampleWithErrorHandler() {
	config, stop := exampleAccount()
	defer stop()
	keyfunc := gcpjwt.IAMVerifyKeyfunc(context.Background(), config)

	auth := middleware.New(keyfunc,
		middleware.WithAudience("https://api.example.com"),
		middleware.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) {
			switch {
			case errors.Is(err, gcpjwt.ErrKeysUnavailable):
				w.Header().Set("Retry-After", "10")
				http.Error(w, "try again later", http.StatusServiceUnavailable)
			case errors.Is(err, request.ErrNoTokenInRequest):
				w.Header().Set("WWW-Authenticate", `Bearer realm="shop"`)
				http.Error(w, "log in first", http.StatusUnauthorized)
			case errors.Is(err, jwt.ErrTokenExpired):
				w.Header().Set("WWW-Authenticate", `Bearer realm="shop", error="invalid_token"`)
				http.Error(w, "log in again", http.StatusUnauthorized)
			default:
				w.Header().Set("WWW-Authenticate", `Bearer realm="shop", error="invalid_token"`)
				http.Error(w, "no", http.StatusUnauthorized)
			}
		}),
	)
	server := httptest.NewServer(auth(http.NotFoundHandler()))
	defer server.Close()

	get(server.URL, "")
	// An expiry up to 30 seconds ago would be put down to clocks that differ.
	get(server.URL, exampleToken(config, jwt.MapClaims{
		"aud": "https://api.example.com",
		"exp": time.Now().Add(-time.Minute).Unix(),
	}))
	get(server.URL, "not a token")
	// Output:
	// 401: log in first
	// 401: log in again
	// 401: no
}

// Claims of a type of one's own, with a check of their own.
func ExampleWithClaims() {
	config, stop := exampleAccount()
	defer stop()
	keyfunc := gcpjwt.IAMVerifyKeyfunc(context.Background(), config)

	auth := middleware.New(keyfunc,
		middleware.WithAudience("https://api.example.com"),
		middleware.WithClaims(func() jwt.Claims { return new(tenantClaims) }),
	)
	server := httptest.NewServer(auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := middleware.TokenFromContext(r.Context())
		claims := token.Claims.(*tenantClaims)
		fmt.Fprintf(w, "%s of tenant %s\n", claims.Subject, claims.Tenant)
	})))
	defer server.Close()

	get(server.URL, exampleToken(config, jwt.MapClaims{"sub": "alice", "tenant": "t-1", "aud": "https://api.example.com"}))
	get(server.URL, exampleToken(config, jwt.MapClaims{"sub": "alice", "aud": "https://api.example.com"}))
	// Output:
	// 200: alice of tenant t-1
	// 401: Unauthorized
}

// tenantClaims are the claims of ExampleWithClaims. jwt calls Validate once the
// signature is known to be good.
type tenantClaims struct {
	jwt.RegisteredClaims
	Tenant string `json:"tenant"`
}

func (c *tenantClaims) Validate() error {
	if c.Tenant == "" {
		return errors.New("no tenant")
	}
	return nil
}

// exampleAccount returns a configuration of a service account on a test server.
func exampleAccount() (*gcpjwt.IAMConfig, func()) {
	server, err := testutil.NewIAM()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := server.CreateAccount(account); err != nil {
		log.Fatal(err)
	}
	service, err := server.Service(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	return &gcpjwt.IAMConfig{
		ServiceAccount: account,
		IAMService:     service,
		EnableCache:    true,
		Client:         server.Client(),
		CertificateURL: server.CertificateURL(),
	}, server.Close
}

// exampleToken signs a token with signBlob, by the account and for an hour unless the
// claims say otherwise.
func exampleToken(config *gcpjwt.IAMConfig, claims jwt.MapClaims) string {
	if claims["iss"] == nil {
		claims["iss"] = config.ServiceAccount
	}
	if claims["exp"] == nil {
		claims["exp"] = time.Now().Add(time.Hour).Unix()
	}
	ctx := gcpjwt.NewIAMContext(context.Background(), config)
	token, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, claims))
	if err != nil {
		log.Fatal(err)
	}
	return token
}
