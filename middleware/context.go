package middleware

import (
	"context"

	"github.com/golang-jwt/jwt/v5"
)

type tokenKey struct{}

// NewContext returns a context that carries token, as the middleware makes one for
// each request that it lets through. It is for the tests of handlers, and for
// transports that have verified a token by themselves.
func NewContext(ctx context.Context, token *jwt.Token) context.Context {
	return &tokenContext{ctx, token}
}

// tokenContext is half as large as what context.WithValue makes.
type tokenContext struct {
	context.Context
	token *jwt.Token
}

func (c *tokenContext) Value(key any) any {
	if key == (tokenKey{}) {
		return c.token
	}
	return c.Context.Value(key)
}

// TokenFromContext returns the verified token of the request whose context ctx is. It
// returns false if the request has none: it didn't pass the middleware, or it passed
// without a token (see [WithOptional]). The token's Claims are a jwt.MapClaims, or what
// the function given to [WithClaims] returned.
func TokenFromContext(ctx context.Context) (*jwt.Token, bool) {
	token, _ := ctx.Value(tokenKey{}).(*jwt.Token)
	return token, token != nil
}

// ClaimsFromContext returns the claims of the token that [TokenFromContext] returns,
// and false if there is no token or its claims are of another type than T.
func ClaimsFromContext[T jwt.Claims](ctx context.Context) (T, bool) {
	token, ok := TokenFromContext(ctx)
	if !ok {
		var none T
		return none, false
	}
	claims, ok := token.Claims.(T)
	return claims, ok
}
