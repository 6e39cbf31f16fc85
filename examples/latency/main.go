// Latency measures how long signing and verifying take with each of the
// library's signers, and how much of it is the library's own.
//
// It runs on embedded servers, where -rtt stands in for the network, or on Google
// Cloud, with the caller's Application Default Credentials, if keys are named. On
// App Engine it then measures the app's own identity too.
//
//	go run ./examples/latency -rtt 30ms -n 100
//	go run ./examples/latency -kms projects/p/locations/global/keyRings/r/cryptoKeys/k -service-account signer@p.iam.gserviceaccount.com
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var keyPaths []string
	flags := flag.NewFlagSet("latency", flag.ContinueOnError)
	flags.Func("kms", "a key in Cloud KMS, as `KEY_PATH` (a CryptoKey or one of its versions); may be repeated", func(path string) error {
		keyPaths = append(keyPaths, path)
		return nil
	})
	account := flags.String("service-account", "", "the `EMAIL` of a service account to sign as")
	samples := flags.Int("n", 20, "samples per row")
	rtt := flags.Duration("rtt", 2*time.Millisecond, "what a call to the embedded servers takes, beside the signature itself")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *samples < 1 {
		return errors.New("-n must be at least 1")
	}

	var b bed
	defer func() { err = errors.Join(err, b.close()) }()
	if len(keyPaths) == 0 && *account == "" {
		fmt.Fprintf(stdout, "On embedded servers, which sign for real and take %v more to answer.\n", *rtt)
		err = b.embed(ctx, *rtt)
	} else {
		fmt.Fprintf(stdout, "On Google Cloud.\n")
		err = b.connect(ctx, keyPaths, *account)
	}
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, explanation)
	signed, err := b.measureSigners(*samples)
	if err != nil {
		return err
	}
	verified, err := b.measureVerifiers(*samples)
	if err != nil {
		return err
	}
	return errors.Join(
		printTable(stdout, "Signer\tSignature Length\tSign Latency (p50, p95, p99)\tSamples\tOwn Share (p50)", signed),
		printTable(stdout, "Verifier\tCache\tVerify Latency (p50, p95, p99)\tSamples\tOwn Share (p50)", verified),
	)
}

const explanation = `One call before the samples opens the connections and fills the caches.
Own Share of signing: what remains without the time that Google's answer took, for
making the token and the call's messages, checking the answer and keeping keys.
Own Share of verifying: the time in the Keyfunc without that of Google's answer; all
the rest is jwt's parser and the signature check.
`

// A signer is one way to sign.
type signer struct {
	name   string
	ctx    context.Context // carries the configuration
	method jwt.SigningMethod
}

// A verifier is one source of keys, with a token that they verify.
type verifier struct {
	name    string
	cache   string
	keyfunc jwt.Keyfunc
	token   string
}

// A bed is what is measured.
type bed struct {
	signers   []signer
	verifiers []verifier
	calls     stopwatch // runs while Google is asked
	closers   []func() error
}

func (b *bed) onClose(f func() error) { b.closers = append(b.closers, f) }

func (b *bed) close() (err error) {
	for _, f := range slices.Backward(b.closers) {
		err = errors.Join(err, f())
	}
	return err
}

// sign returns a token by a signer.
func (s signer) sign() (string, error) {
	now := time.Now()
	text, err := gcpjwt.SignedString(s.ctx, jwt.NewWithClaims(s.method, jwt.RegisteredClaims{
		Issuer:    "latency",
		IssuedAt:  jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour)),
	}))
	if err != nil {
		return "", fmt.Errorf("sign with %s: %w", s.name, err)
	}
	return text, nil
}

// A row is a line of a table, with the samples that it sums up.
type row struct {
	name, detail string
	total, own   []time.Duration
}

func (b *bed) measureSigners(samples int) ([]row, error) {
	var rows []row
	for _, s := range b.signers {
		text, err := s.sign()
		if err != nil {
			return nil, err
		}
		r := row{name: s.name, detail: fmt.Sprint(len(text) - strings.LastIndexByte(text, '.') - 1)}
		for range samples {
			began, called := time.Now(), b.calls.read()
			if _, err := s.sign(); err != nil {
				return nil, err
			}
			took := time.Since(began)
			r.total = append(r.total, took)
			r.own = append(r.own, took-(b.calls.read()-called))
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (b *bed) measureVerifiers(samples int) ([]row, error) {
	var rows []row
	for _, v := range b.verifiers {
		r := row{name: v.name, detail: v.cache}
		var own time.Duration
		keyfunc := func(token *jwt.Token) (any, error) {
			began, called := time.Now(), b.calls.read()
			key, err := v.keyfunc(token)
			own = time.Since(began) - (b.calls.read() - called)
			return key, err
		}
		for i := range samples + 1 {
			began := time.Now()
			if _, err := jwt.Parse(v.token, keyfunc, jwt.WithExpirationRequired()); err != nil {
				return nil, fmt.Errorf("verify with %s: %w", v.name, err)
			}
			took := time.Since(began)
			if i == 0 {
				continue
			}
			r.total = append(r.total, took)
			r.own = append(r.own, own)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func printTable(w io.Writer, head string, rows []row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\n%s\n", head)
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s\t%.2f ms, %.2f ms, %.2f ms\t%d\t%.1f µs\n", r.name, r.detail,
			percentile(time.Millisecond, r.total, 50), percentile(time.Millisecond, r.total, 95), percentile(time.Millisecond, r.total, 99),
			len(r.total), percentile(time.Microsecond, r.own, 50))
	}
	return table.Flush()
}

// percentile returns the smallest sample that percent of the samples don't exceed, in a unit.
func percentile(unit time.Duration, samples []time.Duration, percent int) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return float64(sorted[(len(sorted)*percent+99)/100-1]) / float64(unit)
}
