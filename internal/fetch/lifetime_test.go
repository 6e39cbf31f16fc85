package fetch

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// How long a response may be kept (RFC 9111). What is odd states no lifetime, but for an
// Expires that is no date.
func TestStatedLifetime(t *testing.T) {
	t.Parallel()
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	cacheControl := func(lines ...string) http.Header { return http.Header{"Cache-Control": lines} }
	stated := func(d time.Duration) Lifetime { return Lifetime{Stated: true, Value: d} }
	const seconds = 100 * time.Second
	tests := []struct {
		name   string
		header http.Header
		want   Lifetime
	}{
		{"nothing", nil, Lifetime{}},
		{"empty", cacheControl(""), Lifetime{}},
		{"private,", cacheControl("private,"), Lifetime{}},
		{"public", cacheControl("public"), Lifetime{}},
		{"only commas", cacheControl(" , ,, "), Lifetime{}},
		{"max-age=foo", cacheControl("max-age=foo"), Lifetime{}},
		{"max-age", cacheControl("max-age"), Lifetime{}},
		{"max-age=", cacheControl("max-age="), Lifetime{}},
		{"max-age=-5", cacheControl("max-age=-5"), Lifetime{}},
		{"max-age=1.5", cacheControl("max-age=1.5"), Lifetime{}},
		{"max-age2=100", cacheControl("max-age2=100"), Lifetime{}},
		{"s-maxage=100", cacheControl("s-maxage=100"), Lifetime{}}, // for shared caches
		{"quote left open", cacheControl(`max-age="100`), Lifetime{}},
		{"Google's", cacheControl("public, max-age=21600, must-revalidate, no-transform"), stated(6 * time.Hour)},
		{"max-age=100", cacheControl("max-age=100"), stated(seconds)},
		{"quoted", cacheControl(`max-age="100"`), stated(seconds)},
		{"other case", cacheControl("Public, MAX-AGE=100"), stated(seconds)},
		{"without blanks", cacheControl("public,max-age=100,must-revalidate"), stated(seconds)},
		{"two lines", cacheControl("public", "max-age=100"), stated(seconds)},
		{"unknown directive", cacheControl(`x="a, max-age=5", max-age=100`), stated(seconds)},
		{"max-age=0", cacheControl("max-age=0"), stated(0)},
		{"no-store", cacheControl("no-store"), stated(0)},
		{"no-store beside max-age", cacheControl("max-age=100, no-store"), stated(0)},
		{"no-store in another line", cacheControl("max-age=100", "no-store"), stated(0)},
		{"no-cache", cacheControl("public, max-age=100, No-Cache"), stated(0)},
		{"no-cache for a field", cacheControl(`no-cache="Set-Cookie", max-age=100`), stated(0)},
		{"no-store beside what is odd", cacheControl("max-age=foo, NO-STORE"), stated(0)},
		{"no-cache beside what is odd", cacheControl("no-cache, max-age=-5"), stated(0)},
		{"no-store with a value", cacheControl("no-store=1"), stated(0)},
		{"no-store after a field name", cacheControl("private=x,no-store"), stated(0)},

		{"Age", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"40"}}, stated(time.Minute)},
		{"Age over max-age", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"101"}}, stated(0)},
		{"Age beyond measure", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"99999999999"}}, stated(0)},
		{"Age -5", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"-5"}}, stated(seconds)},
		{"Age foo", http.Header{"Cache-Control": {"max-age=100"}, "Age": {"foo"}}, stated(seconds)},
		{"Age alone", http.Header{"Age": {"40"}}, Lifetime{}},

		{"Expires", http.Header{"Expires": {at(time.Minute)}}, stated(time.Minute)},
		{"Expires after Date", http.Header{"Date": {at(time.Hour)}, "Expires": {at(time.Hour + time.Minute)}}, stated(time.Minute)},
		{"Expires, Date and Age", http.Header{"Date": {at(-time.Hour)}, "Expires": {at(0)}, "Age": {"60"}}, stated(59 * time.Minute)},
		{"Expires before Date", http.Header{"Date": {at(0)}, "Expires": {at(-time.Minute)}}, stated(0)},
		{"Expires in the past", http.Header{"Expires": {at(-time.Minute)}}, stated(0)},
		{"Expires in the year 1", http.Header{"Expires": {"Mon, 01 Jan 0001 00:00:00 GMT"}, "Age": {"5"}}, stated(0)},
		{"max-age over Expires", http.Header{"Cache-Control": {"max-age=100"}, "Expires": {at(time.Minute)}}, stated(seconds)},
		{"Date foo", http.Header{"Date": {"foo"}, "Expires": {at(time.Minute)}}, stated(time.Minute)},

		// C20: in the past, whatever Cache-Control says beside max-age.
		{"Expires 0", http.Header{"Expires": {"0"}}, stated(0)},
		{"Expires -1", http.Header{"Expires": {"-1"}}, stated(0)},
		{"Expires foo", http.Header{"Expires": {"foo"}}, stated(0)},
		{"Expires empty", http.Header{"Expires": {""}}, stated(0)},
		{"Expires 0 and public", http.Header{"Cache-Control": {"public"}, "Expires": {"0"}}, stated(0)},
		{"Expires -1 and public", http.Header{"Cache-Control": {"public"}, "Expires": {"-1"}}, stated(0)},
		{"Expires foo and what is odd", http.Header{"Cache-Control": {"max-age=foo"}, "Expires": {"foo"}}, stated(0)},
		{"Expires 0 and max-age", http.Header{"Cache-Control": {"max-age=100"}, "Expires": {"0"}}, stated(seconds)},
	}
	for _, test := range tests {
		if got := statedLifetime(test.header, now); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	const day, longest = 24 * time.Hour, 1<<63 - 1
	tests := []struct {
		stated            Lifetime
		expiration, stale time.Duration
		renew, fresh      time.Duration
		wantStale         time.Duration
	}{
		{Lifetime{}, 0, 0, 0, 0, time.Hour},
		{Lifetime{}, 10 * time.Minute, -1, 8 * time.Minute, 10 * time.Minute, 0},
		{Lifetime{}, 2 * day, -longest, day - 5*time.Minute, day, 0},
		{Lifetime{true, time.Hour}, time.Minute, time.Minute, 55 * time.Minute, time.Hour, time.Minute},
		{Lifetime{true, 0}, time.Hour, 0, 0, 0, time.Hour},
		{Lifetime{true, longest}, 0, longest, day - 5*time.Minute, day, longest},
	}
	for _, test := range tests {
		got := test.stated.Keep(test.expiration, test.stale)
		if got.Renew != test.renew || got.Fresh != test.fresh || got.Stale != test.wantStale {
			t.Errorf("%+v kept with expiration %v, stale %v: got %+v, want %v, %v, %v",
				test.stated, test.expiration, test.stale, got, test.renew, test.fresh, test.wantStale)
		}
	}
}

// FuzzLifetime holds what must be true whatever a server sends as caching
// headers.
func FuzzLifetime(f *testing.F) {
	if seeds, err := filepath.Glob("testdata/fuzz/FuzzLifetime/*"); err != nil || len(seeds) < 5 {
		f.Fatalf("%d seeds, %v, want at least 5", len(seeds), err)
	}
	f.Add("public, max-age=21600, must-revalidate, no-transform", "", "", "")
	f.Add("", "Sat, 01 Jan 2000 01:00:00 GMT", "Sat, 01 Jan 2000 00:00:00 GMT", "60")
	f.Fuzz(func(t *testing.T, cacheControl, expires, date, age string) {
		header := http.Header{"Cache-Control": strings.Split(cacheControl, "\n")}
		for name, value := range map[string]string{"Expires": expires, "Date": date, "Age": age} {
			if value != "" {
				header.Set(name, value)
			}
		}
		now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
		stated := statedLifetime(header, now)
		lifetime, ok := stated.Value, stated.Stated
		switch lower := strings.ToLower(cacheControl); {
		case lifetime < 0:
			t.Errorf("lifetime %v, want 0 at least", lifetime)
		case !ok && lifetime != 0:
			t.Errorf("lifetime %v, which isn't stated", lifetime)
		case (strings.Contains(lower, "no-store") || strings.Contains(lower, "no-cache")) && (lifetime != 0 || !ok):
			t.Errorf("kept for %v (stated: %v) against the server's will", lifetime, ok)
		}
		if again := statedLifetime(header, now); again != stated {
			t.Errorf("%v the second time, %v the first time", again, stated)
		}
		if kept := stated.Keep(time.Hour, 0); kept.Fresh < 0 || kept.Renew > kept.Fresh || kept.Fresh > 24*time.Hour {
			t.Errorf("kept as %+v", kept)
		}
	})
}
