package main

import (
	"context"
	"fmt"
	"os"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/sync/errgroup"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// embeddedKey is a key of the embedded Cloud KMS.
type embeddedKey struct {
	algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm
	level     kmspb.ProtectionLevel
	method    jwt.SigningMethod // nil: what NewKMSSigner finds
}

const (
	software = kmspb.ProtectionLevel_SOFTWARE
	hsm      = kmspb.ProtectionLevel_HSM
	external = kmspb.ProtectionLevel_EXTERNAL
)

// embeddedKeys are in the order of the table.
var embeddedKeys = []embeddedKey{
	{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, software, nil},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256, software, nil},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256, software, nil},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512, software, nil},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256, software, nil},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256, software, nil},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256, software, nil},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512, software, nil},
	{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, software, nil},
	{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, external, nil},
	{kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, software, nil},
	{kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256, hsm, nil},
	{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, software, nil},
	{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, software, gcpjwt.SigningMethodKMSEd25519},
	{kmspb.CryptoKeyVersion_HMAC_SHA256, software, nil},
	{kmspb.CryptoKeyVersion_HMAC_SHA384, software, nil},
	{kmspb.CryptoKeyVersion_HMAC_SHA512, software, nil},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44, software, nil},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65, software, nil},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87, software, nil},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44_EXTERNAL_MU, software, nil},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65_EXTERNAL_MU, software, nil},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87_EXTERNAL_MU, software, nil},
}

const embeddedAccount = "quickstart@test.iam.gserviceaccount.com"

// embedded is a small Google Cloud on loopback. Google's own clients talk to it.
type embedded struct {
	candidates []candidate
	closers    []func()

	rest      bool
	kms       *testutil.KMS
	iam       *testutil.IAM
	appEngine *testutil.AppEngine
}

func (e *embedded) close() {
	for i := len(e.closers) - 1; i >= 0; i-- {
		e.closers[i]()
	}
}

// startEmbedded starts it. The client of Cloud KMS speaks gRPC, or REST if rest says so.
func startEmbedded(ctx context.Context, rest bool) (e *embedded, err error) {
	e = &embedded{rest: rest}
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
	for i, key := range embeddedKeys {
		group.Go(func() (err error) {
			versions[i], err = e.kms.CreateKey(fmt.Sprintf("key-%d", i), key.algorithm, key.level)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}

	connect := e.kms.Client
	if e.rest {
		connect = e.kms.RESTClient
	}
	client, err := connect(ctx)
	if err != nil {
		return err
	}
	e.closers = append(e.closers, func() { client.Close() })
	for i, key := range embeddedKeys {
		name := "KMS " + key.algorithm.String()
		if key.level == external {
			name += " " + key.level.String()
		}
		config := &gcpjwt.KMSConfig{KeyPath: versions[i], KMSClient: client}
		e.candidates = append(e.candidates, kmsCandidate(name, config, key.method))
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
