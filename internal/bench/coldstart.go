package bench

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// A ColdStart is what happened when many callers wanted a token verified at once
// and no key was there yet.
type ColdStart struct {
	Name        string
	Fetches     int           // requests for keys
	Median, P99 time.Duration // until a caller's token was verified
}

// ColdStart has callers verify a token at once with a verifier that the first of
// them makes. A request for keys takes rtt.
//
// The verifiers of keyfunc and jwx fetch their keys when they are made, that of go-oidc and
// ours when they are first used.
func (s *Suite) ColdStart(callers int, rtt time.Duration) ([]ColdStart, error) {
	verifiers := []consumer{{"gcpjwt-certificates", func(ctx context.Context, _ string, client *http.Client) (verifier, error) {
		config := *s.google.iam
		config.Client = client
		ours := byKeyfunc(gcpjwt.IAMVerifyKeyfunc(ctx, &config))
		return func(alg, _ string) error { return ours(alg, s.google.iamToken) }, nil
	}}}
	var starts []ColdStart
	for _, v := range append(verifiers, consumers...) {
		ctx, cancel := context.WithCancel(s.ctx)
		var fetches atomic.Int64
		client := &http.Client{Transport: slow{rtt, &fetches}}
		verifier := sync.OnceValues(func() (verifier, error) { return v.make(ctx, s.setURL(), client) })
		waits, err := crowd(callers, func() error {
			verify, err := verifier()
			if err != nil {
				return err
			}
			return verify("RS256", s.rsa.token)
		})
		cancel()
		if err != nil {
			return nil, err
		}
		starts = append(starts, ColdStart{v.name, int(fetches.Load()), Quantile(waits, 0.5), Quantile(waits, 0.99)})
	}
	return starts, nil
}

// slow counts requests and makes them take a while.
type slow struct {
	rtt      time.Duration
	requests *atomic.Int64
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests.Add(1)
	time.Sleep(s.rtt)
	return http.DefaultTransport.RoundTrip(r)
}

// crowd calls do from many goroutines at once and returns how long each waited.
func crowd(callers int, do func() error) ([]time.Duration, error) {
	var (
		gate  = make(chan struct{})
		waits = make([]time.Duration, callers)
		errs  = make([]error, callers)
		began time.Time
		group sync.WaitGroup
	)
	for i := range callers {
		group.Go(func() {
			<-gate
			errs[i] = do()
			waits[i] = time.Since(began)
		})
	}
	began = time.Now()
	close(gate)
	group.Wait()
	return waits, errors.Join(errs...)
}

// Quantile returns the value below which a share of values lies (nearest rank).
func Quantile[T time.Duration | float64](values []T, share float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
