package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"time"

	strictjson "github.com/go-jose/go-jose/v4/json" // no name twice
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

var signCommand = command{
	name: "sign",
	help: `gcpjwt sign (-kms KEY | -service-account EMAIL [-blob] | -embedded) [flags]

prints a token. It has iat, nbf and exp, unless -claims has others.

`,
	more: `
A token for half an hour, for curl:

  curl -H "Authorization: Bearer $(gcpjwt sign -kms "$KEY" -sub alice -aud https://api.example.com -lifetime 30m)" https://api.example.com
`,
	new: newSign,
}

// defaultLifetime is that of a token whose claims have no exp.
const defaultLifetime = time.Hour

// signing is what the flags of sign say.
type signing struct {
	kms, account    string
	blob, embedded  bool
	issuer, subject string
	audience        list
	lifetime        time.Duration
	lifetimeSet     bool
	claims          string
}

func newSign(flags *flag.FlagSet) action {
	s := new(signing)
	flags.StringVar(&s.kms, "kms", "", "sign with "+kmsUsage)
	flags.StringVar(&s.account, "service-account", "", "sign as "+accountUsage)
	flags.BoolVar(&s.blob, "blob", false, "sign as the service account with signBlob; without it, with signJwt")
	flags.BoolVar(&s.embedded, "embedded", false, "sign with "+embeddedUsage)
	flags.StringVar(&s.issuer, "iss", "", "the claim iss: who makes the token")
	flags.StringVar(&s.subject, "sub", "", "the claim sub: whom it is about")
	listVar(flags, &s.audience, "aud", "the claim aud: whom it is for")
	flags.DurationVar(&s.lifetime, "lifetime", defaultLifetime, "how long the token is good, such as 90s or 12h")
	flags.StringVar(&s.claims, "claims", "", "more claims: a `JSON` object, or @FILE for a file with one; other flags win over it")
	return func(ctx context.Context, args []string, _ io.Reader) ([]byte, error) {
		flags.Visit(func(f *flag.Flag) { s.lifetimeSet = s.lifetimeSet || f.Name == "lifetime" })
		return s.run(ctx, args)
	}
}

func (s *signing) run(ctx context.Context, args []string) ([]byte, error) {
	if err := exactlyOne("-kms, -service-account and -embedded", s.kms != "", s.account != "", s.embedded); err != nil {
		return nil, err
	}
	switch {
	case len(args) > 0:
		return nil, usagef("an argument that is no flag: want flags only")
	case s.blob && s.account == "":
		return nil, usagef("-blob is for -service-account")
	case s.lifetime < time.Second:
		return nil, usagef("-lifetime: want a second or more")
	}
	claims, err := s.makeClaims(time.Now())
	if err != nil {
		return nil, err
	}
	signer, stop, err := s.signer(ctx)
	if err != nil {
		return nil, badConfig(err)
	}
	defer stop()
	text, err := signer.Sign(ctx, claims)
	for _, bad := range []error{jwt.ErrTokenInvalidClaims, jwt.ErrTokenExpired, jwt.ErrInvalidType} {
		if errors.Is(err, bad) {
			return nil, usageError{err} // signJwt doesn't take each exp
		}
	}
	if err != nil {
		return nil, err
	}
	return []byte(text + "\n"), nil
}

func (s *signing) signer(ctx context.Context) (signer *gcpjwt.Signer, stop func(), err error) {
	stop = func() {}
	if s.account != "" {
		kind := gcpjwt.IAMJwtType
		if s.blob {
			kind = gcpjwt.IAMBlobType
		}
		signer, err = gcpjwt.NewIAMSigner(ctx, &gcpjwt.IAMConfig{ServiceAccount: s.account, IAMType: kind})
		return signer, stop, err
	}
	config := &gcpjwt.KMSConfig{KeyPath: s.kms}
	if s.embedded {
		if config, stop, err = startEmbedded(ctx); err != nil {
			return nil, nil, err
		}
	}
	if signer, err = gcpjwt.NewKMSSigner(ctx, config); err != nil {
		stop()
	}
	return signer, stop, err
}

// makeClaims returns the claims: those of -claims, below what other flags say, and above the
// defaults.
func (s *signing) makeClaims(now time.Time) (jwt.MapClaims, error) {
	claims := jwt.MapClaims{
		"iat": now.Unix(),
		"nbf": now.Unix(),
		"exp": now.Add(defaultLifetime).Unix(),
	}
	if err := readClaims(s.claims, &claims); err != nil {
		return nil, err
	}
	if s.lifetimeSet {
		claims["exp"] = now.Add(s.lifetime).Unix()
	}
	if s.issuer != "" {
		claims["iss"] = s.issuer
	}
	if s.subject != "" {
		claims["sub"] = s.subject
	}
	switch len(s.audience) {
	case 0:
	case 1:
		claims["aud"] = s.audience[0]
	default:
		claims["aud"] = s.audience
	}
	return claims, nil
}

// readClaims adds the claims of a JSON object, or of a file with one, to others.
func readClaims(text string, claims *jwt.MapClaims) error {
	const most = 1 << 20
	if text == "" {
		return nil
	}
	if name, ok := strings.CutPrefix(text, "@"); ok {
		file, err := os.Open(name)
		if err != nil {
			return usagef("-claims: %w", err)
		}
		defer file.Close()
		data, err := io.ReadAll(io.LimitReader(file, most+1))
		if err != nil {
			return usagef("-claims: %w", err)
		}
		text = string(data)
	}
	if len(text) > most {
		return usagef("-claims: more than %d bytes", most)
	}
	// The errors of these packages may hold what they read.
	if err := strictjson.Unmarshal([]byte(text), new(map[string]any)); err != nil {
		if syntax, ok := errors.AsType[*strictjson.SyntaxError](err); ok {
			return usagef("-claims: not JSON, at byte %d; a file is @FILE", syntax.Offset)
		}
		return usagef("-claims: want a JSON object with each name once; a file is @FILE")
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.UseNumber()
	if err := decoder.Decode(claims); err != nil || *claims == nil {
		return usagef("-claims: want a JSON object; a file is @FILE")
	}
	return nil
}
