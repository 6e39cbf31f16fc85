package gcpjwt_test

import (
	"context"
	"crypto"
	"encoding/base64"
	"errors"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// kmsConnect returns a new client of a server.
type kmsConnect = func(t testing.TB, server *testutil.KMS) *kms.KeyManagementClient

// kmsTransports are the two ways to reach a server. What is known of keys goes by the client,
// so that a further client is as good as another process.
var kmsTransports = []struct {
	name    string
	connect kmsConnect
}{
	{"gRPC", systest.Client},
	{"REST", func(t testing.TB, server *testutil.KMS) *kms.KeyManagementClient {
		t.Helper()
		httpClient := server.HTTPClient()
		client, err := server.RESTClient(context.Background(), option.WithHTTPClient(httpClient))
		if err != nil {
			t.Fatal(err)
		}
		// Close itself would be a race with what has just been read in the background.
		t.Cleanup(httpClient.CloseIdleConnections)
		return client
	}},
}

// onBoth runs a test over each transport.
func onBoth(t *testing.T, f func(t *testing.T, connect kmsConnect)) {
	for _, transport := range kmsTransports {
		t.Run(transport.name, func(t *testing.T) { f(t, transport.connect) })
	}
}

// kmsFailNext makes the next n calls of an RPC fail.
func kmsFailNext(server *testutil.KMS, rpc string, n int, err error) {
	var left atomic.Int32
	left.Store(int32(n))
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if method == rpc && left.Add(-1) >= 0 {
			return nil, err
		}
		return next(ctx, req)
	})
}

// kmsOverride overrides a method until the test ends. It changes what jwt knows
// in the whole process, so such a test must not be parallel.
func kmsOverride(t *testing.T, m *gcpjwt.SigningMethodKMS) {
	t.Helper()
	alias := m.Alg()
	m.Override()
	alg := m.Alg()
	t.Cleanup(func() {
		gcpjwt.KMSUndoOverride(m)
		if got := m.Alg(); got != alias {
			t.Errorf("after undoing Override of %s: Alg = %q, want %q", alg, got, alias)
		}
	})
}

// Every Cloud KMS algorithm: signed by either call, with and without Override, over both
// transports, and verified by three kinds of verifier. It isn't parallel because of
// Override.
func TestKMSAlgorithms(t *testing.T) {
	onBoth(t, testKMSAlgorithms)
}

func testKMSAlgorithms(t *testing.T, connect kmsConnect) {
	for _, row := range systest.Rows {
		t.Run(row.String(), func(t *testing.T) {
			server, _ := systest.StartKMS(t)
			client := connect(t, server)
			version := systest.Create(t, server, row.Algorithm)
			ctx := systest.KMSContext(t.Context(), client, version)
			pinned := systest.KMSKeyfunc(t, t.Context(), client, version)
			rotating := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(version))

			check := func(t *testing.T, text, alg string, kid any) {
				t.Helper()
				want := map[string]any{"alg": alg, "typ": "JWT"}
				if kid != nil {
					want["kid"] = kid
				}
				if diff := cmp.Diff(want, systest.Header(t, text)); diff != "" {
					t.Errorf("header (-want +got):\n%s", diff)
				}
				signingString, sig := systest.Split(t, text)
				if len(sig) != row.Size {
					t.Errorf("the signature has %d bytes, want %d", len(sig), row.Size)
				}
				if err := systest.VerifyBare(t.Context(), row, server, client, version, signingString, sig); err != nil {
					t.Errorf("verifying without gcpjwt: %v", err)
				}
				if err := systest.VerifyBare(t.Context(), row, server, client, version, signingString+"x", sig); err == nil {
					t.Error("verifying another text without gcpjwt: no error")
				}
				for name, keyfunc := range map[string]jwt.Keyfunc{"version": pinned, "CryptoKey": rotating} {
					token, err := jwt.Parse(text, keyfunc, jwt.WithValidMethods([]string{alg}))
					if err != nil || !token.Valid {
						t.Errorf("jwt.Parse with the Keyfunc of the %s: %v", name, err)
					}
					forged := signingString + "x." + base64.RawURLEncoding.EncodeToString(sig)
					if _, err := jwt.Parse(forged, keyfunc); err == nil {
						t.Errorf("jwt.Parse of a forged token with the Keyfunc of the %s: no error", name)
					}
				}
			}
			kid := gcpjwt.KMSKeyID(version)
			both := func(t *testing.T, alg string) {
				if got := row.Method.Alg(); got != alg {
					t.Errorf("Alg = %q, want %q", got, alg)
				}
				if got := jwt.GetSigningMethod(alg); got != jwt.SigningMethod(row.Method) {
					t.Errorf("jwt.GetSigningMethod(%q) = %v, want the method", alg, got)
				}
				check(t, systest.Sign(t, ctx, row.Method, nil), row.Alg, kid)

				token := jwt.NewWithClaims(row.Method, jwt.MapClaims{"sub": "somebody"})
				text, err := token.SignedString(ctx)
				if err != nil {
					t.Fatalf("token.SignedString: %v", err)
				}
				check(t, text, alg, nil)
			}

			t.Run("as imported", func(t *testing.T) { both(t, row.Alias) })
			t.Run("overridden", func(t *testing.T) {
				kmsOverride(t, row.Method)
				both(t, row.Alg)
			})
			t.Run("kid of the caller", func(t *testing.T) {
				token := jwt.New(row.Method)
				token.Header["kid"] = "mine"
				text, err := gcpjwt.SignedString(ctx, token)
				if err != nil {
					t.Fatalf("SignedString: %v", err)
				}
				if got := systest.Header(t, text)["kid"]; got != "mine" {
					t.Errorf("kid = %v, want the caller's", got)
				}
			})

			wantHash := map[string]crypto.Hash{
				"RS256": crypto.SHA256, "RS512": crypto.SHA512, "PS256": crypto.SHA256, "PS512": crypto.SHA512,
				"ES256": crypto.SHA256, "ES384": crypto.SHA384, "ES256K": crypto.SHA256,
				"HS256": crypto.SHA256, "HS384": crypto.SHA384, "HS512": crypto.SHA512,
			}
			if got := row.Method.Hash(); got != wantHash[row.Alg] {
				t.Errorf("Hash = %v, want %v", got, wantHash[row.Alg])
			}
		})
	}
}

// jwt's own parser, told the public key only, takes the tokens.
func TestKMSTokensWithStockJWT(t *testing.T) {
	t.Parallel()
	for _, row := range systest.Rows {
		if row.IsMAC() {
			continue // MacVerify above is all there is
		}
		t.Run(row.String(), func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
			version := systest.Create(t, server, row.Algorithm)
			text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), row.Method, jwt.MapClaims{"sub": "süße <&>"})
			token, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return server.PublicKey(version), nil },
				jwt.WithValidMethods([]string{row.Alg}), jwt.WithStrictDecoding())
			if err != nil {
				t.Fatalf("jwt.Parse: %v", err)
			}
			if got, _ := token.Claims.GetSubject(); got != "süße <&>" {
				t.Errorf("sub = %q", got)
			}
		})
	}
}

// R02: a signature is one call, and a verification none.
func TestKMSCallsPerToken(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.P256)
	for range 100 {
		text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSES256, nil)
		if _, err := jwt.Parse(text, systest.KMSKeyfunc(t, t.Context(), client, version)); err != nil {
			t.Fatalf("jwt.Parse: %v", err)
		}
	}
	got := map[string]int{"AsymmetricSign": server.Calls("AsymmetricSign"), "GetPublicKey": server.Calls("GetPublicKey"), "": server.Calls("")}
	if diff := cmp.Diff(map[string]int{"AsymmetricSign": 100, "GetPublicKey": 1, "": 101}, got); diff != "" {
		t.Errorf("R02: calls of 100 signatures and verifications (-want +got):\n%s", diff)
	}
}

// A configuration is only read: two clients and many goroutines may share the
// contexts made of it, and a configuration made for each call costs next to nothing.
func TestKMSConfigIsNotChanged(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.Ed25519)
	config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client}
	ctx := gcpjwt.NewKMSContext(t.Context(), config)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSEdDSA))
			if err != nil {
				t.Errorf("SignedString: %v", err)
				return
			}
			keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
			if err != nil {
				t.Errorf("KMSVerifyKeyfunc: %v", err)
				return
			}
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Errorf("jwt.Parse: %v", err)
			}
			config.KeyID()
		})
	}
	group.Wait()
	if want := (gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client}); *config != want {
		t.Errorf("R06: the configuration became %+v", *config)
	}
}

// A context leads where its configuration says now. What it remembers of one call serves no
// other one after a change.
func TestKMSContextFollowsConfig(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	first := systest.Create(t, server, systest.Ed25519)
	second, err := server.CreateKey("second", systest.Ed25519)
	if err != nil {
		t.Fatal(err)
	}
	other, otherClient := systest.StartKMS(t)
	systest.Create(t, other, systest.Ed25519) // of the first one's name
	config := new(gcpjwt.KMSConfig)
	ctx := gcpjwt.NewKMSContext(t.Context(), config)
	cryptoKey := systest.CryptoKeyOf(first)
	steps := []struct {
		name   string
		now    gcpjwt.KMSConfig
		signer string        // "": none
		server *testutil.KMS // that it is asked of
	}{
		{"empty", gcpjwt.KMSConfig{}, "", nil},
		{"version", gcpjwt.KMSConfig{KeyPath: first, KMSClient: client}, first, server},
		{"other version", gcpjwt.KMSConfig{KeyPath: second, KMSClient: client}, second, server},
		{"CryptoKey", gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: client}, first, server},
		{"its KeyRefresh", gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: client, KeyRefresh: -1}, "", nil},
		{"version again", gcpjwt.KMSConfig{KeyPath: first, KMSClient: client}, first, server},
		{"KeyRefresh", gcpjwt.KMSConfig{KeyPath: first, KMSClient: client, KeyRefresh: -1}, "", nil},
		{"other client", gcpjwt.KMSConfig{KeyPath: first, KMSClient: otherClient}, first, other},
		{"empty again", gcpjwt.KMSConfig{}, "", nil},
	}
	for _, step := range steps {
		*config = step.now
		for range 2 {
			server.ResetCalls()
			other.ResetCalls()
			text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSEdDSA))
			if step.signer == "" {
				if !errors.Is(err, gcpjwt.ErrInvalidConfig) {
					t.Errorf("%s: got %v, want ErrInvalidConfig", step.name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", step.name, err)
				continue
			}
			if got, want := systest.Header(t, text)["kid"], gcpjwt.KMSKeyID(step.signer); got != want {
				t.Errorf("%s: signed by %v, want %s", step.name, got, want)
			}
			if got := step.server.Calls("AsymmetricSign"); got != 1 {
				t.Errorf("%s: its server was asked %d times, want once", step.name, got)
			}
		}
	}
}

// A configuration that cannot work is refused before any call.
func TestKMSNegativeKeyRefresh(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.P256)
	for _, path := range []string{version, systest.CryptoKeyOf(version)} {
		config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client, KeyRefresh: -time.Second}
		_, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), config), jwt.New(gcpjwt.SigningMethodKMSES256))
		if !errors.Is(err, gcpjwt.ErrInvalidConfig) || !strings.Contains(err.Error(), "KeyRefresh") {
			t.Errorf("SignedString: %v, want ErrInvalidConfig that names KeyRefresh", err)
		}
		_, err = gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
		if !errors.Is(err, gcpjwt.ErrInvalidConfig) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
			t.Errorf("KMSVerifyKeyfunc: %v, want ErrInvalidConfig alone", err)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want 0", got)
	}
}

// What isn't a context with a configuration is no key, for any of the methods.
func TestKMSWrongKey(t *testing.T) {
	t.Parallel()
	var (
		noContext context.Context
		noConfig  *gcpjwt.KMSConfig
	)
	iamOnly := gcpjwt.NewIAMContext(t.Context(), &gcpjwt.IAMConfig{ServiceAccount: account})
	tests := []struct {
		name string
		key  any
		want error
	}{
		{"nil", nil, jwt.ErrInvalidKeyType},
		{"nil context", noContext, jwt.ErrInvalidKeyType},
		{"configuration", &gcpjwt.KMSConfig{}, jwt.ErrInvalidKeyType},
		{"nil configuration", noConfig, jwt.ErrInvalidKeyType},
		{"string", "projects/p/locations/l/keyRings/r/cryptoKeys/k", jwt.ErrInvalidKeyType},
		{"bytes", []byte("secret"), jwt.ErrInvalidKeyType},
		{"context without configuration", t.Context(), gcpjwt.ErrMissingConfig},
		{"context with a nil configuration", gcpjwt.NewKMSContext(t.Context(), nil), gcpjwt.ErrMissingConfig},
		{"context with a typed nil configuration", gcpjwt.NewKMSContext(t.Context(), noConfig), gcpjwt.ErrMissingConfig},
		{"context of another method", iamOnly, gcpjwt.ErrMissingConfig},
		{"context with an empty configuration", gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{}), gcpjwt.ErrInvalidConfig},
	}
	var methods []*gcpjwt.SigningMethodKMS
	for _, row := range systest.Rows {
		if !slices.Contains(methods, row.Method) {
			methods = append(methods, row.Method)
		}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, method := range methods {
				if sig, err := method.Sign("header.payload", tt.key); sig != nil || !errors.Is(err, tt.want) {
					t.Errorf("%s: Sign = %q, %v, want %v", method.Alg(), sig, err, tt.want)
				}
				if text, err := jwt.New(method).SignedString(tt.key); text != "" || !errors.Is(err, tt.want) {
					t.Errorf("%s: token.SignedString = %q, %v, want %v", method.Alg(), text, err, tt.want)
				}
				if ctx, ok := tt.key.(context.Context); ok {
					if text, err := gcpjwt.SignedString(ctx, jwt.New(method)); text != "" || !errors.Is(err, tt.want) {
						t.Errorf("%s: SignedString = %q, %v, want %v", method.Alg(), text, err, tt.want)
					}
				}
			}
		})
	}

	if keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), nil); keyfunc != nil || !errors.Is(err, gcpjwt.ErrMissingConfig) {
		t.Errorf("KMSVerifyKeyfunc of nil: %v, want ErrMissingConfig", err)
	}
	if config, ok := gcpjwt.KMSFromContext(gcpjwt.NewKMSContext(t.Context(), nil)); ok || config != nil {
		t.Errorf("KMSFromContext of a nil configuration = %v, %t, want none", config, ok)
	}
	config := &gcpjwt.KMSConfig{KeyPath: "k"}
	if got, ok := gcpjwt.KMSFromContext(gcpjwt.NewKMSContext(iamOnly, config)); !ok || got != config {
		t.Errorf("KMSFromContext = %v, %t, want the configuration", got, ok)
	}
}

// What Verify refuses as a key is jwt's to say: never a panic, never a success.
func TestKMSVerifyWrongKey(t *testing.T) {
	t.Parallel()
	for _, row := range systest.Rows {
		for _, key := range []any{nil, "secret", []byte("secret"), (*kms.KeyManagementClient)(nil), big.NewInt(1)} {
			err := row.Method.Verify("header.payload", make([]byte, row.Size), key)
			if !errors.Is(err, jwt.ErrInvalidKeyType) {
				t.Errorf("%s: Verify with a %T: %v, want ErrInvalidKeyType", row.Alg, key, err)
			}
		}
	}
}

var kmsMLDSA = []struct {
	params mldsa.Parameters
	row    systest.Row
}{
	{mldsa.MLDSA44(), systest.RowOf(kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44)},
	{mldsa.MLDSA65(), systest.RowOf(kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65)},
	{mldsa.MLDSA87(), systest.RowOf(kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87)},
}

// jwt has no methods of these names, so ours answer to them from the start: a method
// found under one signs and verifies like the variable.
func TestKMSRegisteredNames(t *testing.T) {
	for _, row := range systest.Methods() {
		if !slices.Contains([]string{"ES256K", "Ed25519", "ML-DSA-44", "ML-DSA-65", "ML-DSA-87"}, row.Alg) {
			continue
		}
		t.Run(row.Alg, func(t *testing.T) {
			named := jwt.GetSigningMethod(row.Alg)
			if named == nil || named.Alg() != row.Alg {
				t.Fatalf("jwt.GetSigningMethod(%q) = %v, want a method of that name", row.Alg, named)
			}
			if got := row.Method.Alg(); got != row.Alias {
				t.Errorf("the variable's Alg = %q before Override, want %q", got, row.Alias)
			}
			server, client := systest.StartKMS(t)
			version := systest.Create(t, server, row.Algorithm)
			ctx := systest.KMSContext(t.Context(), client, version)
			keyfunc := systest.KMSKeyfunc(t, t.Context(), client, version)
			classic, err := jwt.New(named).SignedString(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{systest.Sign(t, ctx, named, nil), classic} {
				if got := systest.Header(t, text)["alg"]; got != row.Alg {
					t.Errorf("alg = %v, want %s", got, row.Alg)
				}
				if _, err := jwt.Parse(text, keyfunc, jwt.WithValidMethods([]string{row.Alg})); err != nil {
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
			if got := jwt.GetSigningMethod(row.Alg); got != jwt.SigningMethod(row.Method) {
				t.Errorf("overriding the named method registered %v, want the variable", got)
			}
			gcpjwt.KMSUndoOverride(row.Method)
		})
	}
}

// One key of Ed25519 signs and verifies under both of its names, RFC 8037's and RFC 9864's.
func TestKMSEd25519Names(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		server, _ := systest.StartKMS(t)
		client := connect(t, server)
		version := systest.Create(t, server, systest.Ed25519)
		for _, path := range []string{version, systest.CryptoKeyOf(version)} {
			ctx := systest.KMSContext(t.Context(), client, path)
			keyfunc := systest.KMSKeyfunc(t, t.Context(), client, path)
			for _, method := range []*gcpjwt.SigningMethodKMS{gcpjwt.SigningMethodKMSEdDSA, gcpjwt.SigningMethodKMSEd25519} {
				alg := map[bool]string{true: "EdDSA", false: "Ed25519"}[method == gcpjwt.SigningMethodKMSEdDSA]
				text := systest.Sign(t, ctx, method, nil)
				if got := systest.Header(t, text)["alg"]; got != alg {
					t.Errorf("alg = %v, want %s", got, alg)
				}
				for _, text := range []string{text, systest.SignBare(t, ctx, method, alg), systest.SignBare(t, ctx, method, method.Alg())} {
					if _, err := jwt.Parse(text, keyfunc); err != nil {
						t.Errorf("%s: jwt.Parse: %v", systest.Header(t, text)["alg"], err)
					}
				}
				for _, other := range []string{"EdDSA", "Ed25519"} {
					if other != alg {
						if _, err := jwt.Parse(systest.Relabel(t, text, "alg", other), keyfunc); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
							t.Errorf("%s relabelled %s: %v, want ErrTokenSignatureInvalid", alg, other, err)
						}
					}
				}
			}
		}
		if got := server.Calls("GetPublicKey"); got != 1 {
			t.Errorf("GetPublicKey was called %d times, want once for both names and paths", got)
		}
	})
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
