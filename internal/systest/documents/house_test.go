package documents_test

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/someone1/gcp-jwt-go/v3"

// A storey of the house is a line of the drawing.
type storey struct {
	light    bool
	packages []string // below the module's folder, or patterns of them; "gcpjwt" is the root
}

// house returns the storeys of the drawing in CONTRIBUTING.md, the highest first.
func house(t *testing.T) (storeys []storey) {
	t.Helper()
	light := false
	for _, line := range blocks(t, "CONTRIBUTING.md", "text")[0].lines {
		words := strings.Fields(line)
		if line[0] != ' ' { // a new group of storeys
			light = words[0] == "light"
			words = words[1:]
		}
		storeys = append(storeys, storey{light, words})
	}
	return storeys
}

// storeyOf returns on which storey a package is, -1 if it isn't in the house.
func storeyOf(storeys []storey, name string) int {
	return slices.IndexFunc(storeys, func(s storey) bool {
		return slices.ContainsFunc(s.packages, func(pattern string) bool {
			ok, err := path.Match(pattern, name)
			return ok && err == nil
		})
	})
}

// TestHouse checks the drawing in CONTRIBUTING.md: each package is in it once, imports point
// down, and light packages link nothing heavy.
func TestHouse(t *testing.T) {
	atTop(t)
	storeys := house(t)
	known := make(map[string]int) // of the words of the drawing, how many packages
	for _, line := range goList(t, `{{.ImportPath}} {{join .Imports " "}}`, "./...") {
		var ours []string // the package and its imports
		for name := range strings.FieldsSeq(line) {
			if name == module {
				ours = append(ours, "gcpjwt")
			} else if name, ok := strings.CutPrefix(name, module+"/"); ok {
				ours = append(ours, name)
			}
		}
		name := ours[0]
		at := storeyOf(storeys, name)
		if at < 0 {
			t.Errorf("CONTRIBUTING.md: the house has no room for %s", name)
			continue
		}
		for _, word := range storeys[at].packages {
			if ok, _ := path.Match(word, name); ok {
				known[word]++
			}
		}
		for _, imported := range ours[1:] {
			if below := storeyOf(storeys, imported); below >= 0 && below <= at {
				t.Errorf("CONTRIBUTING.md: %s imports %s, which isn't below it", name, imported)
			}
		}
		if storeys[at].light {
			checkLinks(t, name, nil)
		}
	}
	checkLinks(t, "grpcauth", []string{"google.golang.org/grpc"})
	for _, s := range storeys {
		for _, word := range s.packages {
			if known[word] == 0 {
				t.Errorf("CONTRIBUTING.md: there is no package %s", word)
			}
		}
	}
}

// checkLinks checks that a package links none of Google's clients but those allowed.
func checkLinks(t *testing.T, name string, allowed []string) {
	t.Helper()
	for _, linked := range goList(t, "{{.ImportPath}}", "-deps", "./"+name) {
		for _, heavy := range []string{
			"google.golang.org/grpc", "google.golang.org/api", "google.golang.org/appengine",
			"cloud.google.com/go", "github.com/googleapis/gax-go", module,
		} {
			below := heavy != module && strings.HasPrefix(linked, heavy+"/")
			if (linked == heavy || below) && !slices.Contains(allowed, heavy) {
				t.Errorf("CONTRIBUTING.md: %s links %s and perhaps more", name, linked)
				return
			}
		}
	}
}

// goList returns the lines of go list.
func goList(t *testing.T, format string, args ...string) []string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"list", "-f", format}, args...)...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestSteps checks that CONTRIBUTING.md and the Makefile have the steps of .ci/run, in order.
func TestSteps(t *testing.T) {
	atTop(t)
	steps := func(file, pattern string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		match := regexp.MustCompile(pattern).FindSubmatch(data)
		if match == nil {
			t.Fatalf("%s has no steps", file)
		}
		return string(match[1])
	}
	want := steps(".ci/run", `(?m)^steps=\((.*)\)$`)
	if got := steps("Makefile", `(?m)^STEPS := (.*)$`); got != want {
		t.Errorf("Makefile has the steps %s, want %s", got, want)
	}
	var documented []string
	for _, cells := range tableAfter(t, "CONTRIBUTING.md", "## Build and test")[1:] {
		documented = append(documented, strings.Trim(cells[0], "`"))
	}
	if got := strings.Join(documented, " "); got != want {
		t.Errorf("CONTRIBUTING.md has the steps %s, want %s", got, want)
	}
}
