package logs_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/someone1/gcp-jwt-go/v3/internal/logs"
)

type panicking struct{ slog.Handler }

func (panicking) Handle(context.Context, slog.Record) error { panic("a handler of the user's") }

// Everybody in a group is told, once each, whatever the others do.
func TestGroup(t *testing.T) {
	t.Parallel()
	var first, second bytes.Buffer
	one := slog.New(slog.NewTextHandler(&first, nil))
	two := slog.New(slog.NewTextHandler(&second, nil))
	bad := slog.New(panicking{slog.NewTextHandler(&first, nil)})
	var group logs.Group
	for range 3 {
		for _, logger := range []*slog.Logger{one, bad, two} {
			group.Add(logger)
		}
	}
	group.Log(slog.LevelWarn, "keys are old", "key", "k")
	for i, got := range []string{first.String(), second.String()} {
		if strings.Count(got, "gcpjwt: keys are old") != 1 || !strings.Contains(got, "key=k") {
			t.Errorf("Logger %d was told %q, want one record with key=k", i, got)
		}
	}
}

// Loggers made for each request don't pile up.
func TestGroupIsBounded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var kept []*slog.Logger
	var group logs.Group
	for range 1000 {
		kept = append(kept, slog.New(slog.NewTextHandler(&out, nil)))
		group.Add(kept[len(kept)-1])
	}
	group.Log(slog.LevelInfo, "hello")
	if got := strings.Count(out.String(), "hello"); got != 64 {
		t.Errorf("%d Loggers of %d were told, want 64", got, len(kept))
	}
}
