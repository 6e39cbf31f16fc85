// Quickstart signs a token with every signer that gcpjwt knows, verifies it with
// gcpjwt's Keyfunc, and then once more with jwt's own method and the bare public
// key, as a service that has never heard of gcpjwt would.
//
// Without flags it needs no Google Cloud project: it starts servers on loopback
// that speak Google's protocols and hold real keys.
//
//	go run ./examples/quickstart
//
// With flags it does the same on Google Cloud, with Application Default
// Credentials (gcloud auth application-default login):
//
//	go run ./examples/quickstart -kms projects/P/locations/L/keyRings/R/cryptoKeys/K/cryptoKeyVersions/1
//	go run ./examples/quickstart -service-account NAME@P.iam.gserviceaccount.com
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

const (
	issuer   = "https://issuer.example.com"
	audience = "https://api.example.com"
)

// A signer is a signing method, a context that carries the method's
// configuration, and a Keyfunc that finds the public keys.
type signer struct {
	method  jwt.SigningMethod
	ctx     context.Context
	keyfunc jwt.Keyfunc
}

// sign returns a new token. SignedString writes the right alg and kid into its
// header.
func (s signer) sign() (string, error) {
	claims := jwt.RegisteredClaims{
		Issuer:    issuer,
		Audience:  jwt.ClaimStrings{audience},
		Subject:   "quickstart",
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(5 * time.Minute)),
	}
	return gcpjwt.SignedString(s.ctx, jwt.NewWithClaims(s.method, claims))
}

// verify is jwt's own parser: the Keyfunc is all that gcpjwt adds. The Keyfunc
// ties each key to one algorithm, so jwt.WithValidMethods has nothing to add.
func (s signer) verify(text string) (*jwt.Token, error) {
	return jwt.ParseWithClaims(text, &jwt.RegisteredClaims{}, s.keyfunc,
		jwt.WithIssuer(issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired())
}

// kmsSigner signs with a key in Cloud KMS. keyPath names a CryptoKeyVersion, or
// a CryptoKey, whose newest version then signs. A service that signs or
// verifies all day leaves client nil, for one that the process shares.
func kmsSigner(ctx context.Context, client *kms.KeyManagementClient, keyPath string, method jwt.SigningMethod) (signer, error) {
	config := &gcpjwt.KMSConfig{KeyPath: keyPath, KMSClient: client}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config) // reads the public keys
	if err != nil {
		return signer{}, err
	}
	return signer{method, gcpjwt.NewKMSContext(ctx, config), keyfunc}, nil
}

// iamSigner signs as a service account, with keys that Google holds and rotates.
// config needs no more than the account's email address; EnableCache keeps its
// certificates between verifications.
func iamSigner(ctx context.Context, config *gcpjwt.IAMConfig, method jwt.SigningMethod) signer {
	return signer{method, gcpjwt.NewIAMContext(ctx, config), gcpjwt.IAMVerifyKeyfunc(ctx, config)}
}

// appEngineSigner signs as the App Engine app that the program runs in. There,
// ctx is that of an HTTP request: see examples/appengine.
func appEngineSigner(ctx context.Context) signer {
	const enableCache, cacheExpiration = true, time.Hour
	return signer{gcpjwt.SigningMethodAppEngine, ctx, gcpjwt.AppEngineVerifyKeyfunc(ctx, enableCache, cacheExpiration)}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		stop()
		os.Exit(1)
	}
}
