package gcpjwt_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	mldsax509 "filippo.io/mldsa/x509"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// A MAC key is verified by one MacVerify for each token, whatever names it and
// whether or not the token has a kid. The parser finds jwt's own HS256 under
// the token's alg, which could not do that: the Keyfunc replaces it.
func TestKMSMac(t *testing.T) {
	t.Parallel()
	for _, row := range systest.Rows {
		if !row.IsMAC() {
			continue
		}
		for _, rotating := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/rotating=%t", row.Alg, rotating), func(t *testing.T) {
				t.Parallel()
				server, client := systest.StartKMS(t)
				path := systest.Create(t, server, row.Algorithm)
				version := path
				if rotating {
					path = systest.CryptoKeyOf(path)
				}
				ctx := systest.KMSContext(t.Context(), client, path)
				tokens := map[string]string{
					"kid":    systest.Sign(t, ctx, row.Method, nil),
					"no kid": systest.SignBare(t, ctx, row.Method, row.Alg),
					"alias":  systest.SignBare(t, ctx, row.Method, row.Alias),
				}
				keyfunc := systest.KMSKeyfunc(t, t.Context(), client, path)
				for name, text := range tokens {
					t.Run(name, func(t *testing.T) {
						server.ResetCalls()
						token, err := jwt.Parse(text, keyfunc)
						if err != nil || !token.Valid {
							t.Errorf("jwt.Parse: %v", err)
						}
						if token.Method != jwt.SigningMethod(row.Method) {
							t.Errorf("the token's method is %v, want %s", token.Method, row.Alias)
						}
						if got := server.Calls("MacVerify"); got != 1 || server.Calls("") != 1 {
							t.Errorf("%d MacVerify in %d calls, want 1 in 1", got, server.Calls(""))
						}

						token, err = jwt.Parse(systest.Forge(text), keyfunc)
						if !errors.Is(err, jwt.ErrTokenSignatureInvalid) || !errors.Is(err, jwt.ErrSignatureInvalid) || token.Valid {
							t.Errorf("a forged token: %v, want ErrSignatureInvalid", err)
						}
						if errors.Is(err, gcpjwt.ErrKeysUnavailable) {
							t.Errorf("a forged token: %v, which blames Cloud KMS", err)
						}
					})
				}

				t.Run("context as key", func(t *testing.T) {
					signingString, mac := systest.Split(t, tokens["kid"])
					if err := row.Method.Verify(signingString, mac, ctx); err != nil {
						t.Errorf("Verify with a context: %v", err)
					}
					server.ResetCalls()
					for range 5 {
						if err := row.Method.Verify(signingString, mac, ctx); err != nil {
							t.Errorf("Verify with a context: %v", err)
						}
					}
					if got := server.Calls("MacVerify"); got != 5 || server.Calls("") != 5 {
						t.Errorf("5 times Verify: %d MacVerify in %d calls, want 5 in 5", got, server.Calls(""))
					}
					if err := row.Method.Verify(signingString+"x", mac, ctx); !errors.Is(err, jwt.ErrSignatureInvalid) {
						t.Errorf("Verify of another text with a context: %v, want ErrSignatureInvalid", err)
					}
					if err := row.Method.Verify(signingString, mac, t.Context()); !errors.Is(err, gcpjwt.ErrMissingConfig) {
						t.Errorf("Verify with a context without configuration: %v, want ErrMissingConfig", err)
					}
					ended, cancel := context.WithCancel(ctx)
					cancel()
					if err := row.Method.Verify(signingString, mac, ended); !errors.Is(err, context.Canceled) {
						t.Errorf("Verify with an ended context: %v, want context.Canceled", err)
					}
					broken := systest.KMSContext(t.Context(), client, "cryptoKeys/k")
					if err := row.Method.Verify(signingString, mac, broken); !errors.Is(err, gcpjwt.ErrInvalidConfig) {
						t.Errorf("Verify with a malformed KeyPath: %v, want ErrInvalidConfig", err)
					}
				})

				t.Run("disabled later", func(t *testing.T) {
					server.SetState(version, systest.Disabled)
					for name, text := range tokens {
						token, err := jwt.Parse(text, keyfunc)
						if err == nil || token.Valid || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
							t.Errorf("%s: jwt.Parse: %v, want a refusal that doesn't blame Cloud KMS", name, err)
						}
					}
				})
			})
		}
	}
}

// A MAC of another algorithm, which its key would be asked about whatever the
// token says, is refused for its length, without a call.
func TestKMSMacOfAnotherAlgorithm(t *testing.T) {
	t.Parallel()
	for _, row := range systest.Rows {
		if !row.IsMAC() {
			continue
		}
		t.Run(row.Alg, func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
			version := systest.Create(t, server, row.Algorithm)
			ctx := systest.KMSContext(t.Context(), client, version)
			for name, path := range map[string]string{"version": version, "CryptoKey": systest.CryptoKeyOf(version)} {
				keyfunc := systest.KMSKeyfunc(t, t.Context(), client, path)
				for _, alg := range []string{"HS256", "HS384", "HS512"} {
					if alg == row.Alg {
						continue
					}
					// Signed as alg, by the key of row.Alg: what an attacker who may
					// use the key otherwise could make.
					signingString, _ := systest.Split(t, systest.Relabel(t, systest.Sign(t, ctx, row.Method, nil), "alg", alg))
					response, err := client.MacSign(t.Context(), &kmspb.MacSignRequest{Name: version, Data: []byte(signingString)})
					if err != nil {
						t.Fatal(err)
					}
					server.ResetCalls()
					token, err := jwt.Parse(signingString+"."+base64.RawURLEncoding.EncodeToString(response.Mac), keyfunc)
					if err == nil || token.Valid || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Errorf("%s: a MAC by %s in a token of %s: %v, want a refusal", name, row.Alg, alg, err)
					}
					if got := server.Calls(""); got != 0 {
						t.Errorf("%s: %d calls, want 0", name, got)
					}
				}
				for _, size := range []int{0, 1, row.Size - 1, row.Size + 1, 100} {
					text := systest.Sign(t, ctx, row.Method, nil)
					server.ResetCalls()
					signingString, mac := systest.Split(t, text)
					mac = append(mac, make([]byte, 100)...)[:size]
					_, err := jwt.Parse(signingString+"."+base64.RawURLEncoding.EncodeToString(mac), keyfunc)
					if !errors.Is(err, jwt.ErrSignatureInvalid) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Errorf("%s: a MAC of %d bytes: %v, want ErrSignatureInvalid", name, size, err)
					}
					if got := server.Calls(""); got != 0 {
						t.Errorf("%s: a MAC of %d bytes: %d calls, want 0", name, size, got)
					}
				}
			}
		})
	}
}

// A token that is too long for Cloud KMS cannot be one that it signed.
func TestKMSMacOfLongToken(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.HMAC256)
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, version)
	text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSHS256, nil)
	server.ResetCalls()
	parts := strings.Split(text, ".")
	parts[1] = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"sub": %q}`, strings.Repeat("a", 64<<10)))
	_, err := jwt.Parse(strings.Join(parts, "."), keyfunc)
	if !errors.Is(err, jwt.ErrSignatureInvalid) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("jwt.Parse: %v, want ErrSignatureInvalid", err)
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want 0", got)
	}
}

// A MAC that could not be checked is no bad MAC.
func TestKMSMacOutage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		fail func(server *testutil.KMS)
		code codes.Code
	}{
		{"stopped", func(server *testutil.KMS) { server.Stop() }, codes.OK},
		{"quota", kmsFail(codes.ResourceExhausted), codes.ResourceExhausted},
		{"internal", kmsFail(codes.Internal), codes.Internal},
		{"permission", func(server *testutil.KMS) { server.Deny("cloudkms.cryptoKeyVersions.useToVerify") }, codes.PermissionDenied},
		{"hanging", func(server *testutil.KMS) { systest.Hang(server, "MacVerify") }, codes.OK},
	}
	for _, tt := range tests {
		for _, rotating := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/rotating=%t", tt.name, rotating), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					server, client := systest.StartKMS(t, testutil.InMemory())
					path := systest.Create(t, server, systest.HMAC256)
					if rotating {
						path = systest.CryptoKeyOf(path)
					}
					text := systest.Sign(t, systest.KMSContext(t.Context(), client, path), gcpjwt.SigningMethodKMSHS256, nil)
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					keyfunc := systest.KMSKeyfunc(t, ctx, client, path)
					tt.fail(server)
					start := time.Now()
					token, err := jwt.Parse(text, keyfunc)
					if !errors.Is(err, gcpjwt.ErrKeysUnavailable) || token.Valid {
						t.Errorf("jwt.Parse: %v, want ErrKeysUnavailable", err)
					}
					if errors.Is(err, jwt.ErrSignatureInvalid) {
						t.Errorf("jwt.Parse: %v, which blames the token", err)
					}
					if tt.code != codes.OK && status.Code(errors.Unwrap(err)) != tt.code && !strings.Contains(err.Error(), tt.code.String()) {
						t.Errorf("jwt.Parse: %v, want code %v within", err, tt.code)
					}
					if got := time.Since(start); got > 30*time.Second {
						t.Errorf("jwt.Parse took %v, beyond the Keyfunc's context", got)
					}
				})
			})
		}
	}
}

// kmsFail makes every RPC fail.
func kmsFail(code codes.Code) func(server *testutil.KMS) {
	return func(server *testutil.KMS) {
		server.Intercept(func(context.Context, string, proto.Message, testutil.KMSHandler) (proto.Message, error) {
			return nil, status.Error(code, "the service has a bad day")
		})
	}
}

// A token without kid is tried with each version.
func TestKMSMacWithoutKeyID(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	first := systest.Create(t, server, systest.HMAC256)
	second, err := server.CreateVersion(systest.CryptoKeyOf(first))
	if err != nil {
		t.Fatal(err)
	}
	// A version of another hash, which must not be asked.
	if _, err := server.CreateVersion(systest.CryptoKeyOf(first), kmspb.CryptoKeyVersion_HMAC_SHA512); err != nil {
		t.Fatal(err)
	}
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(first))
	rotating := systest.KMSContext(t.Context(), client, systest.CryptoKeyOf(first))
	parse := func(text string, maximum int) error {
		t.Helper()
		server.ResetCalls()
		_, err := jwt.Parse(text, keyfunc)
		if got := server.Calls("MacVerify"); got > maximum || server.Calls("") != got {
			t.Errorf("%d MacVerify in %d calls, want at most %d and no other", got, server.Calls(""), maximum)
		}
		return err
	}
	texts := make(map[string]string)
	for _, version := range []string{first, second} {
		texts[version] = systest.SignBare(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSHS256, "HS256")
		if err := parse(texts[version], 2); err != nil {
			t.Errorf("a token by %s: %v", version, err)
		}
		signingString, mac := systest.Split(t, texts[version])
		if err := gcpjwt.SigningMethodKMSHS256.Verify(signingString, mac, rotating); err != nil {
			t.Errorf("Verify of a token by %s with a context: %v", version, err)
		}
		if err := parse(systest.Relabel(t, texts[version], "kid", gcpjwt.KMSKeyID(first)), 1); !errors.Is(err, jwt.ErrSignatureInvalid) {
			t.Errorf("a token by %s with a kid added: %v, want ErrSignatureInvalid", version, err)
		}
		if err := parse(systest.Forge(texts[version]), 2); !errors.Is(err, jwt.ErrSignatureInvalid) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
			t.Errorf("a forged token: %v, want ErrSignatureInvalid", err)
		}
	}

	// One of the two is gone, before the list says so.
	for _, gone := range []string{first, second} {
		server.SetState(gone, systest.Disabled)
		for version, text := range texts {
			err := parse(text, 2)
			if gone == version && (err == nil || errors.Is(err, gcpjwt.ErrKeysUnavailable)) {
				t.Errorf("a token by %s, which is disabled: %v, want a refusal", version, err)
			}
			if gone != version && err != nil {
				t.Errorf("a token by %s while the other version is disabled: %v", version, err)
			}
		}
		server.SetState(gone, systest.Enabled)
	}

	// One of the two cannot be asked: the other's verdict counts if it is yes.
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if req, ok := req.(*kmspb.MacVerifyRequest); ok && req.Name == second {
			return nil, status.Error(codes.Internal, "no")
		}
		return next(ctx, req)
	})
	if err := parse(texts[first], 2); err != nil {
		t.Errorf("a token by version 1 while version 2 cannot be asked: %v", err)
	}
	if err := parse(texts[second], 2); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("a token by version 2, which cannot be asked: %v, want ErrKeysUnavailable", err)
	}
}

// B10: the public key is no secret, so no MAC made with it counts. Not parallel
// because of Override.
func TestKMSMacWithPublicKeyAsSecret(t *testing.T) {
	for _, algorithm := range []systest.Algorithm{systest.PKCS2048, systest.P256, systest.Ed25519} {
		for _, overridden := range []bool{false, true} {
			t.Run(fmt.Sprintf("B10/%s/overridden=%t", algorithm, overridden), func(t *testing.T) {
				if overridden {
					kmsOverride(t, gcpjwt.SigningMethodKMSHS256)
				}
				server, client := systest.StartKMS(t)
				version := systest.Create(t, server, algorithm)
				der, err := mldsax509.MarshalPKIXPublicKey(server.PublicKey(version))
				if err != nil {
					t.Fatal(err)
				}
				text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
				secrets := map[string][]byte{"PEM": text, "trimmed PEM": []byte(strings.TrimSpace(string(text))), "DER": der}
				for _, path := range []string{version, systest.CryptoKeyOf(version)} {
					keyfunc := systest.KMSKeyfunc(t, t.Context(), client, path)
					server.ResetCalls()
					for name, secret := range secrets {
						for _, kid := range []any{nil, gcpjwt.KMSKeyID(version)} {
							token := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "admin"})
							if kid != nil {
								token.Header["kid"] = kid
							}
							forged, err := token.SignedString(secret)
							if err != nil {
								t.Fatal(err)
							}
							parsed, err := jwt.Parse(forged, keyfunc)
							if !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) || parsed.Valid {
								t.Errorf("HS256 with the %s as secret, kid %v: %v, want ErrAlgorithmMismatch", name, kid, err)
							}
						}
					}
					if got := server.Calls(""); got != 0 {
						t.Errorf("%d calls, want 0", got)
					}
				}
			})
		}
	}
}

// Nor does Verify take a secret of any kind.
func TestKMSMacVerifyTakesNoSecret(t *testing.T) {
	t.Parallel()
	h := hmac.New(sha256.New, []byte("secret"))
	h.Write([]byte("header.payload"))
	err := gcpjwt.SigningMethodKMSHS256.Verify("header.payload", h.Sum(nil), []byte("secret"))
	if !errors.Is(err, jwt.ErrInvalidKeyType) || !strings.Contains(err.Error(), "KMSVerifyKeyfunc") {
		t.Errorf("Verify with a secret: %v, want ErrInvalidKeyType that says what to use", err)
	}
}

// A Keyfunc of a MAC key refuses tokens of other algorithms without a call.
func TestKMSMacKeyfuncRefusesOtherAlgorithms(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.HMAC256)
	text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSHS256, nil)
	for _, path := range []string{version, systest.CryptoKeyOf(version)} {
		keyfunc := systest.KMSKeyfunc(t, t.Context(), client, path)
		server.ResetCalls()
		for _, alg := range []string{"none", "hs256", "RS256", "ES256", "EdDSA", "KMSRS256", "ML-DSA-65"} {
			for _, kid := range []any{nil, gcpjwt.KMSKeyID(version)} {
				token, err := jwt.Parse(systest.Relabel(t, systest.Relabel(t, text, "alg", alg), "kid", kid), keyfunc)
				if !errors.Is(err, jwt.ErrTokenUnverifiable) || token != nil && token.Valid {
					t.Errorf("B10: alg %s, kid %v: %v, want ErrTokenUnverifiable", alg, kid, err)
				}
			}
		}
		if got := server.Calls(""); got != 0 {
			t.Errorf("%d calls, want 0", got)
		}
	}
}

// Many tokens at once: each has its own answer.
func TestKMSMacConcurrent(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.HMAC256)
	ctx := systest.KMSContext(t.Context(), client, systest.CryptoKeyOf(version))
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(version))
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodKMSHS256, jwt.MapClaims{"n": i}))
			if err != nil {
				t.Errorf("SignedString: %v", err)
				return
			}
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Errorf("jwt.Parse: %v", err)
			}
			if _, err := jwt.Parse(systest.Forge(text), keyfunc); !errors.Is(err, jwt.ErrSignatureInvalid) {
				t.Errorf("jwt.Parse of a forged token: %v, want ErrSignatureInvalid", err)
			}
		})
	}
	group.Wait()
}

// A MAC key in use is told from an asymmetric key by what Cloud KMS answers; an
// asymmetric key that is disabled must not be taken for one.
func TestKMSMacOrDisabled(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []systest.Algorithm{systest.P256, systest.HMAC256} {
		t.Run(algorithm.String(), func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
			version := systest.Create(t, server, algorithm)
			server.SetState(version, systest.Disabled)
			_, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client})
			if status.Code(err) != codes.FailedPrecondition || !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
				t.Errorf("KMSVerifyKeyfunc: %v, want FAILED_PRECONDITION and ErrKeysUnavailable", err)
			}
		})
	}
}

// A verifier of MACs needs no permission but useToVerify, and if it hasn't got
// that, it is told so.
func TestKMSMacPermissions(t *testing.T) {
	t.Parallel()
	for _, rotating := range []bool{false, true} {
		t.Run(fmt.Sprintf("rotating=%t", rotating), func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
			path := systest.Create(t, server, systest.HMAC256)
			text := systest.Sign(t, systest.KMSContext(t.Context(), client, path), gcpjwt.SigningMethodKMSHS256, nil)
			if rotating {
				path = systest.CryptoKeyOf(path)
			}
			config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client}
			server.Deny("cloudkms.cryptoKeyVersions.useToVerify")
			keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
			if err == nil { // then it is the first token that is told
				_, err = jwt.Parse(text, keyfunc)
			}
			for _, want := range []string{"cloudkms.cryptoKeyVersions.useToVerify", "roles/cloudkms.verifier"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("without useToVerify: %v, want an error that names %s", err, want)
				}
			}
			if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
				t.Errorf("without useToVerify: %v, want ErrKeysUnavailable", err)
			}

			server.Allow("cloudkms.cryptoKeyVersions.useToVerify")
			server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
			config.KMSClient = systest.Client(t, server) // which knows nothing of the failures
			if keyfunc, err = gcpjwt.KMSVerifyKeyfunc(t.Context(), config); err != nil {
				t.Fatalf("without viewPublicKey: KMSVerifyKeyfunc: %v", err)
			}
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Errorf("without viewPublicKey: jwt.Parse: %v", err)
			}
		})
	}
}

// If one version that may have signed cannot be asked, another that is disabled
// is no reason to refuse the token.
func TestKMSMacOutageOutweighsDisabledVersion(t *testing.T) {
	server, client := systest.StartKMS(t)
	first := systest.Create(t, server, systest.HMAC256)
	second, _ := server.CreateVersion(systest.CryptoKeyOf(first))
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(first))
	text := systest.SignBare(t, systest.KMSContext(t.Context(), client, second), gcpjwt.SigningMethodKMSHS256, "HS256")
	server.SetState(first, systest.Disabled) // not yet known
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if req, ok := req.(*kmspb.MacVerifyRequest); ok && req.Name == second {
			return nil, status.Error(codes.Internal, "no")
		}
		return next(ctx, req)
	})
	_, err := jwt.Parse(text, keyfunc)
	if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("got %v, want ErrKeysUnavailable", err)
	}
}

// The time limit is for the verification, not for each version that it asks.
func TestKMSMacVerificationIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := systest.StartKMS(t, testutil.InMemory())
		first := systest.Create(t, server, systest.HMAC256)
		for range 9 {
			server.CreateVersion(systest.CryptoKeyOf(first))
		}
		keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(first))
		text := systest.SignBare(t, systest.KMSContext(t.Context(), client, first), gcpjwt.SigningMethodKMSHS256, "HS256")
		systest.Hang(server, "MacVerify")
		start := time.Now()
		jwt.Parse(text, keyfunc)
		if got := time.Since(start); got > 11*time.Second {
			t.Errorf("one verification took %v", got)
		}
	})
}

// C07: a pinned MAC version serves its own algorithm. A token of another costs no call and is
// nobody's outage, with and without kid, whatever its MAC's length.
func TestKMSMacPinnedAlgorithm(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, row := range systest.Rows {
			if !row.IsMAC() {
				continue
			}
			t.Run("C07/"+row.Alg, func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				version := systest.Create(t, server, row.Algorithm)
				client := connect(t, server)
				keyfunc := systest.KMSKeyfunc(t, t.Context(), client, version)
				ctx := systest.KMSContext(t.Context(), connect(t, server), version)
				for _, other := range systest.Rows {
					if !other.IsMAC() || other.Alg == row.Alg {
						continue
					}
					server.ResetCalls()
					for _, alg := range []string{other.Alg, other.Alias} {
						for _, kid := range []string{"", `,"kid":"` + gcpjwt.KMSKeyID(version) + `"`} {
							for _, size := range []int{row.Size, other.Size} {
								text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"`+alg+`"`+kid+`}`)) +
									".e30." + base64.RawURLEncoding.EncodeToString(make([]byte, size))
								_, err := jwt.Parse(text, keyfunc)
								if !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
									t.Errorf("%s%s, %d bytes: %v, want ErrAlgorithmMismatch", alg, kid, size, err)
								}
							}
						}
					}
					if got := server.Calls(""); got != 0 {
						t.Errorf("%d calls, want 0", got)
					}
					// A context as key has the method ask, but is told apart as well.
					err := other.Method.Verify("a.b", make([]byte, other.Size), ctx)
					if !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Errorf("%s.Verify with a context: %v, want ErrAlgorithmMismatch", other.Alias, err)
					}
				}
			})
		}
	})
}
