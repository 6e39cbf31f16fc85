package jwks

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// A Source has public keys to publish: a *gcpjwt.KMSConfig, a *gcpjwt.IAMConfig, a
// *gcpjwt.Signer, or what [Join] makes of several.
type Source interface {
	// PublicKeys returns the keys that tokens may be verified with now. Those of a Cloud
	// KMS key are newest first. Symmetric keys are never among them, so that there may be
	// none at all. An error means that they aren't known.
	//
	// A handler calls PublicKeys for each request, from many goroutines, and keeps
	// nothing: a source has to remember its keys. The caller must not change them.
	PublicKeys(ctx context.Context) ([]Key, error)
}

// Join returns the source of all keys of the sources, in their order and each key
// once. It asks them at the same time, and fails if one of them fails: a set with a
// part missing would make good tokens fail. It panics if a source is nil.
func Join(sources ...Source) Source {
	if slices.Contains(sources, nil) {
		panic("jwks: Join: a source is nil")
	}
	return joined(slices.Clone(sources))
}

type joined []Source

func (j joined) PublicKeys(ctx context.Context) ([]Key, error) {
	parts := make([][]Key, len(j))
	group, ctx := errgroup.WithContext(ctx)
	for i, source := range j {
		group.Go(func() (err error) {
			parts[i], err = keysOf(ctx, source)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var keys []Key
	for _, key := range slices.Concat(parts...) {
		if !slices.ContainsFunc(keys, key.same) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// same reports whether two keys would be published as the same JWK.
func (k Key) same(other Key) bool {
	return k.KeyID == other.KeyID && k.Algorithm == other.Algorithm && k.Thumbprint() == other.Thumbprint()
}

// keysOf asks a source. A panic there is an error like others: nobody could recover
// from it in a goroutine, and a handler shall answer.
func keysOf(ctx context.Context, source Source) (keys []Key, err error) {
	defer func() {
		if p := recover(); p != nil {
			keys, err = nil, errs.Errorf("%w: %w", errs.ErrKeysUnavailable, retry.Panicked(p))
		}
	}()
	return source.PublicKeys(ctx)
}
