package middleware

import (
	"context"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// A Verifier decides whether a token is good. It may be used concurrently, and is
// made by [NewVerifier]; the zero Verifier refuses everything with [ErrMissingConfig].
//
// These rules hold whatever the options say:
//
//   - The token has three parts in strict base64url, no line breaks, and no more
//     bytes than [WithMaxTokenSize] says.
//   - Header and claims are JSON objects in which no name stands twice at the top. A
//     registered claim counts under its exact name only: EXP is not exp.
//   - A header with crit is refused, as no extension is known (RFC 7515 section
//     4.1.11).
//   - exp is required. exp, nbf and iat are JSON numbers from 0 to 253402300799, the
//     end of the year 9999. Fractions are allowed. exp must be ahead, nbf and iat
//     must not be, but for [WithLeeway].
//   - The signature comes before the claims, so a forged token is never called
//     expired.
//
// A malformed token costs no call of the Keyfunc.
//
// A check of a MAC key of Cloud KMS is a call. There the claims come first, so that a
// token that can't be good costs none. Such a token is unverifiable. Nothing is said of
// its claims, as nobody knows who made them. A key tells that it costs a call by a method
// VerifiedByCall(). It may be an element of a jwt.VerificationKeySet.
type Verifier struct {
	config
	keyfunc   jwt.Keyfunc // nil: this is no Verifier
	parser    *jwt.Parser
	validator *jwt.Validator
}

// NewVerifier returns a Verifier for tokens that verify with the keys of keyfunc.
// Give it [WithAudience]: without it, tokens for any audience are good, including
// those that were made for other servers.
//
// keyfunc must refuse tokens of another algorithm than its key's, as those of
// packages gcpjwt and jwks do. It may be called concurrently. A Keyfunc of your own
// should wrap [ErrKeysUnavailable] where its keys cannot be had, for a 503 instead
// of a 401.
//
// NewVerifier panics if keyfunc is nil or an option makes no sense.
func NewVerifier(keyfunc jwt.Keyfunc, options ...Option) *Verifier {
	if keyfunc == nil {
		panic("middleware: NewVerifier: the Keyfunc is nil")
	}
	v := &Verifier{config: defaults(), keyfunc: keyfunc}
	for _, option := range options {
		option(&v.config)
	}
	rules := []jwt.ParserOption{
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(v.leeway),
		jwt.WithStrictDecoding(),
	}
	if v.jsonNumber {
		rules = append(rules, jwt.WithJSONNumber())
	}
	v.parser, v.validator = jwt.NewParser(rules...), jwt.NewValidator(rules...)
	return v
}

// Verify returns the token whose text is given, if it is good, and otherwise no token
// and an error: [StatusOf] says what the error is in HTTP, [WithErrorHandler] lists
// what [errors.Is] tells. An empty text is [request.ErrNoTokenInRequest]. A Keyfunc,
// a claims type or a signing method that panics is an error, too.
//
// ctx is that of the call that the token came with. If it has ended, nobody waits for
// an answer, so Verify does nothing and returns [ErrKeysUnavailable]. A jwt.Keyfunc
// takes no context, so what it waits for is not ended by ctx.
func (v *Verifier) Verify(ctx context.Context, text string) (*jwt.Token, error) {
	return v.verify(ctx, text, "")
}

// verify is Verify of a request to a host.
func (v *Verifier) verify(ctx context.Context, text, host string) (token *jwt.Token, err error) {
	defer func() {
		if value := recover(); value != nil {
			token, err = nil, v.refuse(panicked(value))
		}
	}()
	if v == nil || v.keyfunc == nil {
		return nil, errs.Errorf("%w: the Verifier wasn't made by NewVerifier", ErrMissingConfig)
	}
	if ctx != nil && ctx.Err() != nil {
		return nil, v.refuse(errs.Errorf("%w: the call has ended: %w", ErrKeysUnavailable, ctx.Err()))
	}
	if v.tokens == nil {
		token, err = v.check(text, host)
	} else {
		token, err = v.checkOnce(text, host)
	}
	if err != nil {
		return nil, v.refuse(err)
	}
	return token, nil
}

func (v *Verifier) checkText(text string) error {
	switch {
	case text == "":
		return request.ErrNoTokenInRequest
	case len(text) > v.maxTokenSize:
		return errs.Errorf("%w: it is longer than %d bytes", jwt.ErrTokenMalformed, v.maxTokenSize)
	case strings.IndexByte(text, '\r') >= 0 || strings.IndexByte(text, '\n') >= 0: // base64 skips them, so that one token had many spellings
		return errs.Errorf("%w: it has line breaks", jwt.ErrTokenMalformed)
	}
	return nil
}

// check verifies a token and checks its claims.
func (v *Verifier) check(text, host string) (*jwt.Token, error) {
	token, stated, err := v.parse(text)
	if err != nil {
		return nil, err
	}
	if _, err := v.checkSignature(token, stated, host); err != nil {
		return nil, err
	}
	return v.checkClaims(token, stated, host)
}

// parse returns a token of which nothing is known but that it is well-formed, and
// what its payload states.
func (v *Verifier) parse(text string) (*jwt.Token, *statements, error) {
	if err := v.checkText(text); err != nil {
		return nil, nil, err
	}
	token, parts, err := v.parser.ParseUnverified(text, v.newClaims())
	if err != nil {
		return nil, nil, unquoted(err)
	}
	if err := checkHeader(decoded(parts[0])); err != nil {
		return nil, nil, err
	}
	stated, err := v.read(decoded(parts[1]))
	return token, stated, err
}

// checkSignature asks the Keyfunc for the key of a token and verifies its signature.
func (v *Verifier) checkSignature(token *jwt.Token, stated *statements, host string) (key any, err error) {
	key, err = v.keyfunc(token)
	if err != nil {
		return nil, errs.Errorf("%w: %w", jwt.ErrTokenUnverifiable, err)
	}
	keys := []jwt.VerificationKey{key}
	if set, ok := key.(jwt.VerificationKeySet); ok {
		keys = set.Keys
	}
	if costsCall(keys) && v.precheck(token, stated, host) != nil {
		return nil, errs.Errorf("%w: its claims can't be right, so no call was made for it", jwt.ErrTokenUnverifiable)
	}
	err = errs.Errorf("%w: there is no key for it", jwt.ErrTokenUnverifiable)
	signed := token.Raw[:strings.LastIndexByte(token.Raw, '.')]
	for _, key := range keys {
		if err = token.Method.Verify(signed, token.Signature, key); err == nil {
			return key, nil
		}
		err = errs.Errorf("%w: %w", jwt.ErrTokenSignatureInvalid, err)
	}
	return nil, err
}

// costsCall reports whether a check with one of the keys is a call.
func costsCall(keys []jwt.VerificationKey) bool {
	for _, key := range keys {
		if _, ok := key.(interface{ VerifiedByCall() }); ok {
			return true
		}
	}
	return false
}
