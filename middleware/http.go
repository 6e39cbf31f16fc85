package middleware

import (
	"errors"
	"net/http"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// Handler returns a handler that lets those requests through to next that carry a
// good token. The token is in their context: see [TokenFromContext]. Requests of any
// method need one, HEAD and OPTIONS included: put what answers CORS preflights
// in front.
func (v *Verifier) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("middleware: Handler: the handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := v.extract(r)
		if err == nil {
			var token *jwt.Token
			if token, err = v.verify(r.Context(), text, r.Host); err == nil {
				next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), token)))
				return
			}
		}
		var refused *refusal
		switch {
		case v == nil || v.handleError == nil:
			Respond(w, r, err)
		case errors.As(err, &refused) && refused.Optional():
			next.ServeHTTP(w, r)
		case is[*panicError](err) && errors.Is(err, http.ErrAbortHandler):
			panic(http.ErrAbortHandler) // somebody's way to end a request
		default:
			v.handleError(w, r, err)
		}
	})
}

// extract returns the text of a request's token.
func (v *Verifier) extract(r *http.Request) (text string, err error) {
	if v == nil || v.extractor == nil {
		return "", nil // verify says what is wrong
	}
	defer func() {
		if value := recover(); value != nil {
			text, err = "", v.refuse(panicked(value))
		}
	}()
	if text, err = v.extractor.ExtractToken(r); err != nil {
		return "", v.refuse(err)
	}
	return text, nil
}

// BearerExtractor finds the token in the Authorization header (RFC 6750 section
// 2.1), with the scheme in any case, and is what the middleware uses unless
// [WithExtractor] says otherwise. It is stricter than jwt's: two Authorization
// headers, and a scheme without a token, are [jwt.ErrTokenMalformed]. Put it into a
// request.MultiExtractor to look elsewhere, too.
var BearerExtractor request.Extractor = bearerExtractor{}

type bearerExtractor struct{}

// ExtractToken leaves it to the parser to say whether what follows the scheme is a
// token.
func (bearerExtractor) ExtractToken(r *http.Request) (string, error) {
	headers := r.Header["Authorization"]
	switch len(headers) {
	case 0:
		return "", request.ErrNoTokenInRequest
	case 1:
	default:
		return "", errs.Errorf("%w: more than one Authorization header", jwt.ErrTokenMalformed)
	}
	scheme, token, _ := strings.Cut(trimBlanks(headers[0]), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", request.ErrNoTokenInRequest
	}
	if token = trimBlanks(token); token == "" {
		return "", errs.Errorf("%w: no token after the scheme Bearer", jwt.ErrTokenMalformed)
	}
	return token, nil
}

func trimBlanks(text string) string {
	isBlank := func(char byte) bool { return char == ' ' || char == '\t' }
	for text != "" && isBlank(text[0]) {
		text = text[1:]
	}
	for text != "" && isBlank(text[len(text)-1]) {
		text = text[:len(text)-1]
	}
	return text
}

// CookieExtractor returns an extractor for [WithExtractor] that finds the token in a
// request's cookie of the name. An empty cookie is none; two of the name are
// [jwt.ErrTokenMalformed], as another site of the same domain may have set one of
// them. CookieExtractor panics if no cookie can have the name.
//
// A browser sends cookies along with requests that other sites make. Set the cookie
// with HttpOnly, Secure and SameSite, name it __Host-something, and put
// [http.CrossOriginProtection] in front.
func CookieExtractor(name string) request.Extractor {
	if (&http.Cookie{Name: name}).Valid() != nil {
		panic("middleware: CookieExtractor: no cookie can have that name")
	}
	return cookieExtractor(name)
}

type cookieExtractor string

func (e cookieExtractor) ExtractToken(r *http.Request) (string, error) {
	cookies := r.CookiesNamed(string(e))
	switch {
	case len(cookies) > 1:
		return "", errs.Errorf("%w: more than one cookie of the name", jwt.ErrTokenMalformed)
	case len(cookies) == 0 || cookies[0].Value == "":
		return "", request.ErrNoTokenInRequest
	}
	return cookies[0].Value, nil
}

// retryAfter is the number of seconds after which keys may be there again.
const retryAfter = "10"

// Respond answers a request that is turned away because of err. It is what the
// middleware does by itself, for error handlers that only want to know of it, and
// for whoever calls [Verifier.Verify] before a handshake. The status is [StatusOf]'s.
// Nothing of err is shown, but realm, scopes and metadata of the Verifier that
// returned it are named. err must not be nil: that is a 500.
func Respond(w http.ResponseWriter, _ *http.Request, err error) {
	status := StatusOf(err)
	switch status {
	case http.StatusOK:
		status = http.StatusInternalServerError
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", retryAfter)
	case http.StatusUnauthorized, http.StatusForbidden:
		w.Header().Set("WWW-Authenticate", challenge(err))
	}
	http.Error(w, http.StatusText(status), status)
}

// challenge is the value of a WWW-Authenticate header: RFC 6750 section 3 and, for
// resource_metadata, RFC 9728 section 5.1.
func challenge(err error) string {
	realm, metadata, scopes := defaultRealm, "", ""
	var refused *refusal
	if errors.As(err, &refused) && refused.verifier != nil {
		v := refused.verifier
		realm, metadata, scopes = v.realm, v.metadata, strings.Join(v.scopes, " ")
	}
	text := "Bearer realm=" + quoted(realm)
	switch {
	case errors.Is(err, request.ErrNoTokenInRequest): // a client that sent nothing did nothing wrong
	case StatusOf(err) == http.StatusForbidden && errors.Is(err, ErrInsufficientScope):
		text += `, error="insufficient_scope"`
		if scopes != "" {
			text += ", scope=" + quoted(scopes)
		}
	default:
		text += `, error="invalid_token"`
	}
	if metadata != "" {
		text += ", resource_metadata=" + quoted(metadata)
	}
	return text
}

// quoted makes a quoted-string (RFC 9110 section 5.6.4) of text that can be in one.
func quoted(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
