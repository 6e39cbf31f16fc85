// Appengine is a service for App Engine Standard that signs tokens with the
// identity of its app and verifies them. README.md says how to deploy it.
//
// Elsewhere it runs on an embedded API server, makes one request to each of its
// handlers, and exits; with -serve it waits for yours instead:
//
//	go run ./examples/appengine
//	go run ./examples/appengine -serve
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/appengine/v2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

const (
	// audience is who the tokens are for: this service, under whatever host name.
	audience = "gcpjwt-appengine-example"

	lifetime = 5 * time.Minute
)

// newHandler returns the service. appengine.Middleware puts into each request's
// context what App Engine's APIs need.
func newHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /token", serveToken)
	mux.HandleFunc("GET /verify", serveVerify)
	return appengine.Middleware(mux)
}

// serveToken answers with a new token.
func serveToken(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	account, err := appengine.ServiceAccount(ctx)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, fmt.Errorf("get the app's service account: %w", err))
		return
	}
	now := time.Now()
	token := jwt.NewWithClaims(gcpjwt.SigningMethodAppEngine, jwt.RegisteredClaims{
		Issuer:    account,
		Subject:   "anybody",
		Audience:  jwt.ClaimStrings{audience},
		IssuedAt:  jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(lifetime)),
	})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, fmt.Errorf("sign a token: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/jwt")
	w.Header().Set("Cache-Control", "no-store")
	fmt.Fprintln(w, text)
}

// serveVerify answers with the claims of the bearer token, if it is good.
func serveVerify(w http.ResponseWriter, r *http.Request) {
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		w.Header().Set("WWW-Authenticate", "Bearer")
		fail(w, http.StatusUnauthorized, errors.New("the request has no bearer token"))
		return
	}

	// A Keyfunc for each request costs next to nothing: the certificates are
	// cached for the whole process, for as long as App Engine says, or for an hour
	// if it says nothing. Its context must be the request's, which App
	// Engine's APIs need.
	keyfunc := gcpjwt.AppEngineVerifyKeyfunc(r.Context(), true, time.Hour)
	claims := new(jwt.RegisteredClaims)
	_, err := jwt.ParseWithClaims(text, claims, keyfunc, jwt.WithAudience(audience), jwt.WithExpirationRequired())
	switch {
	case errors.Is(err, gcpjwt.ErrKeysUnavailable):
		// Nothing is known about the token, so this isn't the client's fault.
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, err)
		return
	case err != nil:
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		fail(w, http.StatusUnauthorized, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(claims); err != nil {
		log.Print("write the claims: ", err)
	}
}

// fail tells the log why and the client no more than the status.
func fail(w http.ResponseWriter, status int, err error) {
	log.Printf("%d: %v", status, err)
	http.Error(w, http.StatusText(status), status)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := serve
	if os.Getenv("GAE_ENV") == "" {
		start = func(ctx context.Context) error { return runEmbedded(ctx, os.Args[1:], os.Stdout) }
	}
	if err := start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "appengine:", err)
		stop()
		os.Exit(1)
	}
}
