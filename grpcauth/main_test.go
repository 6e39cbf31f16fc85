package grpcauth_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/someone1/gcp-jwt-go/v3/grpcauth"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newVerifier is what the table of tokens is for.
func newVerifier(options ...middleware.Option) *middleware.Verifier {
	return middleware.NewVerifier(tokens.Keyfunc, append(options,
		middleware.WithIssuer(tokens.Issuer), middleware.WithAudience(tokens.Audience), middleware.WithScope(tokens.Scope),
		middleware.WithLeeway(tokens.Leeway))...)
}

// The methods of a service that says whose token it was called with.
const (
	unary  = "/test.Whoami/Unary"
	stream = "/test.Whoami/Stream"
)

func whoami(ctx context.Context) *wrapperspb.StringValue {
	token, ok := middleware.TokenFromContext(ctx)
	if !ok {
		return wrapperspb.String("a stranger")
	}
	subject, err := token.Claims.GetSubject()
	if err != nil || !token.Valid {
		return wrapperspb.String("an invalid token")
	}
	return wrapperspb.String(subject)
}

var service = &grpc.ServiceDesc{
	ServiceName: "test.Whoami",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Unary",
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			request := new(emptypb.Empty)
			if err := decode(request); err != nil {
				return nil, err
			}
			handler := func(ctx context.Context, _ any) (any, error) { return whoami(ctx), nil }
			if interceptor == nil {
				return handler(ctx, request)
			}
			return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: srv, FullMethod: unary}, handler)
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName:    "Stream",
		ServerStreams: true,
		ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				err := stream.RecvMsg(new(emptypb.Empty))
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err == nil {
					err = stream.SendMsg(whoami(stream.Context()))
				}
				if err != nil {
					return err
				}
			}
		},
	}},
}

// certificate makes a certificate for loopback, and a configuration that trusts it.
func certificate(t testing.TB) (tls.Certificate, *tls.Config) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	return server.TLS.Certificates[0], server.Client().Transport.(*http.Transport).TLSClientConfig
}

// serve starts a gRPC server over TLS with interceptors, and returns a connection.
func serve(t testing.TB, v *middleware.Verifier, options []grpcauth.Option, dial ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	return serveWith(t, []grpc.ServerOption{
		grpc.UnaryInterceptor(grpcauth.UnaryServerInterceptor(v, options...)),
		grpc.StreamInterceptor(grpcauth.StreamServerInterceptor(v, options...)),
	}, dial...)
}

func serveWith(t testing.TB, options []grpc.ServerOption, dial ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cert, client := certificate(t)
	server := grpc.NewServer(append(options, grpc.Creds(credentials.NewServerTLSFromCert(&cert)))...)
	server.RegisterService(service, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), append(dial, grpc.WithTransportCredentials(credentials.NewTLS(client)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// with adds authorization values to a context.
func with(ctx context.Context, values ...string) context.Context {
	for _, value := range values {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", value)
	}
	return ctx
}

// callUnary and callStream return what the service said.
func callUnary(ctx context.Context, conn *grpc.ClientConn, options ...grpc.CallOption) (string, error) {
	reply := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, unary, new(emptypb.Empty), reply, options...)
	return reply.Value, err
}

func callStream(ctx context.Context, conn *grpc.ClientConn, options ...grpc.CallOption) (string, error) {
	s, err := conn.NewStream(ctx, &service.Streams[0], stream, options...)
	if err != nil {
		return "", err
	}
	if err := s.SendMsg(new(emptypb.Empty)); err != nil && !errors.Is(err, io.EOF) { // EOF: RecvMsg has the error
		return "", err
	}
	if err := s.CloseSend(); err != nil {
		return "", err
	}
	reply := new(wrapperspb.StringValue)
	if err := s.RecvMsg(reply); err != nil {
		return "", err
	}
	if err := s.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) { // the stream has to end
		return "", err
	}
	return reply.Value, nil
}

var calls = map[string]func(context.Context, *grpc.ClientConn, ...grpc.CallOption) (string, error){
	"unary": callUnary, "stream": callStream,
}
