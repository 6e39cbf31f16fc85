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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

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
	for _, row := range systest.Rows {
		t.Run(row.Algorithm.String(), func(t *testing.T) {
			server, client := start.KMS(t)
			version := systest.Create(t, server, row.Algorithm)
			ctx := systest.KMSContext(t.Context(), client, version)
			pinned := systest.KMSKeyfunc(t, t.Context(), client, version)
			rotating := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(version))

			check := func(t *testing.T, text, alg string, kid any) {
				t.Helper()
				want := map[string]any{"alg": alg, "typ": "JWT"}
				if kid != nil {
					want["kid"] = kid
				}
				if diff := cmp.Diff(want, systest.Header(t, text)); diff != "" {
					t.Errorf("header (-want +got):\n%s", diff)
				}
				signingString, sig := systest.Split(t, text)
				if len(sig) != row.Size {
					t.Errorf("the signature has %d bytes, want %d", len(sig), row.Size)
				}
				if err := systest.VerifyBare(t.Context(), row, server, client, version, signingString, sig); err != nil {
					t.Errorf("verifying without gcpjwt: %v", err)
				}
				if err := systest.VerifyBare(t.Context(), row, server, client, version, signingString+"x", sig); err == nil {
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
				if got := row.Method.Alg(); got != alg {
					t.Errorf("Alg = %q, want %q", got, alg)
				}
				if got := jwt.GetSigningMethod(alg); got != jwt.SigningMethod(row.Method) {
					t.Errorf("jwt.GetSigningMethod(%q) = %v, want the method", alg, got)
				}
				check(t, systest.Sign(t, ctx, row.Method, nil), row.Alg, kid)

				token := jwt.NewWithClaims(row.Method, jwt.MapClaims{"sub": "somebody"})
				text, err := token.SignedString(ctx)
				if err != nil {
					t.Fatalf("token.SignedString: %v", err)
				}
				check(t, text, alg, nil)
			}

			t.Run("as imported", func(t *testing.T) { both(t, row.Alias) })
			t.Run("overridden", func(t *testing.T) {
				kmsOverride(t, row.Method)
				both(t, row.Alg)
			})
			t.Run("kid of the caller", func(t *testing.T) {
				token := jwt.New(row.Method)
				token.Header["kid"] = "mine"
				text, err := gcpjwt.SignedString(ctx, token)
				if err != nil {
					t.Fatalf("SignedString: %v", err)
				}
				if got := systest.Header(t, text)["kid"]; got != "mine" {
					t.Errorf("kid = %v, want the caller's", got)
				}
			})

			wantHash := row.Digest
			if row.IsMAC() {
				wantHash = map[string]crypto.Hash{"HS256": crypto.SHA256, "HS384": crypto.SHA384, "HS512": crypto.SHA512}[row.Alg]
			}
			if got := row.Method.Hash(); got != wantHash {
				t.Errorf("Hash = %v, want %v", got, wantHash)
			}
		})
	}
}

// jwt's own parser, told the public key only, takes the tokens.
func TestKMSTokensWithStockJWT(t *testing.T) {
	t.Parallel()
	for _, row := range systest.Rows {
		if row.IsMAC() {
			continue // MacVerify above is all there is
		}
		t.Run(row.Algorithm.String(), func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := systest.Create(t, server, row.Algorithm)
			text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), row.Method, jwt.MapClaims{"sub": "süße <&>"})
			token, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return server.PublicKey(version), nil },
				jwt.WithValidMethods([]string{row.Alg}), jwt.WithStrictDecoding())
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

// B01: r and s have a fixed width, however many leading zero bytes they have.
func TestKMSShortECDSAIntegers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		algorithm systest.Algorithm
		curve     ecdh.Curve
		params    *elliptic.CurveParams
		nonces    []ecdsaNonce
	}{
		{systest.P256, ecdh.P256(), elliptic.P256().Params(), []ecdsaNonce{{1, 0}, {379, 1}, {40393, 2}}},
		{systest.P384, ecdh.P384(), elliptic.P384().Params(), []ecdsaNonce{{1, 0}, {197, 1}, {14971, 2}}},
	}
	for _, tt := range tests {
		row := systest.RowOf(tt.algorithm)
		half := row.Size / 2
		for _, nonce := range tt.nonces {
			// 7f is a DER integer as it is, 80 takes a zero byte in front.
			for _, first := range []byte{0x7f, 0x80} {
				for zeros := range 3 {
					t.Run(fmt.Sprintf("B01/%s/r%d/s%d/%02x", row.Alg, nonce.zeros, zeros, first), func(t *testing.T) {
						t.Parallel()
						s := bytes.Repeat([]byte{first}, half)
						clear(s[:zeros])
						var public *ecdsa.PublicKey
						server, client := start.KMS(t)
						version := systest.Create(t, server, tt.algorithm)
						server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
							resp, err := next(ctx, req)
							if resp, ok := resp.(*kmspb.AsymmetricSignResponse); ok {
								digest := req.(*kmspb.AsymmetricSignRequest).Digest
								var r []byte
								public, r = kmsCraft(t, tt.curve, tt.params, nonce.k, s, append(digest.GetSha256(), digest.GetSha384()...))
								if got := half - len(bytes.TrimLeft(r, "\x00")); got != nonce.zeros {
									t.Errorf("r has %d leading zero bytes, the test needs %d", got, nonce.zeros)
								}
								resp.Signature = systest.DER(r, s)
								resp.SignatureCrc32C = testutil.Checksum(resp.Signature)
							}
							return resp, err
						})
						text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), row.Method, nil)
						signingString, sig := systest.Split(t, text)
						if len(sig) != row.Size {
							t.Errorf("the signature has %d bytes, want %d", len(sig), row.Size)
						}
						if !bytes.Equal(sig[len(sig)-half:], s) {
							t.Errorf("s = %x, want %x", sig[len(sig)-half:], s)
						}
						stock := map[string]jwt.SigningMethod{"ES256": jwt.SigningMethodES256, "ES384": jwt.SigningMethodES384}[row.Alg]
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
	for _, row := range systest.Rows {
		t.Run("B03/"+row.Algorithm.String(), func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := systest.Create(t, server, row.Algorithm)
			var (
				mu   sync.Mutex
				seen []proto.Message
			)
			server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				if method == row.SignRPC() {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, proto.Clone(req))
				}
				return next(ctx, req)
			})
			text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), row.Method, jwt.MapClaims{"sub": "ü<&>", "n": 1})
			signingString := text[:strings.LastIndexByte(text, '.')]

			var want proto.Message
			switch {
			case row.IsMAC():
				want = &kmspb.MacSignRequest{Name: version, Data: []byte(signingString), DataCrc32C: testutil.Checksum([]byte(signingString))}
			case row.Digest == 0:
				want = &kmspb.AsymmetricSignRequest{Name: version, Data: []byte(signingString), DataCrc32C: testutil.Checksum([]byte(signingString))}
			default:
				h := row.Digest.New()
				h.Write([]byte(signingString))
				sum := h.Sum(nil)
				digest := map[crypto.Hash]*kmspb.Digest{
					crypto.SHA256: {Digest: &kmspb.Digest_Sha256{Sha256: sum}},
					crypto.SHA384: {Digest: &kmspb.Digest_Sha384{Sha384: sum}},
					crypto.SHA512: {Digest: &kmspb.Digest_Sha512{Sha512: sum}},
				}[row.Digest]
				want = &kmspb.AsymmetricSignRequest{Name: version, Digest: digest, DigestCrc32C: testutil.Checksum(sum)}
			}
			if len(seen) != 1 || !proto.Equal(seen[0], want) {
				t.Errorf("%s got %v, want %v", row.SignRPC(), seen, want)
			}
		})
	}
}

// B03: base64url without padding.
func TestKMSSignatureEncoding(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []systest.Algorithm{systest.Ed25519, systest.HMAC256} {
		row := systest.RowOf(algorithm)
		t.Run("B03/"+row.Alg, func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := systest.Create(t, server, algorithm)
			odd := append([]byte{0xfb, 0xff, 0xfe}, make([]byte, row.Size-3)...)
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
			text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), row.Method, nil)
			// 64 and 32 bytes both take padding in padded base64.
			want := "-__-" + strings.Repeat("A", (row.Size*8+5)/6-4)
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
		key    systest.Algorithm
	}{
		{gcpjwt.SigningMethodKMSRS256, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512},
		{gcpjwt.SigningMethodKMSRS256, systest.P384},
		// These two are signed without complaint by Cloud KMS, and verified by nobody.
		{gcpjwt.SigningMethodKMSRS256, systest.PSS2048},
		{gcpjwt.SigningMethodKMSPS256, systest.PKCS2048},
		{gcpjwt.SigningMethodKMSRS512, kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512},
		{gcpjwt.SigningMethodKMSRS512, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256},
		{gcpjwt.SigningMethodKMSPS512, kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256},
		{gcpjwt.SigningMethodKMSES256, systest.P384},
		{gcpjwt.SigningMethodKMSES384, systest.P256},
		{gcpjwt.SigningMethodKMSES256, systest.PKCS2048},
		{gcpjwt.SigningMethodKMSEdDSA, systest.P256},
		{gcpjwt.SigningMethodKMSEdDSA, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44},
		{gcpjwt.SigningMethodKMSMLDSA44, systest.Ed25519},
		{gcpjwt.SigningMethodKMSMLDSA44, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65},
		{gcpjwt.SigningMethodKMSMLDSA87, kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65},
	}
	for _, tt := range tests {
		for _, rotating := range []bool{false, true} {
			t.Run(fmt.Sprintf("B04/%s on %s/rotating=%t", tt.method.Alg(), tt.key, rotating), func(t *testing.T) {
				t.Parallel()
				server, client := start.KMS(t)
				path := systest.Create(t, server, tt.key)
				if rotating {
					path = systest.CryptoKeyOf(path)
				}
				ctx := systest.KMSContext(t.Context(), client, path)
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
		key    systest.Algorithm
		code   codes.Code // or else ErrAlgorithmMismatch
	}{
		{gcpjwt.SigningMethodKMSRS256, systest.HMAC256, codes.FailedPrecondition},
		{gcpjwt.SigningMethodKMSRS256, kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION, codes.FailedPrecondition},
		{gcpjwt.SigningMethodKMSHS256, systest.PKCS2048, codes.FailedPrecondition},
		{gcpjwt.SigningMethodKMSHS256, kmspb.CryptoKeyVersion_HMAC_SHA512, codes.OK},
		{gcpjwt.SigningMethodKMSHS384, systest.HMAC256, codes.OK},
		{gcpjwt.SigningMethodKMSHS512, kmspb.CryptoKeyVersion_HMAC_SHA384, codes.OK},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s on %s", tt.method.Alg(), tt.key), func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := systest.Create(t, server, tt.key)
			text, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), client, version), jwt.New(tt.method))
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
	version := systest.Create(t, server, systest.P256)
	public := server.PublicKey(version)
	one := func(path string) {
		ctx := systest.KMSContext(t.Context(), client, path)
		signingString, sig := systest.Split(t, systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil))
		if err := jwt.SigningMethodES256.Verify(signingString, sig, public); err != nil {
			t.Fatalf("stock jwt: %v", err)
		}
		if _, err := jwt.Parse(signingString+"."+base64.RawURLEncoding.EncodeToString(sig), systest.KMSKeyfunc(t, t.Context(), client, path)); err != nil {
			t.Fatalf("jwt.Parse: %v", err)
		}
	}
	one(version) // connects
	before := runtime.NumGoroutine()
	for i := range 300 {
		one([]string{version, systest.CryptoKeyOf(version)}[i%2])
	}
	// A stream's goroutines take a moment to end. Those that stay, stay.
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() >= before+5; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("B07: %d goroutines after 300 signatures, %d before", runtime.NumGoroutine(), before)
		}
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
	for _, algorithm := range []systest.Algorithm{
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256,
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256,
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256,
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512,
	} {
		t.Run("B08/"+algorithm.String(), func(t *testing.T) {
			t.Parallel()
			row := systest.RowOf(algorithm)
			server, client := start.KMS(t)
			version := systest.Create(t, server, algorithm)
			signingString, sig := systest.Split(t, systest.Sign(t, systest.KMSContext(t.Context(), client, version), row.Method, nil))
			h := row.Digest.New()
			h.Write([]byte(signingString))
			want := map[string]int{"PS256": 32, "PS512": 64}[row.Alg]
			err := rsa.VerifyPSS(server.PublicKey(version).(*rsa.PublicKey), row.Digest, h.Sum(nil), sig, &rsa.PSSOptions{SaltLength: want})
			if err != nil {
				t.Errorf("VerifyPSS with a salt of %d bytes: %v", want, err)
			}
		})
	}

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []systest.Row{systest.RowOf(systest.PSS2048), systest.RowOf(kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512)} {
		right := row.Digest.Size()
		for _, salt := range []int{0, 1, 20, 32, 64, 190} {
			h := row.Digest.New()
			h.Write([]byte("header.payload"))
			if maximum := 256 - 2 - h.Size(); salt > maximum {
				salt = maximum
			}
			sig, err := rsa.SignPSS(rand.Reader, key, row.Digest, h.Sum(nil), &rsa.PSSOptions{SaltLength: salt})
			if salt == 0 { // which rsa takes for "as long as possible"
				salt = 256 - 2 - h.Size()
			}
			if err != nil {
				t.Fatal(err)
			}
			err = row.Method.Verify("header.payload", sig, &key.PublicKey)
			if salt == right && err != nil {
				t.Errorf("B08: %s with a salt of %d bytes: %v", row.Alg, salt, err)
			}
			if salt != right && !errors.Is(err, rsa.ErrVerification) {
				t.Errorf("B08: %s with a salt of %d bytes: %v, want rsa.ErrVerification", row.Alg, salt, err)
			}
		}
	}
}

// R02: a signature is one call, and a verification none.
func TestKMSCallsPerToken(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := systest.Create(t, server, systest.P256)
	for range 100 {
		text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSES256, nil)
		if _, err := jwt.Parse(text, systest.KMSKeyfunc(t, t.Context(), client, version)); err != nil {
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
	version := systest.Create(t, server, systest.P256)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			if _, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), client, version), jwt.New(gcpjwt.SigningMethodKMSES256)); err != nil {
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
			version := systest.Create(t, server, systest.P256)
			server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				if method == rpc {
					return nil, status.Error(codes.ResourceExhausted, "Quota exceeded for quota metric 'Asymmetric requests'.")
				}
				return next(ctx, req)
			})
			text, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), client, version), jwt.New(gcpjwt.SigningMethodKMSES256))
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
	first := systest.Create(t, server, systest.P256)
	old := systest.Sign(t, systest.KMSContext(t.Context(), client, first), gcpjwt.SigningMethodKMSES256, nil)
	second, err := server.CreateVersion(systest.CryptoKeyOf(first))
	if err != nil {
		t.Fatal(err)
	}
	server.SetState(first, systest.Destroyed)
	ctx := systest.KMSContext(t.Context(), client, systest.CryptoKeyOf(first))
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(first))
	text := systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)
	if got, want := systest.Header(t, text)["kid"], gcpjwt.KMSKeyID(second); got != want {
		t.Errorf("R03: signed by %v, want version 2", got)
	}
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		t.Errorf("R03: jwt.Parse of a token by version 2: %v", err)
	}
	if _, err := jwt.Parse(old, keyfunc); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
		t.Errorf("R03: jwt.Parse of a token by version 1: %v, want ErrUnknownKeyID", err)
	}

	// All gone. Another client knows nothing of the versions that were.
	server.SetState(second, systest.Destroyed)
	keyfunc, err = gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(first), KMSClient: systest.Client(t, server)})
	if keyfunc != nil || err == nil || !strings.Contains(err.Error(), "no ENABLED version") {
		t.Errorf("R03: KMSVerifyKeyfunc without any ENABLED version: %v, want an error", err)
	}
}

// B20: after a rotation the new key is accepted at the cost of one more read,
// and what that read no longer shows is refused.
func TestKMSRotationSeenByVerifier(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	a := systest.Create(t, server, systest.P256)
	byA := systest.Sign(t, systest.KMSContext(t.Context(), client, a), gcpjwt.SigningMethodKMSES256, nil)
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(a))
	if _, err := jwt.Parse(byA, keyfunc); err != nil {
		t.Fatalf("B20: jwt.Parse of a token by A: %v", err)
	}
	b, err := server.CreateVersion(systest.CryptoKeyOf(a))
	if err != nil {
		t.Fatal(err)
	}
	byB := systest.Sign(t, systest.KMSContext(t.Context(), client, b), gcpjwt.SigningMethodKMSES256, nil)
	server.SetState(a, systest.Disabled)
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
	version := systest.Create(t, server, systest.Ed25519)
	config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client}
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
	if want := (gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client}); *config != want {
		t.Errorf("R06: the configuration became %+v", *config)
	}
}

// A configuration that cannot work is refused before any call.
func TestKMSNegativeKeyRefresh(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := systest.Create(t, server, systest.P256)
	for _, path := range []string{version, systest.CryptoKeyOf(version)} {
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
	version := systest.Create(t, server, systest.PKCS2048)
	text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSRS256, nil)
	keyfuncs := map[string]jwt.Keyfunc{
		"version":   systest.KMSKeyfunc(t, t.Context(), client, version),
		"CryptoKey": systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(version)),
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

// What isn't a context with a configuration is no key, for any of the methods.
func TestKMSWrongKey(t *testing.T) {
	t.Parallel()
	var (
		noContext context.Context
		noConfig  *gcpjwt.KMSConfig
	)
	iamOnly := gcpjwt.NewIAMContext(t.Context(), &gcpjwt.IAMConfig{ServiceAccount: account})
	tests := []struct {
		name string
		key  any
		want error
	}{
		{"nil", nil, jwt.ErrInvalidKeyType},
		{"nil context", noContext, jwt.ErrInvalidKeyType},
		{"configuration", &gcpjwt.KMSConfig{}, jwt.ErrInvalidKeyType},
		{"nil configuration", noConfig, jwt.ErrInvalidKeyType},
		{"string", "projects/p/locations/l/keyRings/r/cryptoKeys/k", jwt.ErrInvalidKeyType},
		{"bytes", []byte("secret"), jwt.ErrInvalidKeyType},
		{"context without configuration", t.Context(), gcpjwt.ErrMissingConfig},
		{"context with a nil configuration", gcpjwt.NewKMSContext(t.Context(), nil), gcpjwt.ErrMissingConfig},
		{"context with a typed nil configuration", gcpjwt.NewKMSContext(t.Context(), noConfig), gcpjwt.ErrMissingConfig},
		{"context of another method", iamOnly, gcpjwt.ErrMissingConfig},
		{"context with an empty configuration", gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{}), gcpjwt.ErrInvalidConfig},
	}
	var methods []*gcpjwt.SigningMethodKMS
	for _, row := range systest.Rows {
		if !slices.Contains(methods, row.Method) {
			methods = append(methods, row.Method)
		}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, method := range methods {
				if sig, err := method.Sign("header.payload", tt.key); sig != nil || !errors.Is(err, tt.want) {
					t.Errorf("%s: Sign = %q, %v, want %v", method.Alg(), sig, err, tt.want)
				}
				if text, err := jwt.New(method).SignedString(tt.key); text != "" || !errors.Is(err, tt.want) {
					t.Errorf("%s: token.SignedString = %q, %v, want %v", method.Alg(), text, err, tt.want)
				}
				if ctx, ok := tt.key.(context.Context); ok {
					if text, err := gcpjwt.SignedString(ctx, jwt.New(method)); text != "" || !errors.Is(err, tt.want) {
						t.Errorf("%s: SignedString = %q, %v, want %v", method.Alg(), text, err, tt.want)
					}
				}
			}
		})
	}

	if keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), nil); keyfunc != nil || !errors.Is(err, gcpjwt.ErrMissingConfig) {
		t.Errorf("KMSVerifyKeyfunc of nil: %v, want ErrMissingConfig", err)
	}
	if config, ok := gcpjwt.KMSFromContext(gcpjwt.NewKMSContext(t.Context(), nil)); ok || config != nil {
		t.Errorf("KMSFromContext of a nil configuration = %v, %t, want none", config, ok)
	}
	config := &gcpjwt.KMSConfig{KeyPath: "k"}
	if got, ok := gcpjwt.KMSFromContext(gcpjwt.NewKMSContext(iamOnly, config)); !ok || got != config {
		t.Errorf("KMSFromContext = %v, %t, want the configuration", got, ok)
	}
}

// What Verify refuses as a key is jwt's to say: never a panic, never a success.
func TestKMSVerifyWrongKey(t *testing.T) {
	t.Parallel()
	for _, row := range systest.Rows {
		for _, key := range []any{nil, "secret", []byte("secret"), (*kms.KeyManagementClient)(nil), big.NewInt(1)} {
			err := row.Method.Verify("header.payload", make([]byte, row.Size), key)
			if !errors.Is(err, jwt.ErrInvalidKeyType) {
				t.Errorf("%s: Verify with a %T: %v, want ErrInvalidKeyType", row.Alg, key, err)
			}
		}
	}
}

// What Cloud KMS hashes by itself it takes 64 KiB of. More is refused before
// the call, in words that help.
func TestKMSDataLimit(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	for _, row := range systest.Rows {
		if row.Algorithm != systest.P256 && row.Digest != 0 {
			continue // one that takes a digest will do
		}
		t.Run(row.Alg, func(t *testing.T) {
			t.Parallel()
			server, client := start.KMS(t)
			version := systest.Create(t, server, row.Algorithm)
			ctx := systest.KMSContext(t.Context(), client, version)

			atLimit := strings.Repeat("a", limit)
			sig, err := row.Method.Sign(atLimit, ctx)
			if err != nil {
				t.Fatalf("Sign of %d bytes: %v", limit, err)
			}
			if err := systest.VerifyBare(t.Context(), row, server, client, version, atLimit, sig); err != nil {
				t.Errorf("verifying %d bytes: %v", limit, err)
			}

			server.ResetCalls()
			sig, err = row.Method.Sign(atLimit+"a", ctx)
			text, textErr := gcpjwt.SignedString(ctx, jwt.NewWithClaims(row.Method, jwt.MapClaims{"sub": atLimit}))
			if row.Digest != 0 {
				if err != nil || textErr != nil {
					t.Errorf("a digest has no limit, but: %v, %v", err, textErr)
				}
				return
			}
			if sig != nil || text != "" || err == nil || textErr == nil {
				t.Fatalf("beyond the limit: Sign returned %d bytes, %v; SignedString %d bytes, %v", len(sig), err, len(text), textErr)
			}
			for _, want := range []string{"65536", "65537", "claims"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %q, want it to say %s", err, want)
				}
			}
			if got := server.Calls(""); got != 0 {
				t.Errorf("%d calls, want 0", got)
			}
		})
	}
}
