package api_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/someone1/gcp-jwt-go/v3/internal/systest/api"
)

const (
	top     = "../../.."
	apiFile = top + "/api/v3.txt"
)

var update = flag.Bool("update", false, "rewrite api/v3.txt")

// TestAPI compares the exported declarations of the public packages with those
// on record, so that no change of the API goes unnoticed.
func TestAPI(t *testing.T) {
	var got []string
	dirs, err := api.Packages(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		lines, err := api.Exported(dir)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, lines...)
	}
	if *update {
		if err := os.WriteFile(apiFile, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(apiFile)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	failed := false
	for _, line := range want {
		if !slices.Contains(got, line) {
			failed = true
			t.Errorf("gone:  %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			failed = true
			t.Errorf("new:   %s", line)
		}
	}
	if failed {
		t.Errorf("the exported API differs from api/v3.txt; what is gone breaks users of v3; " +
			"record an intended change with\n\tgo test -run TestAPI ./internal/systest/api -update\nand in CHANGELOG.md")
	}
}
