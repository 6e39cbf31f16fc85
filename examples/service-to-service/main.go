// Service-to-service has one service call another over HTTP. Each request of the
// client carries a token that Google Cloud signed; the server lets only good
// tokens through. That happens twice: first the client is a service account,
// whose tokens signJwt signs with keys that Google holds and rotates, then it
// has an ES256 key in Cloud KMS.
//
// Others try their luck as well, with tokens for somebody else, forged ones and
// expired ones, and Google's servers have an outage. A table shows what each
// request got, and the server's log why. The program fails if a request got
// anything but what it should.
//
// Without flags it needs no Google Cloud project: it starts servers on loopback
// that speak Google's protocols and hold real keys.
//
//	go run ./examples/service-to-service
//
// With flags it does the same on Google Cloud, but for the outages, with
// Application Default Credentials (gcloud auth application-default login). They
// need roles/iam.serviceAccountTokenCreator on the account, or
// roles/cloudkms.signerVerifier and, for a CryptoKey, roles/cloudkms.viewer on
// the key:
//
//	go run ./examples/service-to-service -kms projects/P/locations/L/keyRings/R/cryptoKeys/K
//	go run ./examples/service-to-service -service-account NAME@P.iam.gserviceaccount.com
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"time"

	xoauth2 "golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

const (
	// audience is the server, under the name that clients and server agree on.
	audience = "https://invoices.example.com"

	// issuer and subject are the client, where it signs with Cloud KMS. A service
	// account has its email address for both.
	issuer  = "https://reports.example.com"
	subject = "reports"
)

// newIAMClient returns a client whose tokens a service account signs. config has
// the account, and IAMJwtType (or IAMBlobType) as its IAMType.
func newIAMClient(ctx context.Context, config *gcpjwt.IAMConfig) (*http.Client, error) {
	source, err := oauth2.JWTAccessTokenSource(ctx, config, audience)
	if err != nil {
		return nil, err
	}
	return newClient(source), nil
}

// newKMSClient returns a client whose tokens are signed with a key in Cloud KMS.
func newKMSClient(ctx context.Context, config *gcpjwt.KMSConfig) (*http.Client, error) {
	source, err := oauth2.NewTokenSource(gcpjwt.NewKMSContext(ctx, config), oauth2.Config{
		Method:   gcpjwt.SigningMethodKMSES256,
		Issuer:   issuer,
		Subject:  subject,
		Audience: []string{audience},
		Lifetime: 15 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	return newClient(source), nil
}

// newClient puts a source into an oauth2.Transport, which asks it for a token
// with each request, so that the source renews it in time. Don't let such a
// client call anybody but the audience: whoever gets a token can use it.
func newClient(source xoauth2.TokenSource) *http.Client {
	return &http.Client{
		Transport: &xoauth2.Transport{Source: source},
		Timeout:   15 * time.Second, // the server may wait for keys for 10 seconds
	}
}

// newIAMAuth returns middleware for tokens that a service account signed. config
// has the account, and EnableCache, or else each request would fetch the
// account's certificates. (middleware.NewHandler is a shorter way to the same,
// without the log.)
func newIAMAuth(ctx context.Context, config *gcpjwt.IAMConfig, logger *slog.Logger) func(http.Handler) http.Handler {
	return middleware.New(gcpjwt.IAMVerifyKeyfunc(ctx, config),
		middleware.WithAudience(audience),
		middleware.WithIssuer(config.ServiceAccount),
		middleware.WithErrorHandler(refuse(logger)))
}

// newKMSAuth returns middleware for tokens that were signed with a key in Cloud
// KMS. It reads the public keys, so the server starts only if that can be done.
func newKMSAuth(ctx context.Context, config *gcpjwt.KMSConfig, logger *slog.Logger) (func(http.Handler) http.Handler, error) {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	if err != nil {
		return nil, err
	}
	return middleware.New(keyfunc,
		middleware.WithAudience(audience),
		middleware.WithIssuer(issuer),
		middleware.WithErrorHandler(refuse(logger))), nil
}

// newHandler returns the server: everything below /api/ needs a token, the
// health check doesn't.
func newHandler(auth func(http.Handler) http.Handler) http.Handler {
	api := http.NewServeMux()
	api.HandleFunc("GET /api/hello", hello)

	mux := http.NewServeMux()
	mux.Handle("/api/", auth(api))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	return mux
}

// hello knows its caller by the token, which the middleware has verified.
func hello(w http.ResponseWriter, r *http.Request) {
	token, ok := middleware.TokenFromContext(r.Context())
	if !ok { // somebody took the middleware away
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	caller, _ := token.Claims.GetSubject()
	fmt.Fprintf(w, "hello, %s\n", caller)
}

// refuse answers as the middleware does by itself, and tells the log why. The
// client learns no more than the status: what exactly is wrong with a token helps
// those most who are making one up.
func refuse(logger *slog.Logger) func(http.ResponseWriter, *http.Request, error) {
	return func(w http.ResponseWriter, r *http.Request, err error) {
		middleware.Respond(w, r, err)
		logger.WarnContext(r.Context(), "refused", "path", r.URL.Path, "reason", err)
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "service-to-service:", err)
		stop()
		os.Exit(1)
	}
}
