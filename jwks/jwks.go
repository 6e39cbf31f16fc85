// Package jwks publishes public keys as JWK Sets (RFC 7517) and OpenID discovery
// documents. It also verifies tokens by such sets.
//
// Published keys are for verifiers of any kind: API gateways, service meshes, Kubernetes,
// workload identity federation, and the JWT libraries of all languages. Keys come from a
// [Source], such as a *gcpjwt.KMSConfig or a *gcpjwt.Signer. [NewHandler] publishes them
// as a JWK Set. [NewDiscoveryHandler] also lets consumers find it by the issuer's name.
//
// A Go program that only verifies has a jwt.Keyfunc from [NewKeyfunc], by the address of
// a set or by the issuer's name. It needs no Google Cloud.
//
// The package is light. It links neither gRPC nor any client of Google's.
package jwks

import "github.com/someone1/gcp-jwt-go/v3/internal/errs"

// The errors of this package. They are the same values as those of package gcpjwt.
var (
	ErrKeysUnavailable   = errs.ErrKeysUnavailable
	ErrUnknownKeyID      = errs.ErrUnknownKeyID
	ErrAlgorithmMismatch = errs.ErrAlgorithmMismatch
	ErrInvalidConfig     = errs.ErrInvalidConfig
)
