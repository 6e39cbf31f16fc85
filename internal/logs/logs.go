// Package logs tells Loggers what no caller sees. A Logger that panics ends neither
// the call nor the process.
package logs

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"weak"
)

// To tells one Logger; nil stands for [slog.Default].
func To(logger *slog.Logger, level slog.Level, text string, args ...any) {
	defer func() { _ = recover() }() // of a handler of the user's
	if logger == nil {
		logger = slog.Default()
	}
	logger.Log(context.Background(), level, "gcpjwt: "+text, args...)
}

// maxLoggers bounds the Loggers of one Group. The first half stays: those that were added at
// start-up live longest. Of the others the one that was added first goes first.
const maxLoggers = 64

// A Group is the Loggers of those who share something. It holds them weakly, so that
// sharing keeps nobody's Logger alive. Its zero value is ready for use, and it may be
// used concurrently.
type Group struct {
	members atomic.Pointer[[]weak.Pointer[slog.Logger]] // never changed in place
	mu      sync.Mutex                                  // held while replacing them
}

// Add makes logger one of the group; nil stands for [slog.Default].
func (g *Group) Add(logger *slog.Logger) {
	member := weak.Make(logger)
	if known := g.members.Load(); known != nil && slices.Contains(*known, member) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var members []weak.Pointer[slog.Logger]
	if known := g.members.Load(); known != nil {
		for _, other := range *known {
			if other != member && (other == weak.Pointer[slog.Logger]{} || other.Value() != nil) {
				members = append(members, other)
			}
		}
	}
	if len(members) == maxLoggers {
		members = slices.Delete(members, maxLoggers/2, maxLoggers/2+1)
	}
	members = append(members, member)
	g.members.Store(&members)
}

// Log tells every Logger of the group, once each.
func (g *Group) Log(level slog.Level, text string, args ...any) {
	known := g.members.Load()
	if known == nil {
		return
	}
	told := make(map[*slog.Logger]bool, len(*known))
	for _, member := range *known {
		logger := member.Value()
		if logger == nil && member != (weak.Pointer[slog.Logger]{}) {
			continue // collected
		}
		if logger == nil {
			logger = slog.Default()
		}
		if !told[logger] {
			told[logger] = true
			To(logger, level, text, args...)
		}
	}
}
