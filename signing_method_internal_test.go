package gcpjwt

import (
	"github.com/golang-jwt/jwt/v5"
)

// KMSUndoOverride makes jwt know a method as it was on import.
func KMSUndoOverride(m *SigningMethodKMS) {
	m.overridden.Store(false)
	name := m.algorithm.Name
	for _, stock := range []jwt.SigningMethod{
		jwt.SigningMethodRS256, jwt.SigningMethodRS512, jwt.SigningMethodPS256, jwt.SigningMethodPS512,
		jwt.SigningMethodES256, jwt.SigningMethodES384, jwt.SigningMethodEdDSA,
		jwt.SigningMethodHS256, jwt.SigningMethodHS384, jwt.SigningMethodHS512,
	} {
		if stock.Alg() == name {
			jwt.RegisterSigningMethod(name, func() jwt.SigningMethod { return stock })
			return
		}
	}
	m.answerToRFCName()
}
