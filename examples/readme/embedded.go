package main

import (
	"context"
	"log"
	"os"

	"cloud.google.com/go/kms/apiv1/kmspb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// main.go is the README's program, whole and as it stands there, so it knows of
// Google Cloud only. Where no key is given, this file runs it on a Cloud KMS server
// on loopback instead, before main would.
func init() {
	if os.Getenv("KMS_KEY") != "" {
		return
	}
	if err := runEmbedded(context.Background()); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

func runEmbedded(ctx context.Context) error {
	server, err := testutil.NewKMS()
	if err != nil {
		return err
	}
	defer server.Close()
	client, err := server.Client(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	version, err := server.CreateKey("readme", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		return err
	}
	return run(ctx, &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client})
}
