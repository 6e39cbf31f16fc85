package gcpjwt_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

var _ = []jwks.Source{(*gcpjwt.KMSConfig)(nil), (*gcpjwt.IAMConfig)(nil), (*gcpjwt.Signer)(nil)}

// The keys are those that tokens verify with, newest first, whatever their algorithms; once
// they are known they cost no call.
func TestKMSPublicKeys(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		server, _ := systest.StartKMS(t)
		algorithms := []systest.Algorithm{
			systest.P256, systest.P384, systest.PKCS2048, systest.PSS2048, systest.Ed25519, systest.MLDSA44,
			kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87_EXTERNAL_MU,
			systest.P256, systest.P256, testutil.ECSignP224SHA256, // a method is for all but the last
		}
		versions := []string{systest.Create(t, server, algorithms[0])}
		for _, algorithm := range algorithms[1:] {
			version, err := server.CreateVersion(systest.CryptoKeyOf(versions[0]), algorithm)
			if err != nil {
				t.Fatal(err)
			}
			versions = append(versions, version)
		}
		client := connect(t, server)
		config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(versions[0]), KMSClient: client}
		for range 3 {
			keys, err := config.PublicKeys(t.Context())
			if err != nil || len(keys) != len(versions)-1 {
				t.Fatalf("PublicKeys = %v, %v, want %d", keys, err, len(versions)-1)
			}
			for i, key := range keys {
				n := len(keys) - 1 - i
				row := systest.RowOf(algorithms[n])
				if key.KeyID != gcpjwt.KMSKeyID(versions[n]) || key.Algorithm != row.Alg {
					t.Errorf("key %d is %s of %s, want version %d of %s", i, key.KeyID, key.Algorithm, n+1, row.Alg)
				}
				text := systest.Sign(t, systest.KMSContext(t.Context(), client, versions[n]), row.Method, nil)
				if _, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return key.Public, nil }); err != nil {
					t.Errorf("%s: jwt.Parse with the published key: %v", row.Alg, err)
				}

				pinned, err := (&gcpjwt.KMSConfig{KeyPath: versions[n], KMSClient: client}).PublicKeys(t.Context())
				if err != nil || len(pinned) != 1 || pinned[0].Thumbprint() != key.Thumbprint() || pinned[0].KeyID != key.KeyID {
					t.Errorf("PublicKeys of version %d = %v, %v, want the same key", n+1, pinned, err)
				}
			}
			server.ResetCalls()
			config.PublicKeys(t.Context())
			if got := server.Calls(""); got != 0 {
				t.Errorf("PublicKeys made %d calls, want 0", got)
			}
			if _, err := jwks.Marshal(keys); err != nil {
				t.Errorf("jwks.Marshal: %v", err)
			}
		}
	})
}

// A MAC key has none, on either path. That is no error, and costs nothing once it is known.
func TestKMSPublicKeysOfMACs(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		server, _ := systest.StartKMS(t)
		version := systest.Create(t, server, systest.HMAC256)
		for _, path := range []string{version, systest.CryptoKeyOf(version)} {
			config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: connect(t, server)}
			for range 2 {
				server.ResetCalls()
				keys, err := config.PublicKeys(t.Context())
				if err != nil || keys == nil || len(keys) != 0 {
					t.Errorf("PublicKeys = %#v, %v, want none", keys, err)
				}
			}
			if got := server.Calls(""); got != 0 {
				t.Errorf("the second time PublicKeys made %d calls, want 0", got)
			}
		}
	})
}

// A set with a key missing would make good tokens fail, so one that cannot be read is an error
// for all, and for no longer than that.
func TestKMSPublicKeysIncomplete(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, _ := systest.StartKMS(t, testutil.InMemory())
			version := systest.Create(t, server, systest.P256)
			second, err := server.CreateVersion(systest.CryptoKeyOf(version))
			if err != nil {
				t.Fatal(err)
			}
			config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: connect(t, server)}
			server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				if req, ok := req.(*kmspb.GetPublicKeyRequest); ok && req.Name == version {
					return nil, status.Error(codes.Aborted, "no")
				}
				return next(ctx, req)
			})
			keys, err := config.PublicKeys(t.Context())
			if keys != nil || !errors.Is(err, gcpjwt.ErrKeysUnavailable) || status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), version) {
				t.Errorf("PublicKeys = %v, %v, want ErrKeysUnavailable that names %s", keys, err, version)
			}
			server.Intercept(nil)
			time.Sleep(time.Second)
			if keys, err = config.PublicKeys(t.Context()); err != nil || len(keys) != 2 || keys[0].KeyID != gcpjwt.KMSKeyID(second) {
				t.Errorf("afterwards: PublicKeys = %v, %v, want both", keys, err)
			}
		})
	})
}

// A version is published from the moment that it is listed, before it signs, until it is
// disabled. Without any version there is nothing to publish, and verifiers have to know.
func TestKMSPublicKeysFollow(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client, ActivationDelay: time.Hour}
		signer := kmsSigner(rig, config)
		published := func(want ...int) {
			rig.Helper()
			time.Sleep(systest.Refresh) // a list in use is renewed in the background
			config.PublicKeys(rig.Context())
			synctest.Wait()
			for name, source := range map[string]jwks.Source{"configuration": config, "Signer": signer} {
				began := time.Now()
				keys, err := source.PublicKeys(rig.Context())
				if err != nil || time.Since(began) != 0 {
					rig.Fatalf("PublicKeys of the %s: %v after %v", name, err, time.Since(began))
				}
				var got []int
				for _, key := range keys {
					for n := range 10 {
						if gcpjwt.KMSKeyID(rig.version(n)) == key.KeyID {
							got = append(got, n)
						}
					}
				}
				if !slices.Equal(got, want) {
					rig.Errorf("PublicKeys of the %s are those of versions %v, want %v", name, got, want)
				}
			}
		}
		published(1)
		rig.create()
		published(2, 1)
		if got := systest.Header(rig, signs(rig, signer))["kid"]; got != gcpjwt.KMSKeyID(rig.version(1)) {
			rig.Errorf("version %s signs, want 1", rig.number(got))
		}
		rig.server.SetState(rig.version(1), systest.Disabled)
		published(2)
		rig.server.SetState(rig.version(2), systest.Disabled)
		published()

		// While Cloud KMS is down, what is known serves.
		rig.server.SetState(rig.version(2), systest.Enabled)
		published(2)
		rig.failLists()
		published(2)
	})
}

// The wait is bounded by the context and, for all calls together, by 10 seconds.
func TestKMSPublicKeysWait(t *testing.T) {
	t.Parallel()
	for rpc, late := range map[string]time.Duration{"ListCryptoKeyVersions": time.Hour, "GetPublicKey": 0, "GetPublicKey after a slow list": 6 * time.Second} {
		for _, patience := range []time.Duration{time.Second, time.Hour} {
			t.Run(fmt.Sprintf("%s/%v", rpc, patience), func(t *testing.T) {
				kmsBubble(t, func(rig *kmsRig) {
					for range 20 {
						rig.create()
					}
					rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
						patience := late
						if method == "GetPublicKey" {
							patience = time.Hour
						}
						select {
						case <-time.After(patience):
							return next(ctx, req)
						case <-ctx.Done():
							return nil, ctx.Err()
						}
					})
					ctx, cancel := context.WithTimeout(rig.Context(), patience)
					defer cancel()
					began := time.Now()
					keys, err := (&gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client}).PublicKeys(ctx)
					want := min(patience, systest.FetchLimit)
					if took := time.Since(began); keys != nil || !errors.Is(err, gcpjwt.ErrKeysUnavailable) ||
						!errors.Is(err, context.DeadlineExceeded) || took < want || took > want+100*time.Millisecond {
						rig.Errorf("PublicKeys = %v, %v after %v, want context.DeadlineExceeded after %v", keys, err, took, want)
					}
				})
			})
		}
	}
}
