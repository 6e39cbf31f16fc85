package gcpjwt_test

import (
	"context"
	"encoding/base64"
	"errors"
	"sync"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

var kmsMLDSA = []struct {
	params mldsa.Parameters
	row    systest.Row
}{
	{mldsa.MLDSA44(), systest.RowOf(kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44)},
	{mldsa.MLDSA65(), systest.RowOf(kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65)},
	{mldsa.MLDSA87(), systest.RowOf(kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87)},
}

// jwt has no ML-DSA methods, so these answer to their RFC 9964 names from the
// start: a method found under it signs and verifies like the variable.
func TestMLDSARegisteredName(t *testing.T) {
	for _, tt := range kmsMLDSA {
		t.Run(tt.row.Alg, func(t *testing.T) {
			named := jwt.GetSigningMethod(tt.row.Alg)
			if named == nil || named.Alg() != tt.row.Alg {
				t.Fatalf("jwt.GetSigningMethod(%q) = %v, want a method of that name", tt.row.Alg, named)
			}
			if got := tt.row.Method.Alg(); got != tt.row.Alias {
				t.Errorf("the variable's Alg = %q before Override, want %q", got, tt.row.Alias)
			}
			server, client := start.KMS(t)
			version := systest.Create(t, server, tt.row.Algorithm)
			ctx := systest.KMSContext(t.Context(), client, version)
			keyfunc := systest.KMSKeyfunc(t, t.Context(), client, version)
			classic, err := jwt.New(named).SignedString(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{systest.Sign(t, ctx, named, nil), classic} {
				if got := systest.Header(t, text)["alg"]; got != tt.row.Alg {
					t.Errorf("alg = %v, want %s", got, tt.row.Alg)
				}
				if _, err := jwt.Parse(text, keyfunc, jwt.WithValidMethods([]string{tt.row.Alg})); err != nil {
					t.Errorf("jwt.Parse with the Keyfunc: %v", err)
				}
				if _, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return server.PublicKey(version), nil }); err != nil {
					t.Errorf("jwt.Parse with the bare key: %v", err)
				}
				if _, err := jwt.Parse(systest.Forge(text), keyfunc); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
					t.Errorf("jwt.Parse of a forged token: %v, want ErrTokenSignatureInvalid", err)
				}
			}
			named.(*gcpjwt.SigningMethodKMS).Override()
			if got := jwt.GetSigningMethod(tt.row.Alg); got != jwt.SigningMethod(tt.row.Method) {
				t.Errorf("overriding the named method registered %v, want the variable", got)
			}
			gcpjwt.KMSUndoOverride(tt.row.Method)
		})
	}
}

// Verify takes an *mldsa.PublicKey of the method's own parameters.
func TestMLDSAVerifyKeys(t *testing.T) {
	t.Parallel()
	var keys []*mldsa.PrivateKey
	for _, tt := range kmsMLDSA {
		key, err := mldsa.GenerateKey(tt.params)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	for i, tt := range kmsMLDSA {
		for j, key := range keys {
			public := key.Public().(*mldsa.PublicKey)
			sig, err := key.Sign(nil, []byte("header.payload"), &mldsa.Options{})
			if err != nil {
				t.Fatal(err)
			}
			err = tt.row.Method.Verify("header.payload", sig, public)
			if i == j && err != nil {
				t.Errorf("%s: Verify: %v", tt.row.Alg, err)
			}
			if i != j && !errors.Is(err, jwt.ErrInvalidKeyType) {
				t.Errorf("%s: Verify with a key of %s: %v, want ErrInvalidKeyType", tt.row.Alg, kmsMLDSA[j].row.Alg, err)
			}
		}

		key, public := keys[i], keys[i].Public().(*mldsa.PublicKey)
		for name, wrong := range map[string]any{
			"nil": nil, "nil pointer": (*mldsa.PublicKey)(nil), "value": *public,
			"private key": key, "bytes": public.Bytes(),
		} {
			if err := tt.row.Method.Verify("header.payload", make([]byte, tt.row.Size), wrong); !errors.Is(err, jwt.ErrInvalidKeyType) {
				t.Errorf("%s: Verify with a %s: %v, want ErrInvalidKeyType", tt.row.Alg, name, err)
			}
		}

		sig, err := key.Sign(nil, []byte("header.payload"), &mldsa.Options{})
		if err != nil {
			t.Fatal(err)
		}
		contextual, err := key.Sign(nil, []byte("header.payload"), &mldsa.Options{Context: "JWT"})
		if err != nil {
			t.Fatal(err)
		}
		flipped := append([]byte(nil), sig...)
		flipped[7] ^= 1
		for name, bad := range map[string][]byte{
			"of none": nil, "cut": sig[:len(sig)-1], "with a byte more": append(sig[:len(sig):len(sig)], 0),
			"with a flipped bit": flipped, "with a context string": contextual,
		} {
			if err := tt.row.Method.Verify("header.payload", bad, public); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
				t.Errorf("%s: Verify of a signature %s: %v, want ErrTokenSignatureInvalid", tt.row.Alg, name, err)
			}
		}
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

// A CryptoKey whose versions are of different algorithms, as after a move to
// post-quantum keys, verifies all of them, each with its own.
func TestMLDSAMigration(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	classic := systest.Create(t, server, systest.P256)
	cryptoKey := systest.CryptoKeyOf(classic)
	byVersion := map[string]systest.Row{classic: systest.RowOf(systest.P256)}
	for _, tt := range kmsMLDSA {
		version, err := server.CreateVersion(cryptoKey, tt.row.Algorithm)
		if err != nil {
			t.Fatal(err)
		}
		byVersion[version] = tt.row
	}
	ctx := systest.KMSContext(t.Context(), client, cryptoKey)
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, cryptoKey)
	for version, row := range byVersion {
		text := systest.Sign(t, ctx, row.Method, nil)
		if got, want := systest.Header(t, text)["kid"], gcpjwt.KMSKeyID(version); got != want {
			t.Errorf("%s: signed by %v, want the version of that algorithm", row.Alg, got)
		}
		_, sig := systest.Split(t, text)
		if _, err := jwt.Parse(text, keyfunc); err != nil {
			t.Errorf("%s: jwt.Parse: %v", row.Alg, err)
		}
		if _, err := jwt.Parse(systest.Relabel(t, text, "kid", nil), keyfunc); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
			t.Errorf("%s: jwt.Parse after removing the kid: %v, want ErrTokenSignatureInvalid", row.Alg, err)
		}
		if _, err := jwt.Parse(systest.SignBare(t, ctx, row.Method, row.Alg), keyfunc); err != nil {
			t.Errorf("%s: jwt.Parse of a token without kid: %v", row.Alg, err)
		}
		for _, other := range byVersion {
			if other.Alg == row.Alg {
				continue
			}
			relabelled, _ := systest.Split(t, systest.Relabel(t, text, "alg", other.Alg))
			_, err := jwt.Parse(relabelled+"."+base64.RawURLEncoding.EncodeToString(sig), keyfunc)
			if !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
				t.Errorf("a token by the %s version that says %s: %v, want ErrAlgorithmMismatch", row.Alg, other.Alg, err)
			}
		}
	}
}
