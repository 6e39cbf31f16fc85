// Package jwks publishes public keys as JWK Sets (RFC 7517) and OpenID discovery
// documents, for verifiers of any kind: API gateways, service meshes, Kubernetes,
// workload identity federation, and the JWT libraries of all languages. It verifies
// tokens by such sets, too.
//
// Keys come from a [Source], such as a *gcpjwt.KMSConfig or a *gcpjwt.Signer.
// [NewHandler] publishes them as a JWK Set; [NewDiscoveryHandler] also lets consumers
// find it by the issuer's name. On their side [NewKeyfunc] makes a jwt.Keyfunc of
// either.
//
// The package links neither gRPC nor any of Google's clients.
package jwks

import "github.com/someone1/gcp-jwt-go/v3/internal/errs"

// The errors of this package. They are the same values as those of package gcpjwt.
var (
	ErrKeysUnavailable   = errs.ErrKeysUnavailable
	ErrUnknownKeyID      = errs.ErrUnknownKeyID
	ErrAlgorithmMismatch = errs.ErrAlgorithmMismatch
	ErrInvalidConfig     = errs.ErrInvalidConfig
)
