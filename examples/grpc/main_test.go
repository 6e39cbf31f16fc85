package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), nil, &out); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	for row, want := range map[string]int{
		`health check, no token +Check +OK +SERVING`:                                              1,
		`reflection, no token +ServerReflectionInfo +OK +.*invoices.v1.Invoices`:                  1,
		`good token +Get +OK +invoice 7 for reports`:                                              1,
		`good token +List +OK +3 invoices`:                                                        1,
		`good token +Get, 1,000 at once +OK +1,000 invoices`:                                      1,
		`no token +(Get|List) +Unauthenticated +-`:                                                2,
		`token for another audience +(Get|List) +PermissionDenied +-`:                             2,
		`token by another issuer +(Get|List) +PermissionDenied +-`:                                2,
		`forged token +(Get|List) +Unauthenticated +-`:                                            2,
		`expired token +(Get|List) +Unauthenticated +-`:                                           2,
		`good token, no permission, version known +Get +OK +invoice 7 for reports`:                1,
		`good token, no permission, version new +(Get|List) +Unavailable +RetryInfo: 10s`:         2,
		`.* method=/invoices.v1.Invoices/(Get|List) reason="no token present in request"`:         2,
		`.* method=/invoices.v1.Invoices/(Get|List) reason=".*token signature is invalid: .*"`:    2,
		`.* method=/invoices.v1.Invoices/(Get|List) reason=".*token is expired"`:                  2,
		`.* method=/invoices.v1.Invoices/(Get|List) reason=".*token has invalid (aud|iss).*"`:     4,
		`.* method=/invoices.v1.Invoices/(Get|List) reason=".*keys unavailable: .*list the.*"`:    1,
		`.* method=/invoices.v1.Invoices/(Get|List) reason=".*keys unavailable: .*unknown key.*"`: 1,
	} {
		if got := len(regexp.MustCompile(`(?m)^`+row+`$`).FindAllString(out.String(), -1)); got < want {
			t.Errorf("%d lines match %q, want %d:\n%s", got, row, want, &out)
		}
	}
}

// A program that is content with any answer would show nothing.
func TestDeviation(t *testing.T) {
	retry, err := status.New(codes.Unavailable, "Unavailable").WithDetails(new(errdetails.RetryInfo))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		want   codes.Code
		answer string
		got    *status.Status
		err    string // "": none
	}{
		{"good", codes.OK, "hello", status.New(codes.OK, ""), ""},
		{"refused", codes.Unauthenticated, "", status.New(codes.Unauthenticated, "Unauthenticated"), ""},
		{"unavailable", codes.Unavailable, "", retry, ""},
		{"let through", codes.Unauthenticated, "hello", status.New(codes.OK, ""), "got code OK"},
		{"another answer", codes.OK, "hello, root", status.New(codes.OK, ""), `got answer "hello, root"`},
		{"talkative", codes.Unauthenticated, "", status.New(codes.Unauthenticated, "token is expired"), `got message "token is expired"`},
		{"no advice", codes.Unavailable, "", status.New(codes.Unavailable, "Unavailable"), `got advice ""`},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := step{want: test.want, answer: "hello"}.check(test.answer, test.got)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error is %v, want %q", err, test.err)
			}
		})
	}
}

func TestRunArguments(t *testing.T) {
	if err := run(t.Context(), []string{"surplus"}, io.Discard); err == nil || !strings.Contains(err.Error(), "surplus") {
		t.Errorf("run with a surplus argument: %v", err)
	}
}

func TestRunCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, nil, io.Discard); err == nil {
		t.Error("run succeeded though its context was over")
	}
}

// A method's own error is no refusal, though it wraps another one.
func TestLogOwnError(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	own := fmt.Errorf("invoice 7: %w", io.ErrUnexpectedEOF)

	unary := logUnary(logger, func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(ctx, request)
	})
	_, err := unary(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, own })
	if err != own || log.Len() > 0 {
		t.Errorf("unary: error %v, log %q; want %v and none", err, &log, own)
	}
	stream := logStream(logger, func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(server, stream)
	})
	err = stream(nil, nil, &grpc.StreamServerInfo{}, func(any, grpc.ServerStream) error { return own })
	if err != own || log.Len() > 0 {
		t.Errorf("stream: error %v, log %q; want %v and none", err, &log, own)
	}
}
