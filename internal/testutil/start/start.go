// Package start starts the servers of package testutil for a test, and stops them
// when the test ends.
package start

import (
	"context"
	"testing"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// Account is the service account on the servers of IAM.
const Account = "api-signer@test.iam.gserviceaccount.com"

// KMS starts a Cloud KMS server and a client of it.
func KMS(t testing.TB, opts ...testutil.Option) (*testutil.KMS, *kms.KeyManagementClient) {
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

// KMSKey starts a Cloud KMS server with a key of one version, and returns a
// configuration that names the version.
func KMSKey(t testing.TB, algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm, opts ...testutil.Option) (*testutil.KMS, *gcpjwt.KMSConfig) {
	t.Helper()
	server, client := KMS(t, opts...)
	version, err := server.CreateKey("key", algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return server, &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
}

// IAM starts an IAM Credentials server with Account on it, and returns a
// configuration for signJwt that reaches it. The caller may change it.
func IAM(t testing.TB, opts ...testutil.Option) (*testutil.IAM, *gcpjwt.IAMConfig) {
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
