package algorithm

import (
	"crypto/rsa"
	"crypto/sha256"

	"filippo.io/mldsa"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// verifier is a method of an algorithm that jwt doesn't have. It only verifies.
type verifier struct {
	name   string
	verify func(signingString string, sig []byte, key any) error
}

func (v *verifier) Alg() string { return v.name }

func (v *verifier) Verify(signingString string, sig []byte, key any) error {
	return v.verify(signingString, sig, key)
}

func (v *verifier) Sign(string, any) ([]byte, error) {
	return nil, errs.Errorf("this %s method only verifies: sign with one of package gcpjwt: %w", v.name, jwt.ErrInvalidKeyType)
}

// strictPSS accepts no salt but one as long as the hash (RFC 7518 section 3.5). jwt's own
// methods accept any.
func strictPSS(stock *jwt.SigningMethodRSAPSS) jwt.SigningMethod {
	options := &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}
	return &jwt.SigningMethodRSAPSS{SigningMethodRSA: stock.SigningMethodRSA, Options: options, VerifyOptions: options}
}

// verifyES256K checks r||s of 32 bytes each, both in [1, n-1] (RFC 8812 section 3.2). It
// accepts a high s: the RFC does, and other signers make them.
func verifyES256K(signingString string, sig []byte, key any) error {
	public, ok := key.(*secp256k1.PublicKey)
	if !ok || public == nil {
		return errs.Errorf("ES256K verify expects a *secp256k1.PublicKey, not %T: %w", key, jwt.ErrInvalidKeyType)
	}
	var r, s secp256k1.ModNScalar
	if len(sig) != 64 || r.SetByteSlice(sig[:32]) || s.SetByteSlice(sig[32:]) || r.IsZero() || s.IsZero() {
		return jwt.ErrTokenSignatureInvalid
	}
	digest := sha256.Sum256([]byte(signingString))
	if !ecdsa.NewSignature(&r, &s).Verify(digest[:], public) {
		return jwt.ErrTokenSignatureInvalid
	}
	return nil
}

// verifyMLDSA checks signatures with an empty context string (RFC 9964).
func verifyMLDSA(params mldsa.Parameters) func(string, []byte, any) error {
	return func(signingString string, sig []byte, key any) error {
		public, ok := key.(*mldsa.PublicKey)
		if !ok || public == nil || public.Parameters() != params {
			return errs.Errorf("%s verify expects an *mldsa.PublicKey of its parameters, not %T: %w", params, key, jwt.ErrInvalidKeyType)
		}
		if err := mldsa.Verify(public, []byte(signingString), sig, nil); err != nil {
			return errs.Errorf("%w: %w", jwt.ErrTokenSignatureInvalid, err)
		}
		return nil
	}
}
