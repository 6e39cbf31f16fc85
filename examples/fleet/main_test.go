package main

import (
	"context"
	"errors"
	"flag"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

var full = flag.Bool("full", false, "1,000 verifiers and 50 signers, which takes some minutes")

// day is a day in the life of a fleet.
var day = scale{
	verifiers: 12, signers: 3,
	length: 24 * time.Hour, rotation: 2 * time.Hour, retire: 45 * time.Minute,
	keyRefresh: 5 * time.Minute, maxAge: 5 * time.Minute, lifetime: time.Hour,
	sign: time.Minute, verify: 2 * time.Minute, minute: time.Minute,
	deploy:          9 * time.Hour,
	kmsOutage:       12*time.Hour + 8*time.Minute,  // after a rotation, before its version signs
	publisherOutage: 16*time.Hour + 35*time.Minute, // while a version is disabled
	outage:          30 * time.Minute,
}

// TestDay lives through a day. With -full -v it prints what is in docs/PERFORMANCE.md.
func TestDay(t *testing.T) {
	s := day
	if *full {
		s.verifiers, s.signers = 1000, 50
	}
	for name, published := range map[string]bool{"Cloud KMS": false, "JWK Set": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				report, err := simulate(t.Context(), s, published, pipes{})
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d verifiers and %d signers for %v\n%s", s.verifiers, s.signers, time.Since(began).Round(time.Minute), report)
				if err := report.verdict(); err != nil {
					t.Error(err)
				}
				if lists := report.reads.mean(); published && lists > float64(s.signers+1)/2 {
					t.Errorf("%.1f reads a minute with a publisher, want those of the signers and its own", lists)
				}
			})
		})
	}
}

// TestVerdict sees what must not happen: a day in which everything passes would prove nothing.
func TestVerdict(t *testing.T) {
	bad := errors.New("bad")
	for _, test := range []struct {
		name      string
		published bool
		disabled  time.Duration // 0: never
		looked    time.Duration
		err       error
		ok        bool
	}{
		{"a good token", false, 0, time.Hour, nil, true},
		{"a good token refused", false, 0, time.Hour, bad, false},
		{"refused before it was disabled", false, 2 * time.Hour, time.Hour, bad, false},
		{"refused once it was disabled", false, time.Hour, time.Hour + time.Second, bad, true},
		{"accepted as promised", false, time.Hour, time.Hour + 5*time.Minute, nil, true},
		{"accepted for too long", false, time.Hour, time.Hour + 5*time.Minute + time.Second, nil, false},
		{"accepted as promised of a set", true, time.Hour, time.Hour + 10*time.Minute, nil, true},
		{"accepted for too long of a set", true, time.Hour, time.Hour + 10*time.Minute + time.Second, nil, false},
		{"accepted in an outage", false, day.kmsOutage, day.kmsOutage + 31*time.Minute, nil, true},
		{"accepted for too long after an outage", false, day.kmsOutage, day.kmsOutage + 37*time.Minute, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			began := time.Now()
			f := &fleet{scale: day, published: test.published, began: began, report: &report{scale: day}}
			if test.disabled > 0 {
				at := began.Add(test.disabled)
				f.board.disabled = map[string]*disabled{"kid": {from: at, since: at}}
			}
			f.report.verified.Store(int64(day.verifiers))
			at := began.Add(test.looked)
			f.judge(&token{kid: "kid", expires: at.Add(time.Hour)}, at, at, test.err)
			if err := f.report.verdict(); (err == nil) != test.ok {
				t.Errorf("the verdict is %v", err)
			}
		})
	}
}

// pipes is a network in memory, for a bubble of testing/synctest.
type pipes struct{}

func (pipes) options() []testutil.Option { return []testutil.Option{testutil.InMemory()} }

func (pipes) listen() (net.Listener, dial, error) {
	listener, connect := testutil.ListenInMemory()
	return listener, func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx) }, nil
}
