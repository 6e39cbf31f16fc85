package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	xoauth2 "golang.org/x/oauth2"
	"google.golang.org/grpc/codes"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// embedded plays on a Cloud KMS of its own.
func embedded(ctx context.Context, stdout io.Writer) (err error) {
	google, err := testutil.NewKMS()
	if err != nil {
		return fmt.Errorf("start the embedded Cloud KMS: %w", err)
	}
	defer google.Close()
	client, err := google.Client(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	version, err := google.CreateKey("reports", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		return err
	}
	cryptoKey, _, _ := strings.Cut(version, "/cryptoKeyVersions/")
	return play(ctx, &gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: client}, google, stdout)
}

// scenes are the calls of the program.
func scenes(ctx context.Context, config *gcpjwt.KMSConfig, google *testutil.KMS) ([]step, error) {
	source, err := newSource(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	services := "grpc.health.v1.Health grpc.reflection.v1.ServerReflection invoices.v1.Invoices"
	steps := []step{
		{what: "health check, no token", call: healthCall, answer: "SERVING"},
		{what: "reflection, no token", call: reflectionCall, answer: services},
		{what: "good token", source: source, call: getCall, answer: "invoice 7 for " + subject},
		{what: "good token", source: source, call: listCall, answer: "3 invoices"},
		{what: "good token", source: source, call: thousandCalls, answer: "1,000 invoices"},
		{what: "no token", call: getCall, want: codes.Unauthenticated},
		{what: "no token", call: listCall, want: codes.Unauthenticated},
	}
	bad, err := badTokens(gcpjwt.NewKMSContext(ctx, config))
	if err != nil {
		return nil, err
	}
	steps = append(steps, bad...)
	if google != nil {
		after, err := rotateWithoutPermission(ctx, config, google, source)
		if err != nil {
			return nil, err
		}
		steps = append(steps, after...)
	}
	return steps, nil
}

// badTokens returns the calls that must not get through.
func badTokens(ctx context.Context) ([]step, error) {
	var steps []step
	for _, bad := range []struct {
		what             string
		issuer, audience string
		expiry           time.Duration
		change           func(token string) string
		want             codes.Code
	}{
		{"token for another audience", issuer, "https://payroll.example.com", 10 * time.Minute, nil, codes.PermissionDenied},
		{"token by another issuer", "https://stranger.example.com", audience, 10 * time.Minute, nil, codes.PermissionDenied},
		{"forged token", issuer, audience, 10 * time.Minute, forge, codes.Unauthenticated},
		// An expiry up to 30 seconds ago would be put down to clocks that differ.
		{"expired token", issuer, audience, -time.Minute, nil, codes.Unauthenticated},
	} {
		text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, jwt.RegisteredClaims{
			Issuer:    bad.issuer,
			Subject:   subject,
			Audience:  jwt.ClaimStrings{bad.audience},
			ExpiresAt: jwt.NewNumericDate(time.Now().Add(bad.expiry)),
		}))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", bad.what, err)
		}
		if bad.change != nil {
			text = bad.change(text)
		}
		source := xoauth2.StaticTokenSource(&xoauth2.Token{AccessToken: text})
		for _, call := range []call{getCall, listCall} {
			steps = append(steps, step{what: bad.what, source: source, call: call, want: bad.want})
		}
	}
	return steps, nil
}

// forge changes the payload of a token and leaves its signature as it is.
func forge(token string) string {
	header, rest, _ := strings.Cut(token, ".")
	_, signature, _ := strings.Cut(rest, ".")
	return header + ".eyJzdWIiOiJyb290In0." + signature
}

// rotateWithoutPermission gives the CryptoKey a new version after the server has lost the
// permission to list versions. The server would read the new public key on seeing the
// first token by it, and can't; what it knows already goes on working.
func rotateWithoutPermission(ctx context.Context, config *gcpjwt.KMSConfig, google *testutil.KMS, source xoauth2.TokenSource) ([]step, error) {
	version, err := google.CreateVersion(config.KeyPath)
	if err != nil {
		return nil, err
	}
	hasty, err := newSource(ctx, &gcpjwt.KMSConfig{KeyPath: version, KMSClient: config.KMSClient})
	if err != nil {
		return nil, fmt.Errorf("make a client with a new version: %w", err)
	}
	deny := func() error {
		google.Deny("cloudkms.cryptoKeyVersions.list")
		return nil
	}
	return []step{
		{what: "good token, no permission, version known", before: deny, source: source, call: getCall, answer: "invoice 7 for " + subject},
		{what: "good token, no permission, version new", source: hasty, call: getCall, want: codes.Unavailable},
		{what: "good token, no permission, version new", source: hasty, call: listCall, want: codes.Unavailable},
	}, nil
}
