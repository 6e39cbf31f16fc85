package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// patience bounds what one signer may take altogether.
const patience = 30 * time.Second

// A candidate is a signer that is yet to be opened, and a check of its tokens that
// owes nothing to gcpjwt.
type candidate struct {
	name  string
	open  func(ctx context.Context) (signer, error)
	stock stockCheck
}

// run does what the package comment says. It fails if any signer does.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	keyPath := flags.String("kms", "",
		"sign with the Cloud KMS key at `KEY_PATH`, a CryptoKeyVersion or CryptoKey")
	rest := flags.Bool("rest", false, "speak REST with Cloud KMS instead of gRPC")
	account := flags.String("service-account", "", "sign as the service account with the `EMAIL` address")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	var candidates []candidate
	if *keyPath == "" && *account == "" {
		fmt.Fprintln(stdout, "Starting Cloud KMS, IAM Credentials and App Engine on loopback.")
		fmt.Fprintln(stdout, "Their new keys, RSA ones of 4096 bits among them, take a few seconds ...")
		google, err := startEmbedded(ctx, *rest)
		if err != nil {
			return fmt.Errorf("start the embedded servers: %w", err)
		}
		defer google.close()
		candidates = google.candidates
	}
	if *keyPath != "" {
		connect := kms.NewKeyManagementClient
		if *rest {
			connect = kms.NewKeyManagementRESTClient
		}
		client, err := connect(ctx)
		if err != nil {
			return fmt.Errorf("make a Cloud KMS client: %w", err)
		}
		defer client.Close()
		config := &gcpjwt.KMSConfig{KeyPath: *keyPath, KMSClient: client}
		candidates = append(candidates, kmsCandidate("Cloud KMS", config, nil))
	}
	if *account != "" {
		config := gcpjwt.IAMConfig{ServiceAccount: *account, EnableCache: true}
		candidates = append(candidates, iamCandidates(config)...)
	}
	return compare(ctx, candidates, stdout)
}

// compare tries each candidate and prints a table of how it went.
func compare(ctx context.Context, candidates []candidate, stdout io.Writer) error {
	fmt.Fprint(stdout, `
Each signer signs two tokens. The times are those of the second one, when caches are
warm: SIGN includes one call to the signer, VERIFY none (HMACs: one, to MacVerify).
OK: the token passed jwt.Parse with the Keyfunc, and jwt's own method with the bare
public key from the signer's API (ES256K and ML-DSA, which jwt hasn't got: a verifier
written from the standards; HMACs: Cloud KMS itself).

`)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SIGNER\tALG\tKID\tSIGNATURE BYTES\tSIGN\tVERIFY\tRESULT")
	var failures []error
	for _, c := range candidates {
		r := try(ctx, c)
		result := "OK"
		if r.err != nil {
			result = "FAILED to " + r.step
			failures = append(failures, fmt.Errorf("%s: %s: %w", r.name, r.step, r.err))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			r.name, cmp.Or(r.alg, "-"), cmp.Or(r.kid, "-"), cmp.Or(r.size, "-"),
			duration(r.sign), duration(r.verify), result)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	if len(failures) > 0 {
		return fmt.Errorf("%d of %d signers failed\n%w",
			len(failures), len(candidates), errors.Join(failures...))
	}
	return nil
}

// An attempt is a row of the table. step is where it failed if err isn't nil.
type attempt struct {
	name, alg, kid, size string
	sign, verify         time.Duration
	step                 string
	err                  error
}

// try signs and verifies two tokens.
func try(ctx context.Context, c candidate) (a attempt) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	a.name, a.step = c.name, "read the key"
	s, err := c.open(ctx)
	if err != nil {
		a.err = err
		return a
	}
	var token *jwt.Token
	for range 2 {
		a.step = "sign"
		began := time.Now()
		text, err := sign(ctx, s)
		if err != nil {
			a.err = err
			return a
		}
		a.sign = time.Since(began)

		a.step = "verify with the Keyfunc"
		began = time.Now()
		token, err = verify(s, text)
		if err != nil {
			a.err = err
			return a
		}
		a.verify = time.Since(began)
	}
	a.alg, _ = token.Header["alg"].(string)
	a.kid, _ = token.Header["kid"].(string)
	a.size = fmt.Sprint(len(token.Signature))

	a.step = "verify without gcpjwt"
	a.err = c.stock(ctx, a.alg, a.kid, token)
	a.kid = abbreviate(a.kid)
	return a
}

// abbreviate keeps the table narrow: Google's key IDs are 40 characters long.
func abbreviate(kid string) string {
	if len(kid) > 10 {
		return kid[:10] + "…"
	}
	return kid
}

func duration(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// signingInput is what the signature of a token is about.
func signingInput(token *jwt.Token) string {
	return token.Raw[:strings.LastIndexByte(token.Raw, '.')]
}
