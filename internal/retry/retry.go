// Package retry holds the one policy for calls: which errors are tried again, how
// often and within which time. Clients of Google and plain HTTP share it.
package retry

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"syscall"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// A Kind is what an error means for the call that it ended.
type Kind int

const (
	Final     Kind = iota // nothing that another attempt would change
	Transient             // the server is down or busy: try again after a pause
	Cut                   // the connection broke: try again at once, once
	Corrupt               // the answer failed an integrity check: try again at once
)

// A Policy bounds the attempts of a call.
type Policy struct {
	Attempts int           // after Transient errors; 0: until the context ends
	Timeout  time.Duration // of all attempts, where the context has no earlier deadline
}

// The policies. Read is for what a token's verification waits for: keys, lists,
// certificates, JWK Sets and MACs. Sign is for signatures.
var (
	Read = Policy{Attempts: 3, Timeout: 10 * time.Second}
	Sign = Policy{Timeout: time.Minute}
)

const (
	firstPause = 100 * time.Millisecond // doubled after each further attempt
	maxPause   = 10 * time.Second

	// corruptAttempts is how often a corrupt answer is asked for, as Google's
	// documentation wants a limited number.
	corruptAttempts = 3
)

// Do makes a call until it succeeds, the policy is exhausted or ctx ends. kind tells
// what an error means. A panic in the call becomes an error. The error is that of the
// last attempt, so that what the server said isn't lost, together with that of a context
// that ended.
func Do(
	ctx context.Context, policy Policy, kind func(error) Kind, call func(context.Context) error,
) error {
	// A deadline of the caller's holds for a signature, however late it is.
	if _, set := ctx.Deadline(); !set || policy.Attempts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, policy.Timeout)
		defer cancel()
	}
	var attempts, cuts, corrupt int
	pause := firstPause
	for {
		err := safely(ctx, call)
		if err == nil {
			return nil
		}
		attempts++
		again := false
		switch kind(err) {
		case Transient:
			again = (policy.Attempts == 0 || attempts < policy.Attempts) && sleep(ctx, jitter(pause))
			pause = min(2*pause, maxPause)
		case Cut:
			cuts++
			again = cuts == 1
		case Corrupt:
			corrupt++
			again = corrupt < corruptAttempts
		}
		if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
			return errs.Errorf("%w: %w", cause, err)
		}
		if !again || ctx.Err() != nil {
			return err
		}
	}
}

// safely makes one attempt.
func safely(ctx context.Context, call func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Panicked(p)
		}
	}()
	return call(ctx)
}

// Panicked is the error of code of the user's, such as an HTTP transport, that
// panicked with p. Only what the runtime says is shown: the rest may hold anything.
func Panicked(p any) error {
	if err, ok := p.(runtime.Error); ok {
		return errs.Errorf("the call panicked: %w", err)
	}
	return errs.Errorf("the call panicked with a %T", p)
}

// jitter spreads callers that failed together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// sleep waits, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// OfStatus is the kind of an HTTP answer.
func OfStatus(code int) Kind {
	switch code {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return Transient
	}
	return Final
}

// OfTransport is the kind of an error of an HTTP client that got no answer.
func OfTransport(err error) Kind {
	for _, cut := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, cut) {
			return Cut
		}
	}
	return Final
}
