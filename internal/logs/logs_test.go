package logs_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strconv"
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

// Loggers made for each request don't pile up, and push out none of those of start-up.
func TestGroupIsBounded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var kept []*slog.Logger
	var group logs.Group
	for i := range 1000 {
		kept = append(kept, slog.New(slog.NewTextHandler(&out, nil)).With("number", i))
		group.Add(kept[i])
		group.Add(kept[0])
	}
	group.Log(slog.LevelInfo, "hello")
	var told, want []int
	for line := range strings.Lines(out.String()) {
		number, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, "=")+1:]))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		told = append(told, number)
	}
	for i := range 32 {
		want = append(want, i)
	}
	for i := range 32 {
		want = append(want, len(kept)-32+i)
	}
	if !slices.Equal(told, want) {
		t.Errorf("these were told: %v, want the first and the last 32 of %d", told, len(kept))
	}
}
