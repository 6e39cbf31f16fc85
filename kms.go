package gcpjwt

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"slices"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// KMSConfig says which Cloud KMS key signs or verifies. Calls never change its
// fields, so one configuration may serve any number of goroutines; making a new
// one for each call costs nothing either, as what is worth keeping belongs to
// the process.
type KMSConfig struct {
	// KeyPath is the resource name of a CryptoKeyVersion
	// (projects/*/locations/*/keyRings/*/cryptoKeys/*/cryptoKeyVersions/*), or
	// that of a CryptoKey (the same without the last two segments), whose
	// versions are then followed as they are created, disabled and destroyed.
	// Required.
	KeyPath string

	// KMSClient (of cloud.google.com/go/kms/apiv1) makes the calls and is never
	// closed by this package. If it is nil, one default client, which takes Application Default Credentials, is
	// made on first use and kept for the process.
	KMSClient *kms.KeyManagementClient

	// KeyRefresh is how long a CryptoKey's list of versions may be used. It is
	// renewed in the background from half of this time on. A new version first
	// signs KeyRefresh/2 after its generation, unless all are as new, so that
	// verifiers with the same KeyRefresh know it by then. 0 means 5
	// minutes; a negative value is an error. It has no effect on a KeyPath that
	// names a CryptoKeyVersion, whose public key never changes.
	KeyRefresh time.Duration

	// Logger is told of failures that no caller sees, such as that of a
	// background refresh. If it is nil, they aren't logged.
	Logger *slog.Logger
}

// kmsInput is what a KMS method sends to Cloud KMS.
type kmsInput int

const (
	sendDigest kmsInput = iota // AsymmetricSign, the digest of the signing string
	sendData                   // AsymmetricSign, the signing string itself
	sendMAC                    // MacSign, the signing string itself
)

type kmsSignature struct {
	algorithm kmsAlgorithm
	length    int
}

type kmsAlgorithm = kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm

// SigningMethodKMS signs with a key in Cloud KMS. Its key for Sign and
// token.SignedString is a context that carries a [KMSConfig] (see
// [NewKMSContext]); for Verify it is the public key that jwt's own method of
// the same RFC name takes. A method may be used concurrently.
type SigningMethodKMS struct {
	method
	hash  crypto.Hash
	input kmsInput

	// signatures are the KMS algorithms that fit the method, with the length
	// of their signatures in a token in bytes.
	signatures []kmsSignature

	// width is that length where Cloud KMS answers in ASN.1 DER instead.
	width int

	// format is what the public key is asked for in.
	format keyFormat

	// standalone is set where jwt has no method of the RFC name.
	standalone bool
}

// The Cloud KMS signing methods. Each is registered with jwt under its alias,
// which is the variable's name without SigningMethod, and signs with keys of the
// Cloud KMS algorithms that are named here.
//
// RSASSA-PSS signatures have a salt as long as the hash (RFC 7518 section 3.5),
// and ECDSA signatures are r||s of fixed width (section 3.4). There are no
// RS384, PS384 and ES512 as Cloud KMS has no such keys.
var (
	SigningMethodKMSRS256 = kmsMethod("KMSRS256") // RS256: RSA_SIGN_PKCS1_{2048,3072,4096}_SHA256
	SigningMethodKMSRS512 = kmsMethod("KMSRS512") // RS512: RSA_SIGN_PKCS1_4096_SHA512
	SigningMethodKMSPS256 = kmsMethod("KMSPS256") // PS256: RSA_SIGN_PSS_{2048,3072,4096}_SHA256
	SigningMethodKMSPS512 = kmsMethod("KMSPS512") // PS512: RSA_SIGN_PSS_4096_SHA512
	SigningMethodKMSES256 = kmsMethod("KMSES256") // ES256: EC_SIGN_P256_SHA256
	SigningMethodKMSES384 = kmsMethod("KMSES384") // ES384: EC_SIGN_P384_SHA384
	SigningMethodKMSEdDSA = kmsMethod("KMSEdDSA") // EdDSA (RFC 8037): EC_SIGN_ED25519
)

// kmsMethods are the rows that all Cloud KMS signing methods are.
var kmsMethods = []*SigningMethodKMS{
	{
		method: method{alias: "KMSRS256", alg: "RS256", verifier: jwt.SigningMethodRS256}, format: kmspb.PublicKey_PEM, hash: crypto.SHA256,
		signatures: []kmsSignature{
			{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, 256},
			{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256, 384},
			{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256, 512},
		},
	},
	{
		method: method{alias: "KMSRS512", alg: "RS512", verifier: jwt.SigningMethodRS512}, format: kmspb.PublicKey_PEM, hash: crypto.SHA512,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512, 512}},
	},
	{
		method: method{alias: "KMSPS256", alg: "PS256", verifier: strictPSS(jwt.SigningMethodPS256)}, format: kmspb.PublicKey_PEM, hash: crypto.SHA256,
		signatures: []kmsSignature{
			{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256, 256},
			{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256, 384},
			{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256, 512},
		},
	},
	{
		method: method{alias: "KMSPS512", alg: "PS512", verifier: strictPSS(jwt.SigningMethodPS512)}, format: kmspb.PublicKey_PEM, hash: crypto.SHA512,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512, 512}},
	},
	{
		method: method{alias: "KMSES256", alg: "ES256", verifier: jwt.SigningMethodES256}, format: kmspb.PublicKey_PEM, hash: crypto.SHA256, width: 64,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, 64}},
	},
	{
		method: method{alias: "KMSES384", alg: "ES384", verifier: jwt.SigningMethodES384}, format: kmspb.PublicKey_PEM, hash: crypto.SHA384, width: 96,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, 96}},
	},
	{
		method: method{alias: "KMSEdDSA", alg: "EdDSA", verifier: jwt.SigningMethodEdDSA}, format: kmspb.PublicKey_PEM, input: sendData,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, ed25519.SignatureSize}},
	},
	{
		method: method{alias: "KMSHS256", alg: "HS256", verifier: macVerifier{"HS256"}}, hash: crypto.SHA256, input: sendMAC,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_HMAC_SHA256, 32}},
	},
	{
		method: method{alias: "KMSHS384", alg: "HS384", verifier: macVerifier{"HS384"}}, hash: crypto.SHA384, input: sendMAC,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_HMAC_SHA384, 48}},
	},
	{
		method: method{alias: "KMSHS512", alg: "HS512", verifier: macVerifier{"HS512"}}, hash: crypto.SHA512, input: sendMAC,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_HMAC_SHA512, 64}},
	},
	{
		method: method{alias: "KMSMLDSA44", alg: "ML-DSA-44", verifier: mldsaVerifier{mldsa.MLDSA44()}}, format: kmspb.PublicKey_NIST_PQC, input: sendData, standalone: true,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44, mldsa.MLDSA44SignatureSize}},
	},
	{
		method: method{alias: "KMSMLDSA65", alg: "ML-DSA-65", verifier: mldsaVerifier{mldsa.MLDSA65()}}, format: kmspb.PublicKey_NIST_PQC, input: sendData, standalone: true,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65, mldsa.MLDSA65SignatureSize}},
	},
	{
		method: method{alias: "KMSMLDSA87", alg: "ML-DSA-87", verifier: mldsaVerifier{mldsa.MLDSA87()}}, format: kmspb.PublicKey_NIST_PQC, input: sendData, standalone: true,
		signatures: []kmsSignature{{kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87, mldsa.MLDSA87SignatureSize}},
	},
}

// kmsMethod returns the row of an alias.
func kmsMethod(alias string) *SigningMethodKMS {
	return kmsMethods[slices.IndexFunc(kmsMethods, func(m *SigningMethodKMS) bool { return m.alias == alias })]
}

// kmsMethodOf maps each supported KMS algorithm to its method.
var kmsMethodOf = func() map[kmsAlgorithm]*SigningMethodKMS {
	methods := make(map[kmsAlgorithm]*SigningMethodKMS)
	for _, m := range kmsMethods {
		for _, signature := range m.signatures {
			methods[signature.algorithm] = m
		}
	}
	return methods
}()

// kmsMethodByAlg maps each RFC algorithm to its method.
var kmsMethodByAlg = func() map[string]*SigningMethodKMS {
	methods := make(map[string]*SigningMethodKMS)
	for _, m := range kmsMethods {
		methods[m.alg] = m
	}
	return methods
}()

// strictPSS is a verifier that accepts no salt but that of RFC 7518. jwt's own
// PS methods accept any.
func strictPSS(stock *jwt.SigningMethodRSAPSS) verifier {
	options := &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}
	return &jwt.SigningMethodRSAPSS{SigningMethodRSA: stock.SigningMethodRSA, Options: options, VerifyOptions: options}
}

// Hash returns the hash function of the method's algorithm, 0 for EdDSA and
// ML-DSA, which hash by themselves.
func (m *SigningMethodKMS) Hash() crypto.Hash { return m.hash }

// Sign has Cloud KMS sign signingString and returns the signature in JWS form
// (RFC 7518 section 3). key is a context that carries a [KMSConfig], whose end
// ends the call.
//
// Sign cannot set a kid, as signingString holds the finished header;
// [SignedString] can.
func (m *SigningMethodKMS) Sign(signingString string, key any) ([]byte, error) {
	ctx, err := signingContext(key)
	if err != nil {
		return nil, err
	}
	return m.sign(ctx, func(string) (string, error) { return signingString, nil })
}

func (m *SigningMethodKMS) signedString(ctx context.Context, token *jwt.Token) (_ string, err error) {
	setAlg(token, m.alg)
	fixed, err := hasOwnKeyID(token)
	if err != nil {
		return "", err
	}
	if !fixed {
		defer forgetKeyID(token, &err)
	}
	var text string
	sig, err := m.sign(ctx, func(kid string) (string, error) {
		var header *issuedHeader
		if !fixed {
			header = setKeyID(token, m.alg, kid)
		}
		text, err = signingInput(token, header)
		return text, err
	})
	if err != nil {
		return "", err
	}
	return finish(token, text, sig), nil
}

// sign signs with the key version that the configuration in ctx leads to.
// signingString is asked for the text to sign once that version is known, and
// again if it turns out to have been disabled meanwhile.
func (m *SigningMethodKMS) sign(ctx context.Context, signingString func(kid string) (string, error)) ([]byte, error) {
	config, ok := KMSFromContext(ctx)
	if !ok {
		return nil, fmt.Errorf("%w: the context carries no *KMSConfig: make it with NewKMSContext", ErrMissingConfig)
	}
	key, err := config.key(ctx)
	if err != nil {
		return nil, err
	}
	version, err := key.signingVersion(ctx, m, nil)
	if err != nil {
		return nil, err
	}
	sig, err := m.signWith(ctx, key.client, version, signingString)
	if status.Code(err) == codes.FailedPrecondition {
		if other, otherErr := key.signingVersion(ctx, m, version); otherErr == nil {
			version = other
			sig, err = m.signWith(ctx, key.client, version, signingString)
		}
	}
	if err == nil && key.rotating != nil {
		remember(&key.rotating.lastKeyID, version.kid)
	}
	return sig, err
}

func (m *SigningMethodKMS) signWith(ctx context.Context, client *kms.KeyManagementClient, version *kmsVersion, signingString func(kid string) (string, error)) ([]byte, error) {
	text, err := signingString(version.kid)
	if err != nil {
		return nil, err
	}
	sig, err := m.call(ctx, client, version.name, text)
	if err != nil {
		return nil, err
	}
	for _, signature := range m.signatures {
		if len(sig) == signature.length {
			return sig, nil
		}
	}
	return nil, fmt.Errorf("%w: a signature of %d bytes by %s doesn't fit %s", ErrAlgorithmMismatch, len(sig), version.name, m.alias)
}

// maxData is what Cloud KMS takes where it hashes by itself.
const maxData = 64 << 10

// call makes the one RPC of a signature and checks its answer.
func (m *SigningMethodKMS) call(ctx context.Context, client *kms.KeyManagementClient, name, signingString string) ([]byte, error) {
	if m.input != sendDigest && len(signingString) > maxData {
		return nil, fmt.Errorf("gcpjwt: %s signs at most %d bytes of header and payload, not %d: use fewer or shorter claims", m.alias, maxData, len(signingString))
	}
	if m.input == sendMAC {
		return macSign(ctx, client, name, signingString)
	}

	request := &kmspb.AsymmetricSignRequest{Name: name}
	if m.input == sendData {
		request.Data = []byte(signingString)
		request.DataCrc32C = checksum(request.Data)
	} else {
		request.Digest, request.DigestCrc32C = digestOf(m.hash, []byte(signingString))
	}
	op := kmsCall{ctx, "sign with", name, "cloudkms.cryptoKeyVersions.useToSign (roles/cloudkms.signer)", signingString}
	var sig []byte
	err := op.attempt(func() error {
		response, err := client.AsymmetricSign(ctx, request)
		switch {
		case err != nil:
			return op.failed(err)
		case response.Name != name:
			return op.corrupt("it comes from %s", quote(response.Name))
		case m.input == sendDigest && !response.VerifiedDigestCrc32C,
			m.input == sendData && !response.VerifiedDataCrc32C:
			return op.corrupt("the request arrived unverified")
		case !intact(response.Signature, response.SignatureCrc32C):
			return op.corrupt("the signature's checksum is wrong")
		}
		sig = response.Signature
		if m.width > 0 {
			if sig, err = joseSignature(sig, m.width); err != nil {
				return op.corrupt("%v", err)
			}
		}
		return nil
	})
	return sig, err
}

// digestOf returns the digest of data as Cloud KMS takes it, and its checksum.
func digestOf(hash crypto.Hash, data []byte) (*kmspb.Digest, *wrapperspb.Int64Value) {
	switch hash {
	case crypto.SHA256:
		sum := sha256.Sum256(data)
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha256{Sha256: sum[:]}}, checksum(sum[:])
	case crypto.SHA384:
		sum := sha512.Sum384(data)
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha384{Sha384: sum[:]}}, checksum(sum[:])
	default:
		sum := sha512.Sum512(data)
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha512{Sha512: sum[:]}}, checksum(sum[:])
	}
}

// joseSignature turns an ASN.1 DER ECDSA signature into r||s of width bytes
// (RFC 7518 section 3.4). It takes exactly what DER allows: two minimal positive
// integers, each at most half of width long, and nothing after them.
func joseSignature(der []byte, width int) ([]byte, error) {
	var (
		input    = cryptobyte.String(der)
		sequence cryptobyte.String
		r, s     []byte
	)
	if !input.ReadASN1(&sequence, asn1.SEQUENCE) || !input.Empty() ||
		!sequence.ReadASN1Integer(&r) || !sequence.ReadASN1Integer(&s) || !sequence.Empty() {
		return nil, errors.New("the signature isn't ASN.1 DER of two positive integers")
	}
	half := width / 2
	for _, n := range [][]byte{r, s} {
		if len(n) > half || len(n) == 0 || n[0] == 0 {
			return nil, fmt.Errorf("the signature has a zero or more than %d bytes long integer", half)
		}
	}
	sig := make([]byte, width)
	copy(sig[half-len(r):], r)
	copy(sig[width-len(s):], s)
	return sig, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the CRC32C that Cloud KMS sends and expects.
func checksum(data []byte) *wrapperspb.Int64Value {
	return wrapperspb.Int64(int64(crc32.Checksum(data, castagnoli)))
}

// intact reports whether a response's checksum is there and right.
func intact(data []byte, sum *wrapperspb.Int64Value) bool {
	return sum != nil && sum.Value == int64(crc32.Checksum(data, castagnoli))
}
