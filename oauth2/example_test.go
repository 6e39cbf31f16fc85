package oauth2_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	xoauth2 "golang.org/x/oauth2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/oauth"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/grpcauth"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// An http.Client sends a token that a service account signs with signJwt.
func ExampleJWTAccessTokenSource() {
	google, config := exampleAccount()
	defer google.Close()
	api := exampleAPI(gcpjwt.IAMVerifyKeyfunc(context.Background(), config))
	defer api.Close()

	ctx := context.Background()
	// config is &gcpjwt.IAMConfig{ServiceAccount: "...", IAMType: gcpjwt.IAMJwtType}.
	source, err := oauth2.JWTAccessTokenSource(ctx, config, "https://api.example.com")
	if err != nil {
		log.Fatal(err)
	}
	client := xoauth2.NewClient(ctx, source)
	fmt.Println(get(client, api.URL))
	// Output:
	// 200 OK: hello, api-signer@test.iam.gserviceaccount.com
}

// Tokens signed with a key in Cloud KMS. The transport asks the source for each
// request, so that renewals happen in the background.
func ExampleNewTokenSource() {
	config, _, stop := exampleKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	ctx := context.Background()
	// config is &gcpjwt.KMSConfig{KeyPath: "projects/.../cryptoKeys/..."}.
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	api := exampleAPI(signer.Keyfunc)
	defer api.Close()

	source, err := oauth2.NewTokenSource(ctx, oauth2.Config{
		Signer:   signer,
		Issuer:   "https://billing.example.com",
		Subject:  "billing",
		Audience: []string{"https://api.example.com"},
		Lifetime: 15 * time.Minute,
		Claims:   map[string]any{"scope": "invoices.read"},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &xoauth2.Transport{Source: source}}
	fmt.Println(get(client, api.URL))
	// Output:
	// 200 OK: hello, billing
}

// A gRPC connection sends a token with each RPC.
func ExampleNewTokenSource_gRPC() {
	config, _, stop := exampleKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	ctx := context.Background()
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	address, roots, stopServer := exampleHealthServer(signer.Keyfunc)
	defer stopServer()

	source, err := oauth2.NewTokenSource(ctx, oauth2.Config{
		Signer:   signer,
		Subject:  "billing",
		Audience: []string{"https://api.example.com"},
	})
	if err != nil {
		log.Fatal(err)
	}
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(roots, "")),
		grpc.WithPerRPCCredentials(oauth.TokenSource{TokenSource: source}),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	response, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(response.GetStatus())
	// Output:
	// SERVING
}

// get returns the status and the body of a response.
func get(client *http.Client, url string) string {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	return do(client, request)
}

// do is get for another request.
func do(client *http.Client, request *http.Request) string {
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer client.CloseIdleConnections()
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	return response.Status + ": " + string(body)
}

// exampleAccount returns a configuration of a service account on a test server.
func exampleAccount() (*testutil.IAM, *gcpjwt.IAMConfig) {
	server, err := testutil.NewIAM()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := server.CreateAccount(account); err != nil {
		log.Fatal(err)
	}
	service, err := server.Service(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	return server, &gcpjwt.IAMConfig{
		ServiceAccount: account,
		IAMType:        gcpjwt.IAMJwtType,
		IAMService:     service,
		EnableCache:    true,
		Client:         server.Client(),
		CertificateURL: server.CertificateURL(),
	}
}

// exampleKey returns a configuration of a key on a test server, and its public key.
func exampleKey(algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm) (*gcpjwt.KMSConfig, crypto.PublicKey, func()) {
	server, err := testutil.NewKMS()
	if err != nil {
		log.Fatal(err)
	}
	version, err := server.CreateKey("example", algorithm)
	if err != nil {
		log.Fatal(err)
	}
	client, err := server.Client(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	return &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}, server.PublicKey(version), func() {
		client.Close()
		server.Close()
	}
}

// exampleAPI starts an HTTP server that greets the subject of a good token.
func exampleAPI(keyfunc jwt.Keyfunc) *httptest.Server {
	auth := middleware.New(keyfunc, middleware.WithAudience("https://api.example.com"))
	return httptest.NewServer(auth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := middleware.TokenFromContext(r.Context())
		subject, _ := token.Claims.GetSubject()
		fmt.Fprintf(w, "hello, %s", subject)
	})))
}

// exampleHealthServer starts a gRPC server that serves those with a good token,
// over TLS, without which gRPC sends none.
func exampleHealthServer(keyfunc jwt.Keyfunc) (address string, roots *x509.CertPool, stop func()) {
	web := httptest.NewTLSServer(nil) // for its certificate
	certificate := web.TLS.Certificates[0]
	roots = x509.NewCertPool()
	roots.AddCert(web.Certificate())
	web.Close()

	verifier := middleware.NewVerifier(keyfunc, middleware.WithAudience("https://api.example.com"))
	server := grpc.NewServer(
		grpc.Creds(credentials.NewServerTLSFromCert(&certificate)),
		grpc.UnaryInterceptor(grpcauth.UnaryServerInterceptor(verifier)),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener)
	return listener.Addr().String(), roots, server.Stop
}
