package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"go.uber.org/goleak"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun checks that every row is there, with the signature length that its
// algorithm has.
func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(context.Background(), []string{"-n", "2", "-rtt", "1ms"}, &out); err != nil {
		t.Fatal(err)
	}
	const figures = `\s+\d+\.\d\d ms, \d+\.\d\d ms, \d+\.\d\d ms\s+2\s+\d+\.\d µs`
	for _, row := range []string{
		"AppEngine 342", "IAMBlob 342", "IAMJWT 342",
		"KMSES256 86", "KMSES384 128",
		"KMSPS256 (2048) 342", "KMSPS256 (3072) 512", "KMSPS256 (4096) 683",
		"KMSRS256 (2048) 342", "KMSRS256 (3072) 512", "KMSRS256 (4096) 683",
		"KMSEdDSA 86", "KMSMLDSA65 4412",
		"AppEngineVerify false", "AppEngineVerify true", "IAMVerify false", "IAMVerify true",
		"KMSVerify (2048-PS256) always", "KMSVerify (3072-PS256) always", "KMSVerify (4096-PS256) always",
		"KMSVerify (2048-RS256) always", "KMSVerify (3072-RS256) always", "KMSVerify (4096-RS256) always",
		"KMSVerify (ES256) always", "KMSVerify (ES384) always", "KMSVerify (EdDSA) always", "KMSVerify (MLDSA65) always",
	} {
		pattern := `(?m)^` + strings.ReplaceAll(regexp.QuoteMeta(row), " ", `\s+`) + figures
		if !regexp.MustCompile(pattern).MatchString(out.String()) {
			t.Errorf("no row %s in\n%s", row, out.String())
		}
	}
}

func TestRunRefuses(t *testing.T) {
	for _, args := range [][]string{{"-n", "0"}, {"-rtt", "soon"}, {"-unknown"}} {
		if err := run(context.Background(), args, new(strings.Builder)); err == nil {
			t.Errorf("run(%q) succeeded", args)
		}
	}
}

// TestMethodOf checks that a key's method is found by its name, whether that is a
// version's or a CryptoKey's.
func TestMethodOf(t *testing.T) {
	cloud := gcpjwttest.NewKMS(t)
	for algorithm, want := range map[kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm]*gcpjwt.SigningMethodKMS{
		kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384: gcpjwt.SigningMethodKMSES384,
		kmspb.CryptoKeyVersion_EC_SIGN_ED25519:     gcpjwt.SigningMethodKMSEdDSA,
		kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87:   gcpjwt.SigningMethodKMSMLDSA87,
		kmspb.CryptoKeyVersion_HMAC_SHA256:         nil,
	} {
		config := cloud.NewKey(algorithm)
		for _, name := range []string{config.KeyPath, config.KeyPath + "/cryptoKeyVersions/1"} {
			got, err := methodOf(t.Context(), &gcpjwt.KMSConfig{KeyPath: name, KMSClient: config.KMSClient})
			if got != want || (err == nil) != (want != nil) {
				t.Errorf("methodOf(%s) = %v, %v, want %v", name, got, err, want)
			}
		}
	}
}

func TestPercentile(t *testing.T) {
	var samples []time.Duration
	for i := range 100 {
		samples = append(samples, time.Duration(100-i)*time.Millisecond)
	}
	for percent, want := range map[int]float64{50: 50, 95: 95, 99: 99} {
		if got := percentile(time.Millisecond, samples, percent); got != want {
			t.Errorf("p%d is %v ms, want %v", percent, got, want)
		}
	}
	if got := percentile(time.Millisecond, samples[:1], 50); got != 100 {
		t.Errorf("p50 of one sample is %v ms, want 100", got)
	}
}
