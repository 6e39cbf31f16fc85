package refresh

import (
	"context"
	"errors"
	"sync"

	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// maxUnderWay bounds the fetches that one Latest has under way.
const maxUnderWay = 2

// A Latest shares fetches among callers who want a value that is no older than their call:
// each gets that of the next fetch that begins after it came. Nothing is kept. Its zero value
// is ready for use, and it may be used concurrently.
type Latest[T any] struct {
	mu       sync.Mutex  // guards what follows; never held during a fetch
	next     *pending[T] // nil: nobody waits for a fetch that has yet to begin
	underWay int
}

// pending is a fetch that has yet to begin: that of the first caller who waits for it.
type pending[T any] struct {
	flight[T]
	fetch func(ctx context.Context) (T, error)
}

// Get returns a value that fetch, or that of another caller, has begun to get after Get was
// called. When ctx ends first, Get returns its error and the fetch goes on for the others.
func (l *Latest[T]) Get(
	ctx context.Context, fetch func(ctx context.Context) (T, error),
) (T, error) {
	l.mu.Lock()
	if l.next == nil {
		l.next = &pending[T]{flight[T]{done: make(chan struct{})}, fetch}
	}
	next := l.next
	l.begin()
	l.mu.Unlock()
	return next.wait(ctx)
}

// begin sets off the next fetch if there is room for it. The caller holds mu.
func (l *Latest[T]) begin() {
	if l.next == nil || l.underWay == maxUnderWay {
		return
	}
	next := l.next
	l.next = nil
	l.underWay++
	go func() {
		next.err = errors.New("the fetch ended its goroutine")
		defer func() {
			if p := recover(); p != nil {
				next.err = retry.Panicked(p)
			}
			close(next.done)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.underWay--
			l.begin()
		}()
		next.value, next.err = next.fetch(context.Background())
	}()
}
