package bench

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/grpcauth"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	gcpoauth2 "github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// What a token from a source may cost in those from an oauth2.ReuseTokenSource,
// and a request through the middleware, or a gRPC call, in verifications of its token.
const (
	tokenLimit      = 1.00
	middlewareLimit = 1.10
)

// Token compares the token sources of package oauth2 with the one that
// golang.org/x/oauth2 keeps a token with, while their token is fresh.
func (s *Suite) Token() (Comparison, error) {
	ours, err := gcpoauth2.NewTokenSource(s.rsa.context(s.ctx), gcpoauth2.Config{
		Method:   s.rsa.method,
		Issuer:   issuer,
		Audience: []string{audience},
	})
	if err != nil {
		return Comparison{}, err
	}
	token, err := ours.Token()
	if err != nil {
		return Comparison{}, err
	}
	reuse := oauth2.ReuseTokenSource(&oauth2.Token{AccessToken: token.AccessToken, TokenType: token.TokenType, Expiry: token.Expiry}, nil)
	return Comparison{
		Name:   "token",
		Ours:   []Way{{"gcpjwt", asking(ours)}},
		Others: []Other{{Way: Way{"ReuseTokenSource", asking(reuse)}, Limit: tokenLimit}},
	}, nil
}

func asking(source oauth2.TokenSource) func() error {
	return func() error {
		_, err := source.Token()
		return err
	}
}

// Middleware compares a request through the middleware with nothing but the
// verification of its token by the same Keyfunc.
func (s *Suite) Middleware() (Comparison, error) {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(s.ctx, s.rsa.config())
	if err != nil {
		return Comparison{}, err
	}
	parser := jwt.NewParser( // with the checks that the middleware makes
		jwt.WithIssuer(issuer),
		jwt.WithAudience(audience),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(30*time.Second),
		jwt.WithStrictDecoding(),
	)
	handler := middleware.New(keyfunc, middleware.WithAudience(audience), middleware.WithIssuer(issuer))(noContent)
	return Comparison{
		Name:   "middleware",
		Ours:   []Way{{"gcpjwt", requesting(handler, s.rsa.token)}},
		Others: []Other{{Way: Way{"jwt.Parse", parsing(parser, s.rsa.token, keyfunc)}, Limit: middlewareLimit}},
	}, nil
}

var noContent = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

// requesting makes a request that must come through to noContent. Requests and
// responses are the cheapest there are, so that what counts is the handler.
func requesting(handler http.Handler, token string) func() error {
	request, err := http.NewRequest(http.MethodGet, audience, nil)
	if err != nil {
		return func() error { return err }
	}
	request.Header.Set("Authorization", "Bearer "+token)
	refused := refusals{good: http.StatusNoContent, header: make(http.Header)}
	return func() error {
		handler.ServeHTTP(&refused, request)
		if status := refused.status.Load(); status != 0 {
			return fmt.Errorf("the request was answered with %d", status)
		}
		return nil
	}
}

// refusals is a response that remembers nothing but a status that it shouldn't have. All
// requests share it that don't write its header.
type refusals struct {
	good   int
	header http.Header
	status atomic.Int64
}

func (r *refusals) Header() http.Header { return r.header }

func (r *refusals) Write(data []byte) (int, error) { return len(data), nil }

func (r *refusals) WriteHeader(status int) {
	if status != r.good {
		r.status.Store(int64(status))
	}
}

// GRPC compares a gRPC call's interceptor with nothing but the verification of its token by
// the same Verifier.
func (s *Suite) GRPC() (Comparison, error) {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(s.ctx, s.rsa.config())
	if err != nil {
		return Comparison{}, err
	}
	verifier := middleware.NewVerifier(keyfunc, middleware.WithAudience(audience), middleware.WithIssuer(issuer))
	intercept := grpcauth.UnaryServerInterceptor(verifier)
	ctx := metadata.NewIncomingContext(s.ctx, metadata.Pairs(
		"content-type", "application/grpc", "user-agent", "grpc-go", "authorization", "Bearer "+s.rsa.token))
	info := &grpc.UnaryServerInfo{FullMethod: "/bench.Service/Method"}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	return Comparison{
		Name: "grpcauth",
		Ours: []Way{{"gcpjwt", func() error {
			_, err := intercept(ctx, nil, info, handler)
			return err
		}}},
		Others: []Other{{Way: Way{"Verifier", func() error {
			_, err := verifier.Verify(s.ctx, s.rsa.token)
			return err
		}}, Limit: middlewareLimit}},
	}, nil
}

// What a request may cost whose token is remembered, in requests whose token is
// verified: on one core, and on all, where the garbage collector has none to itself.
const (
	cacheHitLimit = 0.033
	cacheHitOnAll = 0.040
)

// TokenCache compares requests through a middleware that remembers their token with
// requests through one that doesn't.
func (s *Suite) TokenCache() (Comparison, error) {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(s.ctx, s.rsa.config())
	if err != nil {
		return Comparison{}, err
	}
	verifying := middleware.New(keyfunc, middleware.WithAudience(audience), middleware.WithIssuer(issuer))(noContent)
	return Comparison{
		Name:   "tokencache",
		Ours:   []Way{{"hit", requesting(remembering(keyfunc, 1), s.rsa.token)}},
		Others: []Other{{Way: Way{"verifying", requesting(verifying, s.rsa.token)}, Limit: cacheHitLimit, AllCores: cacheHitOnAll}},
	}, nil
}

func remembering(keyfunc jwt.Keyfunc, n int) http.Handler {
	return middleware.New(keyfunc, middleware.WithAudience(audience), middleware.WithIssuer(issuer), middleware.WithTokenCache(n))(noContent)
}
