package testutil_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	mldsax509 "filippo.io/mldsa/x509"
	"google.golang.org/protobuf/proto"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// verify checks a signature with the hash, 0 if the data itself was signed.
func verify(pub crypto.PublicKey, hash crypto.Hash, pss bool, data, sig []byte) error {
	digest := data
	if hash != 0 {
		h := hash.New()
		h.Write(data)
		digest = h.Sum(nil)
	}
	ok := false
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		if pss {
			return rsa.VerifyPSS(pub, hash, digest, sig, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
		}
		return rsa.VerifyPKCS1v15(pub, hash, digest, sig)
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(pub, digest, sig)
	case ed25519.PublicKey:
		ok = ed25519.Verify(pub, data, sig)
	case *mldsa.PublicKey:
		return mldsa.Verify(pub, data, sig, nil)
	}
	if !ok {
		return fmt.Errorf("bad signature for a %T", pub)
	}
	return nil
}

func digestOf(hash crypto.Hash, data []byte) *kmspb.Digest {
	h := hash.New()
	h.Write(data)
	switch sum := h.Sum(nil); hash {
	case crypto.SHA256:
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha256{Sha256: sum}}
	case crypto.SHA384:
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha384{Sha384: sum}}
	default:
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha512{Sha512: sum}}
	}
}

func digestBytes(d *kmspb.Digest) []byte {
	return slices.Concat(d.GetSha256(), d.GetSha384(), d.GetSha512())
}

func TestKMSAsymmetricSign(t *testing.T) { overEach(t, testKMSAsymmetricSign) }

func testKMSAsymmetricSign(t *testing.T, over transport) {
	tests := []struct {
		alg  algorithm
		hash crypto.Hash
		pss  bool
		bits int
	}{
		{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, crypto.SHA256, false, 2048},
		{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256, crypto.SHA256, false, 3072},
		{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256, crypto.SHA256, false, 4096},
		{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512, crypto.SHA512, false, 4096},
		{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256, crypto.SHA256, true, 2048},
		{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256, crypto.SHA256, true, 3072},
		{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256, crypto.SHA256, true, 4096},
		{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512, crypto.SHA512, true, 4096},
		{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, crypto.SHA256, false, 256},
		{kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, crypto.SHA384, false, 384},
		{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, 0, false, 0},
		{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44, 0, false, mldsa.MLDSA44PublicKeySize},
		{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65, 0, false, mldsa.MLDSA65PublicKeySize},
		{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87, 0, false, mldsa.MLDSA87PublicKeySize},
	}
	for _, tt := range tests {
		t.Run(tt.alg.String(), func(t *testing.T) {
			s, client := over.newKMS(t)
			_, version := createKey(t, s, "k", tt.alg)
			pub := fetchKey(t, client, version, tt.alg)
			if eq, ok := pub.(interface{ Equal(crypto.PublicKey) bool }); !ok || !eq.Equal(s.PublicKey(version)) {
				t.Errorf("GetPublicKey returned %v, PublicKey %v", pub, s.PublicKey(version))
			}
			if got := keySize(pub); got != tt.bits {
				t.Errorf("key size = %d, want %d", got, tt.bits)
			}

			data := []byte("header.payload")
			requests := map[string]*kmspb.AsymmetricSignRequest{
				"data":              {Name: version, Data: data, DataCrc32C: testutil.Checksum(data)},
				"data, no checksum": {Name: version, Data: data},
			}
			if tt.hash != 0 {
				d := digestOf(tt.hash, data)
				requests["digest"] = &kmspb.AsymmetricSignRequest{Name: version, Digest: d, DigestCrc32C: testutil.Checksum(digestBytes(d))}
				requests["digest, no checksum"] = &kmspb.AsymmetricSignRequest{Name: version, Digest: d}
			}
			for name, req := range requests {
				resp, err := client.AsymmetricSign(t.Context(), req)
				if err != nil {
					t.Fatalf("%s: AsymmetricSign: %v", name, err)
				}
				if err := verify(pub, tt.hash, tt.pss, data, resp.Signature); err != nil {
					t.Errorf("%s: signature doesn't verify: %v", name, err)
				}
				want := &kmspb.AsymmetricSignResponse{
					Name:                 version,
					Signature:            resp.Signature,
					SignatureCrc32C:      testutil.Checksum(resp.Signature),
					VerifiedDataCrc32C:   req.DataCrc32C != nil,
					VerifiedDigestCrc32C: req.DigestCrc32C != nil,
					ProtectionLevel:      kmspb.ProtectionLevel_SOFTWARE,
				}
				if !proto.Equal(resp, want) {
					t.Errorf("%s: response = %v, want %v", name, resp, want)
				}
			}
		})
	}
}

// fetchKey reads a public key in every format that its algorithm has.
func fetchKey(t *testing.T, client *kms.KeyManagementClient, version string, alg algorithm) crypto.PublicKey {
	t.Helper()
	formats := []kmspb.PublicKey_PublicKeyFormat{kmspb.PublicKey_PUBLIC_KEY_FORMAT_UNSPECIFIED, kmspb.PublicKey_PEM, kmspb.PublicKey_DER}
	if strings.HasPrefix(alg.String(), "PQ_") {
		formats = []kmspb.PublicKey_PublicKeyFormat{kmspb.PublicKey_PEM, kmspb.PublicKey_NIST_PQC}
	}
	var first crypto.PublicKey
	for _, format := range formats {
		resp, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version, PublicKeyFormat: format})
		if err != nil {
			t.Fatalf("GetPublicKey(%v): %v", format, err)
		}
		data := resp.GetPublicKey().GetData()
		want := &kmspb.PublicKey{Name: version, Algorithm: alg, ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE, PublicKeyFormat: format}
		if format == kmspb.PublicKey_PUBLIC_KEY_FORMAT_UNSPECIFIED {
			data = []byte(resp.Pem)
			want.Pem, want.PemCrc32C = resp.Pem, testutil.Checksum(data)
		} else {
			want.PublicKey = &kmspb.ChecksummedData{Data: data, Crc32CChecksum: testutil.Checksum(data)}
		}
		if !proto.Equal(resp, want) {
			t.Errorf("GetPublicKey(%v) = %v, want %v", format, resp, want)
		}

		if format == kmspb.PublicKey_NIST_PQC {
			if raw := first.(*mldsa.PublicKey).Bytes(); !bytes.Equal(data, raw) {
				t.Error("NIST_PQC holds another key than PEM")
			}
			continue
		}
		if format != kmspb.PublicKey_DER {
			block, rest := pem.Decode(data)
			if block == nil || len(rest) > 0 || block.Type != "PUBLIC KEY" {
				t.Fatalf("GetPublicKey(%v) returned bad PEM %q", format, data)
			}
			data = block.Bytes
		}
		pub, err := mldsax509.ParsePKIXPublicKey(data)
		if err != nil {
			t.Fatalf("GetPublicKey(%v): parsing: %v", format, err)
		}
		if first == nil {
			first = pub
		} else if !first.(interface{ Equal(crypto.PublicKey) bool }).Equal(pub) {
			t.Errorf("GetPublicKey(%v) returned another key", format)
		}
	}
	return first
}

func keySize(pub crypto.PublicKey) int {
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		return pub.N.BitLen()
	case *ecdsa.PublicKey:
		return pub.Curve.Params().BitSize
	case *mldsa.PublicKey:
		return len(pub.Bytes())
	}
	return 0
}

func TestKMSMac(t *testing.T) { overEach(t, testKMSMac) }

func testKMSMac(t *testing.T, over transport) {
	tests := []struct {
		alg  algorithm
		size int
	}{
		{kmspb.CryptoKeyVersion_HMAC_SHA256, sha256.Size},
		{kmspb.CryptoKeyVersion_HMAC_SHA384, sha512.Size384},
		{kmspb.CryptoKeyVersion_HMAC_SHA512, sha512.Size},
	}
	for _, tt := range tests {
		t.Run(tt.alg.String(), func(t *testing.T) {
			s, client := over.newKMS(t)
			_, version := createKey(t, s, "k", tt.alg)
			if pub := s.PublicKey(version); pub != nil {
				t.Errorf("PublicKey = %v, want nil", pub)
			}
			data := []byte("header.payload")
			signed, err := client.MacSign(t.Context(), &kmspb.MacSignRequest{Name: version, Data: data, DataCrc32C: testutil.Checksum(data)})
			if err != nil {
				t.Fatalf("MacSign: %v", err)
			}
			if len(signed.Mac) != tt.size {
				t.Errorf("MAC has %d bytes, want %d", len(signed.Mac), tt.size)
			}
			wantSigned := &kmspb.MacSignResponse{Name: version, Mac: signed.Mac, MacCrc32C: testutil.Checksum(signed.Mac),
				VerifiedDataCrc32C: true, ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE}
			if !proto.Equal(signed, wantSigned) {
				t.Errorf("MacSign = %v, want %v", signed, wantSigned)
			}

			for _, checked := range []bool{true, false} {
				for _, mac := range [][]byte{signed.Mac, signed.Mac[1:], bytes.Repeat([]byte{1}, tt.size)} {
					req := &kmspb.MacVerifyRequest{Name: version, Data: data, Mac: mac}
					if checked {
						req.DataCrc32C, req.MacCrc32C = testutil.Checksum(data), testutil.Checksum(mac)
					}
					got, err := client.MacVerify(t.Context(), req)
					if err != nil {
						t.Fatalf("MacVerify: %v", err)
					}
					ok := bytes.Equal(mac, signed.Mac)
					want := &kmspb.MacVerifyResponse{Name: version, Success: ok, VerifiedSuccessIntegrity: ok,
						VerifiedDataCrc32C: checked, VerifiedMacCrc32C: checked, ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE}
					if !proto.Equal(got, want) {
						t.Errorf("MacVerify(%x) = %v, want %v", mac, got, want)
					}
				}
			}
		})
	}
}

func TestChecksum(t *testing.T) {
	// The check value of CRC-32C, which Google's clients compute alike.
	if got := testutil.Checksum([]byte("123456789")).Value; got != 0xe3069283 {
		t.Errorf("Checksum = %#x, want 0xe3069283", got)
	}
}
