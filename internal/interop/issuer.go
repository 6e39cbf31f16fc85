package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

const audience = "https://api.example.com"

// algorithms are those of the tokens, each signed with a key of its own.
var algorithms = []string{"RS256", "PS256", "ES256", "ES384", "EdDSA"}

var kmsAlgorithms = map[string]kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm{
	"RS256": kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256,
	"PS256": kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256,
	"ES256": kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256,
	"ES384": kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384,
	"EdDSA": kmspb.CryptoKeyVersion_EC_SIGN_ED25519,
}

// besides are keys of kinds that not everybody knows, in sets of their own beside the others.
var besides = map[string]kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm{
	"ES256K":    kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256,
	"ML-DSA-65": kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65,
}

// beside returns the issuer whose set has one of these keys, too.
func (at *issuer) beside(name string) *issuer {
	other := *at
	other.url = at.server.URL + "/" + name
	return &other
}

// keyRefresh is how soon the issuer follows Cloud KMS.
const keyRefresh = 200 * time.Millisecond

// An issuer signs with keys in Cloud KMS and publishes them, over TLS, below a path.
type issuer struct {
	url    string
	client *http.Client // that trusts its certificate
	caFile string       // with the certificate

	kms      *testutil.KMS
	admin    *kms.KeyManagementClient
	server   *httptest.Server
	versions map[string]string         // the first one of each algorithm
	signers  map[string]*gcpjwt.Signer // by algorithm
	folder   string                    // temporary
}

func startIssuer(ctx context.Context) (_ *issuer, err error) {
	at := &issuer{versions: make(map[string]string), signers: make(map[string]*gcpjwt.Signer)}
	defer func() {
		if err != nil {
			at.close()
		}
	}()
	if at.kms, err = testutil.NewKMS(); err != nil {
		return nil, err
	}
	if at.admin, err = at.kms.Client(ctx); err != nil {
		return nil, err
	}
	var sources []jwks.Source
	for _, alg := range algorithms {
		if at.versions[alg], err = at.kms.CreateKey(alg, kmsAlgorithms[alg]); err != nil {
			return nil, err
		}
		if at.signers[alg], err = at.signer(ctx, at.versions[alg]); err != nil {
			return nil, err
		}
		sources = append(sources, at.signers[alg])
	}

	mux := http.NewServeMux()
	at.server = httptest.NewTLSServer(mux)
	at.url = at.server.URL + "/tenant"
	mux.Handle("/tenant/", jwks.NewDiscoveryHandler(at.url, jwks.Join(sources...)))
	for name, algorithm := range besides {
		version, err := at.kms.CreateKey(name, algorithm)
		if err != nil {
			return nil, err
		}
		other, err := at.signer(ctx, version)
		if err != nil {
			return nil, err
		}
		mux.Handle("/"+name+"/", jwks.NewDiscoveryHandler(at.server.URL+"/"+name, jwks.Join(append(sources, other)...)))
	}
	at.client = at.server.Client()
	if at.folder, err = os.MkdirTemp("", "interop"); err != nil {
		return nil, err
	}
	at.caFile = filepath.Join(at.folder, "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: at.server.Certificate().Raw})
	return at, os.WriteFile(at.caFile, certificate, 0o600)
}

func (at *issuer) close() {
	if at.server != nil {
		at.server.Close()
	}
	if at.admin != nil {
		at.admin.Close()
	}
	if at.kms != nil {
		at.kms.Close()
	}
	if at.folder != "" {
		os.RemoveAll(at.folder)
	}
}

// signer returns a signer with the CryptoKey that a version is of.
func (at *issuer) signer(ctx context.Context, version string) (*gcpjwt.Signer, error) {
	return gcpjwt.NewKMSSigner(ctx, at.config(version))
}

func (at *issuer) config(version string) *gcpjwt.KMSConfig {
	return &gcpjwt.KMSConfig{
		KeyPath: path.Dir(path.Dir(version)), KMSClient: at.admin,
		KeyRefresh: keyRefresh, ActivationDelay: -1, Logger: slog.New(slog.DiscardHandler),
	}
}

func claims(iss string) jwt.MapClaims {
	now := time.Now()
	return jwt.MapClaims{
		"iss": iss, "sub": "interop", "aud": audience,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(),
	}
}

// sign returns a token by each key.
func (at *issuer) sign(ctx context.Context, iss string) (map[string]string, error) {
	tokens := make(map[string]string)
	for alg, signer := range at.signers {
		var err error
		if tokens[alg], err = signer.Sign(ctx, claims(iss)); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

// forge returns a token for each key that names it but was signed with another one.
func (at *issuer) forge(ctx context.Context) (map[string]string, error) {
	tokens := make(map[string]string)
	for _, alg := range algorithms {
		version, err := at.kms.CreateKey("forger-"+alg, kmsAlgorithms[alg])
		if err != nil {
			return nil, err
		}
		forger, err := at.signer(ctx, version)
		if err != nil {
			return nil, err
		}
		token := jwt.NewWithClaims(forger.Method(), claims(at.url))
		token.Header["kid"] = gcpjwt.KMSKeyID(at.versions[alg])
		if tokens[alg], err = gcpjwt.SignedString(gcpjwt.NewKMSContext(ctx, at.config(version)), token); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

// rotate makes a new version of each key, disables the first one, and waits until the
// issuer has published that.
func (at *issuer) rotate(ctx context.Context) error {
	var gone, come []string
	for _, version := range at.versions {
		next, err := at.kms.CreateVersion(path.Dir(path.Dir(version)))
		if err != nil {
			return err
		}
		at.kms.SetState(version, kmspb.CryptoKeyVersion_DISABLED)
		gone, come = append(gone, gcpjwt.KMSKeyID(version)), append(come, gcpjwt.KMSKeyID(next))
	}
	for range 200 {
		set, err := at.read(ctx, "/.well-known/jwks.json")
		if err != nil {
			return err
		}
		published := func(kid string) bool { return strings.Contains(string(set), kid) }
		if all(come, published) && all(gone, func(kid string) bool { return !published(kid) }) {
			return nil
		}
		time.Sleep(keyRefresh / 4)
	}
	return errors.New("the issuer doesn't publish that its keys were rotated")
}

func all(texts []string, is func(string) bool) bool {
	for _, text := range texts {
		if !is(text) {
			return false
		}
	}
	return true
}

// read reads a document below the issuer's path.
func (at *issuer) read(ctx context.Context, below string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.url+below, nil)
	if err != nil {
		return nil, err
	}
	response, err := at.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", below, response.Status)
	}
	return io.ReadAll(response.Body)
}
