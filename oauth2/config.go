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
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/inside"
)

// Config says what the tokens of a source hold and what signs them.
type Config struct {
	// Signer signs the tokens. Either Signer or Method must be set, and not both.
	Signer *gcpjwt.Signer

	// Method signs the tokens, with the configuration in the context that the
	// constructor of the source gets. It is a signing method of package gcpjwt.
	Method jwt.SigningMethod

	// Issuer and Subject are the claims iss and sub. An empty one is left out.
	Issuer, Subject string

	// Audience is the claim aud: a string for one element, an array for several.
	// Without elements there is no aud. No element may be empty.
	Audience []string

	// Lifetime is how long a token is valid from its making, in whole seconds. A
	// fraction is dropped. 0 means one hour, in an exchange 5 minutes.
	// SigningMethodIAMJWT takes at most 12 hours, because Google takes no more.
	// It uses one minute less, in case Google's clock is behind.
	Lifetime time.Duration

	// Backdate is how far iat and nbf lie in the past, in whole seconds. It is for
	// verifiers whose clock is behind and that refuse an iat in the future. 0
	// means not at all, and 10 minutes are the most. It doesn't change exp, so
	// that exp - iat is Lifetime + Backdate.
	Backdate time.Duration

	// JWTID gives each token the claim jti: 130 random bits as 26 characters.
	JWTID bool

	// Claims are further claims. They cannot be those that other fields or the
	// source set: iss, sub, aud, exp, nbf, iat, and jti with JWTID. The map is
	// copied, but maps, slices and pointers in it are not: don't change them.
	Claims map[string]any

	// Header are further fields of the header, such as typ or x5t. They cannot be
	// alg and kid. signJwt takes none, because Google writes its header. The
	// map is copied as Claims is.
	Header map[string]any
}

const (
	defaultLifetime = time.Hour

	// Google refuses a signJwt whose exp is more than 12 hours ahead by its clock.
	maxSignJWTLifetime = 12 * time.Hour
	signJWTMargin      = time.Minute

	maxBackdate = 10 * time.Minute
)

// reserved are the claims that Config.Claims cannot have, and what to do instead.
var reserved = map[string]string{
	"iss": "set Issuer",
	"sub": "set Subject",
	"aud": "set Audience",
	"exp": "set Lifetime",
	"nbf": "the source sets it",
	"iat": "the source sets it",
}

var errNilContext = errs.Errorf("%w: a token source needs a context.Context", gcpjwt.ErrMissingConfig)

func invalid(format string, args ...any) error {
	return errs.Errorf("%w: oauth2: %s", gcpjwt.ErrInvalidConfig, fmt.Sprintf(format, args...))
}

// newMaker checks the configuration and makes what makes its tokens.
func (c Config) newMaker(ctx context.Context) (*maker, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if (c.Signer == nil) == (c.Method == nil) {
		return nil, invalid("want either Signer or Method")
	}
	method := c.Method
	var logger *slog.Logger
	if c.Signer != nil {
		method = c.Signer.Method() // nil while its key has no version that signs
		logger = inside.LoggerOf(c.Signer)
	} else {
		var err error
		if logger, err = loggerFrom(ctx, method); err != nil {
			return nil, err
		}
	}
	lifetime, err := c.lifetime(method)
	if err != nil {
		return nil, err
	}
	if c.Backdate < 0 || c.Backdate > maxBackdate {
		return nil, invalid("Backdate %v: want 0 to 10 minutes", c.Backdate)
	}
	claims, err := c.claims()
	if err != nil {
		return nil, err
	}
	if err := c.checkHeader(method); err != nil {
		return nil, err
	}
	return &maker{
		signer:   c.Signer,
		method:   c.Method,
		header:   maps.Clone(c.Header),
		claims:   claims,
		lifetime: lifetime,
		backdate: c.Backdate.Truncate(time.Second),
		jwtID:    c.JWTID,
		logger:   logger,
	}, nil
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
func (c Config) lifetime(method jwt.SigningMethod) (time.Duration, error) {
	signJWT := method == gcpjwt.SigningMethodIAMJWT
	switch {
	case c.Lifetime == 0:
		return defaultLifetime, nil
	case c.Lifetime < time.Second:
		return 0, invalid("Lifetime %v: want at least one second, or 0 for the default", c.Lifetime)
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
		if c.JWTID && strings.EqualFold(name, "jti") {
			return nil, invalid("Claims: %s is not for it: each token gets its own", name)
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

// checkHeader checks the further fields of the header.
func (c Config) checkHeader(method jwt.SigningMethod) error {
	if len(c.Header) > 0 && method == gcpjwt.SigningMethodIAMJWT {
		return invalid("Header: Google writes the header of signJwt; use signBlob")
	}
	for name := range c.Header {
		if strings.EqualFold(name, "alg") || strings.EqualFold(name, "kid") {
			return invalid("Header: %s is not for it: the signer sets it", name)
		}
	}
	return nil
}
