package refresh_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
)

var (
	errDown      = errors.New("down")
	ordinaryLife = refresh.Lifetime{Renew: 40 * time.Minute, Fresh: time.Hour, Stale: 30 * time.Minute}
)

// An origin counts up: its nth value is n. Tests change its fields between
// calls of synctest.Wait.
type origin struct {
	mu      sync.Mutex
	life    refresh.Lifetime
	err     error
	latency time.Duration
	fetches []time.Duration // when each began, since the origin was made
	failed  []error         // what Failed was told

	began time.Time
}

func newOrigin() *origin { return &origin{life: ordinaryLife, began: time.Now()} }

func (o *origin) Fetch(ctx context.Context) (int, refresh.Lifetime, error) {
	o.mu.Lock()
	o.fetches = append(o.fetches, time.Since(o.began))
	value, latency := len(o.fetches), o.latency
	o.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return 0, refresh.Lifetime{}, ctx.Err()
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, refresh.Lifetime{}, o.err
	}
	return value, o.life, nil
}

func (o *origin) Replaced(int, int) {}

func (o *origin) Failed(err error, _ int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = append(o.failed, err)
}

// set changes the origin.
func (o *origin) set(f func(o *origin)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

func (o *origin) down() { o.set(func(o *origin) { o.err = errDown }) }
func (o *origin) up()   { o.set(func(o *origin) { o.err = nil }) }

// wantFetches checks when fetches began.
func (o *origin) wantFetches(t *testing.T, want ...time.Duration) {
	t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if diff := cmp.Diff(want, o.fetches); diff != "" {
		t.Errorf("fetches at (-want +got):\n%s", diff)
	}
}

func (o *origin) wantFailed(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failed) != want {
		t.Errorf("Failed was told %v, want %d failures", o.failed, want)
	}
}

// at sleeps until a time since the origin was made.
func (o *origin) at(d time.Duration) { time.Sleep(time.Until(o.began.Add(d))) }

// wantGet checks what Get returns, and that it returns after took.
func wantGet(t *testing.T, v *refresh.Value[int], o *origin, want int, wantErr error, took time.Duration) {
	t.Helper()
	began := time.Now()
	got, err := v.Get(t.Context(), o)
	if got != want || !errors.Is(err, wantErr) {
		t.Errorf("Get: got %d, %v, want %d, %v", got, err, want, wantErr)
	}
	if got := time.Since(began); got != took {
		t.Errorf("Get took %v, want %v", got, took)
	}
}

// is finds a value wanting that a caller has seen.
func is(seen int) func(int) bool { return func(value int) bool { return value == seen } }

func wantRenew(t *testing.T, v *refresh.Value[int], o *origin, seen int, cooldown time.Duration, want int, wantErr error) {
	t.Helper()
	got, err := v.Renew(t.Context(), o, seen, cooldown, is(seen))
	if got != want || !errors.Is(err, wantErr) {
		t.Errorf("Renew: got %d, %v, want %d, %v", got, err, want, wantErr)
	}
}

func wantCurrent(t *testing.T, v *refresh.Value[int], want int, wantOK bool) {
	t.Helper()
	if got, ok := v.Current(); got != want || ok != wantOK {
		t.Errorf("Current: got %d, %v, want %d, %v", got, ok, want, wantOK)
	}
}

// test runs f in a bubble with an origin and a value of its own.
func test(t *testing.T, f func(t *testing.T, o *origin, v *refresh.Value[int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, newOrigin(), new(refresh.Value[int]))
		time.Sleep(time.Hour) // fetches under way come to their end
	})
}

func TestGetKeepsTheValue(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantCurrent(t, v, 0, false)
		wantGet(t, v, o, 1, nil, 0)
		wantCurrent(t, v, 1, true)
		o.at(ordinaryLife.Renew - 1)
		wantCurrent(t, v, 1, true)
		wantGet(t, v, o, 1, nil, 0)
		o.wantFetches(t, 0)
	})
}

// From Renew on a use renews the value, without waiting for it.
func TestGetRenewsInTheBackground(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.set(func(o *origin) { o.latency = time.Minute })
		o.at(ordinaryLife.Renew)
		wantCurrent(t, v, 0, false)
		for range 3 {
			wantGet(t, v, o, 1, nil, 0)
		}
		o.wantFetches(t, 0, ordinaryLife.Renew)
		time.Sleep(time.Minute)
		synctest.Wait()
		wantCurrent(t, v, 2, true)
		wantGet(t, v, o, 2, nil, 0)

		// Its life is counted from the moment its fetch began.
		o.at(2*ordinaryLife.Renew - 1)
		wantCurrent(t, v, 2, true)
		o.at(2 * ordinaryLife.Renew)
		wantCurrent(t, v, 0, false)
		o.wantFailed(t, 0)
	})
}

func TestGetWaitsAfterExpiry(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.set(func(o *origin) { o.latency = time.Second })
		o.at(ordinaryLife.Fresh)
		wantGet(t, v, o, 2, nil, time.Second)
		o.wantFetches(t, 0, ordinaryLife.Fresh)
	})
}

func TestExpiryIsExact(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.set(func(o *origin) { o.latency = time.Second })
		o.at(ordinaryLife.Fresh - 1)
		wantGet(t, v, o, 1, nil, 0)
	})
}

// Any number of callers cause one fetch and share what comes of it.
func TestOneFetch(t *testing.T) {
	for _, err := range []error{nil, errDown} {
		test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
			want := 1
			if err != nil {
				want = 0
			}
			o.set(func(o *origin) { o.latency, o.err = time.Second, err })
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() { wantGet(t, v, o, want, err, time.Second) })
				callers.Go(func() { wantRenew(t, v, o, 0, time.Minute, want, err) })
			}
			callers.Wait()
			o.wantFetches(t, 0)
			o.wantFailed(t, 0) // the callers saw it
		})
	}
}

// A caller leaves when its context ends. The fetch goes on for the others.
func TestCallersLeave(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		o.set(func(o *origin) { o.latency = time.Minute })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		var callers sync.WaitGroup
		callers.Go(func() {
			if got, err := v.Get(ctx, o); got != 0 || err != context.DeadlineExceeded { // exactly that
				t.Errorf("Get: got %d, %v, want 0, %v", got, err, context.DeadlineExceeded)
			}
			if took := time.Since(o.began); took != time.Second {
				t.Errorf("Get came back after %v, want 1s", took)
			}
		})
		callers.Go(func() {
			time.Sleep(time.Millisecond)
			if _, err := v.Renew(ctx, o, 0, time.Minute, is(0)); err != context.DeadlineExceeded { // exactly that
				t.Errorf("Renew: got %v, want %v", err, context.DeadlineExceeded)
			}
		})
		callers.Go(func() {
			time.Sleep(time.Millisecond)
			wantGet(t, v, o, 1, nil, time.Minute-time.Millisecond)
		})
		callers.Wait()
		o.wantFetches(t, 0)
		wantCurrent(t, v, 1, true)
	})
}

// The fetch has neither the values of the caller's context nor its end: others share it.
func TestFetchContext(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		cancel()
		src := fetchFunc(func(ctx context.Context) (int, refresh.Lifetime, error) {
			if got := ctx.Value(key{}); got != nil {
				t.Errorf("value %v, want none of the caller's context", got)
			}
			_, bounded := ctx.Deadline()
			if ctx.Err() != nil || bounded {
				t.Errorf("context has ended (%v) or has a deadline (%v)", ctx.Err(), bounded)
			}
			return 1, ordinaryLife, nil
		})
		v := new(refresh.Value[int])
		_, _ = v.Get(ctx, src) // may or may not have waited
		synctest.Wait()
		wantCurrent(t, v, 1, true)
	})
}

type fetchFunc func(ctx context.Context) (int, refresh.Lifetime, error)

func (f fetchFunc) Fetch(ctx context.Context) (int, refresh.Lifetime, error) { return f(ctx) }
func (f fetchFunc) Failed(error, int)                                        {}
func (f fetchFunc) Replaced(int, int)                                        {}

// Without a usable value callers get the failure at once. One of them tries
// again when the back-off has passed: 100 ms, twice as long each time, a minute
// at most.
func TestBackOff(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		o.down()
		wantGet(t, v, o, 0, errDown, 0)
	})
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		o.down()
		want := []time.Duration{0}
		for wait := 100 * time.Millisecond; len(want) < 13; wait *= 2 {
			want = append(want, want[len(want)-1]+min(wait, time.Minute))
		}
		for i, at := range want {
			o.at(at - 1)
			if i > 0 {
				if _, err := v.Get(t.Context(), o); !errors.Is(err, errDown) {
					t.Errorf("before the back-off has passed: got %v, want %v", err, errDown)
				}
				if _, err := v.Renew(t.Context(), o, 0, 0, is(0)); !errors.Is(err, errDown) {
					t.Errorf("Renew before the back-off has passed: got %v, want %v", err, errDown)
				}
			}
			o.at(at)
			if _, err := v.Get(t.Context(), o); !errors.Is(err, errDown) {
				t.Errorf("attempt %d: got %v, want %v", i, err, errDown)
			}
		}
		o.wantFetches(t, want...)

		// A success ends the outage, and the next one begins anew.
		o.up()
		o.at(want[len(want)-1] + time.Minute)
		o.set(func(o *origin) { o.life.Fresh = 0 })
		if _, err := v.Get(t.Context(), o); err != nil {
			t.Errorf("after the outage: %v", err)
		}
		o.down()
		for _, wait := range []time.Duration{0, 0, 100 * time.Millisecond} {
			time.Sleep(wait)
			_, _ = v.Get(t.Context(), o)
		}
		again := want[len(want)-1] + time.Minute
		o.wantFetches(t, append(want, again, again, again+100*time.Millisecond)...)
		o.wantFailed(t, 0)
	})
}

// Nobody queues behind an attempt to end an outage, but the one who makes it.
func TestNoQueueInAnOutage(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		o.down()
		_, _ = v.Get(t.Context(), o)
		time.Sleep(time.Second)
		o.set(func(o *origin) { o.err, o.latency = nil, 10*time.Second })
		var first sync.WaitGroup
		first.Go(func() { wantGet(t, v, o, 2, nil, 10*time.Second) })
		synctest.Wait()
		for range 100 {
			wantGet(t, v, o, 0, errDown, 0)
		}
		wantRenew(t, v, o, 0, time.Minute, 0, errDown)
		first.Wait()
		wantGet(t, v, o, 2, nil, 0)
		o.wantFetches(t, 0, time.Second)
	})
}

// While renewals fail, a value serves until Stale past its expiry. Callers wait
// only where they cannot know that they do.
func TestStale(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.set(func(o *origin) { o.err, o.latency = errDown, time.Second })
		o.at(ordinaryLife.Fresh)
		wantGet(t, v, o, 1, nil, time.Second)
		o.wantFailed(t, 1)
		wantGet(t, v, o, 1, nil, 0)

		// From then on it is tried in the background.
		time.Sleep(time.Second)
		wantGet(t, v, o, 1, nil, 0)
		wantGet(t, v, o, 1, nil, 0)
		time.Sleep(time.Second)
		o.wantFetches(t, 0, ordinaryLife.Fresh, ordinaryLife.Fresh+2*time.Second)
		o.wantFailed(t, 2)

		end := ordinaryLife.Fresh + ordinaryLife.Stale
		o.at(end - 2*time.Second)
		wantGet(t, v, o, 1, nil, time.Second) // so long after the last failure nobody knows
		o.at(end - 1)
		wantGet(t, v, o, 1, nil, 0)
		o.wantFailed(t, 3)
		o.at(end)
		wantGet(t, v, o, 0, errDown, 0)
	})
}

// A failure counts for a minute beyond its back-off. Later it says nothing about
// the origin, so that an old value is no answer before the origin was asked.
func TestFailuresAreForgotten(t *testing.T) {
	const failed = 59*time.Minute + 30*time.Second
	const forgotten = failed + 100*time.Millisecond + time.Minute // the value has expired by then
	for _, wait := range []bool{false, true} {
		test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
			wantGet(t, v, o, 1, nil, 0)
			o.down()
			o.at(failed)
			wantGet(t, v, o, 1, nil, 0)
			synctest.Wait()
			o.set(func(o *origin) { o.err, o.latency = nil, time.Second })
			if wait {
				o.at(forgotten)
				wantGet(t, v, o, 3, nil, time.Second)
			} else {
				o.at(forgotten - 1)
				wantGet(t, v, o, 1, nil, 0)
			}
		})
	}
}

func TestStaleIsOnlyForFailures(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.at(ordinaryLife.Fresh + time.Minute)
		wantGet(t, v, o, 2, nil, 0)
	})
}

func TestNoStale(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		o.set(func(o *origin) { o.life.Stale = 0 })
		wantGet(t, v, o, 1, nil, 0)
		o.down()
		o.at(ordinaryLife.Fresh - 1)
		wantGet(t, v, o, 1, nil, 0)
		o.wantFailed(t, 1)
		o.at(ordinaryLife.Fresh)
		wantGet(t, v, o, 0, errDown, 0)
		o.at(ordinaryLife.Fresh + time.Minute)
		wantGet(t, v, o, 0, errDown, 0)
		o.wantFailed(t, 1) // the others were seen
	})
}

// A failed renewal in the background is tried again after its back-off, and
// leaves the value in use.
func TestBackgroundRenewalFails(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.down()
		o.at(ordinaryLife.Renew)
		for range 10 {
			wantGet(t, v, o, 1, nil, 0)
			synctest.Wait()
		}
		o.wantFetches(t, 0, ordinaryLife.Renew)
		o.wantFailed(t, 1)
		time.Sleep(100 * time.Millisecond)
		o.up()
		wantGet(t, v, o, 1, nil, 0)
		synctest.Wait()
		wantGet(t, v, o, 3, nil, 0)
		o.wantFailed(t, 1)
	})
}

// A value without lifetime is for those who waited for it, and displaces what
// was kept.
func TestNotKept(t *testing.T) {
	for _, fresh := range []time.Duration{0, -time.Second} {
		test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
			wantGet(t, v, o, 1, nil, 0)
			o.set(func(o *origin) { o.life = refresh.Lifetime{Fresh: fresh, Stale: time.Hour}; o.latency = time.Second })
			o.at(ordinaryLife.Fresh)
			for i := range 3 {
				var callers sync.WaitGroup
				for range 10 {
					callers.Go(func() { wantGet(t, v, o, i+2, nil, time.Second) })
				}
				callers.Wait()
				wantCurrent(t, v, 0, false)
			}
			o.down()
			wantGet(t, v, o, 0, errDown, time.Second)
			wantGet(t, v, o, 0, errDown, 0)
		})
	}
}

func TestRenew(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		time.Sleep(time.Second)
		wantRenew(t, v, o, 1, time.Minute, 2, nil)
		wantCurrent(t, v, 2, true)

		// Whoever holds an older value gets the newer one, without a fetch.
		wantRenew(t, v, o, 1, time.Minute, 2, nil)
		wantRenew(t, v, o, 1, 0, 2, nil)

		// Within the cool-down the value is returned as it is.
		for range 100 {
			wantRenew(t, v, o, 2, time.Minute, 2, nil)
		}
		time.Sleep(time.Minute - 1)
		wantRenew(t, v, o, 2, time.Minute, 2, nil)
		time.Sleep(time.Nanosecond)
		wantRenew(t, v, o, 2, time.Minute, 3, nil)
		o.wantFetches(t, 0, time.Second, time.Minute+time.Second)
	})
}

// A cool-down of 0 neither waits nor counts.
func TestRenewWithoutCooldown(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		for i := range 5 {
			wantRenew(t, v, o, i+1, 0, i+2, nil)
		}
		wantRenew(t, v, o, 6, time.Minute, 7, nil) // no cool-down has begun
		wantRenew(t, v, o, 7, time.Minute, 7, nil)
		wantRenew(t, v, o, 7, 0, 8, nil) // doesn't wait for that of others
		o.wantFetches(t, make([]time.Duration, 8)...)
	})
}

// Renew joins a fetch under way, which takes no cool-down.
func TestRenewJoins(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.set(func(o *origin) { o.latency = time.Second })
		o.at(ordinaryLife.Renew)
		wantGet(t, v, o, 1, nil, 0) // in the background
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() { wantRenew(t, v, o, 1, time.Minute, 2, nil) })
		}
		callers.Wait()
		wantRenew(t, v, o, 2, time.Minute, 3, nil)
		o.wantFetches(t, 0, ordinaryLife.Renew, ordinaryLife.Renew+time.Second)
	})
}

func TestRenewFails(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.down()
		if _, err := v.Renew(t.Context(), o, 1, time.Minute, is(1)); !errors.Is(err, errDown) {
			t.Errorf("got %v, want %v", err, errDown)
		}
		wantGet(t, v, o, 1, nil, 0) // stays in use
		for range 10 {
			wantRenew(t, v, o, 1, time.Minute, 1, errDown)
		}
		o.wantFetches(t, 0, 0)

		// The back-off counts, not the cool-down: the value may still be wanting.
		time.Sleep(100 * time.Millisecond)
		o.up()
		wantRenew(t, v, o, 1, time.Minute, 3, nil)
		o.wantFetches(t, 0, 0, 100*time.Millisecond)
	})
}

// Failed is told of what no caller sees, and of nothing else.
func TestFailedIsForTheUnseen(t *testing.T) {
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.down()
		if _, err := v.Renew(t.Context(), o, 1, time.Minute, is(1)); !errors.Is(err, errDown) {
			t.Errorf("Renew: got %v, want %v", err, errDown)
		}
		o.wantFailed(t, 0) // the caller of Renew saw it
	})
	test(t, func(t *testing.T, o *origin, v *refresh.Value[int]) {
		wantGet(t, v, o, 1, nil, 0)
		o.down()
		o.at(ordinaryLife.Renew)
		wantGet(t, v, o, 1, nil, 0)
		o.wantFailed(t, 1)
		if !errors.Is(o.failed[0], errDown) {
			t.Errorf("Failed was told %v, want %v", o.failed[0], errDown)
		}
	})
}

// Failed may use the value.
func TestFailedHoldsNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := new(refresh.Value[int])
		told := make(chan int, 1)
		o := &reentrant{origin: newOrigin()}
		o.onFailed = func() {
			got, _ := v.Get(t.Context(), o)
			told <- got
		}
		if _, err := v.Get(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		o.down()
		o.at(ordinaryLife.Renew)
		_, _ = v.Get(t.Context(), o)
		if got := <-told; got != 1 {
			t.Errorf("Get within Failed: got %d, want 1", got)
		}
	})
}

type reentrant struct {
	*origin
	onFailed func()
}

func (r *reentrant) Failed(error, int) { r.onFailed() }

// A renewal that fails while the process is frozen past the expiry fails nobody: whoever comes
// afterwards, or joined it, has a try of their own (C24).
func TestFreeze(t *testing.T) {
	const frozen = 2 * time.Hour
	for _, joining := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fetches := 0
			src := fetchFunc(func(context.Context) (int, refresh.Lifetime, error) {
				fetches++
				if fetches == 2 {
					time.Sleep(frozen)
					return 0, refresh.Lifetime{}, errDown
				}
				return fetches, ordinaryLife, nil
			})
			v := new(refresh.Value[int])
			get := func(want int) {
				t.Helper()
				if got, err := v.Get(t.Context(), src); got != want || err != nil {
					t.Errorf("joining %v: Get: got %d, %v, want %d", joining, got, err, want)
				}
			}
			get(1)
			time.Sleep(ordinaryLife.Renew)
			get(1) // sets off the renewal
			if joining {
				time.Sleep(frozen - time.Second)
				var callers sync.WaitGroup
				for range 100 {
					callers.Go(func() { get(3) })
				}
				callers.Wait()
			} else {
				time.Sleep(frozen + time.Millisecond)
				synctest.Wait()
				get(3)
			}
			if fetches != 3 {
				t.Errorf("joining %v: %d fetches, want 3", joining, fetches)
			}
		})
	}
}

// Who waited for as long as a fetch may take gets the old value if it still serves, even though
// the fetch hasn't failed yet: after a freeze all times are over at once. Who has had enough
// gets an error.
func TestOverdue(t *testing.T) {
	if !errors.Is(refresh.ErrOverdue, context.DeadlineExceeded) { // which net/http shows to users
		t.Errorf("%v isn't %v", refresh.ErrOverdue, context.DeadlineExceeded)
	}
	const patience = 10 * time.Second
	plain := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, patience)
	}
	overdue := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, patience, refresh.ErrOverdue)
	}
	tests := []struct {
		name string
		wait func(ctx context.Context) (context.Context, context.CancelFunc)
		at   time.Duration
		want int
		err  error
	}{
		{"overdue", overdue, ordinaryLife.Fresh + time.Second, 1, nil},
		{"overdue, too old", overdue, ordinaryLife.Fresh + ordinaryLife.Stale, 0, context.DeadlineExceeded},
		{"enough", plain, ordinaryLife.Fresh + time.Second, 0, context.DeadlineExceeded},
	}
	for _, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			o, v := newOrigin(), new(refresh.Value[int])
			wantGet(t, v, o, 1, nil, 0)
			o.at(test.at)
			o.set(func(o *origin) { o.latency = patience + time.Second })
			ctx, cancel := test.wait(t.Context())
			defer cancel()
			began := time.Now()
			if got, err := v.Get(ctx, o); got != test.want || !errors.Is(err, test.err) || time.Since(began) != patience {
				t.Errorf("%s: got %d, %v after %v, want %d, %v after %v",
					test.name, got, err, time.Since(began), test.want, test.err, patience)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			wantGet(t, v, o, 2, nil, 0)
		})
	}
}

// A failure that says when to try again doesn't back off.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		src := fetchFunc(func(context.Context) (int, refresh.Lifetime, error) {
			fetches++
			return 0, refresh.Lifetime{Retry: 2 * time.Second}, errDown
		})
		v := new(refresh.Value[int])
		for range 60 {
			if _, err := v.Get(t.Context(), src); !errors.Is(err, errDown) {
				t.Errorf("Get: error %v, want %v", err, errDown)
			}
			time.Sleep(time.Second)
		}
		if fetches != 30 {
			t.Errorf("%d fetches in a minute, want 30", fetches)
		}
	})
}

// Whoever comes gets what a fetch brought that began afterwards, and however many come, two
// at most are under way (C38).
func TestLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			l         refresh.Latest[time.Time]
			mu        sync.Mutex
			fetches   int
			underWay  int
			maxSeen   int
			callers   sync.WaitGroup
			fetchTime = time.Second
		)
		fetch := func(context.Context) (time.Time, error) {
			mu.Lock()
			fetches++
			underWay++
			maxSeen = max(maxSeen, underWay)
			mu.Unlock()
			began := time.Now()
			time.Sleep(fetchTime)
			mu.Lock()
			underWay--
			mu.Unlock()
			return began, nil
		}
		for i := range 200 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				came := time.Now()
				began, err := l.Get(t.Context(), fetch)
				if err != nil || began.Before(came) || time.Since(came) > 2*fetchTime {
					t.Errorf("caller %d got what was fetched %v after it came, after %v, %v", i, began.Sub(came), time.Since(came), err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.Get(ctx, fetch); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v of a caller who left, want %v", err, context.DeadlineExceeded)
		}
		callers.Wait()
		if maxSeen != 2 || fetches > 8 {
			t.Errorf("%d fetches under way at once, %d in all, want 2 and at most 8", maxSeen, fetches)
		}
	})
}

// A fetch that callers wait for is that of one of them, as it may carry what is theirs.
func TestLatestFetchesForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l refresh.Latest[int]
		var callers sync.WaitGroup
		for i := range 4 {
			callers.Go(func() {
				got, err := l.Get(t.Context(), func(context.Context) (int, error) {
					time.Sleep(time.Second)
					return i, nil
				})
				// The first two have fetches of their own, the others share the third one.
				if want := min(i, 2); err != nil || got != want {
					t.Errorf("caller %d got what caller %d fetched, %v, want caller %d's", i, got, err, want)
				}
			})
			synctest.Wait()
		}
		callers.Wait()
	})
}

func TestLatestPanic(t *testing.T) {
	var l refresh.Latest[int]
	for range 3 {
		if _, err := l.Get(t.Context(), func(context.Context) (int, error) { panic("secret") }); err == nil {
			t.Error("no error of a fetch that panicked")
		}
	}
}
