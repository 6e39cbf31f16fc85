package grpcauth_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/oauth"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/grpcauth"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// A client whose tokens Cloud KMS signs, and a server that wants one for everything but
// its health check, over TLS.
func Example() {
	ctx := context.Background()
	config, serverTLS, clientTLS, stop := exampleServers(ctx) // a key in Cloud KMS, and a certificate
	defer stop()

	// The server.
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	verifier := middleware.NewVerifier(keyfunc,
		middleware.WithIssuer("https://reports.example.com"),
		middleware.WithAudience("https://invoices.example.com"),
	)
	skip := grpcauth.WithSkip(func(method string) bool { return method == healthpb.Health_Check_FullMethodName })
	server := grpc.NewServer(
		grpc.Creds(serverTLS),
		grpc.ChainUnaryInterceptor(grpcauth.UnaryServerInterceptor(verifier, skip)),
		grpc.ChainStreamInterceptor(grpcauth.StreamServerInterceptor(verifier, skip)),
	)
	server.RegisterService(service, nil) // its methods return the token's subject
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Stop()

	// The client. The source renews its token in time, and signs once for any number of
	// calls.
	source, err := oauth2.NewTokenSource(gcpjwt.NewKMSContext(ctx, config), oauth2.Config{
		Method:   gcpjwt.SigningMethodKMSES256,
		Issuer:   "https://reports.example.com",
		Subject:  "reports",
		Audience: []string{"https://invoices.example.com"},
	})
	if err != nil {
		log.Fatal(err)
	}
	conn, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(clientTLS),
		grpc.WithPerRPCCredentials(oauth.TokenSource{TokenSource: source}),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println(callUnary(ctx, conn))
	fmt.Println(callStream(ctx, conn))

	// Somebody without a token.
	stranger, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(clientTLS))
	if err != nil {
		log.Fatal(err)
	}
	defer stranger.Close()
	_, err = callUnary(ctx, stranger)
	fmt.Println(err)
	state, err := healthpb.NewHealthClient(stranger).Check(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(state.GetStatus(), err)
	// Output:
	// reports <nil>
	// reports <nil>
	// rpc error: code = Unauthenticated desc = Unauthenticated
	// SERVING <nil>
}

// exampleServers has an ES256 key on a server that stands for Cloud KMS, and both ends'
// credentials for TLS.
func exampleServers(ctx context.Context) (*gcpjwt.KMSConfig, credentials.TransportCredentials, credentials.TransportCredentials, func()) {
	google, err := testutil.NewKMS()
	if err != nil {
		log.Fatal(err)
	}
	client, err := google.Client(ctx)
	if err != nil {
		log.Fatal(err)
	}
	version, err := google.CreateKey("key", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		log.Fatal(err)
	}
	web := httptest.NewTLSServer(http.NotFoundHandler())
	defer web.Close()
	return &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client},
		credentials.NewServerTLSFromCert(&web.TLS.Certificates[0]),
		credentials.NewTLS(web.Client().Transport.(*http.Transport).TLSClientConfig),
		func() {
			client.Close()
			google.Close()
		}
}
