package gcpjwt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// httpError is an error of a client of Google's that speaks HTTP.
func httpError(code int, body string) error {
	err, _ := apierror.FromError(&googleapi.Error{Code: code, Body: body})
	return err
}

// One HTTP status stands for several codes: that in the body decides (C04). What kind of error
// it is decides whether it is tried again (C11).
func TestErrorCodes(t *testing.T) {
	t.Parallel()
	body := func(status string) string {
		return fmt.Sprintf(`{"error": {"code": 400, "message": "no", "status": %q, "details": []}}`, status)
	}
	for name, tt := range map[string]struct {
		err  error
		code codes.Code
		kind retry.Kind
	}{
		"none":                       {nil, codes.OK, retry.Final},
		"gRPC":                       {status.Error(codes.FailedPrecondition, "no"), codes.FailedPrecondition, retry.Final},
		"gRPC, wrapped":              {fmt.Errorf("x: %w", status.Error(codes.NotFound, "no")), codes.NotFound, retry.Final},
		"gRPC, down":                 {status.Error(codes.Unavailable, "no"), codes.Unavailable, retry.Transient},
		"gRPC, late":                 {status.Error(codes.DeadlineExceeded, "no"), codes.DeadlineExceeded, retry.Transient},
		"gRPC, busy":                 {status.Error(codes.ResourceExhausted, "no"), codes.ResourceExhausted, retry.Transient},
		"gRPC, internal":             {status.Error(codes.Internal, "no"), codes.Internal, retry.Final},
		"gRPC, a bad certificate":    {status.Error(codes.Unavailable, "tls: x509: unknown authority"), codes.Unavailable, retry.Final},
		"not ready":                  {httpError(400, body("FAILED_PRECONDITION")), codes.FailedPrecondition, retry.Final},
		"invalid":                    {httpError(400, body("INVALID_ARGUMENT")), codes.InvalidArgument, retry.Final},
		"out of range":               {httpError(400, body("OUT_OF_RANGE")), codes.OutOfRange, retry.Final},
		"exists":                     {httpError(409, body("ALREADY_EXISTS")), codes.AlreadyExists, retry.Final},
		"aborted":                    {httpError(409, body("ABORTED")), codes.Aborted, retry.Final},
		"British":                    {httpError(499, body("CANCELLED")), codes.Canceled, retry.Final},
		"busy":                       {httpError(429, body("RESOURCE_EXHAUSTED")), codes.ResourceExhausted, retry.Transient},
		"down":                       {httpError(503, body("UNAVAILABLE")), codes.Unavailable, retry.Transient},
		"lost":                       {httpError(500, body("DATA_LOSS")), codes.DataLoss, retry.Transient},
		"unimplemented":              {httpError(501, body("UNIMPLEMENTED")), codes.Unimplemented, retry.Final},
		"success that fails":         {httpError(400, body("OK")), codes.InvalidArgument, retry.Final},
		"an unknown status":          {httpError(403, body("NO_WAY")), codes.PermissionDenied, retry.Final},
		"a number for a status":      {httpError(404, `{"error": {"status": 5}}`), codes.NotFound, retry.Final},
		"no status":                  {httpError(401, `{"error": "x"}`), codes.Unauthenticated, retry.Final},
		"no JSON":                    {httpError(502, "<html>"), codes.Unavailable, retry.Transient},
		"no body":                    {httpError(504, ""), codes.DeadlineExceeded, retry.Transient},
		"null":                       {httpError(500, "null"), codes.Internal, retry.Transient},
		"a status that nobody knows": {httpError(418, ""), codes.Unknown, retry.Final},
		"EOF":                        {fmt.Errorf("Post: %w", io.EOF), codes.Unknown, retry.Cut},
		"reset":                      {fmt.Errorf("Post: %w", syscall.ECONNRESET), codes.Unknown, retry.Cut},
		"corrupt":                    {errs.Errorf("%w: x", errs.ErrIntegrity), codes.Unknown, retry.Corrupt},
		"cancelled":                  {context.Canceled, codes.Unknown, retry.Final},
		"any other":                  {errors.New("x"), codes.Unknown, retry.Final},
	} {
		if got := rpcCode(tt.err); got != tt.code {
			t.Errorf("%s: code %v, want %v", name, got, tt.code)
		}
		if tt.err == nil {
			continue
		}
		if got := kindOf(tt.err); got != tt.kind {
			t.Errorf("%s: kind %v, want %v", name, got, tt.kind)
		}
		// As callers get it, after any number of wraps.
		op := calling{verb: "sign with", name: "k", grant: "r", missing: "KeyPath"}
		err := errs.Errorf("more: %w", op.failed(t.Context(), tt.err))
		if got := rpcCode(err); got != tt.code {
			t.Errorf("%s, as callers get it: code %v, want %v", name, got, tt.code)
		}
		if got := status.Code(err); got != tt.code {
			t.Errorf("%s, as callers get it: status.Code %v, want %v", name, got, tt.code)
		}
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: the error got lost in %v", name, err)
		}
		for code, want := range map[codes.Code]string{codes.PermissionDenied: "grant the caller r", codes.NotFound: "check KeyPath"} {
			if got := strings.Contains(err.Error(), want); got != (code == tt.code) {
				t.Errorf("%s: the error is %q", name, err)
			}
		}
	}
	if len(codeOfHTTP) == 0 || codeOfHTTP[http.StatusOK] != codes.OK {
		t.Error("an HTTP status of success is an error")
	}
}

// No error holds what was sent, and each ends with its context's reason.
func TestCallErrors(t *testing.T) {
	t.Parallel()
	const secret = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzZWNyZXQtc3ViamVjdCJ9"
	op := calling{verb: "sign with", name: "k", sent: secret}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the caller's reason"))
	err := op.do(ctx, retry.Sign, func(context.Context) error {
		return httpError(400, `{"error":{"status":"INVALID_ARGUMENT","message":"bad data: `+secret+`"}}`)
	})
	if !errors.Is(err, context.Canceled) || status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v, want context.Canceled and INVALID_ARGUMENT", err)
	}
	if text := fmt.Sprint(err); strings.Contains(text, "c2VjcmV0") || strings.Contains(text, secret) || strings.Count(text, "gcpjwt: ") != 1 {
		t.Errorf("the error is %q", text)
	}
	if err := op.do(t.Context(), retry.Read, func(context.Context) error { panic("at the transport's") }); err == nil || strings.Contains(err.Error(), "transport's") {
		t.Errorf("a panic: %v, want an error without its text", err)
	}
}
