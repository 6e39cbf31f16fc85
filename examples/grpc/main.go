// Grpc has one service call another over gRPC and TLS. Each call of the client carries
// a token that a key in Cloud KMS signed; the server lets only good tokens through, but
// for its health check and reflection, which need none. There is a unary call and a
// stream.
//
// Others try their luck as well, with tokens for somebody else, forged ones and
// expired ones, and the server loses a permission. A table shows what each call got, and the
// server's log why. The program fails if a call got anything but what it should.
//
// Without flags it needs no Google Cloud project: it starts a server on loopback that
// speaks Cloud KMS's protocol and holds a real key.
//
//	go run ./examples/grpc
//
// With a key of algorithm EC_SIGN_P256_SHA256 it does the same on Google Cloud, but for
// the lost permission, with Application Default Credentials (gcloud auth application-default
// login). They need roles/cloudkms.signerVerifier and, for a CryptoKey,
// roles/cloudkms.viewer on the key:
//
//	go run ./examples/grpc -kms projects/P/locations/L/keyRings/R/cryptoKeys/K
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	xoauth2 "golang.org/x/oauth2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/oauth"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/grpcauth"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

const (
	// audience is the server, under the name that clients and server agree on.
	audience = "https://invoices.example.com"

	// issuer and subject are the client.
	issuer  = "https://reports.example.com"
	subject = "reports"
)

// newServer returns a server that wants a token by the key in config, for everything
// but what open names. It reads the public keys, so it starts only if that can be done.
func newServer(ctx context.Context, config *gcpjwt.KMSConfig, tls credentials.TransportCredentials, logger *slog.Logger) (*grpc.Server, error) {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	if err != nil {
		return nil, err
	}
	verifier := middleware.NewVerifier(keyfunc,
		middleware.WithAudience(audience),
		middleware.WithIssuer(issuer))
	skip := grpcauth.WithSkip(func(method string) bool { return open[method] })
	server := grpc.NewServer(
		grpc.Creds(tls),
		grpc.ChainUnaryInterceptor(logUnary(logger, grpcauth.UnaryServerInterceptor(verifier, skip))),
		grpc.ChainStreamInterceptor(logStream(logger, grpcauth.StreamServerInterceptor(verifier, skip))))
	server.RegisterService(&invoicesService, invoices{})
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.RegisterV1(server)
	return server, nil
}

// open are the methods that need no token, by their full names.
var open = map[string]bool{
	healthpb.Health_Check_FullMethodName:                              true,
	healthpb.Health_Watch_FullMethodName:                              true,
	reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName: true,
}

// logUnary calls the interceptor of package grpcauth, and tells the log why a call was
// turned away. Then the method isn't reached: its own errors aren't refusals. The client
// learns no more than the code: what exactly is wrong with a token helps those most who
// are making one up.
func logUnary(logger *slog.Logger, auth grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		reached := false
		response, err := auth(ctx, request, info, func(ctx context.Context, request any) (any, error) {
			reached = true
			return handler(ctx, request)
		})
		if !reached {
			logger.WarnContext(ctx, "refused", "method", info.FullMethod, "reason", errors.Unwrap(err))
		}
		return response, err
	}
}

// logStream is logUnary for streams.
func logStream(logger *slog.Logger, auth grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		reached := false
		err := auth(server, stream, info, func(server any, stream grpc.ServerStream) error {
			reached = true
			return handler(server, stream)
		})
		if !reached {
			logger.WarnContext(stream.Context(), "refused", "method", info.FullMethod, "reason", errors.Unwrap(err))
		}
		return err
	}
}

// newSource returns the tokens of a client: one at a time, renewed before it expires,
// and signed once for any number of calls.
func newSource(ctx context.Context, config *gcpjwt.KMSConfig) (xoauth2.TokenSource, error) {
	return oauth2.NewTokenSource(gcpjwt.NewKMSContext(ctx, config), oauth2.Config{
		Method:   gcpjwt.SigningMethodKMSES256,
		Issuer:   issuer,
		Subject:  subject,
		Audience: []string{audience},
		Lifetime: 15 * time.Minute,
	})
}

// dial returns a connection whose calls carry a token of the source, if there is one.
// gRPC sends tokens over TLS only.
func dial(address string, tls credentials.TransportCredentials, source xoauth2.TokenSource) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(tls)}
	if source != nil {
		options = append(options, grpc.WithPerRPCCredentials(oauth.TokenSource{TokenSource: source}))
	}
	return grpc.NewClient(address, options...)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "grpc:", err)
		stop()
		os.Exit(1)
	}
}
