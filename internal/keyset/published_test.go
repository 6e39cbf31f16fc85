package keyset_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/fetch"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
)

// The answers in these tests live for an hour. They are renewed in the background from
// renewal on.
const (
	lifetime = time.Hour
	renewal  = lifetime - 5*time.Minute
)

var errDown = errors.New("down")

// An origin publishes keys of some kids, each of which is its own public key. Tests change
// its fields through set.
type origin struct {
	mu       sync.Mutex
	kids     []string
	header   http.Header
	status   int           // 0: 200
	err      error         // of the network
	latency  time.Duration // of an answer, which is as old as its question
	requests []*http.Request

	underWay, mostUnderWay int
	shared                 keyset.Shared
	log                    bytes.Buffer
	logger                 *slog.Logger // of all sources: its handler holds a lock while it writes
}

func newOrigin() *origin {
	hour := fmt.Sprintf("max-age=%d", int(lifetime.Seconds()))
	o := &origin{kids: []string{"k"}, header: http.Header{"Cache-Control": {hour}}}
	o.logger = slog.New(slog.NewTextHandler(&o.log, nil))
	return o
}

func (o *origin) RoundTrip(r *http.Request) (*http.Response, error) {
	o.mu.Lock()
	o.requests = append(o.requests, r)
	o.underWay++
	o.mostUnderWay = max(o.mostUnderWay, o.underWay)
	body, _ := json.Marshal(o.kids)
	response := &http.Response{StatusCode: max(o.status, 200), Header: o.header.Clone(), Body: io.NopCloser(bytes.NewReader(body)), Request: r}
	err, latency := o.err, o.latency
	o.mu.Unlock()
	defer o.set(func(o *origin) { o.underWay-- })
	select {
	case <-time.After(latency):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	return response, nil
}

func (o *origin) set(f func(o *origin)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

func (o *origin) fetches() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.requests)
}

// wantFetches checks the number of requests so far.
func (o *origin) wantFetches(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	if got := o.fetches(); got != want {
		t.Errorf("%d requests, want %d", got, want)
	}
}

// source returns a source of the origin's keys that the caller may change.
func (o *origin) source() *keyset.Published {
	client := &http.Client{Transport: o}
	source := &keyset.Published{
		Shared: &o.shared,
		Allows: func(alg string) bool { return alg == "RS256" },
		Cached: true,
		Signer: "somebody",
		Read: func(ctx context.Context, fresh bool) (*keyset.Set, fetch.Lifetime, error) {
			response, err := fetch.Get(ctx, fetch.Request{Client: client, URL: "https://keys.example/", Fresh: fresh})
			if err != nil {
				return nil, fetch.Lifetime{}, err
			}
			var kids []string
			if err := json.Unmarshal(response.Body, &kids); err != nil {
				return nil, fetch.Lifetime{}, err
			}
			var keys []*keyset.Key
			for _, kid := range kids {
				keys = append(keys, &keyset.Key{ID: kid, Alg: "RS256", Public: kid})
			}
			return keyset.New(keys), response.Lifetime, nil
		},
	}
	source.Tell(o.logger)
	return source
}

// bubble runs f in a bubble with an origin and the Keyfunc of its source.
func bubble(t *testing.T, f func(t *testing.T, o *origin, keyfunc jwt.Keyfunc)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin()
		f(t, o, keyset.Keyfunc(t.Context(), o.source()))
		time.Sleep(time.Hour) // fetches under way come to their end
	})
}

// token is one as a Keyfunc gets it.
func token(kid string) *jwt.Token {
	return &jwt.Token{Method: jwt.SigningMethodRS256, Header: map[string]any{"kid": kid}}
}

// want checks what comes of a token by a kid, and that it takes as long as it should.
func want(t *testing.T, keyfunc jwt.Keyfunc, kid string, wantErr error, took time.Duration) {
	t.Helper()
	began := time.Now()
	key, err := keyfunc(token(kid))
	switch {
	case !errors.Is(err, wantErr):
		t.Errorf("kid %.20s: got %v, want %v", kid, err, wantErr)
	case errors.Is(err, errs.ErrKeysUnavailable) && !errors.Is(wantErr, errs.ErrKeysUnavailable):
		t.Errorf("kid %.20s: %v is also %v", kid, err, errs.ErrKeysUnavailable)
	case err == nil && key != kid:
		t.Errorf("kid %.20s: got key %v", kid, key)
	}
	if got := time.Since(began); got != took {
		t.Errorf("kid %.20s: it took %v, want %v", kid, got, took)
	}
}

// Unknown kids cost one request in a minute, however many there are, and that one asks for
// an answer of now: a cache on the way may not have the new key (C21).
func TestUnknownKeyIDs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		forge := func() {
			for i := range 1000 {
				want(t, keyfunc, fmt.Sprint("forged ", i), errs.ErrUnknownKeyID, 0)
			}
		}
		forge()
		o.wantFetches(t, 2)
		time.Sleep(keyset.UnknownCooldown - 1)
		forge()
		o.wantFetches(t, 2)
		time.Sleep(time.Nanosecond)
		forge()
		o.wantFetches(t, 3)
		want(t, keyfunc, "k", nil, 0)
		var directives []string
		for _, r := range o.requests {
			directives = append(directives, r.Header.Get("Cache-Control"))
		}
		if got := strings.Join(directives, " "); got != " no-cache no-cache" {
			t.Errorf("Cache-Control of the requests is %q, want no-cache for all but the first", directives)
		}
	})
}

// The same with all of them at once, on a cold cache and on a warm one.
func TestUnknownKeyIDsAtOnce(t *testing.T) {
	t.Parallel()
	for _, warm := range []bool{false, true} {
		bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
			if warm {
				want(t, keyfunc, "k", nil, 0)
			}
			o.set(func(o *origin) { o.latency = time.Second })
			var callers sync.WaitGroup
			for i := range 10_000 {
				callers.Go(func() {
					if _, err := keyfunc(token(fmt.Sprint("forged ", i))); !errors.Is(err, errs.ErrUnknownKeyID) {
						t.Errorf("got %v, want %v", err, errs.ErrUnknownKeyID)
					}
				})
			}
			callers.Wait()
			o.wantFetches(t, 2)
		})
	}
}

// Nobody chooses a kid that long, so it isn't worth a request.
func TestImplausibleKeyIDs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		want(t, keyfunc, "k", nil, 0)
		for _, kid := range []string{"", strings.Repeat("a", 257), strings.Repeat("a", 64<<10)} {
			want(t, keyfunc, kid, errs.ErrUnknownKeyID, 0)
			if _, err := keyfunc(token(kid)); len(err.Error()) > 300 {
				t.Errorf("kid of %d bytes: an error of %d", len(kid), len(err.Error()))
			}
		}
		o.wantFetches(t, 1)
		want(t, keyfunc, strings.Repeat("a", 256), errs.ErrUnknownKeyID, 0)
		o.wantFetches(t, 2)
	})
}

// The answer to a renewal under way may be older than a new key: that is no reason to refuse
// the key for a minute.
func TestRotationDuringRenewal(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		want(t, keyfunc, "k", nil, 0)
		time.Sleep(renewal)
		o.set(func(o *origin) { o.latency = time.Second })
		want(t, keyfunc, "k", nil, 0) // sets off the renewal
		synctest.Wait()
		o.set(func(o *origin) { o.kids = []string{"new"} })
		want(t, keyfunc, "new", nil, 2*time.Second)
		want(t, keyfunc, "k", errs.ErrUnknownKeyID, 0)
		o.wantFetches(t, 3)
	})
}

// A withdrawn key is forgotten with the next renewal.
func TestWithdrawnKeys(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		want(t, keyfunc, "k", nil, 0)
		o.set(func(o *origin) { o.kids = []string{"other"} })
		time.Sleep(renewal - 1)
		want(t, keyfunc, "k", nil, 0)
		o.wantFetches(t, 1)
		time.Sleep(time.Nanosecond)
		want(t, keyfunc, "k", nil, 0)
		o.wantFetches(t, 2)
		want(t, keyfunc, "k", errs.ErrUnknownKeyID, 0)
	})
}

// A cold cache is filled by one request, for any number of callers.
func TestOneFetch(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
		o.set(func(o *origin) { o.latency = time.Second })
		var callers sync.WaitGroup
		for range 2000 {
			callers.Go(func() {
				// A Keyfunc for each request is as good as one for all.
				want(t, keyset.Keyfunc(t.Context(), o.source()), "k", nil, time.Second)
			})
		}
		callers.Wait()
		o.wantFetches(t, 1)
	})
}

// A verifier in use never waits: keys are renewed before they expire.
func TestRenewal(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		want(t, keyfunc, "k", nil, 0)
		o.set(func(o *origin) { o.latency = 9 * time.Second })
		for began := time.Now(); time.Since(began) < 10*lifetime; time.Sleep(time.Minute) {
			want(t, keyfunc, "k", nil, 0)
		}
		if got := o.fetches(); got < 10 || got > 12 {
			t.Errorf("%d requests in 10 lifetimes, want 11 or so", got)
		}
	})
}

// Keys expire during an outage: they serve for StaleIfError, and come back when the origin
// does.
func TestStaleIfError(t *testing.T) {
	t.Parallel()
	for configured, served := range map[time.Duration]time.Duration{
		0:                time.Hour,
		10 * time.Minute: 10 * time.Minute,
		30 * time.Hour:   30 * time.Hour,
		-1:               0,
		math.MinInt64:    0,
	} {
		bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
			source := o.source()
			source.Stale = configured
			keyfunc := keyset.Keyfunc(t.Context(), source)
			want(t, keyfunc, "k", nil, 0)
			o.set(func(o *origin) { o.err = errDown })

			time.Sleep(lifetime - 1)
			want(t, keyfunc, "k", nil, 0)
			time.Sleep(time.Nanosecond)
			if served > 0 {
				want(t, keyfunc, "k", nil, 0)
				time.Sleep(served - 1)
				want(t, keyfunc, "k", nil, 0)
				time.Sleep(time.Nanosecond)
			}
			want(t, keyfunc, "k", errs.ErrKeysUnavailable, 0)
			time.Sleep(time.Hour)
			want(t, keyfunc, "k", errs.ErrKeysUnavailable, 0)

			o.set(func(o *origin) { o.err = nil })
			time.Sleep(time.Minute) // the back-off's upper bound
			want(t, keyfunc, "k", nil, 0)
		})
	}
	// The longest there is doesn't overflow.
	bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
		source := o.source()
		source.Stale = math.MaxInt64
		keyfunc := keyset.Keyfunc(t.Context(), source)
		want(t, keyfunc, "k", nil, 0)
		o.set(func(o *origin) { o.err = errDown })
		time.Sleep(lifetime + time.Minute)
		want(t, keyfunc, "k", nil, 0)
	})
}

// An outage is found out by one caller; the others don't queue, and what is left of the
// origin isn't run over.
func TestColdOutage(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		o.set(func(o *origin) { o.err = errDown })
		want(t, keyfunc, "k", errs.ErrKeysUnavailable, 0)

		// Attempts take long now, of which only those who make them take notice.
		o.set(func(o *origin) { o.latency = 5 * time.Second })
		var mu sync.Mutex
		waited, refused := 0, 0
		for range 15 * 60 {
			time.Sleep(time.Second)
			var callers sync.WaitGroup
			for range 10 {
				callers.Go(func() {
					began := time.Now()
					if _, err := keyfunc(token("k")); !errors.Is(err, errs.ErrKeysUnavailable) || !errors.Is(err, errDown) {
						t.Errorf("got %v, want %v and %v", err, errs.ErrKeysUnavailable, errDown)
					}
					mu.Lock()
					defer mu.Unlock()
					if time.Since(began) > 0 {
						waited++
					} else {
						refused++
					}
				})
			}
			callers.Wait()
		}
		// 100 ms, 200 ms and so on up to a minute, after each attempt.
		got := o.fetches()
		if got > 40 {
			t.Errorf("%d requests in a quarter of an hour and more, want one a minute or so", got)
		}
		if waited != got-1 || refused < 8_000 {
			t.Errorf("%d callers waited and %d didn't, want one for each of %d requests", waited, refused, got-1)
		}

		o.set(func(o *origin) { o.err, o.latency = nil, 0 })
		time.Sleep(time.Minute)
		want(t, keyfunc, "k", nil, 0)
		want(t, keyfunc, "k", nil, 0)
		o.wantFetches(t, got+1)
	})
}

// What a server refuses or doesn't have may be there in a moment: it is asked every 3
// seconds, also after an hour.
func TestNotThereYet(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 404, 410} {
		bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
			o.set(func(o *origin) { o.status = status })
			for range 3600 {
				want(t, keyfunc, "k", errs.ErrKeysUnavailable, 0)
				time.Sleep(time.Second)
			}
			o.wantFetches(t, 1200)
			o.set(func(o *origin) { o.status = 200 })
			time.Sleep(keyset.NotReadyPause)
			want(t, keyfunc, "k", nil, 0)
		})
	}
	// Keys in use can wait: renewals back off.
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		want(t, keyfunc, "k", nil, 0)
		o.set(func(o *origin) { o.status = 404 })
		time.Sleep(lifetime)
		for range 1800 {
			_, _ = keyfunc(token("k"))
			time.Sleep(time.Second)
		}
		if got := o.fetches(); got > 45 {
			t.Errorf("%d requests in half an hour, want little more than one a minute", got)
		}
	})
}

// A server that is down is asked three times, and then left alone for longer each time.
func TestDown(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 500, 503} {
		bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
			o.set(func(o *origin) { o.status = status })
			if _, err := keyfunc(token("k")); !errors.Is(err, errs.ErrKeysUnavailable) {
				t.Errorf("got %v, want %v", err, errs.ErrKeysUnavailable)
			}
			o.wantFetches(t, 3)
			want(t, keyfunc, "k", errs.ErrKeysUnavailable, 0)
			o.wantFetches(t, 3)
			for range 3600 {
				_, _ = keyfunc(token("k"))
				time.Sleep(time.Second)
			}
			if got := o.fetches(); got > 3*75 {
				t.Errorf("%d requests in an hour, want 3 a minute or so", got)
			}
		})
	}
}

// Known keys serve whoever waited for as long as a reading may take, even if that one ends
// later. It does where the process was frozen: all times are over at once then.
func TestLateReading(t *testing.T) {
	t.Parallel()
	const late = keyset.ReadTimeout + time.Second
	bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
		source := o.source()
		read := source.Read
		source.Read = func(ctx context.Context, fresh bool) (*keyset.Set, fetch.Lifetime, error) {
			if o.fetches() == 1 {
				time.Sleep(late) // whatever ctx says
			}
			return read(ctx, fresh)
		}
		keyfunc := keyset.Keyfunc(t.Context(), source)
		want(t, keyfunc, "k", nil, 0)
		time.Sleep(lifetime)
		want(t, keyfunc, "k", nil, keyset.ReadTimeout+100*time.Millisecond)
		want(t, keyfunc, "k", nil, late-keyset.ReadTimeout-100*time.Millisecond)
	})
}

// An unknown kid in an outage may name a new key, so that the token isn't bad yet.
func TestUnknownKeyIDInAnOutage(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		want(t, keyfunc, "k", nil, 0)
		o.set(func(o *origin) { o.err = errDown })
		for i := range 1000 {
			if _, err := keyfunc(token(fmt.Sprint("new ", i))); !errors.Is(err, errs.ErrKeysUnavailable) || !errors.Is(err, errs.ErrUnknownKeyID) {
				t.Fatalf("got %v, want %v and %v", err, errs.ErrKeysUnavailable, errs.ErrUnknownKeyID)
			}
		}
		o.wantFetches(t, 2)
		want(t, keyfunc, "k", nil, 0)
	})
}

// The end of the constructor's context ends nothing later. What waits for keys waits 10
// seconds at most.
func TestContexts(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{false, true} {
		bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
			source := o.source()
			source.Cached = cached
			ctx, cancel := context.WithCancel(t.Context())
			keyfunc := keyset.Keyfunc(ctx, source)
			cancel()
			o.set(func(o *origin) { o.latency = 5 * time.Second })
			want(t, keyfunc, "k", nil, 5*time.Second)
			time.Sleep(3 * lifetime)
			want(t, keyfunc, "k", nil, 5*time.Second)
			o.set(func(o *origin) { o.latency = time.Hour })
			time.Sleep(3 * lifetime)
			want(t, keyfunc, "k", errs.ErrKeysUnavailable, 10*time.Second)
		})
	}
}

// Who asks for the keys themselves leaves when their context ends, and the reading goes on
// for the others.
func TestCallersLeave(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{false, true} {
		bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
			source := o.source()
			source.Cached = cached
			o.set(func(o *origin) { o.latency = 5 * time.Second })
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			if _, err := source.Get(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("cached %v: got %v after %v, want %v after 1s", cached, err, time.Since(began), context.DeadlineExceeded)
			}
			set, err := source.Get(t.Context())
			if wait := time.Since(began); err != nil || len(set.Keys()) != 1 || cached && wait != 5*time.Second {
				t.Errorf("cached %v: got %v after %v, want the keys of the first reading", cached, err, wait)
			}
		})
	}
}

// Loggers are told of what no caller sees, and of nothing else.
func TestLogger(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		var other bytes.Buffer
		source := o.source()
		source.Tell(slog.New(slog.NewTextHandler(&other, nil)))
		want(t, keyfunc, "k", nil, 0)
		o.set(func(o *origin) { o.err = errDown })
		time.Sleep(renewal)
		runtime.GC() // a Logger lives as long as a source that it came with
		want(t, keyfunc, "k", nil, 0)
		synctest.Wait()
		for _, got := range []string{o.log.String(), other.String()} {
			if strings.Count(got, "\n") != 1 {
				t.Errorf("log %q, want one line", got)
			}
			for _, part := range []string{"level=WARN", `msg="gcpjwt: keeping the known keys"`, "signer=somebody", "age=55m0s", "keys.example", "down"} {
				if !strings.Contains(got, part) {
					t.Errorf("log %q, want %s in it", got, part)
				}
			}
		}
		runtime.KeepAlive(source)
	})
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		o.set(func(o *origin) { o.err = errDown })
		want(t, keyfunc, "k", errs.ErrKeysUnavailable, 0)
		o.set(func(o *origin) { o.err = nil })
		time.Sleep(time.Minute)
		want(t, keyfunc, "k", nil, 0)
		o.set(func(o *origin) { o.err = errDown })
		want(t, keyfunc, "unknown", errs.ErrKeysUnavailable, 0)
		synctest.Wait()
		if got := o.log.String(); got != "" {
			t.Errorf("log %q, want nothing that callers saw", got)
		}
	})
}

// An answer without lifetime isn't kept, nor does it serve in an outage, unless the
// configuration says how long it may.
func TestWithoutLifetime(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, keyfunc jwt.Keyfunc) {
		o.set(func(o *origin) { o.header = http.Header{} })
		for range 3 {
			want(t, keyfunc, "k", nil, 0)
		}
		o.wantFetches(t, 3)
		o.set(func(o *origin) { o.err = errDown })
		want(t, keyfunc, "k", errs.ErrKeysUnavailable, 0)
	})
	bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
		o.set(func(o *origin) { o.header = http.Header{} })
		source := o.source()
		source.Expiration = time.Minute
		keyfunc := keyset.Keyfunc(t.Context(), source)
		for range 3 {
			want(t, keyfunc, "k", nil, 0)
		}
		o.wantFetches(t, 1)
		time.Sleep(time.Minute)
		want(t, keyfunc, "k", nil, 0)
		o.wantFetches(t, 2)
	})
}

// Without the cache a token joins the next reading that begins after it came, of which two
// at most are under way, whatever its kid. Nobody gets older keys than that, and no cache on
// the way is asked (C38).
func TestUncached(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
		source := o.source()
		source.Cached = false
		keyfunc := keyset.Keyfunc(t.Context(), source)
		o.set(func(o *origin) { o.latency = time.Second })
		var callers sync.WaitGroup
		for i := range 200 {
			kid, wantErr := "k", error(nil)
			if i%2 == 1 {
				kid, wantErr = fmt.Sprint("forged ", i), errs.ErrUnknownKeyID
			}
			callers.Go(func() {
				if _, err := keyfunc(token(kid)); !errors.Is(err, wantErr) {
					t.Errorf("kid %s: got %v, want %v", kid, err, wantErr)
				}
			})
		}
		time.Sleep(time.Second / 2)
		synctest.Wait()
		o.set(func(o *origin) { o.kids = []string{"k", "new"} }) // readings under way don't have it
		for range 200 {
			callers.Go(func() { want(t, keyfunc, "new", nil, 3*time.Second/2) })
		}
		time.Sleep(3 * time.Second / 4)
		synctest.Wait()
		o.set(func(o *origin) { o.kids = []string{"new"} })
		callers.Go(func() {
			if _, err := keyfunc(token("k")); !errors.Is(err, errs.ErrUnknownKeyID) {
				t.Errorf("a key withdrawn before the token came: got %v, want %v", err, errs.ErrUnknownKeyID)
			}
		})
		callers.Wait()
		if got := o.fetches(); got > 4 || o.mostUnderWay != 2 {
			t.Errorf("%d requests for 401 tokens, %d at once, want 4 at most, and 2", got, o.mostUnderWay)
		}
		if slices.ContainsFunc(o.requests, func(r *http.Request) bool { return r.Header.Get("Cache-Control") != "no-cache" }) {
			t.Error("a request may be answered by a cache")
		}

		// Nothing is kept, failures neither.
		before := o.fetches()
		for _, err := range []error{nil, errDown, errDown, nil} {
			wantErr := errs.ErrKeysUnavailable
			if err == nil {
				wantErr = nil
			}
			o.set(func(o *origin) { o.err = err })
			want(t, keyfunc, "new", wantErr, time.Second)
		}
		o.wantFetches(t, before+4)
	})
}

// A transport that panics or ends its goroutine doesn't leave callers waiting, and what it
// panics with isn't told.
func TestTransportFails(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){"Goexit": runtime.Goexit, "panic": func() { panic("hunter2") }} {
		for _, cached := range []bool{false, true} {
			bubble(t, func(t *testing.T, o *origin, _ jwt.Keyfunc) {
				source := o.source()
				source.Cached = cached
				read := source.Read
				source.Read = func(ctx context.Context, fresh bool) (*keyset.Set, fetch.Lifetime, error) {
					f()
					return read(ctx, fresh)
				}
				keyfunc := keyset.Keyfunc(t.Context(), source)
				for range 3 {
					want(t, keyfunc, "k", errs.ErrKeysUnavailable, 0)
					if _, err := keyfunc(token("k")); strings.Contains(err.Error(), "hunter2") {
						t.Errorf("%s: %v tells a secret", name, err)
					}
				}
			})
		}
	}
}
