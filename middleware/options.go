package middleware

import (
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"
)

// An Option changes what [New] and [NewVerifier] return. Of two that set the same
// thing the last one holds. A value that makes no sense, such as an empty audience,
// panics in New rather than turn a check off.
type Option func(*config)

type config struct {
	audiences    []string // nil: any
	hostAudience bool
	issuers      []string // nil: any
	scopes       []string // nil: none needed
	leeway       time.Duration
	maxTokenSize int
	newClaims    func() jwt.Claims
	fields       fields
	jsonNumber   bool
	extractor    request.Extractor
	optional     bool
	handleError  func(http.ResponseWriter, *http.Request, error)
	realm        string
	metadata     string
	tokens       *tokenCache // nil: none
}

const (
	defaultLeeway       = 30 * time.Second
	defaultMaxTokenSize = 16 << 10
	defaultRealm        = "api"
)

func defaults() config {
	return config{
		leeway:       defaultLeeway,
		maxTokenSize: defaultMaxTokenSize,
		newClaims:    func() jwt.Claims { return jwt.MapClaims{} },
		extractor:    BearerExtractor,
		handleError:  Respond,
		realm:        defaultRealm,
	}
}

// WithAudience lets only tokens through that are for one of the audiences, that
// is, one of them is the token's aud or an element of it. Others are a 403. The
// request's Host doesn't matter.
//
// Without it any audience will do, and then a token that a client handed to one
// server lets that server in everywhere as the client. It costs a comparison of
// strings. It panics without an audience and with an empty one.
func WithAudience(audiences ...string) Option {
	return func(c *config) { c.audiences = nonEmpty("WithAudience", audiences) }
}

// WithIssuer lets only tokens through whose iss is one of the issuers. Others are a
// 403.
//
// Without it any issuer will do, so a Keyfunc with the keys of several must tell by
// itself who may say what: see [ByIssuer]. It costs a comparison of strings. It panics
// without an issuer and with an empty one.
func WithIssuer(issuers ...string) Option {
	return func(c *config) { c.issuers = nonEmpty("WithIssuer", issuers) }
}

// WithScope lets only tokens through that have each of the scopes. They may be in the
// claim scope (RFC 8693 section 4.2) or scp, which are strings of words with a blank
// between them, or arrays of strings. Others are a 403 with the error code
// insufficient_scope and a list of the scopes. The error is [ErrInsufficientScope].
//
// Without it no scope is needed, and a token that its owner made for one purpose
// serves for all. It costs decoding the two claims, less than a microsecond. It
// panics without a scope, and with one that RFC 6749 section 3.3 doesn't allow, such
// as two words in one string.
func WithScope(scopes ...string) Option {
	return func(c *config) {
		c.scopes = nonEmpty("WithScope", scopes)
		for _, scope := range scopes {
			if strings.ContainsFunc(scope, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
				panic("middleware: WithScope: a scope has a character that no scope can have")
			}
		}
	}
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
//
// It protects from refusing a fresh token because a clock is behind. A token lives longer
// by as much. It panics if the leeway is negative.
func WithLeeway(leeway time.Duration) Option {
	return func(c *config) {
		if leeway < 0 {
			panic("middleware: WithLeeway: the leeway is negative")
		}
		c.leeway = leeway
	}
}

// WithClaims makes claims of a type of your own, instead of a jwt.MapClaims.
// newClaims is called for each token. It must return a pointer to a new value, or a new
// jwt.MapClaims, and the token is decoded into that. If the type has a Validate method
// (see [jwt.ClaimsValidator]), it is called once signature and dates are known to be
// good. Its error means 401.
//
// It protects from looking for claims by names that nobody checks, and from claims of
// another type than the code expects: such a token is malformed. A token with the
// name of a field in another case, such as EXP, is refused, since encoding/json would
// take it for the field. A struct that embeds jwt.RegisteredClaims must do so by
// value. For a token that [WithTokenCache] remembers, decoding the claims anew is most
// of what it costs.
//
// WithClaims panics if newClaims is nil or returns anything else than the above. It also
// panics if the type has the method Valid() error without Validate() error: that is the
// contract of jwt v4, and Valid would never be called.
func WithClaims(newClaims func() jwt.Claims) Option {
	return func(c *config) {
		if newClaims == nil {
			panic("middleware: WithClaims: the function is nil")
		}
		claims := newClaims()
		checkClaims(claims, newClaims())
		c.newClaims, c.fields = newClaims, fieldsOf(claims)
	}
}

// checkClaims panics if tokens cannot be decoded into what a function returned
// in two calls, or if the calls returned the same.
func checkClaims(first, second jwt.Claims) {
	a, b := reflect.ValueOf(first), reflect.ValueOf(second)
	_, isMap := first.(jwt.MapClaims)
	_, wasValidator := first.(interface{ Valid() error })
	_, isValidator := first.(jwt.ClaimsValidator)
	switch {
	case !isMap && a.Kind() != reflect.Pointer, a.IsNil():
		panic("middleware: WithClaims: the function must return a non-nil pointer or a jwt.MapClaims")
	case a.Pointer() == b.Pointer():
		panic("middleware: WithClaims: the function must return a new value on each call")
	case wasValidator && !isValidator:
		panic("middleware: WithClaims: the claims have the method Valid of jwt v4, which is never called: rename it to Validate")
	}
	defer func() {
		if recover() != nil {
			panic("middleware: WithClaims: the claims of a token without exp panic: is jwt.RegisteredClaims embedded as a pointer?")
		}
	}()
	_, _ = first.GetExpirationTime()
}

// WithJSONNumber makes numbers in a jwt.MapClaims, and in fields of type any, a
// json.Number, which has all digits. Without it they are a float64, which rounds
// integers above 2^53, such as the IDs of many databases. It costs about a microsecond
// per token, and code that expects a float64 has to change.
func WithJSONNumber() Option {
	return func(c *config) { c.jsonNumber = true }
}

// WithMaxTokenSize sets how many bytes a token may have, 16 KiB by default.
// Longer ones are refused before anything is done with them.
//
// It protects from tokens that are made to cost memory and time. A limit higher than
// that of the server's headers (1 MiB in net/http) means none. It panics if the size
// isn't positive.
func WithMaxTokenSize(bytes int) Option {
	return func(c *config) {
		if bytes <= 0 {
			panic("middleware: WithMaxTokenSize: the size is not positive")
		}
		c.maxTokenSize = bytes
	}
}

// WithExtractor sets where a request has its token. The default is [BearerExtractor],
// which looks in the Authorization header. [CookieExtractor] looks in a cookie, and
// package github.com/golang-jwt/jwt/v5/request has extractors for other places.
//
// An error of the extractor means 401, or what [StatusOf] says of it. It should be
// request.ErrNoTokenInRequest if there is no token. An empty token means the same. A
// panic of the extractor is a 500.
//
// Choose the place with care. A query parameter puts tokens into logs. A header that a
// proxy is trusted to write lets everybody in who reaches the server around the proxy. It
// panics if the extractor is nil.
func WithExtractor(extractor request.Extractor) Option {
	return func(c *config) {
		if isNil(extractor) {
			panic("middleware: WithExtractor: the extractor is nil")
		}
		c.extractor = extractor
	}
}

// WithOptional lets requests through that have no token, another scheme than Bearer
// included. Without it they are a 401. A token that isn't good, and the scheme Bearer
// without one, are refused all the same.
//
// The middleware then doesn't protect by itself any more. The context of such a request
// has no token, so each handler has to look at the second value of [TokenFromContext].
//
// [Verifier.Verify] goes on to return [request.ErrNoTokenInRequest] for an empty text.
// To transports other than HTTP, that error tells by a method Optional() bool that the
// call may pass.
func WithOptional() Option {
	return func(c *config) { c.optional = true }
}

// WithErrorHandler sets who answers requests that are turned away, [Respond] by
// default. The handler writes the whole response: status, headers and body. Nothing else
// makes sure of them. To be on the safe side, log the error and call Respond. A panic of
// the handler is the server's, as that of any handler.
//
// The error is for logs, not for clients: it has what your Keyfunc or extractor said.
// [errors.Is] tells what is wrong, in this order:
//
//   - ErrKeysUnavailable: keys cannot be had; the token may be good
//   - ErrInvalidConfig, ErrMissingConfig: the Keyfunc is misconfigured
//   - request.ErrNoTokenInRequest: there is no token
//   - jwt.ErrTokenMalformed: it is no token or too long, or there are two
//   - jwt.ErrTokenUnverifiable: there is no key for it, because of ErrUnknownKeyID or
//     jwks.ErrAlgorithmMismatch, or no call was worth making for it
//   - jwt.ErrTokenSignatureInvalid: it is forged
//   - jwt.ErrTokenInvalidClaims: it is well signed, but has a claim that is wrong;
//     jwt.ErrTokenExpired, jwt.ErrTokenNotValidYet, jwt.ErrTokenUsedBeforeIssued
//     and jwt.ErrTokenRequiredClaimMissing say more
//   - jwt.ErrTokenInvalidAudience, jwt.ErrTokenInvalidIssuer, ErrInsufficientScope: it
//     is good, but not for this server
//   - anything else is a panic, or comes from an extractor of your own; [StatusOf]
//     tells them apart
//
// It panics if the handler is nil.
func WithErrorHandler(handler func(w http.ResponseWriter, r *http.Request, err error)) Option {
	return func(c *config) {
		if handler == nil {
			panic("middleware: WithErrorHandler: the handler is nil")
		}
		c.handleError = handler
	}
}

// WithRealm sets the realm that challenges name, "api" by default (RFC 9110 section
// 11.5): what a client needs a token for. It is public. It panics if the realm is
// empty or has other characters than those of printable ASCII.
func WithRealm(realm string) Option {
	return func(c *config) {
		if realm == "" || !printable(realm) {
			panic("middleware: WithRealm: want printable ASCII")
		}
		c.realm = realm
	}
}

// WithResourceMetadata adds resource_metadata to each challenge: the URL of a document
// that tells clients where to get a token (RFC 9728). Without it challenges have none,
// and clients have to know. Serving the document is up to you. It panics unless the
// URL is one of https, or of http on a loopback address, without a fragment.
func WithResourceMetadata(metadataURL string) Option {
	return func(c *config) {
		u, err := url.Parse(metadataURL)
		secure := err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && loopback(u.Hostname()))
		if !secure || strings.Contains(metadataURL, "#") || !printable(metadataURL) {
			panic("middleware: WithResourceMetadata: want an https URL without a fragment")
		}
		c.metadata = metadataURL
	}
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

func loopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// withHostAudience wants the audience that the request's Host makes.
func withHostAudience(c *config) { c.hostAudience = true }
