// Migrated is a program written for gcp-jwt-go v2 (tokens.go) with the changes
// that docs/MIGRATION.md names, and no others. It runs on servers on loopback that
// speak Google's protocols:
//
//	go run ./examples/migrated
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run calls everything in tokens.go, and fails if it doesn't do what it did with v2.
func run(ctx context.Context, out io.Writer) error {
	kmsServer, err := testutil.NewKMS()
	if err != nil {
		return err
	}
	defer kmsServer.Close()
	client, err := kmsServer.Client(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	version, err := kmsServer.CreateKey("sessions", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		return err
	}

	iamServer, err := testutil.NewIAM()
	if err != nil {
		return err
	}
	defer iamServer.Close()
	service, err := iamServer.Service(ctx)
	if err != nil {
		return err
	}
	const account = "api-signer@test.iam.gserviceaccount.com"
	if _, err := iamServer.CreateAccount(account); err != nil {
		return err
	}

	// A v2 program has these, less what points at the servers above.
	kmsConfig := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	iamConfig := &gcpjwt.IAMConfig{
		ServiceAccount: account,
		IAMType:        gcpjwt.IAMBlobType,
		EnableCache:    true,
		IAMService:     service,
		Client:         iamServer.Client(),
		CertificateURL: iamServer.CertificateURL(),
	}

	if err := sessions(ctx, out, kmsConfig); err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if err := invitations(ctx, out, iamConfig); err != nil {
		return fmt.Errorf("invitation: %w", err)
	}
	if err := services(ctx, out, iamConfig); err != nil {
		return fmt.Errorf("service to service: %w", err)
	}
	return nil
}

func sessions(ctx context.Context, out io.Writer, config *gcpjwt.KMSConfig) error {
	text, err := session(ctx, config, "alice")
	if err != nil {
		return err
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	if err != nil {
		return err
	}
	user, err := userOf(keyfunc, text)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "session of", user)
	return nil
}

func invitations(ctx context.Context, out io.Writer, config *gcpjwt.IAMConfig) error {
	text, err := invite(ctx, config, "bob@example.com")
	if err != nil {
		return err
	}
	token, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(ctx, config))
	if err != nil {
		return err
	}
	subject, err := token.Claims.GetSubject()
	fmt.Fprintln(out, "invitation of", subject)
	return err
}

func services(ctx context.Context, out io.Writer, config *gcpjwt.IAMConfig) error {
	server := httptest.NewServer(protect(ctx, config, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer server.Close()
	client, err := newClient(ctx, config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for name, c := range map[string]*http.Client{"signed": client, "unsigned": server.Client()} {
		response, err := c.Get(server.URL)
		if err != nil {
			return err
		}
		response.Body.Close()
		if allowed := response.StatusCode == http.StatusOK; allowed != (c == client) {
			return fmt.Errorf("the %s request was answered %s", name, response.Status)
		}
	}
	fmt.Fprintln(out, "requests are let through if they are signed")
	return nil
}
