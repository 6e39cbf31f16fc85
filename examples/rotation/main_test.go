package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun runs the show on a clock of its own: what has to happen within some
// hundred milliseconds doesn't on a busy machine.
func TestRun(t *testing.T) {
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		if err := run(t.Context(), nil, &out, testutil.InMemory()); err != nil {
			t.Fatalf("run: %v\n%s", err, &out)
		}
	})
	for _, want := range []string{
		"signer goes from version 1 to 2",
		"verifier refuses version 1",
		"signer goes from version 3 to 2",
		"verifier refuses version 3",
		"signer goes from version 2 to 4",
		"verifier refuses version 2",
		"Every signature succeeded",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the output:\n%s", want, &out)
		}
	}
}

// A timeline that lets everything pass would prove nothing.
func TestVerdict(t *testing.T) {
	const cryptoKey = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
	kid := gcpjwt.KMSKeyID(cryptoKey + "/cryptoKeyVersions/1")
	bad := errors.New("bad")
	revoked := func(log *timeline) time.Time {
		log.revoking(1)
		log.revoked(1)
		return log.revocations["1"].ended
	}
	tests := []struct {
		name string
		do   func(log *timeline)
		want string // in the error, "" for none
	}{
		{"nothing", func(*timeline) {}, ""},
		{"good", func(log *timeline) { log.signed(kid, nil); log.verified(kid, time.Now(), nil) }, ""},
		{"failed signature", func(log *timeline) { log.signed(kid, bad) }, "signature failed: bad"},
		{"refused too early", func(log *timeline) { log.verified(kid, time.Now(), bad) }, "version 1 was refused: bad"},
		{"refused at once", func(log *timeline) { log.verified(kid, revoked(log), bad) }, ""},
		{"accepted within KeyRefresh", func(log *timeline) {
			ended := revoked(log)
			log.verified(kid, ended.Add(keyRefresh), nil)
			log.verified(kid, ended.Add(keyRefresh+1), bad)
		}, ""},
		{"accepted later", func(log *timeline) { log.verified(kid, revoked(log).Add(keyRefresh+1), nil) }, "version 1 was accepted"},
		{"never refused", func(log *timeline) { revoked(log) }, "no token by version 1 was refused"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			log := newTimeline(io.Discard, cryptoKey)
			test.do(log)
			err := log.verdict()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("verdict is %v, want %q", err, test.want)
			}
		})
	}
}
