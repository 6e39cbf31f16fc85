package gcpjwt

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A caller leaves a call that takes no notice, which holds its place until it returns. While
// all places are held by such calls, further ones fail at once.
func TestAbandon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAbandonable(3)
		hang := make(chan struct{})
		deaf := func(context.Context) (int, error) {
			<-hang
			return 7, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var group sync.WaitGroup
		for range 5 { // of which two wait for a place
			group.Go(func() {
				began := time.Now()
				got, err := abandon(ctx, a, deaf)
				if got != 0 || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
					t.Errorf("got %d, %v after %v, want context.DeadlineExceeded after 1s", got, err, time.Since(began))
				}
			})
		}
		group.Wait()
		for range 100 {
			began := time.Now()
			_, err := abandon(t.Context(), a, deaf)
			if err == nil || !strings.Contains(err.Error(), "3 earlier calls hang") || time.Since(began) != 0 {
				t.Errorf("with all places left: %v after %v, want an error at once", err, time.Since(began))
			}
		}

		close(hang) // they recover
		synctest.Wait()
		if got := a.left.Load(); got != 0 || len(a.places) != 0 {
			t.Errorf("%d places are left and %d held, want none", got, len(a.places))
		}
		if got, err := abandon(t.Context(), a, deaf); got != 7 || err != nil {
			t.Errorf("afterwards: %d, %v, want 7", got, err)
		}
	})
}

// While a place is held by a call whose caller waits, others wait for it.
func TestAbandonWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAbandonable(2)
		began := time.Now()
		var group sync.WaitGroup
		for range 6 {
			group.Go(func() {
				if _, err := abandon(t.Context(), a, func(context.Context) (int, error) {
					time.Sleep(time.Second)
					return 0, nil
				}); err != nil {
					t.Errorf("got %v", err)
				}
			})
		}
		group.Wait()
		if got := time.Since(began); got != 3*time.Second {
			t.Errorf("6 calls in 2 places took %v, want 3s", got)
		}
	})
}

// A call that panics or ends its goroutine is an error, and gives its place back.
func TestAbandonBadCalls(t *testing.T) {
	t.Parallel()
	a := newAbandonable(1)
	failure := errors.New("failure")
	for name, call := range map[string]func(context.Context) (int, error){
		"error":   func(context.Context) (int, error) { return 1, failure },
		"panic":   func(context.Context) (int, error) { panic("somebody's secret") },
		"Goexit":  func(context.Context) (int, error) { runtime.Goexit(); return 0, nil },
		"success": func(context.Context) (int, error) { return 1, nil },
	} {
		for range 3 {
			_, err := abandon(t.Context(), a, call)
			if (err == nil) != (name == "success") || errors.Is(err, failure) != (name == "error") ||
				err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if got := a.left.Load(); got != 0 || len(a.places) != 0 {
		t.Errorf("%d places are left and %d held, want none", got, len(a.places))
	}
}
