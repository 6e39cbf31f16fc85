// Command jwks is a server that verifies tokens with package middleware and a JWK Set.
package main

import (
	"context"
	"log"
	"net/http"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

func main() {
	keyfunc, err := jwks.NewKeyfunc(context.Background(), &jwks.Config{Issuer: "https://issuer.example.com"})
	if err != nil {
		log.Fatal(err)
	}
	protect := middleware.New(keyfunc, middleware.WithAudience("https://api.example.com"))
	log.Fatal(http.ListenAndServe("localhost:8080", protect(http.NotFoundHandler())))
}
