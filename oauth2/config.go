package oauth2

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// Config says what the tokens of a source hold and which method signs them. What
// the method needs to reach its key is in the context given to [NewTokenSource].
type Config struct {
	// Method signs the tokens. Required; a signing method of package gcpjwt.
	Method jwt.SigningMethod

	// Issuer and Subject are the claims iss and sub. One that is empty is left
	// out.
	Issuer, Subject string

	// Audience is the claim aud: a string if it has one element, an array if
	// it has several, left out if it has none. No element may be empty.
	Audience []string

	// Lifetime is how long after its iat a token expires, in whole seconds; a
	// fraction is dropped. 0 means one hour. SigningMethodIAMJWT takes at most
	// 12 hours, as Google does, of which it uses one minute less, so that
	// Google's clock may be behind this machine's.
	Lifetime time.Duration

	// Claims are further claims. They cannot be those that the other fields or
	// the source set: iss, sub, aud, exp, nbf and iat. The map is copied, but
	// maps, slices and pointers in it are not: they must not be changed.
	Claims map[string]any
}

const (
	defaultLifetime = time.Hour

	// Google refuses a signJwt whose exp is more than 12 hours ahead by its
	// clock.
	maxSignJWTLifetime = 12 * time.Hour
	signJWTMargin      = time.Minute
)

// reserved are the claims that Config.Claims cannot have, and what to do
// instead.
var reserved = map[string]string{
	"iss": "set Issuer",
	"sub": "set Subject",
	"aud": "set Audience",
	"exp": "set Lifetime",
	"nbf": "the source sets it",
	"iat": "the source sets it",
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: oauth2: %s", gcpjwt.ErrInvalidConfig, fmt.Sprintf(format, args...))
}

// loggerFrom returns who is told of the failures of method, which must be one of
// package gcpjwt.
func loggerFrom(ctx context.Context, method jwt.SigningMethod) (*slog.Logger, error) {
	switch method.(type) {
	case *gcpjwt.SigningMethodKMS:
		if config, ok := gcpjwt.KMSFromContext(ctx); ok {
			return config.Logger, nil
		}
	case *gcpjwt.SigningMethodIAM:
		if config, ok := gcpjwt.IAMFromContext(ctx); ok {
			return config.Logger, nil
		}
	case *gcpjwt.SigningMethodAppEngineImpl:
	default:
		return nil, invalid("Method: want a signing method of package gcpjwt, not %T", method)
	}
	return nil, nil
}

// lifetime returns how long tokens live.
func (c Config) lifetime() (time.Duration, error) {
	signJWT := c.Method == gcpjwt.SigningMethodIAMJWT
	switch {
	case c.Lifetime == 0:
		return defaultLifetime, nil
	case c.Lifetime < time.Second:
		return 0, invalid("Lifetime %v: want at least one second, or 0 for an hour", c.Lifetime)
	case signJWT && c.Lifetime > maxSignJWTLifetime:
		return 0, invalid("Lifetime %v: signJwt takes at most 12 hours", c.Lifetime)
	case signJWT:
		return min(c.Lifetime.Truncate(time.Second), maxSignJWTLifetime-signJWTMargin), nil
	}
	return c.Lifetime.Truncate(time.Second), nil
}

// claims returns the claims that all tokens of a source have in common.
func (c Config) claims() (jwt.MapClaims, error) {
	claims := jwt.MapClaims{}
	for _, name := range slices.Sorted(maps.Keys(c.Claims)) {
		for claim, instead := range reserved {
			if strings.EqualFold(name, claim) { // as encoding/json matches the names of fields
				return nil, invalid("Claims: %s is not for it: %s", name, instead)
			}
		}
		claims[name] = c.Claims[name]
	}
	if slices.Contains(c.Audience, "") {
		return nil, invalid("Audience: an audience is empty")
	}
	if c.Issuer != "" {
		claims["iss"] = c.Issuer
	}
	if c.Subject != "" {
		claims["sub"] = c.Subject
	}
	switch len(c.Audience) {
	case 0:
	case 1:
		claims["aud"] = c.Audience[0]
	default:
		claims["aud"] = slices.Clone(c.Audience)
	}
	return claims, nil
}
