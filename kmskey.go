package gcpjwt

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"weak"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
)

// fetchTimeout bounds each fetch of public keys, certificates or versions, and
// each verification of a MAC, even if the caller's context doesn't.
const fetchTimeout = 10 * time.Second

// retriedBriefly is for calls that a token's verification waits for. By default
// the client goes on until the deadline, and then what was wrong is lost.
var retriedBriefly = gax.WithRetry(func() gax.Retryer {
	backoff := gax.Backoff{Initial: 50 * time.Millisecond, Max: 200 * time.Millisecond, Multiplier: 2}
	return &limitedRetryer{gax.OnCodes([]codes.Code{codes.Unavailable}, backoff), 3}
})

// limitedRetryer retries at most left times.
type limitedRetryer struct {
	gax.Retryer
	left int
}

func (r *limitedRetryer) Retry(err error) (time.Duration, bool) {
	r.left--
	if r.left < 0 {
		return 0, false
	}
	return r.Retryer.Retry(err)
}

// What is known of Cloud KMS keys belongs to the process: a CryptoKeyVersion's
// public key never changes, and a CryptoKey's versions are the same for all.
// The clients are part of the identity as they decide what a name means (and
// are held weakly, so that a closed one can be collected).
var (
	kmsVersions = newRegistry[kmsVersionID, kmsVersion]()
	cryptoKeys  = newRegistry[cryptoKeyID, cryptoKey]()
)

type kmsVersionID struct {
	client weak.Pointer[kms.KeyManagementClient]
	name   string
}

// kmsVersion is what is known of one CryptoKeyVersion.
type kmsVersion struct {
	name   string
	kid    string
	public refresh.Value[*kmsPublicKey]
	fitted atomic.Pointer[SigningMethodKMS] // the method that it is known to be for
}

// kmsPublicKey is a version's public key as GetPublicKey returned it, or the
// refusal to return it.
type kmsPublicKey struct {
	algorithm kmsAlgorithm
	method    *SigningMethodKMS // for the algorithm; nil if there is none
	key       any
	denied    error
}

func versionOf(client *kms.KeyManagementClient, name string) *kmsVersion {
	return kmsVersions.get(kmsVersionID{weak.Make(client), name}, func() *kmsVersion {
		return &kmsVersion{name: name, kid: KMSKeyID(name)}
	})
}

// publicKey returns the version's public key, which is fetched once. preferred
// is the format to ask for first.
func (v *kmsVersion) publicKey(ctx context.Context, client *kms.KeyManagementClient, preferred keyFormat) (*kmsPublicKey, error) {
	if key, ok := v.public.Current(); ok {
		return key, nil
	}
	return v.public.Get(ctx, &publicKeySource{client, v.name, preferred})
}

// verifyKey returns what tokens that the version signed by m verify with.
func (v *kmsVersion) verifyKey(m *SigningMethodKMS) *verifyKey {
	return &verifyKey{kid: v.kid, alg: m.alg, version: v, method: m}
}

// fits reports whether a version may sign with m. A caller who may not read the
// public key may still sign, so then nothing is known and nothing is wrong.
func (v *kmsVersion) fits(ctx context.Context, client *kms.KeyManagementClient, m *SigningMethodKMS) error {
	if m.input == sendMAC || v.fitted.Load() == m {
		return nil // a MAC key has no public key; the length of the MAC tells
	}
	public, err := v.publicKey(ctx, client, m.format)
	if err != nil {
		return err
	}
	switch {
	case public.denied != nil:
	case m.signatureLength(public.algorithm) == 0:
		return fmt.Errorf("%w: %s needs a key of algorithm %s, and %s is %s",
			ErrAlgorithmMismatch, m.alias, m.algorithmNames(), v.name, public.algorithm)
	default:
		v.fitted.Store(m) // for good: a version's algorithm never changes
	}
	return nil
}

func (m *SigningMethodKMS) algorithmNames() string {
	var names []string
	for _, signature := range m.signatures {
		names = append(names, signature.algorithm.String())
	}
	return strings.Join(names, " or ")
}

// signatureLength returns the length of an algorithm's signatures, 0 if the
// algorithm isn't the method's.
func (m *SigningMethodKMS) signatureLength(algorithm kmsAlgorithm) int {
	for _, signature := range m.signatures {
		if signature.algorithm == algorithm {
			return signature.length
		}
	}
	return 0
}

type keyFormat = kmspb.PublicKey_PublicKeyFormat

// publicKeySource fetches a version's public key.
type publicKeySource struct {
	client    *kms.KeyManagementClient
	name      string
	preferred keyFormat
}

// forever is the lifetime of what never changes.
const forever = 100 * 365 * 24 * time.Hour

// deniedLifetime is how long a missing permission to read a public key is
// remembered, so that a caller who may only sign doesn't pay for it each time.
const deniedLifetime = time.Minute

func (s *publicKeySource) Fetch(ctx context.Context) (*kmsPublicKey, refresh.Lifetime, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	key, err := s.fetch(ctx)
	switch {
	case status.Code(err) == codes.PermissionDenied:
		return &kmsPublicKey{denied: err}, refresh.Lifetime{Renew: deniedLifetime / 2, Fresh: deniedLifetime, Stale: versionsStale}, nil
	case err != nil:
		return nil, refresh.Lifetime{}, err
	}
	return key, refresh.Lifetime{Renew: forever, Fresh: forever}, nil
}

// Failed says nothing: all that is ever read again is a permission that is missing.
func (s *publicKeySource) Failed(error, *kmsPublicKey) {}

func (s *publicKeySource) Replaced(_, _ *kmsPublicKey) {}

// fetch asks for the preferred format. Cloud KMS has ML-DSA keys in NIST_PQC and
// all others in PEM only, and refuses what it doesn't have, so that a key of
// another kind than expected takes a second call.
func (s *publicKeySource) fetch(ctx context.Context) (*kmsPublicKey, error) {
	formats := []keyFormat{kmspb.PublicKey_PEM, kmspb.PublicKey_NIST_PQC}
	if s.preferred == kmspb.PublicKey_NIST_PQC {
		slices.Reverse(formats)
	}
	key, err := s.fetchAs(ctx, formats[0])
	if status.Code(err) == codes.InvalidArgument || errors.Is(err, errOtherFormat) {
		key, err = s.fetchAs(ctx, formats[1])
	}
	return key, err
}

// errOtherFormat reports an ML-DSA key that was asked for in PEM.
var errOtherFormat = errors.New("the key has another format")

func (s *publicKeySource) fetchAs(ctx context.Context, format keyFormat) (*kmsPublicKey, error) {
	op := kmsCall{ctx, "read the public key of", s.name, "cloudkms.cryptoKeyVersions.viewPublicKey (roles/cloudkms.publicKeyViewer)", ""}
	var key *kmsPublicKey
	err := op.attempt(func() error {
		response, err := s.client.GetPublicKey(ctx, &kmspb.GetPublicKeyRequest{Name: s.name, PublicKeyFormat: format}, retriedBriefly)
		if err != nil {
			return op.failed(err)
		}
		data, sum := response.GetPublicKey().GetData(), response.GetPublicKey().GetCrc32CChecksum()
		if response.PublicKey == nil {
			data, sum = []byte(response.Pem), response.PemCrc32C
		}
		switch {
		case response.Name != s.name:
			return op.corrupt("it comes from %s", quote(response.Name))
		case !intact(data, sum):
			return op.corrupt("the key's checksum is wrong")
		case response.Algorithm == kmspb.CryptoKeyVersion_CRYPTO_KEY_VERSION_ALGORITHM_UNSPECIFIED:
			return op.corrupt("it has no algorithm")
		}
		key, err = parsePublicKey(response.Algorithm, format, data)
		if err != nil && !errors.Is(err, errOtherFormat) {
			return op.corrupt("%v", err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return key, nil
}

// parsePublicKey reads what GetPublicKey returned. A key of an algorithm that no
// method is for is kept without its value, since its algorithm is all that an
// error message needs.
func parsePublicKey(algorithm kmsAlgorithm, format keyFormat, data []byte) (*kmsPublicKey, error) {
	m := kmsMethodOf[algorithm]
	switch {
	case m == nil:
		return &kmsPublicKey{algorithm: algorithm}, nil
	case m.format == kmspb.PublicKey_NIST_PQC:
		if format != m.format {
			return nil, errOtherFormat
		}
		key, err := parseMLDSA(m, data)
		return &kmsPublicKey{algorithm: algorithm, method: m, key: key}, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("the key isn't in PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the key isn't a public key: %w", err)
	}
	length := 0 // of the key's signatures in a token
	switch key := key.(type) {
	case *rsa.PublicKey:
		length = key.Size()
	case *ecdsa.PublicKey:
		length = 2 * ((key.Curve.Params().BitSize + 7) / 8)
	case ed25519.PublicKey:
		length = ed25519.SignatureSize
	}
	if _, elliptic := key.(*ecdsa.PublicKey); length != m.signatureLength(algorithm) || elliptic != (m.width > 0) {
		return nil, fmt.Errorf("the key isn't one of algorithm %s", algorithm)
	}
	return &kmsPublicKey{algorithm: algorithm, method: m, key: key}, nil
}

// kmsKey is the key that a configuration names: a version, or a CryptoKey whose
// versions change.
type kmsKey struct {
	client   *kms.KeyManagementClient
	pinned   *kmsVersion
	rotating *cryptoKey
	source   *versionSource // of rotating
}

// key resolves the configuration, without any call but that which makes the
// default client.
func (c *KMSConfig) key(ctx context.Context) (kmsKey, error) {
	if key, ok := c.knownKey(); ok {
		return key, nil
	}
	path, err := parseKeyPath(c.KeyPath)
	if err != nil {
		return kmsKey{}, err
	}
	if c.KeyRefresh < 0 {
		return kmsKey{}, fmt.Errorf("%w: KeyRefresh is negative", ErrInvalidConfig)
	}
	client, err := defaultKMSClient.get(ctx, c.KMSClient)
	if err != nil {
		return kmsKey{}, err
	}
	if path.version > 0 {
		return kmsKey{client: client, pinned: versionOf(client, c.KeyPath)}, nil
	}
	key := cryptoKeys.get(c.cryptoKeyID(), func() *cryptoKey { return new(cryptoKey) })
	return c.following(client, key), nil
}

// knownKey is key for a configuration that has been checked before.
func (c *KMSConfig) knownKey() (kmsKey, bool) {
	client := c.KMSClient
	if client == nil {
		client = defaultKMSClient.made.Load()
	}
	if client == nil || c.KeyRefresh < 0 {
		return kmsKey{}, false
	}
	version, ok := kmsVersions.recent(func(id kmsVersionID) bool {
		return id.name == c.KeyPath && id.client.Value() == client // without the lock of weak.Make
	})
	if !ok {
		version, ok = kmsVersions.peek(kmsVersionID{weak.Make(client), c.KeyPath})
	}
	if ok {
		return kmsKey{client: client, pinned: version}, true
	}
	if key, ok := cryptoKeys.peek(c.cryptoKeyID()); ok {
		return c.following(client, key), true
	}
	return kmsKey{}, false
}

// following is the kmsKey of a configuration that names a CryptoKey.
func (c *KMSConfig) following(client *kms.KeyManagementClient, key *cryptoKey) kmsKey {
	return kmsKey{
		client:   client,
		rotating: key,
		source:   &versionSource{client: client, key: key, name: c.KeyPath, lifetime: c.keyRefresh(), logger: c.Logger},
	}
}

// signingVersion returns the version to sign with by m. failed is the version
// that a first attempt found disabled, if any.
func (k *kmsKey) signingVersion(ctx context.Context, m *SigningMethodKMS, failed *kmsVersion) (*kmsVersion, error) {
	switch {
	case k.rotating != nil:
		return k.rotating.newest(ctx, k.source, m, failed)
	case failed != nil:
		return nil, errors.New("gcpjwt: a CryptoKeyVersion has no other version")
	}
	return k.pinned, k.pinned.fits(ctx, k.client, m)
}

// verifyKeys returns the source of the keys that config's tokens verify with,
// having read them once.
func (c *KMSConfig) verifyKeys(ctx context.Context) (keySource, error) {
	key, err := c.key(ctx)
	if err != nil {
		return nil, err
	}
	if key.rotating != nil {
		return key.verifyVersions(ctx)
	}
	name := key.pinned.name
	public, err := key.pinned.publicKey(ctx, key.client, kmspb.PublicKey_PEM)
	if err == nil {
		err = public.denied
	}
	switch status.Code(err) {
	case codes.OK:
	case codes.FailedPrecondition, codes.PermissionDenied:
		probe := probeMAC(ctx, key.client, name)
		if status.Code(probe) == codes.PermissionDenied {
			return nil, fmt.Errorf("%w; or, if it is a MAC key: %w", err, probe)
		}
		if probe != nil {
			return nil, err
		}
		return &pinnedKeys{key.client, newKeySet(macKeys(key.pinned))}, nil
	default:
		return nil, err
	}
	if public.method == nil {
		return nil, fmt.Errorf("%w: no signing method is for a key of algorithm %s, which %s is", ErrAlgorithmMismatch, public.algorithm, name)
	}
	return &pinnedKeys{key.client, newKeySet([]*verifyKey{key.pinned.verifyKey(public.method)})}, nil
}

// macKeys are the keys of a MAC version under all three algorithms. Which of them
// is its own, the length of a MAC tells.
func macKeys(version *kmsVersion) []*verifyKey {
	var keys []*verifyKey
	for _, m := range kmsMethods {
		if m.input == sendMAC {
			keys = append(keys, version.verifyKey(m))
		}
	}
	return keys
}

// pinnedKeys is the key source of one CryptoKeyVersion.
type pinnedKeys struct {
	client *kms.KeyManagementClient
	set    *keySet
}

func (p *pinnedKeys) accepts(alg string) bool {
	return slices.ContainsFunc(p.set.keys, func(k *verifyKey) bool { return k.alg == alg })
}

func (p *pinnedKeys) get(context.Context) (*keySet, error) { return p.set, nil }

func (p *pinnedKeys) renew(context.Context, *keySet, func(*keySet) bool) (*keySet, error) {
	return p.set, nil
}

func (p *pinnedKeys) resolve(ctx context.Context, key *verifyKey) (any, error) {
	return key.resolve(ctx, p.client)
}

// resolve returns what tokens by the key's version verify with.
func (k *verifyKey) resolve(ctx context.Context, client *kms.KeyManagementClient) (any, error) {
	if k.method.input == sendMAC {
		return &macKey{ctx, client, k.method, []string{k.version.name}}, nil
	}
	public, err := k.version.publicKey(ctx, client, k.method.format)
	switch {
	case err != nil:
		return nil, err
	case public.denied != nil:
		return nil, public.denied
	case public.method != k.method:
		return nil, fmt.Errorf("%w: %s is not of the algorithm %s that it was listed with", ErrIntegrity, k.version.name, k.alg)
	}
	return public.key, nil
}

// kmsCall describes a call for its errors.
type kmsCall struct {
	ctx   context.Context
	verb  string
	name  string
	grant string // the permission it takes
	sent  string // that must not appear in an error
}

// attempt repeats a call whose answer was corrupt, three times in all as
// Google's documentation asks for a limited number.
func (op *kmsCall) attempt(call func() error) (err error) {
	for range 3 {
		if err = call(); !errors.Is(err, ErrIntegrity) {
			break
		}
	}
	return err
}

func (op *kmsCall) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s %s: %s", ErrIntegrity, op.verb, op.name, fmt.Sprintf(format, args...))
}

func (op *kmsCall) failed(err error) error {
	err = foreign(op.ctx, err, op.sent)
	switch status.Code(err) {
	case codes.PermissionDenied:
		return fmt.Errorf("gcpjwt: %s %s: grant the caller %s: %w", op.verb, op.name, op.grant, err)
	case codes.NotFound:
		return fmt.Errorf("gcpjwt: %s %s: check KeyPath: %w", op.verb, op.name, err)
	}
	return fmt.Errorf("gcpjwt: %s %s: %w", op.verb, op.name, err)
}
