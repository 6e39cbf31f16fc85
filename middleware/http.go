package middleware

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// bearerExtractor finds the token in the Authorization header (RFC 6750 section
// 2.1). It is stricter than jwt's, which takes the first of two headers, and more
// lenient with blanks. Whether what follows the scheme is a token is for the
// parser to say.
type bearerExtractor struct{}

func (bearerExtractor) ExtractToken(r *http.Request) (string, error) {
	headers := r.Header.Values("Authorization")
	switch len(headers) {
	case 0:
		return "", request.ErrNoTokenInRequest
	case 1:
	default:
		return "", fmt.Errorf("%w: more than one Authorization header", jwt.ErrTokenMalformed)
	}
	const blanks = " \t"
	scheme, token, _ := strings.Cut(strings.Trim(headers[0], blanks), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", request.ErrNoTokenInRequest
	}
	if token = strings.TrimLeft(token, blanks); token == "" {
		return "", fmt.Errorf("%w: no token after the scheme Bearer", jwt.ErrTokenMalformed)
	}
	return token, nil
}

// retryAfter is the number of seconds after which keys may be there again.
const retryAfter = "10"

// Respond answers a request that is turned away because of err. It is what the
// middleware does by itself, for error handlers that only want to know of it, and
// shows nothing of err, which may quote the token.
func Respond(w http.ResponseWriter, _ *http.Request, err error) {
	status, challenge := http.StatusUnauthorized, ""
	switch {
	// First, as jwt marks tokens without a key as unverifiable or forged.
	case errors.Is(err, gcpjwt.ErrKeysUnavailable):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", retryAfter)
	case misconfigured(err):
		status = http.StatusInternalServerError
	case errors.Is(err, errNotForUs):
		status, challenge = http.StatusForbidden, `Bearer error="insufficient_scope"`
	case errors.Is(err, request.ErrNoTokenInRequest):
		challenge = "Bearer" // a client that sent nothing did nothing wrong
	default:
		challenge = `Bearer error="invalid_token"`
	}
	if challenge != "" {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	http.Error(w, http.StatusText(status), status)
}

// misconfigured reports whether err is the fault of who set up the server.
func misconfigured(err error) bool {
	return errors.Is(err, gcpjwt.ErrInvalidConfig) || errors.Is(err, gcpjwt.ErrMissingConfig)
}
