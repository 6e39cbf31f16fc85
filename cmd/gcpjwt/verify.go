package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

var verifyCommand = command{
	name: "verify",
	help: `gcpjwt verify (-kms KEY | -service-account EMAIL | -jwks URL | -issuer URL | -embedded) [flags] TOKEN|-

prints the header and the claims of a token if it is good, with the times of exp, nbf and iat
beside them. Otherwise it says which check failed, and exits with status 1. The token is the
argument, or on standard input if that is -. The rules are those of package middleware: exp is
required, and clocks may differ by 30 seconds.

`,
	more: `
What Google says of you, from standard input, where no list of processes shows it:

  gcloud auth print-identity-token | gcpjwt verify -issuer https://accounts.google.com -
`,
	new: newVerify,
}

// verifying is what the flags of verify say.
type verifying struct {
	kms, account, set, issuerURL string
	embedded                     bool
	audience                     list
	issuer                       string
}

func newVerify(flags *flag.FlagSet) action {
	v := new(verifying)
	flags.StringVar(&v.kms, "kms", "", "verify with "+kmsUsage)
	flags.StringVar(&v.account, "service-account", "", "verify with the certificates of "+accountUsage)
	flags.StringVar(&v.set, "jwks", "", "verify with the JWK Set at this `URL`")
	flags.StringVar(&v.issuerURL, "issuer", "", "verify with the keys that the issuer with this `URL` publishes (OpenID discovery); it must be iss, unless -iss says otherwise")
	flags.BoolVar(&v.embedded, "embedded", false, "verify with "+embeddedUsage)
	listVar(flags, &v.audience, "aud", "the claim aud must be this, or one of several")
	flags.StringVar(&v.issuer, "iss", "", "the claim iss must be this")
	return v.run
}

func (v *verifying) run(ctx context.Context, args []string, stdin io.Reader) ([]byte, error) {
	if err := exactlyOne("-kms, -service-account, -jwks, -issuer and -embedded",
		v.kms != "", v.account != "", v.set != "", v.issuerURL != "", v.embedded); err != nil {
		return nil, err
	}
	if len(args) != 1 {
		return nil, usagef("want one TOKEN, or - for standard input, after all flags")
	}
	text := args[0]
	if text == "-" {
		const most = 1 << 20 // more than any Verifier takes
		data, err := io.ReadAll(io.LimitReader(stdin, most))
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		text = string(data)
	}
	if text = strings.TrimSpace(text); text == "" {
		return nil, usagef("the token is empty")
	}

	keyfunc, stop, err := v.keyfunc(ctx)
	if err != nil {
		return nil, badConfig(err)
	}
	defer stop()
	options := []middleware.Option{middleware.WithJSONNumber()}
	if len(v.audience) > 0 {
		options = append(options, middleware.WithAudience(v.audience...))
	}
	if v.issuer == "" {
		v.issuer = v.issuerURL
	}
	if v.issuer != "" {
		options = append(options, middleware.WithIssuer(v.issuer))
	}
	token, err := middleware.NewVerifier(keyfunc, options...).Verify(ctx, text)
	if err != nil {
		return nil, err
	}
	return describe(token)
}

// keyfunc returns the Keyfunc of the one key that the flags name.
func (v *verifying) keyfunc(ctx context.Context) (keyfunc jwt.Keyfunc, stop func(), err error) {
	stop = func() {}
	switch {
	case v.kms != "":
		keyfunc, err = gcpjwt.KMSVerifyKeyfunc(ctx, &gcpjwt.KMSConfig{KeyPath: v.kms})
	case v.account != "":
		config := &gcpjwt.IAMConfig{ServiceAccount: v.account}
		keyfunc, err = config.VerifyKeyfunc(ctx)
	case v.embedded:
		var config *gcpjwt.KMSConfig
		if config, stop, err = startEmbedded(ctx); err != nil {
			return nil, nil, err
		}
		if keyfunc, err = gcpjwt.KMSVerifyKeyfunc(ctx, config); err != nil {
			stop()
		}
	default:
		keyfunc, err = jwks.NewKeyfunc(ctx, &jwks.Config{URL: v.set, Issuer: v.issuerURL})
	}
	return keyfunc, stop, err
}

// describe returns a token's header and claims in JSON.
func describe(token *jwt.Token) ([]byte, error) {
	claims, _ := token.Claims.(jwt.MapClaims)
	for _, name := range []string{"exp", "nbf", "iat"} {
		number, ok := claims[name].(json.Number)
		if !ok {
			continue
		}
		seconds, err := strconv.ParseFloat(number.String(), 64)
		if err != nil {
			return nil, err
		}
		beside := name + " (UTC)" // sorted, it comes next
		if _, ok := claims[beside]; !ok {
			claims[beside] = time.Unix(int64(seconds), 0).UTC().Format(time.RFC3339)
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(struct {
		Header map[string]any `json:"header"`
		Claims jwt.MapClaims  `json:"claims"`
	}{token.Header, claims})
	return printable(text.Bytes()), err
}

// printable escapes what a terminal would take for more than text. In JSON such characters stand
// in strings only.
func printable(text []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		}
	}
	return out.Bytes()
}
