package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"errors"
	"flag"
	"strings"

	"cloud.google.com/go/kms/apiv1/kmspb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// What flags say in all commands.
const (
	kmsUsage      = "the Cloud KMS `KEY`: projects/P/locations/L/keyRings/R/cryptoKeys/K, or one of its versions"
	accountUsage  = "the service account with this `EMAIL` address"
	embeddedUsage = "an ES256 key that everybody has, on servers within the command: for a first try"
)

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(value string) error {
	if value == "" {
		return errors.New("it is empty: is a variable of the shell not set?")
	}
	*l = append(*l, value)
	return nil
}

func listVar(flags *flag.FlagSet, l *list, name, usage string) {
	flags.Var(l, name, usage+"; several times for several")
}

// exactlyOne checks that one of several flags was given.
func exactlyOne(names string, given ...bool) error {
	count := 0
	for _, g := range given {
		if g {
			count++
		}
	}
	if count != 1 {
		return usagef("want one of %s", names)
	}
	return nil
}

// badConfig makes an error of a configuration one of the command line.
func badConfig(err error) error {
	if errors.Is(err, gcpjwt.ErrInvalidConfig) {
		return usageError{err}
	}
	return err
}

// startEmbedded starts a Cloud KMS server, and returns a configuration of its key. The key is the
// same each time, so that one command can verify what another one signed. As everybody knows it,
// its tokens prove nothing.
func startEmbedded(ctx context.Context) (config *gcpjwt.KMSConfig, stop func(), err error) {
	seed := sha256.Sum256([]byte("gcpjwt -embedded"))
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:])
	if err != nil {
		return nil, nil, err
	}
	server, err := testutil.NewKMS()
	if err != nil {
		return nil, nil, err
	}
	version, err := server.ImportKey("embedded", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, private)
	if err != nil {
		server.Close()
		return nil, nil, err
	}
	client, err := server.Client(ctx)
	if err != nil {
		server.Close()
		return nil, nil, err
	}
	stop = func() {
		client.Close()
		server.Close()
	}
	return &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}, stop, nil
}
