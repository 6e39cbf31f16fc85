// Publish shows a service that signs with a Cloud KMS key and publishes its public keys, and a
// client that knows nothing of it but the issuer's name: it finds the keys by OpenID
// discovery. Meanwhile the key is rotated, once, and the client refuses no token.
//
//	go run ./examples/publish
//
// It runs on an embedded Cloud KMS server and fails if a good token was refused, or one by the
// disabled version accepted for longer than promised. KeyRefresh and max-age are very short
// here, so that the show is too. Their defaults are five minutes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

const (
	audience = "https://api.example.com"

	keyRefresh = 200 * time.Millisecond
	maxAge     = time.Second

	// activationDelay has each version published for long enough before it signs.
	activationDelay = maxAge + keyRefresh
)

// service returns the handler of an issuer: its documents, and a token for whoever asks, which
// a real one would give to its users only.
func service(ctx context.Context, issuer string, config *gcpjwt.KMSConfig) (http.Handler, error) {
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", jwks.NewDiscoveryHandler(issuer, signer, jwks.WithMaxAge(maxAge)))
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		token, err := signer.Sign(r.Context(), jwt.RegisteredClaims{
			Issuer: issuer, Subject: "somebody", Audience: jwt.ClaimStrings{audience},
			IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Minute)),
		})
		if err != nil {
			http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, token)
	})
	return mux, nil
}

// A client verifies tokens of an issuer.
type client struct {
	parser  *jwt.Parser
	keyfunc jwt.Keyfunc
}

func newClient(ctx context.Context, issuer string) (*client, error) {
	keyfunc, err := jwks.NewKeyfunc(ctx, &jwks.Config{Issuer: issuer})
	if err != nil {
		return nil, err
	}
	parser := jwt.NewParser(jwt.WithIssuer(issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired())
	return &client{parser, keyfunc}, nil
}

// verify returns the kid of a token.
func (c *client) verify(text string) (kid string, err error) {
	token, err := c.parser.ParseWithClaims(text, &jwt.RegisteredClaims{}, c.keyfunc)
	if err != nil {
		return "", err
	}
	kid, _ = token.Header["kid"].(string)
	return kid, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "publish:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	key, err := startEmbedded(ctx)
	if err != nil {
		return err
	}
	defer key.close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	issuer := "http://" + listener.Addr().String()
	handler, err := service(ctx, issuer, &gcpjwt.KMSConfig{
		KeyPath: key.name, KMSClient: key.client, KeyRefresh: keyRefresh, ActivationDelay: activationDelay,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler}
	defer server.Close()
	go func() { _ = server.Serve(listener) }() // its only end is Close
	return show(ctx, out, issuer, key.name, key.client)
}

// show is what happens.
func show(ctx context.Context, out io.Writer, issuer, key string, admin *kms.KeyManagementClient) error {
	c, err := newClient(ctx, issuer)
	if err != nil {
		return err
	}
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%5.1f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	names := map[string]int{ // of versions, by kid
		gcpjwt.KMSKeyID(key + "/cryptoKeyVersions/1"): 1,
		gcpjwt.KMSKeyID(key + "/cryptoKeyVersions/2"): 2,
	}

	first, err := request(ctx, issuer)
	if err != nil {
		return err
	}
	kid, err := c.verify(first)
	if err != nil {
		return err
	}
	say("client accepts a token by version %d, whose key it found by the name of %s", names[kid], issuer)
	tokens := 0
	// next has the client verify tokens until done.
	next := func(done func() bool) error {
		for deadline := time.Now().Add(time.Minute); !done(); tokens++ {
			if time.Now().After(deadline) {
				return errors.New("version 2 doesn't sign")
			}
			text, err := request(ctx, issuer)
			if err != nil {
				return err
			}
			if kid, err = c.verify(text); err != nil {
				return fmt.Errorf("a good token was refused: %w", err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}
	// By then version 1 has been published for long enough itself.
	if err := next(func() bool { return time.Since(began) > activationDelay }); err != nil {
		return err
	}

	if _, err := admin.CreateCryptoKeyVersion(ctx, &kmspb.CreateCryptoKeyVersionRequest{
		Parent: key, CryptoKeyVersion: &kmspb.CryptoKeyVersion{},
	}); err != nil {
		return err
	}
	say("operator creates version 2: it is published now, and signs in %v", activationDelay)
	if err := next(func() bool { return names[kid] == 2 }); err != nil {
		return err
	}
	say("client accepts a token by version 2: of %d tokens it refused none", tokens)

	if _, err := c.verify(first); err != nil {
		return fmt.Errorf("a good token was refused: %w", err)
	}
	if _, err := admin.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
		CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: key + "/cryptoKeyVersions/1", State: kmspb.CryptoKeyVersion_DISABLED},
		UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
	}); err != nil {
		return err
	}
	disabled := time.Now()
	say("operator disables version 1: its tokens count for %v more at most", maxAge+keyRefresh)
	for {
		asked := time.Now()
		_, err := c.verify(first)
		if errors.Is(err, jwks.ErrUnknownKeyID) {
			break
		}
		if err != nil {
			return err
		}
		if asked.Sub(disabled) > maxAge+keyRefresh {
			return errors.New("a token by a disabled version was accepted for too long")
		}
		time.Sleep(5 * time.Millisecond)
	}
	say("client refuses the token by version 1")
	return nil
}

// request gets a token of the service.
func request(ctx context.Context, issuer string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, issuer+"/token", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the service answered %s", response.Status)
	}
	return string(text), err
}
