package systest

import (
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"filippo.io/mldsa/mldsacrypto"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/googleapis/gax-go/v2"
	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/plain"
)

// Algorithm is an algorithm of Cloud KMS.
type Algorithm = kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm

// The algorithms that most tests use, as their keys are made in no time.
const (
	P256     = kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256
	P384     = kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384
	Ed25519  = kmspb.CryptoKeyVersion_EC_SIGN_ED25519
	HMAC256  = kmspb.CryptoKeyVersion_HMAC_SHA256
	PKCS2048 = kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256
	PSS2048  = kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256
	MLDSA44  = kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44
)

// The states that most tests put versions into.
const (
	Enabled   = kmspb.CryptoKeyVersion_ENABLED
	Disabled  = kmspb.CryptoKeyVersion_DISABLED
	Destroyed = kmspb.CryptoKeyVersion_DESTROYED
)

// Row is an algorithm of Cloud KMS and what its tokens look like.
type Row struct {
	Algorithm  Algorithm
	Method     *gcpjwt.SigningMethodKMS
	Alias, Alg string
	Size       int         // of a signature
	Digest     crypto.Hash // what is sent to be signed; 0: the data itself
}

// Rows are all algorithms that sign tokens.
var Rows = []Row{
	{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, gcpjwt.SigningMethodKMSRS256, "KMSRS256", "RS256", 256, crypto.SHA256},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256, gcpjwt.SigningMethodKMSRS256, "KMSRS256", "RS256", 384, crypto.SHA256},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256, gcpjwt.SigningMethodKMSRS256, "KMSRS256", "RS256", 512, crypto.SHA256},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512, gcpjwt.SigningMethodKMSRS512, "KMSRS512", "RS512", 512, crypto.SHA512},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256, gcpjwt.SigningMethodKMSPS256, "KMSPS256", "PS256", 256, crypto.SHA256},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256, gcpjwt.SigningMethodKMSPS256, "KMSPS256", "PS256", 384, crypto.SHA256},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256, gcpjwt.SigningMethodKMSPS256, "KMSPS256", "PS256", 512, crypto.SHA256},
	{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512, gcpjwt.SigningMethodKMSPS512, "KMSPS512", "PS512", 512, crypto.SHA512},
	{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, gcpjwt.SigningMethodKMSES256, "KMSES256", "ES256", 64, crypto.SHA256},
	{kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, gcpjwt.SigningMethodKMSES384, "KMSES384", "ES384", 96, crypto.SHA384},
	{kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256, gcpjwt.SigningMethodKMSES256K, "KMSES256K", "ES256K", 64, crypto.SHA256},
	{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, gcpjwt.SigningMethodKMSEdDSA, "KMSEdDSA", "EdDSA", 64, 0},
	{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, gcpjwt.SigningMethodKMSEd25519, "KMSEd25519", "Ed25519", 64, 0},
	{kmspb.CryptoKeyVersion_HMAC_SHA256, gcpjwt.SigningMethodKMSHS256, "KMSHS256", "HS256", 32, 0},
	{kmspb.CryptoKeyVersion_HMAC_SHA384, gcpjwt.SigningMethodKMSHS384, "KMSHS384", "HS384", 48, 0},
	{kmspb.CryptoKeyVersion_HMAC_SHA512, gcpjwt.SigningMethodKMSHS512, "KMSHS512", "HS512", 64, 0},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44, gcpjwt.SigningMethodKMSMLDSA44, "KMSMLDSA44", "ML-DSA-44", 2420, 0},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65, gcpjwt.SigningMethodKMSMLDSA65, "KMSMLDSA65", "ML-DSA-65", 3309, 0},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87, gcpjwt.SigningMethodKMSMLDSA87, "KMSMLDSA87", "ML-DSA-87", 4627, 0},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44_EXTERNAL_MU, gcpjwt.SigningMethodKMSMLDSA44, "KMSMLDSA44", "ML-DSA-44", 2420, mldsacrypto.MLDSAMu},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65_EXTERNAL_MU, gcpjwt.SigningMethodKMSMLDSA65, "KMSMLDSA65", "ML-DSA-65", 3309, mldsacrypto.MLDSAMu},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87_EXTERNAL_MU, gcpjwt.SigningMethodKMSMLDSA87, "KMSMLDSA87", "ML-DSA-87", 4627, mldsacrypto.MLDSAMu},
}

// String names the row as a test.
func (row Row) String() string { return row.Algorithm.String() + "/" + row.Alg }

// RowOf returns the first row of an algorithm.
func RowOf(algorithm Algorithm) Row {
	for _, row := range Rows {
		if row.Algorithm == algorithm {
			return row
		}
	}
	panic("no row of " + algorithm.String())
}

// Methods returns the first row of each method.
func Methods() (rows []Row) {
	seen := make(map[*gcpjwt.SigningMethodKMS]bool)
	for _, row := range Rows {
		if !seen[row.Method] {
			seen[row.Method] = true
			rows = append(rows, row)
		}
	}
	return rows
}

// IsMAC reports whether the row's keys have no public half.
func (row Row) IsMAC() bool { return strings.HasPrefix(row.Alg, "HS") }

// SignRPC is the RPC that signs with the row's keys.
func (row Row) SignRPC() string {
	if row.IsMAC() {
		return "MacSign"
	}
	return "AsymmetricSign"
}

// Create creates a server's one CryptoKey with one version, and returns the
// version's name.
func Create(t testing.TB, server *testutil.KMS, algorithm Algorithm) string {
	t.Helper()
	version, err := server.CreateKey("signer", algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// CreateKey creates a CryptoKey that is named after the test, with one version, and
// returns the version's name.
func CreateKey(t testing.TB, server *testutil.KMS, algorithm Algorithm) string {
	t.Helper()
	id := strings.NewReplacer("/", "-", "#", "-", " ", "-").Replace(t.Name())
	version, err := server.CreateKey(id[max(0, len(id)-63):], algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// CryptoKeyOf returns the CryptoKey of a version.
func CryptoKeyOf(version string) string {
	cryptoKey, _, _ := strings.Cut(version, "/cryptoKeyVersions/")
	return cryptoKey
}

// Client returns a further client of a server. What is known of keys goes by the
// client, so it is as good as another process.
func Client(t testing.TB, server *testutil.KMS) *kms.KeyManagementClient {
	t.Helper()
	client, err := server.Client(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// NamedClient returns a further client of a server whose requests have a name, which
// ClientName reads. It goes by the client and not by a context, as what is shared
// carries nobody's values.
func NamedClient(t testing.TB, server *testutil.KMS, name string) *kms.KeyManagementClient {
	t.Helper()
	client := Client(t, server)
	named := gax.WithGRPCOptions(grpc.PerRPCCredentials(clientName(name)))
	for _, options := range []*[]gax.CallOption{
		&client.CallOptions.AsymmetricSign, &client.CallOptions.MacSign, &client.CallOptions.MacVerify,
		&client.CallOptions.GetPublicKey, &client.CallOptions.ListCryptoKeyVersions,
	} {
		*options = append(*options, named)
	}
	return client
}

// ClientName returns the name of the client that made a request, "" if it has none.
// ctx is that of a hook of the server.
func ClientName(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get(clientNameHeader), "")
}

const clientNameHeader = "x-client-name"

// clientName is a credential that only says who asks.
type clientName string

func (n clientName) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{clientNameHeader: string(n)}, nil
}

func (clientName) RequireTransportSecurity() bool { return false }

// KMSContext returns a context with a configuration of its own.
func KMSContext(ctx context.Context, client *kms.KeyManagementClient, keyPath string) context.Context {
	return gcpjwt.NewKMSContext(ctx, &gcpjwt.KMSConfig{KeyPath: keyPath, KMSClient: client})
}

// KMSKeyfunc returns the Keyfunc of a key.
func KMSKeyfunc(t testing.TB, ctx context.Context, client *kms.KeyManagementClient, keyPath string) jwt.Keyfunc {
	t.Helper()
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, &gcpjwt.KMSConfig{KeyPath: keyPath, KMSClient: client})
	if err != nil {
		t.Fatalf("KMSVerifyKeyfunc: %v", err)
	}
	return keyfunc
}

// SignBare signs without a kid, which only SignedString sets.
func SignBare(t testing.TB, ctx context.Context, method *gcpjwt.SigningMethodKMS, alg string) string {
	t.Helper()
	token := jwt.New(method)
	token.Header["alg"] = alg
	signingString, err := token.SigningString()
	if err != nil {
		t.Fatal(err)
	}
	sig, err := method.Sign(signingString, ctx)
	if err != nil {
		t.Fatalf("Sign: %v", err)
	}
	return signingString + "." + base64.RawURLEncoding.EncodeToString(sig)
}

// VerifyBare verifies a signature as somebody would who has never heard of the
// library: with jwt's own method (not looked up, as it may be overridden) and
// the bare public key; by the book for secp256k1; with filippo.io/mldsa alone; with
// MacVerify.
func VerifyBare(ctx context.Context, row Row, server *testutil.KMS, client *kms.KeyManagementClient, version, signingString string, sig []byte) error {
	stock := map[string]jwt.SigningMethod{
		"RS256": jwt.SigningMethodRS256, "RS512": jwt.SigningMethodRS512,
		"PS256": jwt.SigningMethodPS256, "PS512": jwt.SigningMethodPS512,
		"ES256": jwt.SigningMethodES256, "ES384": jwt.SigningMethodES384,
		"EdDSA": jwt.SigningMethodEdDSA, "Ed25519": jwt.SigningMethodEdDSA,
	}
	switch public := server.PublicKey(version).(type) {
	case nil:
		response, err := client.MacVerify(ctx, &kmspb.MacVerifyRequest{Name: version, Data: []byte(signingString), Mac: sig})
		if err == nil && !response.Success {
			err = errors.New("MacVerify: no success")
		}
		return err
	case *secp256k1.PublicKey:
		digest := sha256.Sum256([]byte(signingString))
		half := len(sig) / 2
		r, s := new(big.Int).SetBytes(sig[:half]), new(big.Int).SetBytes(sig[half:])
		if !plain.VerifySecp256k1(public.X(), public.Y(), digest[:], r, s) {
			return jwt.ErrSignatureInvalid
		}
		return nil
	case *mldsa.PublicKey:
		return mldsa.Verify(public, []byte(signingString), sig, nil)
	default:
		return stock[row.Alg].Verify(signingString, sig, public)
	}
}

// ErrToken reports a token that SignedString should not have returned.
var ErrToken = errors.New("the signed token does not verify")

// Check verifies a token by a version without any call: of a MAC its length is
// all there is to see.
func Check(row Row, server *testutil.KMS, version, text string) error {
	dot := strings.LastIndexByte(text, '.')
	sig, err := base64.RawURLEncoding.DecodeString(text[dot+1:])
	if err != nil {
		return err
	}
	if row.IsMAC() {
		if len(sig) != row.Size {
			return ErrToken
		}
		return nil
	}
	if err := VerifyBare(context.Background(), row, server, nil, version, text[:dot], sig); err != nil {
		return fmt.Errorf("%w: %w", ErrToken, err)
	}
	return nil
}

// Hang makes an RPC hang until its caller gives up.
func Hang(server *testutil.KMS, rpc string) {
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if method == rpc {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return next(ctx, req)
	})
}

// DER encodes (r, s) as Cloud KMS does.
func DER(r, s []byte) []byte {
	var b cryptobyte.Builder
	b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1BigInt(new(big.Int).SetBytes(r))
		b.AddASN1BigInt(new(big.Int).SetBytes(s))
	})
	return b.BytesOrPanic()
}
