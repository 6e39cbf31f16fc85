package gcpjwt

import (
	"context"
	"sync/atomic"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// method is what all signing methods share: two names and a verifier. jwt
// knows a method by its alias, so that importing this package changes nothing
// for users of jwt's own methods.
type method struct {
	alias      string
	algorithm  *algorithm.Algorithm // nil: the zero value, which is no method
	verify     func(signingString string, sig []byte, key any) error
	self       jwt.SigningMethod // the method that Override registers
	original   *method           // that of self
	overridden atomic.Bool
}

// implement gives the method its alias, and the names and the verifier of an algorithm.
func (m *method) implement(alias string, a *algorithm.Algorithm) {
	m.alias, m.algorithm, m.verify = alias, a, a.Method.Verify
}

// Alg returns the name that jwt writes into the header of a new token: the
// method's alias until Override is called, its RFC name afterwards.
// [SignedString] always writes the RFC name.
func (m *method) Alg() string {
	if m.overridden.Load() {
		return m.algorithm.Name
	}
	return m.alias
}

// Override registers the method with jwt under its RFC name, in place of jwt's
// own, for the whole process: tokens that jwt.Parse reads from then on have
// this method. It may be called at any time and more than once; of two methods
// with the same RFC name the last one overridden is registered. Nothing in this
// package needs it: [SignedString], [Signer] and the Keyfuncs work without.
func (m *method) Override() {
	if m.algorithm == nil {
		return
	}
	m.original.overridden.Store(true)
	jwt.RegisterSigningMethod(m.algorithm.Name, func() jwt.SigningMethod { return m.self })
}

// Verify checks a signature of signingString with key, which is the public key
// that jwt's own method of the same RFC name takes. A wrong signature is
// [jwt.ErrSignatureInvalid], a key of another type [jwt.ErrInvalidKeyType].
func (m *method) Verify(signingString string, sig []byte, key any) error {
	if m.algorithm == nil {
		return errNoMethod
	}
	return m.verify(signingString, sig, key)
}

// isMethod tells a method from a zero value, or from a nil pointer to one.
func (m *method) isMethod() bool { return m != nil && m.algorithm != nil }

var errNoMethod = errs.Errorf("the zero value is no signing method: "+
	"use one of this package's variables: %w", jwt.ErrInvalidKeyType)

// checkSign checks what Sign was given, and returns the context that is its key.
func (m *method) checkSign(signingString string, key any) (context.Context, error) {
	if m.algorithm == nil {
		return nil, errNoMethod
	}
	ctx, ok := key.(context.Context)
	if !ok || ctx == nil {
		return nil, errs.Errorf("Sign takes a context.Context that carries the configuration, "+
			"not %T: %w", key, jwt.ErrInvalidKeyType)
	}
	return ctx, checkPayload(signingString)
}

// register makes the method known to jwt under its alias, and under its RFC name where
// jwt has none of that name.
func (m *method) register(self jwt.SigningMethod) {
	m.self, m.original = self, m
	algorithm.Adopt(self, m.algorithm)
	jwt.RegisterSigningMethod(m.alias, func() jwt.SigningMethod { return self })
}

func init() {
	for _, m := range kmsMethods {
		if m.isMAC() {
			m.verify = m.verifyMAC
		}
		m.register(m)
		if jwt.GetSigningMethod(m.algorithm.Name) == m.algorithm.Method && !m.algorithm.Stock() {
			m.answerToRFCName()
		}
	}
	SigningMethodIAMBlob.register(SigningMethodIAMBlob)
	SigningMethodIAMJWT.register(SigningMethodIAMJWT)
	SigningMethodAppEngine.register(SigningMethodAppEngine)
}

// answerToRFCName registers the method under its RFC name. The one that jwt finds there
// has that name from the start, while the original keeps its alias until Override.
func (m *SigningMethodKMS) answerToRFCName() {
	named := &SigningMethodKMS{hash: m.hash, rows: m.rows}
	named.alias, named.algorithm, named.verify = m.alias, m.algorithm, m.verify
	named.self, named.original = m, &m.method
	named.overridden.Store(true)
	algorithm.Adopt(named, m.algorithm)
	jwt.RegisterSigningMethod(m.algorithm.Name, func() jwt.SigningMethod { return named })
}
