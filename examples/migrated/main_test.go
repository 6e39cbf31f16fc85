package main

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	const want = `session of alice
invitation of bob@example.com
requests are let through if they are signed
`
	if out.String() != want {
		t.Errorf("the program printed\n%swant\n%s", out.String(), want)
	}
}
