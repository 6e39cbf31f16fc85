package refresh

import (
	"context"
	"testing"
)

// What has been fetched is not lost to a caller whose context ends at the same time.
func TestWaitAtTheEnd(t *testing.T) {
	f := &flight[int]{done: make(chan struct{}), value: 1}
	close(f.done)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		if got, err := f.wait(ctx); got != 1 || err != nil {
			t.Fatalf("got %d, %v, want the value", got, err)
		}
	}
}
