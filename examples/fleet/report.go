package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A token is one that a signer has made.
type token struct {
	text, kid string
	expires   time.Time
}

// A board has the tokens that verifiers may get.
type board struct {
	mu       sync.Mutex
	tokens   []*token             // that haven't expired
	disabled map[string]*disabled // versions, by kid
}

// disabled says when a version was disabled.
type disabled struct {
	from  time.Time // when that began
	since time.Time // when it was done; zero: not yet
}

// maxTokens bounds the tokens on the board.
const maxTokens = 2000

func (b *board) add(text string, expires time.Time) {
	var header struct {
		KeyID string `json:"kid"`
	}
	segment, _, _ := strings.Cut(text, ".")
	if raw, err := base64.RawURLEncoding.DecodeString(segment); err == nil {
		_ = json.Unmarshal(raw, &header) // a token of ours
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = slices.DeleteFunc(b.tokens, func(t *token) bool { return !now.Before(t.expires) })
	if len(b.tokens) == maxTokens {
		i := rand.IntN(maxTokens)
		b.tokens = slices.Delete(b.tokens, i, i+1)
	}
	b.tokens = append(b.tokens, &token{text, header.KeyID, expires})
}

// pick returns the newest token or any other one, nil if there is none.
func (b *board) pick(random *rand.Rand) *token {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.tokens) == 0 {
		return nil
	}
	i := len(b.tokens) - 1
	if random.IntN(2) == 0 {
		i = random.IntN(len(b.tokens))
	}
	return b.tokens[i]
}

// disable disables a version.
func (b *board) disable(kid string, do func()) {
	d := &disabled{from: time.Now()}
	b.mu.Lock()
	if b.disabled == nil {
		b.disabled = make(map[string]*disabled)
	}
	b.disabled[kid] = d
	b.mu.Unlock()
	do()
	b.mu.Lock()
	d.since = time.Now()
	b.mu.Unlock()
}

// disabledAt returns when a version was disabled, zero times if it wasn't.
func (b *board) disabledAt(kid string) disabled {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.disabled[kid]; d != nil {
		return *d
	}
	return disabled{}
}

// A counter has the calls of each minute.
type counter struct{ calls []int }

func (c *counter) add(calls int) { c.calls = append(c.calls, calls) }

func (c *counter) mean() float64 {
	sum := 0
	for _, calls := range c.calls {
		sum += calls
	}
	return float64(sum) / float64(max(1, len(c.calls)))
}

func (c *counter) peak() int { return slices.Max(append(c.calls, 0)) }

// A report says what became of a fleet.
type report struct {
	scale     scale
	published bool

	reads, cryptographic, requests counter

	verified, refused, tooLong, unsigned atomic.Int64

	mu      sync.Mutex
	samples []error // of what went wrong
}

// fail counts what must not happen.
func (r *report) fail(what *atomic.Int64, err error) {
	what.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) < 3 {
		r.samples = append(r.samples, err)
	}
}

// The quotas of a project, per minute (cloud.google.com/kms/quotas).
const (
	quotaReads         = 600
	quotaCryptographic = 60_000
)

func (r *report) String() string {
	var text strings.Builder
	title := "Every verifier reads Cloud KMS"
	if r.published {
		title = "One publisher reads Cloud KMS, the verifiers its JWK Set"
	}
	fmt.Fprintf(&text, "%-58s%10s%10s%10s\n", title, "mean", "peak", "quota")
	line := func(what string, c *counter, quota string) {
		fmt.Fprintf(&text, "  %-56s%10.1f%10d%10s\n", what, c.mean(), c.peak(), quota)
	}
	line("reads of Cloud KMS a minute", &r.reads, fmt.Sprint(quotaReads))
	line("cryptographic requests a minute, public keys included", &r.cryptographic, fmt.Sprint(quotaCryptographic))
	if r.published {
		line("requests to the publisher a minute", &r.requests, "")
	}
	fmt.Fprintf(&text, "  tokens verified %d, good ones refused %d, accepted for too long %d\n", r.verified.Load(), r.refused.Load(), r.tooLong.Load())
	return text.String()
}

// verdict returns an error if something happened that must not.
func (r *report) verdict() error {
	switch {
	case r.refused.Load()+r.tooLong.Load()+r.unsigned.Load() > 0:
		return fmt.Errorf("%d good tokens were refused, %d bad ones accepted for too long, and %d signatures failed, such as: %w",
			r.refused.Load(), r.tooLong.Load(), r.unsigned.Load(), errors.Join(r.samples...))
	case r.verified.Load() < int64(r.scale.verifiers):
		return fmt.Errorf("only %d tokens were verified", r.verified.Load())
	}
	return nil
}
