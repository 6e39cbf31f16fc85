package fetch

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pquerna/cachecontrol/cacheobject"

	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
)

const (
	// maxLifetime bounds how long a response may ask to be kept. Google withdraws a key 6
	// hours after its last use at the earliest.
	maxLifetime = 24 * time.Hour

	// maxRenewEarly bounds how long before its expiry a key set is renewed.
	maxRenewEarly = 5 * time.Minute

	// defaultStale is how long past their expiry keys serve in an outage.
	defaultStale = time.Hour
)

// Keep returns for how long keys are kept: as long as their response says, or for expiration
// where it doesn't. stale is StaleIfError of a configuration.
func (l Lifetime) Keep(expiration, stale time.Duration) refresh.Lifetime {
	fresh := expiration
	if l.Stated {
		fresh = l.Value
	}
	fresh = min(fresh, maxLifetime)
	return refresh.Lifetime{
		Renew: fresh - min(fresh/5, maxRenewEarly),
		Fresh: fresh,
		Stale: StaleIfError(stale),
	}
}

// StaleIfError returns what the field of that name in a configuration means: 0 is an hour,
// a negative value none.
func StaleIfError(configured time.Duration) time.Duration {
	if configured == 0 {
		return defaultStale
	}
	return max(configured, 0)
}

// statedLifetime returns for how long a response may be kept (RFC 9111 section 4.2). One
// that says so in a way that cannot be understood doesn't say it, but an Expires that is no
// date is in the past (section 5.3).
func statedLifetime(header http.Header, now time.Time) Lifetime {
	value := strings.Join(header.Values("Cache-Control"), ", ")
	// A prohibition stands in whatever odd company it is.
	lower := strings.ToLower(value)
	if strings.Contains(lower, "no-store") || strings.Contains(lower, "no-cache") {
		return Lifetime{Stated: true}
	}
	control, err := cacheobject.ParseResponseCacheControl(value)
	var lifetime time.Duration
	switch expires := header.Values("Expires"); {
	case err == nil && control.MaxAge >= 0:
		lifetime = time.Duration(control.MaxAge) * time.Second
	case len(expires) == 0:
		return Lifetime{}
	default:
		end, err := http.ParseTime(expires[0])
		if err != nil {
			return Lifetime{Stated: true}
		}
		if date, err := http.ParseTime(header.Get("Date")); err == nil {
			now = date
		}
		lifetime = max(end.Sub(now), 0)
	}
	age, err := strconv.ParseUint(header.Get("Age"), 10, 31)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		lifetime -= time.Duration(age) * time.Second
	}
	return Lifetime{Stated: true, Value: max(lifetime, 0)}
}
