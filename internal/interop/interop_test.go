package main

import (
	"strings"
	"testing"
)

// TestInterop prints the matrix with -v. Each of its cells is a test.
func TestInterop(t *testing.T) {
	result, err := run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", result)
	for _, cell := range result.cells {
		t.Run(strings.Join([]string{cell.verifier, cell.what, cell.algorithm}, "/"), func(t *testing.T) {
			if cell.unknown != "" {
				t.Skip(cell.unknown)
			}
			t.Log(cell)
			if !cell.ok() {
				t.Fail()
			}
		})
	}
}
