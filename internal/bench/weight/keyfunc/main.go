// Command keyfunc is a server that verifies tokens with keyfunc and a JWK Set.
package main

import (
	"log"
	"net/http"
	"strings"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
)

func main() {
	set, err := keyfunc.NewDefault([]string{"https://issuer.example.com/jwks"})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, err := jwt.Parse(text, set.Keyfunc, jwt.WithExpirationRequired()); err != nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
		}
	})))
}
