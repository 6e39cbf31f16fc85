package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/golang-jwt/jwt/v5"
	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

func main() {
	// projects/P/locations/L/keyRings/R/cryptoKeys/K/cryptoKeyVersions/1, an EC_SIGN_P256_SHA256 key
	config := &gcpjwt.KMSConfig{KeyPath: os.Getenv("KMS_KEY")}
	if err := run(context.Background(), config); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, config *gcpjwt.KMSConfig) error {
	claims := jwt.RegisteredClaims{Subject: "alice", ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, claims)
	text, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(ctx, config), token)
	if err != nil {
		return err
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config) // once per process; ctx must live as long: no timeout
	if err != nil {
		return err
	}
	verified, err := jwt.Parse(text, keyfunc, jwt.WithExpirationRequired())
	if err != nil {
		return err
	}
	subject, err := verified.Claims.GetSubject()
	fmt.Printf("%s\nsigned with %v by key %v for %s\n", text, verified.Header["alg"], verified.Header["kid"], subject)
	return err
}
