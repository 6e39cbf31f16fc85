package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	xoauth2 "golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// A scene is a service to log in to, and a key for it.
type scene struct {
	title   string
	login   *testutil.TokenServer
	client  testutil.TokenClient
	source  func(context.Context) (xoauth2.TokenSource, error)
	want    string           // the API's greeting
	other   crypto.PublicKey // of somebody else
	refusal string           // what the endpoint says to it
	closers []func()
}

// start starts the token endpoint, which knows the client by its key.
func (s *scene) start(key func(kid string) crypto.PublicKey) (err error) {
	if s.login, err = testutil.NewTokenServer(); err != nil {
		return err
	}
	s.closers = append(s.closers, s.login.Close)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	s.other = other.Public()
	s.register(key)
	return nil
}

// register makes a key that of the client.
func (s *scene) register(key func(kid string) crypto.PublicKey) {
	client := s.client
	client.Key = key
	s.login.Register(client)
}

// setDown makes the token endpoint fail, or ends that.
func (s *scene) setDown(down bool) {
	if !down {
		s.login.Intercept(nil)
		return
	}
	s.login.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path == "/token" {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *scene) close() {
	for _, close := range s.closers {
		close()
	}
}

// embeddedAccount is the service account of the embedded IAM Credentials.
const embeddedAccount = "calendar@test.iam.gserviceaccount.com"

// newWorkspace is Google Workspace, for a service account.
func newWorkspace(ctx context.Context) (*scene, error) {
	google, err := testutil.NewIAM()
	if err != nil {
		return nil, err
	}
	s := &scene{
		title: "A service account acts as a user (section 2.1: the assertion is the grant)",
		client: testutil.TokenClient{
			ID:         embeddedAccount,
			Algorithms: []string{"RS256"},
			Subjects:   []string{user},
			Scopes:     []string{scope},
			ScopeClaim: true,
		},
		want:    "hello, " + user + ", with " + scope,
		refusal: "invalid_grant",
		closers: []func(){google.Close},
	}
	if _, err := google.CreateAccount(embeddedAccount); err != nil {
		return s, err
	}
	service, err := google.Service(ctx)
	if err != nil {
		return s, err
	}
	config := &gcpjwt.IAMConfig{ServiceAccount: embeddedAccount, IAMType: gcpjwt.IAMJwtType, IAMService: service}
	s.source = func(ctx context.Context) (xoauth2.TokenSource, error) {
		return actAsUser(ctx, config, s.login.TokenURL())
	}
	return s, s.start(func(kid string) crypto.PublicKey {
		if key := google.PublicKey(embeddedAccount, kid); key != nil {
			return key
		}
		return nil
	})
}

// newEntra is an identity provider that knows a client by the certificate of its
// key.
func newEntra(ctx context.Context) (*scene, error) {
	google, err := testutil.NewKMS()
	if err != nil {
		return nil, err
	}
	s := &scene{
		title: "A daemon logs in with a key in Cloud KMS (section 2.2: private_key_jwt)",
		client: testutil.TokenClient{
			ID:         clientID,
			Algorithms: []string{"PS256"},
			Scopes:     []string{graphScope},
		},
		want:    "hello, " + clientID + ", with " + graphScope,
		refusal: "invalid_client",
		closers: []func(){google.Close},
	}
	client, err := google.Client(ctx)
	if err != nil {
		return s, err
	}
	s.closers = append([]func(){func() { client.Close() }}, s.closers...)
	version, err := google.CreateKey("daemon", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256)
	if err != nil {
		return s, err
	}
	public := google.PublicKey(version)
	certificate, err := newCertificate(public)
	if err != nil {
		return s, err
	}
	s.client.Header = map[string]string{"x5t#S256": thumbprint(certificate)}
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	s.source = func(ctx context.Context) (xoauth2.TokenSource, error) {
		return logIn(ctx, config, certificate, s.login.TokenURL())
	}
	return s, s.start(func(string) crypto.PublicKey { return public })
}

// newCertificate puts a public key into a certificate. An operator does it with
// openssl (see docs/RECIPES.md). Who signs it doesn't matter.
func newCertificate(public crypto.PublicKey) (*x509.Certificate, error) {
	issuer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "daemon"},
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, issuer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
