// Gcpjwt signs and verifies JSON Web Tokens with keys that Google Cloud holds, from a shell.
//
//	gcpjwt sign   (-kms KEY | -service-account EMAIL [-blob]) [flags]   prints a token
//	gcpjwt verify (-kms KEY | -service-account EMAIL | -jwks URL | -issuer URL) [flags] TOKEN|-
//	gcpjwt jwks   (-kms KEY | -service-account EMAIL)...                prints a JWK Set
//
// It takes Application Default Credentials (gcloud auth application-default login). With
// -embedded instead of a key each command runs without Google Cloud:
//
//	gcpjwt sign -embedded -sub alice | gcpjwt verify -embedded -
//
// Results are on stdout, errors on stderr. The exit status is 0, 2 for wrong usage, and 1 for all
// else: a token that isn't good, a key that cannot be had. No error holds a token.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

const usage = `gcpjwt signs and verifies JSON Web Tokens with keys that Google Cloud holds.

  gcpjwt sign     print a token
  gcpjwt verify   print the header and the claims of a token that is good
  gcpjwt jwks     print public keys as a JWK Set

gcpjwt COMMAND -h says more. Without Google Cloud:

  gcpjwt sign -embedded -sub alice | gcpjwt verify -embedded -
`

// A command is one of the subcommands.
type command struct {
	name string
	help string // what stands in front of the flags
	more string // and after them
	new  func(*flag.FlagSet) action
}

// An action does what a command is for, once its flags have been parsed.
type action func(ctx context.Context, args []string, stdin io.Reader) (output []byte, err error)

var commands = []command{signCommand, verifyCommand, jwksCommand}

// usageError is an error of whoever wrote the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{errs.Errorf(format, args...)} }

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what the library would tell a service's log
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	output, err := dispatch(ctx, args, stdin)
	if err == nil {
		if _, err = stdout.Write(output); err == nil {
			return 0
		}
	}
	fmt.Fprintln(stderr, errs.Mask(errs.Errorf("%w", err).Error(), tokensIn(args)...))
	if _, ok := errors.AsType[usageError](err); ok {
		return 2
	}
	return 1
}

// tokensIn returns the arguments that may be tokens: in base64url a JSON object begins so. One
// that stands where something else belongs must not be repeated in an error.
func tokensIn(args []string) (tokens []string) {
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		for _, text := range []string{strings.TrimLeft(name, "-"), value} {
			if strings.HasPrefix(text, "ey") || strings.HasPrefix(text, "ew") {
				tokens = append(tokens, text)
			}
		}
	}
	return tokens
}

func dispatch(ctx context.Context, args []string, stdin io.Reader) ([]byte, error) {
	if len(args) == 0 {
		return nil, usagef("want a command: sign, verify or jwks; gcpjwt -h says more")
	}
	if slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		return []byte(usage), nil
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		return nil, usagef("no command %s: want sign, verify or jwks; gcpjwt -h says more", errs.Quote(args[0]))
	}
	output, err := commands[i].run(ctx, args[1:], stdin)
	if _, ok := errors.AsType[usageError](err); ok {
		err = usagef("%s: %w; gcpjwt %[1]s -h says more", args[0], err)
	}
	return output, err
}

func (c command) run(ctx context.Context, args []string, stdin io.Reader) ([]byte, error) {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	do := c.new(flags)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		var help strings.Builder
		help.WriteString(c.help)
		flags.SetOutput(&help)
		flags.PrintDefaults()
		help.WriteString(c.more)
		return []byte(help.String()), nil
	case err != nil:
		// It has the value of a flag, which may be anything.
		return nil, usagef("%s", errs.Mask(err.Error(), valuesIn(args)...))
	}
	var empty error
	flags.Visit(func(f *flag.Flag) {
		if f.Value.String() == "" && empty == nil {
			empty = usagef("-%s is empty: is a variable of the shell not set?", f.Name)
		}
	})
	if empty != nil {
		return nil, empty
	}
	return do(ctx, flags.Args(), stdin)
}

// valuesIn returns all that isn't the name of a flag.
func valuesIn(args []string) (values []string) {
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			_, arg, _ = strings.Cut(arg, "=")
		}
		values = append(values, arg)
	}
	return values
}
