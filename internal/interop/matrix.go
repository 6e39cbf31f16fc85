package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A verifier is a library or a program that verifies tokens by an issuer's name.
type verifier struct {
	name, version string

	// unknown says why the verifier doesn't take an algorithm.
	unknown map[string]string

	// verify has a new verifier, which knows no keys yet, look at a token. refused is its
	// reason; err means that it couldn't look.
	verify func(ctx context.Context, at *issuer, token string) (refused, err error)
}

// A cell is what a verifier made of a token.
type cell struct {
	verifier, what, algorithm string

	accepted, want bool
	either         bool // whether want doesn't matter
	refused, err   error
	unknown        string // the reason, if the verifier doesn't take the algorithm
}

func (c cell) ok() bool { return c.unknown != "" || c.either || c.err == nil && c.accepted == c.want }

func (c cell) outcome() string {
	switch {
	case c.unknown != "":
		return "unknown"
	case c.err != nil && c.either:
		return "no keys"
	case c.err != nil:
		return "FAILED"
	case !c.ok() && c.accepted:
		return "ACCEPTED"
	case !c.ok():
		return "REFUSED"
	case c.accepted:
		return "accepted"
	}
	return "refused"
}

func (c cell) String() string {
	text := fmt.Sprintf("%s, %s, %s: %s", c.verifier, c.what, c.algorithm, c.outcome())
	switch {
	case c.unknown != "":
		return text + ": " + c.unknown
	case c.err != nil:
		return text + ": " + short(c.err)
	case c.refused != nil:
		return text + ": " + short(c.refused)
	}
	return text
}

// short leaves out most of an error that has a whole JWK Set in it.
func short(err error) string {
	if text := err.Error(); len(text) > 250 {
		return text[:250] + "..."
	}
	return err.Error()
}

// The tokens that are verified: what they are, and whether they are good.
const (
	good        = "good"
	rotated     = "good, by a new version"
	wrongKey    = "wrong key"
	wrongIssuer = "wrong issuer"
	disabled    = "disabled version"

	// Who doesn't know the kind of a key may refuse the whole set (RFC 7517 section 5 says
	// that it should not). WithAlgorithms is for that.
	besideES256K = "good, set has an ES256K key"
	besideMLDSA  = "good, set has an ML-DSA key"
)

var whats = []string{good, rotated, wrongKey, wrongIssuer, disabled, besideES256K, besideMLDSA}

// A result is the matrix, and what couldn't be run.
type result struct {
	cells []cell
	notes []string
	took  time.Duration
}

// run fills the matrix.
func run(ctx context.Context) (*result, error) {
	began := time.Now()
	at, err := startIssuer(ctx)
	if err != nil {
		return nil, err
	}
	defer at.close()
	verifiers := goVerifiers()
	result := new(result)
	for _, find := range []func(context.Context, *issuer) (*verifier, error){findJose, findPyJWT} {
		v, err := find(ctx, at)
		if err != nil {
			result.notes = append(result.notes, err.Error())
			continue
		}
		verifiers = append(verifiers, v)
	}

	look := func(at *issuer, what string, want, either bool, tokens map[string]string) {
		for _, v := range verifiers {
			for _, alg := range algorithms {
				c := cell{verifier: v.name + " " + v.version, what: what, algorithm: alg, want: want, either: either, unknown: v.unknown[alg]}
				if c.unknown == "" {
					limited, cancel := context.WithTimeout(ctx, 30*time.Second)
					c.refused, c.err = v.verify(limited, at, tokens[alg])
					cancel()
					c.accepted = c.refused == nil && c.err == nil
				}
				result.cells = append(result.cells, c)
			}
		}
	}
	first, err := at.sign(ctx, at.url)
	if err != nil {
		return nil, err
	}
	look(at, good, true, false, first)
	forged, err := at.forge(ctx)
	if err != nil {
		return nil, err
	}
	look(at, wrongKey, false, false, forged)
	foreign, err := at.sign(ctx, "https://other.example")
	if err != nil {
		return nil, err
	}
	look(at, wrongIssuer, false, false, foreign)
	if err := at.rotate(ctx); err != nil {
		return nil, err
	}
	look(at, disabled, false, false, first)
	second, err := at.sign(ctx, at.url)
	if err != nil {
		return nil, err
	}
	look(at, rotated, true, false, second)
	for what, name := range map[string]string{besideES256K: "ES256K", besideMLDSA: "ML-DSA-65"} {
		other := at.beside(name)
		tokens, err := at.sign(ctx, other.url)
		if err != nil {
			return nil, err
		}
		look(other, what, true, true, tokens)
	}
	for _, v := range verifiers {
		for alg, reason := range v.unknown {
			result.notes = append(result.notes, fmt.Sprintf("%s doesn't take %s: %s", v.name, alg, reason))
		}
	}
	slices.Sort(result.notes)
	result.took = time.Since(began)
	return result, ctx.Err()
}

// wrong returns the cells that aren't as they should be.
func (r *result) wrong() []cell {
	return slices.DeleteFunc(slices.Clone(r.cells), cell.ok)
}

// String returns the matrix, a table for each verifier.
func (r *result) String() string {
	var text strings.Builder
	var names []string
	outcomes := make(map[[3]string]string)
	for _, c := range r.cells {
		if !slices.Contains(names, c.verifier) {
			names = append(names, c.verifier)
		}
		outcomes[[3]string{c.verifier, c.what, c.algorithm}] = c.outcome()
	}
	fmt.Fprintf(&text, "Tokens signed by Cloud KMS (embedded) and published by jwks.NewDiscoveryHandler\n")
	for _, name := range names {
		fmt.Fprintf(&text, "\n%-38s", name)
		for _, alg := range algorithms {
			fmt.Fprintf(&text, "%-10s", alg)
		}
		for _, what := range whats {
			fmt.Fprintf(&text, "\n  %-36s", what)
			for _, alg := range algorithms {
				fmt.Fprintf(&text, "%-10s", outcomes[[3]string{name, what, alg}])
			}
		}
		fmt.Fprintln(&text)
	}
	fmt.Fprintln(&text)
	for _, note := range r.notes {
		fmt.Fprintln(&text, note)
	}
	fmt.Fprintf(&text, "%d cells, %d of them wrong, in %v\n", len(r.cells), len(r.wrong()), r.took.Round(100*time.Millisecond))
	lines := strings.Split(text.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}
