package gcpjwt_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/googleapis/gax-go/v2/apierror"
	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

type kmsAlgorithm = kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm

// The algorithms that most tests use, as their keys are made in no time.
const (
	kmsP256     = kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256
	kmsP384     = kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384
	kmsEd25519  = kmspb.CryptoKeyVersion_EC_SIGN_ED25519
	kmsHMAC256  = kmspb.CryptoKeyVersion_HMAC_SHA256
	kmsPKCS2048 = kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256
	kmsPSS2048  = kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256
)

const (
	kmsEnabled   = kmspb.CryptoKeyVersion_ENABLED
	kmsDisabled  = kmspb.CryptoKeyVersion_DISABLED
	kmsDestroyed = kmspb.CryptoKeyVersion_DESTROYED
)

// kmsRow is a Cloud KMS algorithm and what its tokens look like.
type kmsRow struct {
	algorithm  kmsAlgorithm
	method     *gcpjwt.SigningMethodKMS
	alias, alg string
	size       int         // of a signature
	digest     crypto.Hash // what is sent to be signed; 0: the data itself
}

var kmsRows = []kmsRow{
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
	{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, gcpjwt.SigningMethodKMSEdDSA, "KMSEdDSA", "EdDSA", 64, 0},
	{kmspb.CryptoKeyVersion_HMAC_SHA256, gcpjwt.SigningMethodKMSHS256, "KMSHS256", "HS256", 32, 0},
	{kmspb.CryptoKeyVersion_HMAC_SHA384, gcpjwt.SigningMethodKMSHS384, "KMSHS384", "HS384", 48, 0},
	{kmspb.CryptoKeyVersion_HMAC_SHA512, gcpjwt.SigningMethodKMSHS512, "KMSHS512", "HS512", 64, 0},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44, gcpjwt.SigningMethodKMSMLDSA44, "KMSMLDSA44", "ML-DSA-44", 2420, 0},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65, gcpjwt.SigningMethodKMSMLDSA65, "KMSMLDSA65", "ML-DSA-65", 3309, 0},
	{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87, gcpjwt.SigningMethodKMSMLDSA87, "KMSMLDSA87", "ML-DSA-87", 4627, 0},
}

// kmsRowOf returns the row of an algorithm.
func kmsRowOf(algorithm kmsAlgorithm) kmsRow {
	for _, row := range kmsRows {
		if row.algorithm == algorithm {
			return row
		}
	}
	panic("no row of " + algorithm.String())
}

// isMAC reports whether the row's keys have no public half.
func (row kmsRow) isMAC() bool { return strings.HasPrefix(row.alg, "HS") }

// signRPC is the RPC that signs with the row's keys.
func (row kmsRow) signRPC() string {
	if row.isMAC() {
		return "MacSign"
	}
	return "AsymmetricSign"
}

// kmsCreate creates a server's one CryptoKey with one version, and returns the
// version's name.
func kmsCreate(t testing.TB, server *testutil.KMS, algorithm kmsAlgorithm) string {
	t.Helper()
	version, err := server.CreateKey("signer", algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// kmsClient returns a further client of a server. What is known of keys goes by
// the client, so it is as good as another process.
func kmsClient(t testing.TB, server *testutil.KMS) *kms.KeyManagementClient {
	t.Helper()
	client, err := server.Client(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// kmsContext returns a context with a configuration of its own.
func kmsContext(ctx context.Context, client *kms.KeyManagementClient, keyPath string) context.Context {
	return gcpjwt.NewKMSContext(ctx, &gcpjwt.KMSConfig{KeyPath: keyPath, KMSClient: client})
}

// kmsKeyfunc returns the Keyfunc of a key.
func kmsKeyfunc(t testing.TB, ctx context.Context, client *kms.KeyManagementClient, keyPath string) jwt.Keyfunc {
	t.Helper()
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, &gcpjwt.KMSConfig{KeyPath: keyPath, KMSClient: client})
	if err != nil {
		t.Fatalf("KMSVerifyKeyfunc: %v", err)
	}
	return keyfunc
}

// kmsHeader returns a token's header.
func kmsHeader(t testing.TB, text string) map[string]any {
	t.Helper()
	segment, _, _ := strings.Cut(text, ".")
	raw, err := base64.RawURLEncoding.DecodeString(segment)
	if err != nil {
		t.Fatalf("the header of %q: %v", text, err)
	}
	var header map[string]any
	if err := json.Unmarshal(raw, &header); err != nil {
		t.Fatalf("the header %s: %v", raw, err)
	}
	return header
}

// kmsSplit returns a token's signing string and its signature.
func kmsSplit(t testing.TB, text string) (signingString string, sig []byte) {
	t.Helper()
	i := strings.LastIndexByte(text, '.')
	sig, err := base64.RawURLEncoding.DecodeString(text[i+1:])
	if err != nil {
		t.Fatalf("the signature of %q: %v", text, err)
	}
	return text[:i], sig
}

// kmsVerifyBare verifies a token as somebody would who has never heard of this
// package: with jwt's own method (not looked up, as it may be overridden) and
// the bare public key; with filippo.io/mldsa alone; with MacVerify.
func kmsVerifyBare(ctx context.Context, row kmsRow, server *testutil.KMS, client *kms.KeyManagementClient, version, signingString string, sig []byte) error {
	stock := map[string]jwt.SigningMethod{
		"RS256": jwt.SigningMethodRS256, "RS512": jwt.SigningMethodRS512,
		"PS256": jwt.SigningMethodPS256, "PS512": jwt.SigningMethodPS512,
		"ES256": jwt.SigningMethodES256, "ES384": jwt.SigningMethodES384,
		"EdDSA": jwt.SigningMethodEdDSA,
	}
	switch public := server.PublicKey(version).(type) {
	case nil:
		response, err := client.MacVerify(ctx, &kmspb.MacVerifyRequest{Name: version, Data: []byte(signingString), Mac: sig})
		if err == nil && !response.Success {
			err = errors.New("MacVerify: no success")
		}
		return err
	case *mldsa.PublicKey:
		return mldsa.Verify(public, []byte(signingString), sig, nil)
	default:
		return stock[row.alg].Verify(signingString, sig, public)
	}
}

// kmsOverride overrides a method until the test ends. It changes what jwt knows
// in the whole process, so such a test must not be parallel.
func kmsOverride(t *testing.T, m *gcpjwt.SigningMethodKMS) {
	t.Helper()
	alias := m.Alg()
	m.Override()
	alg := m.Alg()
	t.Cleanup(func() {
		gcpjwt.KMSUndoOverride(m)
		if got := m.Alg(); got != alias {
			t.Errorf("after undoing Override of %s: Alg = %q, want %q", alg, got, alias)
		}
	})
}

// Every Cloud KMS algorithm: signed by either call, with and without Override,
// and verified by three kinds of verifier. It isn't parallel because of
// Override.
func TestKMSAlgorithms(t *testing.T) {
	for _, row := range kmsRows {
		t.Run(row.algorithm.String(), func(t *testing.T) {
			server, client := start.KMS(t)
			version := kmsCreate(t, server, row.algorithm)
			ctx := kmsContext(t.Context(), client, version)
			pinned := kmsKeyfunc(t, t.Context(), client, version)
			rotating := kmsKeyfunc(t, t.Context(), client, cryptoKeyOf(version))

			check := func(t *testing.T, text, alg string, kid any) {
				t.Helper()
				want := map[string]any{"alg": alg, "typ": "JWT"}
				if kid != nil {
					want["kid"] = kid
				}
				if diff := cmp.Diff(want, kmsHeader(t, text)); diff != "" {
					t.Errorf("header (-want +got):\n%s", diff)
				}
				signingString, sig := kmsSplit(t, text)
				if len(sig) != row.size {
					t.Errorf("the signature has %d bytes, want %d", len(sig), row.size)
				}
				if err := kmsVerifyBare(t.Context(), row, server, client, version, signingString, sig); err != nil {
					t.Errorf("verifying without gcpjwt: %v", err)
				}
				if err := kmsVerifyBare(t.Context(), row, server, client, version, signingString+"x", sig); err == nil {
					t.Error("verifying another text without gcpjwt: no error")
				}
				for name, keyfunc := range map[string]jwt.Keyfunc{"version": pinned, "CryptoKey": rotating} {
					token, err := jwt.Parse(text, keyfunc, jwt.WithValidMethods([]string{alg}))
					if err != nil || !token.Valid {
						t.Errorf("jwt.Parse with the Keyfunc of the %s: %v", name, err)
					}
					forged := signingString + "x." + base64.RawURLEncoding.EncodeToString(sig)
					if _, err := jwt.Parse(forged, keyfunc); err == nil {
						t.Errorf("jwt.Parse of a forged token with the Keyfunc of the %s: no error", name)
					}
				}
			}
			kid := gcpjwt.KMSKeyID(version)
			both := func(t *testing.T, alg string) {
				if got := row.method.Alg(); got != alg {
					t.Errorf("Alg = %q, want %q", got, alg)
				}
				if got := jwt.GetSigningMethod(alg); got != jwt.SigningMethod(row.method) {
					t.Errorf("jwt.GetSigningMethod(%q) = %v, want the method", alg, got)
				}
				check(t, sign(t, ctx, row.method, nil), row.alg, kid)

				token := jwt.NewWithClaims(row.method, jwt.MapClaims{"sub": "somebody"})
				text, err := token.SignedString(ctx)
				if err != nil {
					t.Fatalf("token.SignedString: %v", err)
				}
				check(t, text, alg, nil)
			}

			t.Run("as imported", func(t *testing.T) { both(t, row.alias) })
			t.Run("overridden", func(t *testing.T) {
				kmsOverride(t, row.method)
				both(t, row.alg)
			})
			t.Run("kid of the caller", func(t *testing.T) {
				token := jwt.New(row.method)
				token.Header["kid"] = "mine"
				text, err := gcpjwt.SignedString(ctx, token)
				if err != nil {
					t.Fatalf("SignedString: %v", err)
				}
				if got := kmsHeader(t, text)["kid"]; got != "mine" {
					t.Errorf("kid = %v, want the caller's", got)
				}
			})

			wantHash := row.digest
			if row.isMAC() {
				wantHash = map[string]crypto.Hash{"HS256": crypto.SHA256, "HS384": crypto.SHA384, "HS512": crypto.SHA512}[row.alg]
			}
			if got := row.method.Hash(); got != wantHash {
				t.Errorf("Hash = %v, want %v", got, wantHash)
			}
		})
	}
}

// jwt's own parser, told the public key only, takes the tokens.
func TestKMSTokensWithStockJWT(t *testing.T) {
	t.Parallel()
	for _, row := range kmsRows {
		if row.isMAC() {
			continue // MacVerify above is all there is
		}
		t.Run(row.algorithm.String(), func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := kmsCreate(t, server, row.algorithm)
			text := sign(t, kmsContext(t.Context(), client, version), row.method, jwt.MapClaims{"sub": "süße <&>"})
			token, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return server.PublicKey(version), nil },
				jwt.WithValidMethods([]string{row.alg}), jwt.WithStrictDecoding())
			if err != nil {
				t.Fatalf("jwt.Parse: %v", err)
			}
			if got, _ := token.Claims.GetSubject(); got != "süße <&>" {
				t.Errorf("sub = %q", got)
			}
		})
	}
}

// ecdsaNonce is a scalar k such that the x coordinate of k·G, which is a
// signature's r, has some leading zero bytes.
type ecdsaNonce struct {
	k     uint64
	zeros int
}

// kmsCraft makes a public key under which digest has the signature (r, s)
// where r belongs to the nonce k: any s will do, as the private key follows from
// it, d = (s·k - e) / r mod n.
func kmsCraft(t *testing.T, curve ecdh.Curve, params *elliptic.CurveParams, k uint64, s, digest []byte) (public *ecdsa.PublicKey, r []byte) {
	t.Helper()
	size := (params.BitSize + 7) / 8
	point := func(scalar []byte) []byte { // uncompressed
		key, err := curve.NewPrivateKey(scalar)
		if err != nil {
			t.Fatal(err)
		}
		return key.PublicKey().Bytes()
	}
	scalar := make([]byte, size)
	binary.BigEndian.PutUint64(scalar[size-8:], k)
	r = point(scalar)[1 : 1+size]

	d := new(big.Int).SetBytes(s)
	d.Mul(d, new(big.Int).SetUint64(k))
	d.Sub(d, new(big.Int).SetBytes(digest))
	d.Mul(d, new(big.Int).ModInverse(new(big.Int).SetBytes(r), params.N))
	d.Mod(d, params.N)
	namedCurve := map[int]elliptic.Curve{256: elliptic.P256(), 384: elliptic.P384()}[params.BitSize]
	public, err := ecdsa.ParseUncompressedPublicKey(namedCurve, point(d.FillBytes(scalar)))
	if err != nil {
		t.Fatal(err)
	}
	return public, r
}

// kmsDER encodes (r, s) as Cloud KMS does.
func kmsDER(r, s []byte) []byte {
	var b cryptobyte.Builder
	b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1BigInt(new(big.Int).SetBytes(r))
		b.AddASN1BigInt(new(big.Int).SetBytes(s))
	})
	return b.BytesOrPanic()
}

// B01: r and s have a fixed width, however many leading zero bytes they have.
func TestKMSShortECDSAIntegers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		algorithm kmsAlgorithm
		curve     ecdh.Curve
		params    *elliptic.CurveParams
		nonces    []ecdsaNonce
	}{
		{kmsP256, ecdh.P256(), elliptic.P256().Params(), []ecdsaNonce{{1, 0}, {379, 1}, {40393, 2}}},
		{kmsP384, ecdh.P384(), elliptic.P384().Params(), []ecdsaNonce{{1, 0}, {197, 1}, {14971, 2}}},
	}
	for _, tt := range tests {
		row := kmsRowOf(tt.algorithm)
		half := row.size / 2
		for _, nonce := range tt.nonces {
			// 7f is a DER integer as it is, 80 takes a zero byte in front.
			for _, first := range []byte{0x7f, 0x80} {
				for zeros := range 3 {
					t.Run(fmt.Sprintf("B01/%s/r%d/s%d/%02x", row.alg, nonce.zeros, zeros, first), func(t *testing.T) {
						t.Parallel()
						s := bytes.Repeat([]byte{first}, half)
						clear(s[:zeros])
						var public *ecdsa.PublicKey
						server, client := start.KMS(t)
						version := kmsCreate(t, server, tt.algorithm)
						server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
							resp, err := next(ctx, req)
							if resp, ok := resp.(*kmspb.AsymmetricSignResponse); ok {
								digest := req.(*kmspb.AsymmetricSignRequest).Digest
								var r []byte
								public, r = kmsCraft(t, tt.curve, tt.params, nonce.k, s, append(digest.GetSha256(), digest.GetSha384()...))
								if got := half - len(bytes.TrimLeft(r, "\x00")); got != nonce.zeros {
									t.Errorf("r has %d leading zero bytes, the test needs %d", got, nonce.zeros)
								}
								resp.Signature = kmsDER(r, s)
								resp.SignatureCrc32C = testutil.Checksum(resp.Signature)
							}
							return resp, err
						})
						text := sign(t, kmsContext(t.Context(), client, version), row.method, nil)
						signingString, sig := kmsSplit(t, text)
						if len(sig) != row.size {
							t.Errorf("the signature has %d bytes, want %d", len(sig), row.size)
						}
						if !bytes.Equal(sig[len(sig)-half:], s) {
							t.Errorf("s = %x, want %x", sig[len(sig)-half:], s)
						}
						stock := map[string]jwt.SigningMethod{"ES256": jwt.SigningMethodES256, "ES384": jwt.SigningMethodES384}[row.alg]
						if err := stock.Verify(signingString, sig, public); err != nil {
							t.Errorf("stock jwt: %v", err)
						}
					})
				}
			}
		}
	}
}

// B03: what is hashed is the ASCII text header.payload that ends up in the
// token, and what is sent is its digest, or the text itself, with a checksum.
func TestKMSSignsHeaderAndPayload(t *testing.T) {
	t.Parallel()
	for _, row := range kmsRows {
		t.Run("B03/"+row.algorithm.String(), func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := kmsCreate(t, server, row.algorithm)
			var (
				mu   sync.Mutex
				seen []proto.Message
			)
			server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				if method == row.signRPC() {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, proto.Clone(req))
				}
				return next(ctx, req)
			})
			text := sign(t, kmsContext(t.Context(), client, version), row.method, jwt.MapClaims{"sub": "ü<&>", "n": 1})
			signingString := text[:strings.LastIndexByte(text, '.')]

			var want proto.Message
			switch {
			case row.isMAC():
				want = &kmspb.MacSignRequest{Name: version, Data: []byte(signingString), DataCrc32C: testutil.Checksum([]byte(signingString))}
			case row.digest == 0:
				want = &kmspb.AsymmetricSignRequest{Name: version, Data: []byte(signingString), DataCrc32C: testutil.Checksum([]byte(signingString))}
			default:
				h := row.digest.New()
				h.Write([]byte(signingString))
				sum := h.Sum(nil)
				digest := map[crypto.Hash]*kmspb.Digest{
					crypto.SHA256: {Digest: &kmspb.Digest_Sha256{Sha256: sum}},
					crypto.SHA384: {Digest: &kmspb.Digest_Sha384{Sha384: sum}},
					crypto.SHA512: {Digest: &kmspb.Digest_Sha512{Sha512: sum}},
				}[row.digest]
				want = &kmspb.AsymmetricSignRequest{Name: version, Digest: digest, DigestCrc32C: testutil.Checksum(sum)}
			}
			if len(seen) != 1 || !proto.Equal(seen[0], want) {
				t.Errorf("%s got %v, want %v", row.signRPC(), seen, want)
			}
		})
	}
}

// B03: base64url without padding.
func TestKMSSignatureEncoding(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []kmsAlgorithm{kmsEd25519, kmsHMAC256} {
		row := kmsRowOf(algorithm)
		t.Run("B03/"+row.alg, func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := kmsCreate(t, server, algorithm)
			odd := append([]byte{0xfb, 0xff, 0xfe}, make([]byte, row.size-3)...)
			server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				resp, err := next(ctx, req)
				switch resp := resp.(type) {
				case *kmspb.AsymmetricSignResponse:
					resp.Signature, resp.SignatureCrc32C = odd, testutil.Checksum(odd)
				case *kmspb.MacSignResponse:
					resp.Mac, resp.MacCrc32C = odd, testutil.Checksum(odd)
				}
				return resp, err
			})
			text := sign(t, kmsContext(t.Context(), client, version), row.method, nil)
			// 64 and 32 bytes both take padding in padded base64.
			want := "-__-" + strings.Repeat("A", (row.size*8+5)/6-4)
			if got := text[strings.LastIndexByte(text, '.')+1:]; got != want {
				t.Errorf("the signature is %q, want %q", got, want)
			}
		})
	}
}

// B04: a method that doesn't fit the key is refused, naming both, before any
// signature.
func TestKMSAlgorithmMismatch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		method *gcpjwt.SigningMethodKMS
		key    kmsAlgorithm
	}{
		{gcpjwt.SigningMethodKMSRS256, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512},
		{gcpjwt.SigningMethodKMSRS256, kmsP384},
		// These two are signed without complaint by Cloud KMS, and verified by nobody.
		{gcpjwt.SigningMethodKMSRS256, kmsPSS2048},
		{gcpjwt.SigningMethodKMSPS256, kmsPKCS2048},
		{gcpjwt.SigningMethodKMSRS512, kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512},
		{gcpjwt.SigningMethodKMSRS512, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256},
		{gcpjwt.SigningMethodKMSPS512, kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256},
		{gcpjwt.SigningMethodKMSES256, kmsP384},
		{gcpjwt.SigningMethodKMSES384, kmsP256},
		{gcpjwt.SigningMethodKMSES256, kmsPKCS2048},
		{gcpjwt.SigningMethodKMSEdDSA, kmsP256},
		{gcpjwt.SigningMethodKMSEdDSA, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44},
		{gcpjwt.SigningMethodKMSMLDSA44, kmsEd25519},
		{gcpjwt.SigningMethodKMSMLDSA44, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65},
		{gcpjwt.SigningMethodKMSMLDSA87, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65},
	}
	for _, tt := range tests {
		for _, rotating := range []bool{false, true} {
			t.Run(fmt.Sprintf("B04/%s on %s/rotating=%t", tt.method.Alg(), tt.key, rotating), func(t *testing.T) {
				t.Parallel()
				server, client := start.KMS(t)
				path := kmsCreate(t, server, tt.key)
				if rotating {
					path = cryptoKeyOf(path)
				}
				ctx := kmsContext(t.Context(), client, path)
				token := jwt.New(tt.method)
				text, err := gcpjwt.SignedString(ctx, token)
				if text != "" || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
					t.Errorf("SignedString = %q, %v, want ErrAlgorithmMismatch", text, err)
				}
				if _, set := token.Header["kid"]; set {
					t.Errorf("the failed signature left the kid %v", token.Header["kid"])
				}
				sig, err := tt.method.Sign("header.payload", ctx)
				if sig != nil || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
					t.Fatalf("Sign = %q, %v, want ErrAlgorithmMismatch", sig, err)
				}
				names := []string{tt.method.Alg(), path}
				if !rotating {
					names = append(names, tt.key.String())
				}
				for _, want := range names {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the error is %q, want it to name %s", err, want)
					}
				}
				if got := server.Calls("AsymmetricSign"); got != 0 {
					t.Errorf("AsymmetricSign was called %d times, want 0", got)
				}
			})
		}
	}
}

// Keys of another purpose are refused too. That a MAC key has another hash is
// only seen in the length of the MAC.
func TestKMSOtherPurpose(t *testing.T) {
	t.Parallel()
	tests := []struct {
		method *gcpjwt.SigningMethodKMS
		key    kmsAlgorithm
		code   codes.Code // or else ErrAlgorithmMismatch
	}{
		{gcpjwt.SigningMethodKMSRS256, kmsHMAC256, codes.FailedPrecondition},
		{gcpjwt.SigningMethodKMSRS256, kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION, codes.FailedPrecondition},
		{gcpjwt.SigningMethodKMSHS256, kmsPKCS2048, codes.FailedPrecondition},
		{gcpjwt.SigningMethodKMSHS256, kmspb.CryptoKeyVersion_HMAC_SHA512, codes.OK},
		{gcpjwt.SigningMethodKMSHS384, kmsHMAC256, codes.OK},
		{gcpjwt.SigningMethodKMSHS512, kmspb.CryptoKeyVersion_HMAC_SHA384, codes.OK},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s on %s", tt.method.Alg(), tt.key), func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := kmsCreate(t, server, tt.key)
			text, err := gcpjwt.SignedString(kmsContext(t.Context(), client, version), jwt.New(tt.method))
			switch {
			case text != "" || err == nil:
				t.Errorf("SignedString = %q, %v, want an error", text, err)
			case tt.code == codes.OK && !errors.Is(err, gcpjwt.ErrAlgorithmMismatch):
				t.Errorf("SignedString: %v, want ErrAlgorithmMismatch", err)
			case tt.code != codes.OK && status.Code(err) != tt.code:
				t.Errorf("SignedString: %v, want code %v", err, tt.code)
			}
		})
	}
}

// B07: however many signatures, one connection and no goroutine of its own, and
// the client stays open. Not parallel, as it counts goroutines.
func TestKMSManySignaturesOneConnection(t *testing.T) {
	server, client := start.KMS(t)
	version := kmsCreate(t, server, kmsP256)
	public := server.PublicKey(version)
	one := func(path string) {
		ctx := kmsContext(t.Context(), client, path)
		signingString, sig := kmsSplit(t, sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil))
		if err := jwt.SigningMethodES256.Verify(signingString, sig, public); err != nil {
			t.Fatalf("stock jwt: %v", err)
		}
		if _, err := jwt.Parse(signingString+"."+base64.RawURLEncoding.EncodeToString(sig), kmsKeyfunc(t, t.Context(), client, path)); err != nil {
			t.Fatalf("jwt.Parse: %v", err)
		}
	}
	one(version) // connects
	before := runtime.NumGoroutine()
	for i := range 300 {
		one([]string{version, cryptoKeyOf(version)}[i%2])
	}
	// A stream's goroutines take a moment to end.
	after := runtime.NumGoroutine()
	for range 1000 {
		if after < before+5 {
			break
		}
		runtime.Gosched()
		after = runtime.NumGoroutine()
	}
	if after >= before+5 {
		t.Errorf("B07: %d goroutines after 300 signatures, %d before", after, before)
	}
	if got := server.Connections(); got != 1 {
		t.Errorf("B07: %d connections, want 1", got)
	}
	if _, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version}); err != nil {
		t.Errorf("B07: the client is unusable afterwards: %v", err)
	}
}

// B08: the salt is as long as the hash, and our Verify insists on it.
func TestKMSPSSSaltLength(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []kmsAlgorithm{
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256,
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256,
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256,
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512,
	} {
		t.Run("B08/"+algorithm.String(), func(t *testing.T) {
			t.Parallel()
			row := kmsRowOf(algorithm)
			server, client := start.KMS(t)
			version := kmsCreate(t, server, algorithm)
			signingString, sig := kmsSplit(t, sign(t, kmsContext(t.Context(), client, version), row.method, nil))
			h := row.digest.New()
			h.Write([]byte(signingString))
			want := map[string]int{"PS256": 32, "PS512": 64}[row.alg]
			err := rsa.VerifyPSS(server.PublicKey(version).(*rsa.PublicKey), row.digest, h.Sum(nil), sig, &rsa.PSSOptions{SaltLength: want})
			if err != nil {
				t.Errorf("VerifyPSS with a salt of %d bytes: %v", want, err)
			}
		})
	}

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []kmsRow{kmsRowOf(kmsPSS2048), kmsRowOf(kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512)} {
		right := row.digest.Size()
		for _, salt := range []int{0, 1, 20, 32, 64, 190} {
			h := row.digest.New()
			h.Write([]byte("header.payload"))
			if maximum := 256 - 2 - h.Size(); salt > maximum {
				salt = maximum
			}
			sig, err := rsa.SignPSS(rand.Reader, key, row.digest, h.Sum(nil), &rsa.PSSOptions{SaltLength: salt})
			if salt == 0 { // which rsa takes for "as long as possible"
				salt = 256 - 2 - h.Size()
			}
			if err != nil {
				t.Fatal(err)
			}
			err = row.method.Verify("header.payload", sig, &key.PublicKey)
			if salt == right && err != nil {
				t.Errorf("B08: %s with a salt of %d bytes: %v", row.alg, salt, err)
			}
			if salt != right && !errors.Is(err, rsa.ErrVerification) {
				t.Errorf("B08: %s with a salt of %d bytes: %v, want rsa.ErrVerification", row.alg, salt, err)
			}
		}
	}
}

// R02: a signature is one call, and a verification none.
func TestKMSCallsPerToken(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := kmsCreate(t, server, kmsP256)
	for range 100 {
		text := sign(t, kmsContext(t.Context(), client, version), gcpjwt.SigningMethodKMSES256, nil)
		if _, err := jwt.Parse(text, kmsKeyfunc(t, t.Context(), client, version)); err != nil {
			t.Fatalf("jwt.Parse: %v", err)
		}
	}
	got := map[string]int{"AsymmetricSign": server.Calls("AsymmetricSign"), "GetPublicKey": server.Calls("GetPublicKey"), "": server.Calls("")}
	if diff := cmp.Diff(map[string]int{"AsymmetricSign": 100, "GetPublicKey": 1, "": 101}, got); diff != "" {
		t.Errorf("R02: calls of 100 signatures and verifications (-want +got):\n%s", diff)
	}
}

// R02: fifty callers that come at once share the one read.
func TestKMSConcurrentFirstUse(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := kmsCreate(t, server, kmsP256)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			if _, err := gcpjwt.SignedString(kmsContext(t.Context(), client, version), jwt.New(gcpjwt.SigningMethodKMSES256)); err != nil {
				t.Errorf("SignedString: %v", err)
			}
		})
	}
	group.Wait()
	if got := server.Calls("GetPublicKey"); got != 1 {
		t.Errorf("R02: GetPublicKey was called %d times, want 1", got)
	}
}

// R02: an exhausted quota is the caller's to see and to wait for.
func TestKMSResourceExhausted(t *testing.T) {
	t.Parallel()
	for _, rpc := range []string{"AsymmetricSign", "GetPublicKey"} {
		t.Run("R02/"+rpc, func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := kmsCreate(t, server, kmsP256)
			server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				if method == rpc {
					return nil, status.Error(codes.ResourceExhausted, "Quota exceeded for quota metric 'Asymmetric requests'.")
				}
				return next(ctx, req)
			})
			text, err := gcpjwt.SignedString(kmsContext(t.Context(), client, version), jwt.New(gcpjwt.SigningMethodKMSES256))
			if text != "" || status.Code(err) != codes.ResourceExhausted {
				t.Errorf("SignedString = %q, %v, want RESOURCE_EXHAUSTED", text, err)
			}
			if _, ok := errors.AsType[*apierror.APIError](err); !ok {
				t.Errorf("SignedString: %v, want an *apierror.APIError within", err)
			}
			if err != nil && (!strings.HasPrefix(err.Error(), "gcpjwt: ") || !strings.Contains(err.Error(), "Quota exceeded")) {
				t.Errorf("the error is %q", err)
			}
			if got := server.Calls(rpc); got != 1 {
				t.Errorf("%s was called %d times, want 1", rpc, got)
			}
		})
	}
}

// R03: one destroyed version doesn't stop the verifier; it takes one to be left.
func TestKMSDestroyedVersion(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	first := kmsCreate(t, server, kmsP256)
	old := sign(t, kmsContext(t.Context(), client, first), gcpjwt.SigningMethodKMSES256, nil)
	second, err := server.CreateVersion(cryptoKeyOf(first))
	if err != nil {
		t.Fatal(err)
	}
	server.SetState(first, kmsDestroyed)
	ctx := kmsContext(t.Context(), client, cryptoKeyOf(first))
	keyfunc := kmsKeyfunc(t, t.Context(), client, cryptoKeyOf(first))
	text := sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)
	if got, want := kmsHeader(t, text)["kid"], gcpjwt.KMSKeyID(second); got != want {
		t.Errorf("R03: signed by %v, want version 2", got)
	}
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		t.Errorf("R03: jwt.Parse of a token by version 2: %v", err)
	}
	if _, err := jwt.Parse(old, keyfunc); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
		t.Errorf("R03: jwt.Parse of a token by version 1: %v, want ErrUnknownKeyID", err)
	}

	// All gone. Another client knows nothing of the versions that were.
	server.SetState(second, kmsDestroyed)
	keyfunc, err = gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: cryptoKeyOf(first), KMSClient: kmsClient(t, server)})
	if keyfunc != nil || err == nil || !strings.Contains(err.Error(), "no ENABLED version") {
		t.Errorf("R03: KMSVerifyKeyfunc without any ENABLED version: %v, want an error", err)
	}
}

// B20: after a rotation the new key is accepted at the cost of one more read,
// and what that read no longer shows is refused.
func TestKMSRotationSeenByVerifier(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	a := kmsCreate(t, server, kmsP256)
	byA := sign(t, kmsContext(t.Context(), client, a), gcpjwt.SigningMethodKMSES256, nil)
	keyfunc := kmsKeyfunc(t, t.Context(), client, cryptoKeyOf(a))
	if _, err := jwt.Parse(byA, keyfunc); err != nil {
		t.Fatalf("B20: jwt.Parse of a token by A: %v", err)
	}
	b, err := server.CreateVersion(cryptoKeyOf(a))
	if err != nil {
		t.Fatal(err)
	}
	byB := sign(t, kmsContext(t.Context(), client, b), gcpjwt.SigningMethodKMSES256, nil)
	server.SetState(a, kmsDisabled)
	server.ResetCalls()
	if _, err := jwt.Parse(byB, keyfunc); err != nil {
		t.Errorf("B20: jwt.Parse of a token by B: %v", err)
	}
	for range 10 {
		if _, err := jwt.Parse(byA, keyfunc); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
			t.Errorf("B20: jwt.Parse of a token by A: %v, want ErrUnknownKeyID", err)
		}
	}
	// B's public key is known from signing with it.
	if got := server.Calls(""); got != 1 || server.Calls("ListCryptoKeyVersions") != 1 {
		t.Errorf("B20: %d calls, %d of them ListCryptoKeyVersions, want 1 and 1", got, server.Calls("ListCryptoKeyVersions"))
	}
}

// A configuration is only read: two clients and many goroutines may share the
// contexts made of it, and a configuration made for each call costs nothing.
func TestKMSConfigIsNotChanged(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := kmsCreate(t, server, kmsEd25519)
	config := &gcpjwt.KMSConfig{KeyPath: cryptoKeyOf(version), KMSClient: client}
	ctx := gcpjwt.NewKMSContext(t.Context(), config)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSEdDSA))
			if err != nil {
				t.Errorf("SignedString: %v", err)
				return
			}
			keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
			if err != nil {
				t.Errorf("KMSVerifyKeyfunc: %v", err)
				return
			}
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Errorf("jwt.Parse: %v", err)
			}
			config.KeyID()
		})
	}
	group.Wait()
	if want := (gcpjwt.KMSConfig{KeyPath: cryptoKeyOf(version), KMSClient: client}); *config != want {
		t.Errorf("R06: the configuration became %+v", *config)
	}
}

// A configuration that cannot work is refused before any call.
func TestKMSNegativeKeyRefresh(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := kmsCreate(t, server, kmsP256)
	for _, path := range []string{version, cryptoKeyOf(version)} {
		config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client, KeyRefresh: -time.Second}
		_, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), config), jwt.New(gcpjwt.SigningMethodKMSES256))
		if !errors.Is(err, gcpjwt.ErrInvalidConfig) || !strings.Contains(err.Error(), "KeyRefresh") {
			t.Errorf("SignedString: %v, want ErrInvalidConfig that names KeyRefresh", err)
		}
		_, err = gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
		if !errors.Is(err, gcpjwt.ErrInvalidConfig) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
			t.Errorf("KMSVerifyKeyfunc: %v, want ErrInvalidConfig alone", err)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want 0", got)
	}
}

// What a Keyfunc of an asymmetric key refuses, and at no cost: each alg but the
// key's own (B10).
func TestKMSKeyfuncRefusesOtherAlgorithms(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := kmsCreate(t, server, kmsPKCS2048)
	text := sign(t, kmsContext(t.Context(), client, version), gcpjwt.SigningMethodKMSRS256, nil)
	keyfuncs := map[string]jwt.Keyfunc{
		"version":   kmsKeyfunc(t, t.Context(), client, version),
		"CryptoKey": kmsKeyfunc(t, t.Context(), client, cryptoKeyOf(version)),
	}
	payload := strings.Split(text, ".")[1]
	server.ResetCalls()
	for name, keyfunc := range keyfuncs {
		for _, alg := range []string{
			"none", "rs256", "RS512", "RS384", "PS256", "ES256", "EdDSA", "HS256", "ML-DSA-44",
			"KMSPS256", "KMSRS512", "KMSHS256", "AppEngine2",
		} {
			for _, kid := range []string{"", gcpjwt.KMSKeyID(version)} {
				t.Run(fmt.Sprintf("B10/%s/%s/kid=%t", name, alg, kid != ""), func(t *testing.T) {
					header := map[string]string{"alg": alg, "typ": "JWT"}
					if kid != "" {
						header["kid"] = kid
					}
					raw, err := json.Marshal(header)
					if err != nil {
						t.Fatal(err)
					}
					signingString := base64.RawURLEncoding.EncodeToString(raw) + "." + payload
					sum := sha256.Sum256([]byte(signingString)) // any signature at all
					_, err = jwt.Parse(signingString+"."+base64.RawURLEncoding.EncodeToString(sum[:]), keyfunc)
					if !errors.Is(err, jwt.ErrTokenUnverifiable) {
						t.Errorf("jwt.Parse: %v, want ErrTokenUnverifiable", err)
					}
					if errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Errorf("jwt.Parse: %v, which blames Cloud KMS", err)
					}
				})
			}
		}
	}
	// A method of somebody else's under a name of jwt's, with its own idea of Verify.
	for name, keyfunc := range keyfuncs {
		key, err := keyfunc(&jwt.Token{Method: kmsForeignMethod{}, Header: map[string]any{"alg": "RS256"}})
		if key != nil || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
			t.Errorf("B10/%s: a foreign method gets the key %v, %v, want ErrAlgorithmMismatch", name, key, err)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("B10: %d calls, want 0", got)
	}
}

// kmsForeignMethod is a signing method of another library.
type kmsForeignMethod struct{}

func (kmsForeignMethod) Alg() string                      { return "RS256" }
func (kmsForeignMethod) Sign(string, any) ([]byte, error) { return nil, nil }
func (kmsForeignMethod) Verify(string, []byte, any) error { return nil }
