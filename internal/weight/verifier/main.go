// Command verifier is a server that verifies tokens with package middleware and a plain
// Keyfunc.
package main

import (
	"crypto/rsa"
	"log"
	"net/http"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

func main() {
	keyfunc := func(*jwt.Token) (any, error) { return new(rsa.PublicKey), nil }
	protect := middleware.New(keyfunc, middleware.WithAudience("https://api.example.com"))
	log.Fatal(http.ListenAndServe("localhost:8080", protect(http.NotFoundHandler())))
}
