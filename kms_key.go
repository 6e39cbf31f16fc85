package gcpjwt

import (
	"context"
	"slices"
	"sync/atomic"
	"weak"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc/codes"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
)

// kmsKey is the key that a configuration names: a version, or a CryptoKey whose
// versions change.
type kmsKey struct {
	client   *kms.KeyManagementClient
	pinned   *kmsVersion
	rotating *cryptoKey
	source   *versionSource // of rotating
}

// kmsCarried is what a context carries: a configuration, and the version that it led to when it
// was last used. To look that up again takes 2 µs of a call, as caches are cold by then.
type kmsCarried struct {
	config *KMSConfig
	last   atomic.Pointer[pinnedConfig]
}

type pinnedConfig struct {
	config KMSConfig // as it was
	key    *kmsKey
}

// contextKey returns the key that the configuration in ctx leads to.
func contextKey(ctx context.Context) (*kmsKey, error) {
	carried, ok := valueOf[kmsCarried](ctx, kmsContextKey{})
	if !ok {
		return nil, errs.Errorf("%w: the context carries no *KMSConfig: make it with NewKMSContext",
			ErrMissingConfig)
	}
	config := *carried.config
	if last := carried.last.Load(); last != nil && last.config == config {
		return last.key, nil
	}
	key, err := config.key(ctx)
	if err == nil && key.pinned != nil {
		// A CryptoKey is looked up each time, so that its Logger is told, and KeyID finds it.
		carried.last.Store(&pinnedConfig{config, key})
	}
	return key, err
}

// key resolves the configuration, without any call but that which makes the
// default client.
func (c *KMSConfig) key(ctx context.Context) (*kmsKey, error) {
	client := c.KMSClient
	if client == nil {
		client = defaultKMSClient.made.Load()
	}
	if client != nil && c.KeyRefresh >= 0 {
		// What is known has been checked.
		if version, ok := kmsVersions.Peek(kmsVersionID{weak.Make(client), c.KeyPath}); ok {
			return &kmsKey{client: client, pinned: version}, nil
		}
	}
	path, err := parseKeyPath(c.KeyPath)
	if err != nil {
		return nil, err
	}
	if c.KeyRefresh < 0 {
		return nil, errs.Errorf("%w: KeyRefresh is negative", ErrInvalidConfig)
	}
	if client, err = defaultKMSClient.get(ctx, c.KMSClient); err != nil {
		return nil, err
	}
	if path.version > 0 {
		return &kmsKey{client: client, pinned: versionOf(client, c.KeyPath)}, nil
	}
	key := cryptoKeys.Get(c.cryptoKeyID(), newCryptoKey)
	key.loggers.Add(c.Logger)
	source := &versionSource{client, key, c.KeyPath, c.keyRefresh(), c.activationDelay(), c.Logger}
	return &kmsKey{client: client, rotating: key, source: source}, nil
}

// signingVersion returns the version to sign with, by m or by any method if m is nil.
// failed is the version that a first attempt found disabled, if any.
func (k *kmsKey) signingVersion(
	ctx context.Context, m *SigningMethodKMS, failed *kmsVersion,
) (*kmsVersion, error) {
	switch {
	case k.rotating != nil:
		return k.source.newest(ctx, m, failed)
	case m == nil:
		return k.pinned, nil // a Signer's, which has looked
	}
	return k.pinned, k.pinned.fits(ctx, k.client, m)
}

// identify reads the public key of a version. If there is none, it may be a MAC key, which
// probe finds out by a call.
func (k *kmsKey) identify(ctx context.Context, probe func() error) error {
	public, err := k.pinned.neededKey(ctx, k.client, kmspb.PublicKey_PEM)
	code := rpcCode(err)
	switch {
	case err == nil && public.mac:
		return probe()
	case err == nil && public.traits.method == nil:
		return errNoMethodFor(k.pinned.name, public.traits.algorithm)
	case code != codes.FailedPrecondition && code != codes.PermissionDenied:
		return err
	}
	probeErr := probe()
	switch rpcCode(probeErr) {
	case codes.FailedPrecondition: // it is none, or isn't ready
		return err
	case codes.PermissionDenied:
		return errs.Errorf("%w; or, if it is a MAC key: %w", err, probeErr)
	}
	return probeErr
}

// signerMethod finds the method that a Signer of a version signs with. A MAC key is
// recognised by the call that signing makes.
func (k *kmsKey) signerMethod(ctx context.Context) error {
	v := k.pinned
	if traits := v.traits.Load(); traits != nil && traits.method != nil {
		return nil
	}
	err := k.identify(ctx, func() error {
		mac, err := macSign(ctx, k.client, v.name, "x")
		if err != nil {
			return err
		}
		for _, m := range kmsMethods {
			if m.isMAC() && len(mac) == m.hash.Size() {
				v.isMACOf(m)
				return nil
			}
		}
		return errNoMethodForMAC(v.name)
	})
	if public, _ := v.public.Current(); err != nil && public != nil && public.denied != nil {
		return errs.Errorf("%w; a Signer of a CryptoKeyVersion reads its algorithm, "+
			"while SignedString needs no more than the permission to sign", err)
	}
	return err
}

// verifyKeys returns the source of the keys that config's tokens verify with,
// having read them once.
func (k *kmsKey) verifyKeys(ctx context.Context) (keyset.Source, error) {
	if k.rotating != nil {
		return k.source, k.source.readKeys(ctx)
	}
	v := k.pinned
	var methods []*SigningMethodKMS
	err := k.identify(ctx, func() (err error) {
		methods, err = probeMAC(ctx, k.client, v.name)
		if err == nil && len(methods) == 0 {
			return errNoMethodForMAC(v.name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	switch len(methods) {
	case 0: // it has a public key
		methods = []*SigningMethodKMS{v.traits.Load().method}
	case 1:
		v.isMACOf(methods[0])
	}
	var keys []*keyset.Key
	for _, m := range methods {
		keys = append(keys, v.keyOf(k.client, m))
	}
	return pinnedKeys{keyset.New(keys)}, nil
}

// pinnedKeys is the key source of one CryptoKeyVersion.
type pinnedKeys struct{ set *keyset.Set }

func (p pinnedKeys) Accepts(alg string) bool {
	return slices.ContainsFunc(p.set.Keys(), func(k *keyset.Key) bool { return k.Alg == alg })
}

func (p pinnedKeys) Current() *keyset.Set { return p.set }

func (p pinnedKeys) Get(context.Context) (*keyset.Set, error) { return p.set, nil }

func (p pinnedKeys) Renew(context.Context, *keyset.Set, func(*keyset.Set) bool) (*keyset.Set, error) {
	return p.set, nil
}
