package fetch

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

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
