// Package grpcauth lets only those gRPC calls through that carry a good bearer token. It
// has the rules of [middleware.Verifier] for gRPC servers.
//
// The token is in the call's one authorization value, as "Bearer" and the token. Two
// values are refused. A method finds the token with [middleware.TokenFromContext]. A call
// that is turned away gets one of these codes, with its name as the message. Nothing says
// which check failed:
//
//   - Unauthenticated, where HTTP has 401: no token, or one that is not good
//   - PermissionDenied, for 403: a good token for another audience, by another issuer,
//     or without a scope that it needs
//   - Unavailable, for 503, with a RetryInfo of 10 seconds: keys cannot be had
//   - Internal, for 500: the Keyfunc is misconfigured, or what isn't this package's
//     panicked
//
// The error of an interceptor has the reason, for those who log it: [errors.Is], [errors.As]
// and errors.Unwrap find it. gRPC sends none of it to the client. To log refusals, call the
// interceptor from one of your own, with a handler that notes that it was called. If it
// wasn't, the error is a refusal. An interceptor that is only chained in front can't tell: a
// method's own error may wrap another one, too. The program examples/grpc shows it.
//
// The same interceptor may add details for the client, with status.Convert(err).WithDetails
// and an errdetails.ErrorInfo. That a scope is missing ([middleware.ErrInsufficientScope])
// is safe to name: the token was good.
//
// A server of which methods need different scopes has a Verifier for each scope. They may
// share a Keyfunc. An interceptor chooses between theirs by info.FullMethod.
//
// Clients use google.golang.org/grpc/credentials/oauth.TokenSource with a token source
// of package oauth2, as the example does. gRPC sends such tokens over TLS only.
package grpcauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/golang-jwt/jwt/v5/request"

	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// An Option changes what an interceptor does.
type Option func(*interceptor)

// WithSkip lets calls through without looking at their token if skip says so of the
// full name of their method, such as /grpc.health.v1.Health/Check. It is for health
// checks and reflection, whose callers have no token. Without it no call is skipped.
//
// Such methods are open to everybody. Name them exactly, and don't skip by what a client
// can choose. skip may be called concurrently. If it panics, the call is refused as
// Internal. WithSkip panics if skip is nil.
func WithSkip(skip func(fullMethod string) bool) Option {
	if skip == nil {
		panic("grpcauth: WithSkip: the function is nil")
	}
	return func(i *interceptor) { i.skip = skip }
}

// UnaryServerInterceptor returns an interceptor for unary calls. It may be used
// concurrently, and adds a few microseconds to what the Verifier takes. It panics if v
// is nil. With a Verifier that has [middleware.WithOptional], a call without a token
// passes.
func UnaryServerInterceptor(v *middleware.Verifier, options ...Option) grpc.UnaryServerInterceptor {
	i := newInterceptor("UnaryServerInterceptor", v, options)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, err := i.authenticate(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams. The token is looked at
// once, before the handler is called. A stream may outlive its token: a handler that minds
// ends the stream when exp comes.
func StreamServerInterceptor(v *middleware.Verifier, options ...Option) grpc.StreamServerInterceptor {
	i := newInterceptor("StreamServerInterceptor", v, options)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, err := i.authenticate(stream.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		return handler(srv, serverStream{stream, ctx})
	}
}

// serverStream is a stream whose context carries the token.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context { return s.ctx }

type interceptor struct {
	verifier *middleware.Verifier
	skip     func(fullMethod string) bool // nil: none
}

func newInterceptor(name string, v *middleware.Verifier, options []Option) *interceptor {
	if v == nil {
		panic("grpcauth: " + name + ": the Verifier is nil")
	}
	i := &interceptor{verifier: v}
	for _, option := range options {
		option(i)
	}
	return i
}

// authenticate returns the context of a call that may pass.
func (i *interceptor) authenticate(ctx context.Context, method string) (context.Context, error) {
	skip, err := i.skips(method)
	if err != nil {
		return nil, &refusal{internal, err}
	}
	if skip {
		return ctx, nil
	}
	text, err := bearer(ctx)
	if err != nil && !errors.Is(err, request.ErrNoTokenInRequest) {
		return nil, refuse(err)
	}
	token, err := i.verifier.Verify(ctx, text)
	if err != nil {
		var refused interface{ Optional() bool }
		if errors.As(err, &refused) && refused.Optional() {
			return ctx, nil
		}
		return nil, refuse(err)
	}
	return middleware.NewContext(ctx, token), nil
}

// skips asks the function of WithSkip. Nothing catches a panic of an interceptor, so
// that it would end the process.
func (i *interceptor) skips(method string) (skip bool, err error) {
	if i.skip == nil {
		return false, nil
	}
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("grpcauth: the function of WithSkip panicked: %T", value)
		}
	}()
	return i.skip(method), nil
}

// bearer returns the token of a call, by the same rules as that of a request.
func bearer(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	return middleware.BearerExtractor.ExtractToken(&http.Request{Header: http.Header{"Authorization": values}})
}

// retryDelay is after which time keys may be there again.
const retryDelay = 10 * time.Second

// What clients get to see.
var (
	unauthenticated  = status.New(codes.Unauthenticated, codes.Unauthenticated.String())
	permissionDenied = status.New(codes.PermissionDenied, codes.PermissionDenied.String())
	internal         = status.New(codes.Internal, codes.Internal.String())
	unavailable      = func() *status.Status {
		s := status.New(codes.Unavailable, codes.Unavailable.String())
		detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
		if err != nil {
			return s
		}
		return detailed
	}()
)

func refuse(err error) error {
	switch middleware.StatusOf(err) {
	case http.StatusUnauthorized:
		return &refusal{unauthenticated, err}
	case http.StatusForbidden:
		return &refusal{permissionDenied, err}
	case http.StatusServiceUnavailable:
		return &refusal{unavailable, err}
	}
	return &refusal{internal, err}
}

// refusal is a status for the client, with a reason for the server.
type refusal struct {
	status *status.Status
	reason error
}

// Error says no more than the client is told.
func (r *refusal) Error() string { return r.status.Err().Error() }

// GRPCStatus is what gRPC sends.
func (r *refusal) GRPCStatus() *status.Status { return r.status }

func (r *refusal) Unwrap() error { return r.reason }
