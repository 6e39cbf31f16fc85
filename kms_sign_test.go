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
	"crypto/sha3"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"filippo.io/mldsa/mldsacrypto"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/plain"
)

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
						server, client := systest.StartKMS(t)
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
		t.Run("B03/"+row.String(), func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
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
				var sum []byte
				if key, ok := server.PublicKey(version).(*mldsa.PublicKey); ok {
					sum = kmsMu(key, signingString)
				} else {
					h := row.Digest.New()
					h.Write([]byte(signingString))
					sum = h.Sum(nil)
				}
				digest := map[crypto.Hash]*kmspb.Digest{
					crypto.SHA256: {Digest: &kmspb.Digest_Sha256{Sha256: sum}},
					crypto.SHA384: {Digest: &kmspb.Digest_Sha384{Sha384: sum}},
					crypto.SHA512: {Digest: &kmspb.Digest_Sha512{Sha512: sum}},

					mldsacrypto.MLDSAMu: {Digest: &kmspb.Digest_ExternalMu{ExternalMu: sum}},
				}[row.Digest]
				want = &kmspb.AsymmetricSignRequest{Name: version, Digest: digest, DigestCrc32C: testutil.Checksum(sum)}
			}
			if len(seen) != 1 || !proto.Equal(seen[0], want) {
				t.Errorf("%s got %v, want %v", row.SignRPC(), seen, want)
			}
		})
	}
}

// kmsMu is the message representative of FIPS 204, algorithm 7, for an empty context.
func kmsMu(key *mldsa.PublicKey, text string) []byte {
	input := append(sha3.SumSHAKE256(key.Bytes(), 64), 0, 0)
	return sha3.SumSHAKE256(append(input, text...), 64)
}

// B03: base64url without padding.
func TestKMSSignatureEncoding(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []systest.Algorithm{systest.Ed25519, systest.HMAC256} {
		row := systest.RowOf(algorithm)
		t.Run("B03/"+row.Alg, func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
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

// B07: however many signatures, one connection and no goroutine of its own, and
// the client stays open. Not parallel, as it counts goroutines.
func TestKMSManySignaturesOneConnection(t *testing.T) {
	server, client := systest.StartKMS(t)
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
			server, client := systest.StartKMS(t)
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

// C05: r and s of an answer are in [1, n-1], or it isn't one. The nearest to it are n itself
// and all bits set.
func TestKMSSignatureOutOfRange(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []systest.Algorithm{systest.P256, systest.P384, kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256} {
		row := systest.RowOf(algorithm)
		n := map[string]*big.Int{
			"ES256": elliptic.P256().Params().N, "ES384": elliptic.P384().Params().N, "ES256K": plain.OrderOfSecp256k1(),
		}[row.Alg]
		ones := bytes.Repeat([]byte{0xff}, row.Size/2)
		plus := func(i int64) []byte { return new(big.Int).Add(n, big.NewInt(i)).Bytes() }
		for name, tt := range map[string]struct {
			r, s []byte
			good bool
		}{
			"largest": {plus(-1), plus(-1), true}, "smallest": {[]byte{1}, []byte{1}, true},
			"r is n": {plus(0), []byte{1}, false}, "s is n": {[]byte{1}, plus(0), false},
			"r is n+1": {plus(1), []byte{1}, false}, "s is n+1": {[]byte{1}, plus(1), false},
			"r is all ones": {ones, []byte{1}, false}, "s is all ones": {[]byte{1}, ones, false},
			"r is 0": {[]byte{0}, []byte{1}, false}, "s is 0": {[]byte{1}, []byte{0}, false},
		} {
			t.Run("C05/"+row.Alg+"/"+name, func(t *testing.T) {
				t.Parallel()
				server, client := systest.StartKMS(t)
				version := systest.Create(t, server, algorithm)
				server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
					resp, err := next(ctx, req)
					if resp, ok := resp.(*kmspb.AsymmetricSignResponse); ok {
						resp.Signature = systest.DER(tt.r, tt.s)
						resp.SignatureCrc32C = testutil.Checksum(resp.Signature)
					}
					return resp, err
				})
				_, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), client, version), jwt.New(row.Method))
				if tt.good != (err == nil) || !tt.good && !errors.Is(err, gcpjwt.ErrIntegrity) {
					t.Errorf("SignedString: %v, want ErrIntegrity unless the signature is good: %t", err, tt.good)
				}
				if got := server.Calls("AsymmetricSign"); !tt.good && got != 3 {
					t.Errorf("AsymmetricSign was called %d times, want 3", got)
				}
			})
		}
	}
}

// An ES256K token has the lower s, whichever Cloud KMS makes, and both are accepted.
func TestKMSES256KForms(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		server, _ := systest.StartKMS(t)
		version := systest.Create(t, server, kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256)
		order := plain.OrderOfSecp256k1()
		half := new(big.Int).Rsh(order, 1)
		made := make(map[bool]int) // by whether s is high
		var mu sync.Mutex
		server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			resp, err := next(ctx, req)
			if resp, ok := resp.(*kmspb.AsymmetricSignResponse); ok {
				var signature struct{ R, S *big.Int }
				if _, err := asn1.Unmarshal(resp.Signature, &signature); err != nil {
					t.Error(err)
					return nil, err
				}
				mu.Lock()
				defer mu.Unlock()
				if high := len(made) == 1 && made[false] > 0; high != (signature.S.Cmp(half) > 0) {
					signature.S.Sub(order, signature.S) // so that the first is low and the second high
				}
				made[signature.S.Cmp(half) > 0]++
				resp.Signature = systest.DER(signature.R.Bytes(), signature.S.Bytes())
				resp.SignatureCrc32C = testutil.Checksum(resp.Signature)
			}
			return resp, err
		})
		client := connect(t, server)
		for _, path := range []string{version, systest.CryptoKeyOf(version)} {
			clear(made)
			keyfunc := systest.KMSKeyfunc(t, t.Context(), client, path)
			for range 2 {
				text := systest.Sign(t, systest.KMSContext(t.Context(), client, path), gcpjwt.SigningMethodKMSES256K, nil)
				signingString, sig := systest.Split(t, text)
				s := new(big.Int).SetBytes(sig[32:])
				if s.Cmp(half) > 0 {
					t.Errorf("s is %x, want the lower one", s)
				}
				high := append(bytes.Clone(sig[:32]), new(big.Int).Sub(order, s).FillBytes(make([]byte, 32))...)
				for _, sig := range [][]byte{sig, high} {
					text := signingString + "." + base64.RawURLEncoding.EncodeToString(sig)
					if _, err := jwt.Parse(text, keyfunc); err != nil {
						t.Errorf("jwt.Parse with s %x: %v", sig[32:], err)
					}
				}
			}
			if made[false] != 1 || made[true] != 1 {
				t.Errorf("Cloud KMS made %v, the test needs one of each", made)
			}
		}
	})
}

// C13: keys outside of Google take data instead of a digest, which the public key or the list
// tells. Keys in an HSM are as those in software.
func TestKMSProtectionLevels(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for level, external := range map[kmspb.ProtectionLevel]bool{
			kmspb.ProtectionLevel_SOFTWARE: false, kmspb.ProtectionLevel_HSM: false, kmspb.ProtectionLevel_HSM_SINGLE_TENANT: false,
			kmspb.ProtectionLevel_EXTERNAL: true, kmspb.ProtectionLevel_EXTERNAL_VPC: true,
		} {
			for _, algorithm := range []systest.Algorithm{systest.P256, systest.P384, systest.PKCS2048, systest.PSS2048, systest.Ed25519} {
				row := systest.RowOf(algorithm)
				t.Run(fmt.Sprintf("C13/%s/%s", level, row.Alg), func(t *testing.T) {
					t.Parallel()
					server, _ := systest.StartKMS(t)
					version, err := server.CreateKey("signer", algorithm, level)
					if err != nil {
						t.Fatal(err)
					}
					var data atomic.Int32
					server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
						if req, ok := req.(*kmspb.AsymmetricSignRequest); ok && req.Digest == nil {
							data.Add(1)
						}
						return next(ctx, req)
					})
					for _, path := range []string{version, systest.CryptoKeyOf(version)} {
						client := connect(t, server)
						config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client}
						if err := kmsSignAndVerify(t.Context(), config, row); err != nil {
							t.Fatalf("%s: %v", path, err)
						}
						signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
						if err != nil {
							t.Fatal(err)
						}
						server.ResetCalls()
						data.Store(0)
						const tokens = 10
						for range tokens / 2 {
							text := systest.Sign(t, gcpjwt.NewKMSContext(t.Context(), config), row.Method, nil)
							other, err := signer.Sign(t.Context(), jwt.MapClaims{})
							if err != nil {
								t.Fatal(err)
							}
							for _, text := range []string{text, other} {
								if err := systest.Check(row, server, version, text); err != nil {
									t.Error(err)
								}
							}
						}
						if got := server.Calls(""); got != tokens {
							t.Errorf("%s: %d calls for %d tokens, want no other", path, got, tokens)
						}
						server.ResetCalls()
						if got := data.Load(); external != (got > 0) && row.Digest != 0 {
							t.Errorf("%s: %d requests held data", path, got)
						}
						if external && path == version && row.Digest != 0 {
							server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
							_, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), connect(t, server), path), jwt.New(row.Method))
							if err == nil || !strings.Contains(err.Error(), "roles/cloudkms.publicKeyViewer") {
								t.Errorf("SignedString without the public key: %v, want an error that names the role", err)
							}
							server.Allow("cloudkms.cryptoKeyVersions.viewPublicKey")
							server.ResetCalls()
						}

						// Data has a limit, which the library states before Cloud KMS does.
						_, err = row.Method.Sign(strings.Repeat("a", 64<<10+1), gcpjwt.NewKMSContext(t.Context(), config))
						if limited := external || row.Digest == 0; limited != (err != nil) || server.Calls("") != map[bool]int{false: 1}[limited] {
							t.Errorf("%s: Sign of more than 64 KiB: %v", path, err)
						}
					}
				})
			}
		}
	})
}

// A token of a key that takes ML-DSA's mu is what a plain key would make of it, may be longer
// than Cloud KMS takes of data, and costs one call. The public key has to be readable.
func TestKMSExternalMu(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		for _, row := range systest.Rows {
			if row.Digest != mldsacrypto.MLDSAMu {
				continue
			}
			t.Run(row.Alg, func(t *testing.T) {
				t.Parallel()
				server, _ := systest.StartKMS(t)
				version := systest.Create(t, server, row.Algorithm)
				for _, path := range []string{version, systest.CryptoKeyOf(version)} {
					config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: connect(t, server)}
					signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := signer.Sign(t.Context(), jwt.MapClaims{}); err != nil {
						t.Fatal(err)
					}
					server.ResetCalls()
					text, err := signer.Sign(t.Context(), jwt.MapClaims{"sub": strings.Repeat("a", 200<<10)})
					if err != nil {
						t.Fatal(err)
					}
					if err := systest.Check(row, server, version, text); err != nil {
						t.Error(err)
					}
					if _, err := jwt.Parse(text, signer.Keyfunc); err != nil {
						t.Errorf("jwt.Parse: %v", err)
					}
					if got := server.Calls(""); got != 1 {
						t.Errorf("%d calls for a token, want 1", got)
					}

					server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
					other := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: connect(t, server)}
					_, err = gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), other), jwt.New(row.Method))
					if err == nil || !strings.Contains(err.Error(), "roles/cloudkms.publicKeyViewer") {
						t.Errorf("SignedString without the public key: %v, want an error that names the role", err)
					}
					server.Allow("cloudkms.cryptoKeyVersions.viewPublicKey")
				}
			})
		}
	})
}

// What Cloud KMS hashes by itself it takes 64 KiB of. More is refused before
// the call, in words that help.
func TestKMSDataLimit(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	for _, row := range systest.Rows {
		if row.Algorithm != systest.P256 && row.Digest != 0 && row.Digest != mldsacrypto.MLDSAMu {
			continue // one that takes a digest will do
		}
		t.Run(row.String(), func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
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
