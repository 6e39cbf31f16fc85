package gcpjwt

import (
	"context"
	"sync/atomic"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// abandonable bounds calls of a client that takes no notice of its context's end. A caller
// leaves such a call when its context ends, but the call goes on and holds its place until
// the client returns. While callers have left all places, further calls fail at once.
type abandonable struct {
	places chan struct{}
	left   atomic.Int32 // places whose callers have left
}

func newAbandonable(places int) *abandonable {
	return &abandonable{places: make(chan struct{}, places)}
}

// enter takes a place.
func (a *abandonable) enter(ctx context.Context) error {
	select {
	case a.places <- struct{}{}:
		return nil
	default:
	}
	if int(a.left.Load()) >= cap(a.places) {
		return errs.Errorf("%d earlier calls hang, which is as many as may be left behind",
			cap(a.places))
	}
	select {
	case a.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attend makes a call whose caller stays to its end.
func attend[T any](
	ctx context.Context, a *abandonable, call func(ctx context.Context) (T, error),
) (value T, err error) {
	if err := a.enter(ctx); err != nil {
		return value, err
	}
	defer func() {
		<-a.places
		if p := recover(); p != nil {
			err = retry.Panicked(p)
		}
	}()
	return call(ctx)
}

// abandon makes a call that its caller may leave behind.
func abandon[T any](ctx context.Context, a *abandonable, call func(ctx context.Context) (T, error)) (T, error) {
	var none T
	if err := a.enter(ctx); err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	var parted atomic.Bool // caller and call, whichever ended first
	go func() {
		r := result{err: errs.Errorf("the call ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				r.err = retry.Panicked(p)
			}
			if parted.Swap(true) {
				a.left.Add(-1)
			}
			<-a.places
			results <- r
		}()
		growStack(0)
		r.value, r.err = call(ctx)
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		if !parted.Swap(true) {
			a.left.Add(1)
		}
		return none, ctx.Err()
	}
}

// growStack makes room for a call of a client in one step. The stack of a new goroutine would
// double several times in that call and be copied each time, which takes a tenth of a call of
// App Engine's on loopback.
//
//go:noinline
func growStack(i int) byte {
	var room [6 << 10]byte
	return room[i]
}
