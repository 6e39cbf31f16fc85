package documents_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/grpcauth"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	gcpoauth2 "github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// The functions here hold the snippets of the documents, which TestSnippets
// finds by their lines, and the tests run them.

func readmeVerify(ctx context.Context, config *gcpjwt.KMSConfig, text string) error {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config) // once per process
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

func readmeTokenSource(ctx context.Context, signer *gcpjwt.Signer) (*http.Client, error) {
	source, err := gcpoauth2.NewTokenSource(ctx, gcpoauth2.Config{
		Signer:   signer,
		Issuer:   "https://issuer.example.com",
		Audience: []string{"https://api.example.com"},
	})
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &oauth2.Transport{Source: source}}
	return client, nil
}

func readmeMiddleware(signer interface {
	Keyfunc(token *jwt.Token) (any, error)
}) http.Handler {
	auth := middleware.New(signer.Keyfunc,
		middleware.WithIssuer("https://issuer.example.com"),
		middleware.WithAudience("https://api.example.com"))
	mux := http.NewServeMux()
	mux.Handle("GET /hello", auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := middleware.TokenFromContext(r.Context())
		fmt.Fprintln(w, token.Header["alg"])
	})))
	return mux
}

func readmeGRPC(keyfunc jwt.Keyfunc) *grpc.Server {
	verifier := middleware.NewVerifier(keyfunc,
		middleware.WithIssuer("https://issuer.example.com"),
		middleware.WithAudience("https://api.example.com"))
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpcauth.UnaryServerInterceptor(verifier)),
		grpc.ChainStreamInterceptor(grpcauth.StreamServerInterceptor(verifier)))
	return server
}

func readmePublish(mux *http.ServeMux, signer *gcpjwt.Signer) {
	mux.Handle("/", jwks.NewDiscoveryHandler("https://issuer.example.com", signer))
}

func readmeDiscover(ctx context.Context) (jwt.Keyfunc, error) {
	keyfunc, err := jwks.NewKeyfunc(ctx, &jwks.Config{Issuer: "https://issuer.example.com"})
	return keyfunc, err
}

func guideSigner(ctx context.Context, config *gcpjwt.KMSConfig, claims jwt.Claims) error {
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		return err
	}
	text, err := signer.Sign(ctx, claims)
	if err == nil && text == "" {
		return jwt.ErrTokenMalformed
	}
	return err
}

type tokenMaker interface {
	Sign(ctx context.Context, claims jwt.Claims) (string, error)
}

var _ tokenMaker = (*gcpjwt.Signer)(nil)

func TestGreeter(t *testing.T) {
	signer := gcpjwttest.NewSigner(t)
	text, err := signer.Sign(t.Context(), jwt.MapClaims{"sub": "alice"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jwt.Parse(text, signer.Keyfunc); err != nil {
		t.Error(err)
	}
}

func guideGRPC(ctx context.Context) (*grpc.Server, error) {
	keyfunc, err := jwks.NewKeyfunc(ctx, &jwks.Config{Issuer: "https://issuer.example.com"})
	if err != nil {
		return nil, err
	}
	verifier := middleware.NewVerifier(keyfunc,
		middleware.WithIssuer("https://issuer.example.com"),
		middleware.WithAudience("https://api.example.com"))
	open := grpcauth.WithSkip(func(method string) bool { // asked without a token
		return method == healthpb.Health_Check_FullMethodName || method == healthpb.Health_Watch_FullMethodName
	})
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpcauth.UnaryServerInterceptor(verifier, open)),
		grpc.ChainStreamInterceptor(grpcauth.StreamServerInterceptor(verifier, open)))
	return server, nil
}

func guideScopes(keyfunc jwt.Keyfunc) grpc.UnaryServerInterceptor {
	issuer := middleware.WithIssuer("https://issuer.example.com")
	audience := middleware.WithAudience("https://api.example.com")
	read := grpcauth.UnaryServerInterceptor(middleware.NewVerifier(keyfunc, issuer, audience,
		middleware.WithScope("invoices.read")))
	pay := grpcauth.UnaryServerInterceptor(middleware.NewVerifier(keyfunc, issuer, audience,
		middleware.WithScope("invoices.pay")))
	byMethod := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if info.FullMethod == "/invoices.v1.Invoices/Pay" {
			return pay(ctx, req, info, handler)
		}
		return read(ctx, req, info, handler)
	}
	return byMethod
}

// Each method takes a token with its own scope, and no other.
func TestGuideScopes(t *testing.T) {
	signer := gcpjwttest.NewSigner(t)
	byMethod := guideScopes(signer.Keyfunc)
	for _, scope := range []string{"invoices.read", "invoices.pay"} {
		text, err := signer.Sign(t.Context(), jwt.MapClaims{
			"iss": "https://issuer.example.com", "aud": "https://api.example.com",
			"exp": time.Now().Add(time.Hour).Unix(), "scope": scope,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+text))
		for method, needed := range map[string]string{"Get": "invoices.read", "Pay": "invoices.pay"} {
			info := &grpc.UnaryServerInfo{FullMethod: "/invoices.v1.Invoices/" + method}
			_, err := byMethod(ctx, nil, info, func(context.Context, any) (any, error) { return nil, nil })
			want := codes.OK
			if scope != needed {
				want = codes.PermissionDenied
			}
			if status.Code(err) != want || errors.Is(err, middleware.ErrInsufficientScope) != (want != codes.OK) {
				t.Errorf("%s with scope %s: %v, want %v", method, scope, err, want)
			}
		}
	}
}

func newIssuer(ctx context.Context, issuer string, config *gcpjwt.KMSConfig) (http.Handler, error) {
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, err := signer.PublicKeys(ctx); err != nil { // to have them when an outage comes
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/.well-known/", jwks.NewDiscoveryHandler(issuer, signer))
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		user := "alice" // find out who asks, before you give out tokens
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		text, err := signer.Sign(ctx, jwt.RegisteredClaims{
			Issuer:    issuer,
			Subject:   user,
			Audience:  jwt.ClaimStrings{"https://api.example.com"},
			ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
		})
		if err != nil {
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, text)
	})
	return mux, nil
}

func guideConfig() *gcpjwt.KMSConfig {
	config := &gcpjwt.KMSConfig{
		KeyPath:         os.Getenv("KMS_KEY"),
		ActivationDelay: 15 * time.Minute, // KeyRefresh + Envoy's cache_duration + 5 minutes to spare
	}
	return config
}

// The service for Envoy, with the guide's server for gRPC in Envoy's place: the health check
// is open, everything else needs a token of the service's.
func TestGuideIssuer(t *testing.T) {
	config := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	handler, err := newIssuer(t.Context(), "https://issuer.example.com", config)
	if err != nil {
		t.Fatal(err)
	}
	// The guide's server finds the issuer with http.DefaultClient.
	defer func(before *http.Client) { http.DefaultClient = before }(http.DefaultClient)
	http.DefaultClient = &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, r)
		return recorder.Result(), nil
	})}
	server, err := guideGRPC(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	text := string(systest.Body(handler, httptest.NewRequest(http.MethodPost, "/token", nil)))
	client := healthpb.NewHealthClient(conn)
	if _, err := client.Check(t.Context(), new(healthpb.HealthCheckRequest)); err != nil {
		t.Errorf("the health check, which needs no token: %v", err)
	}
	if _, err := client.List(t.Context(), new(healthpb.HealthListRequest)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: got %v, want %v", err, codes.Unauthenticated)
	}
	if _, err := client.List(withToken(t.Context(), text), new(healthpb.HealthListRequest)); err != nil {
		t.Errorf("with a token: %v", err)
	}
}

// withToken lets a call carry a token, also without TLS.
func withToken(ctx context.Context, text string) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+text)
	return ctx
}

// The snippets that publish keys and find them, together: the issuer is reached through a
// transport that knows where it is.
func TestReadmePublish(t *testing.T) {
	signer := gcpjwttest.NewSigner(t)
	mux := http.NewServeMux()
	readmePublish(mux, signer)
	recorder := httptest.NewRecorder()
	mux.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/.well-known/jwks.json", nil))
	keys, err := jwks.Parse(recorder.Body.Bytes())
	if err != nil || len(keys) != 1 {
		t.Errorf("published %v, %v, want one key", keys, err)
	}
	if _, err := readmeDiscover(t.Context()); err != nil {
		t.Error(err)
	}
	readmeGRPC(signer.Keyfunc).Stop()
}

func TestReadmeKMS(t *testing.T) {
	config := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)

	if err := guideSigner(t.Context(), config, jwt.MapClaims{"sub": "alice"}); err != nil {
		t.Fatal(err)
	}
	signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	httpClient, err := readmeTokenSource(t.Context(), signer)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	web := httptest.NewServer(readmeMiddleware(signer))
	defer web.Close()
	response, err := httpClient.Get(web.URL + "/hello")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if want := "ES256\n"; err != nil || response.StatusCode != http.StatusOK || string(body) != want {
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
	keyfunc := gcpjwt.IAMVerifyKeyfunc(ctx, config)
	return keyfunc, config
}

func TestReadmeIAM(t *testing.T) {
	server := gcpjwttest.NewIAM(t)
	_, config := readmeIAM(t.Context())
	reachable := server.NewAccount(config.ServiceAccount)
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
	signer := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	keyfunc, err := rotationVerifier(t.Context(), signer.KMSClient, signer.KeyPath, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// The signer stays at its version, as ROTATION.md has it for a new key that
	// must not sign at once.
	signer.KeyPath += "/cryptoKeyVersions/1"
	text := systest.Sign(t, gcpjwt.NewKMSContext(t.Context(), signer), gcpjwt.SigningMethodKMSES256, nil)
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		t.Error(err)
	}
}
