// Package middleware lets only those HTTP requests through that carry a good
// bearer token, a JWT verified by a Keyfunc such as those of package gcpjwt.
//
// Requests that are turned away get the text of their status as the body, and
// nothing that says which check failed in detail:
//
//   - 401 Unauthorized without a token, and with one that is malformed, wrongly
//     signed, expired, not valid yet or without exp
//   - 403 Forbidden with a good token for another audience or by another issuer
//   - 503 Service Unavailable with Retry-After: 10, while the keys that the
//     token needs cannot be had ([gcpjwt.ErrKeysUnavailable])
//   - 500 Internal Server Error if the Keyfunc reports that it is misconfigured
//     ([gcpjwt.ErrInvalidConfig], [gcpjwt.ErrMissingConfig])
//
// 401 and 403 come with a WWW-Authenticate header (RFC 6750 section 3): Bearer
// alone if there is no token, else with the error code invalid_token for 401 and
// insufficient_scope for 403. The token of a request that is let through is in
// its context: see [TokenFromContext].
package middleware

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// NewHandler returns middleware for tokens that the service account in config
// signed for audience. Set config.EnableCache: without it, each request fetches
// the account's certificates.
//
// An empty audience stands for "https://" and the Host of the request. Beware:
// that is what the client says the host is, so that whoever holds a token of the
// account for any https audience passes by sending that audience as the Host,
// unless something in front of the server lets only known hosts through. Pass an
// explicit audience.
//
// ctx lends its values to the calls that fetch certificates, but its end doesn't
// end them. NewHandler panics if config is nil or cannot work.
func NewHandler(ctx context.Context, config *gcpjwt.IAMConfig, audience string) func(http.Handler) http.Handler {
	keyfunc := gcpjwt.IAMVerifyKeyfunc(context.WithoutCancel(ctx), config)
	// The Keyfunc looks at its configuration before it looks at any token.
	if _, err := keyfunc(&jwt.Token{}); misconfigured(err) {
		panic(fmt.Sprintf("middleware: NewHandler: %v", err))
	}
	if audience == "" {
		return New(keyfunc, withHostAudience)
	}
	return New(keyfunc, WithAudience(audience))
}

// New returns middleware for tokens that verify with the keys of keyfunc. Give
// it [WithAudience]: without it, tokens for any audience pass, including those
// that were made for other servers.
//
// exp is required; iat and nbf, if there, must not be in the future. Unless
// options say otherwise, clocks may differ by 30 seconds, tokens over 16 KiB are
// refused, and the token is in the request's only Authorization header (RFC 6750
// section 2.1), with the scheme in any case. Requests of any method need a token,
// HEAD and OPTIONS included.
//
// keyfunc must refuse tokens of another algorithm than its key's, as those of
// package gcpjwt do. It may be called concurrently, as may be the middleware. A
// Keyfunc of your own should wrap [gcpjwt.ErrKeysUnavailable] where its keys
// cannot be had, for a 503 instead of a 401.
//
// New panics if keyfunc is nil or an option makes no sense.
func New(keyfunc jwt.Keyfunc, options ...Option) func(http.Handler) http.Handler {
	if keyfunc == nil {
		panic("middleware: New: the Keyfunc is nil")
	}
	v := &verifier{config: defaults(), keyfunc: keyfunc}
	for _, option := range options {
		option(&v.config)
	}
	rules := []jwt.ParserOption{
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(v.leeway),
		jwt.WithStrictDecoding(),
	}
	v.parser, v.validator = jwt.NewParser(rules...), jwt.NewValidator(rules...)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token, err := v.verify(r)
			if err != nil {
				v.handleError(w, r, err)
				return
			}
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, token)))
		})
	}
}

type tokenKey struct{}

// TokenFromContext returns the verified token of the request whose context ctx
// is, and false if the request didn't pass the middleware. Its Claims are a
// jwt.MapClaims, or what the function given to [WithClaims] returned.
func TokenFromContext(ctx context.Context) (*jwt.Token, bool) {
	token, ok := ctx.Value(tokenKey{}).(*jwt.Token)
	return token, ok
}

// verifier decides on requests.
type verifier struct {
	config
	keyfunc   jwt.Keyfunc
	parser    *jwt.Parser
	validator *jwt.Validator // the parser's, for remembered tokens
}

// errNotForUs marks a token that is good, but not for this server.
var errNotForUs = errors.New("middleware: the token is not for this server")

// verify returns the token of a request, if it is good.
func (v *verifier) verify(r *http.Request) (*jwt.Token, error) {
	raw, err := v.extractor.ExtractToken(r)
	switch {
	case err != nil:
		return nil, err
	case raw == "":
		return nil, request.ErrNoTokenInRequest
	case len(raw) > v.maxTokenSize:
		return nil, fmt.Errorf("%w: it is longer than %d bytes", jwt.ErrTokenMalformed, v.maxTokenSize)
	case strings.IndexByte(raw, '\r') >= 0 || strings.IndexByte(raw, '\n') >= 0: // base64 skips them, so that one token had many spellings
		return nil, fmt.Errorf("%w: it has line breaks", jwt.ErrTokenMalformed)
	}
	if v.tokens == nil {
		return v.check(raw, r, v.keyfunc)
	}
	return v.checkOnce(raw, r)
}

// check verifies a token and checks its claims.
func (v *verifier) check(raw string, r *http.Request, keyfunc jwt.Keyfunc) (*jwt.Token, error) {
	token, err := v.parser.ParseWithClaims(raw, v.newClaims(), keyfunc)
	if err != nil {
		return nil, err
	}
	if _, ok := token.Claims.(jwt.MapClaims); !ok && ambiguous(payloadOf(raw)) {
		return nil, fmt.Errorf("%w: a registered claim's name is in another case", jwt.ErrTokenInvalidClaims)
	}
	return v.forUs(token, r)
}

// ambiguous reports whether a payload has a member that encoding/json takes for a
// registered claim when it decodes into a struct, though the name is another:
// claim names are case-sensitive (RFC 7519 section 4).
func ambiguous(payload []byte) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(payload, &members) != nil {
		return true
	}
	for name := range members {
		for _, claim := range []string{"iss", "sub", "aud", "exp", "nbf", "iat", "jti"} {
			if name != claim && strings.EqualFold(name, claim) {
				return true
			}
		}
	}
	return false
}

// forUs returns token if its issuer and audience are right. The parser could
// check these too, but wouldn't tell a token that is for others from one that
// has expired as well.
func (v *verifier) forUs(token *jwt.Token, r *http.Request) (*jwt.Token, error) {
	if err := v.checkIssuer(token.Claims); err != nil {
		return nil, err
	}
	if err := v.checkAudience(token.Claims, r); err != nil {
		return nil, err
	}
	return token, nil
}

func (v *verifier) checkIssuer(claims jwt.Claims) error {
	if v.issuers == nil {
		return nil
	}
	issuer, err := claims.GetIssuer()
	if err != nil {
		return fmt.Errorf("%w: %w", jwt.ErrTokenInvalidClaims, err)
	}
	if !slices.Contains(v.issuers, issuer) {
		return fmt.Errorf("%w: %w", errNotForUs, jwt.ErrTokenInvalidIssuer)
	}
	return nil
}

func (v *verifier) checkAudience(claims jwt.Claims, r *http.Request) error {
	wanted := v.audiences
	if v.hostAudience && r.Host != "" {
		wanted = []string{"https://" + r.Host}
	}
	if wanted == nil && !v.hostAudience {
		return nil
	}
	audiences, err := audiencesOf(claims)
	if err != nil {
		return fmt.Errorf("%w: %w", jwt.ErrTokenInvalidClaims, err)
	}
	for _, audience := range audiences {
		if slices.Contains(wanted, audience) {
			return nil
		}
	}
	return fmt.Errorf("%w: %w", errNotForUs, jwt.ErrTokenInvalidAudience)
}

// audiencesOf returns the aud claim, which is a string or an array of strings.
func audiencesOf(claims jwt.Claims) (jwt.ClaimStrings, error) {
	// MapClaims takes an aud of any other type for an absent one.
	if claims, ok := claims.(jwt.MapClaims); ok {
		switch claims["aud"].(type) {
		case nil, string, []any:
		default:
			return nil, fmt.Errorf("aud is invalid: %w", jwt.ErrInvalidType)
		}
	}
	return claims.GetAudience()
}
