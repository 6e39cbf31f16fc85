package main

import (
	"regexp"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"go.uber.org/goleak"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	for _, args := range [][]string{nil, {"-rest"}} {
		var out strings.Builder
		if err := run(t.Context(), args, &out); err != nil {
			t.Fatalf("run %q: %v\n%s", args, err, &out)
		}
		const others = 3 // signBlob, signJwt and App Engine
		if got, want := len(regexp.MustCompile(`(?m)OK$`).FindAllString(out.String(), -1)), len(embeddedKeys)+others; got != want {
			t.Errorf("run %q: %d rows are OK, want %d:\n%s", args, got, want, &out)
		}
		for _, alg := range []string{
			"RS256", "RS512", "PS256", "PS512", "ES256", "ES384", "ES256K", "EdDSA", "Ed25519",
			"HS256", "HS384", "HS512", "ML-DSA-44", "ML-DSA-65", "ML-DSA-87",
		} {
			if !strings.Contains(out.String(), "  "+alg+"  ") {
				t.Errorf("run %q: no row of %s:\n%s", args, alg, &out)
			}
		}
	}
}

func TestRunArguments(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"surplus"}, &out); err == nil || !strings.Contains(err.Error(), "surplus") {
		t.Errorf("run with a surplus argument: %v", err)
	}
}

func TestKMSKeyPaths(t *testing.T) {
	for _, algorithm := range []kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm{
		kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256,
		kmspb.CryptoKeyVersion_HMAC_SHA384,
		kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65,
	} {
		t.Run(algorithm.String(), func(t *testing.T) {
			cloud := gcpjwttest.NewKMS(t)
			config := cloud.NewKey(algorithm)
			version := cloud.NewVersion(config)
			for _, keyPath := range []string{version, config.KeyPath} {
				var out strings.Builder
				if err := compare(t.Context(), []candidate{kmsCandidate("KMS", &gcpjwt.KMSConfig{KeyPath: keyPath, KMSClient: config.KMSClient}, nil)}, &out); err != nil {
					t.Errorf("%s: %v\n%s", keyPath, err, &out)
				}
			}
		})
	}
}

func TestFailures(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(cloud *gcpjwttest.KMS, version string)
		want  []string
	}{
		{
			"disabled",
			func(cloud *gcpjwttest.KMS, version string) {
				cloud.SetState(version, kmspb.CryptoKeyVersion_DISABLED)
			},
			[]string{"read the key", "DISABLED"},
		},
		{
			"no permission to sign",
			func(cloud *gcpjwttest.KMS, _ string) { cloud.Deny("cloudkms.cryptoKeyVersions.useToSign") },
			[]string{"KMS: sign: ", "roles/cloudkms.signer"},
		},
		{
			"no permission to read the public key",
			func(cloud *gcpjwttest.KMS, _ string) { cloud.Deny("cloudkms.cryptoKeyVersions.viewPublicKey") },
			[]string{"read the key", "cloudkms.cryptoKeyVersions.viewPublicKey"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cloud := gcpjwttest.NewKMS(t)
			config := cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
			version := config.KeyPath + "/cryptoKeyVersions/1"
			test.spoil(cloud, version)
			var out strings.Builder
			err := compare(t.Context(), []candidate{kmsCandidate("KMS", &gcpjwt.KMSConfig{KeyPath: version, KMSClient: config.KMSClient}, nil)}, &out)
			if err == nil {
				t.Fatalf("no error:\n%s", &out)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if !strings.Contains(out.String(), "FAILED to ") {
				t.Errorf("no row says so:\n%s", &out)
			}
		})
	}
}

// A token with another signature must not pass the check without gcpjwt.
func TestStockCheck(t *testing.T) {
	for _, algorithm := range []kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm{
		kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256,
		kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256,
		kmspb.CryptoKeyVersion_EC_SIGN_ED25519,
		kmspb.CryptoKeyVersion_HMAC_SHA256,
		kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44,
	} {
		t.Run(algorithm.String(), func(t *testing.T) {
			c := kmsCandidate("KMS", gcpjwttest.NewKMS(t).NewKey(algorithm), nil)
			s, err := c.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			text, err := sign(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			token, err := verify(s, text)
			if err != nil {
				t.Fatal(err)
			}
			alg, _ := token.Header["alg"].(string)
			kid, _ := token.Header["kid"].(string)
			if err := c.stock(t.Context(), alg, kid, token); err != nil {
				t.Errorf("good token: %v", err)
			}
			if err := c.stock(t.Context(), alg, "other", token); err == nil {
				t.Error("a token with another kid passed")
			}
			if err := c.stock(t.Context(), "none", kid, token); err == nil {
				t.Error("a token with another alg passed")
			}
			token.Signature[0] ^= 1
			if err := c.stock(t.Context(), alg, kid, token); err == nil {
				t.Error("a forged token passed")
			}
		})
	}
}
