// Exchange logs in to two services with keys that nobody can export. A program
// signs an assertion, and a token endpoint gives it an access token for that (RFC
// 7523). There is no key file and no client secret.
//
// First a service account acts as a user of Google Workspace. Its assertions are
// signed by signJwt, with keys that Google holds and rotates. Then a daemon logs in
// to an identity provider such as Microsoft Entra with a key in Cloud KMS.
//
//	go run ./examples/exchange
//
// It needs no credentials: Google's services and the token endpoint are embedded.
// The endpoint checks each assertion as RFC 7523 says. The program prints what
// happened, and fails if that isn't what should have.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"os/signal"

	xoauth2 "golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

const (
	// user is who the service account acts as, and scope what for.
	user  = "alice@example.com"
	scope = "https://www.googleapis.com/auth/calendar.readonly"

	// clientID is the daemon, and graphScope what it asks for.
	clientID   = "11111111-2222-3333-4444-555555555555"
	graphScope = "https://graph.microsoft.com/.default"
)

// actAsUser returns access tokens of a user of Google Workspace. An administrator
// has allowed the service account in config to ask for them.
func actAsUser(ctx context.Context, config *gcpjwt.IAMConfig, tokenURL string) (xoauth2.TokenSource, error) {
	signer, err := gcpjwt.NewIAMSigner(ctx, config)
	if err != nil {
		return nil, err
	}
	return oauth2.NewJWTBearerSource(ctx, oauth2.ExchangeConfig{
		Config:   oauth2.Config{Signer: signer, Issuer: config.ServiceAccount, Subject: user},
		TokenURL: tokenURL, // https://oauth2.googleapis.com/token
		Scopes:   []string{scope},
	})
}

// logIn returns access tokens of a client of an identity provider, which knows the
// certificate of the key in config.
func logIn(ctx context.Context, config *gcpjwt.KMSConfig, certificate *x509.Certificate, tokenURL string) (xoauth2.TokenSource, error) {
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		return nil, err
	}
	return oauth2.NewClientCredentialsSource(ctx, oauth2.ExchangeConfig{
		Config: oauth2.Config{
			Signer: signer,
			Issuer: clientID,
			Header: map[string]any{"x5t#S256": thumbprint(certificate)},
		},
		TokenURL: tokenURL, // https://login.microsoftonline.com/TENANT/oauth2/v2.0/token
		Scopes:   []string{graphScope},
	})
}

// thumbprint names a certificate in the header of a JWT.
func thumbprint(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "exchange:", err)
		stop()
		os.Exit(1)
	}
}
