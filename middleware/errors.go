package middleware

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// Errors that are those of package gcpjwt, under the same names.
var (
	ErrMissingConfig   = errs.ErrMissingConfig   // the Keyfunc has no configuration
	ErrInvalidConfig   = errs.ErrInvalidConfig   // the Keyfunc's configuration can't work
	ErrUnknownKeyID    = errs.ErrUnknownKeyID    // the kid names no key of the signer
	ErrKeysUnavailable = errs.ErrKeysUnavailable // keys could not be had: the token may still be good
)

// ErrInsufficientScope says that a good token has not all scopes that [WithScope]
// asks for.
var ErrInsufficientScope = errs.New("insufficient scope")

// StatusOf returns the HTTP status that an error of [Verifier.Verify] stands for: 401,
// 403, 500 or 503. It lets every transport say the same. nil is a 200, and an error that
// this package doesn't know a 401.
func StatusOf(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case is[*panicError](err):
		return http.StatusInternalServerError
	// Before all others, as jwt marks tokens without a key as unverifiable or forged.
	case errors.Is(err, ErrKeysUnavailable):
		return http.StatusServiceUnavailable
	case errors.Is(err, ErrInvalidConfig), errors.Is(err, ErrMissingConfig):
		return http.StatusInternalServerError
	// A Keyfunc or a claims type may say whatever it likes of a token that isn't good.
	case errors.Is(err, jwt.ErrTokenUnverifiable), errors.Is(err, jwt.ErrTokenSignatureInvalid), errors.Is(err, jwt.ErrTokenInvalidClaims):
		return http.StatusUnauthorized
	case is[*forbidden](err), errors.Is(err, ErrInsufficientScope):
		return http.StatusForbidden
	}
	return http.StatusUnauthorized
}

func is[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

// forbidden marks a token that is good, but not for this server.
type forbidden struct{ why error }

// Good tokens that are not for this server.
var (
	errIssuer   = errs.Errorf("%w", &forbidden{jwt.ErrTokenInvalidIssuer})
	errAudience = errs.Errorf("%w", &forbidden{jwt.ErrTokenInvalidAudience})
	errScope    = errs.Errorf("%w", &forbidden{ErrInsufficientScope})
)

func (f *forbidden) Error() string { return f.why.Error() }

func (f *forbidden) Unwrap() error { return f.why }

// refusal is an error of a Verifier.
type refusal struct {
	error
	verifier *Verifier // says what the challenge has to name
}

func (v *Verifier) refuse(err error) error { return &refusal{err, v} }

func (r *refusal) Unwrap() error { return r.error }

// Optional reports whether the Verifier lets a call pass that has no token, which is
// what the error says of this one. Other transports ask for it by its name.
func (r *refusal) Optional() bool {
	return r.verifier != nil && r.verifier.optional && errors.Is(r.error, request.ErrNoTokenInRequest)
}

// panicError is the panic of code that isn't this package's.
type panicError struct {
	text  string
	value error // nil: it wasn't one
}

func (p *panicError) Error() string { return p.text }

func (p *panicError) Unwrap() error { return p.value }

// panicked makes an error of what was recovered. It names the place, as the stack is
// lost.
func panicked(value any) error {
	text := fmt.Sprintf("%T", value)
	cause, ok := value.(error)
	if ok || text == "string" {
		text = fmt.Sprint(value)
	}
	return errs.Errorf("%w", &panicError{fmt.Sprintf("panic%s: %s", panicPlace(), text), cause})
}

// panicPlace is called by a deferred function, so that the frame below that of the
// runtime's panic is the one which panicked.
func panicPlace() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for inPanic := false; ; {
		frame, more := frames.Next()
		isRuntime := strings.HasPrefix(frame.Function, "runtime.")
		switch {
		case inPanic && !isRuntime:
			return fmt.Sprintf(" at %s:%d", frame.File, frame.Line)
		case !more:
			return ""
		}
		inPanic = inPanic || isRuntime
	}
}

// unquoted is an error of jwt's parser without what it quotes of the token.
func unquoted(err error) error {
	text := err.Error()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	for _, cause := range joined.Unwrap()[1:] {
		text = strings.TrimSuffix(text, ": "+cause.Error())
	}
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) && mismatch.Field != "" {
		text += fmt.Sprintf(": %s isn't a %v", mismatch.Field, mismatch.Type)
	}
	return &textError{text, err}
}

// textError is an error with another text.
type textError struct {
	text string
	error
}

func (e *textError) Error() string { return e.text }

func (e *textError) Unwrap() error { return e.error }
