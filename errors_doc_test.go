package gcpjwt_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestErrorTable checks that the README says of every exported error when it
// comes, what to do, and with which status the middleware answers.
func TestErrorTable(t *testing.T) {
	var variables []string
	for _, dir := range []string{".", "middleware", "oauth2"} {
		p, err := readPackage(dir)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := p.exported()
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			_, declaration, _ := strings.Cut(line, ", ")
			if name, ok := strings.CutPrefix(declaration, "var Err"); ok {
				name, _, _ = strings.Cut(name, " ")
				variables = append(variables, "Err"+name)
			}
		}
	}
	if len(variables) == 0 {
		t.Fatal("the packages export no errors")
	}
	documented := make(map[string]bool)
	for _, row := range tableRows(t, "README.md", regexp.MustCompile(`^Err\w+$`)) {
		documented[row[0]] = true
		if len(row) != 4 || slices.Contains(row, "") {
			t.Errorf("README.md: %s needs three cells: when, what to do, HTTP status", row[0])
		}
		if !slices.Contains(variables, row[0]) {
			t.Errorf("README.md: there is no %s", row[0])
		}
	}
	for _, name := range variables {
		if !documented[name] {
			t.Errorf("README.md: the table of errors lacks %s", name)
		}
	}
}
