package gcpjwt

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// wellFormed is written from Google's documentation of resource names, not from
// the parser. RE2's $ without the m flag is the end of the text.
var wellFormed = regexp.MustCompile(`^projects/([a-zA-Z0-9_-][a-zA-Z0-9_.:-]{0,127}|:[a-zA-Z0-9_.:-]{0,127})` +
	`/locations/[a-zA-Z0-9_-]{1,63}` +
	`/keyRings/[a-zA-Z0-9_-]{1,63}` +
	`/cryptoKeys/[a-zA-Z0-9_-]{1,63}` +
	`(/cryptoKeyVersions/([1-9][0-9]{0,18}))?$`)

// FuzzKeyPath checks that the parser takes exactly the well-formed names, takes
// them apart rightly, and describes all others on one line.
func FuzzKeyPath(f *testing.F) {
	needsSeeds(f)
	for _, seed := range []string{
		"",
		"projects/p/locations/l/keyRings/r/cryptoKeys/k",
		"projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1",
		"projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/9223372036854775807",
		"projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/9223372036854775808",
		"projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/00",
		"projects/example.com:p/locations/l/keyRings/r/cryptoKeys/k",
		"name=projects/p/locations/l/keyRings/r/cryptoKeys/k",
		"gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k",
		"projects/p/locations/l/keyRings/r/cryptoKeys/k\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		path, err := parseKeyPath(name)
		match := wellFormed.FindStringSubmatch(name)
		// The scheme and name= cannot be part of a well-formed name, but :// in a
		// project ID is two empty segments in any case.
		if match != nil && err != nil && len(match[3]) == 19 {
			return // may be beyond 63 bits
		}
		if (match != nil) != (err == nil) {
			t.Fatalf("parseKeyPath(%q): %v, but the regular expression matches: %t", name, err, match != nil)
		}
		if err != nil {
			switch message := err.Error(); {
			case !errors.Is(err, ErrInvalidConfig):
				t.Errorf("parseKeyPath(%q): %v, want ErrInvalidConfig", name, err)
			case strings.ContainsAny(message, "\r\n\x00") || !utf8.ValidString(message) || len(message) > 1500:
				t.Errorf("parseKeyPath(%q): the error isn't one short line of text: %q", name, message)
			case path != keyPath{}:
				t.Errorf("parseKeyPath(%q) = %v along with an error", name, path)
			}
			return
		}
		if (path.version != 0) != (match[3] != "") {
			t.Errorf("parseKeyPath(%q).version = %d, want %q", name, path.version, match[3])
		}
		if want, _, _ := strings.Cut(name, "/cryptoKeyVersions/"); path.cryptoKey != want {
			t.Errorf("parseKeyPath(%q).cryptoKey = %q, want %q", name, path.cryptoKey, want)
		}
	})
}

// needsSeeds fails a fuzz test whose committed seeds have gone astray: without
// them it would go on passing and check next to nothing.
func needsSeeds(f *testing.F) {
	f.Helper()
	seeds, err := os.ReadDir(filepath.Join("testdata", "fuzz", f.Name()))
	if err != nil || len(seeds) == 0 {
		f.Fatalf("testdata/fuzz/%s has no seeds: %v", f.Name(), err)
	}
}
