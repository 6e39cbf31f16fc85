package documents_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	gcpoauth2 "github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// The functions here hold the snippets of the documents, which TestSnippets
// finds by their lines, and the tests run them.

func readmeVerify(ctx context.Context, config *gcpjwt.KMSConfig, text string) error {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config) // once per process; ctx must live as long: no timeout
	if err != nil {
		return err
	}
	token, err := jwt.Parse(text, keyfunc, jwt.WithIssuer("https://issuer.example.com"),
		jwt.WithAudience("https://api.example.com"), jwt.WithExpirationRequired())
	if err == nil && !token.Valid {
		return jwt.ErrTokenUnverifiable
	}
	return err
}

func readmeTokenSource(ctx context.Context, config *gcpjwt.KMSConfig) (*http.Client, error) {
	source, err := gcpoauth2.NewTokenSource(gcpjwt.NewKMSContext(ctx, config), gcpoauth2.Config{
		Method:   gcpjwt.SigningMethodKMSES256,
		Issuer:   "https://issuer.example.com",
		Audience: []string{"https://api.example.com"},
	})
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &oauth2.Transport{Source: source}}
	return client, nil
}

func readmeMiddleware(keyfunc jwt.Keyfunc) http.Handler {
	auth := middleware.New(keyfunc,
		middleware.WithIssuer("https://issuer.example.com"),
		middleware.WithAudience("https://api.example.com"))
	mux := http.NewServeMux()
	mux.Handle("GET /hello", auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := middleware.TokenFromContext(r.Context())
		fmt.Fprintln(w, token.Header["kid"])
	})))
	return mux
}

func TestReadmeKMS(t *testing.T) {
	server, client := start.KMS(t)
	key := systest.CryptoKeyOf(systest.CreateKey(t, server, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256))
	config := &gcpjwt.KMSConfig{KeyPath: key, KMSClient: client}

	httpClient, err := readmeTokenSource(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(readmeMiddleware(keyfunc))
	defer web.Close()
	response, err := httpClient.Get(web.URL + "/hello")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if want := config.KeyID() + "\n"; err != nil || response.StatusCode != http.StatusOK || string(body) != want {
		t.Errorf("the middleware answered %s %q, %v; want 200 %q", response.Status, body, err, want)
	}

	source := httpClient.Transport.(*oauth2.Transport).Source
	token, err := source.Token()
	if err != nil {
		t.Fatal(err)
	}
	if err := readmeVerify(t.Context(), config, token.AccessToken); err != nil {
		t.Error(err)
	}
	if err := readmeVerify(t.Context(), config, token.AccessToken[1:]); !errors.Is(err, jwt.ErrTokenMalformed) {
		t.Errorf("a token that begins in the middle: %v, want %v", err, jwt.ErrTokenMalformed)
	}
}

func readmeIAM(ctx context.Context) (jwt.Keyfunc, *gcpjwt.IAMConfig) {
	config := &gcpjwt.IAMConfig{
		ServiceAccount: "api-signer@my-project.iam.gserviceaccount.com",
		EnableCache:    true,
	}
	keyfunc := gcpjwt.IAMVerifyKeyfunc(ctx, config) // ctx must live as long: no timeout
	return keyfunc, config
}

func TestReadmeIAM(t *testing.T) {
	server, reachable := start.IAM(t)
	_, config := readmeIAM(t.Context())
	if _, err := server.CreateAccount(config.ServiceAccount); err != nil {
		t.Fatal(err)
	}
	config.IAMService, config.Client, config.CertificateURL = reachable.IAMService, reachable.Client, reachable.CertificateURL
	text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMBlob, nil)
	for range 3 {
		if _, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); err != nil {
			t.Fatal(err)
		}
	}
	if got := server.Calls("certificates"); got != 1 {
		t.Errorf("three verifications fetched certificates %d times, want once", got)
	}
}

func TestReadmeWithoutGoogleCloud(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keyfunc := func(*jwt.Token) (any, error) { return key.Public(), nil }
	text, err := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": "https://issuer.example.com", "aud": "https://api.example.com", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodGet, "/hello", nil)
	request.Header.Set("Authorization", "Bearer "+text)
	recorder := httptest.NewRecorder()
	readmeMiddleware(keyfunc).ServeHTTP(recorder, request)
	if recorder.Code != http.StatusOK {
		t.Errorf("the middleware answered %d, want 200", recorder.Code)
	}
}

func rotationVerifier(ctx context.Context, client *kms.KeyManagementClient, key string, logger *slog.Logger) (jwt.Keyfunc, error) {
	config := &gcpjwt.KMSConfig{
		KMSClient:  client,
		KeyPath:    key, // projects/P/locations/L/keyRings/R/cryptoKeys/K
		KeyRefresh: time.Minute,
		Logger:     logger,
	}
	return gcpjwt.KMSVerifyKeyfunc(ctx, config)
}

func TestRotationSnippet(t *testing.T) {
	server, client := start.KMS(t)
	version := systest.CreateKey(t, server, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	keyfunc, err := rotationVerifier(t.Context(), client, systest.CryptoKeyOf(version), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// The signer stays at its version, as ROTATION.md has it for a new key that
	// must not sign at once.
	pinned := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	text := systest.Sign(t, gcpjwt.NewKMSContext(t.Context(), pinned), gcpjwt.SigningMethodKMSES256, nil)
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		t.Error(err)
	}
}
