package gcpjwt

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"log/slog"
	"slices"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
)

// KMSConfig says which Cloud KMS key signs or verifies. Calls never change its
// fields, so one configuration may serve any number of goroutines; making a new
// one for each call costs next to nothing, as what is worth keeping belongs to
// the process.
type KMSConfig struct {
	// KeyPath is the resource name of a CryptoKeyVersion
	// (projects/*/locations/*/keyRings/*/cryptoKeys/*/cryptoKeyVersions/*), or
	// that of a CryptoKey (the same without the last two segments), whose
	// versions are then followed as they are created, disabled and destroyed.
	// Required.
	KeyPath string

	// KMSClient (of cloud.google.com/go/kms/apiv1) makes the calls and is never
	// closed by this package. It may speak gRPC or REST. If it is nil, one default client is
	// made on first use and kept for the process. It takes Application Default Credentials.
	KMSClient *kms.KeyManagementClient

	// KeyRefresh is how long a CryptoKey's list of versions may be used. It is
	// renewed in the background from half of this time on. 0 means 5
	// minutes; a negative value is an error. It has no effect on a KeyPath that
	// names a CryptoKeyVersion, whose public key never changes.
	KeyRefresh time.Duration

	// ActivationDelay has to be the max-age of the JWK Set plus KeyRefresh at least
	// where tokens are verified with a published set: see package jwks. It is how long
	// after its generation or import a version first signs; where all are newer, the
	// oldest one signs. 0 means KeyRefresh/2, which suits verifiers that read Cloud KMS
	// with the same KeyRefresh. A negative value means at once. It has no effect on a
	// KeyPath that names a CryptoKeyVersion.
	ActivationDelay time.Duration

	// Logger is told of failures that no caller sees (Warn), and of versions that come
	// into or go out of use (Info). If it is nil, slog.Default() is told.
	Logger *slog.Logger
}

// kmsInput is what Cloud KMS signs with a key of an algorithm.
type kmsInput int

const (
	sendDigest kmsInput = iota // AsymmetricSign, the digest of the signing string
	sendData                   // AsymmetricSign, the signing string itself
	sendMu                     // AsymmetricSign, ML-DSA's digest of public key and signing string
	sendMAC                    // MacSign, the signing string itself
)

// kmsRow is a KMS algorithm that a method signs by.
type kmsRow struct {
	algorithm kmsAlgorithm
	length    int // of its signatures in a token, in bytes
	input     kmsInput
}

type kmsAlgorithm = kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm

// SigningMethodKMS signs with a key in Cloud KMS. Its key for Sign and
// token.SignedString is a context that carries a [KMSConfig] (see
// [NewKMSContext]); for Verify it is the public key that jwt's own method of
// the same RFC name takes. A method may be used concurrently. The zero value is
// none: its methods return errors.
type SigningMethodKMS struct {
	method
	hash crypto.Hash
	rows []kmsRow
}

// The Cloud KMS signing methods. Each is registered with jwt under its alias,
// which is the variable's name without SigningMethod, and signs with keys of the
// Cloud KMS algorithms that are named here.
//
// RSASSA-PSS signatures have a salt as long as the hash (RFC 7518 section 3.5),
// and ECDSA signatures are r||s of fixed width (section 3.4). There are no
// RS384, PS384 and ES512 as Cloud KMS has no such keys.
//
// jwt has no methods named ES256K and Ed25519, so those are registered under their RFC
// names too, without Override. A key of EC_SIGN_ED25519 signs and verifies by both of its
// names; EdDSA is the one that all libraries know. For ES256K, Verify takes a
// *secp256k1.PublicKey of github.com/decred/dcrd/dcrec/secp256k1/v4. An ES256K token is signed
// with the lower one of the two s that a signature may have, which some verifiers insist on.
// Both are accepted, as RFC 8812 has no such rule.
var (
	SigningMethodKMSRS256   = kmsMethod("KMSRS256")   // RS256: RSA_SIGN_PKCS1_{2048,3072,4096}_SHA256
	SigningMethodKMSRS512   = kmsMethod("KMSRS512")   // RS512: RSA_SIGN_PKCS1_4096_SHA512
	SigningMethodKMSPS256   = kmsMethod("KMSPS256")   // PS256: RSA_SIGN_PSS_{2048,3072,4096}_SHA256
	SigningMethodKMSPS512   = kmsMethod("KMSPS512")   // PS512: RSA_SIGN_PSS_4096_SHA512
	SigningMethodKMSES256   = kmsMethod("KMSES256")   // ES256: EC_SIGN_P256_SHA256
	SigningMethodKMSES384   = kmsMethod("KMSES384")   // ES384: EC_SIGN_P384_SHA384
	SigningMethodKMSES256K  = kmsMethod("KMSES256K")  // ES256K (RFC 8812): EC_SIGN_SECP256K1_SHA256
	SigningMethodKMSEdDSA   = kmsMethod("KMSEdDSA")   // EdDSA (RFC 8037): EC_SIGN_ED25519
	SigningMethodKMSEd25519 = kmsMethod("KMSEd25519") // Ed25519 (RFC 9864): EC_SIGN_ED25519
)

// The ML-DSA signing methods (FIPS 204, RFC 9964), whose signatures are 2420,
// 3309 and 4627 bytes long. jwt has no such methods, so they are registered
// under their RFC names (ML-DSA-44, ML-DSA-65, ML-DSA-87) too, without Override.
// For Verify they take a [*mldsa.PublicKey]. A key of an _EXTERNAL_MU algorithm makes the
// same tokens: Cloud KMS is sent 64 bytes instead of the text, which may then be over 64
// KiB long, and its public key must be readable.
var (
	SigningMethodKMSMLDSA44 = kmsMethod("KMSMLDSA44") // ML-DSA-44: PQ_SIGN_ML_DSA_44[_EXTERNAL_MU]
	SigningMethodKMSMLDSA65 = kmsMethod("KMSMLDSA65") // ML-DSA-65: PQ_SIGN_ML_DSA_65[_EXTERNAL_MU]
	SigningMethodKMSMLDSA87 = kmsMethod("KMSMLDSA87") // ML-DSA-87: PQ_SIGN_ML_DSA_87[_EXTERNAL_MU]
)

// The HMAC signing methods. The key never leaves Cloud KMS, so a verification
// is a call too (MacVerify), one for each token. For Verify they take what
// [KMSVerifyKeyfunc]'s Keyfunc returns, or a context that carries a [KMSConfig]
// as Sign does; its end ends the call. A wrong MAC is
// [jwt.ErrSignatureInvalid], a MAC that could not be checked is
// [ErrKeysUnavailable].
var (
	SigningMethodKMSHS256 = kmsMethod("KMSHS256") // HS256: HMAC_SHA256
	SigningMethodKMSHS384 = kmsMethod("KMSHS384") // HS384: HMAC_SHA384
	SigningMethodKMSHS512 = kmsMethod("KMSHS512") // HS512: HMAC_SHA512
)

// kmsMethods are the rows that all Cloud KMS signing methods are. Of two that sign by one
// KMS algorithm the first is the one that a Signer takes.
var kmsMethods = []*SigningMethodKMS{
	kmsMethodOf("KMSRS256", "RS256", crypto.SHA256,
		kmsRow{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, 256, sendDigest},
		kmsRow{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256, 384, sendDigest},
		kmsRow{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256, 512, sendDigest}),
	kmsMethodOf("KMSRS512", "RS512", crypto.SHA512,
		kmsRow{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512, 512, sendDigest}),
	kmsMethodOf("KMSPS256", "PS256", crypto.SHA256,
		kmsRow{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256, 256, sendDigest},
		kmsRow{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256, 384, sendDigest},
		kmsRow{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256, 512, sendDigest}),
	kmsMethodOf("KMSPS512", "PS512", crypto.SHA512,
		kmsRow{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512, 512, sendDigest}),
	kmsMethodOf("KMSES256", "ES256", crypto.SHA256,
		kmsRow{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, 64, sendDigest}),
	kmsMethodOf("KMSES384", "ES384", crypto.SHA384,
		kmsRow{kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, 96, sendDigest}),
	kmsMethodOf("KMSES256K", "ES256K", crypto.SHA256,
		kmsRow{kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256, 64, sendDigest}),
	kmsMethodOf("KMSEdDSA", "EdDSA", 0,
		kmsRow{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, ed25519.SignatureSize, sendData}),
	kmsMethodOf("KMSEd25519", "Ed25519", 0,
		kmsRow{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, ed25519.SignatureSize, sendData}),
	kmsMethodOf("KMSHS256", "HS256", crypto.SHA256,
		kmsRow{kmspb.CryptoKeyVersion_HMAC_SHA256, 32, sendMAC}),
	kmsMethodOf("KMSHS384", "HS384", crypto.SHA384,
		kmsRow{kmspb.CryptoKeyVersion_HMAC_SHA384, 48, sendMAC}),
	kmsMethodOf("KMSHS512", "HS512", crypto.SHA512,
		kmsRow{kmspb.CryptoKeyVersion_HMAC_SHA512, 64, sendMAC}),
	kmsMethodOf("KMSMLDSA44", "ML-DSA-44", 0,
		kmsRow{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44, mldsa.MLDSA44SignatureSize, sendData},
		kmsRow{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44_EXTERNAL_MU, mldsa.MLDSA44SignatureSize, sendMu}),
	kmsMethodOf("KMSMLDSA65", "ML-DSA-65", 0,
		kmsRow{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65, mldsa.MLDSA65SignatureSize, sendData},
		kmsRow{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65_EXTERNAL_MU, mldsa.MLDSA65SignatureSize, sendMu}),
	kmsMethodOf("KMSMLDSA87", "ML-DSA-87", 0,
		kmsRow{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87, mldsa.MLDSA87SignatureSize, sendData},
		kmsRow{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87_EXTERNAL_MU, mldsa.MLDSA87SignatureSize, sendMu}),
}

func kmsMethodOf(alias, alg string, hash crypto.Hash, rows ...kmsRow) *SigningMethodKMS {
	m := &SigningMethodKMS{hash: hash, rows: rows}
	m.implement(alias, algorithm.ByName(alg))
	return m
}

// kmsMethod returns the row of an alias.
func kmsMethod(alias string) *SigningMethodKMS {
	return kmsMethods[slices.IndexFunc(kmsMethods, func(m *SigningMethodKMS) bool { return m.alias == alias })]
}

// kmsMethodFor maps each supported KMS algorithm to its method, the first of two.
var kmsMethodFor = func() map[kmsAlgorithm]*SigningMethodKMS {
	methods := make(map[kmsAlgorithm]*SigningMethodKMS)
	for _, m := range slices.Backward(kmsMethods) {
		for _, row := range m.rows {
			methods[row.algorithm] = m
		}
	}
	return methods
}()

// row returns the method's row of a KMS algorithm.
func (m *SigningMethodKMS) row(algorithm kmsAlgorithm) (kmsRow, bool) {
	for _, row := range m.rows {
		if row.algorithm == algorithm {
			return row, true
		}
	}
	return kmsRow{}, false
}

// isMAC reports whether the method makes MACs.
func (m *SigningMethodKMS) isMAC() bool { return m.algorithm.MAC }

// format is what the public key is asked for in first: Cloud KMS has ML-DSA keys in
// NIST_PQC, and all others in PEM only.
func (m *SigningMethodKMS) format() keyFormat {
	if m.hash == 0 && m.algorithm.Key != "EdDSA" {
		return kmspb.PublicKey_NIST_PQC
	}
	return kmspb.PublicKey_PEM
}

// Hash returns the hash function of the method's algorithm, 0 for EdDSA, Ed25519 and
// ML-DSA, which hash by themselves.
func (m *SigningMethodKMS) Hash() crypto.Hash { return m.hash }

// Sign has Cloud KMS sign signingString and returns the signature in JWS form
// (RFC 7518 section 3). key is a context that carries a [KMSConfig], whose end
// ends the call. The errors are those of [SignedString].
//
// Sign cannot set a kid, as signingString holds the finished header;
// [SignedString] can.
func (m *SigningMethodKMS) Sign(signingString string, key any) ([]byte, error) {
	ctx, err := m.checkSign(signingString, key)
	if err != nil {
		return nil, err
	}
	_, sig, err := m.sign(ctx, func(*SigningMethodKMS, *kmsVersion) (string, error) {
		return signingString, nil
	})
	return sig, err
}

func (m *SigningMethodKMS) signedString(ctx context.Context, d *draft) (string, error) {
	text, sig, err := m.sign(ctx, d.kmsText)
	if err != nil {
		return "", err
	}
	return withSegment(text, sig), nil
}

// kmsText is the text to sign by a method with a key version.
func (d *draft) kmsText(m *SigningMethodKMS, v *kmsVersion) (string, error) {
	return d.signingString(m.algorithm.Name, v.kid, &v.header)
}

// sign signs with the key that the configuration in ctx leads to.
func (m *SigningMethodKMS) sign(ctx context.Context, text kmsText) (string, []byte, error) {
	key, err := contextKey(ctx)
	if err != nil {
		return "", nil, err
	}
	return key.sign(ctx, m, text)
}
