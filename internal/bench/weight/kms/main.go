// Command kms is a server that verifies tokens with keys that it reads from Cloud KMS.
package main

import (
	"context"
	"log"
	"net/http"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

func main() {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), &gcpjwt.KMSConfig{
		KeyPath: "projects/p/locations/global/keyRings/r/cryptoKeys/k",
	})
	if err != nil {
		log.Fatal(err)
	}
	protect := middleware.New(keyfunc, middleware.WithAudience("https://api.example.com"))
	log.Fatal(http.ListenAndServe("localhost:8080", protect(http.NotFoundHandler())))
}
