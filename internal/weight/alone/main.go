// Command alone is a server that verifies tokens with jwt and net/http alone. Its weight is
// what that of package middleware is compared with.
package main

import (
	"crypto/rsa"
	"log"
	"net/http"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

func main() {
	keyfunc := func(*jwt.Token) (any, error) { return new(rsa.PublicKey), nil }
	log.Fatal(http.ListenAndServe("localhost:8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, err := jwt.Parse(text, keyfunc, jwt.WithExpirationRequired()); err != nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
		}
	})))
}
