package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

var jwksCommand = command{
	name: "jwks",
	help: `gcpjwt jwks ((-kms KEY | -service-account EMAIL)... | -embedded)

prints the public keys that tokens may be verified with now, as a JWK Set: every ENABLED version
of a CryptoKey, and all keys of an account. MAC keys have no public key.

`,
	more: `
The set of two keys, for an upload:

  gcpjwt jwks -kms "$KEY" -service-account "$ACCOUNT" > jwks.json
`,
	new: newJWKS,
}

func newJWKS(flags *flag.FlagSet) action {
	var keys, accounts list
	listVar(flags, &keys, "kms", "publish "+kmsUsage)
	listVar(flags, &accounts, "service-account", "publish the keys of "+accountUsage)
	embedded := flags.Bool("embedded", false, "publish "+embeddedUsage)
	return func(ctx context.Context, args []string, _ io.Reader) ([]byte, error) {
		if (len(keys)+len(accounts) > 0) == *embedded {
			return nil, usagef("want keys and accounts, with -kms and -service-account, or -embedded")
		}
		if len(args) > 0 {
			return nil, usagef("an argument that is no flag: want flags only")
		}
		var sources []jwks.Source
		for _, key := range keys {
			sources = append(sources, &gcpjwt.KMSConfig{KeyPath: key})
		}
		for _, account := range accounts {
			sources = append(sources, &gcpjwt.IAMConfig{ServiceAccount: account})
		}
		if *embedded {
			config, stop, err := startEmbedded(ctx)
			if err != nil {
				return nil, err
			}
			defer stop()
			sources = append(sources, config)
		}
		published, err := jwks.Join(sources...).PublicKeys(ctx)
		if err != nil {
			return nil, badConfig(err)
		}
		if len(published) == 0 {
			return nil, errors.New("there are no public keys: MAC keys have none")
		}
		set, err := jwks.Marshal(published)
		if err != nil {
			return nil, err
		}
		var text bytes.Buffer
		if err := json.Indent(&text, set, "", "  "); err != nil {
			return nil, err
		}
		text.WriteByte('\n')
		return text.Bytes(), nil
	}
}
