package gcpjwt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"weak"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"

	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
)

const (
	defaultKeyRefresh = 5 * time.Minute

	// versionsStale is how long a list of versions serves past its KeyRefresh
	// while Cloud KMS is down.
	versionsStale = time.Hour

	// parallelKeys bounds the public keys that one reading of a list fetches at once.
	parallelKeys = 8
)

type cryptoKeyID struct {
	client  weak.Pointer[kms.KeyManagementClient]
	name    string
	refresh time.Duration
}

func (c *KMSConfig) cryptoKeyID() cryptoKeyID {
	id := cryptoKeyID{name: c.KeyPath, refresh: c.keyRefresh()}
	if c.KMSClient != nil {
		id.client = weak.Make(c.KMSClient)
	}
	return id
}

func (c *KMSConfig) keyRefresh() time.Duration {
	if c.KeyRefresh == 0 {
		return defaultKeyRefresh
	}
	return c.KeyRefresh
}

// cryptoKey is what is known of one CryptoKey: its ENABLED versions that a method is
// for, newest first. Signing takes the first that fits, verifying all.
type cryptoKey struct {
	versions  refresh.Value[*keySet]
	lastKeyID atomic.Pointer[string]

	// verifies is set once somebody needs the public keys too. They are then
	// fetched along with the list, so that no verification waits for them.
	verifies atomic.Bool
}

// newest returns the version to sign with: the newest ENABLED one of m's
// algorithm other than failed, which a signature just found disabled.
func (k *cryptoKey) newest(ctx context.Context, src *versionSource, m *SigningMethodKMS, failed *kmsVersion) (*kmsVersion, error) {
	set, err := k.versions.Get(ctx, src)
	if err != nil {
		return nil, err
	}
	wanting := func(set *keySet) bool {
		return set.newest(m.alg, failed) == nil || failed != nil && set.has(failed)
	}
	if wanting(set) {
		cooldown := src.cooldown()
		if failed != nil {
			cooldown = 0 // the signature in hand waits for this
		}
		var renewed *keySet
		renewed, err = k.versions.Renew(ctx, src, set, cooldown, wanting)
		if err == nil {
			set = renewed
		}
	}
	version := set.newest(m.alg, failed)
	switch {
	case version != nil:
		return version, nil // even if listing fails, or still has the one that failed
	case err != nil:
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s needs a version of algorithm %s, and %s has no such version that is ENABLED",
		ErrAlgorithmMismatch, m.alias, m.algorithmNames(), src.name)
}

// versionSource reads the list of a CryptoKey's versions.
type versionSource struct {
	client   *kms.KeyManagementClient
	key      *cryptoKey
	name     string
	lifetime time.Duration
	logger   *slog.Logger
}

func (s *versionSource) Fetch(ctx context.Context) (*keySet, refresh.Lifetime, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	op := kmsCall{ctx, "list the versions of", s.name, "cloudkms.cryptoKeyVersions.list (roles/cloudkms.viewer)", ""}
	var keys []*verifyKey
	err := op.attempt(func() (err error) {
		keys, err = s.list(ctx, &op)
		return err
	})
	if err != nil {
		return nil, refresh.Lifetime{}, err
	}
	if s.key.verifies.Load() {
		s.fetchPublicKeys(ctx, keys)
	}
	if len(keys) == 0 {
		return newKeySet(nil), refresh.Lifetime{Renew: s.cooldown(), Fresh: s.cooldown()}, nil
	}
	return newKeySet(keys), refresh.Lifetime{Renew: s.lifetime / 2, Fresh: s.lifetime, Stale: versionsStale}, nil
}

// cooldown is how long after a reading that an unknown kid set off further ones
// set off none. The list is read that often anyway if KeyRefresh is short.
func (s *versionSource) cooldown() time.Duration { return min(unknownCooldown, s.lifetime/2) }

func (s *versionSource) Replaced(_, _ *keySet) {}

func (s *versionSource) Failed(err error, _ *keySet) {
	if s.logger != nil {
		s.logger.Warn("gcpjwt: keeping the known versions of a Cloud KMS key", "key", s.name, "error", err)
	}
}

// list returns the versions that are ENABLED and that a method is for, newest
// first. Cloud KMS orders them by name as strings: 10 before 2.
func (s *versionSource) list(ctx context.Context, op *kmsCall) ([]*verifyKey, error) {
	var keys []*verifyKey
	numbers := make(map[*verifyKey]uint64)
	versions := s.client.ListCryptoKeyVersions(ctx, &kmspb.ListCryptoKeyVersionsRequest{Parent: s.name, Filter: "state=ENABLED"}, retriedBriefly)
	for {
		v, err := versions.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return nil, op.failed(err)
		}
		dir, id := path.Split(v.Name)
		number, err := strconv.ParseUint(id, 10, 63)
		if err != nil || dir != s.name+"/cryptoKeyVersions/" {
			return nil, op.corrupt("it lists %s", quote(v.Name))
		}
		m := kmsMethodOf[v.Algorithm]
		if m == nil || v.State != kmspb.CryptoKeyVersion_ENABLED {
			continue
		}
		key := versionOf(s.client, v.Name).verifyKey(m)
		if v.GenerateTime != nil {
			key.settled = v.GenerateTime.AsTime().Add(s.lifetime / 2)
		}
		numbers[key] = number
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b *verifyKey) int {
		if numbers[a] > numbers[b] {
			return -1
		}
		return 1
	})
	return keys, nil
}

// fetchPublicKeys fills in what isn't known yet. A failure is no reason to
// refuse the list: whoever needs the key tries again.
func (s *versionSource) fetchPublicKeys(ctx context.Context, keys []*verifyKey) {
	var group errgroup.Group
	group.SetLimit(parallelKeys)
	for _, key := range keys {
		if m := key.method; m.input != sendMAC {
			group.Go(func() error {
				_, err := key.version.publicKey(ctx, s.client, m.format)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil && s.logger != nil {
		// Not in this goroutine: the list waits for it, and a handler may wait
		// for the list, to send its records with a token by the same key.
		go s.logger.Warn("gcpjwt: a public key of a Cloud KMS key could not be read yet", "key", s.name, "error", err)
	}
}

// verifyVersions returns the source of the keys of all ENABLED versions. It fails
// if none can be used.
func (k *kmsKey) verifyVersions(ctx context.Context) (keySource, error) {
	k.rotating.verifies.Store(true)
	src := &rotatingKeys{k.rotating, k.source}
	set, err := src.get(ctx)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("gcpjwt: %s has no ENABLED version that a signing method is for", k.source.name)
	for _, key := range set.keys {
		if _, err = src.resolve(ctx, key); err == nil {
			return src, nil
		}
	}
	return nil, err
}

// rotatingKeys is the key source of a CryptoKey.
type rotatingKeys struct {
	key    *cryptoKey
	source *versionSource
}

func (r *rotatingKeys) accepts(alg string) bool { return kmsMethodByAlg[alg] != nil }

func (r *rotatingKeys) get(ctx context.Context) (*keySet, error) {
	return r.key.versions.Get(ctx, r.source)
}

func (r *rotatingKeys) renew(ctx context.Context, seen *keySet, wanting func(*keySet) bool) (*keySet, error) {
	return r.key.versions.Renew(ctx, r.source, seen, r.source.cooldown(), wanting)
}

func (r *rotatingKeys) resolve(ctx context.Context, key *verifyKey) (any, error) {
	return key.resolve(ctx, r.source.client)
}
