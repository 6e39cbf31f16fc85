package gcpjwttest_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A module that isn't this one tests a service that signs and one that verifies, with this
// package alone and in few lines. Only modules that this one needs are at hand for it, so that
// no network is needed.
func TestOutside(t *testing.T) {
	t.Parallel()
	const most = 40 // lines of a test
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/outside")); err != nil {
		t.Fatal(err)
	}
	tests, err := filepath.Glob(filepath.Join(dir, "*", "*_test.go"))
	if err != nil || len(tests) != 2 {
		t.Fatalf("tests %q, error %v, want two", tests, err)
	}
	for _, name := range tests {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n >= most {
			t.Errorf("%s has %d lines, want less than %d", filepath.Base(name), n, most)
		}
	}
	sums, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	module := strings.Join([]string{
		"module example.com/outside",
		"go 1.26.0",
		"require github.com/someone1/gcp-jwt-go/v3 v3.0.0",
		"replace github.com/someone1/gcp-jwt-go/v3 => " + top,
	}, "\n")
	for name, text := range map[string][]byte{"go.mod": []byte(module), "go.sum": sums} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "go", "test", "-v", "./...")
	command.Dir = dir
	command.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	out, err := command.CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS: ") != 2 {
		t.Errorf("go test: %v\n%s", err, out)
	}
}
