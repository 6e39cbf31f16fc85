// Command jwx is a server that verifies tokens with jwx and a JWK Set.
package main

import (
	"context"
	"log"
	"net/http"

	"github.com/lestrrat-go/httprc/v3"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
)

func main() {
	const url = "https://issuer.example.com/jwks"
	ctx := context.Background()
	cache, err := jwk.NewCache(ctx, httprc.NewClient())
	if err != nil {
		log.Fatal(err)
	}
	if err := cache.Register(ctx, url); err != nil {
		log.Fatal(err)
	}
	set, err := cache.CachedSet(url)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := jwt.ParseRequest(r, jwt.WithKeySet(set)); err != nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
		}
	})))
}
