package faults_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }

const account = systest.Account

// faultManyCalls bounds the attempts at a call that is retried until its
// deadline. The pauses between them are random, so this has room.
const faultManyCalls = 80

// A faultRig is a server, and an operation of the library that makes one kind of
// remote call to it.
type faultRig struct {
	// do performs the operation. It fails if its result doesn't hold: a token
	// that doesn't verify is an error too.
	do    func(ctx context.Context) error
	calls func() int // how many have arrived, whatever became of them
	lift  func()     // ends the fault

	mu      sync.Mutex
	secrets []string // what no error may contain
}

// keepSecret adds texts that no error may contain, in any usual encoding.
func (r *faultRig) keepSecret(values ...[]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, value := range values {
		if len(value) < 8 {
			continue
		}
		r.secrets = append(r.secrets, string(value), hex.EncodeToString(value),
			strings.Trim(fmt.Sprint(value), "[]"),
			base64.RawStdEncoding.EncodeToString(value), base64.RawURLEncoding.EncodeToString(value))
	}
}

// keepSignature adds a token's signature to them.
func (r *faultRig) keepSignature(text string) {
	sig, err := base64.RawURLEncoding.DecodeString(text[strings.LastIndexByte(text, '.')+1:])
	if err != nil {
		panic(err)
	}
	r.keepSecret(sig)
}

// A faultWant is what a cell of the matrix promises.
type faultWant struct {
	ok    bool       // the operation works in spite of the fault
	is    []error    // what errors.Is must find
	code  codes.Code // the gRPC code that must stay visible, if not OK
	http  int        // the HTTP status that a *googleapi.Error must show, if not 0
	calls [2]int     // at least and at most
	limit time.Duration
	pause time.Duration // until the next good answer must work; 0: the longest back-off
	kept  bool          // the answer is a good one and may be kept
}

func (w faultWant) with(errs ...error) faultWant {
	w.is = append(append([]error(nil), w.is...), errs...)
	return w
}

func (w faultWant) check(t *testing.T, err error) {
	t.Helper()
	if w.ok {
		if err != nil {
			t.Errorf("got error %v, want none", err)
		}
		return
	}
	if err == nil {
		t.Error("got no error")
		return
	}
	if errors.Is(err, errFaultPanic) || errors.Is(err, systest.ErrToken) {
		t.Errorf("got %v", err)
		return
	}
	for _, want := range w.is {
		if !errors.Is(err, want) {
			t.Errorf("got error %v, want one that is %v", err, want)
		}
	}
	if got := status.Code(err); w.code != codes.OK && got != w.code {
		t.Errorf("got error %v of code %v, want %v", err, got, w.code)
	}
	if answer, _ := errors.AsType[*googleapi.Error](err); w.http != 0 && (answer == nil || answer.Code != w.http) {
		t.Errorf("got error %v, want a *googleapi.Error of status %d", err, w.http)
	}
}

// A faultCell is one remote call under one fault.
type faultCell struct {
	call, fault string
	start       func(t *testing.T) *faultRig // ready, with the fault in place

	// caller makes the caller's context, if it isn't one that never ends.
	caller func(ctx context.Context) (context.Context, context.CancelFunc)
	want   faultWant

	// keeps says that a good answer is kept, so that a further operation costs
	// no call.
	keeps  bool
	serial bool // the process remembers which key its app last signed with
}

func (c faultCell) run(t *testing.T) {
	rig := c.start(t)
	ctx, cancel := t.Context(), context.CancelFunc(func() {})
	if c.caller != nil {
		ctx, cancel = c.caller(ctx)
	}
	defer cancel()

	before, began := rig.calls(), time.Now()
	err := rig.attempt(ctx)
	took := time.Since(began)
	c.want.check(t, err)
	if took > c.want.limit {
		t.Errorf("took %v, want at most %v", took, c.want.limit)
	}
	if calls := rig.calls() - before; calls < c.want.calls[0] || calls > c.want.calls[1] {
		t.Errorf("made %d calls, want %d to %d", calls, c.want.calls[0], c.want.calls[1])
	}
	rig.checkSecrets(t, err)

	// The next good answer works, and the call is made: nothing of the bad
	// answer was kept.
	synctest.Wait() // a fetch goes on without its caller
	rig.lift()
	pause := c.want.pause
	if pause == 0 {
		pause = systest.Backoff
	}
	time.Sleep(pause)
	before = rig.calls()
	if err := rig.attempt(t.Context()); err != nil {
		t.Errorf("%v after the fault: got error %v, want none", pause, err)
	}
	synctest.Wait() // known keys are renewed in the background
	if calls := rig.calls() - before; calls == 0 && !c.want.kept {
		t.Errorf("%v after the fault: made no call, so something of the bad answer was kept", pause)
	}
	if !c.keeps {
		return
	}
	before = rig.calls()
	if err := rig.attempt(t.Context()); err != nil {
		t.Errorf("with good keys: got error %v, want none", err)
	}
	if calls := rig.calls() - before; calls != 0 {
		t.Errorf("with good keys: made %d calls, want none", calls)
	}
}

// attempt performs the operation. A panic fails the cell instead of the matrix.
func (r *faultRig) attempt(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", errFaultPanic, v)
		}
	}()
	return r.do(ctx)
}

// checkSecrets looks for parts of tokens and for credentials in an error.
func (r *faultRig) checkSecrets(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	text := err.Error()
	for _, secret := range append(r.secrets, systest.Claim, faultCredential, "eyJ") {
		if strings.Contains(text, secret) {
			t.Errorf("the error holds a secret, %.40q: %.300q", secret, text)
		}
	}
	if strings.ContainsAny(text, "\r\n") {
		t.Errorf("the error has several lines: %.300q", text)
	}
	if len(text) > systest.MaxText {
		t.Errorf("the error is %d bytes long, want at most %d: %.100q", len(text), systest.MaxText, text)
	}
}

// faultCredential is what requests over HTTP carry as Authorization.
const faultCredential = "credential-that-stays-private"

// faultCells is how many cells the matrix has at least. A lower number means
// that some have been lost.
const faultCells = 2000

// TestFaultMatrix crosses every remote call with every fault that it can have.
// Each cell runs on a clock of its own that moves on while everybody waits, so
// silence and back-off cost nothing.
func TestFaultMatrix(t *testing.T) {
	cells := append(faultKMSCells(), faultIAMCells()...)
	cells = append(cells, faultAppEngineCells()...)
	byCall := make(map[string]int)
	var failed atomic.Int64
	t.Cleanup(func() { // after the cells that run in parallel
		t.Logf("%d cells, %d failed: %v", len(cells), failed.Load(), byCall)
	})
	for _, cell := range cells {
		byCall[cell.call]++
		t.Run(cell.call+"/"+cell.fault, func(t *testing.T) {
			if !cell.serial {
				t.Parallel()
			}
			t.Cleanup(func() {
				if t.Failed() {
					failed.Add(1)
				}
			})
			synctest.Test(t, cell.run)
		})
	}
	if len(cells) < faultCells {
		t.Errorf("got %d cells, want at least %d", len(cells), faultCells)
	}
}

// Callers whose contexts end early.
var faultCallers = []struct {
	name   string
	caller func(ctx context.Context) (context.Context, context.CancelFunc)
	err    error
	limit  time.Duration
}{
	{"caller has left before", func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx, cancel
	}, context.Canceled, 0},
	{"caller's deadline has passed before", func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithDeadline(ctx, time.Now().Add(-time.Second))
	}, context.DeadlineExceeded, 0},
	{"caller leaves while waiting", func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Second, cancel)
		return ctx, cancel
	}, context.Canceled, time.Second},
	{"caller's deadline passes while waiting", func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Second)
	}, context.DeadlineExceeded, time.Second},
}

var errFaultPanic = errors.New("panic")
