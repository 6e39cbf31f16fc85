package gcpjwt

import (
	"filippo.io/mldsa"
	"fmt"
	"github.com/golang-jwt/jwt/v5"
)

// The ML-DSA signing methods (FIPS 204, RFC 9964), whose signatures are 2420,
// 3309 and 4627 bytes long. jwt has no such methods, so they are registered
// under their RFC names (ML-DSA-44, ML-DSA-65, ML-DSA-87) too, without Override.
// For Verify they take a [*mldsa.PublicKey].
var (
	SigningMethodKMSMLDSA44 = kmsMethod("KMSMLDSA44") // ML-DSA-44: PQ_SIGN_ML_DSA_44
	SigningMethodKMSMLDSA65 = kmsMethod("KMSMLDSA65") // ML-DSA-65: PQ_SIGN_ML_DSA_65
	SigningMethodKMSMLDSA87 = kmsMethod("KMSMLDSA87") // ML-DSA-87: PQ_SIGN_ML_DSA_87
)

// mldsaVerifier verifies ML-DSA signatures with an empty context string, as
// RFC 9964 has it and Cloud KMS makes them.
type mldsaVerifier struct{ params mldsa.Parameters }

func (v mldsaVerifier) Verify(signingString string, sig []byte, key any) error {
	public, ok := key.(*mldsa.PublicKey)
	if !ok || public == nil || public.Parameters() != v.params {
		return fmt.Errorf("gcpjwt: %s verify expects an *mldsa.PublicKey of its parameters, not %T: %w", v.params, key, jwt.ErrInvalidKeyType)
	}
	if err := mldsa.Verify(public, []byte(signingString), sig, nil); err != nil {
		return fmt.Errorf("gcpjwt: %w: %w", jwt.ErrTokenSignatureInvalid, err)
	}
	return nil
}

// parseMLDSA reads a public key in NIST_PQC form, which is its FIPS 204 encoding.
func parseMLDSA(m *SigningMethodKMS, data []byte) (any, error) {
	return mldsa.NewPublicKey(m.verifier.(mldsaVerifier).params, data)
}

// answerToRFCName registers the method under its RFC name, unless jwt has learnt
// that itself by then.
func (m *SigningMethodKMS) answerToRFCName() {
	if jwt.GetSigningMethod(m.alg) != nil {
		return
	}
	named := &SigningMethodKMS{
		method: method{alias: m.alias, alg: m.alg, verifier: m.verifier, self: m, original: &m.method},
		hash:   m.hash, input: m.input, signatures: m.signatures, format: m.format, standalone: true,
	}
	named.overridden.Store(true)
	jwt.RegisterSigningMethod(m.alg, func() jwt.SigningMethod { return named })
}
