package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	xoauth2 "golang.org/x/oauth2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// embeddedAccount is the client as a service account of the embedded server.
const embeddedAccount = "reports@test.iam.gserviceaccount.com"

func embeddedIAM(ctx context.Context, stdout io.Writer) error {
	// In memory, as somebody else could take the port during the outage.
	google, err := testutil.NewIAM(testutil.InMemory())
	if err != nil {
		return fmt.Errorf("start the embedded IAM Credentials: %w", err)
	}
	defer google.Close()
	if _, err := google.CreateAccount(embeddedAccount); err != nil {
		return err
	}
	service, err := google.Service(ctx)
	if err != nil {
		return err
	}
	return playIAM(ctx, &gcpjwt.IAMConfig{
		ServiceAccount: embeddedAccount,
		IAMType:        gcpjwt.IAMJwtType,
		EnableCache:    true,
		IAMService:     service,
		Client:         google.Client(),
		CertificateURL: google.CertificateURL(),
	}, google, stdout)
}

// playIAM has a client that is a service account. google is nil if it is the real
// one.
func playIAM(ctx context.Context, config *gcpjwt.IAMConfig, google *testutil.IAM, stdout io.Writer) error {
	client, err := newIAMClient(ctx, config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	log := new(bytes.Buffer)
	server := httptest.NewServer(newHandler(newIAMAuth(ctx, config, newLogger(log))))
	defer server.Close()

	// signJwt won't sign a token that has expired. signBlob signs anything, with
	// the same keys.
	bad, err := badTokens(signer{
		ctx:    gcpjwt.NewIAMContext(ctx, config),
		method: gcpjwt.SigningMethodIAMBlob,
		issuer: config.ServiceAccount,
	})
	if err != nil {
		return err
	}
	before := []step{healthCheck, {what: "good token", client: client, want: http.StatusOK}}
	var after []step
	if google != nil {
		// The server has just been started and has no certificate yet. Once it has,
		// an outage makes no difference.
		stop := func() error { google.Stop(); return nil }
		before = []step{
			healthCheck,
			{what: "good token, outage, no certificate yet", before: stop, client: client, want: http.StatusServiceUnavailable},
			{what: "good token, outage over", before: google.Restart, client: client, want: http.StatusOK, recovering: true},
		}
		after = []step{{what: "good token, outage, certificate known", before: stop, client: client, want: http.StatusOK}}
	}
	s := &stage{"signJwt as " + config.ServiceAccount, server, log, config.ServiceAccount}
	return s.play(ctx, slices.Concat(before, bad, after), stdout)
}

func embeddedKMS(ctx context.Context, stdout io.Writer) error {
	google, err := testutil.NewKMS(testutil.InMemory())
	if err != nil {
		return fmt.Errorf("start the embedded Cloud KMS: %w", err)
	}
	defer google.Close()
	client, err := google.Client(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	version, err := google.CreateKey("reports", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		return err
	}
	cryptoKey, _, _ := strings.Cut(version, "/cryptoKeyVersions/")
	return playKMS(ctx, &gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: client}, google, stdout)
}

// playKMS has a client with a key in Cloud KMS. google is nil if it is the real
// one.
func playKMS(ctx context.Context, config *gcpjwt.KMSConfig, google *testutil.KMS, stdout io.Writer) error {
	client, err := newKMSClient(ctx, config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	log := new(bytes.Buffer)
	auth, err := newKMSAuth(ctx, config, newLogger(log))
	if err != nil {
		return fmt.Errorf("read the public keys: %w", err)
	}
	server := httptest.NewServer(newHandler(auth))
	defer server.Close()

	bad, err := badTokens(signer{
		ctx:    gcpjwt.NewKMSContext(ctx, config),
		method: gcpjwt.SigningMethodKMSES256,
		issuer: issuer,
	})
	if err != nil {
		return err
	}
	before := []step{healthCheck, {what: "good token", client: client, want: http.StatusOK}}
	var after []step
	if google != nil {
		if after, err = rotateInOutage(ctx, config, google, client); err != nil {
			return err
		}
	}
	s := &stage{"ES256 with " + config.KeyPath, server, log, subject}
	return s.play(ctx, slices.Concat(before, bad, after), stdout)
}

// rotateInOutage gives the CryptoKey a new version. The server would read its
// public key on seeing the first token by it, but Cloud KMS won't answer: too
// many others have been reading, and the quota is used up.
//
// Clients that know only the CryptoKey avoid just that, as they let a new version
// rest until servers have read of it. The hasty one has been told to use it.
func rotateInOutage(ctx context.Context, config *gcpjwt.KMSConfig, google *testutil.KMS, client *http.Client) ([]step, error) {
	version, err := google.CreateVersion(config.KeyPath)
	if err != nil {
		return nil, err
	}
	hasty, err := newKMSClient(ctx, &gcpjwt.KMSConfig{KeyPath: version, KMSClient: config.KMSClient})
	if err != nil {
		return nil, fmt.Errorf("make a client with a new version: %w", err)
	}
	begin := func() error {
		google.Intercept(func(context.Context, string, proto.Message, testutil.KMSHandler) (proto.Message, error) {
			return nil, status.Error(codes.ResourceExhausted, "Quota exceeded for quota metric 'Read requests'")
		})
		return nil
	}
	end := func() error { google.Intercept(nil); return nil }
	return []step{
		{what: "good token, outage, version known", before: begin, client: client, want: http.StatusOK},
		{what: "good token, outage, version new", client: hasty, want: http.StatusServiceUnavailable},
		{what: "good token, outage over, version new", before: end, client: hasty, want: http.StatusOK, recovering: true},
	}, nil
}

// signer signs whatever it is told to, which a token source wouldn't.
type signer struct {
	ctx    context.Context // carries the method's configuration
	method jwt.SigningMethod
	issuer string
}

func (s signer) sign(issuer, audience string, expiry time.Duration) (string, error) {
	now := time.Now()
	return gcpjwt.SignedString(s.ctx, jwt.NewWithClaims(s.method, jwt.RegisteredClaims{
		Issuer:    issuer,
		Subject:   subject,
		Audience:  jwt.ClaimStrings{audience},
		IssuedAt:  jwt.NewNumericDate(now.Add(expiry - time.Hour)),
		ExpiresAt: jwt.NewNumericDate(now.Add(expiry)),
	}))
}

// badTokens returns the requests that must not get through.
func badTokens(s signer) ([]step, error) {
	steps := []step{{what: "no token", client: http.DefaultClient, want: http.StatusUnauthorized}}
	for _, bad := range []struct {
		what             string
		issuer, audience string
		expiry           time.Duration
		change           func(token string) string
		want             int
	}{
		{"token for another audience", s.issuer, "https://payroll.example.com", 10 * time.Minute, nil, http.StatusForbidden},
		{"token by another issuer", "https://stranger.example.com", audience, 10 * time.Minute, nil, http.StatusForbidden},
		{"forged token", s.issuer, audience, 10 * time.Minute, forge, http.StatusUnauthorized},
		// An expiry up to 30 seconds ago would be put down to clocks that differ.
		{"expired token", s.issuer, audience, -time.Minute, nil, http.StatusUnauthorized},
	} {
		text, err := s.sign(bad.issuer, bad.audience, bad.expiry)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", bad.what, err)
		}
		if bad.change != nil {
			text = bad.change(text)
		}
		source := xoauth2.StaticTokenSource(&xoauth2.Token{AccessToken: text})
		steps = append(steps, step{what: bad.what, client: newClient(source), want: bad.want})
	}
	return steps, nil
}

// forge changes the payload of a token and leaves its signature as it is.
func forge(token string) string {
	header, rest, _ := strings.Cut(token, ".")
	_, signature, _ := strings.Cut(rest, ".")
	return header + ".eyJzdWIiOiJyb290In0." + signature
}
