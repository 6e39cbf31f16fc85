package main

import (
	"regexp"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"go.uber.org/goleak"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), nil, &out); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	const others = 3 // signBlob, signJwt and App Engine
	if got, want := len(regexp.MustCompile(`(?m)OK$`).FindAllString(out.String(), -1)), len(embeddedKeys)+others; got != want {
		t.Errorf("%d rows are OK, want %d:\n%s", got, want, &out)
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
			server, config := start.KMSKey(t, algorithm)
			client, first := config.KMSClient, config.KeyPath
			cryptoKey, _, _ := strings.Cut(first, "/cryptoKeyVersions/")
			for range 10 { // 11 comes after 9, and is the one to find
				if _, err := server.CreateVersion(cryptoKey); err != nil {
					t.Fatal(err)
				}
			}
			for _, keyPath := range []string{first, cryptoKey} {
				var out strings.Builder
				if err := compare(t.Context(), []candidate{kmsCandidate(client, keyPath)}, &out); err != nil {
					t.Errorf("%s: %v\n%s", keyPath, err, &out)
				}
			}
		})
	}
}

func TestFailures(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(server *testutil.KMS, version string)
		want  []string
	}{
		{
			"disabled",
			func(server *testutil.KMS, version string) {
				server.SetState(version, kmspb.CryptoKeyVersion_DISABLED)
			},
			[]string{"read the key", "ENABLED"},
		},
		{
			"no permission to sign",
			func(server *testutil.KMS, _ string) { server.Deny("cloudkms.cryptoKeyVersions.useToSign") },
			[]string{"KMS EC_SIGN_P256_SHA256: sign: ", "roles/cloudkms.signer"},
		},
		{
			"no permission to read the public key",
			func(server *testutil.KMS, _ string) { server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey") },
			[]string{"read the key", "cloudkms.cryptoKeyVersions.viewPublicKey"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server, config := start.KMSKey(t, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
			client, version := config.KMSClient, config.KeyPath
			test.spoil(server, version)
			var out strings.Builder
			err := compare(t.Context(), []candidate{kmsCandidate(client, version)}, &out)
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
	_, config := start.KMSKey(t, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	client, version := config.KMSClient, config.KeyPath
	s, err := kmsCandidate(client, version).open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.sign()
	if err != nil {
		t.Fatal(err)
	}
	token, err := s.verify(text)
	if err != nil {
		t.Fatal(err)
	}
	kid, _ := token.Header["kid"].(string)
	if err := s.stock(t.Context(), "ES256", kid, token); err != nil {
		t.Errorf("good token: %v", err)
	}
	if err := s.stock(t.Context(), "ES256", "other", token); err == nil {
		t.Error("a token with another kid passed")
	}
	token.Signature[0] ^= 1
	if err := s.stock(t.Context(), "ES256", kid, token); err == nil {
		t.Error("a forged token passed")
	}
}
