package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iterator"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// A signer makes tokens and verifies them, as a *gcpjwt.Signer does.
type signer interface {
	Sign(ctx context.Context, claims jwt.Claims) (string, error)
	Keyfunc(token *jwt.Token) (any, error)
}

// kmsCandidate signs with the key that config names: a CryptoKeyVersion, or a CryptoKey,
// whose newest version then signs. A service that signs or verifies all day leaves
// KMSClient nil, for one that the process shares.
func kmsCandidate(name string, config *gcpjwt.KMSConfig, method jwt.SigningMethod) candidate {
	open := func(ctx context.Context) (signer, error) { return gcpjwt.NewKMSSigner(ctx, config) }
	if method != nil {
		open = func(ctx context.Context) (signer, error) {
			return newMethodSigner(ctx, config, method)
		}
	}
	return candidate{name, open, kmsStockCheck(config.KMSClient, config.KeyPath)}
}

// methodSigner signs with a method that somebody has chosen. A Signer of an Ed25519 key
// takes EdDSA, which is the older of its two names and which all libraries know.
type methodSigner struct {
	config  *gcpjwt.KMSConfig
	method  jwt.SigningMethod
	keyfunc jwt.Keyfunc
}

func newMethodSigner(
	ctx context.Context, config *gcpjwt.KMSConfig, method jwt.SigningMethod,
) (*methodSigner, error) {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	return &methodSigner{config, method, keyfunc}, err
}

func (s *methodSigner) Sign(ctx context.Context, claims jwt.Claims) (string, error) {
	ctx = gcpjwt.NewKMSContext(ctx, s.config)
	return gcpjwt.SignedString(ctx, jwt.NewWithClaims(s.method, claims))
}

func (s *methodSigner) Keyfunc(token *jwt.Token) (any, error) { return s.keyfunc(token) }

// versionOf returns the version at keyPath, or below it, that a kid stands for.
func versionOf(ctx context.Context, client *kms.KeyManagementClient, keyPath, kid string) (string, error) {
	if strings.Contains(keyPath, "/cryptoKeyVersions/") {
		if want := gcpjwt.KMSKeyID(keyPath); kid != want {
			return "", fmt.Errorf("the kid is %q, that of %s is %q", kid, keyPath, want)
		}
		return keyPath, nil
	}
	versions := client.ListCryptoKeyVersions(ctx, &kmspb.ListCryptoKeyVersionsRequest{
		Parent: keyPath, Filter: "state=ENABLED",
	})
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
		return candidate{name, func(ctx context.Context) (signer, error) {
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
	return candidate{"App Engine", func(context.Context) (signer, error) {
		return gcpjwt.NewAppEngineSigner(), nil
	}, appEngineStockCheck}
}
