package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"text/tabwriter"
	"time"

	xoauth2 "golang.org/x/oauth2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// run does what the package comment says.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("grpc", flag.ContinueOnError)
	keyPath := flags.String("kms", "", "sign with the Cloud KMS key at `KEY_PATH`, a CryptoKey or CryptoKeyVersion of algorithm EC_SIGN_P256_SHA256")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *keyPath == "" {
		fmt.Fprintln(stdout, "Cloud KMS is embedded in this program.")
		return embedded(ctx, stdout)
	}
	return play(ctx, &gcpjwt.KMSConfig{KeyPath: *keyPath}, nil, stdout)
}

// A step is one call, and what it should get.
type step struct {
	what   string
	before func() error        // what happens first, if anything
	source xoauth2.TokenSource // nil: no token
	call   call
	want   codes.Code
	answer string // of a call that gets through
}

// A stage is a server at work, and its log.
type stage struct {
	address string
	tls     credentials.TransportCredentials // the clients'
	stop    func()
	log     *bytes.Buffer
}

// newStage starts the server.
func newStage(ctx context.Context, config *gcpjwt.KMSConfig) (*stage, error) {
	s := &stage{log: new(bytes.Buffer)}
	serverTLS := s.certify()
	logger := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
			if attr.Key == slog.TimeKey { // the log is read next to the calls
				return slog.Attr{}
			}
			return attr
		},
	}))
	server, err := newServer(ctx, config, serverTLS, logger)
	if err != nil {
		return nil, fmt.Errorf("read the public keys: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go server.Serve(listener)
	s.address, s.stop = listener.Addr().String(), server.Stop
	return s, nil
}

// certify returns the server's credentials for TLS, and has clients trust them. They
// are those of package httptest, for loopback; a server has a certificate of its own.
func (s *stage) certify() credentials.TransportCredentials {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	s.tls = credentials.NewTLS(server.Client().Transport.(*http.Transport).TLSClientConfig)
	return credentials.NewServerTLSFromCert(&server.TLS.Certificates[0])
}

// play makes the calls of one client after the other. google is nil if it is the real
// one.
func play(ctx context.Context, config *gcpjwt.KMSConfig, google *testutil.KMS, stdout io.Writer) error {
	s, err := newStage(ctx, config)
	if err != nil {
		return err
	}
	defer s.stop()
	steps, err := scenes(ctx, config, google)
	if err != nil {
		return err
	}
	return s.play(ctx, steps, stdout)
}

// play makes the calls in order, prints what they got, and fails if that isn't what
// they should have.
func (s *stage) play(ctx context.Context, steps []step, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nCLIENT\tMETHOD\tCODE\tANSWER")
	var failures []error
	for _, step := range steps {
		answer, err := s.take(ctx, step)
		got := status.Convert(err)
		if err := step.check(answer, got); err != nil {
			failures = append(failures, fmt.Errorf("%s: %s: %w", step.what, step.call.method, err))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", step.what, step.call.method, got.Code(), cmp.Or(answer, advice(got), "-"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	s.stop() // ends the log
	fmt.Fprintln(stdout, "\nThe server's log:")
	for line := range strings.Lines(s.log.String()) {
		fmt.Fprint(stdout, "  ", line)
	}
	return errors.Join(failures...)
}

// take makes the call of a step over a connection of its own.
func (s *stage) take(ctx context.Context, step step) (string, error) {
	if step.before != nil {
		if err := step.before(); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second) // the server may wait for keys for 10 seconds
	defer cancel()
	conn, err := dial(s.address, s.tls, step.source)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer, err := step.call.do(ctx, conn)
	if err != nil {
		return "", err
	}
	return answer, nil
}

// check compares an answer with what it should be. One that refuses has no more to say
// than its code, but for when to come again.
func (s step) check(answer string, got *status.Status) error {
	switch {
	case got.Code() != s.want:
		return fmt.Errorf("got code %v (%s), want %v", got.Code(), got.Message(), s.want)
	case s.want == codes.OK && answer != s.answer:
		return fmt.Errorf("got answer %q, want %q", answer, s.answer)
	case s.want != codes.OK && got.Message() != s.want.String():
		return fmt.Errorf("got message %q, want %q", got.Message(), s.want)
	case (s.want == codes.Unavailable) != (advice(got) != ""):
		return fmt.Errorf("got advice %q", advice(got))
	}
	return nil
}

// advice tells a client what to do next.
func advice(got *status.Status) string {
	for _, detail := range got.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return fmt.Sprintf("RetryInfo: %v", info.GetRetryDelay().AsDuration())
		}
	}
	return ""
}
