// Package oauth2 makes token sources of keys that Google Cloud holds. Each
// token is a JWT, signed by a signing method of package gcpjwt and sent as a
// bearer token.
//
// A source keeps its token and renews it in the background from five minutes
// before its expiry, so that a busy client never waits for a signature. Any
// number of concurrent callers share one signature. While tokens cannot be
// signed, the old one serves as long as it is valid, and the signature is tried
// again at growing intervals.
//
// Sources fit wherever an [oauth2.TokenSource] is taken; gRPC has
// credentials/oauth.TokenSource for that. In an http.Client, put a source into
// an [oauth2.Transport]: it asks for a token with each request, which costs next
// to nothing and lets the source renew in time. [oauth2.NewClient] works too, but
// puts an [oauth2.ReuseTokenSource] in between, which keeps a token of its own
// until ten seconds before its expiry and has its callers wait for the next one.
// As it also writes to the token, which all users of a source share, make one
// such client per source and share the client.
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

// JWTAccessTokenSource returns a source of tokens for audience that the service
// account in config signs: with signBlob or signJwt, as config.IAMType says. A
// token lives for an hour, and its iss and sub are the account.
//
// It is [NewTokenSource] for that case, and what is said there about ctx, the
// first token and the source goes for it too. config must not be changed while
// the source is in use. The errors of a configuration that cannot work are
// [gcpjwt.ErrMissingConfig] for a nil config, and [gcpjwt.ErrInvalidConfig] for
// an IAMType that is not set, a malformed account or an empty audience.
func JWTAccessTokenSource(ctx context.Context, config *gcpjwt.IAMConfig, audience string) (oauth2.TokenSource, error) {
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

// NewTokenSource returns a source of tokens as config describes them. It makes
// the first one, so that a configuration that cannot work is known at once.
//
// ctx carries the method's configuration (see [gcpjwt.NewKMSContext] and
// [gcpjwt.NewIAMContext]; App Engine needs none, but a context that reaches its
// API also after the request at hand). Its end ends the wait for the first
// token, but not the source: later tokens are made with the values of ctx and a
// time limit of their own, 30 seconds. If the configuration has a Logger, that
// is told of signatures that fail while the old token is still in use.
//
// The error is [gcpjwt.ErrInvalidConfig] if config cannot work,
// [gcpjwt.ErrMissingConfig] if ctx lacks what the method needs, and else what
// [gcpjwt.SignedString] returns.
//
// The source's Token method may be called concurrently. While its token is
// fresh it takes no lock and allocates nothing, and it never returns a token
// that has expired: from ten seconds before the expiry (a tenth of the lifetime,
// if that is less) it waits for a new one or returns an error. The Expiry of a
// token is its exp. Callers share the token and must not modify it.
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
