// Command oidc is a server that verifies tokens with go-oidc and a JWK Set.
package main

import (
	"context"
	"log"
	"net/http"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
)

func main() {
	provider, err := oidc.NewProvider(context.Background(), "https://issuer.example.com")
	if err != nil {
		log.Fatal(err)
	}
	verifier := provider.Verifier(&oidc.Config{ClientID: "https://api.example.com"})
	log.Fatal(http.ListenAndServe("localhost:8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, err := verifier.Verify(r.Context(), text); err != nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
		}
	})))
}
