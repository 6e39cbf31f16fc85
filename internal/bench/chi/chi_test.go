// Package chi shows that the middleware fits routers other than the standard
// library's. It is here because this module may require what the library doesn't.
package chi

import (
	"crypto/ed25519"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// Everything below /api needs a token, the health check doesn't.
func Example() {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	keyfunc := func(token *jwt.Token) (any, error) {
		if token.Method != jwt.SigningMethodEdDSA {
			return nil, jwt.ErrInvalidKeyType
		}
		return public, nil
	}

	router := chi.NewRouter()
	router.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "healthy") })
	router.Route("/api", func(api chi.Router) {
		api.Use(middleware.New(keyfunc, middleware.WithAudience("https://api.example.com")))
		api.Get("/hello/{name}", func(w http.ResponseWriter, r *http.Request) {
			token, _ := middleware.TokenFromContext(r.Context())
			subject, _ := token.Claims.GetSubject()
			fmt.Fprintf(w, "hello, %s, says %s", chi.URLParam(r, "name"), subject)
		})
	})
	server := httptest.NewServer(router)
	defer server.Close()

	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"sub": "alice", "aud": "https://api.example.com", "exp": time.Now().Add(time.Minute).Unix(),
	}).SignedString(private)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, request := range []struct{ path, authorization string }{
		{"/healthz", ""},
		{"/api/hello/bob", ""},
		{"/api/hello/bob", "Bearer " + token},
	} {
		r, err := http.NewRequest(http.MethodGet, server.URL+request.path, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		if request.authorization != "" {
			r.Header.Set("Authorization", request.authorization)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		fmt.Println(response.StatusCode, string(body))
	}
	// Output:
	// 200 healthy
	// 401 Unauthorized
	//
	// 200 hello, bob, says alice
}
