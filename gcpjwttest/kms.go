package gcpjwttest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// KMS is a Cloud KMS server, of [NewKMS]. Its methods are AsymmetricSign, GetPublicKey,
// ListCryptoKeyVersions, MacSign, MacVerify and those for managing keys.
type KMS struct {
	server
	fake *testutil.KMS
	keys atomic.Int64 // made so far
}

// NewKMS starts a Cloud KMS server without keys.
func NewKMS(t testing.TB) *KMS {
	t.Helper()
	fake, err := testutil.NewKMS()
	k := &KMS{server: server{t, fake}, fake: fake}
	k.must(err)
	t.Cleanup(fake.Close)
	return k
}

// NewKey makes a CryptoKey with one ENABLED version, and returns a configuration that names the
// CryptoKey. The algorithm is any that gcpjwt signs by; RSA keys of 4096 bits take a second.
//
// Its KeyRefresh is a nanosecond, so that no test has to wait: signers and verifiers list the
// versions for each token. A new one signs the next token, and tokens by a disabled one are
// refused at once. For a key as in production, set KeyRefresh to 0, which is 5 minutes. Logger
// writes to the log of the test.
func (k *KMS) NewKey(algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm) *gcpjwt.KMSConfig {
	k.t.Helper()
	version, err := k.fake.CreateKey(fmt.Sprintf("key-%d", k.keys.Add(1)), algorithm)
	k.must(err)
	return &gcpjwt.KMSConfig{
		KeyPath:    cryptoKeyOf(version),
		KMSClient:  k.Client(),
		KeyRefresh: time.Nanosecond,
		Logger:     k.logger(),
	}
}

// Client returns a new client of the server, which the test's end closes. gcpjwt remembers keys by
// client. So a configuration with a client of its own is like that of another process.
func (k *KMS) Client() *kms.KeyManagementClient {
	k.t.Helper()
	client, err := k.fake.Client(context.Background())
	k.must(err)
	k.t.Cleanup(func() { client.Close() })
	return client
}

// NewVersion adds a version to the configuration's CryptoKey, ENABLED at once, and returns its
// name, of which [gcpjwt.KMSKeyID] makes the kid. Earlier versions stay as they are.
func (k *KMS) NewVersion(config *gcpjwt.KMSConfig) string {
	k.t.Helper()
	version, err := k.fake.CreateVersion(cryptoKeyOf(config.KeyPath))
	k.must(err)
	return version
}

// SetState moves a version to a state. The first one is the KeyPath with /cryptoKeyVersions/1.
func (k *KMS) SetState(version string, state kmspb.CryptoKeyVersion_CryptoKeyVersionState) {
	k.t.Helper()
	k.known("CryptoKeyVersion", version, k.fake.Versions())
	k.fake.SetState(version, state)
}

// Deny makes calls fail with PERMISSION_DENIED that need a permission, such as
// "cloudkms.cryptoKeyVersions.useToSign". What gcpjwt knows stays in use, as in production.
func (k *KMS) Deny(permission string) {
	k.t.Helper()
	k.known("permission", permission, k.fake.Permissions())
	k.fake.Deny(permission)
}

// Allow gives a permission back. gcpjwt may remember for 3 seconds that it was missing.
func (k *KMS) Allow(permission string) {
	k.t.Helper()
	k.known("permission", permission, k.fake.Permissions())
	k.fake.Allow(permission)
}

// Stop begins an outage: connections break, and there are none until Restart. gcpjwt goes on
// trying to sign until the end of the context, or for a minute. Known keys verify.
func (k *KMS) Stop() { k.fake.Stop() }

// Restart ends an outage. All keys are still there.
func (k *KMS) Restart() {
	k.t.Helper()
	k.must(k.fake.Restart())
}

func cryptoKeyOf(name string) string {
	cryptoKey, _, _ := strings.Cut(name, "/cryptoKeyVersions/")
	return cryptoKey
}
