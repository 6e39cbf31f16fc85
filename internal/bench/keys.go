package bench

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// An algorithm is one that Cloud KMS signs tokens with.
type algorithm struct {
	name   string
	alg    string // RFC 7518, RFC 8037 or RFC 9964
	kms    kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm
	method *gcpjwt.SigningMethodKMS

	// verified is set for those whose verification is compared: the others
	// cost the same as one of these, or are verified by Cloud KMS (HS*).
	verified bool

	level kmspb.ProtectionLevel // 0: that which is usual
}

var algorithms = []algorithm{
	{"RS256-2048", "RS256", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, gcpjwt.SigningMethodKMSRS256, true, 0},
	{"RS256-3072", "RS256", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256, gcpjwt.SigningMethodKMSRS256, true, 0},
	{"RS256-4096", "RS256", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256, gcpjwt.SigningMethodKMSRS256, true, 0},
	{"RS512-4096", "RS512", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512, gcpjwt.SigningMethodKMSRS512, false, 0},
	{"PS256-2048", "PS256", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256, gcpjwt.SigningMethodKMSPS256, true, 0},
	{"PS256-3072", "PS256", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256, gcpjwt.SigningMethodKMSPS256, true, 0},
	{"PS256-4096", "PS256", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256, gcpjwt.SigningMethodKMSPS256, true, 0},
	{"PS512-4096", "PS512", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512, gcpjwt.SigningMethodKMSPS512, false, 0},
	{"ES256", "ES256", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, gcpjwt.SigningMethodKMSES256, true, 0},
	{"ES384", "ES384", kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, gcpjwt.SigningMethodKMSES384, true, 0},
	{"ES256K", "ES256K", kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256, gcpjwt.SigningMethodKMSES256K, true, 0},
	{"EdDSA", "EdDSA", kmspb.CryptoKeyVersion_EC_SIGN_ED25519, gcpjwt.SigningMethodKMSEdDSA, true, 0},
	{"Ed25519", "Ed25519", kmspb.CryptoKeyVersion_EC_SIGN_ED25519, gcpjwt.SigningMethodKMSEd25519, false, 0},
	{"ML-DSA-44", "ML-DSA-44", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44, gcpjwt.SigningMethodKMSMLDSA44, false, 0},
	{"ML-DSA-65", "ML-DSA-65", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65, gcpjwt.SigningMethodKMSMLDSA65, true, 0},
	{"ML-DSA-87", "ML-DSA-87", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87, gcpjwt.SigningMethodKMSMLDSA87, false, 0},
	{"ML-DSA-44-mu", "ML-DSA-44", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44_EXTERNAL_MU, gcpjwt.SigningMethodKMSMLDSA44, false, 0},
	{"ML-DSA-65-mu", "ML-DSA-65", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65_EXTERNAL_MU, gcpjwt.SigningMethodKMSMLDSA65, false, 0},
	{"ML-DSA-87-mu", "ML-DSA-87", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87_EXTERNAL_MU, gcpjwt.SigningMethodKMSMLDSA87, false, 0},
	{"RS256-2048-EXTERNAL", "RS256", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, gcpjwt.SigningMethodKMSRS256, false, kmspb.ProtectionLevel_EXTERNAL},
	{"ES256-EXTERNAL", "ES256", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, gcpjwt.SigningMethodKMSES256, false, kmspb.ProtectionLevel_EXTERNAL},
	{"HS256", "HS256", kmspb.CryptoKeyVersion_HMAC_SHA256, gcpjwt.SigningMethodKMSHS256, false, 0},
	{"HS384", "HS384", kmspb.CryptoKeyVersion_HMAC_SHA384, gcpjwt.SigningMethodKMSHS384, false, 0},
	{"HS512", "HS512", kmspb.CryptoKeyVersion_HMAC_SHA512, gcpjwt.SigningMethodKMSHS512, false, 0},
}

// A key is a CryptoKeyVersion in Cloud KMS, with a token by it.
type key struct {
	algorithm
	address string // of its server
	client  *kms.KeyManagementClient
	version string // resource name
	public  any    // nil for HS*
	kid     string
	token   string
}

// newKey makes a key, on a server of its own: RSA keys take long to make, and
// servers share them, one size at a time.
func (s *Suite) newKey(a algorithm) (*key, error) {
	server, err := testutil.NewKMS()
	if err != nil {
		return nil, err
	}
	s.onClose(server.Close)
	client, err := server.Client(s.ctx)
	if err != nil {
		return nil, err
	}
	s.onClose(func() { client.Close() })
	var level []kmspb.ProtectionLevel
	if a.level != 0 {
		level = append(level, a.level)
	}
	version, err := server.CreateKey(a.name, a.kms, level...)
	if err != nil {
		return nil, err
	}
	k := &key{
		algorithm: a, address: server.Addr(), client: client,
		version: version, public: server.PublicKey(version), kid: gcpjwt.KMSKeyID(version),
	}
	server.Intercept(prepared())
	k.token, err = sign(k.context(s.ctx), a.method)
	return k, err
}

func (k *key) config() *gcpjwt.KMSConfig {
	return &gcpjwt.KMSConfig{KeyPath: k.version, KMSClient: k.client}
}

func (k *key) context(ctx context.Context) context.Context {
	return gcpjwt.NewKMSContext(ctx, k.config())
}

// cryptoKey is the name of the CryptoKey that the version belongs to.
func (k *key) cryptoKey() string { return cryptoKeyOf(k.version) }

func cryptoKeyOf(version string) string { return path.Dir(path.Dir(version)) }

// prepared makes a server with one key sign the first token that it is asked for,
// and give that signature to everybody.
func prepared() func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
	var answers sync.Map
	return func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if method != "AsymmetricSign" && method != "MacSign" {
			return next(ctx, req)
		}
		if answer, ok := answers.Load(method); ok {
			return answer.(proto.Message), nil
		}
		answer, err := next(ctx, req)
		if err == nil {
			answers.Store(method, answer)
		}
		return answer, err
	}
}

// foreign reports whether the other libraries know the key's algorithm. jwx needs a build
// tag for ES256K.
func (k *key) foreign() bool {
	switch k.public.(type) {
	case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
		return k.alg != "Ed25519"
	}
	return false
}

// publish starts a server with a JSON Web Key Set for each key, which is how the
// other libraries want to be told of it.
func (s *Suite) publish(keys []*key) (url string, err error) {
	mux := http.NewServeMux()
	serve := func(name string, set jose.JSONWebKeySet) error {
		body, err := json.Marshal(set)
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "max-age=3600")
			_, _ = w.Write(body)
		})
		return err
	}
	var all jose.JSONWebKeySet
	for _, k := range keys {
		if !k.foreign() {
			continue
		}
		one := jose.JSONWebKey{Key: k.public, KeyID: k.kid, Algorithm: k.alg, Use: "sig"}
		if err := serve(k.name, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{one}}); err != nil {
			return "", err
		}
		if k.verified {
			all.Keys = append(all.Keys, one)
		}
	}
	return s.serve(mux), serve(allKeys, all)
}

// allKeys is the name of the set of all keys that the other libraries know.
const allKeys = "all"

// googleKeys are a service account and an App Engine app, whose keys Google
// rotates.
type googleKeys struct {
	iam      *gcpjwt.IAMConfig // signs by prepared answers
	iamKeyID string
	iamToken string

	appEngine      context.Context // verifies
	appEngineToken string
}

const account = "api-signer@bench.iam.gserviceaccount.com"

func (s *Suite) newGoogleKeys() (g googleKeys, err error) {
	iam, err := testutil.NewIAM()
	if err != nil {
		return g, err
	}
	s.onClose(iam.Close)
	if _, err := iam.CreateAccount(account); err != nil {
		return g, err
	}
	g.iam = &gcpjwt.IAMConfig{
		ServiceAccount: account,
		EnableCache:    true,
		Client:         iam.Client(),
		CertificateURL: iam.CertificateURL(),
	}
	g.iam.IAMService, err = iamcredentials.NewService(s.ctx,
		option.WithEndpoint(s.serve(replay(iam.URL()))), option.WithHTTPClient(iam.Client()))
	if err != nil {
		return g, err
	}
	real := *g.iam
	if real.IAMService, err = iam.Service(s.ctx); err != nil {
		return g, err
	}
	if g.iamToken, err = sign(gcpjwt.NewIAMContext(s.ctx, &real), gcpjwt.SigningMethodIAMBlob); err != nil {
		return g, err
	}
	g.iamKeyID = real.KeyID()

	app, err := testutil.NewAppEngine()
	if err != nil {
		return g, err
	}
	s.onClose(app.Close)
	g.appEngine = app.Context(s.ctx)
	if g.appEngineToken, err = sign(g.appEngine, gcpjwt.SigningMethodAppEngine); err != nil {
		return g, err
	}
	// Without a context of its own, the SDK finds its server by the environment, and
	// that one has the answer prepared.
	host, port, _ := strings.Cut(strings.TrimPrefix(s.serve(replay(app.URL())), "http://"), ":")
	return g, errors.Join(os.Setenv("API_HOST", host), os.Setenv("API_PORT", port))
}

func sign(ctx context.Context, method jwt.SigningMethod) (string, error) {
	text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(method, claims()))
	if err != nil {
		return "", fmt.Errorf("sign with %s: %w", method.Alg(), err)
	}
	return text, nil
}
