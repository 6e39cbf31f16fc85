// Package oauth2 logs in with keys that Google Cloud holds. It makes token sources, of
// two kinds.
//
// [NewTokenSource] and [JWTAccessTokenSource] make JWTs that the key signs. They are for
// services that verify them themselves. [NewJWTBearerSource] and
// [NewClientCredentialsSource] get access tokens of another service: its token endpoint
// takes a signed JWT for them (RFC 7523). docs/RECIPES.md has recipes for Google
// Workspace, Salesforce, Microsoft Entra, Okta, Snowflake, GitHub Apps and gRPC.
//
// A source keeps its token and renews it in the background before it expires, so that a
// busy client never waits. Any number of callers share one signature and one request.
// While none can be had, the old token serves for as long as it is valid, and attempts are
// made at growing intervals.
//
// A source fits wherever an [oauth2.TokenSource] is taken. gRPC has
// credentials/oauth.TokenSource for that. In an http.Client, put a source into an
// [oauth2.Transport]: it asks for a token with each request, which costs next to nothing
// and lets the source renew in time. [oauth2.NewClient] works too, but puts an
// [oauth2.ReuseTokenSource] in between. That keeps a token until ten seconds before its
// expiry, and its callers wait for the next one. It also writes to the token, which all
// users of a source share: make one such client per source, and share the client.
package oauth2

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/logs"
	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
)

// JWTAccessTokenSource returns a source of tokens for audience that the service account in
// config signs: with signBlob or signJwt, as config.IAMType says. A token lives for an hour,
// and its iss and sub are the account.
//
// It is [NewTokenSource] for that case. What is said there about ctx, the first token and
// the source goes for it too. config must not be changed while the source is in use. The
// error is [gcpjwt.ErrMissingConfig] for a nil ctx or config, and [gcpjwt.ErrInvalidConfig] for an
// IAMType that is not set, a malformed account or an empty audience.
func JWTAccessTokenSource(ctx context.Context, config *gcpjwt.IAMConfig, audience string) (oauth2.TokenSource, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if config == nil {
		return nil, errs.Errorf("%w: JWTAccessTokenSource needs an *IAMConfig", gcpjwt.ErrMissingConfig)
	}
	var method *gcpjwt.SigningMethodIAM
	switch config.IAMType {
	case gcpjwt.IAMBlobType:
		method = gcpjwt.SigningMethodIAMBlob
	case gcpjwt.IAMJwtType:
		method = gcpjwt.SigningMethodIAMJWT
	default:
		return nil, invalid("IAMType: want IAMBlobType or IAMJwtType")
	}
	return NewTokenSource(gcpjwt.NewIAMContext(ctx, config), Config{
		Method:   method,
		Issuer:   config.ServiceAccount,
		Subject:  config.ServiceAccount,
		Audience: []string{audience},
	})
}

// NewTokenSource returns a source of tokens as config describes them. It makes the first
// one, so that a configuration that cannot work is known at once.
//
// With config.Method, ctx carries the configuration of the key (see [gcpjwt.NewKMSContext]
// and [gcpjwt.NewIAMContext]). App Engine needs a context that reaches its API also after
// the request at hand. The end of ctx ends the wait for the first token, but not the
// source. Later tokens are made with the values of ctx, and have 30 seconds each. Failures
// while the old token is in use go to the Logger of the configuration, that of the Signer
// included. Without one they go to [slog.Default].
//
// The error is [gcpjwt.ErrInvalidConfig] if config cannot work, [gcpjwt.ErrMissingConfig] if
// ctx lacks what the method needs, and else what [gcpjwt.SignedString] returns.
//
// The source's Token method may be called concurrently. While its token is fresh it takes no
// lock and allocates nothing. A token is renewed from five minutes before its expiry, or a
// quarter of its lifetime, if that is less. From ten seconds before the expiry, or a tenth of
// the lifetime, Token waits for a new one or returns an error. It never returns a token that
// has expired. The Expiry of a token is its exp. Callers share the token and must not modify
// it.
func NewTokenSource(ctx context.Context, config Config) (oauth2.TokenSource, error) {
	maker, err := config.newMaker(ctx)
	if err != nil {
		return nil, err
	}
	return start(ctx, &source{maker: maker})
}

// start returns the source once it has its first token.
func start(ctx context.Context, s *source) (oauth2.TokenSource, error) {
	s.ctx = context.WithoutCancel(ctx)
	if _, err := s.tokens.Get(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// source is a token source, and the origin of the tokens that it keeps.
type source struct {
	ctx      context.Context // kept because Token takes none
	maker    *maker
	exchange *exchange // nil: what maker makes are the tokens

	// cloud.google.com/go/auth has a cached token provider as well. After a
	// failed background renewal it waits for the expiry before it tries again,
	// it holds a mutex while it makes a token that callers wait for, and takes
	// it twice for one that it has.
	tokens refresh.Value[*oauth2.Token]
}

// Token returns a token that hasn't expired.
func (s *source) Token() (*oauth2.Token, error) { return s.tokens.Get(s.ctx, s) }

const (
	maxRenewEarly  = 5 * time.Minute
	maxExpireEarly = 10 * time.Second // for the token's way to its verifier
)

// Fetch makes a new token, with the values of the context that the constructor got.
func (s *source) Fetch(context.Context) (*oauth2.Token, refresh.Lifetime, error) {
	began := time.Now().Round(0)
	text, expiry, err := s.maker.make(s.ctx)
	if err != nil {
		return nil, refresh.Lifetime{}, err
	}
	token, lifetime := &oauth2.Token{AccessToken: text, TokenType: "Bearer", Expiry: expiry}, s.maker.lifetime
	if s.exchange != nil {
		if token, lifetime, err = s.exchange.do(s.ctx, text); err != nil {
			return nil, refresh.Lifetime{}, err
		}
	}
	left := token.Expiry.Sub(began) // lifetimes count from the start of the fetch, just before began
	return token, refresh.Lifetime{
		Renew: left - min(lifetime/4, maxRenewEarly),
		Fresh: left - min(lifetime/10, maxExpireEarly),
	}, nil
}

// Failed logs the failure to replace a token that is still in use.
func (s *source) Failed(err error, _ *oauth2.Token) {
	logs.To(s.maker.logger, slog.LevelWarn, "keeping the known token", "error", err)
}

// Replaced does nothing: a new token is no news.
func (s *source) Replaced(_, _ *oauth2.Token) {}
