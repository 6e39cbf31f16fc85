package gcpjwt_test

import (
	"context"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// account is the service account that most tests sign as.
const account = start.Account

// createKey creates a CryptoKey with one version and returns the version's name.
func createKey(t testing.TB, server *testutil.KMS, algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm) string {
	t.Helper()
	id := strings.NewReplacer("/", "-", "#", "-", " ", "-").Replace(t.Name())
	version, err := server.CreateKey(id[max(0, len(id)-63):], algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// cryptoKeyOf returns the CryptoKey of a version.
func cryptoKeyOf(version string) string {
	cryptoKey, _, _ := strings.Cut(version, "/cryptoKeyVersions/")
	return cryptoKey
}

// sign signs claims, by default a subject only, with SignedString.
func sign(t testing.TB, ctx context.Context, method jwt.SigningMethod, claims jwt.MapClaims) string {
	t.Helper()
	if claims == nil {
		claims = jwt.MapClaims{"sub": "somebody"}
	}
	text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(method, claims))
	if err != nil {
		t.Fatalf("SignedString: %v", err)
	}
	return text
}
