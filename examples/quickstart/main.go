// Quickstart signs a token with every signer that gcpjwt knows, verifies it with
// gcpjwt's Keyfunc, and then once more with jwt's own method and the bare public
// key, as a service that has never heard of gcpjwt would. With -rest it talks to
// Cloud KMS over REST instead of gRPC.
//
// Without flags it needs no Google Cloud project: it starts servers on loopback
// that speak Google's protocols and hold real keys.
//
//	go run ./examples/quickstart
//
// With flags it does the same on Google Cloud, with Application Default
// Credentials (gcloud auth application-default login):
//
//	go run ./examples/quickstart -kms projects/P/locations/L/keyRings/R/cryptoKeys/K/cryptoKeyVersions/1
//	go run ./examples/quickstart -service-account NAME@P.iam.gserviceaccount.com
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	issuer   = "https://issuer.example.com"
	audience = "https://api.example.com"
)

// sign returns a new token. The Signer knows its key's algorithm, and writes the right
// alg and kid into the header.
func sign(ctx context.Context, s signer) (string, error) {
	return s.Sign(ctx, jwt.RegisteredClaims{
		Issuer:    issuer,
		Audience:  jwt.ClaimStrings{audience},
		Subject:   "quickstart",
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(5 * time.Minute)),
	})
}

// verify is jwt's own parser: the Keyfunc is all that gcpjwt adds. The Keyfunc
// ties each key to one algorithm, so jwt.WithValidMethods has nothing to add.
func verify(s signer, text string) (*jwt.Token, error) {
	return jwt.ParseWithClaims(text, &jwt.RegisteredClaims{}, s.Keyfunc,
		jwt.WithIssuer(issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired())
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		stop()
		os.Exit(1)
	}
}
