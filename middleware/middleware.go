// Package middleware decides whether a bearer token, a JSON Web Token, is good, and
// lets only those HTTP requests through that carry one.
//
// [Verifier] has the rules, for any transport. [New] and [NewHandler] put it in front
// of an http.Handler, package grpcauth in front of a gRPC server. A WebSocket or a
// queue calls [Verifier.Verify] and, where a status is needed, [StatusOf].
//
// Requests that are turned away get the text of their status as the body, and
// nothing that says which check failed in detail:
//
//   - 401 Unauthorized without a token, and with one that is malformed, wrongly
//     signed, expired, not valid yet or without exp
//   - 403 Forbidden with a good token for another audience, by another issuer, or
//     without a scope that it needs
//   - 503 Service Unavailable with Retry-After: 10, while the keys that the
//     token needs cannot be had ([ErrKeysUnavailable])
//   - 500 Internal Server Error if the Keyfunc reports that it is misconfigured
//     ([ErrInvalidConfig], [ErrMissingConfig]), and if code that isn't this
//     package's panicked while the token was looked at
//
// 401 and 403 come with a WWW-Authenticate header (RFC 6750 section 3). It has a
// realm and, if there was a token, the error code: insufficient_scope for a scope
// that is missing, invalid_token for all else. The token of a request that is let
// through is in its context: see [TokenFromContext].
//
// The package is light: it links golang-jwt and the standard library, and no client
// of Google's.
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

// NewHandler returns middleware for tokens that config's signer made for audience:
// their iss must be config.Issuer(). A good token by another issuer or for another
// audience is a 403. For a *gcpjwt.IAMConfig, set EnableCache: without it, each
// request fetches the account's certificates.
//
// An empty audience stands for "https://" and the Host of the request. Beware:
// that is what the client says the host is, so that whoever holds a token of the
// signer for any https audience passes by sending that audience as the Host,
// unless something in front of the server lets only known hosts through. Pass an
// explicit audience.
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
