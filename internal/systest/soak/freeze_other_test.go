//go:build !linux

package soak_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// freeze needs signals that only some systems have.
func freeze(_ context.Context, t *testing.T, _ time.Duration, _ *rand.Rand) {
	t.Log("no process is frozen here, only on Linux")
}
