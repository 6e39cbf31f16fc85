// Fleet shows what many verifiers ask of Cloud KMS, and how little of it is left once one
// publisher has the keys for all of them. Signers and verifiers, each as if it were a process
// of its own, go through rotations, a deploy that restarts all of them at once, an outage of
// Cloud KMS and one of the publisher.
//
//	go run ./examples/fleet
//
// It runs on an embedded Cloud KMS server, prints what was asked of whom, and fails if a good
// token was refused, or a bad one accepted for longer than promised. Its times are very
// short, so that the show is too. The test of this folder runs a day of it on a clock of its
// own; docs/PERFORMANCE.md has the figures for 1,000 verifiers.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// short is a day of a fleet in a few seconds.
var short = scale{
	verifiers: 40, signers: 4,
	length: 7 * time.Second, rotation: 2 * time.Second, retire: 1700 * time.Millisecond,
	keyRefresh: 200 * time.Millisecond, maxAge: time.Second, lifetime: 3 * time.Second,
	sign: 50 * time.Millisecond, verify: 20 * time.Millisecond, minute: time.Second,
	deploy:          3 * time.Second,
	kmsOutage:       6200 * time.Millisecond,
	publisherOutage: 1200 * time.Millisecond,
	outage:          300 * time.Millisecond,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "%d verifiers and %d signers; %v stand for a day, and %v for a minute\n\n", short.verifiers, short.signers, short.length, short.minute)
	for _, published := range []bool{false, true} {
		report, err := simulate(ctx, short, published, loopback{})
		if err != nil {
			return err
		}
		fmt.Fprintln(out, report)
		if err := report.verdict(); err != nil {
			return err
		}
	}
	return nil
}

// loopback is the network of the program: TCP on this machine.
type loopback struct{}

func (loopback) options() []testutil.Option { return nil }

func (loopback) listen() (net.Listener, dial, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	return listener, func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}, nil
}
