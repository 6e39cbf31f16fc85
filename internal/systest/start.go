package systest

import (
	"context"
	"crypto"
	"testing"

	kms "cloud.google.com/go/kms/apiv1"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// Account is the service account on the servers of StartIAM.
const Account = "api-signer@test.iam.gserviceaccount.com"

// StartKMS starts a Cloud KMS server and a client of it, for tests of what gcpjwttest
// has no switch for. Both end with the test.
func StartKMS(t testing.TB, opts ...testutil.Option) (*testutil.KMS, *kms.KeyManagementClient) {
	t.Helper()
	server, err := testutil.NewKMS(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server, Client(t, server)
}

// StartKMSKey starts a Cloud KMS server with a key of one version, and returns a
// configuration that names the version.
func StartKMSKey(t testing.TB, algorithm Algorithm, opts ...testutil.Option) (*testutil.KMS, *gcpjwt.KMSConfig) {
	t.Helper()
	server, client := StartKMS(t, opts...)
	return server, &gcpjwt.KMSConfig{KeyPath: Create(t, server, algorithm), KMSClient: client}
}

// StartIAM starts an IAM Credentials server with Account on it, and returns a
// configuration for signJwt that reaches it. The caller may change it.
func StartIAM(t testing.TB, opts ...testutil.Option) (*testutil.IAM, *gcpjwt.IAMConfig) {
	t.Helper()
	server, err := testutil.NewIAM(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	if _, err := server.CreateAccount(Account); err != nil {
		t.Fatal(err)
	}
	service, err := server.Service(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return server, &gcpjwt.IAMConfig{
		ServiceAccount: Account,
		IAMType:        gcpjwt.IAMJwtType,
		IAMService:     service,
		Client:         server.Client(),
		CertificateURL: server.CertificateURL(),
	}
}

// StartToken starts a token server without clients.
func StartToken(t testing.TB, opts ...testutil.Option) *testutil.TokenServer {
	t.Helper()
	server, err := testutil.NewTokenServer(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// TokenClient describes Account, with its keys on google, as a client of a token
// server. The caller may change it.
func TokenClient(google *testutil.IAM) testutil.TokenClient {
	return testutil.TokenClient{
		ID:         Account,
		Algorithms: []string{"RS256"},
		Scopes:     []string{"read", "write"},
		Key: func(kid string) crypto.PublicKey {
			if key := google.PublicKey(Account, kid); key != nil {
				return key
			}
			return nil
		},
	}
}
