package middleware

import (
	"maps"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// ByIssuer returns a Keyfunc for tokens by several issuers. The token's iss picks one of
// keyfuncs. So a token verifies only with the keys of the issuer that it names, and no
// issuer can sign in another's name.
//
// A token by an issuer that isn't in keyfuncs is refused with [ErrUnknownKeyID] before
// any Keyfunc is called. It is a 401, as nobody can say whether it is good. [WithIssuer]
// isn't needed beside ByIssuer.
//
// A lookup costs next to nothing. ByIssuer panics if there is no issuer, one with an
// empty name, or a nil Keyfunc.
func ByIssuer(keyfuncs map[string]jwt.Keyfunc) jwt.Keyfunc {
	if len(keyfuncs) == 0 {
		panic("middleware: ByIssuer: there is no issuer")
	}
	for issuer, keyfunc := range keyfuncs {
		if issuer == "" || keyfunc == nil {
			panic("middleware: ByIssuer: an issuer has no name or no Keyfunc")
		}
	}
	keyfuncs = maps.Clone(keyfuncs)
	return func(token *jwt.Token) (any, error) {
		if token == nil || isNil(token.Claims) {
			return nil, errs.Errorf("%w: there are no claims", jwt.ErrTokenMalformed)
		}
		issuer, err := token.Claims.GetIssuer()
		if err != nil {
			return nil, errs.Errorf("%w: %w", jwt.ErrTokenMalformed, err)
		}
		keyfunc, ok := keyfuncs[issuer]
		if !ok {
			return nil, errs.Errorf("%w: the token is by none of the issuers", ErrUnknownKeyID)
		}
		return keyfunc(token)
	}
}
