package testutil_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/mlkem"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
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
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"google.golang.org/grpc/codes"
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
	case *secp256k1.PublicKey:
		ok = verifySecp256k1(pub, digest, sig)
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
		{kmspb.CryptoKeyVersion_RSA_SIGN_RAW_PKCS1_2048, 0, false, 2048},
		{kmspb.CryptoKeyVersion_RSA_SIGN_RAW_PKCS1_3072, 0, false, 3072},
		{kmspb.CryptoKeyVersion_RSA_SIGN_RAW_PKCS1_4096, 0, false, 4096},
		{testutil.ECSignP224SHA256, crypto.SHA256, false, 224},
		{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, crypto.SHA256, false, 256},
		{kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, crypto.SHA384, false, 384},
		{testutil.ECSignP521SHA512, crypto.SHA512, false, 521},
		{kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256, crypto.SHA256, false, 256},
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
			if !sameKey(pub, s.PublicKey(version)) {
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
					ProtectionLevel:      levelOf(tt.alg),
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
		want := &kmspb.PublicKey{Name: version, Algorithm: alg, ProtectionLevel: levelOf(alg), PublicKeyFormat: format}
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
		pub, err := parseKey(data, alg)
		if err != nil {
			t.Fatalf("GetPublicKey(%v): parsing: %v", format, err)
		}
		if first == nil {
			first = pub
		} else if !sameKey(first, pub) {
			t.Errorf("GetPublicKey(%v) returned another key", format)
		}
	}
	return first
}

// levelOf returns the protection level of a key by default.
func levelOf(alg algorithm) kmspb.ProtectionLevel {
	if alg == kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256 {
		return kmspb.ProtectionLevel_HSM
	}
	return kmspb.ProtectionLevel_SOFTWARE
}

func parseKey(der []byte, alg algorithm) (crypto.PublicKey, error) {
	if alg == kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256 {
		return parseSecp256k1(der)
	}
	return mldsax509.ParsePKIXPublicKey(der)
}

func sameKey(a, b crypto.PublicKey) bool {
	if a, ok := a.(*secp256k1.PublicKey); ok {
		return a.IsEqual(b.(*secp256k1.PublicKey))
	}
	return a.(interface{ Equal(crypto.PublicKey) bool }).Equal(b)
}

func keySize(pub crypto.PublicKey) int {
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		return pub.N.BitLen()
	case *ecdsa.PublicKey:
		return pub.Curve.Params().BitSize
	case *secp256k1.PublicKey:
		return 256
	case *mldsa.PublicKey:
		return len(pub.Bytes())
	}
	return 0
}

// The signatures of a key with external mu are those of plain ML-DSA.
func TestKMSExternalMu(t *testing.T) { overEach(t, testKMSExternalMu) }

func testKMSExternalMu(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	for alg, size := range map[algorithm]int{
		kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44_EXTERNAL_MU: mldsa.MLDSA44PublicKeySize,
		kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65_EXTERNAL_MU: mldsa.MLDSA65PublicKeySize,
		kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87_EXTERNAL_MU: mldsa.MLDSA87PublicKeySize,
	} {
		_, version := createKey(t, s, alg.String(), alg)
		pub := fetchKey(t, client, version, alg)
		if !sameKey(pub, s.PublicKey(version)) || keySize(pub) != size {
			t.Errorf("%v: GetPublicKey returned %v, PublicKey %v", alg, pub, s.PublicKey(version))
		}
		data := []byte("header.payload")
		// FIPS 204, algorithms 2 and 7: mu = H(H(pk, 64) || 0 || 0 || M, 64).
		tr := sha3.SumSHAKE256(pub.(*mldsa.PublicKey).Bytes(), 64)
		mu := sha3.SumSHAKE256(slices.Concat(tr, []byte{0, 0}, data), 64)
		resp, err := client.AsymmetricSign(t.Context(), &kmspb.AsymmetricSignRequest{
			Name:         version,
			Digest:       &kmspb.Digest{Digest: &kmspb.Digest_ExternalMu{ExternalMu: mu}},
			DigestCrc32C: testutil.Checksum(mu),
		})
		if err != nil {
			t.Fatalf("%v: AsymmetricSign: %v", alg, err)
		}
		if err := verify(pub, 0, false, data, resp.Signature); err != nil || !resp.VerifiedDigestCrc32C {
			t.Errorf("%v: %v, verified_digest_crc32c = %t", alg, err, resp.VerifiedDigestCrc32C)
		}
	}
}

// Keys that sign nothing here still show their public keys.
func TestKMSOtherPublicKeys(t *testing.T) { overEach(t, testKMSOtherPublicKeys) }

func testKMSOtherPublicKeys(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	for _, tt := range []struct {
		alg    algorithm
		format kmspb.PublicKey_PublicKeyFormat
		size   int
	}{
		{kmspb.CryptoKeyVersion_PQ_SIGN_SLH_DSA_SHA2_128S, kmspb.PublicKey_NIST_PQC, 32},
		{kmspb.CryptoKeyVersion_PQ_SIGN_HASH_SLH_DSA_SHA2_128S_SHA256, kmspb.PublicKey_NIST_PQC, 32},
		{kmspb.CryptoKeyVersion_ML_KEM_768, kmspb.PublicKey_NIST_PQC, mlkem.EncapsulationKeySize768},
		{kmspb.CryptoKeyVersion_ML_KEM_1024, kmspb.PublicKey_NIST_PQC, mlkem.EncapsulationKeySize1024},
		{kmspb.CryptoKeyVersion_KEM_XWING, kmspb.PublicKey_XWING_RAW_BYTES, mlkem.EncapsulationKeySize768 + 32},
	} {
		key, version := createKey(t, s, tt.alg.String(), tt.alg)
		got, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version, PublicKeyFormat: tt.format})
		if err != nil {
			t.Errorf("%v: %v", tt.alg, err)
		} else if data := got.PublicKey.Data; len(data) != tt.size || got.Algorithm != tt.alg || !bytes.Equal(data, s.PublicKey(version).([]byte)) {
			t.Errorf("%v: got %v with %d bytes, want %d", tt.alg, got, len(data), tt.size)
		}
		listed, err := client.ListCryptoKeyVersions(t.Context(), &kmspb.ListCryptoKeyVersionsRequest{Parent: key}).Next()
		if err != nil || listed.Algorithm != tt.alg {
			t.Errorf("%v is listed as %v, %v", tt.alg, listed, err)
		}
	}
	_, version := createKey(t, s, "oaep", kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_2048_SHA256)
	if pub := fetchKey(t, client, version, kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_2048_SHA256); keySize(pub) != 2048 {
		t.Errorf("RSA_DECRYPT_OAEP_2048_SHA256: got %v", pub)
	}
}

// Every algorithm of the API has keys here.
func TestKMSAlgorithms(t *testing.T) {
	for number, name := range kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm_name {
		if number == 0 {
			continue
		}
		s, client := newKMS(t) // one each, since servers share their RSA keys
		key, version := createKey(t, s, name, algorithm(number))
		got, err := client.GetCryptoKey(t.Context(), &kmspb.GetCryptoKeyRequest{Name: key})
		if err != nil {
			t.Fatal(err)
		}
		purpose := got.Purpose
		asymmetric := purpose == kmspb.CryptoKey_ASYMMETRIC_SIGN || purpose == kmspb.CryptoKey_ASYMMETRIC_DECRYPT || purpose == kmspb.CryptoKey_KEY_ENCAPSULATION
		if has := s.PublicKey(version) != nil; has != asymmetric || purpose == 0 {
			t.Errorf("%s has purpose %v and a public key: %t", name, purpose, has)
		}
		_, err = client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version})
		if code := codeOf(err); !asymmetric && code != codes.FailedPrecondition {
			t.Errorf("GetPublicKey of %s: %v, want FAILED_PRECONDITION", name, err)
		}
	}
}

func TestKMSProtectionLevels(t *testing.T) { overEach(t, testKMSProtectionLevels) }

func testKMSProtectionLevels(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, kmspb.ProtectionLevel_HSM)
	_, mac := createKey(t, s, "m", kmspb.CryptoKeyVersion_HMAC_SHA256)
	data := []byte("header.payload")
	for _, level := range []kmspb.ProtectionLevel{
		kmspb.ProtectionLevel_HSM,
		kmspb.ProtectionLevel_SOFTWARE,
		kmspb.ProtectionLevel_HSM_SINGLE_TENANT,
		kmspb.ProtectionLevel_EXTERNAL,
		kmspb.ProtectionLevel_EXTERNAL_VPC,
	} {
		if level != kmspb.ProtectionLevel_HSM { // it was made with that
			s.SetProtectionLevel(key, level)
		}
		s.SetProtectionLevel(mac, level)

		got := make(map[string]kmspb.ProtectionLevel)
		described, err := client.GetCryptoKey(t.Context(), &kmspb.GetCryptoKeyRequest{Name: key})
		if err != nil {
			t.Fatal(err)
		}
		got["GetCryptoKey"] = described.VersionTemplate.ProtectionLevel
		listed, err := client.ListCryptoKeyVersions(t.Context(), &kmspb.ListCryptoKeyVersionsRequest{Parent: key}).Next()
		if err != nil {
			t.Fatal(err)
		}
		got["ListCryptoKeyVersions"] = listed.ProtectionLevel
		public, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version})
		if err != nil {
			t.Fatal(err)
		}
		got["GetPublicKey"] = public.ProtectionLevel
		signed, err := client.AsymmetricSign(t.Context(), &kmspb.AsymmetricSignRequest{Name: version, Data: data})
		if err != nil {
			t.Fatal(err)
		}
		got["AsymmetricSign"] = signed.ProtectionLevel
		if err := verify(s.PublicKey(version), crypto.SHA256, false, data, signed.Signature); err != nil {
			t.Errorf("%v: %v", level, err)
		}
		tag, err := client.MacSign(t.Context(), &kmspb.MacSignRequest{Name: mac, Data: data})
		if err != nil {
			t.Fatal(err)
		}
		got["MacSign"] = tag.ProtectionLevel
		verified, err := client.MacVerify(t.Context(), &kmspb.MacVerifyRequest{Name: mac, Data: data, Mac: tag.Mac})
		if err != nil {
			t.Fatal(err)
		}
		got["MacVerify"] = verified.ProtectionLevel
		for method, got := range got {
			if got != level {
				t.Errorf("%s says %v, want %v", method, got, level)
			}
		}
	}
	created, err := client.CreateCryptoKeyVersion(t.Context(), &kmspb.CreateCryptoKeyVersionRequest{Parent: key})
	if err != nil || created.ProtectionLevel != kmspb.ProtectionLevel_EXTERNAL_VPC {
		t.Errorf("CreateCryptoKeyVersion = %v, %v, want EXTERNAL_VPC", created, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("SetProtectionLevel of an unknown key didn't panic")
		}
	}()
	s.SetProtectionLevel(key+"x", kmspb.ProtectionLevel_HSM)
}

func TestKMSMac(t *testing.T) { overEach(t, testKMSMac) }

func testKMSMac(t *testing.T, over transport) {
	tests := []struct {
		alg  algorithm
		size int
	}{
		{kmspb.CryptoKeyVersion_HMAC_SHA1, sha1.Size},
		{kmspb.CryptoKeyVersion_HMAC_SHA224, sha256.Size224},
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
				for _, mac := range [][]byte{signed.Mac, bytes.Repeat([]byte{1}, tt.size)} {
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
