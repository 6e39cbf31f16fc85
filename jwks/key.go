package jwks

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"filippo.io/mldsa"
	mldsax509 "filippo.io/mldsa/x509"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/go-jose/go-jose/v4"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
)

// A Key is a public key that signatures of tokens verify with.
type Key struct {
	// KeyID is the kid of tokens by the key. It is empty where tokens have none.
	KeyID string

	// Algorithm is the RFC name of the one algorithm that the key is for, such as
	// RS256. It is empty for a key that is for each algorithm of its type. EdDSA and
	// Ed25519 (RFC 9864) are two names of one algorithm: a key for either is for both.
	Algorithm string

	// Public is the key: an [*rsa.PublicKey] of 2048 to 4096 bits, an
	// [*ecdsa.PublicKey] on P-256 or P-384, an [ed25519.PublicKey], an
	// [*mldsa.PublicKey], or a [*secp256k1.PublicKey] for ES256K.
	Public crypto.PublicKey
}

// edDSA is the algorithm of Ed25519 keys by the older of its two names (RFC 8037),
// which every consumer knows.
const edDSA = "EdDSA"

// A kind is the type of a key as a JWK has it.
type kind struct{ kty, crv string }

var (
	kindRSA       = kind{kty: "RSA"}
	kindP256      = kind{"EC", "P-256"}
	kindP384      = kind{"EC", "P-384"}
	kindSecp256k1 = kind{"EC", "secp256k1"} // RFC 8812
	kindEd25519   = kind{"OKP", "Ed25519"}
	kindMLDSA     = kind{kty: "AKP"} // RFC 9964
)

// kindOf returns the kind of a public key, or an error if it is none or one that
// proves nothing.
func kindOf(public crypto.PublicKey) (kind, error) {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return kindRSA, checkRSA(key)
	case *ecdsa.PublicKey:
		return checkECDSA(key)
	case ed25519.PublicKey:
		if len(key) != ed25519.PublicKeySize {
			return kind{}, errors.New("an Ed25519 key of the wrong length")
		}
		return kindEd25519, nil
	case *secp256k1.PublicKey:
		if key == nil {
			return kind{}, errNoKey
		}
		_, err := secp256k1.ParsePubKey(key.SerializeUncompressed()) // checks the point
		return kindSecp256k1, err
	case *mldsa.PublicKey:
		if key == nil {
			return kind{}, errNoKey
		}
		// A zero key panics when it is asked for its parameters.
		switch len(key.Bytes()) {
		case mldsa.MLDSA44PublicKeySize, mldsa.MLDSA65PublicKeySize, mldsa.MLDSA87PublicKeySize:
			return kindMLDSA, nil
		}
		return kind{}, errNoKey
	}
	return kind{}, fmt.Errorf("no public key for signatures: %T", public)
}

var errNoKey = errors.New("a key without a value")

// checkRSA wants 2048 bits at least (RFC 7518 section 3.3) and the exponents that
// FIPS 186-5 allows. More than 4096 bits are more than Cloud KMS and service
// accounts have, and a way to make verifiers slow.
func checkRSA(key *rsa.PublicKey) error {
	switch {
	case key == nil || key.N == nil:
		return errNoKey
	case key.N.Sign() <= 0 || key.N.Bit(0) == 0:
		return errors.New("an RSA modulus that isn't odd")
	case key.N.BitLen() < 2048 || key.N.BitLen() > 4096:
		return fmt.Errorf("an RSA key of %d bits: want 2048 to 4096", key.N.BitLen())
	case key.E < 1<<16+1 || key.E > math.MaxInt32 || key.E&1 == 0:
		return errors.New("a public exponent of RSA that is even, small or huge")
	}
	return nil
}

func checkECDSA(key *ecdsa.PublicKey) (kind, error) {
	//lint:ignore SA1019 what comes next panics where they are missing
	if key == nil || key.X == nil || key.Y == nil {
		return kind{}, errNoKey
	}
	var k kind
	switch key.Curve {
	case elliptic.P256():
		k = kindP256
	case elliptic.P384():
		k = kindP384
	default:
		return kind{}, errors.New("an elliptic curve other than P-256 and P-384")
	}
	if _, err := key.ECDH(); err != nil { // checks the point
		return kind{}, err
	}
	return k, nil
}

// check returns the kind of a key that may be published or used, and else an
// error.
func (k Key) check() (kind, error) {
	kind, err := kindOf(k.Public)
	if err != nil || k.Algorithm == "" {
		return kind, err
	}
	a := algorithm.ByName(k.Algorithm)
	if a == nil || !slices.Contains(algorithm.ForKey(k.Public), a.Key) {
		return kind, misfit{k.Algorithm, kind}
	}
	return kind, nil
}

// misfit is the error of a key that is said to be for another kind's algorithm.
type misfit struct {
	algorithm string
	kind      kind
}

func (m misfit) Error() string {
	return strings.TrimSpace(fmt.Sprintf("%s is not for keys of type %s %s", m.algorithm, m.kind.kty, m.kind.crv))
}

// serves returns the algorithms of tokens that a key may verify which passes check:
// EdDSA stands for Ed25519, too.
func (k Key) serves() []string {
	if k.Algorithm == "" {
		return algorithm.ForKey(k.Public)
	}
	return []string{algorithm.ByName(k.Algorithm).Key}
}

// Fingerprint returns "SHA256:" and the padded base64 of the SHA-256 of the key's
// DER SubjectPublicKeyInfo. That is the form in which Snowflake shows keys and
// wants them in the issuer of a token. It is "" where Public is no key that
// [Marshal] takes.
func (k Key) Fingerprint() string {
	if _, err := kindOf(k.Public); err != nil {
		return ""
	}
	der, err := marshalPKIX(k.Public)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(der)
	return "SHA256:" + base64.StdEncoding.EncodeToString(sum[:])
}

var (
	oidECPublicKey = asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1}
	oidSecp256k1   = asn1.ObjectIdentifier{1, 3, 132, 0, 10}
)

// marshalPKIX returns a DER SubjectPublicKeyInfo. The standard library has none
// for secp256k1 (RFC 5480 section 2).
func marshalPKIX(public crypto.PublicKey) ([]byte, error) {
	key, ok := public.(*secp256k1.PublicKey)
	if !ok {
		return mldsax509.MarshalPKIXPublicKey(public) // of all other kinds, too
	}
	curve, err := asn1.Marshal(oidSecp256k1)
	if err != nil {
		return nil, err
	}
	point := key.SerializeUncompressed()
	return asn1.Marshal(struct {
		Algorithm pkix.AlgorithmIdentifier
		PublicKey asn1.BitString
	}{
		pkix.AlgorithmIdentifier{Algorithm: oidECPublicKey, Parameters: asn1.RawValue{FullBytes: curve}},
		asn1.BitString{Bytes: point, BitLength: 8 * len(point)},
	})
}

// Thumbprint returns the key's JWK SHA-256 thumbprint in base64url (RFC 7638,
// RFC 8037, RFC 9964 section 6), which many use as a kid. It is "" where Public is
// no key that [Marshal] takes.
func (k Key) Thumbprint() string {
	_, err := kindOf(k.Public)
	if err != nil {
		return ""
	}
	var sum []byte
	switch key := k.Public.(type) {
	case *mldsa.PublicKey:
		sum = sha256Of(fmt.Sprintf(`{"alg":"%s","kty":"AKP","pub":"%s"}`, key.Parameters(), encode(key.Bytes())))
	case *secp256k1.PublicKey:
		x, y := coordinates(key)
		sum = sha256Of(fmt.Sprintf(`{"crv":"secp256k1","kty":"EC","x":"%s","y":"%s"}`, x, y))
	default:
		if sum, err = (&jose.JSONWebKey{Key: key}).Thumbprint(crypto.SHA256); err != nil {
			return ""
		}
	}
	return encode(sum)
}

func sha256Of(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// coordinates returns the x and y of a JWK.
func coordinates(key *secp256k1.PublicKey) (x, y string) {
	point := key.SerializeUncompressed()[1:]
	return encode(point[:32]), encode(point[32:])
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }
