// Package middleware decides whether a bearer token, a JSON Web Token, is good. HTTP
// requests without a good token don't reach the handler behind it.
//
// [Verifier] has the rules, for every transport. [New] and [NewHandler] put it in front
// of an http.Handler, package grpcauth in front of a gRPC server. A WebSocket or a
// queue calls [Verifier.Verify], and [StatusOf] where a status is needed.
//
// A request that is turned away gets the text of its status as the body. Nothing says
// which check failed:
//
//   - 401 Unauthorized: there is no token, or it is malformed, wrongly signed, expired,
//     not valid yet or without exp
//   - 403 Forbidden: a good token is for another audience, by another issuer, or lacks a
//     scope
//   - 503 Service Unavailable with Retry-After: 10: the keys cannot be had
//     ([ErrKeysUnavailable])
//   - 500 Internal Server Error: the Keyfunc is misconfigured ([ErrInvalidConfig],
//     [ErrMissingConfig]), or code that isn't this package's panicked
//
// 401 and 403 come with a WWW-Authenticate header (RFC 6750 section 3). It has a realm
// and, if there was a token, an error code: insufficient_scope for a missing scope,
// invalid_token for all else.
//
// A request that is let through has the token in its context: see [TokenFromContext].
//
// The package is light. It links golang-jwt and little else, and no client of Google's.
package middleware

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	"github.com/golang-jwt/jwt/v5"
)

// An Issuer is a signer whose tokens have its name as their iss. *gcpjwt.IAMConfig
// is one: a service account signs under its email address.
type Issuer interface {
	// Issuer returns the iss of the signer's tokens.
	Issuer() string

	// VerifyKeyfunc returns a Keyfunc for the signer's tokens. The end of ctx must
	// not be the end of the Keyfunc.
	VerifyKeyfunc(ctx context.Context) (jwt.Keyfunc, error)
}

// NewHandler returns middleware for tokens that config's signer made for audience.
// Their iss must be config.Issuer(). A good token by another issuer or for another
// audience is a 403. For a *gcpjwt.IAMConfig, set EnableCache: without it, each
// request fetches the account's certificates.
//
// Pass an explicit audience. An empty one stands for "https://" and the Host of the
// request, and the client chooses that Host. So whoever holds a token of the signer for
// any https audience passes: the Host that they send is that audience. Only something
// in front of the server that knows the right hosts prevents it.
//
// ctx lends its values to the calls that fetch keys, and its end ends none of them
// after NewHandler has returned. NewHandler panics if config is nil, has no issuer,
// or makes no Keyfunc.
func NewHandler(ctx context.Context, config Issuer, audience string) func(http.Handler) http.Handler {
	if isNil(config) {
		panic("middleware: NewHandler: the Issuer is nil")
	}
	issuer := config.Issuer()
	if issuer == "" {
		panic("middleware: NewHandler: the Issuer has an empty issuer")
	}
	keyfunc, err := config.VerifyKeyfunc(ctx)
	if err != nil {
		panic(fmt.Sprintf("middleware: NewHandler: %v", err))
	}
	if audience == "" {
		return New(keyfunc, WithIssuer(issuer), withHostAudience)
	}
	return New(keyfunc, WithIssuer(issuer), WithAudience(audience))
}

// isNil reports whether value is nil or an interface around a nil pointer, map or
// function.
func isNil(value any) bool {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Chan, reflect.Func, reflect.Map, reflect.Pointer, reflect.Slice:
		return v.IsNil()
	}
	return false
}

// New returns middleware for tokens that verify with the keys of keyfunc: the
// Handler of a [Verifier]. Give it [WithAudience]: without it, tokens for any
// audience pass, including those that were made for other servers. It panics if
// keyfunc is nil or an option makes no sense.
func New(keyfunc jwt.Keyfunc, options ...Option) func(http.Handler) http.Handler {
	if keyfunc == nil {
		panic("middleware: New: the Keyfunc is nil")
	}
	return NewVerifier(keyfunc, options...).Handler
}
