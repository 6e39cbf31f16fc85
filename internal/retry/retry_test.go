package retry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

var (
	errFinal     = errors.New("final")
	errTransient = errors.New("transient")
	errCorrupt   = errors.New("corrupt")
)

func kind(err error) retry.Kind {
	switch {
	case errors.Is(err, errTransient):
		return retry.Transient
	case errors.Is(err, errCorrupt):
		return retry.Corrupt
	}
	return retry.OfTransport(err)
}

func TestDo(t *testing.T) {
	t.Parallel()
	forever := func(err error) []error { return []error{err, err, err, err, err, err, err, err} }
	tests := []struct {
		name     string
		policy   retry.Policy
		deadline time.Duration // of the caller; 0: none
		answers  []error       // of the attempts; nil from then on
		want     error
		attempts int
		within   time.Duration
	}{
		{"good", retry.Read, 0, nil, nil, 1, 0},
		{"final", retry.Read, 0, forever(errFinal), errFinal, 1, 0},
		{"transient once", retry.Read, 0, []error{errTransient}, nil, 2, 100 * time.Millisecond},
		{"transient twice", retry.Read, 0, []error{errTransient, errTransient}, nil, 3, 300 * time.Millisecond},
		{"transient too often", retry.Read, 0, forever(errTransient), errTransient, 3, 300 * time.Millisecond},
		{"transient often, signing", retry.Sign, 0, forever(errTransient), nil, 9, 40 * time.Second},
		{"transient to the deadline", retry.Sign, time.Second, forever(errTransient), context.DeadlineExceeded, 0, time.Second},
		{"cut once", retry.Sign, 0, []error{io.ErrUnexpectedEOF}, nil, 2, 0},
		{"cut twice", retry.Sign, 0, forever(io.EOF), io.EOF, 2, 0},
		{"corrupt twice", retry.Read, 0, []error{errCorrupt, errCorrupt}, nil, 3, 0},
		{"everything in turn", retry.Read, 0, append([]error{errCorrupt, errCorrupt, io.EOF}, forever(errTransient)...), errTransient, 4, 0},
		{"corrupt three times", retry.Read, 0, forever(errCorrupt), errCorrupt, 3, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				if test.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.deadline)
					defer cancel()
				}
				began, attempts := time.Now(), 0
				err := retry.Do(ctx, test.policy, kind, func(context.Context) error {
					attempts++
					if attempts <= len(test.answers) {
						return test.answers[attempts-1]
					}
					return nil
				})
				if !errors.Is(err, test.want) {
					t.Errorf("error %v, want %v", err, test.want)
				}
				if test.attempts > 0 && attempts != test.attempts {
					t.Errorf("%d attempts, want %d", attempts, test.attempts)
				}
				if got := time.Since(began); got > test.within {
					t.Errorf("it took %v, want at most %v", got, test.within)
				}
				if test.deadline > 0 && !errors.Is(err, errTransient) {
					t.Errorf("error %v has lost what the server said", err)
				}
			})
		})
	}
}

// A silent server takes no longer than the policy says.
func TestDoTimeout(t *testing.T) {
	t.Parallel()
	for _, policy := range []retry.Policy{retry.Read, retry.Sign} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := retry.Do(context.Background(), policy, kind, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
			}
			if got := time.Since(began); got != policy.Timeout {
				t.Errorf("it took %v, want %v", got, policy.Timeout)
			}
		})
	}
}

func TestDoPanic(t *testing.T) {
	t.Parallel()
	err := retry.Do(context.Background(), retry.Sign, kind, func(context.Context) error { panic("secret") })
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("error %v, want one that says panicked, without the value", err)
	}
}

func TestOfStatus(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]retry.Kind{
		http.StatusTooManyRequests: retry.Transient, http.StatusServiceUnavailable: retry.Transient,
		http.StatusBadGateway: retry.Transient, http.StatusGatewayTimeout: retry.Transient,
		http.StatusInternalServerError: retry.Transient, http.StatusNotImplemented: retry.Final,
		http.StatusForbidden: retry.Final, http.StatusNotFound: retry.Final, http.StatusBadRequest: retry.Final,
	} {
		if got := retry.OfStatus(code); got != want {
			t.Errorf("OfStatus(%d) = %d, want %d", code, got, want)
		}
	}
}
