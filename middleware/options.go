package middleware

import (
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"
)

// An Option changes what [New] returns. Of two that set the same thing the last
// one holds. A value that makes no sense, such as an empty audience, panics in
// New rather than turn a check off.
type Option func(*config)

type config struct {
	audiences    []string // nil: any
	hostAudience bool
	issuers      []string // nil: any
	leeway       time.Duration
	maxTokenSize int
	newClaims    func() jwt.Claims
	extractor    request.Extractor
	handleError  func(http.ResponseWriter, *http.Request, error)
	tokens       tokenCache // nil: none
}

func defaults() config {
	return config{
		leeway:       30 * time.Second,
		maxTokenSize: 16 << 10,
		newClaims:    func() jwt.Claims { return jwt.MapClaims{} },
		extractor:    bearerExtractor{},
		handleError:  Respond,
	}
}

// WithAudience lets only tokens through that are for one of the audiences, that
// is, one of them is the token's aud or an element of it. The request's Host
// doesn't matter.
func WithAudience(audiences ...string) Option {
	return func(c *config) { c.audiences = nonEmpty("WithAudience", audiences) }
}

// WithIssuer lets only tokens through whose iss is one of the issuers.
func WithIssuer(issuers ...string) Option {
	return func(c *config) { c.issuers = nonEmpty("WithIssuer", issuers) }
}

// nonEmpty returns a copy of values, of which there must be one, and none empty.
func nonEmpty(option string, values []string) []string {
	if len(values) == 0 || slices.Contains(values, "") {
		panic("middleware: " + option + ": want one or more values, none of them empty")
	}
	return slices.Clone(values)
}

// WithLeeway sets by how much the clocks of this server and of the signer may
// differ: exp, nbf and iat are checked as loosely as that. The default is 30
// seconds; 0 is none.
func WithLeeway(leeway time.Duration) Option {
	return func(c *config) {
		if leeway < 0 {
			panic("middleware: WithLeeway: the leeway is negative")
		}
		c.leeway = leeway
	}
}

// WithClaims makes claims of a type of your own. newClaims is called for each
// request and must return a pointer to a new value, or a new jwt.MapClaims, which
// is the default; the token is decoded into it. If the type has a Validate
// method (see [jwt.ClaimsValidator]), it is called, and its error means 401.
//
// A token with a registered claim in another case, such as EXP, is refused, since
// encoding/json would take it for exp when it decodes into a struct. A struct that embeds jwt.RegisteredClaims must do so by value.
func WithClaims(newClaims func() jwt.Claims) Option {
	return func(c *config) {
		if newClaims == nil {
			panic("middleware: WithClaims: the function is nil")
		}
		checkClaims(newClaims(), newClaims())
		c.newClaims = newClaims
	}
}

// checkClaims panics if tokens cannot be decoded into what a function returned
// in two calls, or if the calls returned the same.
func checkClaims(first, second jwt.Claims) {
	a, b := reflect.ValueOf(first), reflect.ValueOf(second)
	_, isMap := first.(jwt.MapClaims)
	switch {
	case !isMap && a.Kind() != reflect.Pointer, a.IsNil():
		panic("middleware: WithClaims: the function must return a non-nil pointer or a jwt.MapClaims")
	case a.Pointer() == b.Pointer():
		panic("middleware: WithClaims: the function must return a new value on each call")
	}
	defer func() {
		if recover() != nil {
			panic("middleware: WithClaims: the claims of a token without exp panic: is jwt.RegisteredClaims embedded as a pointer?")
		}
	}()
	_, _ = first.GetExpirationTime()
}

// WithMaxTokenSize sets how many bytes a token may have, 16 KiB by default.
// Longer ones are refused before anything is done with them.
func WithMaxTokenSize(bytes int) Option {
	return func(c *config) {
		if bytes <= 0 {
			panic("middleware: WithMaxTokenSize: the size is not positive")
		}
		c.maxTokenSize = bytes
	}
}

// WithExtractor sets where a request has its token, by default in the
// Authorization header. Package github.com/golang-jwt/jwt/v5/request has
// extractors for other places. Any error of the extractor means 401; it should
// be request.ErrNoTokenInRequest if there is no token, as an empty token is
// taken to mean, too.
func WithExtractor(extractor request.Extractor) Option {
	return func(c *config) {
		if extractor == nil {
			panic("middleware: WithExtractor: the extractor is nil")
		}
		c.extractor = extractor
	}
}

// WithErrorHandler sets who answers requests that are turned away. The handler
// writes the whole response: status, headers and body; [Respond] does it as usual.
// The error is for logs, not for clients, as it may quote the token. [errors.Is] tells what is wrong, in this
// order:
//
//   - gcpjwt.ErrKeysUnavailable: keys cannot be had; the token may be good
//   - gcpjwt.ErrInvalidConfig, gcpjwt.ErrMissingConfig: the Keyfunc is
//     misconfigured
//   - request.ErrNoTokenInRequest: there is no token
//   - jwt.ErrTokenMalformed: it is no token or too long, or there are two
//   - jwt.ErrTokenUnverifiable: there is no key for it, because of
//     gcpjwt.ErrUnknownKeyID or gcpjwt.ErrAlgorithmMismatch
//   - jwt.ErrTokenSignatureInvalid: it is forged
//   - jwt.ErrTokenInvalidClaims: it is well signed, but has a claim that is wrong;
//     jwt.ErrTokenExpired, jwt.ErrTokenNotValidYet, jwt.ErrTokenUsedBeforeIssued
//     and jwt.ErrTokenRequiredClaimMissing say more
//   - jwt.ErrTokenInvalidAudience, jwt.ErrTokenInvalidIssuer: it is good, but not
//     for this server
//   - anything else comes from an extractor of your own
func WithErrorHandler(handler func(w http.ResponseWriter, r *http.Request, err error)) Option {
	return func(c *config) {
		if handler == nil {
			panic("middleware: WithErrorHandler: the handler is nil")
		}
		c.handleError = handler
	}
}

// withHostAudience wants the audience that the request's Host makes.
func withHostAudience(c *config) { c.hostAudience = true }
