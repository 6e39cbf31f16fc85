// Package refresh keeps one remote value fresh: a key set, a list of key
// versions, a token. Any number of callers cause one fetch, a value in use is
// renewed in the background before it expires, and while its origin is down a
// value serves for a bounded time and nobody queues.
package refresh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// Failed fetches are repeated after minBackoff at the earliest, twice as long
// after each further failure, up to maxBackoff.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Minute
)

// A Lifetime says how long a fetched value may be used, counted from the moment
// its fetch began.
type Lifetime struct {
	Renew time.Duration // from here on a use renews the value in the background
	Fresh time.Duration // usable without question; 0 or less: only by those who waited for the fetch
	Stale time.Duration // usable beyond Fresh for as long as renewals fail

	// Retry is for a Fetch that failed: when to try again, where waiting longer each time
	// makes no sense, as with a key that isn't ready yet. 0: back off. While an old value is
	// in use, renewals back off anyway.
	Retry time.Duration
}

// A Source is where a value comes from.
type Source[T any] interface {
	// Fetch gets the value. Its context carries nothing of the caller that set the fetch
	// off, as others share what comes of it, and never ends, so that Fetch must set itself a
	// time limit.
	Fetch(ctx context.Context) (T, Lifetime, error)

	// Failed is told of a failed Fetch whose error no caller gets, because the
	// value that it would have replaced is still in use.
	Failed(err error, inUse T)

	// Replaced is told of each value that is kept, and of the one before it, the zero value
	// if there was none.
	Replaced(old, value T)
}

// A Value is a value kept fresh. Its zero value is ready for use, and all of
// its methods may be called concurrently. The sources given to one Value must
// all fetch the same thing.
type Value[T comparable] struct {
	kept atomic.Pointer[kept[T]]

	mu       sync.Mutex // guards what follows and changes of kept; never held during a fetch
	flight   *flight[T]
	failure  error // of the last fetch; nil when it succeeded
	unseen   bool  // whether nobody waited for that fetch, and it ended too late to be of use
	failures int   // in a row
	retryAt  time.Time
	demandAt time.Time // when Renew last set off a fetch that a cool-down follows
}

type kept[T any] struct {
	value                  T
	renew, fresh, obsolete time.Time
}

// isBefore reports whether t is still to come by both clocks: by the wall clock,
// which goes on while a machine sleeps, and by the monotonic one, which nobody
// can put back.
func isBefore(now, t time.Time) bool {
	return now.Before(t) && now.Before(t.Round(0))
}

// A flight is one fetch and what came of it.
type flight[T any] struct {
	done     chan struct{}
	demanded bool // by somebody who waits for it, from the start
	awaited  bool // by a caller who gets its error; guarded by Value.mu
	value    T
	err      error
}

// Current returns the value if it is fresh and not due for renewal.
func (v *Value[T]) Current() (value T, ok bool) {
	if k := v.kept.Load(); k != nil && isBefore(time.Now(), k.renew) {
		return k.value, true
	}
	return value, false
}

// ErrOverdue is the cause of a context (see [context.WithTimeoutCause]) that ends when a fetch
// should have ended, not when its caller has had enough. Clients of HTTP show it to users.
var ErrOverdue = fmt.Errorf("the reading is overdue: %w", context.DeadlineExceeded)

// Get returns the value, fetching it where there is none that is fresh.
//
// When ctx ends first, Get returns its error and the fetch goes on for the others. Where it ended
// as [ErrOverdue] and an old value serves, Get returns that. While the origin is down an old value
// serves within its Lifetime.Stale; callers without one get the failure at once, except that one
// of them tries again whenever the back-off has passed. A failure that nobody waited for, such as
// that of a renewal during which the process was frozen, is not theirs: they try.
func (v *Value[T]) Get(ctx context.Context, src Source[T]) (T, error) {
	if value, ok := v.Current(); ok {
		return value, nil
	}
	return v.await(ctx, src)
}

// await is Get where the value is due for renewal or not there. It is apart so that Get is short
// enough to cost no more than a look at the clock.
func (v *Value[T]) await(ctx context.Context, src Source[T]) (T, error) {
	for {
		v.mu.Lock()
		now := time.Now()
		k := v.kept.Load()
		if k != nil && isBefore(now, k.fresh) {
			if !isBefore(now, k.renew) {
				v.renewInBackground(src, now)
			}
			v.mu.Unlock()
			return k.value, nil
		}
		usable := k != nil && isBefore(now, k.obsolete)
		if v.down(now) {
			if usable {
				v.renewInBackground(src, now)
				v.mu.Unlock()
				return k.value, nil
			}
			if !v.unseen && (v.flight != nil || now.Before(v.retryAt)) {
				defer v.mu.Unlock()
				var none T
				return none, v.failure
			}
		}
		f := v.join(src, true)
		f.awaited = f.awaited || !usable
		v.mu.Unlock()

		value, err := f.wait(ctx)
		cause := context.Cause(ctx)
		overdue := cause == ErrOverdue
		if err == nil || cause != nil && !overdue {
			return value, err
		}
		if k := v.kept.Load(); k != nil && isBefore(time.Now(), k.obsolete) {
			return k.value, nil
		}
		if f.demanded || overdue {
			return value, err
		}
		// It began for nobody, perhaps long ago.
	}
}

// Renew is for a caller that holds seen and finds it wanting. It returns a value
// that isn't, if there is one by now or a fetch brings one, and else the newest.
//
// A fetch that was set off in this way is followed by no other within the
// cool-down. Within the back-off after a failed fetch there is none either; the
// failure is returned, also while the next fetch is under way. With a cool-down
// of 0 the caller waits for that one, and its own fetch counts for no cool-down.
func (v *Value[T]) Renew(
	ctx context.Context, src Source[T], seen T, cooldown time.Duration, wanting func(T) bool,
) (T, error) {
	for early := false; ; early = true {
		v.mu.Lock()
		now := time.Now()
		if k := v.kept.Load(); k != nil {
			if seen = k.value; !wanting(seen) {
				v.mu.Unlock()
				return seen, nil
			}
		}
		underWay := v.flight != nil
		if v.down(now) && (underWay && cooldown > 0 || !underWay && now.Before(v.retryAt)) {
			defer v.mu.Unlock()
			return seen, v.failure
		}
		if !underWay {
			if v.failure == nil && now.Before(v.demandAt.Add(cooldown)) {
				v.mu.Unlock()
				return seen, nil
			}
			if cooldown > 0 {
				v.demandAt = now
			}
		}
		f := v.join(src, true)
		f.awaited = true
		v.mu.Unlock()

		// A fetch that was under way may have begun too early to bring what is
		// wanted. The one after it did not.
		value, err := f.wait(ctx)
		if err != nil || !underWay || early || !wanting(value) {
			return value, err
		}
		seen = value
	}
}

// down reports whether the origin is known to be down. A failure that is long past
// its back-off says nothing about now. The caller holds mu.
func (v *Value[T]) down(now time.Time) bool {
	return v.failure != nil && now.Before(v.retryAt.Add(maxBackoff))
}

// renewInBackground sets off a fetch unless one is under way or one failed
// moments ago. The caller holds mu.
func (v *Value[T]) renewInBackground(src Source[T], now time.Time) {
	if v.flight == nil && !now.Before(v.retryAt) {
		v.join(src, false)
	}
}

// join returns the fetch under way, setting one off if there is none; demanded says that
// somebody waits for it. The caller holds mu.
func (v *Value[T]) join(src Source[T], demanded bool) *flight[T] {
	if v.flight == nil {
		v.flight = &flight[T]{done: make(chan struct{}), demanded: demanded}
		go v.fly(src, v.flight)
	}
	return v.flight
}

func (v *Value[T]) fly(src Source[T], f *flight[T]) {
	var (
		began = time.Now()
		life  Lifetime
	)
	f.err = errors.New("the fetch ended its goroutine")
	defer func() {
		// Nobody could recover from a panic here, be it of a transport of the user's.
		if p := recover(); p != nil {
			f.err = retry.Panicked(p)
		}
		v.land(src, f, began, life)
	}()
	f.value, life, f.err = src.Fetch(context.Background())
}

// land takes note of what came of a fetch.
func (v *Value[T]) land(src Source[T], f *flight[T], began time.Time, life Lifetime) {
	v.mu.Lock()
	v.flight = nil
	now, before := time.Now(), v.kept.Load()
	usable := before != nil && isBefore(now, before.obsolete)
	switch {
	case f.err != nil:
		v.failure, v.unseen = f.err, !f.demanded && !usable
		pause := life.Retry
		if pause == 0 || usable { // what is in use can wait
			pause = min(minBackoff<<min(v.failures, 16), maxBackoff)
			v.failures++
		}
		v.retryAt = now.Add(pause)
	case life.Fresh <= 0:
		v.succeed(nil)
	default:
		fresh := began.Add(life.Fresh)
		v.succeed(&kept[T]{f.value, began.Add(life.Renew), fresh, fresh.Add(life.Stale)})
	}
	landed := f.err == nil && life.Fresh > 0
	unseen := f.err != nil && !f.awaited
	v.mu.Unlock()
	close(f.done)

	switch {
	case unseen && before != nil:
		src.Failed(f.err, before.value)
	case unseen:
		var none T
		src.Failed(f.err, none)
	case landed && before == nil:
		var none T
		src.Replaced(none, f.value)
	case landed:
		src.Replaced(before.value, f.value)
	}
}

// succeed replaces what is kept and ends an outage. The caller holds mu.
func (v *Value[T]) succeed(k *kept[T]) {
	v.kept.Store(k)
	v.failure, v.failures, v.retryAt = nil, 0, time.Time{}
}

func (f *flight[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
	}
	select {
	case <-f.done: // at the same time
		return f.value, f.err
	default:
		var none T
		return none, ctx.Err()
	}
}
