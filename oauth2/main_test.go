package oauth2_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	account  = "api-signer@test.iam.gserviceaccount.com"
	audience = "https://api.example.com"
)

// startIAM starts an IAM Credentials server with account on it, and returns a
// configuration for signJwt that reaches it. The caller may change it.
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
		IAMType:        gcpjwt.IAMJwtType,
		IAMService:     service,
		Client:         server.Client(),
		CertificateURL: server.CertificateURL(),
	}
}

// startKMS starts a Cloud KMS server with one key of an algorithm, and returns a
// configuration that reaches it.
func startKMS(t testing.TB, algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm, opts ...testutil.Option) (*testutil.KMS, *gcpjwt.KMSConfig) {
	t.Helper()
	server, err := testutil.NewKMS(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	version, err := server.CreateKey("key", algorithm)
	if err != nil {
		t.Fatal(err)
	}
	client, err := server.Client(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return server, &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
}

// parse verifies a token and returns its claims.
func parse(t *testing.T, text string, keyfunc jwt.Keyfunc) jwt.MapClaims {
	t.Helper()
	claims := jwt.MapClaims{}
	if _, err := jwt.NewParser(jwt.WithJSONNumber()).ParseWithClaims(text, claims, keyfunc); err != nil {
		t.Fatalf("the token doesn't verify: %v", err)
	}
	return claims
}

// unixTime returns a time claim.
func unixTime(t *testing.T, claims jwt.MapClaims, name string) time.Time {
	t.Helper()
	number, _ := claims[name].(json.Number)
	seconds, err := number.Int64()
	if err != nil {
		t.Fatalf("claim %s: %v", name, err)
	}
	return time.Unix(seconds, 0)
}
