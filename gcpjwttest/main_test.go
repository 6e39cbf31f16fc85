package gcpjwttest_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs a test without package testing, as an Example has no t.
func run(test func(t testing.TB)) {
	ctx, cancel := context.WithCancel(context.Background())
	t := &exampleT{ctx: ctx}
	defer func() {
		cancel()
		for _, f := range slices.Backward(t.cleanups) {
			f()
		}
	}()
	test(t)
}

// exampleT is the testing.TB of an Example. It has what servers and examples call.
type exampleT struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
}

func (t *exampleT) Helper()                           {}
func (t *exampleT) Context() context.Context          { return t.ctx }
func (t *exampleT) Output() io.Writer                 { return io.Discard }
func (t *exampleT) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *exampleT) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (t *exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *exampleT) Setenv(name, value string) {
	before, set := os.LookupEnv(name)
	os.Setenv(name, value)
	t.Cleanup(func() {
		os.Unsetenv(name)
		if set {
			os.Setenv(name, before)
		}
	})
}
