package middleware_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Whoever verifies tokens links jwt, net/http and next to nothing else: 189 packages
// are theirs.
func TestLight(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".", "net/http", "github.com/golang-jwt/jwt/v5").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(output))
	slices.Sort(packages)
	packages = slices.Compact(packages)
	if n := len(packages); n > 210 {
		t.Errorf("%d packages are linked, want 210 at most", n)
	}
	for _, name := range packages {
		for _, heavy := range []string{"google.golang.org/", "cloud.google.com/", "github.com/googleapis/", "log/slog", "golang.org/x/oauth2"} {
			if strings.HasPrefix(name, heavy) {
				t.Errorf("%s is linked", name)
			}
		}
	}
	if slices.Contains(packages, "github.com/someone1/gcp-jwt-go/v3") {
		t.Error("the root package is linked")
	}
}
