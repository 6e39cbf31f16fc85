package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strings"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/appengine/v2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/plain"
)

// A stockCheck verifies a token's signature with what anybody has: the signer's
// public API and jwt's own methods.
type stockCheck func(ctx context.Context, alg, kid string, token *jwt.Token) error

// stockMethods are jwt's own. A variable rather than jwt.GetSigningMethod, which
// Override would change.
var stockMethods = map[string]jwt.SigningMethod{
	"RS256": jwt.SigningMethodRS256, "RS512": jwt.SigningMethodRS512,
	"PS256": jwt.SigningMethodPS256, "PS512": jwt.SigningMethodPS512,
	"ES256": jwt.SigningMethodES256, "ES384": jwt.SigningMethodES384,
	"EdDSA": jwt.SigningMethodEdDSA, "Ed25519": jwt.SigningMethodEdDSA,
}

// mldsaVerifiers stand in for what jwt hasn't got.
var mldsaVerifiers = map[string]*plain.MLDSA{
	"ML-DSA-44": plain.MLDSA44, "ML-DSA-65": plain.MLDSA65, "ML-DSA-87": plain.MLDSA87,
}

func kmsStockCheck(client *kms.KeyManagementClient, keyPath string) stockCheck {
	return func(ctx context.Context, alg, kid string, token *jwt.Token) error {
		version, err := versionOf(ctx, client, keyPath, kid)
		if err != nil {
			return err
		}
		if strings.HasPrefix(alg, "HS") {
			return macVerify(ctx, client, version, token)
		}
		if verifier, ok := mldsaVerifiers[alg]; ok {
			key, err := publicKey(ctx, client, version, kmspb.PublicKey_NIST_PQC)
			if err != nil {
				return err
			}
			return verifier.Verify(key, []byte(signingInput(token)), token.Signature)
		}
		key, err := publicKey(ctx, client, version, kmspb.PublicKey_PEM)
		if err != nil {
			return err
		}
		block, _ := pem.Decode(key)
		if block == nil {
			return errors.New("the public key isn't in PEM")
		}
		if alg == "ES256K" {
			return verifyES256K(block.Bytes, token)
		}
		method, ok := stockMethods[alg]
		if !ok {
			return fmt.Errorf("no check for alg %q", alg)
		}
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return fmt.Errorf("parse the public key: %w", err)
		}
		return method.Verify(signingInput(token), token.Signature, public)
	}
}

// verifyES256K is RFC 8812. The point of a public key of secp256k1 is at its end, in 64 bytes.
func verifyES256K(spki []byte, token *jwt.Token) error {
	if len(spki) < 64 || len(token.Signature) != 64 {
		return jwt.ErrSignatureInvalid
	}
	number := func(b []byte) *big.Int { return new(big.Int).SetBytes(b) }
	point, sig := spki[len(spki)-64:], token.Signature
	digest := sha256.Sum256([]byte(signingInput(token)))
	x, y, r, s := number(point[:32]), number(point[32:]), number(sig[:32]), number(sig[32:])
	if !plain.VerifySecp256k1(x, y, digest[:], r, s) {
		return jwt.ErrSignatureInvalid
	}
	return nil
}

func publicKey(
	ctx context.Context, client *kms.KeyManagementClient,
	version string, format kmspb.PublicKey_PublicKeyFormat,
) ([]byte, error) {
	response, err := client.GetPublicKey(ctx, &kmspb.GetPublicKeyRequest{
		Name: version, PublicKeyFormat: format,
	})
	if err != nil {
		return nil, fmt.Errorf("get the public key: %w", err)
	}
	return response.GetPublicKey().GetData(), nil
}

// macVerify asks Cloud KMS, as there is no public key.
func macVerify(
	ctx context.Context, client *kms.KeyManagementClient, version string, token *jwt.Token,
) error {
	response, err := client.MacVerify(ctx, &kmspb.MacVerifyRequest{
		Name: version,
		Data: []byte(signingInput(token)),
		Mac:  token.Signature,
	})
	if err != nil {
		return fmt.Errorf("call MacVerify: %w", err)
	}
	if !response.Success {
		return jwt.ErrSignatureInvalid
	}
	return nil
}

func iamStockCheck(config *gcpjwt.IAMConfig) stockCheck {
	return func(ctx context.Context, alg, kid string, token *jwt.Token) error {
		endpoint := cmp.Or(config.CertificateURL, "https://www.googleapis.com/robot/v1/metadata/x509/")
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+url.PathEscape(config.ServiceAccount), nil)
		if err != nil {
			return err
		}
		response, err := cmp.Or(config.Client, http.DefaultClient).Do(request)
		if err != nil {
			return fmt.Errorf("get the certificates: %w", err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("get the certificates: %s", response.Status)
		}
		var certificates map[string]string
		if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&certificates); err != nil {
			return fmt.Errorf("read the certificates: %w", err)
		}
		return checkCertificates(alg, kid, token, certificates)
	}
}

func appEngineStockCheck(ctx context.Context, alg, kid string, token *jwt.Token) error {
	list, err := appengine.PublicCertificates(ctx)
	if err != nil {
		return fmt.Errorf("get the certificates: %w", err)
	}
	certificates := make(map[string]string)
	for _, c := range list {
		certificates[c.KeyName] = string(c.Data)
	}
	return checkCertificates(alg, kid, token, certificates)
}

// checkCertificates verifies with the certificate that the kid names. A token that was
// signed while Google phases in a new key may have no kid: any will do then.
func checkCertificates(alg, kid string, token *jwt.Token, certificates map[string]string) error {
	if alg != jwt.SigningMethodRS256.Alg() {
		return fmt.Errorf("the algorithm is %q, not RS256", alg)
	}
	if kid != "" {
		certificate, ok := certificates[kid]
		if !ok {
			return fmt.Errorf("none of the %d certificates has the kid %q", len(certificates), kid)
		}
		certificates = map[string]string{kid: certificate}
	}
	err := errors.New("there are no certificates")
	for _, certificate := range certificates {
		public, parseErr := jwt.ParseRSAPublicKeyFromPEM([]byte(certificate))
		if parseErr != nil {
			err = fmt.Errorf("parse a certificate: %w", parseErr)
			continue
		}
		if err = jwt.SigningMethodRS256.Verify(signingInput(token), token.Signature, public); err == nil {
			return nil
		}
	}
	return err
}
