package main

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestRun checks the lines that others read, and that a pair is measured in both
// of its forms.
func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(context.Background(), []string{"-run", "verify/ES256$|verify/ES256/parallel$", "-time", "5ms", "-markdown"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{
		`(?m)^ratio verify/ES256/gcpjwt/static \d+\.\d{3} 1\.010$`,
		`(?m)^ratio verify/ES256/gcpjwt/keyfunc \d+\.\d{3} 1\.000$`,
		`(?m)^ratio verify/ES256/parallel/gcpjwt/jwx \d+\.\d{3} 1\.000$`,
		`(?m)^ratio allocs/verify/ES256/gcpjwt/static \d+\.\d{3} \d+\.\d{3}$`,
		`(?m)^median verify/ES256/go-oidc \d+(\.\d+)?[mµn]s$`,
		`(?m)^\| ES256 \|( \d+(\.\d+)?[mµn]s \|){5}( \d+\.\d{3} \|){4}$`,
	} {
		if !regexp.MustCompile(pattern).MatchString(out.String()) {
			t.Errorf("no line %s in\n%s", pattern, out.String())
		}
	}
	if strings.Contains(out.String(), "RS256") {
		t.Errorf("-run let others through:\n%s", out.String())
	}
}

func TestRepeat(t *testing.T) {
	for _, goroutines := range []int{1, 3} {
		var calls atomic.Int64
		if _, err := repeat(10, func() error { calls.Add(1); return nil }, goroutines); err != nil || calls.Load() != int64(10*goroutines) {
			t.Errorf("repeat on %d goroutines made %d calls, want 10 on each: %v", goroutines, calls.Load(), err)
		}
		failure := errors.New("failure")
		if _, err := repeat(10, func() error { return failure }, goroutines); err != failure {
			t.Errorf("repeat on %d goroutines returned %v, want the failure", goroutines, err)
		}
	}
}

func TestEven(t *testing.T) {
	for _, test := range []struct{ calls, want []int }{
		{[]int{3, 2, 3}, []int{3, 3, 3}},
		{[]int{330, 14}, []int{330, 14}},
		{[]int{1, 2, 5}, []int{1, 2, 5}},
		{[]int{7, 4, 8, 3}, []int{8, 8, 8, 3}},
	} {
		got := slices.Clone(test.calls)
		if even(got); !slices.Equal(got, test.want) {
			t.Errorf("even(%d) = %d, want %d", test.calls, got, test.want)
		}
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{7: "7ns", 1234: "1.23µs", 37516: "37.5µs", 1234567: "1.23ms"} {
		if got := short(d); got != want {
			t.Errorf("short(%d) = %s, want %s", d, got, want)
		}
	}
}
