package middleware_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// C33: a remembered token takes 16 times its text at most, or isn't remembered.
func TestTokenCacheMemory(t *testing.T) {
	repeat := func(format string) func(n int) string {
		return func(n int) string {
			var parts []string
			for i := range n {
				part := format
				if strings.Contains(format, "%") {
					part = fmt.Sprintf(format, i)
				}
				parts = append(parts, part)
			}
			return strings.Join(parts, ",")
		}
	}
	for _, test := range []struct {
		name       string
		payload    func(n int) string // members of the claims
		remembered bool               // whether it has to be
	}{
		{"usual claims", func(int) string { return `"roles":["reader","writer"],"email":"somebody@example.com"` }, true},
		{"one string", func(n int) string { return `"x":"` + strings.Repeat("x", 4*n) + `"` }, true},
		{"strings", func(n int) string { return `"x":[` + repeat(`"string %d"`)(n) + `]` }, true},
		{"short strings", func(n int) string { return `"x":[` + repeat(`"x"`)(n) + `]` }, false},
		{"numbers", func(n int) string { return `"x":[` + repeat(`1`)(n) + `]` }, false},
		{"long numbers", func(n int) string { return `"x":[` + repeat(`1234.5%d`)(n) + `]` }, false},
		{"empty arrays", func(n int) string { return `"x":[` + repeat(`[]`)(n) + `]` }, false},
		{"arrays", func(n int) string { return `"x":[` + repeat(`[1]`)(n) + `]` }, false},
		{"deep", func(n int) string { return `"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) }, false},
		{"deep objects", func(n int) string { return `"x":` + strings.Repeat(`{"":`, n) + "1" + strings.Repeat("}", n) }, false},
		{"empty objects", func(n int) string { return `"x":[` + repeat(`{}`)(n) + `]` }, false},
		{"objects", func(n int) string { return `"x":[` + repeat(`{"a":1}`)(n) + `]` }, false},
		{"members", repeat(`"%d":1`), false},
		{"null members", repeat(`"%d":null`), false},
		{"members of a member", func(n int) string { return `"x":{` + repeat(`"%d":0`)(n) + `}` }, false},
		{"nulls", func(n int) string { return `"x":[` + repeat(`null`)(n) + `]` }, false},
	} {
		for _, n := range []int{1, 15, 800} {
			for _, numbers := range []bool{false, true} {
				t.Run(fmt.Sprint(test.name, " ", n, " ", numbers), func(t *testing.T) {
					checkMemory(t, func(i int) string {
						return fmt.Sprintf(`{"exp":%d,"jti":"%08d",%s}`, far, i, test.payload(n))
					}, numbers, test.remembered)
				})
			}
		}
	}
}

func checkMemory(t *testing.T, payload func(i int) string, numbers, remembered bool) {
	t.Helper()
	const many = 16
	keyfunc, verifications := countingKeyfunc(publicTestKey)
	options := []middleware.Option{middleware.WithTokenCache(many), middleware.WithMaxTokenSize(1 << 20)}
	if numbers {
		options = append(options, middleware.WithJSONNumber())
	}
	v := middleware.NewVerifier(keyfunc, options...)
	var texts [many]string
	for i := range texts {
		texts[i] = signedRaw(payload(i))
	}
	before := heap()
	for _, text := range texts {
		if _, err := v.Verify(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	each := (heap() - before) / many
	counted := verifications.Load()
	for _, text := range texts {
		if _, err := v.Verify(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	hits := many - (verifications.Load() - counted)
	limit := 16 * len(texts[0])
	if hits == 0 {
		limit = 64 // nothing of the tokens, and what measuring itself takes
	}
	if each > limit {
		t.Errorf("%d of %d tokens of %d bytes are remembered, with %d bytes each, want %d at most", hits, many, len(texts[0]), each, limit)
	}
	if remembered && hits != many {
		t.Errorf("%d of %d tokens of %d bytes are remembered, want all", hits, many, len(texts[0]))
	}
	runtime.KeepAlive(texts)
}

func heap() int {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one freed is counted by the second
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// A remembered token of 500 bytes takes 1.5 KB at most.
func TestTokenCacheMemoryOfUsualTokens(t *testing.T) {
	const many = 500
	v := middleware.NewVerifier(testKeyfunc, middleware.WithTokenCache(many))
	var texts [many]string
	for i := range texts {
		texts[i] = signedRaw(tokens.Payload(time.Now(), "jti", fmt.Sprintf(`"%08d"`, i), "x", `"`+strings.Repeat("x", 100)+`"`))
	}
	before := heap()
	for _, text := range texts {
		if _, err := v.Verify(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	each := (heap() - before) / many
	t.Logf("a token of %d bytes takes %d", len(texts[0]), each)
	if each > 1500 {
		t.Errorf("a token of %d bytes takes %d, want 1500 at most", len(texts[0]), each)
	}
	runtime.KeepAlive(texts)
	runtime.KeepAlive(v)
}

// What is remembered isn't a part of what the token came in.
func TestTokenCachePinsNothing(t *testing.T) {
	const size = 1 << 20
	v := middleware.NewVerifier(testKeyfunc, middleware.WithTokenCache(100))
	before := heap()
	for i := range 8 {
		text := tokens.Sign(fmt.Sprintf(`{"alg":"EdDSA","kid":"%d"}`, i), fmt.Sprintf(`{"exp":%d}`, far))
		message := strings.Repeat("x", size) + text
		if _, err := v.Verify(t.Context(), message[size:]); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > size {
		t.Errorf("8 tokens take %d bytes", grown)
	}
	runtime.KeepAlive(v)
}

// C39: nothing is copied of a token whose signature isn't good.
func TestForgedTokensCostNoCopies(t *testing.T) {
	forged := tokens.Forge(signedRaw(fmt.Sprintf(`{"exp":%d,"x":[%s1]}`, far, strings.Repeat("1,", 5000))))
	allocated := func(options ...middleware.Option) uint64 {
		v := middleware.NewVerifier(testKeyfunc, options...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 10 {
			if _, err := v.Verify(t.Context(), forged); err == nil {
				t.Error("a forged token passed")
			}
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / 10
	}
	allocated() // of the first use
	plain, remembering := allocated(), allocated(middleware.WithTokenCache(10))
	if remembering > plain+plain/20 {
		t.Errorf("a forged token takes %d bytes with WithTokenCache, %d without", remembering, plain)
	}
}
