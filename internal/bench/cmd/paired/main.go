// Paired measures how much this library costs of what else would do the job. The
// ways of a comparison take turns in short slices of time (A B C, C B A, A B C...),
// and what counts is the median of the ratios within each turn, so that neither a
// busy machine nor one that gets slower favours any of them.
//
// It prints a line
//
//	ratio NAME VALUE LIMIT
//
// for each pair, ours divided by the other's, a line "median NAME TIME" for each
// way, and some figures that aren't ratios. It judges nothing: its exit status says
// whether it could measure, not what.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/someone1/gcp-jwt-go/v3/internal/bench"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// A pairing is one run.
type pairing struct {
	out   io.Writer
	each  time.Duration // for each way of a comparison
	slice time.Duration
	only  *regexp.Regexp

	tables  tables
	over    []string // the ratios over their limit
	ratios  map[string]float64
	medians map[string]time.Duration
	weights []bench.Weight
	names   []string // of the comparisons, in their order
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	p := pairing{out: stdout, ratios: make(map[string]float64), medians: make(map[string]time.Duration)}
	flags := flag.NewFlagSet("paired", flag.ContinueOnError)
	flags.DurationVar(&p.each, "time", 1200*time.Millisecond, "how long to measure each way of a comparison")
	flags.DurationVar(&p.slice, "slice", 500*time.Microsecond, "how long each way runs in its turn")
	markdown := flags.Bool("markdown", false, "print tables as well")
	pictures := flags.String("svg", "", "draw bars of what was measured, in this `folder`")
	only := flags.String("run", "", "only the comparisons that match this regular `expression`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if p.only, err = regexp.Compile(*only); err != nil {
		return err
	}
	suite, err := bench.NewSuite(ctx)
	if err != nil {
		return err
	}
	defer suite.Close()

	fmt.Fprintf(p.out, "# %s, %d CPUs, %v for each way in slices of %v\n", runtime.Version(), runtime.GOMAXPROCS(0), p.each, p.slice)
	sign, err := suite.Sign()
	if err != nil {
		return err
	}
	inMemory, err := suite.SignInMemory()
	if err != nil {
		return err
	}
	for _, c := range append(sign, inMemory) {
		p.time(ctx, c, 1)
	}
	verify, err := suite.Verify()
	if err != nil {
		return err
	}
	keySet, err := suite.KeySet()
	if err != nil {
		return err
	}
	for _, c := range append(verify, keySet...) {
		p.time(ctx, c, 1)
		p.time(ctx, c, runtime.GOMAXPROCS(0))
		p.allocations(c)
	}
	for _, compare := range []func() (bench.Comparison, error){suite.Token, suite.Middleware, suite.GRPC, suite.TokenCache, suite.WithoutKid} {
		c, err := compare()
		if err != nil {
			return err
		}
		p.time(ctx, c, 1)
		p.time(ctx, c, runtime.GOMAXPROCS(0))
	}
	p.scenarios(suite)
	if err := ctx.Err(); err != nil {
		return err
	}
	if *markdown {
		p.tables.print(p.out)
	}
	if *pictures != "" {
		if err := p.draw(*pictures); err != nil {
			return err
		}
	}
	for _, ratio := range p.over {
		fmt.Fprintln(p.out, "# over its limit:", ratio)
	}
	return nil
}

// pair prints a ratio.
func (p *pairing) pair(name string, value, limit float64) {
	line := fmt.Sprintf("%s %.3f %.3f", name, value, limit)
	p.ratios[name] = value
	fmt.Fprintln(p.out, "ratio", line)
	if value > limit {
		p.over = append(p.over, line)
	}
}

// time compares the ways of c on a number of goroutines.
func (p *pairing) time(ctx context.Context, c bench.Comparison, goroutines int) {
	name := c.Name
	if goroutines > 1 {
		name += "/parallel"
	}
	if !p.only.MatchString(name) {
		return
	}
	ways := c.Ways()
	costs, err := p.turns(ctx, ways, goroutines)
	if err != nil {
		fmt.Fprintf(p.out, "error %s/%v\n", name, err)
		return
	}
	p.names = append(p.names, name)
	medians := make([]cell, len(ways))
	for i, way := range ways {
		median := time.Duration(bench.Quantile(costs[i], 0.5) * float64(time.Second))
		fmt.Fprintf(p.out, "median %s/%s %v\n", name, way.Name, median)
		p.medians[name+"/"+way.Name] = median
		medians[i] = cell{way.Name, short(median)}
	}
	var ratios []cell
	for i, ours := range c.Ours {
		for j, other := range c.Others {
			turns := slices.Clone(costs[i])
			for turn := range turns {
				turns[turn] /= costs[len(c.Ours)+j][turn]
			}
			ratio := bench.Quantile(turns, 0.5)
			p.pair(fmt.Sprintf("%s/%s/%s", name, ours.Name, other.Name), ratio, other.LimitOf(ours.Name, goroutines))
			ratios = append(ratios, cell{ours.Name + " / " + other.Name, fmt.Sprintf("%.3f", ratio)})
		}
	}
	p.tabulate(c, goroutines, medians, ratios)
}

// tabulate adds what was measured of c to a table of all comparisons of its kind, or
// to that of all others.
func (p *pairing) tabulate(c bench.Comparison, goroutines int, medians, ratios []cell) {
	kind, name, isOne := strings.Cut(c.Name, "/")
	if isOne {
		if goroutines > 1 {
			kind += " on all cores at once"
		}
		others := medians[len(c.Ours):]
		p.tables.add(kind, name, slices.Concat(others, medians[:len(c.Ours)], ratios)...)
		return
	}
	name = kind + ": " + ratios[0].column
	if goroutines > 1 {
		name += ", on all cores at once"
	}
	p.tables.add("others", name, cell{"ours", medians[0].text}, cell{"the other", medians[1].text}, cell{"ours / the other", ratios[0].text})
}

// turns lets ways run in turn and returns what a call of each took in each turn,
// in seconds.
func (p *pairing) turns(ctx context.Context, ways []bench.Way, goroutines int) (costs [][]float64, err error) {
	costs = make([][]float64, len(ways))
	calls := make([]int, len(ways)) // that fill a slice
	order := make([]int, len(ways))
	// A busy machine slows down a slice more that is longer. All of them are as long as the
	// longest call, then.
	slice := p.slice
	for _, way := range ways {
		took, err := repeat(1, way.Do, 1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way.Name, err)
		}
		if again, err := repeat(1, way.Do, 1); err == nil {
			slice = max(slice, min(took, again))
		}
	}
	for i, way := range ways {
		order[i] = i
		if calls[i], err = fill(slice, way.Do); err != nil {
			return nil, fmt.Errorf("%s: %w", way.Name, err)
		}
	}
	even(calls)
	for end := time.Now().Add(p.each * time.Duration(len(ways))); time.Now().Before(end) && ctx.Err() == nil; {
		for _, i := range order {
			took, err := repeat(calls[i], ways[i].Do, goroutines)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ways[i].Name, err)
			}
			costs[i] = append(costs[i], took.Seconds()/float64(calls[i]*goroutines))
		}
		slices.Reverse(order)
	}
	return costs, ctx.Err()
}

// even makes the numbers of calls equal that are within a factor of 2 of the highest.
// What each slice begins with, cold caches and goroutines to start, must weigh the same
// in all ways that cost about the same: 3 calls in one and 2 in another make 5 percent.
func even(calls []int) {
	most := slices.Max(calls)
	for i := range calls {
		if 2*calls[i] >= most {
			calls[i] = most
		}
	}
}

// fill returns how many calls in a row take about as long as a slice, when nothing
// interrupts them.
func fill(slice time.Duration, do func() error) (int, error) {
	for calls := 1; ; calls *= 2 {
		fastest := slice
		for range 5 {
			took, err := repeat(calls, do, 1)
			if err != nil {
				return 0, err
			}
			fastest = min(fastest, took)
		}
		if fastest >= slice/2 {
			return max(int(float64(calls)*float64(slice)/float64(fastest)), 1), nil
		}
	}
}

// repeat makes calls on each of the goroutines and returns how long that took.
func repeat(calls int, do func() error, goroutines int) (time.Duration, error) {
	all := func() error {
		for range calls {
			if err := do(); err != nil {
				return err
			}
		}
		return nil
	}
	began := time.Now()
	if goroutines == 1 {
		err := all()
		return time.Since(began), err
	}
	var group errgroup.Group
	for range goroutines {
		group.Go(all)
	}
	err := group.Wait()
	return time.Since(began), err
}

// allocations compares how often one verification allocates: ours may once more
// than one with a static key, which is the first of the others.
func (p *pairing) allocations(c bench.Comparison) {
	name := "allocs/" + c.Name
	if !p.only.MatchString(name) {
		return
	}
	count := func(way bench.Way) float64 {
		return testing.AllocsPerRun(100, func() { _ = way.Do() })
	}
	ours, static := count(c.Ours[0]), count(c.Others[0].Way)
	fmt.Fprintf(p.out, "allocs %s ours %.0f, static %.0f\n", c.Name, ours, static)
	p.pair(name+"/gcpjwt/static", ours/static, (static+1)/static)
	_, token, _ := strings.Cut(c.Name, "/")
	p.tables.add("allocations of a verification", token, cell{"static", fmt.Sprint(static)}, cell{"gcpjwt", fmt.Sprint(ours)})
}
