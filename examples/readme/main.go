package main

import (
	"context"
	"fmt"
	"github.com/golang-jwt/jwt/v5"
	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"log"
	"os"
	"time"
)

func main() {
	ctx := context.Background()
	signer, err := gcpjwt.NewKMSSigner(ctx, &gcpjwt.KMSConfig{KeyPath: os.Getenv("KMS_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	text, err := signer.Sign(ctx, jwt.MapClaims{"sub": "alice", "exp": time.Now().Unix() + 3600})
	if err != nil {
		log.Fatal(err)
	}
	token, err := jwt.Parse(text, signer.Keyfunc, jwt.WithExpirationRequired())
	fmt.Println(text, token.Valid, err)
}
