package gcpjwt_test

import (
	"context"
	"strings"
	"testing"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// account is the service account that most tests sign as.
const account = "api-signer@test.iam.gserviceaccount.com"

// startKMS starts a Cloud KMS server and a client of it, which end with the test.
func startKMS(t testing.TB, opts ...testutil.Option) (*testutil.KMS, *kms.KeyManagementClient) {
	t.Helper()
	server, err := testutil.NewKMS(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	client, err := server.Client(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return server, client
}

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

// startIAM starts an IAM Credentials server with account on it, and returns a
// configuration that reaches it. The caller may change the configuration.
func startIAM(t testing.TB, opts ...testutil.Option) (*testutil.IAM, *gcpjwt.IAMConfig) {
	t.Helper()
	server, err := testutil.NewIAM(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	if _, err := server.CreateAccount(account); err != nil {
		t.Fatal(err)
	}
	service, err := server.Service(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return server, &gcpjwt.IAMConfig{
		ServiceAccount: account,
		IAMService:     service,
		Client:         server.Client(),
		CertificateURL: server.CertificateURL(),
	}
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
