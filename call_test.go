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
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// C04: over REST a refusal means what it means over gRPC, though FAILED_PRECONDITION arrives as
// HTTP 400 too.
func TestKMSRefusals(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		t.Run("C04/a public key that may not be read is no MAC key", func(t *testing.T) {
			t.Parallel()
			server, _ := systest.StartKMS(t)
			version := systest.Create(t, server, systest.P256)
			text := systest.Sign(t, systest.KMSContext(t.Context(), connect(t, server), version), gcpjwt.SigningMethodKMSES256, nil)
			server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
			config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: connect(t, server)}
			_, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
			if !errors.Is(err, gcpjwt.ErrKeysUnavailable) || status.Code(err) != codes.PermissionDenied {
				t.Errorf("KMSVerifyKeyfunc: %v, want ErrKeysUnavailable and PERMISSION_DENIED", err)
			}
			following, err := gcpjwt.NewKMSSigner(t.Context(), &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: connect(t, server)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := jwt.Parse(text, following.Keyfunc); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
				t.Errorf("jwt.Parse: %v, want ErrKeysUnavailable", err)
			}
		})
		t.Run("C04/a pinned MAC key is found", func(t *testing.T) {
			t.Parallel()
			server, _ := systest.StartKMS(t)
			server.Deny("cloudkms.cryptoKeys.get") // which would tell, too
			config := &gcpjwt.KMSConfig{KeyPath: systest.Create(t, server, systest.HMAC256), KMSClient: connect(t, server)}
			if err := kmsSignAndVerify(t.Context(), config, systest.RowOf(systest.HMAC256)); err != nil {
				t.Error(err)
			}
		})
		for _, algorithm := range []systest.Algorithm{systest.P256, systest.HMAC256} {
			t.Run("C04/a version disabled meanwhile is left/"+algorithm.String(), func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				row := systest.RowOf(algorithm)
				first := systest.Create(t, server, algorithm)
				config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(first), KMSClient: connect(t, server), ActivationDelay: -1}
				second, err := server.CreateVersion(config.KeyPath)
				if err != nil {
					t.Fatal(err)
				}
				ctx := gcpjwt.NewKMSContext(t.Context(), config)
				systest.Sign(t, ctx, row.Method, nil)
				server.SetState(second, systest.Disabled)
				server.ResetCalls()
				if got, want := systest.Header(t, systest.Sign(t, ctx, row.Method, nil))["kid"], gcpjwt.KMSKeyID(first); got != want {
					t.Errorf("kid %v, want that of version 1", got)
				}
				if got := server.Calls("ListCryptoKeyVersions"); got != 1 {
					t.Errorf("ListCryptoKeyVersions was called %d times, want 1", got)
				}
			})
		}
		for _, rotating := range []bool{false, true} {
			t.Run(fmt.Sprintf("C04/a disabled MAC version verifies nothing/rotating=%t", rotating), func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				config := kmsUse{algorithm: systest.HMAC256, rotating: rotating}.config(t, server, connect)
				text := systest.Sign(t, gcpjwt.NewKMSContext(t.Context(), config), gcpjwt.SigningMethodKMSHS256, nil)
				keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
				if err != nil {
					t.Fatal(err)
				}
				for _, state := range []kmspb.CryptoKeyVersion_CryptoKeyVersionState{systest.Disabled, systest.Destroyed} {
					server.SetState(systest.CryptoKeyOf(config.KeyPath)+"/cryptoKeyVersions/1", state)
					_, err := jwt.Parse(text, keyfunc)
					if !errors.Is(err, gcpjwt.ErrUnknownKeyID) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Errorf("%s: jwt.Parse: %v, want ErrUnknownKeyID", state, err)
					}
				}
			})
		}
		// A version that isn't ready is none of another kind.
		for _, algorithm := range []systest.Algorithm{systest.P256, systest.HMAC256} {
			t.Run("C04/a version that isn't ENABLED/"+algorithm.String(), func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				version := systest.Create(t, server, algorithm)
				server.SetState(version, systest.Disabled)
				config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: connect(t, server)}
				_, keyfuncErr := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
				_, signerErr := gcpjwt.NewKMSSigner(t.Context(), config)
				for _, method := range []*gcpjwt.SigningMethodKMS{gcpjwt.SigningMethodKMSES256, gcpjwt.SigningMethodKMSHS256} {
					_, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), config), jwt.New(method))
					if (method == systest.RowOf(algorithm).Method) && status.Code(err) != codes.FailedPrecondition {
						t.Errorf("SignedString: %v, want FAILED_PRECONDITION", err)
					}
				}
				for call, err := range map[string]error{"KMSVerifyKeyfunc": keyfuncErr, "NewKMSSigner": signerErr} {
					if status.Code(err) != codes.FailedPrecondition || errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
						t.Errorf("%s: %v, want FAILED_PRECONDITION", call, err)
					}
				}
			})
		}
	})
}

// kmsUses are the RPCs that signing and verifying make, and what makes each.
var kmsUses = []kmsUse{
	{"GetPublicKey", systest.P256, false},
	{"GetPublicKey", systest.P256, true},
	{"ListCryptoKeyVersions", systest.P256, true},
	{"AsymmetricSign", systest.P256, false},
	{"AsymmetricSign", systest.Ed25519, true},
	{"MacSign", systest.HMAC256, false},
	{"MacVerify", systest.HMAC256, false},
	{"MacVerify", systest.HMAC256, true},
}

type kmsUse struct {
	rpc       string
	algorithm systest.Algorithm
	rotating  bool // KeyPath is a CryptoKey's
}

func (use kmsUse) config(t *testing.T, server *testutil.KMS, connect kmsConnect) *gcpjwt.KMSConfig {
	config := &gcpjwt.KMSConfig{KeyPath: systest.Create(t, server, use.algorithm), KMSClient: connect(t, server)}
	if use.rotating {
		config.KeyPath = systest.CryptoKeyOf(config.KeyPath)
	}
	return config
}

// kmsSignAndVerify makes all calls that a key takes, once each.
func kmsSignAndVerify(ctx context.Context, config *gcpjwt.KMSConfig, row systest.Row) error {
	text, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(ctx, config), jwt.New(row.Method))
	if err != nil {
		return err
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	if err != nil {
		return err
	}
	_, err = jwt.Parse(text, keyfunc)
	return err
}

// C11: one policy for all calls. One error of a server that is down or busy is nobody's to
// see; one that no waiting mends is seen at once.
func TestKMSRetries(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for code, retried := range map[codes.Code]bool{
			codes.Unavailable: true, codes.DeadlineExceeded: true, codes.ResourceExhausted: true,
			codes.Aborted: false, codes.NotFound: false, codes.Unauthenticated: false,
		} {
			for _, use := range kmsUses {
				t.Run(fmt.Sprintf("C11/%s/%s/rotating=%t", code, use.rpc, use.rotating), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						server, _ := systest.StartKMS(t, testutil.InMemory())
						config := use.config(t, server, connect)
						kmsFailNext(server, use.rpc, 1, status.Error(code, "once"))
						start := time.Now()
						err := kmsSignAndVerify(t.Context(), config, systest.RowOf(use.algorithm))
						took := time.Since(start)
						if retried && (err != nil || took < 50*time.Millisecond || took > 100*time.Millisecond) {
							t.Errorf("%v after %v, want the error made good for after 50 to 100 ms", err, took)
						}
						if !retried && (status.Code(err) != code || took != 0) {
							t.Errorf("%v after %v, want %v at once", err, took, code)
						}
					})
				})
			}
		}
	})
}

// R02, C11: an exhausted quota is waited for, for as long as the caller likes, or 10 seconds
// and three attempts for what is read, and is then the caller's to see.
func TestKMSResourceExhausted(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, use := range kmsUses {
			t.Run(fmt.Sprintf("R02/%s/rotating=%t", use.rpc, use.rotating), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					server, _ := systest.StartKMS(t, testutil.InMemory())
					config := use.config(t, server, connect)
					signs := strings.HasSuffix(use.rpc, "Sign")
					kmsFailNext(server, use.rpc, 1000, status.Error(codes.ResourceExhausted, "Quota exceeded for quota metric 'Asymmetric requests'."))
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					start := time.Now()
					err := kmsSignAndVerify(ctx, config, systest.RowOf(use.algorithm))
					took := time.Since(start)
					if status.Code(err) != codes.ResourceExhausted || errors.Is(err, context.DeadlineExceeded) != signs {
						t.Errorf("got %v, want RESOURCE_EXHAUSTED, and the end of the context too for a signature", err)
					}
					if _, ok := errors.AsType[*apierror.APIError](err); !ok {
						t.Errorf("got %v, want an *apierror.APIError within", err)
					}
					if err != nil && (!strings.HasPrefix(err.Error(), "gcpjwt: ") || !strings.Contains(err.Error(), "Quota exceeded")) && signs {
						t.Errorf("the error is %q", err)
					}
					if signs && took != 20*time.Second || !signs && took > time.Second {
						t.Errorf("that took %v", took)
					}
					if got := server.Calls(use.rpc); signs && (got < 5 || got > 10) || !signs && got != 3 {
						t.Errorf("%s was called %d times", use.rpc, got)
					}
				})
			})
		}
	})
}
