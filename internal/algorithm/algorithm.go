// Package algorithm is the table of the signature algorithms of JOSE that this module
// verifies: their names, the keys they are for, and how strictly signatures are checked.
package algorithm

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"math/big"
	"reflect"

	"filippo.io/mldsa"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/golang-jwt/jwt/v5"
)

// An Algorithm is one row.
type Algorithm struct {
	// Name is the algorithm's name in a token's header (RFC 7518, 8037, 8812, 9864, 9964).
	Name string

	// Key is the name under which keys are listed: that of the algorithm, but EdDSA for
	// Ed25519, as one key verifies tokens of both names.
	Key string

	// Method verifies. It is jwt's own unless that is laxer than the RFC or missing.
	Method jwt.SigningMethod

	// Strict says that Method has to stand in for jwt's own.
	Strict bool

	// MAC says that keys are secret and the signature is a MAC.
	MAC bool

	// Order is that of the curve, for ECDSA: signatures are r||s, each as long as it
	// and less than it.
	Order *big.Int
}

// table holds all algorithms. RS384, PS384 and their like have no keys in Cloud KMS, but
// a JWK Set of somebody else's may.
var table = []*Algorithm{
	{Name: "RS256", Method: jwt.SigningMethodRS256},
	{Name: "RS384", Method: jwt.SigningMethodRS384},
	{Name: "RS512", Method: jwt.SigningMethodRS512},
	{Name: "PS256", Method: strictPSS(jwt.SigningMethodPS256), Strict: true},
	{Name: "PS384", Method: strictPSS(jwt.SigningMethodPS384), Strict: true},
	{Name: "PS512", Method: strictPSS(jwt.SigningMethodPS512), Strict: true},
	{Name: "ES256", Method: jwt.SigningMethodES256, Order: elliptic.P256().Params().N},
	{Name: "ES384", Method: jwt.SigningMethodES384, Order: elliptic.P384().Params().N},
	{Name: "ES256K", Method: &verifier{"ES256K", verifyES256K}, Order: secp256k1.Params().N},
	{Name: "EdDSA", Method: jwt.SigningMethodEdDSA},
	{Name: "Ed25519", Key: "EdDSA", Method: &verifier{"Ed25519", jwt.SigningMethodEdDSA.Verify}},
	{Name: "HS256", Method: jwt.SigningMethodHS256, MAC: true},
	{Name: "HS384", Method: jwt.SigningMethodHS384, MAC: true},
	{Name: "HS512", Method: jwt.SigningMethodHS512, MAC: true},
	{Name: "ML-DSA-44", Method: &verifier{"ML-DSA-44", verifyMLDSA(mldsa.MLDSA44())}},
	{Name: "ML-DSA-65", Method: &verifier{"ML-DSA-65", verifyMLDSA(mldsa.MLDSA65())}},
	{Name: "ML-DSA-87", Method: &verifier{"ML-DSA-87", verifyMLDSA(mldsa.MLDSA87())}},
}

var (
	byName = make(map[string]*Algorithm)

	// byMethod has every method that a token may have: jwt's own and those adopted.
	// It is written while packages are initialized only.
	byMethod = make(map[jwt.SigningMethod]*Algorithm)
)

func init() {
	for _, a := range table {
		if a.Key == "" {
			a.Key = a.Name
		}
		byName[a.Name] = a
		byMethod[a.Method] = a
		if stock := jwt.GetSigningMethod(a.Name); stock != nil {
			byMethod[stock] = a
			continue
		}
		// jwt refuses a token before the Keyfunc sees it if it doesn't know the name.
		jwt.RegisterSigningMethod(a.Name, func() jwt.SigningMethod { return a.Method })
	}
}

// Stock reports whether Method is jwt's own, or a stricter form of it.
func (a *Algorithm) Stock() bool {
	_, ours := a.Method.(*verifier)
	return !ours
}

// ByName returns the algorithm of a name, nil if there is none.
func ByName(name string) *Algorithm { return byName[name] }

// OfToken returns the algorithm of a parsed token, nil if its method is none that this
// module or jwt has for it.
func OfToken(token *jwt.Token) *Algorithm {
	if token.Method == nil || reflect.TypeOf(token.Method).Kind() != reflect.Pointer {
		return nil // and not to be looked up: it may not be comparable
	}
	return byMethod[token.Method]
}

// Adopt makes a method known that signs by an algorithm. It is for package initialization.
func Adopt(method jwt.SigningMethod, a *Algorithm) { byMethod[method] = a }

// ForKey returns the names of the algorithms that a public key may serve, nil if there are
// none.
func ForKey(public any) []string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			return []string{"ES256"}
		case elliptic.P384():
			return []string{"ES384"}
		}
	case *secp256k1.PublicKey:
		return []string{"ES256K"}
	case ed25519.PublicKey:
		return []string{"EdDSA"}
	case *mldsa.PublicKey:
		return []string{key.Parameters().String()}
	}
	return nil
}
