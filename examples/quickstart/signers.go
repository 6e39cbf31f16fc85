package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// kmsMethods says which signing method each algorithm of Cloud KMS is for. A
// program that knows its key, as most do, simply names the method.
var kmsMethods = map[kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm]jwt.SigningMethod{
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256: gcpjwt.SigningMethodKMSRS256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256: gcpjwt.SigningMethodKMSRS256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256: gcpjwt.SigningMethodKMSRS256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512: gcpjwt.SigningMethodKMSRS512,
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256:   gcpjwt.SigningMethodKMSPS256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256:   gcpjwt.SigningMethodKMSPS256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256:   gcpjwt.SigningMethodKMSPS256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512:   gcpjwt.SigningMethodKMSPS512,
	kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256:        gcpjwt.SigningMethodKMSES256,
	kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384:        gcpjwt.SigningMethodKMSES384,
	kmspb.CryptoKeyVersion_EC_SIGN_ED25519:            gcpjwt.SigningMethodKMSEdDSA,
	kmspb.CryptoKeyVersion_HMAC_SHA256:                gcpjwt.SigningMethodKMSHS256,
	kmspb.CryptoKeyVersion_HMAC_SHA384:                gcpjwt.SigningMethodKMSHS384,
	kmspb.CryptoKeyVersion_HMAC_SHA512:                gcpjwt.SigningMethodKMSHS512,
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44:          gcpjwt.SigningMethodKMSMLDSA44,
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65:          gcpjwt.SigningMethodKMSMLDSA65,
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87:          gcpjwt.SigningMethodKMSMLDSA87,
}

// kmsCandidate signs with whatever algorithm the key at keyPath has.
func kmsCandidate(client *kms.KeyManagementClient, keyPath string) candidate {
	return candidate{"KMS " + keyPath, func(ctx context.Context) (opened, error) {
		newest, err := newestVersion(ctx, client, keyPath)
		if err != nil {
			return opened{}, err
		}
		name := "KMS " + newest.Algorithm.String()
		method := kmsMethods[newest.Algorithm]
		if method == nil {
			return opened{name: name}, fmt.Errorf("no signing method is for the algorithm of %s", newest.Name)
		}
		s, err := kmsSigner(ctx, client, keyPath, method)
		return opened{name, s, kmsStockCheck(client, newest)}, err
	}}
}

// newestVersion returns the CryptoKeyVersion at keyPath, or the newest one that is
// ENABLED if there is a CryptoKey. Of the result only Name and Algorithm are set.
func newestVersion(ctx context.Context, client *kms.KeyManagementClient, keyPath string) (*kmspb.CryptoKeyVersion, error) {
	cryptoKey, _, pinned := strings.Cut(keyPath, "/cryptoKeyVersions/")
	if pinned {
		public, err := client.GetPublicKey(ctx, &kmspb.GetPublicKeyRequest{Name: keyPath, PublicKeyFormat: kmspb.PublicKey_PEM})
		if err == nil {
			return &kmspb.CryptoKeyVersion{Name: public.Name, Algorithm: public.Algorithm}, nil
		}
		// A key for MACs has no public key. Only the list tells its algorithm.
		if status.Code(err) != codes.FailedPrecondition {
			return nil, err
		}
	}

	var newest *kmspb.CryptoKeyVersion
	var number int
	versions := client.ListCryptoKeyVersions(ctx, &kmspb.ListCryptoKeyVersionsRequest{Parent: cryptoKey, Filter: "state=ENABLED"})
	for {
		v, err := versions.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(path.Base(v.Name))
		if err != nil {
			return nil, fmt.Errorf("%s has no number: %w", v.Name, err)
		}
		if pinned && v.Name == keyPath || !pinned && n > number {
			newest, number = v, n
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("%s isn't, or has no version that is, ENABLED", keyPath)
	}
	return &kmspb.CryptoKeyVersion{Name: newest.Name, Algorithm: newest.Algorithm}, nil
}

// iamCandidates are the two ways to sign as a service account.
func iamCandidates(config *gcpjwt.IAMConfig) []candidate {
	open := func(name string, method jwt.SigningMethod) candidate {
		return candidate{name, func(ctx context.Context) (opened, error) {
			return opened{name, iamSigner(ctx, config, method), iamStockCheck(config)}, nil
		}}
	}
	return []candidate{
		open("IAM signBlob", gcpjwt.SigningMethodIAMBlob),
		open("IAM signJwt", gcpjwt.SigningMethodIAMJWT),
	}
}

func appEngineCandidate() candidate {
	const name = "App Engine"
	return candidate{name, func(ctx context.Context) (opened, error) {
		return opened{name, appEngineSigner(ctx), appEngineStockCheck}, nil
	}}
}
