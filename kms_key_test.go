package gcpjwt_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptrace"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/googleapis/gax-go/v2/callctx"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// What a Keyfunc of an asymmetric key refuses, and at no cost: each alg but the
// key's own (B10).
func TestKMSKeyfuncRefusesOtherAlgorithms(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.PKCS2048)
	text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSRS256, nil)
	keyfuncs := map[string]jwt.Keyfunc{
		"version":   systest.KMSKeyfunc(t, t.Context(), client, version),
		"CryptoKey": systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(version)),
	}
	payload := strings.Split(text, ".")[1]
	server.ResetCalls()
	for name, keyfunc := range keyfuncs {
		for _, alg := range []string{
			"none", "rs256", "RS512", "RS384", "PS256", "ES256", "EdDSA", "HS256", "ML-DSA-44",
			"KMSPS256", "KMSRS512", "KMSHS256", "AppEngine2",
		} {
			for _, kid := range []string{"", gcpjwt.KMSKeyID(version)} {
				t.Run(fmt.Sprintf("B10/%s/%s/kid=%t", name, alg, kid != ""), func(t *testing.T) {
					header := map[string]string{"alg": alg, "typ": "JWT"}
					if kid != "" {
						header["kid"] = kid
					}
					raw, err := json.Marshal(header)
					if err != nil {
						t.Fatal(err)
					}
					signingString := base64.RawURLEncoding.EncodeToString(raw) + "." + payload
					sum := sha256.Sum256([]byte(signingString)) // any signature at all
					_, err = jwt.Parse(signingString+"."+base64.RawURLEncoding.EncodeToString(sum[:]), keyfunc)
					if !errors.Is(err, jwt.ErrTokenUnverifiable) {
						t.Errorf("jwt.Parse: %v, want ErrTokenUnverifiable", err)
					}
					if errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Errorf("jwt.Parse: %v, which blames Cloud KMS", err)
					}
				})
			}
		}
	}
	// A method of somebody else's under a name of jwt's, with its own idea of Verify.
	for name, keyfunc := range keyfuncs {
		key, err := keyfunc(&jwt.Token{Method: kmsForeignMethod{}, Header: map[string]any{"alg": "RS256"}})
		if key != nil || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
			t.Errorf("B10/%s: a foreign method gets the key %v, %v, want ErrAlgorithmMismatch", name, key, err)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("B10: %d calls, want 0", got)
	}
}

// kmsForeignMethod is a signing method of another library.
type kmsForeignMethod struct{}

func (kmsForeignMethod) Alg() string                      { return "RS256" }
func (kmsForeignMethod) Sign(string, any) ([]byte, error) { return nil, nil }
func (kmsForeignMethod) Verify(string, []byte, any) error { return nil }

// C06: the salt of RFC 7518, section 3.5, and no other, whether or not the method is
// overridden, and whether or not the token has a kid. Not parallel because of Override.
func TestKMSKeyfuncPSSSalt(t *testing.T) {
	for alg, tt := range map[string]struct {
		algorithm systest.Algorithm
		hash      crypto.Hash
		method    *gcpjwt.SigningMethodKMS
	}{
		"PS256": {systest.PSS2048, crypto.SHA256, gcpjwt.SigningMethodKMSPS256},
		"PS512": {kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512, crypto.SHA512, gcpjwt.SigningMethodKMSPS512},
	} {
		server, client := systest.StartKMS(t)
		version := systest.Create(t, server, tt.algorithm)
		key, err := rsa.GenerateKey(rand.Reader, map[string]int{"PS256": 2048, "PS512": 4096}[alg])
		if err != nil {
			t.Fatal(err)
		}
		// What anybody might sign who has the private key of the version.
		server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			resp, err := next(ctx, req)
			if resp, ok := resp.(*kmspb.PublicKey); ok {
				der, _ := x509.MarshalPKIXPublicKey(key.Public())
				resp.PublicKey.Data = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
				resp.PublicKey.Crc32CChecksum = testutil.Checksum(resp.PublicKey.Data)
			}
			return resp, err
		})
		keyfuncs := map[string]jwt.Keyfunc{
			"version":   systest.KMSKeyfunc(t, t.Context(), client, version),
			"CryptoKey": systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(version)),
		}
		for _, overridden := range []bool{false, true} {
			t.Run(fmt.Sprintf("C06/%s/overridden=%t", alg, overridden), func(t *testing.T) {
				if overridden {
					kmsOverride(t, tt.method)
				}
				for _, salt := range []int{1, 20, 31, 32, 33, 63, 64, 65, 190} {
					for _, kid := range []string{"", gcpjwt.KMSKeyID(version)} {
						header := `{"alg":"` + alg + `"}`
						if kid != "" {
							header = `{"alg":"` + alg + `","kid":"` + kid + `"}`
						}
						text := base64.RawURLEncoding.EncodeToString([]byte(header)) + ".e30"
						h := tt.hash.New()
						h.Write([]byte(text))
						sig, err := rsa.SignPSS(rand.Reader, key, tt.hash, h.Sum(nil), &rsa.PSSOptions{SaltLength: salt})
						if err != nil {
							t.Fatal(err)
						}
						for name, keyfunc := range keyfuncs {
							_, err := jwt.Parse(text+"."+base64.RawURLEncoding.EncodeToString(sig), keyfunc)
							if good := salt == tt.hash.Size(); good != (err == nil) || !good && !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
								t.Errorf("%s, kid %q, a salt of %d bytes: %v, want it accepted: %t", name, kid, salt, err, good)
							}
						}
					}
				}
			})
		}
	}
}

// C08: a constructor's error is the one that happened, with its code, whichever of its calls
// failed.
func TestKMSConstructorErrors(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, tt := range []struct {
			rpc       string
			algorithm systest.Algorithm
			rotating  bool
		}{
			{"GetPublicKey", systest.P256, false},
			{"MacVerify", systest.HMAC256, false}, // of a Keyfunc
			{"MacSign", systest.HMAC256, false},   // of a Signer
			{"ListCryptoKeyVersions", systest.P256, true},
		} {
			for _, code := range []codes.Code{
				codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.NotFound,
				codes.PermissionDenied, codes.Unauthenticated, codes.Aborted, codes.Canceled, codes.Unimplemented, codes.Unknown,
			} {
				t.Run(fmt.Sprintf("C08/%s/%s", tt.rpc, code), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						server, _ := systest.StartKMS(t, testutil.InMemory())
						config := kmsUse{algorithm: tt.algorithm, rotating: tt.rotating}.config(t, server, connect)
						server.Deny("cloudkms.cryptoKeys.get") // which would tell a MAC key
						kmsFailNext(server, tt.rpc, 1000, status.Error(code, "as the test wants it"))
						began := time.Now()
						if tt.rpc != "MacSign" {
							_, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
							if !strings.Contains(fmt.Sprint(err), "as the test wants it") || !hasCode(err, code) || !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
								t.Errorf("KMSVerifyKeyfunc: %v, want ErrKeysUnavailable and %s", err, code)
							}
						}
						if tt.rpc != "MacVerify" {
							ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
							defer cancel()
							time.Sleep(systest.NotReady) // so that nothing is remembered
							_, err := gcpjwt.NewKMSSigner(ctx, config)
							if !strings.Contains(fmt.Sprint(err), "as the test wants it") || !hasCode(err, code) {
								t.Errorf("NewKMSSigner: %v, want %s", err, code)
							}
						}
						if took := time.Since(began); took > 20*time.Second {
							t.Errorf("that took %v", took)
						}
					})
				})
			}
		}
	})
}

// hasCode reports whether a code is among those of an error, which may wrap several.
func hasCode(err error, code codes.Code) bool {
	switch wrapped := err.(type) {
	case nil:
		return false
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(wrapped.Unwrap(), func(err error) bool { return hasCode(err, code) })
	}
	return status.Code(err) == code || hasCode(errors.Unwrap(err), code)
}

// C08, C11: against a silent server a constructor gives up after 10 seconds, however many
// calls it makes, or with its context, and says what was asked.
func TestKMSSilentServer(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, tt := range []struct {
			rpc       string
			algorithm systest.Algorithm
			rotating  bool
		}{
			{"GetPublicKey", systest.P256, false},
			{"GetPublicKey", systest.P256, true},
			{"MacVerify", systest.HMAC256, false},
			{"MacSign", systest.HMAC256, false},
			{"ListCryptoKeyVersions", systest.HMAC256, true},
			{"ListCryptoKeyVersions", systest.P256, true},
		} {
			for _, patience := range []time.Duration{time.Second, time.Hour} {
				t.Run(fmt.Sprintf("C11/%s/rotating=%t/%v", tt.rpc, tt.rotating, patience), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						server, _ := systest.StartKMS(t, testutil.InMemory())
						config := kmsUse{algorithm: tt.algorithm, rotating: tt.rotating}.config(t, server, connect)
						if tt.rotating {
							for range 40 { // with keys of their own to read
								if _, err := server.CreateVersion(config.KeyPath); err != nil {
									t.Fatal(err)
								}
							}
						}
						systest.Hang(server, tt.rpc)
						for name, construct := range map[string]func(ctx context.Context) error{
							"KMSVerifyKeyfunc": func(ctx context.Context) error { _, err := gcpjwt.KMSVerifyKeyfunc(ctx, config); return err },
							"PublicKeys":       func(ctx context.Context) error { _, err := config.PublicKeys(ctx); return err },
							"NewKMSSigner":     func(ctx context.Context) error { _, err := gcpjwt.NewKMSSigner(ctx, config); return err },
						} {
							if tt.rpc == "MacSign" != (name == "NewKMSSigner") && strings.HasPrefix(tt.rpc, "Mac") ||
								name == "NewKMSSigner" && tt.rpc == "GetPublicKey" && tt.rotating {
								continue // makes no such call
							}
							time.Sleep(2 * systest.Backoff)
							ctx, cancel := context.WithTimeout(t.Context(), patience)
							began := time.Now()
							err := construct(ctx)
							cancel()
							want := min(patience, systest.FetchLimit)
							if took := time.Since(began); took < want || took > want+100*time.Millisecond {
								t.Errorf("%s took %v, want %v", name, took, want)
							}
							if !errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("%s: %v, want context.DeadlineExceeded", name, err)
							}
							if patience > want && !strings.Contains(err.Error(), config.KeyPath) {
								t.Errorf("%s: %v, want it to name the key", name, err)
							}
						}
					})
				})
			}
		}
	})
}

// A token waits for 10 seconds at most, however many keys it might be by.
func TestKMSTokenWaits(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, _ := systest.StartKMS(t, testutil.InMemory())
			version := systest.Create(t, server, systest.P256)
			for range 5 {
				if _, err := server.CreateVersion(systest.CryptoKeyOf(version)); err != nil {
					t.Fatal(err)
				}
			}
			text := systest.SignBare(t, systest.KMSContext(t.Context(), systest.Client(t, server), version), gcpjwt.SigningMethodKMSES256, "ES256")
			signer, err := gcpjwt.NewKMSSigner(t.Context(), &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: connect(t, server)})
			if err != nil {
				t.Fatal(err)
			}
			systest.Hang(server, "GetPublicKey")
			began := time.Now()
			_, err = jwt.Parse(text, signer.Keyfunc)
			if took := time.Since(began); !errors.Is(err, gcpjwt.ErrKeysUnavailable) || took > systest.FetchLimit+100*time.Millisecond {
				t.Errorf("%v after %v, want ErrKeysUnavailable after %v", err, took, systest.FetchLimit)
			}
			time.Sleep(time.Minute) // so that what was left ends
		})
	})
}

// C10: a key that isn't ready is looked at again after seconds, however long it has been
// polled: that is no outage.
func TestKMSNotReady(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, state := range []kmspb.CryptoKeyVersion_CryptoKeyVersionState{kmspb.CryptoKeyVersion_PENDING_GENERATION, systest.Disabled} {
			for _, algorithm := range []systest.Algorithm{systest.P256, systest.HMAC256, systest.MLDSA44} {
				for _, rotating := range []bool{false, true} {
					for _, others := range []bool{false, true} {
						if others && !rotating {
							continue
						}
						t.Run(fmt.Sprintf("C10/%s/%s/rotating=%t/others=%t", state, algorithm, rotating, others), func(t *testing.T) {
							t.Parallel()
							synctest.Test(t, func(t *testing.T) {
								server, _ := systest.StartKMS(t, testutil.InMemory())
								config := kmsUse{algorithm: algorithm, rotating: rotating}.config(t, server, connect)
								version := config.KeyPath
								if rotating {
									version += "/cryptoKeyVersions/1"
								}
								if others { // of other algorithms, so that the list isn't empty
									other := systest.Ed25519
									if algorithm == systest.HMAC256 {
										other = kmspb.CryptoKeyVersion_HMAC_SHA512
									}
									if _, err := server.CreateVersion(config.KeyPath, other); err != nil {
										t.Fatal(err)
									}
								}
								server.SetState(version, state)
								row := systest.RowOf(algorithm)
								ctx := gcpjwt.NewKMSContext(t.Context(), config)
								tries := map[string]func() error{
									"SignedString": func() error { _, err := gcpjwt.SignedString(ctx, jwt.New(row.Method)); return err },
									"KMSVerifyKeyfunc": func() error {
										_, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
										return err
									},
									"NewKMSSigner": func() error { _, err := gcpjwt.NewKMSSigner(t.Context(), config); return err },
								}
								if others { // which have a method of theirs
									delete(tries, "KMSVerifyKeyfunc")
									delete(tries, "NewKMSSigner")
								}
								for range 100 {
									for name, try := range tries {
										if err := try(); err == nil {
											t.Errorf("%s succeeded", name)
										}
									}
									time.Sleep(time.Second)
								}
								server.SetState(version, systest.Enabled)
								began := time.Now()
								for len(tries) > 0 && time.Since(began) <= 5*time.Second {
									for name, try := range tries {
										if try() == nil {
											delete(tries, name)
										}
									}
									time.Sleep(100 * time.Millisecond)
								}
								for name, try := range tries {
									t.Errorf("%s 5 seconds after the version was ENABLED: %v", name, try())
								}
							})
						})
					}
				}
			}
		}
	})
}

// C16: what is shared is read with nobody's metadata and runs nobody's hooks. A caller whose
// own call is refused for them is refused alone.
func TestKMSTenants(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, algorithm := range []systest.Algorithm{systest.P256, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44_EXTERNAL_MU, systest.HMAC256} {
			for _, rotating := range []bool{false, true} {
				t.Run(fmt.Sprintf("C16/%s/rotating=%t", algorithm, rotating), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						server, _ := systest.StartKMS(t, testutil.InMemory())
						config := kmsUse{algorithm: algorithm, rotating: rotating}.config(t, server, connect)
						row := systest.RowOf(algorithm)
						server.DenyUserProject("theirs")
						var hooks atomic.Int32
						tenant := metadata.AppendToOutgoingContext(t.Context(), "x-goog-user-project", "theirs") // over gRPC alone
						if strings.Contains(t.Name(), "REST") {
							tenant = callctx.SetHeaders(t.Context(), "x-goog-user-project", "theirs")
						}
						tenant = httptrace.WithClientTrace(tenant, &httptrace.ClientTrace{
							GetConn: func(string) { hooks.Add(1) },
						})

						// The tenant comes first, so that all that is read is read for it.
						ctx := gcpjwt.NewKMSContext(t.Context(), config)
						keyfunc := func(ctx context.Context) (jwt.Keyfunc, error) { return gcpjwt.KMSVerifyKeyfunc(ctx, config) }
						_, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(tenant, config), jwt.New(row.Method))
						if status.Code(err) != codes.PermissionDenied {
							t.Errorf("the tenant's SignedString: %v, want PERMISSION_DENIED", err)
						}
						theirs, err := keyfunc(tenant)
						if row.IsMAC() && !rotating {
							if status.Code(err) != codes.PermissionDenied {
								t.Errorf("the tenant's KMSVerifyKeyfunc: %v, want PERMISSION_DENIED", err)
							}
						} else if err != nil {
							t.Errorf("the tenant's KMSVerifyKeyfunc, which reads what is shared: %v", err)
						}
						ours, err := keyfunc(t.Context())
						if err != nil {
							t.Fatalf("KMSVerifyKeyfunc: %v", err)
						}
						before := hooks.Load()
						own := server.UserProjectCalls("theirs")
						for range 3 { // and later, in the background
							text := systest.Sign(t, ctx, row.Method, nil)
							if _, err := jwt.Parse(text, ours); err != nil {
								t.Errorf("jwt.Parse: %v", err)
							}
							if theirs != nil {
								_, err := jwt.Parse(text, theirs)
								if row.IsMAC() != (err != nil) || err != nil && !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
									t.Errorf("the tenant's jwt.Parse: %v, want ErrKeysUnavailable for a MAC, which is verified by a call", err)
								}
							}
							time.Sleep(systest.Refresh - time.Second)
						}
						if !row.IsMAC() {
							if got := hooks.Load() - before; got != 0 {
								t.Errorf("%d hooks of the tenant ran in what is shared", got)
							}
							if got := server.UserProjectCalls("theirs") - own; got != 0 {
								t.Errorf("%d calls of what is shared carried the tenant's metadata", got)
							}
						}
						// Its first calls were its own signature, or the probe of a MAC key.
						if got := own; got != 1 && !row.IsMAC() || got > 2 {
							t.Errorf("%d calls carried the tenant's metadata, want its own only", got)
						}
					})
				})
			}
		}
	})
}

// Everybody's Logger is told, also one that only a Keyfunc's configuration held (C16).
func TestKMSLoggers(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		text := rig.by(rig.version(1))
		logs := []*kmsLog{new(kmsLog), new(kmsLog), new(kmsLog)}
		config := func(log *kmsLog) *gcpjwt.KMSConfig {
			return &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client, Logger: slog.New(slog.NewJSONHandler(log, nil))}
		}
		first, err := gcpjwt.KMSVerifyKeyfunc(rig.Context(), config(logs[0]))
		if err != nil {
			rig.Fatal(err)
		}
		second, err := gcpjwt.KMSVerifyKeyfunc(rig.Context(), config(logs[1]))
		if err != nil {
			rig.Fatal(err)
		}
		third, err := gcpjwt.NewKMSSigner(rig.Context(), config(logs[2]))
		if err != nil {
			rig.Fatal(err)
		}
		runtime.GC()
		runtime.GC()
		rig.failLists()
		time.Sleep(systest.Refresh)
		rig.accepts(second, text)
		synctest.Wait()
		for i, log := range logs {
			if got := log.warnings(rig.T); len(got) != 1 {
				rig.Errorf("Logger %d was told %v, want a warning", i, got)
			}
		}
		rig.accepts(first, text)
		rig.accepts(third.Keyfunc, text)
	})
}

// C14: a forged token without kid costs 16 verifications at most, those with the newest keys.
func TestKMSManyCandidates(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, algorithm := range []systest.Algorithm{systest.HMAC256, systest.P384, systest.Ed25519} {
			t.Run("C14/"+algorithm.String(), func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				row := systest.RowOf(algorithm)
				versions := []string{systest.Create(t, server, algorithm)}
				cryptoKey := systest.CryptoKeyOf(versions[0])
				for range 99 {
					version, err := server.CreateVersion(cryptoKey)
					if err != nil {
						t.Fatal(err)
					}
					versions = append(versions, version)
				}
				client := connect(t, server)
				keyfunc := systest.KMSKeyfunc(t, t.Context(), client, cryptoKey)
				ctx := systest.KMSContext(t.Context(), client, cryptoKey)
				for i, good := range map[int]bool{99: true, 84: true, 83: false, 0: false} {
					text := systest.SignBare(t, systest.KMSContext(t.Context(), client, versions[i]), row.Method, row.Alg)
					server.ResetCalls()
					token, err := jwt.Parse(text, keyfunc)
					if good != (err == nil) || !good && !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
						t.Errorf("a token without kid by version %d: %v, want it accepted: %t", i+1, err, good)
					}
					if got := server.Calls(""); row.IsMAC() && got != min(16, 100-i) || !row.IsMAC() && got != 0 {
						t.Errorf("a token without kid by version %d cost %d calls", i+1, got)
					}
					if key, err := keyfunc(token); !row.IsMAC() && (err != nil || len(key.(jwt.VerificationKeySet).Keys) != 16) {
						t.Errorf("a token without kid has %v, %v to try, want 16 keys", key, err)
					}
					signingString, mac := systest.Split(t, text)
					server.ResetCalls()
					if err := row.Method.Verify(signingString, mac, ctx); row.IsMAC() && good != (err == nil) {
						t.Errorf("Verify with a context of a MAC by version %d: %v, want it accepted: %t", i+1, err, good)
					}
					if got := server.Calls("MacVerify"); got > 16 {
						t.Errorf("Verify with a context cost %d calls of MacVerify", got)
					}
				}
				// With a kid each of the hundred is found.
				for _, version := range versions {
					text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), row.Method, nil)
					if _, err := jwt.Parse(text, keyfunc); err != nil {
						t.Errorf("a token by %s: %v", version, err)
					}
				}
			})
		}
	})
}
