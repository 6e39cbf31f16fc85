package oauth2_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"strings"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	xoauth2 "golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// Google Workspace: act as a user of the domain, without a key file. The service account
// signs with signJwt.
func ExampleNewJWTBearerSource() {
	google, config := exampleAccount()
	defer google.Close()
	client := systest.TokenClient(google)
	client.Subjects = []string{"alice@example.com"}
	client.Scopes = []string{"https://www.googleapis.com/auth/calendar.readonly"}
	client.ScopeClaim = true
	login := exampleLogin(client)
	defer login.Close()
	tokenURL, calendarURL := login.TokenURL(), login.APIURL()

	ctx := context.Background()
	// config is &gcpjwt.IAMConfig{ServiceAccount: "...", IAMType: gcpjwt.IAMJwtType}.
	signer, err := gcpjwt.NewIAMSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	source, err := oauth2.NewJWTBearerSource(ctx, oauth2.ExchangeConfig{
		Config: oauth2.Config{
			Signer:  signer,
			Issuer:  config.ServiceAccount,
			Subject: "alice@example.com", // who the program acts as
		},
		TokenURL: tokenURL, // https://oauth2.googleapis.com/token
		Scopes:   []string{"https://www.googleapis.com/auth/calendar.readonly"},
	})
	if err != nil {
		log.Fatal(err)
	}
	calendar := &http.Client{Transport: &xoauth2.Transport{Source: source}}
	fmt.Println(get(calendar, calendarURL))
	// Output:
	// 200 OK: hello, alice@example.com, with https://www.googleapis.com/auth/calendar.readonly
}

// Salesforce: the answer says where the API is.
func ExampleNewJWTBearerSource_salesforce() {
	config, public, stop := exampleKey(kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256)
	defer stop()
	login := exampleLogin(testutil.TokenClient{
		ID:          "3MVG9ExampleConsumerKey",
		Subjects:    []string{"integration@example.com"},
		Audience:    "https://login.salesforce.com",
		MaxLifetime: 5 * time.Minute,
		Algorithms:  []string{"RS256"},
		Key:         func(string) crypto.PublicKey { return public },
	})
	defer login.Close()
	login.SetExpiresIn(0) // Salesforce doesn't state it
	login.SetExtra(map[string]any{"instance_url": login.URL()})
	tokenURL := login.TokenURL()

	ctx := context.Background()
	// config is &gcpjwt.KMSConfig{KeyPath: "projects/.../cryptoKeys/.../cryptoKeyVersions/1"}.
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	source, err := oauth2.NewJWTBearerSource(ctx, oauth2.ExchangeConfig{
		Config: oauth2.Config{
			Signer:   signer,
			Issuer:   "3MVG9ExampleConsumerKey",
			Subject:  "integration@example.com",
			Audience: []string{"https://login.salesforce.com"},
			Lifetime: 3 * time.Minute,
		},
		TokenURL: tokenURL, // https://login.salesforce.com/services/oauth2/token
	})
	if err != nil {
		log.Fatal(err)
	}
	token, err := source.Token()
	if err != nil {
		log.Fatal(err)
	}
	instance, _ := token.Extra("instance_url").(string)
	client := &http.Client{Transport: &xoauth2.Transport{Source: source}}
	fmt.Println(get(client, instance+"/api"))
	// Output:
	// 200 OK: hello, integration@example.com
}

// Microsoft Entra: the header names the certificate of the key.
func ExampleNewClientCredentialsSource() {
	config, public, stop := exampleKey(kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256)
	defer stop()
	certificate, thumbprintOnRecord := exampleCertificate(public)
	login := exampleLogin(testutil.TokenClient{
		ID:         "11111111-2222-3333-4444-555555555555",
		Scopes:     []string{"https://graph.microsoft.com/.default"},
		Algorithms: []string{"PS256"},
		Header:     map[string]string{"x5t#S256": thumbprintOnRecord},
		Key:        func(string) crypto.PublicKey { return public },
	})
	defer login.Close()
	tokenURL, graphURL := login.TokenURL(), login.APIURL()

	ctx := context.Background()
	// config is &gcpjwt.KMSConfig{KeyPath: "projects/.../cryptoKeys/.../cryptoKeyVersions/1"}.
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	thumbprint := sha256.Sum256(certificate.Raw)
	source, err := oauth2.NewClientCredentialsSource(ctx, oauth2.ExchangeConfig{
		Config: oauth2.Config{
			Signer: signer,
			Issuer: "11111111-2222-3333-4444-555555555555", // the application's (client) ID
			Header: map[string]any{"x5t#S256": base64.RawURLEncoding.EncodeToString(thumbprint[:])},
		},
		TokenURL: tokenURL, // https://login.microsoftonline.com/TENANT/oauth2/v2.0/token
		Scopes:   []string{"https://graph.microsoft.com/.default"},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &xoauth2.Transport{Source: source}}
	fmt.Println(get(client, graphURL))
	// Output:
	// 200 OK: hello, 11111111-2222-3333-4444-555555555555, with https://graph.microsoft.com/.default
}

// Okta: it finds the public key by its kid in the JWK Set of the client.
func ExampleNewClientCredentialsSource_okta() {
	config, public, stop := exampleKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	login := exampleLogin(testutil.TokenClient{
		ID:         "0oaExampleClientID",
		Scopes:     []string{"okta.users.read"},
		Algorithms: []string{"ES256"},
		Key: func(kid string) crypto.PublicKey {
			if kid != config.KeyID() {
				return nil
			}
			return public
		},
	})
	defer login.Close()
	tokenURL, usersURL := login.TokenURL(), login.APIURL()

	ctx := context.Background()
	// config is &gcpjwt.KMSConfig{KeyPath: "projects/.../cryptoKeys/..."}.
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	source, err := oauth2.NewClientCredentialsSource(ctx, oauth2.ExchangeConfig{
		Config:   oauth2.Config{Signer: signer, Issuer: "0oaExampleClientID"},
		TokenURL: tokenURL, // https://example.okta.com/oauth2/v1/token
		Scopes:   []string{"okta.users.read"},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &xoauth2.Transport{Source: source}}
	fmt.Println(get(client, usersURL))
	// Output:
	// 200 OK: hello, 0oaExampleClientID, with okta.users.read
}

// Snowflake: the token goes to the SQL API itself. Its issuer names the public key.
func ExampleNewTokenSource_snowflake() {
	config, public, stop := exampleKey(kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256)
	defer stop()
	snowflake := exampleLogin(testutil.TokenClient{
		ID:         "MYORG-MYACCOUNT.BILLING." + jwks.Key{Public: public}.Fingerprint(),
		Subjects:   []string{"MYORG-MYACCOUNT.BILLING"},
		Algorithms: []string{"RS256"},
		Key:        func(string) crypto.PublicKey { return public },
	})
	defer snowflake.Close()
	statementsURL := snowflake.APIURL()

	ctx := context.Background()
	// config is &gcpjwt.KMSConfig{KeyPath: "projects/.../cryptoKeys/.../cryptoKeyVersions/1"}.
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	keys, err := signer.PublicKeys(ctx)
	if err != nil {
		log.Fatal(err)
	}
	const user = "MYORG-MYACCOUNT.BILLING" // in capitals
	source, err := oauth2.NewTokenSource(ctx, oauth2.Config{
		Signer:  signer,
		Issuer:  user + "." + keys[0].Fingerprint(),
		Subject: user,
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &xoauth2.Transport{Source: source}}

	statement := `{"statement": "SELECT CURRENT_USER()"}`
	// statementsURL is https://MYORG-MYACCOUNT.snowflakecomputing.com/api/v2/statements.
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, statementsURL, strings.NewReader(statement))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Snowflake-Authorization-Token-Type", "KEYPAIR_JWT")
	fmt.Println(do(client, request))
	// Output:
	// 200 OK: hello, MYORG-MYACCOUNT.BILLING
}

// A GitHub App: its JWT is exchanged for a token of an installation.
func ExampleNewTokenSource_gitHubApp() {
	config, public, stop := exampleKey(kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256)
	defer stop()
	server := exampleLogin(testutil.TokenClient{
		ID:           "Iv23liExampleClient",
		Installation: "42",
		Scopes:       []string{"contents"},
		MaxLifetime:  10 * time.Minute,
		Algorithms:   []string{"RS256"},
		Key:          func(string) crypto.PublicKey { return public },
	})
	defer server.Close()
	server.SetClock(-5 * time.Second) // as happens
	gitHub := server.URL()

	ctx := context.Background()
	// config is &gcpjwt.KMSConfig{KeyPath: "projects/.../cryptoKeys/.../cryptoKeyVersions/1"}.
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	app, err := oauth2.NewTokenSource(ctx, oauth2.Config{
		Signer:   signer,
		Issuer:   "Iv23liExampleClient", // the App's client ID
		Lifetime: 9 * time.Minute,       // GitHub takes 10 at most
		Backdate: time.Minute,           // and no iat in its future
	})
	if err != nil {
		log.Fatal(err)
	}
	installation := &gitHubInstallation{
		app: &http.Client{Transport: &xoauth2.Transport{Source: app}, Timeout: 10 * time.Second},
		url: gitHub + "/app/installations/42/access_tokens", // gitHub is https://api.github.com
	}
	client := &http.Client{Transport: &xoauth2.Transport{Source: xoauth2.ReuseTokenSource(nil, installation)}}
	fmt.Println(get(client, gitHub+"/api"))
	// Output:
	// 200 OK: hello, installation 42, with contents
}

// gitHubInstallation gets tokens for an installation of a GitHub App.
type gitHubInstallation struct {
	app *http.Client // sends the App's JWT
	url string
}

func (i *gitHubInstallation) Token() (*xoauth2.Token, error) {
	response, err := i.app.Post(i.url, "application/json", nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("GitHub answered %s", response.Status)
	}
	var answer struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&answer); err != nil {
		return nil, err
	}
	return &xoauth2.Token{AccessToken: answer.Token, Expiry: answer.ExpiresAt}, nil
}

// exampleLogin starts a token endpoint that knows a client.
func exampleLogin(client testutil.TokenClient) *testutil.TokenServer {
	server, err := testutil.NewTokenServer()
	if err != nil {
		log.Fatal(err)
	}
	server.Register(client)
	return server
}

// exampleCertificate returns a certificate for a key in Cloud KMS, and its thumbprint.
func exampleCertificate(public crypto.PublicKey) (*x509.Certificate, string) {
	issuer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "reports"},
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, issuer)
	if err != nil {
		log.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		log.Fatal(err)
	}
	thumbprint := sha256.Sum256(der)
	return certificate, base64.RawURLEncoding.EncodeToString(thumbprint[:])
}
