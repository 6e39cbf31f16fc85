package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/iterator"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// kmsCandidate signs with whatever algorithm the key at keyPath has: a
// CryptoKeyVersion, or a CryptoKey, whose newest version then signs. A service that
// signs or verifies all day leaves client nil, for one that the process shares.
func kmsCandidate(name string, client *kms.KeyManagementClient, keyPath string) candidate {
	return candidate{name, func(ctx context.Context) (*gcpjwt.Signer, error) {
		return gcpjwt.NewKMSSigner(ctx, &gcpjwt.KMSConfig{KeyPath: keyPath, KMSClient: client})
	}, kmsStockCheck(client, keyPath)}
}

// versionOf returns the version at keyPath, or below it, that a kid stands for.
func versionOf(ctx context.Context, client *kms.KeyManagementClient, keyPath, kid string) (string, error) {
	if strings.Contains(keyPath, "/cryptoKeyVersions/") {
		if want := gcpjwt.KMSKeyID(keyPath); kid != want {
			return "", fmt.Errorf("the kid is %q, that of %s is %q", kid, keyPath, want)
		}
		return keyPath, nil
	}
	versions := client.ListCryptoKeyVersions(ctx, &kmspb.ListCryptoKeyVersionsRequest{Parent: keyPath, Filter: "state=ENABLED"})
	for {
		v, err := versions.Next()
		if errors.Is(err, iterator.Done) {
			return "", fmt.Errorf("the kid is %q, that of no version of %s that is ENABLED", kid, keyPath)
		}
		if err != nil {
			return "", err
		}
		if gcpjwt.KMSKeyID(v.Name) == kid {
			return v.Name, nil
		}
	}
}

// iamCandidates are the two ways to sign as a service account, with keys that Google
// holds and rotates. config needs no more than the account's email address;
// EnableCache keeps its certificates between verifications.
func iamCandidates(config gcpjwt.IAMConfig) []candidate {
	open := func(name string, kind gcpjwt.IAMType) candidate {
		config := config
		config.IAMType = kind
		return candidate{name, func(ctx context.Context) (*gcpjwt.Signer, error) {
			return gcpjwt.NewIAMSigner(ctx, &config)
		}, iamStockCheck(&config)}
	}
	return []candidate{
		open("IAM signBlob", gcpjwt.IAMBlobType),
		open("IAM signJwt", gcpjwt.IAMJwtType),
	}
}

// appEngineCandidate signs as the App Engine app that the program runs in. There, Sign's
// context is that of an HTTP request: see examples/appengine.
func appEngineCandidate() candidate {
	return candidate{"App Engine", func(context.Context) (*gcpjwt.Signer, error) {
		return gcpjwt.NewAppEngineSigner(), nil
	}, appEngineStockCheck}
}
