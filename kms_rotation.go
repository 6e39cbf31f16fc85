package gcpjwt

import (
	"cmp"
	"context"
	"errors"
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
	"google.golang.org/grpc/codes"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/internal/logs"
	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
	"github.com/someone1/gcp-jwt-go/v3/internal/registry"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

const (
	defaultKeyRefresh = 5 * time.Minute

	// versionsStale is how long a list of versions serves past its KeyRefresh
	// while Cloud KMS is down.
	versionsStale = time.Hour

	// parallelKeys bounds the public keys that one reading of a list fetches at once.
	parallelKeys = 8

	// hangingLists bounds the lists of one CryptoKey that are left behind.
	hangingLists = 4
)

// cryptoKeys is what is known of CryptoKeys. It belongs to the process.
var cryptoKeys = registry.New[cryptoKeyID, cryptoKey]()

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
	return cmp.Or(c.KeyRefresh, defaultKeyRefresh)
}

func (c *KMSConfig) activationDelay() time.Duration {
	return max(0, cmp.Or(c.ActivationDelay, c.keyRefresh()/2))
}

// cryptoKey is what is known of one CryptoKey.
type cryptoKey struct {
	versions  refresh.Value[*versionList]
	last      atomic.Pointer[versionList] // whatever has become of versions
	lastKeyID atomic.Pointer[string]
	loggers   logs.Group
	lists     *abandonable // the REST client lists without its context (kms v1.37.0)

	// verifies is set once somebody needs the public keys too. They are then
	// fetched along with the list, so that no verification waits for them.
	verifies atomic.Bool
}

func newCryptoKey() *cryptoKey { return &cryptoKey{lists: newAbandonable(hangingLists)} }

// versionList is the ENABLED versions of a CryptoKey, newest first. It doesn't change.
type versionList struct {
	versions []*listedVersion // that a method is for
	others   []kmsAlgorithm   // of versions that no method is for
	set      *keyset.Set      // of versions
}

type listedVersion struct {
	*kmsVersion
	number    uint64
	generated time.Time
	method    *SigningMethodKMS
}

// newest returns the newest version that m, or any method if m is nil, signs with and that
// was generated a delay ago; if none was, the one that most verifiers know by now, which is
// the oldest.
func (l *versionList) newest(
	m *SigningMethodKMS, delay time.Duration, except *kmsVersion,
) *kmsVersion {
	var oldest *listedVersion
	now := time.Now()
	for _, v := range l.versions {
		if v.kmsVersion == except {
			continue
		}
		if m != nil {
			if _, ok := m.row(v.traits.Load().algorithm); !ok {
				continue
			}
		}
		if !now.Before(v.generated.Add(delay)) {
			return v.kmsVersion
		}
		if oldest == nil || !v.generated.After(oldest.generated) {
			oldest = v
		}
	}
	if oldest == nil {
		return nil
	}
	return oldest.kmsVersion
}

func (l *versionList) has(version *kmsVersion) bool {
	return slices.ContainsFunc(l.versions, func(v *listedVersion) bool {
		return v.kmsVersion == version
	})
}

// versionSource reads the list of a CryptoKey's versions. It is the source of the keys that
// their tokens verify with.
type versionSource struct {
	client   *kms.KeyManagementClient
	key      *cryptoKey
	name     string
	lifetime time.Duration
	delay    time.Duration // ActivationDelay
	logger   *slog.Logger  // which the key holds weakly
}

// newest returns the version to sign with: the newest ENABLED one of m's algorithm (of any,
// if m is nil) other than failed, which a signature just found disabled.
func (s *versionSource) newest(
	ctx context.Context, m *SigningMethodKMS, failed *kmsVersion,
) (*kmsVersion, error) {
	list, err := s.key.versions.Get(ctx, s)
	if err != nil {
		return nil, err
	}
	wanting := func(list *versionList) bool {
		return list.newest(m, s.delay, failed) == nil || failed != nil && list.has(failed)
	}
	if wanting(list) {
		cooldown := min(keyset.NotReadyPause, s.cooldown())
		if failed != nil {
			cooldown = 0 // the signature in hand waits for this
		}
		var renewed *versionList
		renewed, err = s.key.versions.Renew(ctx, s, list, cooldown, wanting)
		if err == nil {
			list = renewed
		}
	}
	version := list.newest(m, s.delay, failed)
	switch {
	case version != nil:
		return version, nil // even if listing fails, or still has the one that failed
	case err != nil:
		return nil, err
	case m == nil && len(list.others) > 0:
		return nil, errNoMethodFor(s.name, list.others...)
	case m == nil:
		return nil, errs.Errorf("%w: %s has no version that is ENABLED", ErrKeysUnavailable, s.name)
	}
	return nil, errs.Errorf("%w: %s needs a version of algorithm %s, "+
		"and %s has no such version that is ENABLED",
		ErrAlgorithmMismatch, m.alias, m.algorithmNames(), s.name)
}

// Fetch reads the list.
func (s *versionSource) Fetch(ctx context.Context) (*versionList, refresh.Lifetime, error) {
	ctx, cancel := context.WithTimeout(ctx, keyset.ReadTimeout)
	defer cancel()
	list, err := s.read(ctx, "state=ENABLED")
	if rpcCode(err) == codes.Unimplemented {
		list, err = s.read(ctx, "") // states are looked at here anyway
	}
	if err != nil {
		return nil, afterFailure(err), err
	}
	if s.key.verifies.Load() {
		s.fetchPublicKeys(ctx, list)
	}
	s.key.last.Store(list)
	if len(list.versions) == 0 {
		return list, refresh.Lifetime{Renew: keyset.NotReadyPause, Fresh: keyset.NotReadyPause}, nil
	}
	return list, refresh.Lifetime{Renew: s.lifetime / 2, Fresh: s.lifetime, Stale: versionsStale}, nil
}

// cooldown is how long after a reading that an unknown kid set off further ones
// set off none. The list is read that often anyway if KeyRefresh is short.
func (s *versionSource) cooldown() time.Duration { return min(keyset.UnknownCooldown, s.lifetime/2) }

// Failed tells that known versions stay in use.
func (s *versionSource) Failed(err error, inUse *versionList) {
	if inUse != nil {
		s.key.loggers.Log(slog.LevelWarn, "keeping the known versions of a Cloud KMS key",
			"key", s.name, "age", inUse.set.Age(), "error", err)
	}
}

// Replaced tells which versions come into use and which go out of it.
func (s *versionSource) Replaced(old, list *versionList) {
	if old == nil {
		old = new(versionList)
	}
	tell := func(text string, from, to *versionList) {
		for _, v := range to.versions {
			if !from.has(v.kmsVersion) {
				s.key.loggers.Log(slog.LevelInfo, text,
					"version", v.name, "kid", v.kid, "alg", v.method.algorithm.Name)
			}
		}
	}
	tell("a version of a Cloud KMS key comes into use", old, list)
	tell("a version of a Cloud KMS key goes out of use", list, old)
}

// read makes one reading of the list.
func (s *versionSource) read(ctx context.Context, filter string) (*versionList, error) {
	op := calling{
		verb: "list the versions of", name: s.name,
		grant:   "cloudkms.cryptoKeyVersions.list (roles/cloudkms.viewer)",
		missing: "KeyPath",
	}
	var list *versionList
	err := op.do(ctx, retry.Read, func(ctx context.Context) (err error) {
		list, err = abandon(ctx, s.key.lists, func(ctx context.Context) (*versionList, error) {
			return s.readPages(ctx, &op, filter)
		})
		return err
	})
	return list, err
}

// readPages returns the versions that are ENABLED, newest first. Cloud KMS orders them by name
// as strings: 10 before 2.
func (s *versionSource) readPages(ctx context.Context, op *calling, filter string) (*versionList, error) {
	list := new(versionList)
	known := s.known()
	request := &kmspb.ListCryptoKeyVersionsRequest{Parent: s.name, Filter: filter}
	versions := s.client.ListCryptoKeyVersions(ctx, request, once)
	for {
		v, err := versions.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return nil, err
		}
		dir, id := path.Split(v.Name)
		number, err := strconv.ParseUint(id, 10, 63)
		if err != nil || dir != s.name+"/cryptoKeyVersions/" {
			return nil, op.corrupt("it lists %s", errs.Quote(v.Name))
		}
		if v.State != kmspb.CryptoKeyVersion_ENABLED {
			continue
		}
		traits := newTraits(v.Algorithm, v.ProtectionLevel)
		if traits.method == nil {
			list.others = append(list.others, v.Algorithm)
			continue
		}
		version := known[v.Name]
		if version == nil {
			version = versionOf(s.client, v.Name)
		}
		if version.traits.Load() == nil {
			version.traits.Store(traits)
		}
		// One that was imported has never been generated.
		generated := cmp.Or(v.GenerateTime, v.ImportTime, v.CreateTime).AsTime()
		list.versions = append(list.versions, &listedVersion{version, number, generated, traits.method})
	}
	slices.SortFunc(list.versions, func(a, b *listedVersion) int {
		return cmp.Compare(b.number, a.number)
	})
	var keys []*keyset.Key
	for _, v := range list.versions {
		keys = append(keys, v.keyOf(s.client, v.method))
	}
	list.set = keyset.New(keys)
	return list, nil
}

// known returns the versions of the last list. They go over to the next one, as a registry
// may hold fewer than a CryptoKey has.
func (s *versionSource) known() map[string]*kmsVersion {
	known := make(map[string]*kmsVersion)
	if last := s.key.last.Load(); last != nil {
		for _, v := range last.versions {
			known[v.name] = v.kmsVersion
		}
	}
	return known
}

// fetchPublicKeys fills in what isn't known yet. A failure is no reason to
// refuse the list: whoever needs the key tries again.
func (s *versionSource) fetchPublicKeys(ctx context.Context, list *versionList) {
	var group errgroup.Group
	group.SetLimit(parallelKeys)
	for _, v := range list.versions {
		if !v.method.isMAC() {
			group.Go(func() error {
				if ctx.Err() != nil {
					return ctx.Err() // before a call is made that would go on without it
				}
				_, err := v.publicKey(ctx, s.client, v.method.format())
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		// Not in this goroutine: the list waits for it, and a handler may wait
		// for the list, to send its records with a token by the same key.
		go s.key.loggers.Log(slog.LevelWarn, "a public key of a Cloud KMS key could not be read yet",
			"key", s.name, "error", err)
	}
}

// list returns the list along with the public keys. It fails if no method is for any version.
func (s *versionSource) list(ctx context.Context) (*versionList, error) {
	s.key.verifies.Store(true)
	list, err := s.key.versions.Get(ctx, s)
	if err == nil && len(list.versions) == 0 && len(list.others) > 0 {
		return nil, errNoMethodFor(s.name, list.others...)
	}
	return list, err
}

// readKeys reads the list and the public keys. It fails if none can be used.
func (s *versionSource) readKeys(ctx context.Context) error {
	list, err := s.list(ctx)
	if err != nil {
		return err
	}
	var failure error // the first, as the last may only be that of ctx
	for _, key := range list.set.Keys() {
		_, _, err := key.Resolver.Resolve(ctx)
		if err == nil {
			return nil
		}
		if failure == nil {
			failure = err
		}
	}
	if failure == nil {
		failure = errs.Errorf("%s has no version that is ENABLED", s.name)
	}
	return failure
}

// Accepts reports whether a version may be of an algorithm.
func (s *versionSource) Accepts(alg string) bool {
	return slices.ContainsFunc(kmsMethods, func(m *SigningMethodKMS) bool {
		return m.algorithm.Key == alg
	})
}

// Current returns the keys of the list, unless it is due for renewal.
func (s *versionSource) Current() *keyset.Set {
	if list, ok := s.key.versions.Current(); ok {
		return list.set
	}
	return nil
}

// Get returns the keys of all ENABLED versions.
func (s *versionSource) Get(ctx context.Context) (*keyset.Set, error) {
	list, err := s.key.versions.Get(ctx, s)
	if err != nil {
		return nil, err
	}
	return list.set, nil
}

// Renew returns the keys of a newer list.
func (s *versionSource) Renew(
	ctx context.Context, _ *keyset.Set, wanting func(*keyset.Set) bool,
) (*keyset.Set, error) {
	seen, err := s.key.versions.Get(ctx, s)
	if err != nil {
		return nil, err
	}
	list, err := s.key.versions.Renew(ctx, s, seen, s.cooldown(), func(list *versionList) bool {
		return wanting(list.set)
	})
	if err != nil {
		return nil, err
	}
	return list.set, nil
}
