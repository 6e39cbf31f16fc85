package gcpjwt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

// B04: a method that doesn't fit the key is refused, naming both, before any
// signature.
func TestKMSAlgorithmMismatch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		method *gcpjwt.SigningMethodKMS
		key    systest.Algorithm
	}{
		{gcpjwt.SigningMethodKMSRS256, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512},
		{gcpjwt.SigningMethodKMSRS256, systest.P384},
		// These two are signed without complaint by Cloud KMS, and verified by nobody.
		{gcpjwt.SigningMethodKMSRS256, systest.PSS2048},
		{gcpjwt.SigningMethodKMSPS256, systest.PKCS2048},
		{gcpjwt.SigningMethodKMSRS512, kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512},
		{gcpjwt.SigningMethodKMSRS512, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256},
		{gcpjwt.SigningMethodKMSPS512, kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256},
		{gcpjwt.SigningMethodKMSES256, systest.P384},
		{gcpjwt.SigningMethodKMSES384, systest.P256},
		{gcpjwt.SigningMethodKMSES256, systest.PKCS2048},
		{gcpjwt.SigningMethodKMSEdDSA, systest.P256},
		{gcpjwt.SigningMethodKMSEdDSA, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44},
		{gcpjwt.SigningMethodKMSMLDSA44, systest.Ed25519},
		{gcpjwt.SigningMethodKMSMLDSA44, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65},
		{gcpjwt.SigningMethodKMSMLDSA87, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65},
	}
	for _, tt := range tests {
		for _, rotating := range []bool{false, true} {
			t.Run(fmt.Sprintf("B04/%s on %s/rotating=%t", tt.method.Alg(), tt.key, rotating), func(t *testing.T) {
				t.Parallel()
				server, client := start.KMS(t)
				path := systest.Create(t, server, tt.key)
				if rotating {
					path = systest.CryptoKeyOf(path)
				}
				ctx := systest.KMSContext(t.Context(), client, path)
				token := jwt.New(tt.method)
				text, err := gcpjwt.SignedString(ctx, token)
				if text != "" || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
					t.Errorf("SignedString = %q, %v, want ErrAlgorithmMismatch", text, err)
				}
				if _, set := token.Header["kid"]; set {
					t.Errorf("the failed signature left the kid %v", token.Header["kid"])
				}
				sig, err := tt.method.Sign("header.payload", ctx)
				if sig != nil || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
					t.Fatalf("Sign = %q, %v, want ErrAlgorithmMismatch", sig, err)
				}
				names := []string{tt.method.Alg(), path}
				if !rotating {
					names = append(names, tt.key.String())
				}
				for _, want := range names {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the error is %q, want it to name %s", err, want)
					}
				}
				if got := server.Calls("AsymmetricSign"); got != 0 {
					t.Errorf("AsymmetricSign was called %d times, want 0", got)
				}
			})
		}
	}
}

// R02: fifty callers that come at once share the one read.
func TestKMSConcurrentFirstUse(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := systest.Create(t, server, systest.P256)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			if _, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), client, version), jwt.New(gcpjwt.SigningMethodKMSES256)); err != nil {
				t.Errorf("SignedString: %v", err)
			}
		})
	}
	group.Wait()
	if got := server.Calls("GetPublicKey"); got != 1 {
		t.Errorf("R02: GetPublicKey was called %d times, want 1", got)
	}
}

// The public key is asked for in NIST_PQC, which all ML-DSA keys have; a caller
// who cannot know what kind of key it is asks for PEM first, and never
// believes PEM of an ML-DSA key.
func TestMLDSAPublicKeyFormat(t *testing.T) {
	t.Parallel()
	type format = kmspb.PublicKey_PublicKeyFormat
	tests := []struct {
		name      string
		refusePEM bool // the server, as the API's comments have it, knows PEM of classical keys only
		use       func(t *testing.T, server *testutil.KMS, ctx context.Context, config *gcpjwt.KMSConfig, version string)
		want      []format
	}{
		{"sign", false, func(t *testing.T, _ *testutil.KMS, ctx context.Context, config *gcpjwt.KMSConfig, _ string) {
			systest.Sign(t, gcpjwt.NewKMSContext(ctx, config), gcpjwt.SigningMethodKMSMLDSA65, nil)
		}, []format{kmspb.PublicKey_NIST_PQC}},
		{"verify", false, func(t *testing.T, _ *testutil.KMS, ctx context.Context, config *gcpjwt.KMSConfig, _ string) {
			systest.KMSKeyfunc(t, ctx, config.KMSClient, config.KeyPath)
		}, []format{kmspb.PublicKey_PEM, kmspb.PublicKey_NIST_PQC}},
		{"verify, PEM refused", true, func(t *testing.T, _ *testutil.KMS, ctx context.Context, config *gcpjwt.KMSConfig, _ string) {
			systest.KMSKeyfunc(t, ctx, config.KMSClient, config.KeyPath)
		}, []format{kmspb.PublicKey_PEM, kmspb.PublicKey_NIST_PQC}},
		{"verify the CryptoKey", false, func(t *testing.T, _ *testutil.KMS, ctx context.Context, config *gcpjwt.KMSConfig, version string) {
			systest.KMSKeyfunc(t, ctx, config.KMSClient, systest.CryptoKeyOf(version))
		}, []format{kmspb.PublicKey_NIST_PQC}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := systest.Create(t, server, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65)
			text := systest.Sign(t, systest.KMSContext(t.Context(), systest.Client(t, server), version), gcpjwt.SigningMethodKMSMLDSA65, nil)
			var (
				mu  sync.Mutex
				got []format
			)
			server.Intercept(func(ctx context.Context, _ string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				if req, ok := req.(*kmspb.GetPublicKeyRequest); ok {
					mu.Lock()
					got = append(got, req.PublicKeyFormat)
					mu.Unlock()
					if tt.refusePEM && req.PublicKeyFormat == kmspb.PublicKey_PEM {
						req.PublicKeyFormat = kmspb.PublicKey_DER // which the server refuses with the right code
					}
				}
				return next(ctx, req)
			})
			tt.use(t, server, t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}, version)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("formats asked for (-want +got):\n%s", diff)
			}
			if _, err := jwt.Parse(text, systest.KMSKeyfunc(t, t.Context(), client, version)); err != nil {
				t.Errorf("jwt.Parse: %v", err)
			}
		})
	}
}
