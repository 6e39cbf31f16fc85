package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// run starts a Cloud KMS server, has its key rotated, and fails if a promise was
// broken. The options are those of the server.
func run(ctx context.Context, args []string, stdout io.Writer, opts ...testutil.Option) error {
	flags := flag.NewFlagSet("rotation", flag.ContinueOnError)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	server, err := testutil.NewKMS(opts...)
	if err != nil {
		return fmt.Errorf("start the embedded Cloud KMS: %w", err)
	}
	defer server.Close()
	version, err := server.CreateKey("rotating", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		return fmt.Errorf("create a key: %w", err)
	}
	cryptoKey, _, _ := strings.Cut(version, "/cryptoKeyVersions/")

	// A client each, so that nobody knows what another has read.
	var clients [3]*kms.KeyManagementClient
	for i := range clients {
		if clients[i], err = server.Client(ctx); err != nil {
			return fmt.Errorf("make a client: %w", err)
		}
		defer clients[i].Close()
	}
	signer, verifier, operator := clients[0], clients[1], clients[2]

	fmt.Fprintf(stdout, `A signer and a verifier follow a CryptoKey, with a KeyRefresh of %v.
The verifier also repeats the last token of each earlier version all the time.

`, keyRefresh)
	log := newTimeline(stdout, cryptoKey)
	if err := rotate(ctx, signer, verifier, operator, cryptoKey, log); err != nil {
		return err
	}
	return log.verdict()
}

// A timeline prints events as they come, counts, and notes broken promises. The
// number of a version stands for it.
type timeline struct {
	out       io.Writer
	cryptoKey string
	start     time.Time

	mu          sync.Mutex
	inUse       string // the version that signed last
	signs       int
	accepts     int
	refusals    int // of tokens by versions that are no good any more
	revocations map[string]*revocation
	broken      []error
}

// A revocation is the disabling or destruction of a version. Its tokens are good
// until it begins, and must be refused from keyRefresh after its end on. In
// between, either will do.
type revocation struct {
	began, ended time.Time // ended is zero while it goes on
	noticed      bool
}

func newTimeline(out io.Writer, cryptoKey string) *timeline {
	fmt.Fprintf(out, "%8s  %-40s  %6s  %6s  %8s  %7s\n", "TIME", "EVENT", "IN USE", "SIGNED", "ACCEPTED", "REFUSED")
	return &timeline{
		out: out, cryptoKey: cryptoKey, start: time.Now(),
		inUse: "-", revocations: make(map[string]*revocation),
	}
}

// event prints a line with the counts so far.
func (l *timeline) event(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.print(text)
}

// print is event for those who hold mu.
func (l *timeline) print(text string) {
	fmt.Fprintf(l.out, "%5d ms  %-40s  %6s  %6d  %8d  %7d\n",
		time.Since(l.start).Milliseconds(), text, l.inUse, l.signs, l.accepts, l.refusals)
}

// signed takes note of a signature or of its failure.
func (l *timeline) signed(kid string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.fail("a signature failed: %w", err)
		return
	}
	l.signs++
	if version := numberOf(l.cryptoKey, kid); version != l.inUse {
		before := l.inUse
		l.inUse = version
		if before != "-" {
			l.print(fmt.Sprintf("  signer goes from version %s to %s", before, version))
		}
	}
}

// verified takes note of a verification that began at a time and gave err.
func (l *timeline) verified(kid string, began time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	version := numberOf(l.cryptoKey, kid)
	r := l.revocations[version]
	if err == nil {
		l.accepts++
		if r != nil && !r.ended.IsZero() && began.After(r.ended.Add(keyRefresh)) {
			l.fail("a token by version %s was accepted %v after the end of that", version, began.Sub(r.ended))
		}
		return
	}
	if r == nil {
		l.fail("a good token by version %s was refused: %w", version, err)
		return
	}
	l.refusals++
	if !r.noticed {
		r.noticed = true
		l.print(fmt.Sprintf("  verifier refuses version %s, %v later", version, time.Since(r.began).Round(time.Millisecond)))
	}
}

// revoking says that a version is about to be disabled or destroyed.
func (l *timeline) revoking(version int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revocations[fmt.Sprint(version)] = &revocation{began: time.Now()}
}

// revoked says that it is.
func (l *timeline) revoked(version int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revocations[fmt.Sprint(version)].ended = time.Now()
}

// fail notes a broken promise. The caller holds mu.
func (l *timeline) fail(format string, args ...any) {
	l.broken = append(l.broken, fmt.Errorf("after %d ms, "+format,
		append([]any{time.Since(l.start).Milliseconds()}, args...)...))
}

// verdict returns the broken promises, of which the first few tell enough.
func (l *timeline) verdict() error {
	const most = 5
	l.mu.Lock()
	defer l.mu.Unlock()
	for version, r := range l.revocations {
		if !r.noticed {
			l.fail("no token by version %s was refused although it was disabled or destroyed", version)
		}
	}
	if count := len(l.broken); count > 0 {
		return fmt.Errorf("%d broken promises\n%w", count, errors.Join(l.broken[:min(count, most)]...))
	}
	fmt.Fprintf(l.out, "\nEvery signature succeeded, no good token was refused, and no token by a disabled or\ndestroyed version was accepted more than %v later.\n", keyRefresh)
	return nil
}
