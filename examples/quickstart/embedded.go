package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"golang.org/x/sync/errgroup"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// embeddedKeys are the keys of the embedded Cloud KMS, in the order of the table.
var embeddedKeys = []kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm{
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512,
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256,
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512,
	kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256,
	kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384,
	kmspb.CryptoKeyVersion_EC_SIGN_ED25519,
	kmspb.CryptoKeyVersion_HMAC_SHA256,
	kmspb.CryptoKeyVersion_HMAC_SHA384,
	kmspb.CryptoKeyVersion_HMAC_SHA512,
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44,
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65,
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87,
}

const embeddedAccount = "quickstart@test.iam.gserviceaccount.com"

// embedded is a small Google Cloud on loopback. Google's own clients talk to it.
type embedded struct {
	candidates []candidate
	closers    []func()

	kms       *testutil.KMS
	iam       *testutil.IAM
	appEngine *testutil.AppEngine
}

func (e *embedded) close() {
	for i := len(e.closers) - 1; i >= 0; i-- {
		e.closers[i]()
	}
}

func startEmbedded(ctx context.Context) (e *embedded, err error) {
	e = new(embedded)
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	for _, start := range []func(context.Context) error{e.startKMS, e.startIAM, e.startAppEngine} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *embedded) startKMS(ctx context.Context) (err error) {
	if e.kms, err = testutil.NewKMS(); err != nil {
		return err
	}
	e.closers = append(e.closers, e.kms.Close)

	versions := make([]string, len(embeddedKeys))
	var group errgroup.Group
	for i, algorithm := range embeddedKeys {
		group.Go(func() (err error) {
			id := strings.ToLower(strings.ReplaceAll(algorithm.String(), "_", "-"))
			versions[i], err = e.kms.CreateKey(id, algorithm)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}

	client, err := e.kms.Client(ctx)
	if err != nil {
		return err
	}
	e.closers = append(e.closers, func() { client.Close() })
	for i, version := range versions {
		e.candidates = append(e.candidates, kmsCandidate("KMS "+embeddedKeys[i].String(), client, version))
	}
	return nil
}

func (e *embedded) startIAM(ctx context.Context) (err error) {
	if e.iam, err = testutil.NewIAM(); err != nil {
		return err
	}
	e.closers = append(e.closers, e.iam.Close)
	if _, err := e.iam.CreateAccount(embeddedAccount); err != nil {
		return err
	}
	service, err := e.iam.Service(ctx)
	if err != nil {
		return err
	}
	e.candidates = append(e.candidates, iamCandidates(gcpjwt.IAMConfig{
		ServiceAccount: embeddedAccount,
		EnableCache:    true,
		IAMService:     service,
		Client:         e.iam.Client(),
		CertificateURL: e.iam.CertificateURL(),
	})...)
	return nil
}

// startAppEngine points the App Engine SDK to the server by the environment
// variables that it has for that.
func (e *embedded) startAppEngine(context.Context) (err error) {
	if e.appEngine, err = testutil.NewAppEngine(); err != nil {
		return err
	}
	e.closers = append(e.closers, e.appEngine.Close)
	for name, value := range map[string]string{"API_HOST": e.appEngine.Host(), "API_PORT": e.appEngine.Port()} {
		before, set := os.LookupEnv(name)
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
		e.closers = append(e.closers, func() {
			os.Unsetenv(name)
			if set {
				os.Setenv(name, before)
			}
		})
	}
	e.candidates = append(e.candidates, appEngineCandidate())
	return nil
}
