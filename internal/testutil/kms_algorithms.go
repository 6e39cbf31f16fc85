package testutil

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/mlkem"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha1" // the hashes that crypto.Hash.New makes
	_ "crypto/sha256"
	_ "crypto/sha512"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"slices"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"filippo.io/mldsa/mldsacrypto"
	mldsax509 "filippo.io/mldsa/x509"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	secp256k1ecdsa "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"golang.org/x/crypto/cryptobyte"
	cryptobyteasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// Algorithms that the API has reserved numbers for, but no names: Google's own
// fake (fakekms) has keys of them. They stand for whatever algorithms come
// after the client library.
const (
	ECSignP224SHA256 kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm = 11
	ECSignP521SHA512 kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm = 14
)

// An algorithm is what the server knows about one CryptoKeyVersionAlgorithm.
type algorithm struct {
	purpose  kmspb.CryptoKey_CryptoKeyPurpose
	formats  []kmspb.PublicKey_PublicKeyFormat // of its public keys
	generate func(s *KMS) (keyMaterial, error)
	opts     crypto.SignerOpts       // its hash is the digest to sign, or the MAC's; no hash: the data itself is signed
	levels   []kmspb.ProtectionLevel // that its keys can have, the default first
}

// A keyMaterial is one key: public if it is asymmetric, with its signer if the
// server can sign with it, else secret.
type keyMaterial struct {
	algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm
	row       *algorithm
	public    crypto.PublicKey
	signer    crypto.Signer
	secret    []byte
}

const (
	forSigning       = kmspb.CryptoKey_ASYMMETRIC_SIGN
	forMAC           = kmspb.CryptoKey_MAC
	forEncryption    = kmspb.CryptoKey_ENCRYPT_DECRYPT
	forRawEncryption = kmspb.CryptoKey_RAW_ENCRYPT_DECRYPT
	forDecryption    = kmspb.CryptoKey_ASYMMETRIC_DECRYPT
	forEncapsulation = kmspb.CryptoKey_KEY_ENCAPSULATION
	forWrapping      = kmspb.CryptoKey_AES_WRAPPING

	noFormat = kmspb.PublicKey_PUBLIC_KEY_FORMAT_UNSPECIFIED
)

var (
	classical = []kmspb.PublicKey_PublicKeyFormat{noFormat, kmspb.PublicKey_PEM, kmspb.PublicKey_DER}
	pemOrNIST = []kmspb.PublicKey_PublicKeyFormat{kmspb.PublicKey_PEM, kmspb.PublicKey_NIST_PQC}
	nistOnly  = []kmspb.PublicKey_PublicKeyFormat{kmspb.PublicKey_NIST_PQC}
	xwingOnly = []kmspb.PublicKey_PublicKeyFormat{kmspb.PublicKey_XWING_RAW_BYTES}

	anyLevel = []kmspb.ProtectionLevel{
		kmspb.ProtectionLevel_SOFTWARE,
		kmspb.ProtectionLevel_HSM,
		kmspb.ProtectionLevel_HSM_SINGLE_TENANT,
		kmspb.ProtectionLevel_EXTERNAL,
		kmspb.ProtectionLevel_EXTERNAL_VPC,
	}
	inCloud      = anyLevel[:3]
	hsmOnly      = []kmspb.ProtectionLevel{kmspb.ProtectionLevel_HSM}
	externalOnly = []kmspb.ProtectionLevel{kmspb.ProtectionLevel_EXTERNAL, kmspb.ProtectionLevel_EXTERNAL_VPC}

	plainMLDSA = &mldsa.Options{}
	noHash     = crypto.Hash(0)
)

var algorithms = map[kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm]*algorithm{
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256: {forSigning, classical, rsaOf(2048), crypto.SHA256, anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256: {forSigning, classical, rsaOf(3072), crypto.SHA256, anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256: {forSigning, classical, rsaOf(4096), crypto.SHA256, anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512: {forSigning, classical, rsaOf(4096), crypto.SHA512, anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256:   {forSigning, classical, rsaOf(2048), pss(crypto.SHA256), anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256:   {forSigning, classical, rsaOf(3072), pss(crypto.SHA256), anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256:   {forSigning, classical, rsaOf(4096), pss(crypto.SHA256), anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512:   {forSigning, classical, rsaOf(4096), pss(crypto.SHA512), anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_RAW_PKCS1_2048:    {forSigning, classical, rsaOf(2048), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_RAW_PKCS1_3072:    {forSigning, classical, rsaOf(3072), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_SIGN_RAW_PKCS1_4096:    {forSigning, classical, rsaOf(4096), noHash, anyLevel},
	ECSignP224SHA256: {forSigning, classical, ecdsaOn(elliptic.P224()), crypto.SHA256, anyLevel},
	kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256: {forSigning, classical, ecdsaOn(elliptic.P256()), crypto.SHA256, anyLevel},
	kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384: {forSigning, classical, ecdsaOn(elliptic.P384()), crypto.SHA384, anyLevel},
	ECSignP521SHA512: {forSigning, classical, ecdsaOn(elliptic.P521()), crypto.SHA512, anyLevel},
	kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256:              {forSigning, classical, secp256k1Key, crypto.SHA256, hsmOnly},
	kmspb.CryptoKeyVersion_EC_SIGN_ED25519:                       {forSigning, classical, ed25519Key, noHash, anyLevel},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44:                     {forSigning, pemOrNIST, mldsaOf(mldsa.MLDSA44()), plainMLDSA, anyLevel},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65:                     {forSigning, pemOrNIST, mldsaOf(mldsa.MLDSA65()), plainMLDSA, anyLevel},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87:                     {forSigning, pemOrNIST, mldsaOf(mldsa.MLDSA87()), plainMLDSA, anyLevel},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44_EXTERNAL_MU:         {forSigning, pemOrNIST, mldsaOf(mldsa.MLDSA44()), mldsacrypto.MLDSAMu, anyLevel},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65_EXTERNAL_MU:         {forSigning, pemOrNIST, mldsaOf(mldsa.MLDSA65()), mldsacrypto.MLDSAMu, anyLevel},
	kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87_EXTERNAL_MU:         {forSigning, pemOrNIST, mldsaOf(mldsa.MLDSA87()), mldsacrypto.MLDSAMu, anyLevel},
	kmspb.CryptoKeyVersion_PQ_SIGN_SLH_DSA_SHA2_128S:             {forSigning, nistOnly, slhdsaKey, noHash, anyLevel},
	kmspb.CryptoKeyVersion_PQ_SIGN_HASH_SLH_DSA_SHA2_128S_SHA256: {forSigning, nistOnly, slhdsaKey, crypto.SHA256, anyLevel},
	kmspb.CryptoKeyVersion_HMAC_SHA1:                             {forMAC, nil, secretOf(20), crypto.SHA1, inCloud},
	kmspb.CryptoKeyVersion_HMAC_SHA224:                           {forMAC, nil, secretOf(28), crypto.SHA224, inCloud},
	kmspb.CryptoKeyVersion_HMAC_SHA256:                           {forMAC, nil, secretOf(32), crypto.SHA256, inCloud},
	kmspb.CryptoKeyVersion_HMAC_SHA384:                           {forMAC, nil, secretOf(48), crypto.SHA384, inCloud},
	kmspb.CryptoKeyVersion_HMAC_SHA512:                           {forMAC, nil, secretOf(64), crypto.SHA512, inCloud},
	kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION:           {forEncryption, nil, secretOf(32), noHash, anyLevel},
	kmspb.CryptoKeyVersion_EXTERNAL_SYMMETRIC_ENCRYPTION:         {forEncryption, nil, secretOf(32), noHash, externalOnly},
	kmspb.CryptoKeyVersion_AES_128_GCM:                           {forRawEncryption, nil, secretOf(16), noHash, anyLevel},
	kmspb.CryptoKeyVersion_AES_256_GCM:                           {forRawEncryption, nil, secretOf(32), noHash, anyLevel},
	kmspb.CryptoKeyVersion_AES_128_CBC:                           {forRawEncryption, nil, secretOf(16), noHash, anyLevel},
	kmspb.CryptoKeyVersion_AES_256_CBC:                           {forRawEncryption, nil, secretOf(32), noHash, anyLevel},
	kmspb.CryptoKeyVersion_AES_128_CTR:                           {forRawEncryption, nil, secretOf(16), noHash, anyLevel},
	kmspb.CryptoKeyVersion_AES_256_CTR:                           {forRawEncryption, nil, secretOf(32), noHash, anyLevel},
	kmspb.CryptoKeyVersion_AES_256_KWP:                           {forWrapping, nil, secretOf(32), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_2048_SHA1:            {forDecryption, classical, rsaOf(2048), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_3072_SHA1:            {forDecryption, classical, rsaOf(3072), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_4096_SHA1:            {forDecryption, classical, rsaOf(4096), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_2048_SHA256:          {forDecryption, classical, rsaOf(2048), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_3072_SHA256:          {forDecryption, classical, rsaOf(3072), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_4096_SHA256:          {forDecryption, classical, rsaOf(4096), noHash, anyLevel},
	kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_4096_SHA512:          {forDecryption, classical, rsaOf(4096), noHash, anyLevel},
	kmspb.CryptoKeyVersion_ML_KEM_768:                            {forEncapsulation, nistOnly, mlkem768Key, noHash, anyLevel},
	kmspb.CryptoKeyVersion_ML_KEM_1024:                           {forEncapsulation, nistOnly, mlkem1024Key, noHash, anyLevel},
	kmspb.CryptoKeyVersion_KEM_XWING:                             {forEncapsulation, xwingOnly, xwingKey, noHash, anyLevel},
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
		if err != nil {
			return keyMaterial{}, err
		}
		return keyMaterial{public: key.Public(), signer: key}, nil
	}
}

func ecdsaOn(curve elliptic.Curve) func(*KMS) (keyMaterial, error) {
	return func(*KMS) (keyMaterial, error) {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			return keyMaterial{}, err
		}
		return keyMaterial{public: key.Public(), signer: key}, nil
	}
}

func secp256k1Key(*KMS) (keyMaterial, error) {
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		return keyMaterial{}, err
	}
	return keyMaterial{public: key.PubKey(), signer: secp256k1Signer{key}}, nil
}

func ed25519Key(*KMS) (keyMaterial, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	return keyMaterial{public: public, signer: key}, err
}

func mldsaOf(params mldsa.Parameters) func(*KMS) (keyMaterial, error) {
	return func(*KMS) (keyMaterial, error) {
		key, err := mldsa.GenerateKey(params)
		if err != nil {
			return keyMaterial{}, err
		}
		return keyMaterial{public: key.Public(), signer: key}, nil
	}
}

// slhdsaKey makes what looks like a public key of SLH-DSA-SHA2-128s. The server
// can't sign with it.
func slhdsaKey(*KMS) (keyMaterial, error) {
	public := make([]byte, 32)
	_, err := rand.Read(public)
	return keyMaterial{public: public}, err
}

func mlkem768Key(*KMS) (keyMaterial, error) {
	key, err := mlkem.GenerateKey768()
	if err != nil {
		return keyMaterial{}, err
	}
	return keyMaterial{public: key.EncapsulationKey().Bytes()}, nil
}

func mlkem1024Key(*KMS) (keyMaterial, error) {
	key, err := mlkem.GenerateKey1024()
	if err != nil {
		return keyMaterial{}, err
	}
	return keyMaterial{public: key.EncapsulationKey().Bytes()}, nil
}

// xwingKey makes an ML-KEM-768 key followed by an X25519 key.
func xwingKey(s *KMS) (keyMaterial, error) {
	lattice, err := mlkem768Key(s)
	if err != nil {
		return keyMaterial{}, err
	}
	curve, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return keyMaterial{}, err
	}
	return keyMaterial{public: slices.Concat(lattice.public.([]byte), curve.PublicKey().Bytes())}, nil
}

func secretOf(size int) func(*KMS) (keyMaterial, error) {
	return func(*KMS) (keyMaterial, error) {
		secret := make([]byte, size)
		_, err := rand.Read(secret)
		return keyMaterial{secret: secret}, err
	}
}

// generate makes the key of a new version, which gets its protection level when
// it is added to a CryptoKey.
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

// encodePublicKey encodes a key in one of its algorithm's formats.
func encodePublicKey(key crypto.PublicKey, format kmspb.PublicKey_PublicKeyFormat) ([]byte, error) {
	switch key := key.(type) {
	case []byte:
		return key, nil
	case *mldsa.PublicKey:
		if format == kmspb.PublicKey_NIST_PQC {
			return key.Bytes(), nil
		}
	}
	der, err := marshalPKIX(key)
	if err != nil || format == kmspb.PublicKey_DER {
		return der, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

func marshalPKIX(key crypto.PublicKey) ([]byte, error) {
	if key, ok := key.(*secp256k1.PublicKey); ok {
		return marshalSecp256k1(key)
	}
	return mldsax509.MarshalPKIXPublicKey(key)
}

var (
	oidECPublicKey = asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1}
	oidSecp256k1   = asn1.ObjectIdentifier{1, 3, 132, 0, 10}
)

// marshalSecp256k1 encodes a SubjectPublicKeyInfo (RFC 5480), which crypto/x509
// does for the curves of NIST only.
func marshalSecp256k1(key *secp256k1.PublicKey) ([]byte, error) {
	var b cryptobyte.Builder
	b.AddASN1(cryptobyteasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(cryptobyteasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(oidECPublicKey)
			b.AddASN1ObjectIdentifier(oidSecp256k1)
		})
		b.AddASN1BitString(key.SerializeUncompressed())
	})
	return b.Bytes()
}

// A secp256k1Signer signs as an HSM does. Unlike the package that it is built
// on it doesn't prefer small values of s: users have to cope with both.
type secp256k1Signer struct{ key *secp256k1.PrivateKey }

func (k secp256k1Signer) Public() crypto.PublicKey { return k.key.PubKey() }

func (k secp256k1Signer) Sign(_ io.Reader, digest []byte, _ crypto.SignerOpts) ([]byte, error) {
	signature := secp256k1ecdsa.Sign(k.key, digest)
	r, s := signature.R(), signature.S()
	if mathrand.IntN(2) == 0 {
		s.Negate()
	}
	rBytes, sBytes := r.Bytes(), s.Bytes()
	var b cryptobyte.Builder
	b.AddASN1(cryptobyteasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1BigInt(new(big.Int).SetBytes(rBytes[:]))
		b.AddASN1BigInt(new(big.Int).SetBytes(sBytes[:]))
	})
	return b.Bytes()
}
