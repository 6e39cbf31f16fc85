package gcpjwttest

import (
	"testing"
	"time"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// IAM is a server for service accounts, of [NewIAM]. Its methods are signBlob, signJwt and
// certificates.
type IAM struct {
	server
	fake *testutil.IAM
}

// NewIAM starts a server without accounts.
func NewIAM(t testing.TB) *IAM {
	t.Helper()
	fake, err := testutil.NewIAM()
	i := &IAM{server: server{t, fake}, fake: fake}
	i.must(err)
	t.Cleanup(fake.Close)
	return i
}

// NewAccount makes a service account with a key, and returns a configuration that names it. Set
// IAMType, EnableCache and the like as the program does. Logger writes to the log of the test.
func (i *IAM) NewAccount(email string) *gcpjwt.IAMConfig {
	i.t.Helper()
	_, err := i.fake.CreateAccount(email)
	i.must(err)
	service, err := i.fake.Service(i.t.Context())
	i.must(err)
	return &gcpjwt.IAMConfig{
		ServiceAccount: email,
		IAMService:     service,
		Client:         i.fake.Client(),
		CertificateURL: i.fake.CertificateURL(),
		Logger:         i.logger(),
	}
}

// Rotate gives an account a new key, which signs from now on. Earlier keys stay published. With
// EnableCache a verifier reads the new one when it sees its kid, once a minute at most.
func (i *IAM) Rotate(email string) {
	i.t.Helper()
	kid, err := i.fake.AddKey(email)
	i.must(err)
	i.fake.SetSigningKeys(email, kid)
}

// Stop begins an outage: connections break, and there are none until Restart. Certificates that
// are kept (EnableCache) verify.
func (i *IAM) Stop() { i.fake.Stop() }

// Restart ends an outage. All accounts and keys are still there.
func (i *IAM) Restart() {
	i.t.Helper()
	i.must(i.fake.Restart())
}

// AppEngine is App Engine's server of an app's identity, of [NewAppEngine]. Its methods are
// SignForApp and GetPublicCertificatesForApp.
type AppEngine struct {
	server
	fake *testutil.AppEngine
}

// NewAppEngine starts a server for an app with one key, and makes the process that app: it sets
// API_HOST and API_PORT with t.Setenv, so that the test cannot be parallel.
//
// gcpjwt keeps the app's certificates for the process, from test to test. So the server forbids to
// keep them: each verification reads them, cache or no cache.
func NewAppEngine(t testing.TB) *AppEngine {
	t.Helper()
	fake, err := testutil.NewAppEngine()
	a := &AppEngine{server: server{t, fake}, fake: fake}
	a.must(err)
	t.Cleanup(fake.Close)
	t.Setenv("API_HOST", fake.Host())
	t.Setenv("API_PORT", fake.Port())
	fake.SetMaxCacheTime(time.Nanosecond) // as "0 seconds"; 0 would say nothing
	// That certificates couldn't be had in an earlier test is remembered for a moment.
	signer := gcpjwt.NewAppEngineSigner()
	for _, err := signer.PublicKeys(t.Context()); err != nil; _, err = signer.PublicKeys(t.Context()) {
		time.Sleep(10 * time.Millisecond)
	}
	fake.ResetCalls()
	return a
}

// Rotate gives the app a new key, which signs from now on. Earlier keys stay published.
func (a *AppEngine) Rotate() {
	a.t.Helper()
	key, err := a.fake.AddKey()
	a.must(err)
	a.fake.SetSigningKeys(key)
}
