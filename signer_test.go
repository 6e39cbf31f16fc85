package gcpjwt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// kmsSigner makes a Signer that must work.
func kmsSigner(t testing.TB, config *gcpjwt.KMSConfig) *gcpjwt.Signer {
	t.Helper()
	signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
	if err != nil {
		t.Fatalf("NewKMSSigner: %v", err)
	}
	return signer
}

// signs signs with a Signer that must work.
func signs(t testing.TB, signer *gcpjwt.Signer) string {
	t.Helper()
	text, err := signer.Sign(t.Context(), jwt.MapClaims{"sub": "somebody"})
	if err != nil {
		t.Fatalf("Sign: %v", err)
	}
	return text
}

// A Signer finds the method of each kind of key by itself, on both paths, and verifies what it
// signs. A token costs one call.
func TestSignerOfEachAlgorithm(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, row := range systest.Rows {
			if row.Alg == "Ed25519" {
				continue // EdDSA is the name that all libraries know
			}
			for _, rotating := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/rotating=%t", row, rotating), func(t *testing.T) {
					t.Parallel()
					server, _ := systest.StartKMS(t)
					config := kmsUse{algorithm: row.Algorithm, rotating: rotating}.config(t, server, connect)
					version := systest.CryptoKeyOf(config.KeyPath) + "/cryptoKeyVersions/1"
					signer := kmsSigner(t, config)
					if got := server.Calls("MacSign"); row.IsMAC() && !rotating && got != 1 {
						t.Errorf("NewKMSSigner made %d calls of MacSign, want 1", got)
					}
					if got := signer.Method(); got != jwt.SigningMethod(row.Method) {
						t.Errorf("Method = %v, want %s", got, row.Alias)
					}
					signs(t, signer) // which ML-DSA may need the public key for
					server.ResetCalls()
					text := signs(t, signer)
					if got := server.Calls(""); got != 1 {
						t.Errorf("Sign made %d calls, want 1", got)
					}
					if err := systest.Check(row, server, version, text); err != nil {
						t.Error(err)
					}
					header := systest.Header(t, text)
					if header["alg"] != row.Alg || header["kid"] != gcpjwt.KMSKeyID(version) || header["typ"] != "JWT" {
						t.Errorf("the header is %v", header)
					}
					if _, err := jwt.Parse(text, signer.Keyfunc, jwt.WithValidMethods([]string{row.Alg})); err != nil {
						t.Errorf("jwt.Parse: %v", err)
					}
					if _, err := jwt.Parse(systest.Forge(text), signer.Keyfunc); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
						t.Errorf("jwt.Parse of a forged token: %v, want ErrTokenSignatureInvalid", err)
					}
					keys, err := signer.PublicKeys(t.Context())
					if want := map[bool]int{false: 1}[row.IsMAC()]; err != nil || len(keys) != want {
						t.Fatalf("PublicKeys = %v, %v, want %d", keys, err, want)
					}
					for _, key := range keys {
						if key.KeyID != header["kid"] || key.Algorithm != row.Alg {
							t.Errorf("PublicKeys = %v, want the key of the token", key)
						}
						if _, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return key.Public, nil }); err != nil {
							t.Errorf("jwt.Parse with the published key: %v", err)
						}
					}
				})
			}
		}
	})
}

// To change the algorithm, an operator creates a version of another one, and disables the
// old one, and deploys nothing. Tokens by the old one are good until that is disabled.
func TestSignerGoesOverToAnotherAlgorithm(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		signer := kmsSigner(rig, &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client})
		by := func(n int, alg string) string {
			rig.Helper()
			began := time.Now()
			text := signs(rig, signer)
			if took := time.Since(began); took != 0 {
				rig.Errorf("Sign took %v, want nothing", took)
			}
			header := systest.Header(rig, text)
			if header["alg"] != alg || header["kid"] != gcpjwt.KMSKeyID(rig.version(n)) {
				rig.Errorf("version %s signs %v, want %d and %s", rig.number(header["kid"]), header["alg"], n, alg)
			}
			if _, err := jwt.Parse(text, signer.Keyfunc); err != nil {
				rig.Errorf("jwt.Parse: %v", err)
			}
			return text
		}
		old := by(1, "ES256")
		for n, algorithm := range []systest.Algorithm{
			systest.Ed25519, systest.MLDSA44, kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256, systest.PSS2048,
			kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65_EXTERNAL_MU,
		} {
			row := systest.RowOf(algorithm)
			before := signer.Method()
			rig.create(algorithm)
			created := time.Now()
			for time.Since(created) < systest.Refresh/2 {
				text := signs(rig, signer)
				if got := systest.Header(rig, text)["kid"]; got != gcpjwt.KMSKeyID(rig.version(n+1)) {
					rig.Errorf("%v after version %d was made version %s signs", time.Since(created), n+2, rig.number(got))
				}
				if got := signer.Method(); got != before {
					rig.Errorf("Method = %s, want %s", got.Alg(), before.Alg())
				}
				time.Sleep(10 * time.Second)
			}
			for time.Since(created) < 2*systest.Refresh { // a list in the background
				signs(rig, signer)
				time.Sleep(10 * time.Second)
			}
			by(n+2, row.Alg)
			if got := signer.Method(); got != jwt.SigningMethod(row.Method) {
				rig.Errorf("Method = %s, want %s", got.Alg(), row.Alias)
			}
			rig.accepts(signer.Keyfunc, old)
		}

		// The newest is gone: the one before signs, of whatever algorithm it is.
		rig.server.SetState(rig.version(6), systest.Disabled)
		by(5, "PS256")
		if got := signer.Method(); got != jwt.SigningMethod(gcpjwt.SigningMethodKMSPS256) {
			rig.Errorf("Method = %s, want KMSPS256", got.Alg())
		}
		for n := 1; n < 6; n++ {
			rig.server.SetState(rig.version(n), systest.Disabled)
		}
		if text, err := signer.Sign(rig.Context(), jwt.MapClaims{}); err == nil {
			rig.Errorf("Sign without any version that is ENABLED = %q", text)
		}
		if got := signer.Method(); got != nil {
			rig.Errorf("Method without any version that is ENABLED = %s, want none", got.Alg())
		}
		if _, err := gcpjwt.NewKMSSigner(rig.Context(), &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client}); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
			rig.Errorf("NewKMSSigner without any version that is ENABLED: %v, want ErrKeysUnavailable", err)
		}
		rig.server.SetState(rig.version(2), systest.Enabled)
		time.Sleep(systest.NotReady)
		by(2, "EdDSA")
	})
}

// A permission that is missing is named, with its role and what else would do.
func TestSignerPermissions(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for name, tt := range map[string]struct {
			deny      []string
			algorithm systest.Algorithm
			rotating  bool
			wants     []string // of NewKMSSigner's error; nil: it works
			signs     []string // of Sign's
		}{
			"public key of a version": {
				[]string{"viewPublicKey"}, systest.P256, false,
				[]string{"cloudkms.cryptoKeyVersions.viewPublicKey", "roles/cloudkms.publicKeyViewer", "SignedString"}, nil,
			},
			"neither public key nor signature": {
				[]string{"viewPublicKey", "useToSign"}, systest.P256, false,
				[]string{"roles/cloudkms.publicKeyViewer", "roles/cloudkms.signer", "SignedString"}, nil,
			},
			"signature by a version":       {[]string{"useToSign"}, systest.P256, false, nil, []string{"cloudkms.cryptoKeyVersions.useToSign", "roles/cloudkms.signer"}},
			"signature by a MAC version":   {[]string{"useToSign"}, systest.HMAC256, false, []string{"cloudkms.cryptoKeyVersions.useToSign", "roles/cloudkms.signer"}, nil},
			"public key of a MAC version":  {[]string{"viewPublicKey"}, systest.HMAC256, false, nil, nil},
			"list":                         {[]string{"list"}, systest.P256, true, []string{"cloudkms.cryptoKeyVersions.list", "roles/cloudkms.viewer"}, nil},
			"list of a MAC key":            {[]string{"list"}, systest.HMAC256, true, []string{"cloudkms.cryptoKeyVersions.list", "roles/cloudkms.viewer"}, nil},
			"public keys of a CryptoKey":   {[]string{"viewPublicKey"}, systest.P256, true, nil, nil},
			"signature by a CryptoKey":     {[]string{"useToSign"}, systest.P256, true, nil, []string{"cloudkms.cryptoKeyVersions.useToSign", "roles/cloudkms.signer"}},
			"signature by a MAC CryptoKey": {[]string{"useToSign"}, systest.HMAC256, true, nil, []string{"cloudkms.cryptoKeyVersions.useToSign", "roles/cloudkms.signer"}},
		} {
			for _, mayLook := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/mayLook=%t", name, mayLook), func(t *testing.T) {
					t.Parallel()
					server, _ := systest.StartKMS(t)
					config := kmsUse{algorithm: tt.algorithm, rotating: tt.rotating}.config(t, server, connect)
					for _, permission := range tt.deny {
						server.Deny("cloudkms.cryptoKeyVersions." + permission)
					}
					if !mayLook {
						server.Deny("cloudkms.cryptoKeys.get")
					}
					check := func(call string, err error, wants []string) {
						t.Helper()
						if (err == nil) != (wants == nil) || wants != nil && status.Code(err) != codes.PermissionDenied && !hasCode(err, codes.PermissionDenied) {
							t.Errorf("%s: %v, want PERMISSION_DENIED: %t", call, err, wants != nil)
							return
						}
						for _, want := range wants {
							if !strings.Contains(err.Error(), want) {
								t.Errorf("%s: %v, want it to say %s", call, err, want)
							}
						}
					}
					signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
					check("NewKMSSigner", err, tt.wants)
					if err != nil {
						return
					}
					_, err = signer.Sign(t.Context(), jwt.MapClaims{})
					check("Sign", err, tt.signs)
				})
			}
		}
	})
}

// The constructor's context ends nothing later. Sign's is the call's: its end ends it, and what
// it carries goes along.
func TestSignerContexts(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, algorithm := range []systest.Algorithm{systest.P256, systest.HMAC256} {
			for _, rotating := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/rotating=%t", algorithm, rotating), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						server, _ := systest.StartKMS(t, testutil.InMemory())
						config := kmsUse{algorithm: algorithm, rotating: rotating}.config(t, server, connect)
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						signer, err := gcpjwt.NewKMSSigner(ctx, config)
						if err != nil {
							t.Fatal(err)
						}
						cancel()
						time.Sleep(2 * systest.Stale)
						if _, err := jwt.Parse(signs(t, signer), signer.Keyfunc); err != nil {
							t.Errorf("jwt.Parse: %v", err)
						}

						server.SetLatency(20 * time.Second)
						for want, end := range map[error]func(ctx context.Context) (context.Context, context.CancelFunc){
							context.DeadlineExceeded: func(ctx context.Context) (context.Context, context.CancelFunc) {
								return context.WithTimeout(ctx, time.Second)
							},
							context.Canceled: func(ctx context.Context) (context.Context, context.CancelFunc) {
								ctx, cancel := context.WithCancel(ctx)
								time.AfterFunc(time.Second, cancel)
								return ctx, cancel
							},
						} {
							ctx, cancel := end(t.Context())
							began := time.Now()
							_, err := signer.Sign(ctx, jwt.MapClaims{})
							cancel()
							if took := time.Since(began); !errors.Is(err, want) || took != time.Second {
								t.Errorf("Sign: %v after %v, want %v after 1s", err, took, want)
							}
						}
						server.SetLatency(0)
						if strings.Contains(t.Name(), "gRPC") {
							server.ResetCalls()
							ctx := metadata.AppendToOutgoingContext(t.Context(), "x-goog-user-project", "billed")
							if _, err := signer.Sign(ctx, jwt.MapClaims{}); err != nil || server.UserProjectCalls("billed") != 1 {
								t.Errorf("Sign: %v, %d calls carried the caller's metadata, want 1", err, server.UserProjectCalls("billed"))
							}
						}
					})
				})
			}
		}
	})
}

// An outage when the first token comes is none for good.
func TestSignerKeyfuncInAnOutage(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, algorithm := range []systest.Algorithm{systest.P256, systest.HMAC256} {
			for _, rotating := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/rotating=%t", algorithm, rotating), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						server, _ := systest.StartKMS(t, testutil.InMemory())
						config := kmsUse{algorithm: algorithm, rotating: rotating}.config(t, server, connect)
						signer := kmsSigner(t, config)
						text := signs(t, signer)
						server.Stop()
						_, err := jwt.Parse(text, signer.Keyfunc)
						if algorithm == systest.P256 && !rotating { // which the constructor read
							if err != nil {
								t.Errorf("in an outage: jwt.Parse: %v", err)
							}
						} else if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
							t.Errorf("in an outage: jwt.Parse: %v, want ErrKeysUnavailable", err)
						}
						if err := server.Restart(); err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Second)
						if _, err := jwt.Parse(text, signer.Keyfunc); err != nil {
							t.Errorf("afterwards: jwt.Parse: %v", err)
						}
					})
				})
			}
		}
	})
}

// A Signer that never verifies reads no public key. Its configuration is copied.
func TestSignerKeepsToItself(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client}
		signer := kmsSigner(rig, config)
		*config = gcpjwt.KMSConfig{}
		for range 10 {
			signs(rig, signer)
			time.Sleep(systest.Refresh)
		}
		if got := rig.server.Calls("GetPublicKey"); got != 0 {
			rig.Errorf("GetPublicKey was called %d times, want 0", got)
		}
		if keys, err := signer.PublicKeys(rig.Context()); err != nil || len(keys) != 1 {
			rig.Errorf("PublicKeys = %v, %v, want one", keys, err)
		}
	})
}

// A Signer of a service account signs with what IAMType says, signBlob if it says nothing, and
// makes no call until then.
func TestIAMSigner(t *testing.T) {
	t.Parallel()
	for kind, rpc := range map[gcpjwt.IAMType]string{0: "signBlob", gcpjwt.IAMBlobType: "signBlob", gcpjwt.IAMJwtType: "signJwt"} {
		server, config := systest.StartIAM(t)
		config.IAMType = kind
		signer, err := gcpjwt.NewIAMSigner(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		*config = gcpjwt.IAMConfig{ServiceAccount: "another@test.iam.gserviceaccount.com"}
		if got := server.Calls(""); got != 0 {
			t.Errorf("NewIAMSigner made %d calls, want 0", got)
		}
		text := signs(t, signer)
		// signBlob's key is known afterwards only, the first time.
		if got, want := server.Calls(rpc), map[string]int{"signBlob": 2, "signJwt": 1}[rpc]; got != want || server.Calls("") != want {
			t.Errorf("%d calls of %s in %d, want %d", got, rpc, server.Calls(""), want)
		}
		if got := systest.Header(t, signs(t, signer)); got["alg"] != "RS256" || got["kid"] != server.KeyIDs(account)[0] {
			t.Errorf("the header is %v", got)
		}
		if _, err := jwt.Parse(text, signer.Keyfunc); err != nil {
			t.Errorf("jwt.Parse: %v", err)
		}
		if keys, err := signer.PublicKeys(t.Context()); err != nil || len(keys) != 1 || keys[0].KeyID != server.KeyIDs(account)[0] {
			t.Errorf("PublicKeys = %v, %v, want the account's", keys, err)
		}
		want := map[string]jwt.SigningMethod{"signBlob": gcpjwt.SigningMethodIAMBlob, "signJwt": gcpjwt.SigningMethodIAMJWT}[rpc]
		if got := signer.Method(); got != want {
			t.Errorf("Method = %v, want %s", got, want.Alg())
		}
	}
}

// A Signer of the app. Not parallel, as a process is one app.
func TestAppEngineSigner(t *testing.T) {
	app := aeServer(t)
	t.Setenv("API_HOST", app.Host())
	t.Setenv("API_PORT", app.Port())
	signer := gcpjwt.NewAppEngineSigner()
	for range 2 {
		text := signs(t, signer)
		if got := systest.Header(t, text); got["alg"] != "RS256" || got["kid"] != app.KeyNames()[0] {
			t.Errorf("the header is %v", got)
		}
		if _, err := jwt.Parse(text, signer.Keyfunc); err != nil {
			t.Errorf("jwt.Parse: %v", err)
		}
	}
	if keys, err := signer.PublicKeys(t.Context()); err != nil || len(keys) != 1 || keys[0].KeyID != app.KeyNames()[0] {
		t.Errorf("PublicKeys = %v, %v, want the app's", keys, err)
	}
	if got := signer.Method(); got != jwt.SigningMethod(gcpjwt.SigningMethodAppEngine) {
		t.Errorf("Method = %v, want AppEngine", got)
	}
}
