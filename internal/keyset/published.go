package keyset

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/fetch"
	"github.com/someone1/gcp-jwt-go/v3/internal/logs"
	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

const (
	// UnknownCooldown is how long after the reading that an unknown kid set off further
	// unknown kids set off none.
	UnknownCooldown = time.Minute

	// ReadTimeout bounds each reading of keys.
	ReadTimeout = 10 * time.Second

	// waitTimeout bounds what waits for readings. It is a little longer, so that the error
	// is that of the reading, which says what was read.
	waitTimeout = ReadTimeout + 100*time.Millisecond

	// NotReadyPause is how long it is remembered that a key isn't there, ready or allowed.
	NotReadyPause = 3 * time.Second
)

// Waiting returns a context for those who wait for readings of keys. When it ends, known keys
// that are kept serve as in an outage.
func Waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, waitTimeout, refresh.ErrOverdue)
}

// Published is the source of keys that a signer publishes, as certificates or in a JWK Set.
type Published struct {
	*Shared

	// Read reads them; fresh asks for an answer of now.
	Read func(ctx context.Context, fresh bool) (*Set, fetch.Lifetime, error)

	// Allows reports whether the signer can have a key of an algorithm.
	Allows func(alg string) bool

	Cached     bool          // else they are read for the tokens at hand, past any cache on the way
	Expiration time.Duration // where a response states no lifetime
	Stale      time.Duration // as StaleIfError of a configuration
	Signer     string        // for the log

	forced bool         // ask for an answer of now
	logger *slog.Logger // held for Shared, which holds it weakly
}

// Tell makes logger one of those that are told of the keys; nil stands for [slog.Default].
func (p *Published) Tell(logger *slog.Logger) {
	p.logger = logger
	p.Loggers.Add(logger)
}

// Shared is what all sources of the same keys have in common. Its zero value is ready for
// use.
type Shared struct {
	Loggers logs.Group
	kept    refresh.Value[*Set]
	latest  refresh.Latest[*Set]
}

// Accepts reports whether the signer can have a key of an algorithm.
func (p *Published) Accepts(alg string) bool { return p.Allows(alg) }

// Current returns the keys that are cached and not due for renewal.
func (p *Published) Current() *Set {
	if !p.Cached {
		return nil
	}
	set, _ := p.kept.Current()
	return set
}

// Get returns the keys, read after the call began unless they are cached.
func (p *Published) Get(ctx context.Context) (*Set, error) {
	if p.Cached {
		return p.kept.Get(ctx, p)
	}
	return p.latest.Get(ctx, func(ctx context.Context) (*Set, error) {
		set, _, err := p.Fetch(ctx)
		return set, err
	})
}

// Renew returns newer keys than those seen, past any cache on the way.
func (p *Published) Renew(ctx context.Context, seen *Set, wanting func(*Set) bool) (*Set, error) {
	if !p.Cached {
		return seen, nil // they were read for this very token
	}
	forced := *p
	forced.forced = true
	return p.kept.Renew(ctx, &forced, seen, UnknownCooldown, wanting)
}

// Fetch reads the keys.
func (p *Published) Fetch(ctx context.Context) (*Set, refresh.Lifetime, error) {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	set, lifetime, err := p.Read(ctx, p.forced || !p.Cached)
	if err != nil {
		return nil, afterFailure(err), err
	}
	return set, lifetime.Keep(p.Expiration, p.Stale), nil
}

// afterFailure says when to read again. Only a server that is down gets more time with each
// failure: what it refuses or doesn't have yet may be there in a moment.
func afterFailure(err error) refresh.Lifetime {
	var answer *fetch.StatusError
	if errors.As(err, &answer) && retry.OfStatus(answer.Code) == retry.Final {
		return refresh.Lifetime{Retry: NotReadyPause}
	}
	return refresh.Lifetime{}
}

// Failed tells that known keys stay in use.
func (p *Published) Failed(err error, inUse *Set) {
	if inUse != nil {
		p.Loggers.Log(slog.LevelWarn, "keeping the known keys",
			"signer", p.Signer, "age", inUse.Age(), "error", err)
	}
}

// Replaced tells nothing: such keys change by themselves.
func (p *Published) Replaced(_, _ *Set) {}
