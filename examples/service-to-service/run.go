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
	"net/http"
	"net/http/httptest"
	"strings"
	"text/tabwriter"
	"time"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// run does what the package comment says.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("service-to-service", flag.ContinueOnError)
	keyPath := flags.String("kms", "", "sign with the Cloud KMS key at `KEY_PATH`, a CryptoKey or CryptoKeyVersion of algorithm EC_SIGN_P256_SHA256")
	account := flags.String("service-account", "", "sign as the service account with the `EMAIL` address")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	if *keyPath == "" && *account == "" {
		fmt.Fprintln(stdout, "IAM Credentials and Cloud KMS are embedded in this program.")
		return errors.Join(embeddedIAM(ctx, stdout), embeddedKMS(ctx, stdout))
	}
	var failures []error
	if *account != "" {
		config := &gcpjwt.IAMConfig{ServiceAccount: *account, IAMType: gcpjwt.IAMJwtType, EnableCache: true}
		failures = append(failures, playIAM(ctx, config, nil, stdout))
	}
	if *keyPath != "" {
		failures = append(failures, playKMS(ctx, &gcpjwt.KMSConfig{KeyPath: *keyPath}, nil, stdout))
	}
	return errors.Join(failures...)
}

// A step is one request, and what it should get.
type step struct {
	what   string
	before func() error // what happens first, if anything
	client *http.Client
	path   string // "": /api/hello
	want   int

	// recovering says that an outage has just ended, which servers don't notice at
	// once. A client should wait for as long as Retry-After says; this one asks
	// until it gets what it should.
	recovering bool
}

// healthCheck is a step that needs no token.
var healthCheck = step{what: "health check, no token", client: http.DefaultClient, path: "/healthz", want: http.StatusOK}

const (
	pause    = 150 * time.Millisecond // after the first failure, servers ask Google again after 100 ms
	patience = 30 * time.Second
)

// An answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
}

// A stage is a server at work, and its log.
type stage struct {
	name   string
	server *httptest.Server
	log    *bytes.Buffer
	caller string // the subject of good tokens
}

// play makes the requests in order, prints what they got, and fails if that isn't
// what they should have.
func (s *stage) play(ctx context.Context, steps []step, stdout io.Writer) error {
	fmt.Fprintf(stdout, "\nTokens by %s:\n\n", s.name)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REQUEST\tSTATUS\tBODY\tHEADER")
	var failures []error
	for _, step := range steps {
		got, err := s.take(ctx, step)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %s: %w", s.name, step.what, err))
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", step.what, got.status, cmp.Or(got.body, "-"), cmp.Or(got.telling(), "-"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}

	s.server.Close() // ends the log
	fmt.Fprintln(stdout, "\nThe server's log:")
	for line := range strings.Lines(s.log.String()) {
		fmt.Fprint(stdout, "  ", line)
	}
	return errors.Join(failures...)
}

// take takes one step.
func (s *stage) take(ctx context.Context, step step) (answer, error) {
	if step.before != nil {
		if err := step.before(); err != nil {
			return answer{}, err
		}
	}
	path := cmp.Or(step.path, "/api/hello")
	began := time.Now()
	for {
		if step.recovering {
			time.Sleep(pause)
		}
		got, err := get(ctx, step.client, s.server.URL+path)
		if err == nil {
			err = s.check(got, step.want, path)
		}
		if err == nil || !step.recovering || ctx.Err() != nil || time.Since(began) > patience {
			return got, err
		}
	}
}

func get(ctx context.Context, client *http.Client, url string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return answer{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return answer{response.StatusCode, response.Header, strings.TrimSpace(string(body))}, err
}

// check compares an answer with what it should be: a good one greets the caller,
// and one that refuses has the header that goes with its status, and no more to
// say than that.
func (s *stage) check(got answer, status int, path string) error {
	if got.status != status {
		return fmt.Errorf("got status %d, want %d", got.status, status)
	}
	body, header := http.StatusText(status), ""
	switch status {
	case http.StatusOK:
		body = "hello, " + s.caller
		if path == "/healthz" {
			body = "healthy"
		}
	case http.StatusServiceUnavailable:
		header = "Retry-After"
	default:
		header = "WWW-Authenticate"
	}
	if got.body != body {
		return fmt.Errorf("got body %q, want %q", got.body, body)
	}
	if header != "" && got.header.Get(header) == "" {
		return fmt.Errorf("got no %s", header)
	}
	return nil
}

// telling is the headers that tell a client what to do next.
func (a answer) telling() string {
	var lines []string
	for _, name := range []string{"WWW-Authenticate", "Retry-After"} {
		if value := a.header.Get(name); value != "" {
			lines = append(lines, name+": "+value)
		}
	}
	return strings.Join(lines, ", ")
}

// newLogger returns a logger for a log that is read next to the requests, and so
// needs no times.
func newLogger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
			if attr.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return attr
		},
	}))
}
