package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/bench"
)

// What the scenarios are measured with.
const (
	callers     = 1000
	rtt         = 20 * time.Millisecond
	repetitions = 15 // of a cold start, the fetches of which are those of the worst
	forgeries   = 10_000
	patience    = 5 * time.Second // with a server that is back
	askers      = 10_000
	startUps    = 5
)

// scenarios prints what isn't a job done over and over again.
func (p *pairing) scenarios(suite *bench.Suite) {
	for _, scenario := range []struct {
		name string
		run  func(*bench.Suite) error
	}{
		{"coldstart", p.coldStart},
		{"forged", p.forged},
		{"outage", p.outage},
		{"startup", p.startUp},
		{"memory", p.memory},
		{"weight", p.weigh},
	} {
		if !p.only.MatchString(scenario.name) {
			continue
		}
		if err := scenario.run(suite); err != nil {
			fmt.Fprintf(p.out, "error %s: %v\n", scenario.name, err)
		}
	}
}

// ours is the name of package jwks among the consumers.
const ours = "gcpjwt"

func (p *pairing) coldStart(suite *bench.Suite) error {
	var names []string
	fetches := make(map[string]int)
	medians := make(map[string][]time.Duration)
	p99s := make(map[string][]time.Duration)
	for range repetitions {
		starts, err := suite.ColdStart(callers, rtt)
		if err != nil {
			return err
		}
		names = names[:0]
		for _, s := range starts {
			names = append(names, s.Name)
			fetches[s.Name] = max(fetches[s.Name], s.Fetches)
			medians[s.Name] = append(medians[s.Name], s.Median)
			p99s[s.Name] = append(p99s[s.Name], s.P99)
		}
	}
	for _, name := range names {
		median, p99 := short(bench.Quantile(medians[name], 0.5)), short(bench.Quantile(p99s[name], 0.5))
		fmt.Fprintf(p.out, "coldstart/%s %d callers, %v round trip: at most %d fetches, p50 %s, p99 %s\n", name, callers, rtt, fetches[name], median, p99)
		p.tables.add("coldstart", name, cell{"fetches", fmt.Sprint(fetches[name])}, cell{"p50", median}, cell{"p99", p99})
	}
	p.pair("coldstart/fetches", float64(fetches[ours]), 1)
	for _, name := range names {
		if name == ours || name == "gcpjwt-certificates" {
			continue
		}
		var ratios []float64
		for i, other := range p99s[name] {
			ratios = append(ratios, float64(p99s[ours][i])/float64(other))
		}
		p.pair("coldstart/p99/"+ours+"/"+name, bench.Quantile(ratios, 0.5), 1)
	}
	return nil
}

func (p *pairing) forged(suite *bench.Suite) error {
	results, err := suite.Forged(forgeries)
	for _, r := range results {
		fmt.Fprintf(p.out, "forged/%s %d kids: %d fetches, %s each\n", r.Name, forgeries, r.Fetches, short(r.Each))
		p.tables.add("forged kids", r.Name, cell{"fetches", fmt.Sprint(r.Fetches)}, cell{"each", short(r.Each)})
		if r.Name == ours {
			p.pair("forged/fetches", float64(r.Fetches), 1)
		}
	}
	return err
}

func (p *pairing) outage(suite *bench.Suite) error {
	results, err := suite.Outage(callers, rtt, patience)
	for _, r := range results {
		recovery := short(r.Recovery)
		if r.Recovery < 0 {
			recovery = "over " + patience.String()
		}
		fmt.Fprintf(p.out, "outage/%s %d callers: %d requests, p99 %s, recovered after %s\n", r.Name, callers, r.Requests, short(r.P99), recovery)
		p.tables.add("outage at the start", r.Name, cell{"requests", fmt.Sprint(r.Requests)}, cell{"p99", short(r.P99)}, cell{"recovered after", recovery})
	}
	return err
}

func (p *pairing) startUp(suite *bench.Suite) error {
	var calls float64
	var medians, p99s []time.Duration
	for range startUps {
		s, err := suite.StartUp(askers, rtt)
		if err != nil {
			return err
		}
		calls = max(calls, s.CallsPerKey)
		medians, p99s = append(medians, s.Median), append(p99s, s.P99)
	}
	median, p99 := bench.Quantile(medians, 0.5), bench.Quantile(p99s, 0.5)
	fmt.Fprintf(p.out, "startup %d requests, %v round trip: %.0f calls per key, p50 %s, p99 %s\n", askers, rtt, calls, short(median), short(p99))
	p.tables.add("start-up of a JWK Set", strconv.Itoa(askers)+" requests", cell{"calls per key", fmt.Sprint(calls)}, cell{"p50", short(median)}, cell{"p99", short(p99)})
	p.pair("startup/calls-per-key", calls, 1)
	p.pair("startup/p99-ms", float64(p99)/float64(time.Millisecond), 100)
	return nil
}

// What a remembered token may take: in bytes, if it has those claims that all tokens here
// have, and in multiples of its text, whatever its claims.
const (
	bytesLimit    = 1500
	multipleLimit = 16
)

// memory tells what the caches take.
func (p *pairing) memory(suite *bench.Suite) error {
	for _, n := range []int{10, 1000} {
		accounts, err := suite.Accounts(n)
		if err != nil {
			return err
		}
		p.bytes(accounts.Memory, "account", n)
	}
	for _, n := range []int{1000, 100_000} {
		tokens, err := suite.Tokens(n, 0)
		if err != nil {
			return err
		}
		p.bytes(tokens.Memory, "token", n)
		p.pair(fmt.Sprintf("memory/token-of-%d", n), tokens.Memory, bytesLimit)
	}
	most := 0.0
	for _, claims := range []int{0, 2, 8, 32, 64, 96, 128, 256, 512} {
		tokens, err := suite.Tokens(500, claims)
		if err != nil {
			return err
		}
		most = max(most, tokens.Multiple)
	}
	p.pair("memory/token-by-its-text", most, multipleLimit)
	return nil
}

func (p *pairing) bytes(each float64, what string, n int) {
	fmt.Fprintf(p.out, "memory %.0f bytes per %s, of %d in the cache\n", each, what, n)
	p.tables.add("memory", fmt.Sprintf("%s, of %d in the cache", what, n), cell{"bytes each", fmt.Sprintf("%.0f", each)})
}

// weightLimit is what a program with package middleware may weigh in ones with jwt alone.
const weightLimit = 1.15

func (p *pairing) weigh(*bench.Suite) (err error) {
	p.weights, err = bench.Weights(".")
	for _, w := range p.weights {
		fmt.Fprintf(p.out, "weight %q %d bytes, %d packages\n", w.Name, w.Bytes, w.Packages)
		p.tables.add("weight", w.Name, cell{"MB", fmt.Sprintf("%.1f", float64(w.Bytes)/1e6)}, cell{"packages", fmt.Sprint(w.Packages)})
	}
	if err == nil {
		p.pair("weight/middleware/jwt", float64(p.weights[1].Bytes)/float64(p.weights[0].Bytes), weightLimit)
	}
	return err
}
