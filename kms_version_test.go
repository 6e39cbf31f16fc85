package gcpjwt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
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
				server, client := systest.StartKMS(t)
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
	server, client := systest.StartKMS(t)
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
			server, client := systest.StartKMS(t)
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

// C09: a method of one kind never calls a key of another, by either path and transport.
func TestKMSMethodOfAnotherKind(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, key := range []systest.Algorithm{
			systest.P256, systest.PKCS2048, systest.Ed25519, systest.MLDSA44, kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256,
			systest.HMAC256, kmspb.CryptoKeyVersion_HMAC_SHA384, kmspb.CryptoKeyVersion_HMAC_SHA512,
		} {
			t.Run("C09/"+key.String(), func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				version := systest.Create(t, server, key)
				for _, path := range []string{version, systest.CryptoKeyOf(version)} {
					for _, row := range systest.Methods() {
						// MAC keys of another length show theirs by the length of the MAC.
						if row.Algorithm == key || row.Alg == "Ed25519" && key == systest.Ed25519 || row.IsMAC() && systest.RowOf(key).IsMAC() {
							continue
						}
						client := connect(t, server)
						ctx := systest.KMSContext(t.Context(), client, path)
						text, err := gcpjwt.SignedString(ctx, jwt.New(row.Method))
						if text != "" || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) || !strings.Contains(err.Error(), row.Alias) {
							t.Errorf("%s on %s: SignedString: %v, want ErrAlgorithmMismatch that names both", row.Alias, path, err)
						}
						if _, err := row.Method.Sign("header.payload", ctx); !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
							t.Errorf("%s on %s: Sign: %v, want ErrAlgorithmMismatch", row.Alias, path, err)
						}
					}
				}
				if got := server.Calls("AsymmetricSign") + server.Calls("MacSign"); got != 0 {
					t.Errorf("%d calls to sign, want 0", got)
				}
			})
		}
	})
}

// The same where only one of the calls is allowed that tell a MAC key: MacVerify, which
// verifiers may make, or GetCryptoKey.
func TestKMSMACKeyInDisguise(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, denied := range []string{"cloudkms.cryptoKeys.get", "cloudkms.cryptoKeyVersions.useToVerify"} {
			t.Run(denied, func(t *testing.T) { testKMSMACKeyInDisguise(t, connect, denied) })
		}
	})
}

func testKMSMACKeyInDisguise(t *testing.T, connect kmsConnect, denied string) {
	server, _ := systest.StartKMS(t)
	version := systest.Create(t, server, systest.HMAC256)
	server.Deny(denied)
	for _, row := range systest.Methods() {
		if row.Algorithm == systest.HMAC256 {
			continue
		}
		ctx := systest.KMSContext(t.Context(), connect(t, server), version)
		text, err := gcpjwt.SignedString(ctx, jwt.New(row.Method))
		if text != "" || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
			t.Errorf("C09: %s on HMAC_SHA256: SignedString: %v, want ErrAlgorithmMismatch", row.Alias, err)
		}
	}
	if got := server.Calls("AsymmetricSign"); got != 0 {
		t.Errorf("C09: %d calls of AsymmetricSign, want 0", got)
	}
}

// A key of a kind that JOSE has no name for is refused by each call, and told from those
// that it has one for.
func TestKMSKindsWithoutMethod(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, key := range []systest.Algorithm{
			testutil.ECSignP224SHA256, testutil.ECSignP521SHA512, kmspb.CryptoKeyVersion_RSA_SIGN_RAW_PKCS1_2048,
			kmspb.CryptoKeyVersion_PQ_SIGN_SLH_DSA_SHA2_128S, kmspb.CryptoKeyVersion_PQ_SIGN_HASH_SLH_DSA_SHA2_128S_SHA256,
			kmspb.CryptoKeyVersion_HMAC_SHA1, kmspb.CryptoKeyVersion_HMAC_SHA224,
			kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION, kmspb.CryptoKeyVersion_AES_256_GCM,
			kmspb.CryptoKeyVersion_AES_256_KWP, kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_2048_SHA256,
			kmspb.CryptoKeyVersion_ML_KEM_768, kmspb.CryptoKeyVersion_KEM_XWING,
		} {
			t.Run(key.String(), func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				version := systest.Create(t, server, key)
				for _, path := range []string{version, systest.CryptoKeyOf(version)} {
					config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: connect(t, server)}
					_, keyfuncErr := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
					_, signerErr := gcpjwt.NewKMSSigner(t.Context(), config)
					_, keysErr := config.PublicKeys(t.Context())
					_, ecErr := gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), config), jwt.New(gcpjwt.SigningMethodKMSES256))
					_, macErr := gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), config), jwt.New(gcpjwt.SigningMethodKMSHS256))
					for call, err := range map[string]error{
						"KMSVerifyKeyfunc": keyfuncErr, "NewKMSSigner": signerErr, "PublicKeys": keysErr,
						"SignedString with ES256": ecErr, "SignedString with HS256": macErr,
					} {
						if !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
							t.Errorf("%s of %s: %v, want ErrAlgorithmMismatch alone", call, path, err)
							continue
						}
						wants := []string{"EC_SIGN_P256_SHA256", "HMAC_SHA256"}
						if strings.HasPrefix(call, "SignedString") { // which are about one method
							wants = nil
						}
						for _, want := range wants {
							if !strings.Contains(err.Error(), want) {
								t.Errorf("%s of %s: %v, want it to name %s, which works", call, path, err, want)
							}
						}
					}
				}
				// That of a MAC key of another length shows in the MAC.
				if got := server.Calls("AsymmetricSign"); got != 0 {
					t.Errorf("%d calls of AsymmetricSign, want 0", got)
				}
			})
		}
	})
}

// C12: Google's own fake knows neither the format of a public key nor a filter.
func TestKMSLikeGooglesFake(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, algorithm := range []systest.Algorithm{systest.P256, systest.P384, systest.PKCS2048, systest.PSS2048, systest.Ed25519, systest.HMAC256} {
			t.Run("C12/"+algorithm.String(), func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				first := systest.Create(t, server, algorithm)
				version, err := server.CreateVersion(systest.CryptoKeyOf(first))
				if err != nil {
					t.Fatal(err)
				}
				server.SetState(first, systest.Disabled) // and left out here
				server.LikeFakeKMS(true)
				row := systest.RowOf(algorithm)
				for _, path := range []string{version, systest.CryptoKeyOf(version)} {
					config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: connect(t, server)}
					if err := kmsSignAndVerify(t.Context(), config, row); err != nil {
						t.Errorf("%s: %v", path, err)
					}
					keys, err := config.PublicKeys(t.Context())
					if wanted := map[bool]int{false: 1}[row.IsMAC()]; err != nil || len(keys) != wanted {
						t.Errorf("%s: PublicKeys = %v, %v, want %d", path, keys, err, wanted)
					}
					signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
					if err != nil {
						t.Fatalf("%s: NewKMSSigner: %v", path, err)
					}
					text, err := signer.Sign(t.Context(), jwt.MapClaims{})
					if err == nil {
						_, err = jwt.Parse(text, signer.Keyfunc)
					}
					if err != nil {
						t.Errorf("%s: the Signer: %v", path, err)
					}
				}
			})
		}
	})
}

// That the public key may not be read is remembered for a minute by those who only sign,
// and for seconds by those who need it.
func TestKMSPermissionGrantedLater(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, rotating := range []bool{false, true} {
			t.Run(fmt.Sprintf("rotating=%t", rotating), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					server, _ := systest.StartKMS(t, testutil.InMemory())
					use := kmsUse{algorithm: systest.P256, rotating: rotating}
					config := use.config(t, server, connect)
					ctx := gcpjwt.NewKMSContext(t.Context(), config)
					server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
					began := time.Now()
					for time.Since(began) < 59*time.Second {
						systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)
						time.Sleep(time.Second)
					}
					if got := server.Calls("GetPublicKey"); got > 2 {
						t.Errorf("a minute of signing asked %d times for the public key, want once or twice", got)
					}

					needs := map[string]func() error{
						"KMSVerifyKeyfunc": func() error { _, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config); return err },
						"PublicKeys":       func() error { _, err := config.PublicKeys(t.Context()); return err },
						"NewKMSSigner":     func() error { _, err := gcpjwt.NewKMSSigner(t.Context(), config); return err },
					}
					if rotating {
						delete(needs, "NewKMSSigner") // which needs the list alone
					}
					refused := func() {
						t.Helper()
						for name, need := range needs {
							if err := need(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "roles/cloudkms.publicKeyViewer") {
								t.Errorf("%s: %v, want PERMISSION_DENIED that names the role", name, err)
							}
						}
					}
					own := *config
					own.KMSClient = connect(t, server)
					server.ResetCalls()
					if _, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &own); err == nil || server.Calls("GetPublicKey") != 1 {
						t.Errorf("the first to ask: %v after %d calls of GetPublicKey, want an error after 1", err, server.Calls("GetPublicKey"))
					}
					refused()
					server.ResetCalls()
					refused()
					if got := server.Calls("GetPublicKey"); got != 0 {
						t.Errorf("at once again: GetPublicKey was called %d times, want 0", got)
					}
					server.Allow("cloudkms.cryptoKeyVersions.viewPublicKey")
					time.Sleep(systest.NotReady)
					for name, need := range needs {
						if err := need(); err != nil {
							t.Errorf("%s, the permission granted: %v", name, err)
						}
					}
				})
			})
		}
	})
}
