package testutil

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha256" // the hashes that crypto.Hash.New makes
	_ "crypto/sha512"
	"encoding/pem"
	"fmt"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	mldsax509 "filippo.io/mldsa/x509"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// An algorithm is what the server knows about one CryptoKeyVersionAlgorithm.
type algorithm struct {
	purpose  kmspb.CryptoKey_CryptoKeyPurpose
	generate func(s *KMS) (keyMaterial, error)
	opts     crypto.SignerOpts // its hash is the digest to sign, or the MAC's; no hash: the data itself is signed
}

// A keyMaterial is one key: signer if it is asymmetric, else secret.
type keyMaterial struct {
	algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm
	row       *algorithm
	signer    crypto.Signer
	secret    []byte
}

const (
	forSigning    = kmspb.CryptoKey_ASYMMETRIC_SIGN
	forMAC        = kmspb.CryptoKey_MAC
	forEncryption = kmspb.CryptoKey_ENCRYPT_DECRYPT
)

var algorithms = map[kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm]*algorithm{
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256:  {forSigning, rsaOf(2048), crypto.SHA256},
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256:  {forSigning, rsaOf(3072), crypto.SHA256},
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256:  {forSigning, rsaOf(4096), crypto.SHA256},
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512:  {forSigning, rsaOf(4096), crypto.SHA512},
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256:    {forSigning, rsaOf(2048), pss(crypto.SHA256)},
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256:    {forSigning, rsaOf(3072), pss(crypto.SHA256)},
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256:    {forSigning, rsaOf(4096), pss(crypto.SHA256)},
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512:    {forSigning, rsaOf(4096), pss(crypto.SHA512)},
	kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256:         {forSigning, ecdsaOn(elliptic.P256()), crypto.SHA256},
	kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384:         {forSigning, ecdsaOn(elliptic.P384()), crypto.SHA384},
	kmspb.CryptoKeyVersion_EC_SIGN_ED25519:             {forSigning, ed25519Key, crypto.Hash(0)},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44:           {forSigning, mldsaOf(mldsa.MLDSA44()), &mldsa.Options{}},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65:           {forSigning, mldsaOf(mldsa.MLDSA65()), &mldsa.Options{}},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87:           {forSigning, mldsaOf(mldsa.MLDSA87()), &mldsa.Options{}},
	kmspb.CryptoKeyVersion_HMAC_SHA256:                 {forMAC, secretOf(32), crypto.SHA256},
	kmspb.CryptoKeyVersion_HMAC_SHA384:                 {forMAC, secretOf(48), crypto.SHA384},
	kmspb.CryptoKeyVersion_HMAC_SHA512:                 {forMAC, secretOf(64), crypto.SHA512},
	kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION: {forEncryption, secretOf(32), crypto.Hash(0)},
}

func pss(h crypto.Hash) *rsa.PSSOptions {
	return &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: h}
}

// rsaOf takes a key that no other version of the server has.
func rsaOf(bits int) func(*KMS) (keyMaterial, error) {
	return func(s *KMS) (keyMaterial, error) {
		s.mu.Lock()
		n := s.rsaKeys[bits]
		s.rsaKeys[bits]++
		s.mu.Unlock()
		key, err := rsaKey(bits, n)
		return keyMaterial{signer: key}, err
	}
}

func ecdsaOn(curve elliptic.Curve) func(*KMS) (keyMaterial, error) {
	return func(*KMS) (keyMaterial, error) {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		return keyMaterial{signer: key}, err
	}
}

func ed25519Key(*KMS) (keyMaterial, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return keyMaterial{signer: key}, err
}

func mldsaOf(params mldsa.Parameters) func(*KMS) (keyMaterial, error) {
	return func(*KMS) (keyMaterial, error) {
		key, err := mldsa.GenerateKey(params)
		return keyMaterial{signer: key}, err
	}
}

func secretOf(size int) func(*KMS) (keyMaterial, error) {
	return func(*KMS) (keyMaterial, error) {
		secret := make([]byte, size)
		_, err := rand.Read(secret)
		return keyMaterial{secret: secret}, err
	}
}

// generate makes the key of a new version.
func (s *KMS) generate(alg kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm) (*keyVersion, error) {
	row := algorithms[alg]
	if row == nil {
		return nil, fmt.Errorf("testutil: the KMS server doesn't support %v", alg)
	}
	material, err := row.generate(s)
	if err != nil {
		return nil, fmt.Errorf("testutil: making a key for %v: %w", alg, err)
	}
	material.algorithm, material.row = alg, row
	return &keyVersion{keyMaterial: material}, nil
}

func (m keyMaterial) mac(data []byte) []byte {
	h := hmac.New(m.row.opts.HashFunc().New, m.secret)
	h.Write(data)
	return h.Sum(nil)
}

func (k kmsService) GetPublicKey(_ context.Context, req *kmspb.GetPublicKeyRequest) (*kmspb.PublicKey, error) {
	v, err := k.s.usable(req.GetName(), forSigning)
	if err != nil {
		return nil, err
	}
	der, err := mldsax509.MarshalPKIXPublicKey(v.signer.Public())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	format := req.GetPublicKeyFormat()
	resp := &kmspb.PublicKey{
		Name:            v.name,
		Algorithm:       v.algorithm,
		ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE,
		PublicKeyFormat: format,
	}

	pqc, isPQC := v.signer.Public().(*mldsa.PublicKey)
	var data []byte
	switch {
	case format == kmspb.PublicKey_PUBLIC_KEY_FORMAT_UNSPECIFIED && !isPQC:
		resp.Pem = string(text)
		resp.PemCrc32C = Checksum(text)
		return resp, nil
	case format == kmspb.PublicKey_PUBLIC_KEY_FORMAT_UNSPECIFIED:
		return nil, status.Errorf(codes.InvalidArgument, "The public_key_format is required for the PQC algorithm %v.", v.algorithm)
	case format == kmspb.PublicKey_PEM:
		data = text
	case format == kmspb.PublicKey_DER && !isPQC:
		data = der
	case format == kmspb.PublicKey_NIST_PQC && isPQC:
		data = pqc.Bytes()
	default:
		return nil, status.Errorf(codes.InvalidArgument, "The public_key_format %v is not supported for %v.", format, v.algorithm)
	}
	resp.PublicKey = &kmspb.ChecksummedData{Data: data, Crc32CChecksum: Checksum(data)}
	return resp, nil
}

func (k kmsService) AsymmetricSign(_ context.Context, req *kmspb.AsymmetricSignRequest) (*kmspb.AsymmetricSignResponse, error) {
	if (req.GetDigest() == nil) == (len(req.GetData()) == 0) {
		return nil, status.Error(codes.InvalidArgument, "Exactly one of digest and data is required.")
	}
	if req.GetDigest() == nil && req.DigestCrc32C != nil || req.GetDigest() != nil && req.DataCrc32C != nil {
		return nil, status.Error(codes.InvalidArgument, "digest_crc32c belongs to digest, data_crc32c to data.")
	}
	if err := checkSize("data", req.GetData(), maxData); err != nil {
		return nil, err
	}
	if err := checkCRC("data", req.GetData(), req.DataCrc32C); err != nil {
		return nil, err
	}
	hash, digest := digestOf(req.GetDigest())
	if err := checkCRC("digest", digest, req.DigestCrc32C); err != nil {
		return nil, err
	}
	v, err := k.s.usable(req.GetName(), forSigning)
	if err != nil {
		return nil, err
	}

	input, want := req.GetData(), v.row.opts.HashFunc()
	switch {
	case req.GetDigest() != nil && want == 0:
		return nil, status.Errorf(codes.InvalidArgument, "The algorithm %v signs data, not a digest.", v.algorithm)
	case req.GetDigest() != nil && hash != want:
		return nil, status.Errorf(codes.InvalidArgument, "The algorithm %v needs a digest of %v.", v.algorithm, want)
	case req.GetDigest() != nil && len(digest) != want.Size():
		return nil, status.Errorf(codes.InvalidArgument, "The digest has %d bytes, %v has %d.", len(digest), want, want.Size())
	case req.GetDigest() != nil:
		input = digest
	case want != 0:
		h := want.New()
		h.Write(input)
		input = h.Sum(nil)
	}
	signature, err := v.signer.Sign(rand.Reader, input, v.row.opts)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &kmspb.AsymmetricSignResponse{
		Name:                 v.name,
		Signature:            signature,
		SignatureCrc32C:      Checksum(signature),
		VerifiedDigestCrc32C: req.DigestCrc32C != nil,
		VerifiedDataCrc32C:   req.DataCrc32C != nil,
		ProtectionLevel:      kmspb.ProtectionLevel_SOFTWARE,
	}, nil
}

// digestOf returns the kind and the bytes of a digest, no kind if it is empty.
func digestOf(d *kmspb.Digest) (crypto.Hash, []byte) {
	switch d := d.GetDigest().(type) {
	case *kmspb.Digest_Sha256:
		return crypto.SHA256, d.Sha256
	case *kmspb.Digest_Sha384:
		return crypto.SHA384, d.Sha384
	case *kmspb.Digest_Sha512:
		return crypto.SHA512, d.Sha512
	}
	return 0, nil
}

func (k kmsService) MacSign(_ context.Context, req *kmspb.MacSignRequest) (*kmspb.MacSignResponse, error) {
	if err := checkInput("data", req.GetData(), maxData, req.DataCrc32C); err != nil {
		return nil, err
	}
	v, err := k.s.usable(req.GetName(), forMAC)
	if err != nil {
		return nil, err
	}
	tag := v.mac(req.GetData())
	return &kmspb.MacSignResponse{
		Name:               v.name,
		Mac:                tag,
		MacCrc32C:          Checksum(tag),
		VerifiedDataCrc32C: req.DataCrc32C != nil,
		ProtectionLevel:    kmspb.ProtectionLevel_SOFTWARE,
	}, nil
}

func (k kmsService) MacVerify(_ context.Context, req *kmspb.MacVerifyRequest) (*kmspb.MacVerifyResponse, error) {
	if err := checkInput("data", req.GetData(), maxData, req.DataCrc32C); err != nil {
		return nil, err
	}
	if err := checkInput("mac", req.GetMac(), maxMAC, req.MacCrc32C); err != nil {
		return nil, err
	}
	v, err := k.s.usable(req.GetName(), forMAC)
	if err != nil {
		return nil, err
	}
	success := hmac.Equal(req.GetMac(), v.mac(req.GetData()))
	return &kmspb.MacVerifyResponse{
		Name:                     v.name,
		Success:                  success,
		VerifiedDataCrc32C:       req.DataCrc32C != nil,
		VerifiedMacCrc32C:        req.MacCrc32C != nil,
		VerifiedSuccessIntegrity: success,
		ProtectionLevel:          kmspb.ProtectionLevel_SOFTWARE,
	}, nil
}

const (
	maxData = 64 << 10
	maxMAC  = 64
)

// checkInput refuses a required field that is missing, too long or damaged.
func checkInput(field string, b []byte, limit int, crc *wrapperspb.Int64Value) error {
	if len(b) == 0 {
		return status.Errorf(codes.InvalidArgument, "The field %s is required.", field)
	}
	if err := checkSize(field, b, limit); err != nil {
		return err
	}
	return checkCRC(field, b, crc)
}

func checkSize(field string, b []byte, limit int) error {
	if len(b) > limit {
		return status.Errorf(codes.InvalidArgument, "The field %s has %d bytes, at most %d are allowed.", field, len(b), limit)
	}
	return nil
}

// checkCRC compares the checksum that came with a field, if one did.
func checkCRC(field string, b []byte, crc *wrapperspb.Int64Value) error {
	if crc != nil && crc.GetValue() != Checksum(b).GetValue() {
		return status.Errorf(codes.InvalidArgument, "The checksum in %s_crc32c did not match the field %s.", field, field)
	}
	return nil
}
