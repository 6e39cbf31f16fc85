package refresh

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// maxUnderWay bounds the fetches that one Latest has under way.
const maxUnderWay = 2

// A Latest shares fetches among callers who want a value that is no older than their call:
// each gets that of the next fetch that begins after it came. Nothing is kept. Its zero value
// is ready for use, and it may be used concurrently.
type Latest[T any] struct {
	mu       sync.Mutex // guards what follows; never held during a fetch
	next     *flight[T] // not begun yet
	underWay int
}

// Get returns a value that fetch has begun to get after Get was called. When ctx ends first,
// Get returns its error and the fetch goes on for the others.
func (l *Latest[T]) Get(ctx context.Context, fetch func(ctx context.Context) (T, error)) (T, error) {
	l.mu.Lock()
	if l.next == nil {
		l.next = &flight[T]{done: make(chan struct{})}
	}
	f := l.next
	l.begin(fetch)
	l.mu.Unlock()
	return f.wait(ctx)
}

// begin sets off the next fetch if there is room for it. The caller holds mu.
func (l *Latest[T]) begin(fetch func(ctx context.Context) (T, error)) {
	if l.next == nil || l.underWay == maxUnderWay {
		return
	}
	f := l.next
	l.next = nil
	l.underWay++
	go func() {
		f.err = errors.New("the fetch ended its goroutine")
		defer func() {
			if p := recover(); p != nil {
				f.err = fmt.Errorf("the fetch panicked with a %T", p)
			}
			close(f.done)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.underWay--
			l.begin(fetch)
		}()
		f.value, f.err = fetch(context.Background())
	}()
}
