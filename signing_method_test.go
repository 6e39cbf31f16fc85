package gcpjwt_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	_ "github.com/someone1/gcp-jwt-go/v3/middleware" // imports change nothing
	_ "github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// iamAlone has a test run in a process of its own, as Override changes what
// the whole process knows and cannot be undone. It reports whether this is that
// process.
func iamAlone(t *testing.T) bool {
	t.Helper()
	const variable = "GCPJWT_TEST_ALONE"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	output, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "--- PASS: "+t.Name()+" ") {
		t.Errorf("in a process of its own: %v\n%s", err, output)
	}
	return false
}

// iamStock are jwt's own methods, none of which this package may displace unasked.
var iamStock = map[string]jwt.SigningMethod{
	"RS256": jwt.SigningMethodRS256, "RS384": jwt.SigningMethodRS384, "RS512": jwt.SigningMethodRS512,
	"PS256": jwt.SigningMethodPS256, "PS384": jwt.SigningMethodPS384, "PS512": jwt.SigningMethodPS512,
	"ES256": jwt.SigningMethodES256, "ES384": jwt.SigningMethodES384, "ES512": jwt.SigningMethodES512,
	"HS256": jwt.SigningMethodHS256, "HS384": jwt.SigningMethodHS384, "HS512": jwt.SigningMethodHS512,
	"EdDSA": jwt.SigningMethodEdDSA, "none": jwt.SigningMethodNone,
}

// iamOverridable is what all methods of this package can do.
type iamOverridable interface {
	jwt.SigningMethod
	Override()
}

// iamAllMethods are all methods, by alias.
var iamAllMethods = map[string]struct {
	method iamOverridable
	alg    string
}{
	"KMSRS256":   {gcpjwt.SigningMethodKMSRS256, "RS256"},
	"KMSRS512":   {gcpjwt.SigningMethodKMSRS512, "RS512"},
	"KMSPS256":   {gcpjwt.SigningMethodKMSPS256, "PS256"},
	"KMSPS512":   {gcpjwt.SigningMethodKMSPS512, "PS512"},
	"KMSES256":   {gcpjwt.SigningMethodKMSES256, "ES256"},
	"KMSES384":   {gcpjwt.SigningMethodKMSES384, "ES384"},
	"KMSES256K":  {gcpjwt.SigningMethodKMSES256K, "ES256K"},
	"KMSEdDSA":   {gcpjwt.SigningMethodKMSEdDSA, "EdDSA"},
	"KMSEd25519": {gcpjwt.SigningMethodKMSEd25519, "Ed25519"},
	"KMSHS256":   {gcpjwt.SigningMethodKMSHS256, "HS256"},
	"KMSHS384":   {gcpjwt.SigningMethodKMSHS384, "HS384"},
	"KMSHS512":   {gcpjwt.SigningMethodKMSHS512, "HS512"},
	"KMSMLDSA44": {gcpjwt.SigningMethodKMSMLDSA44, "ML-DSA-44"},
	"KMSMLDSA65": {gcpjwt.SigningMethodKMSMLDSA65, "ML-DSA-65"},
	"KMSMLDSA87": {gcpjwt.SigningMethodKMSMLDSA87, "ML-DSA-87"},
	"IAMBlob":    {gcpjwt.SigningMethodIAMBlob, "RS256"},
	"IAMJWT":     {gcpjwt.SigningMethodIAMJWT, "RS256"},
	"AppEngine":  {gcpjwt.SigningMethodAppEngine, "RS256"},
}

// B18: other users of jwt in the program notice nothing of an import.
func TestImportChangesNoStockMethod(t *testing.T) {
	if !iamAlone(t) {
		return
	}
	for alg, want := range iamStock {
		if got := jwt.GetSigningMethod(alg); got != want || got.Alg() != alg {
			t.Errorf("%s: jwt has %T %v, want its own %T", alg, got, got, want)
		}
	}
	for alias, m := range iamAllMethods {
		if got := jwt.GetSigningMethod(alias); got != jwt.SigningMethod(m.method) {
			t.Errorf("%s: jwt has %v, want the method of this package", alias, got)
		}
		if got := m.method.Alg(); got != alias {
			t.Errorf("%s: Alg is %q before Override", alias, got)
		}
	}
	ours := []string{"ES256K", "Ed25519", "ML-DSA-44", "ML-DSA-65", "ML-DSA-87"} // which jwt hasn't got
	if got, want := len(jwt.GetAlgorithms()), len(iamStock)+len(iamAllMethods)+len(ours); got != want {
		t.Errorf("jwt has methods %q, want %d: its own, ours by alias, and those under RFC names that it hasn't got", jwt.GetAlgorithms(), want)
	}
}

func TestOverride(t *testing.T) {
	if !iamAlone(t) {
		return
	}
	for alias, m := range iamAllMethods {
		for range 2 {
			m.method.Override()
			if got := jwt.GetSigningMethod(m.alg); got != jwt.SigningMethod(m.method) {
				t.Errorf("%s: jwt has %T for %s, want the method", alias, got, m.alg)
			}
		}
		if got := m.method.Alg(); got != m.alg {
			t.Errorf("%s: Alg is %q after Override, want %q", alias, got, m.alg)
		}
		if got := jwt.GetSigningMethod(alias); got != jwt.SigningMethod(m.method) {
			t.Errorf("%s: jwt has %T for the alias, want the method still", alias, got)
		}
		if stock := iamStock[m.alg]; stock != nil && stock.Alg() != m.alg {
			t.Errorf("%s: jwt's own method has become %q", alias, stock.Alg())
		}
	}
	for _, alg := range []string{"RS384", "PS384", "ES512", "none"} {
		if got := jwt.GetSigningMethod(alg); got != iamStock[alg] {
			t.Errorf("%s: jwt has %T, want its own", alg, got)
		}
	}
}

// Override may run while others sign and verify. Run with -race.
func TestOverrideConcurrently(t *testing.T) {
	if !iamAlone(t) {
		return
	}
	_, config := systest.StartIAM(t)
	config.EnableCache = true
	kms, client := systest.StartKMS(t)
	key := &gcpjwt.KMSConfig{KeyPath: systest.CreateKey(t, kms, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256), KMSClient: client}
	ctx := gcpjwt.NewKMSContext(gcpjwt.NewIAMContext(context.Background(), config), key)
	kmsKeyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	iamKeyfunc := gcpjwt.IAMVerifyKeyfunc(ctx, config)

	var running sync.WaitGroup
	for range 8 {
		for _, m := range iamAllMethods {
			running.Go(func() {
				m.method.Override()
				_ = m.method.Alg()
			})
		}
		for method, keyfunc := range map[jwt.SigningMethod]jwt.Keyfunc{
			gcpjwt.SigningMethodKMSES256: kmsKeyfunc,
			gcpjwt.SigningMethodIAMBlob:  iamKeyfunc,
			gcpjwt.SigningMethodIAMJWT:   iamKeyfunc,
		} {
			running.Go(func() {
				text, err := gcpjwt.SignedString(ctx, jwt.New(method))
				if err == nil {
					_, err = jwt.Parse(text, keyfunc)
				}
				if err != nil {
					t.Errorf("%T: %v", method, err)
				}
			})
		}
	}
	running.Wait()
}

// A method verifies with what jwt's own method of the same name takes, and
// nothing else.
func TestVerifyTakesPublicKeys(t *testing.T) {
	t.Parallel()
	text := certToken(t, nil)
	i := strings.LastIndexByte(text, '.')
	signature := iamMust(jwt.NewParser().DecodeSegment(text[i+1:]))
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []jwt.SigningMethod{
		gcpjwt.SigningMethodIAMBlob, gcpjwt.SigningMethodIAMJWT, gcpjwt.SigningMethodAppEngine, gcpjwt.SigningMethodKMSRS256,
	} {
		if err := method.Verify(text[:i], signature, certKey().Public()); err != nil {
			t.Errorf("%s: %v", method.Alg(), err)
		}
		if err := method.Verify(text[:i]+"x", signature, certKey().Public()); err == nil {
			t.Errorf("%s: another text passes", method.Alg())
		}
		for _, key := range []any{nil, certKey(), []byte("secret"), curve.Public(), t.Context(), jwt.UnsafeAllowNoneSignatureType} {
			if err := method.Verify(text[:i], signature, key); !errors.Is(err, jwt.ErrInvalidKeyType) {
				t.Errorf("%s with a %T: got %v, want %v", method.Alg(), key, err, jwt.ErrInvalidKeyType)
			}
		}
	}
}

// iamMust returns a value that cannot be missing.
func iamMust[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
