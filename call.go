package gcpjwt

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// calling describes a call to Google for its errors.
type calling struct {
	verb, name string // "sign with", a key
	grant      string // what to grant to a caller who may not
	missing    string // what to check if there is no such thing
	sent       string // that must not appear in an error
}

// do makes the call by the policy that all calls have.
func (c *calling) do(ctx context.Context, policy retry.Policy, call func(ctx context.Context) error) error {
	return retry.Do(ctx, policy, kindOf, func(ctx context.Context) error {
		err := call(ctx)
		if err == nil || errors.Is(err, errs.ErrIntegrity) {
			return err
		}
		return c.failed(ctx, err)
	})
}

// corrupt reports an answer that failed a check.
func (c *calling) corrupt(format string, args ...any) error {
	return errs.Errorf("%w: %s %s: %w", errs.ErrIntegrity, c.verb, c.name, errs.Errorf(format, args...))
}

func (c *calling) failed(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		err = errs.Errorf("%w: %w", cause, err)
	}
	code := rpcCode(err)
	err = &googleError{errs.Foreign(err, c.sent), code}
	switch {
	case code == codes.PermissionDenied && c.grant != "":
		return errs.Errorf("%s %s: grant the caller %s: %w", c.verb, c.name, c.grant, err)
	case code == codes.NotFound && c.missing != "":
		return errs.Errorf("%s %s: check %s: %w", c.verb, c.name, c.missing, err)
	}
	return errs.Errorf("%s %s: %w", c.verb, c.name, err)
}

// googleError is an error of a Google client with the code that Google meant.
type googleError struct {
	error
	code codes.Code
}

func (e *googleError) Unwrap() error { return e.error }

// GRPCStatus makes status.Code find the code.
func (e *googleError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }

// rpcCode returns the code of an error of Google's, whichever transport it came over. REST
// has one HTTP status for several codes, so that the status in the body decides.
func rpcCode(err error) codes.Code {
	var ours *googleError
	if errors.As(err, &ours) {
		return ours.code
	}
	var answer *googleapi.Error
	if !errors.As(err, &answer) {
		return status.Code(err)
	}
	var body struct {
		Error struct{ Status string }
	}
	var code codes.Code
	if json.Unmarshal([]byte(answer.Body), &body) == nil &&
		code.UnmarshalJSON([]byte(`"`+body.Error.Status+`"`)) == nil && code != codes.OK {
		return code
	}
	if code, ok := codeOfHTTP[answer.Code]; ok {
		return code
	}
	return codes.Unknown
}

// codeOfHTTP is for answers without a status in the body, of a proxy for example.
var codeOfHTTP = map[int]codes.Code{
	http.StatusBadRequest:          codes.InvalidArgument,
	http.StatusUnauthorized:        codes.Unauthenticated,
	http.StatusForbidden:           codes.PermissionDenied,
	http.StatusNotFound:            codes.NotFound,
	http.StatusConflict:            codes.Aborted,
	http.StatusTooManyRequests:     codes.ResourceExhausted,
	499:                            codes.Canceled,
	http.StatusInternalServerError: codes.Internal,
	http.StatusNotImplemented:      codes.Unimplemented,
	http.StatusBadGateway:          codes.Unavailable,
	http.StatusServiceUnavailable:  codes.Unavailable,
	http.StatusGatewayTimeout:      codes.DeadlineExceeded,
}

// kindOf tells whether another attempt may help. It is the policy of the package
// documentation's table.
func kindOf(err error) retry.Kind {
	if errors.Is(err, errs.ErrIntegrity) {
		return retry.Corrupt
	}
	var answer *googleapi.Error
	if errors.As(err, &answer) && retry.OfStatus(answer.Code) == retry.Transient {
		return retry.Transient
	}
	switch rpcCode(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		if !strings.Contains(err.Error(), "x509: ") { // which no waiting mends
			return retry.Transient
		}
	}
	return retry.OfTransport(err)
}

// once keeps Google's clients from repeating calls by a policy of their own.
var once = gax.WithRetry(func() gax.Retryer { return nil })

// afterFailure says when to ask again for what could not be had. Only a service that is down
// or busy gets more time with each failure: a key that isn't ready, allowed or there yet
// may be in a moment.
func afterFailure(err error) refresh.Lifetime {
	switch rpcCode(err) {
	case codes.FailedPrecondition, codes.PermissionDenied, codes.NotFound,
		codes.InvalidArgument, codes.Unauthenticated:
		return refresh.Lifetime{Retry: keyset.NotReadyPause}
	}
	return refresh.Lifetime{}
}
