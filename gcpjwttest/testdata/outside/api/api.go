// Package api is a service that verifies tokens.
package api

import (
	"fmt"
	"net/http"

	"github.com/golang-jwt/jwt/v5"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// NewHandler returns the service. keyfunc finds the keys of whoever makes its tokens.
func NewHandler(keyfunc jwt.Keyfunc) http.Handler {
	hello := func(w http.ResponseWriter, r *http.Request) {
		token, _ := middleware.TokenFromContext(r.Context())
		subject, _ := token.Claims.GetSubject()
		fmt.Fprintf(w, "hello, %s", subject)
	}
	return middleware.New(keyfunc, middleware.WithAudience("https://api.example.com"))(http.HandlerFunc(hello))
}
