package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// suite is made by the first benchmark that needs it.
var suite = sync.OnceValues(func() (*Suite, error) { return NewSuite(context.Background()) })

func newSuite(b *testing.B) *Suite {
	b.Helper()
	s, err := suite()
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// each benchmarks every way of every comparison.
func each(b *testing.B, comparisons []Comparison) {
	for _, c := range comparisons {
		for _, way := range c.Ways() {
			b.Run(c.Name+"/"+way.Name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := way.Do(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// eachParallel is each on all cores.
func eachParallel(b *testing.B, comparisons []Comparison) {
	for _, c := range comparisons {
		for _, way := range c.Ways() {
			b.Run(c.Name+"/"+way.Name, func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := way.Do(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

func BenchmarkSign(b *testing.B) { each(b, signing(b)) }

func BenchmarkSignParallel(b *testing.B) { eachParallel(b, signing(b)) }

func BenchmarkSignInMemory(b *testing.B) {
	c, err := newSuite(b).SignInMemory()
	if err != nil {
		b.Fatal(err)
	}
	each(b, []Comparison{c})
}

func signing(b *testing.B) []Comparison {
	comparisons, err := newSuite(b).Sign()
	if err != nil {
		b.Fatal(err)
	}
	return comparisons
}

func BenchmarkVerify(b *testing.B) { each(b, verify(b)) }

func BenchmarkVerifyParallel(b *testing.B) { eachParallel(b, verify(b)) }

func verify(b *testing.B) []Comparison {
	comparisons, err := newSuite(b).Verify()
	if err != nil {
		b.Fatal(err)
	}
	return comparisons
}

func BenchmarkToken(b *testing.B) { each(b, one(b, (*Suite).Token)) }

func BenchmarkTokenParallel(b *testing.B) { eachParallel(b, one(b, (*Suite).Token)) }

func BenchmarkMiddleware(b *testing.B) { each(b, one(b, (*Suite).Middleware)) }

func BenchmarkMiddlewareParallel(b *testing.B) { eachParallel(b, one(b, (*Suite).Middleware)) }

func BenchmarkTokenCache(b *testing.B) { each(b, one(b, (*Suite).TokenCache)) }

func BenchmarkTokenCacheParallel(b *testing.B) { eachParallel(b, one(b, (*Suite).TokenCache)) }

func BenchmarkGRPC(b *testing.B) { each(b, one(b, (*Suite).GRPC)) }

func BenchmarkWithoutKid(b *testing.B) { each(b, one(b, (*Suite).WithoutKid)) }

func BenchmarkKeySet(b *testing.B) { each(b, keySet(b)) }

func BenchmarkKeySetParallel(b *testing.B) { eachParallel(b, keySet(b)) }

func keySet(b *testing.B) []Comparison {
	comparisons, err := newSuite(b).KeySet()
	if err != nil {
		b.Fatal(err)
	}
	return comparisons
}

func one(b *testing.B, compare func(*Suite) (Comparison, error)) []Comparison {
	c, err := compare(newSuite(b))
	if err != nil {
		b.Fatal(err)
	}
	return []Comparison{c}
}

func BenchmarkColdStart(b *testing.B) {
	s := newSuite(b)
	for b.Loop() {
		starts, err := s.ColdStart(1000, 20*time.Millisecond)
		if err != nil {
			b.Fatal(err)
		}
		for _, start := range starts {
			b.ReportMetric(float64(start.Fetches), start.Name+"-fetches")
			b.ReportMetric(float64(start.P99)/float64(time.Millisecond), start.Name+"-p99-ms")
		}
	}
}

func BenchmarkForged(b *testing.B) {
	s := newSuite(b)
	for b.Loop() {
		results, err := s.Forged(1000)
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range results {
			b.ReportMetric(float64(r.Fetches), r.Name+"-fetches")
		}
	}
}

func BenchmarkStartUp(b *testing.B) {
	s := newSuite(b)
	for b.Loop() {
		result, err := s.StartUp(10_000, 20*time.Millisecond)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(result.CallsPerKey, "calls/key")
		b.ReportMetric(float64(result.P99)/float64(time.Millisecond), "p99-ms")
	}
}

func BenchmarkAccounts(b *testing.B) {
	s := newSuite(b)
	for _, n := range []int{1, 10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			accounts, err := s.Accounts(n)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := accounts.Verify(i % n); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(accounts.Memory, "B/account")
		})
	}
}

func BenchmarkTokens(b *testing.B) {
	s := newSuite(b)
	for _, n := range []int{1, 10, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tokens, err := s.Tokens(n, 0)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := tokens.Request(i % n); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(tokens.Memory, "B/token")
		})
	}
}
