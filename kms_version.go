package gcpjwt

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"weak"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
	"github.com/someone1/gcp-jwt-go/v3/internal/registry"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// kmsVersions is what is known of CryptoKeyVersions. It belongs to the process, as a
// version's public key never changes. The client is part of the identity as it decides what a
// name means (and is held weakly, so that a closed one can be collected).
var kmsVersions = registry.New[kmsVersionID, kmsVersion]()

type kmsVersionID struct {
	client weak.Pointer[kms.KeyManagementClient]
	name   string
}

// kmsVersion is what is known of one CryptoKeyVersion.
type kmsVersion struct {
	name   string
	kid    string
	public refresh.Value[*kmsPublicKey]
	read   atomic.Pointer[kmsPublicKey] // public, once there is a key, which is for good
	traits atomic.Pointer[kmsTraits]    // nil: not known yet
	signed atomic.Bool                  // in this process
	header plainHeader
}

// kmsTraits are what a version is by its algorithm, for good.
type kmsTraits struct {
	algorithm kmsAlgorithm
	method    *SigningMethodKMS // for the algorithm; nil if there is none
	external  bool              // kept outside of Google: it takes data, not a digest
}

func newTraits(algorithm kmsAlgorithm, level kmspb.ProtectionLevel) *kmsTraits {
	external := level == kmspb.ProtectionLevel_EXTERNAL || level == kmspb.ProtectionLevel_EXTERNAL_VPC
	return &kmsTraits{algorithm, kmsMethodFor[algorithm], external}
}

// kmsPublicKey is a version's public key as GetPublicKey returned it, or why it didn't.
type kmsPublicKey struct {
	traits *kmsTraits
	key    any    // nil if no method is for the algorithm
	prefix []byte // of what a digest by the key is made of, which only ML-DSA has
	mac    bool   // it is a MAC key, which has none, and the rest isn't known

	denied error     // the permission is missing
	asked  time.Time // when it was
}

func versionOf(client *kms.KeyManagementClient, name string) *kmsVersion {
	return kmsVersions.Get(kmsVersionID{weak.Make(client), name}, func() *kmsVersion {
		return &kmsVersion{name: name, kid: KMSKeyID(name)}
	})
}

// publicKey returns the version's public key, which is fetched once. preferred is the format
// to ask for first. The error is that of a permission that is missing, too.
func (v *kmsVersion) publicKey(
	ctx context.Context, client *kms.KeyManagementClient, preferred keyFormat,
) (*kmsPublicKey, error) {
	if key := v.read.Load(); key != nil {
		return key, nil // without a look at the clock, which is a third of what a Keyfunc takes
	}
	key, ok := v.public.Current()
	if !ok {
		var err error
		if key, err = v.public.Get(ctx, &publicKeySource{client, v, preferred}); err != nil {
			return nil, err
		}
	}
	return key, key.denied
}

// neededKey is publicKey for callers who cannot do without. A permission that was missing is
// looked for again after a moment, as it may have been granted since.
func (v *kmsVersion) neededKey(
	ctx context.Context, client *kms.KeyManagementClient, preferred keyFormat,
) (*kmsPublicKey, error) {
	key, err := v.publicKey(ctx, client, preferred)
	if key == nil || key.denied == nil || time.Since(key.asked) < keyset.NotReadyPause {
		return key, err
	}
	denied := func(key *kmsPublicKey) bool { return key.denied != nil }
	source := &publicKeySource{client, v, preferred}
	key, err = v.public.Renew(ctx, source, key, keyset.NotReadyPause, denied)
	if err != nil {
		return nil, err
	}
	return key, key.denied
}

// fits reports whether a version may sign with m. A caller who may not read the
// public key may still sign, so then nothing is known and nothing is wrong.
func (v *kmsVersion) fits(
	ctx context.Context, client *kms.KeyManagementClient, m *SigningMethodKMS,
) error {
	traits := v.traits.Load()
	if traits == nil {
		public, err := v.publicKey(ctx, client, m.format())
		code := rpcCode(err)
		isMAC := err == nil && public.mac
		switch {
		case code == codes.PermissionDenied:
			return nil
		case code == codes.FailedPrecondition && m.isMAC(), isMAC && m.isMAC():
			return nil // it has no public key, or isn't ready, which the call will say
		case code == codes.FailedPrecondition:
			mac, _ := probeMAC(ctx, client, v.name)
			isMAC = mac != nil
		}
		switch {
		case isMAC:
			return errs.Errorf("%w: %s needs a key of algorithm %s, and %s is a MAC key",
				errs.ErrAlgorithmMismatch, m.alias, m.algorithmNames(), v.name)
		case err != nil:
			return err
		}
		traits = v.traits.Load()
	}
	if _, ok := m.row(traits.algorithm); !ok {
		return errs.Errorf("%w: %s needs a key of algorithm %s, and %s is %s",
			errs.ErrAlgorithmMismatch, m.alias, m.algorithmNames(), v.name, traits.algorithm)
	}
	return nil
}

// errNoMethodFor reports a key of an algorithm that no signing method is for.
func errNoMethodFor(name string, algorithms ...kmsAlgorithm) error {
	var has []string
	for _, algorithm := range algorithms {
		if name := algorithm.String(); !slices.Contains(has, name) {
			has = append(has, name)
		}
	}
	return errs.Errorf("%w: no signing method is for %s, which is of algorithm %s; use a key of %s",
		errs.ErrAlgorithmMismatch, name, strings.Join(has, ", "), allAlgorithms())
}

// errNoMethodForMAC reports a MAC key of such an algorithm.
func errNoMethodForMAC(name string) error {
	return errs.Errorf("%w: no signing method is for %s, whose MACs have another length; use a key of %s",
		errs.ErrAlgorithmMismatch, name, allAlgorithms())
}

// allAlgorithms names those that signing methods are for.
func allAlgorithms() string {
	var wants []string
	for _, m := range kmsMethods {
		for _, row := range m.rows {
			if name := row.algorithm.String(); !slices.Contains(wants, name) {
				wants = append(wants, name)
			}
		}
	}
	return strings.Join(wants, ", ")
}

func (m *SigningMethodKMS) algorithmNames() string {
	var names []string
	for _, row := range m.rows {
		names = append(names, row.algorithm.String())
	}
	return strings.Join(names, " or ")
}

type keyFormat = kmspb.PublicKey_PublicKeyFormat

// publicKeySource fetches a version's public key.
type publicKeySource struct {
	client    *kms.KeyManagementClient
	version   *kmsVersion
	preferred keyFormat
}

const (
	// forever is the lifetime of what never changes.
	forever = 100 * 365 * 24 * time.Hour

	// deniedLifetime is how long a missing permission to read a public key is
	// remembered, so that a caller who may only sign doesn't pay for it each time.
	deniedLifetime = time.Minute
)

// Fetch reads the public key, or finds that it may not be read.
func (s *publicKeySource) Fetch(ctx context.Context) (*kmsPublicKey, refresh.Lifetime, error) {
	ctx, cancel := context.WithTimeout(ctx, keyset.ReadTimeout)
	defer cancel()
	key, err := s.fetch(ctx)
	switch rpcCode(err) {
	case codes.PermissionDenied:
		key = &kmsPublicKey{denied: err, asked: time.Now()}
		return key, refresh.Lifetime{
			Renew: deniedLifetime / 2, Fresh: deniedLifetime, Stale: versionsStale,
		}, nil
	case codes.FailedPrecondition, codes.InvalidArgument:
		key, err = s.explain(ctx, err)
	}
	if err != nil {
		return nil, afterFailure(err), err
	}
	if !key.mac {
		s.version.traits.Store(key.traits)
		s.version.read.Store(key)
	}
	return key, refresh.Lifetime{Renew: forever, Fresh: forever}, nil
}

// explain finds out whether a public key was refused because of what the CryptoKey is for,
// which never changes. It takes a permission that few callers have; others learn no more
// than they were told.
func (s *publicKeySource) explain(ctx context.Context, refusal error) (*kmsPublicKey, error) {
	path, err := parseKeyPath(s.version.name)
	if err != nil {
		return nil, err
	}
	op := calling{verb: "look at", name: path.cryptoKey}
	var key *kmspb.CryptoKey
	err = op.do(ctx, retry.Read, func(ctx context.Context) (err error) {
		key, err = s.client.GetCryptoKey(ctx, &kmspb.GetCryptoKeyRequest{Name: path.cryptoKey}, once)
		return err
	})
	if err != nil {
		return nil, refusal
	}
	switch key.Purpose {
	case kmspb.CryptoKey_MAC:
		return &kmsPublicKey{mac: true}, nil
	case kmspb.CryptoKey_ASYMMETRIC_SIGN, kmspb.CryptoKey_CRYPTO_KEY_PURPOSE_UNSPECIFIED:
		return nil, refusal
	}
	return nil, errNoMethodFor(s.version.name, key.GetVersionTemplate().GetAlgorithm())
}

// Failed says nothing: all that is ever read again is a permission that is missing.
func (s *publicKeySource) Failed(error, *kmsPublicKey) {}

// Replaced says nothing either.
func (s *publicKeySource) Replaced(_, _ *kmsPublicKey) {}

// fetch asks for the preferred format. Cloud KMS refuses what it doesn't have, so that a key
// of another kind than expected takes a second call. So does a server that knows no formats.
func (s *publicKeySource) fetch(ctx context.Context) (*kmsPublicKey, error) {
	const unset = kmspb.PublicKey_PUBLIC_KEY_FORMAT_UNSPECIFIED
	formats := []keyFormat{kmspb.PublicKey_PEM, kmspb.PublicKey_NIST_PQC}
	if s.preferred == kmspb.PublicKey_NIST_PQC {
		slices.Reverse(formats)
	}
	key, err := s.fetchAs(ctx, formats[0])
	switch {
	case rpcCode(err) == codes.InvalidArgument || errors.Is(err, errOtherFormat):
		key, err = s.fetchAs(ctx, formats[1])
	case rpcCode(err) == codes.Unimplemented:
		key, err = s.fetchAs(ctx, unset)
	}
	return key, err
}

// errOtherFormat reports an ML-DSA key that was asked for in PEM.
var errOtherFormat = errors.New("the key has another format")

const viewPublicKey = "cloudkms.cryptoKeyVersions.viewPublicKey (roles/cloudkms.publicKeyViewer)"

func (s *publicKeySource) fetchAs(ctx context.Context, format keyFormat) (*kmsPublicKey, error) {
	name := s.version.name
	op := calling{verb: "read the public key of", name: name, grant: viewPublicKey, missing: "KeyPath"}
	var key *kmsPublicKey
	err := op.do(ctx, retry.Read, func(ctx context.Context) error {
		request := &kmspb.GetPublicKeyRequest{Name: name, PublicKeyFormat: format}
		response, err := s.client.GetPublicKey(ctx, request, once)
		if err != nil {
			return err
		}
		data, sum := response.GetPublicKey().GetData(), response.GetPublicKey().GetCrc32CChecksum()
		if response.PublicKey == nil {
			data, sum = []byte(response.Pem), response.PemCrc32C
		}
		switch {
		case response.Name != name:
			return op.corrupt("it comes from %s", errs.Quote(response.Name))
		case !intact(data, sum):
			return op.corrupt("the key's checksum is wrong")
		case response.Algorithm == kmspb.CryptoKeyVersion_CRYPTO_KEY_VERSION_ALGORITHM_UNSPECIFIED:
			return op.corrupt("it has no algorithm")
		}
		traits := newTraits(response.Algorithm, response.ProtectionLevel)
		public, err := parsePublicKey(traits, format, data)
		if err != nil && !errors.Is(err, errOtherFormat) {
			return op.corrupt("%w", err)
		}
		key = &kmsPublicKey{traits: traits, key: public}
		if public, ok := public.(*mldsa.PublicKey); ok {
			key.prefix = muPrefix(public)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return key, nil
}

// parsePublicKey reads what GetPublicKey returned. A key of an algorithm that no
// method is for is left unread.
func parsePublicKey(traits *kmsTraits, format keyFormat, data []byte) (any, error) {
	m := traits.method
	switch {
	case m == nil:
		return nil, nil
	case m.format() == kmspb.PublicKey_NIST_PQC:
		if format != kmspb.PublicKey_NIST_PQC {
			return nil, errOtherFormat
		}
		return mldsa.NewPublicKey(mldsaParameters[m.algorithm.Name], data)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("the key isn't in PEM")
	}
	key, err := parseSPKI(m, block.Bytes)
	if err != nil {
		return nil, errs.Errorf("the key isn't a public key: %w", err)
	}
	length := 0 // of the key's signatures in a token
	switch key := key.(type) {
	case *rsa.PublicKey:
		length = key.Size()
	case *ecdsa.PublicKey:
		length = 2 * ((key.Curve.Params().BitSize + 7) / 8)
	case *secp256k1.PublicKey:
		length = 64
	case ed25519.PublicKey:
		length = ed25519.SignatureSize
	}
	_, rsa := key.(*rsa.PublicKey)
	row, _ := m.row(traits.algorithm)
	if elliptic := m.algorithm.Order != nil; length != row.length || rsa == (elliptic || m.hash == 0) {
		return nil, errs.Errorf("the key isn't one of algorithm %s", traits.algorithm)
	}
	return key, nil
}

var mldsaParameters = map[string]mldsa.Parameters{
	"ML-DSA-44": mldsa.MLDSA44(), "ML-DSA-65": mldsa.MLDSA65(), "ML-DSA-87": mldsa.MLDSA87(),
}

// parseSPKI reads a SubjectPublicKeyInfo. crypto/x509 doesn't know secp256k1.
func parseSPKI(m *SigningMethodKMS, der []byte) (any, error) {
	if m != SigningMethodKMSES256K {
		return x509.ParsePKIXPublicKey(der)
	}
	var info struct {
		Algorithm struct{ Algorithm, Curve asn1.ObjectIdentifier }
		Point     asn1.BitString
	}
	rest, err := asn1.Unmarshal(der, &info)
	if err != nil {
		return nil, err
	}
	ecPublicKey := asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1}
	curve := asn1.ObjectIdentifier{1, 3, 132, 0, 10}
	if len(rest) > 0 || !info.Algorithm.Algorithm.Equal(ecPublicKey) ||
		!info.Algorithm.Curve.Equal(curve) || info.Point.BitLength%8 != 0 {
		return nil, errors.New("it isn't one of secp256k1")
	}
	return secp256k1.ParsePubKey(info.Point.Bytes)
}

// muPrefix returns what ML-DSA's digest is made with.
func (v *kmsVersion) muPrefix(
	ctx context.Context, client *kms.KeyManagementClient, m *SigningMethodKMS,
) ([]byte, error) {
	public, err := v.neededKey(ctx, client, m.format())
	if err != nil {
		return nil, err
	}
	if public.prefix == nil {
		return nil, errs.Errorf("%w: %s is not of the algorithm that it was listed with",
			errs.ErrIntegrity, v.name)
	}
	return public.prefix, nil
}

// versionResolver supplies what tokens by a version verify with.
type versionResolver struct {
	client  *kms.KeyManagementClient
	version *kmsVersion
	method  *SigningMethodKMS
}

// Resolve returns the version's public key, or how to reach its MAC key.
func (r *versionResolver) Resolve(ctx context.Context) (any, jwt.SigningMethod, error) {
	if r.method.isMAC() {
		// Without the end of ctx, as the call comes later.
		ctx = context.WithoutCancel(ctx)
		return &macKey{ctx, r.client, r.method, []string{r.version.name}}, r.method, nil
	}
	public, err := r.version.neededKey(ctx, r.client, r.method.format())
	switch {
	case err != nil:
		return nil, nil, err
	case public.mac || public.traits.method != r.method:
		return nil, nil, errs.Errorf("%w: %s is not of the algorithm %s that it was listed with",
			errs.ErrIntegrity, r.version.name, r.method.algorithm.Name)
	}
	return public.key, nil, nil
}

// keyOf returns the key that tokens by a version verify with, signed by m.
func (v *kmsVersion) keyOf(client *kms.KeyManagementClient, m *SigningMethodKMS) *keyset.Key {
	return &keyset.Key{ID: v.kid, Alg: m.algorithm.Key, Resolver: &versionResolver{client, v, m}}
}
