package systest

import (
	"log/slog"
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests, and fails if they leave a goroutine. Configurations
// without a Logger stay silent: thousands of failures are what these tests are about.
func Main(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}
