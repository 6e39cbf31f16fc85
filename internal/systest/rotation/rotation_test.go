package rotation_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestMain(m *testing.M) { systest.Main(m) }

var (
	seed  = flag.Uint64("seed", 0, "seed of TestRandom; 0 stands for a few that are always the same")
	steps = flag.Int("steps", 150, "how many steps TestRandom takes with a seed")
)

// TestRandom lets operators, outages and the clock do as they please to a
// CryptoKey, while signers and verifiers use it, and compares what these see with
// what the documentation promises.
//
// A seed fixes what happens to the key, though not how goroutines interleave.
func TestRandom(t *testing.T) {
	seeds := []uint64{1, 2}
	if *seed != 0 {
		seeds = []uint64{*seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Minute) // so that what runs in the background ends
				w := newKMSWorld(t, seed)
				for step := 1; step <= *steps && !t.Failed(); step++ {
					w.step(step)
				}
				if t.Failed() {
					t.Logf("what happened:\n%s", strings.Join(w.history, "\n"))
				}
			})
		})
	}
}

// kmsMaxVersions keeps the list on one page.
const kmsMaxVersions = 90

// kmsAlgs are the two algorithms that versions have, with their methods.
var kmsAlgs = []systest.Row{systest.RowOf(systest.P256), systest.RowOf(systest.Ed25519)}

// kmsWorld is a CryptoKey, those who use it, and what is true of it.
type kmsWorld struct {
	*testing.T
	rng       *rand.Rand
	server    *testutil.KMS
	cryptoKey string
	refresh   time.Duration
	cooldown  time.Duration
	history   []string

	versions  []*kmsFact // by number
	processes []*kmsProcess
	minter    *kms.KeyManagementClient // signs in any outage but one that stops the server

	stopped, denied bool // as failing below; changed only while nobody calls
	listableSince   time.Time

	mu      sync.Mutex // guards the rest, which the server's hook uses
	failing bool
}

// kmsFact is the truth about a version.
type kmsFact struct {
	n         int
	name, kid string
	row       systest.Row
	generated time.Time
	state     kmspb.CryptoKeyVersion_CryptoKeyVersionState
	since     time.Time // of the state
	text      string    // a token that it signed; "" if that wasn't possible yet
}

func (f *kmsFact) enabled() bool { return f.state == systest.Enabled }

// kmsProcess is a process that signs, verifies or does both. The fields after
// keyfunc are what the server has told it, guarded by kmsWorld.mu.
type kmsProcess struct {
	name    string
	signs   bool
	ctx     context.Context // to sign with
	keyfunc jwt.Keyfunc     // nil if the process doesn't verify

	list       []*kmsFact // what the last good list showed, newest first
	listedAt   time.Time  // when it was answered; see kmsView.keptUntil
	askedAt    time.Time  // when a list was last asked for, as far as the server knows
	asked      int
	mayBackOff bool // no good list since it last was impossible to get one
	keys       map[string]bool
	keyRefused map[string]time.Time
}

func newKMSWorld(t *testing.T, seed uint64) *kmsWorld {
	w := &kmsWorld{T: t, rng: rand.New(rand.NewPCG(seed, 0)), listableSince: time.Now()}
	w.refresh = []time.Duration{30 * time.Second, 2 * time.Minute, systest.Refresh}[w.rng.IntN(3)]
	w.cooldown = min(systest.Cooldown, w.refresh/2)
	var err error
	if w.server, err = testutil.NewKMS(testutil.InMemory()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.server.Close)
	w.minter = systest.NamedClient(t, w.server, "minter")
	w.server.Intercept(w.serve)
	w.cryptoKey = systest.CryptoKeyOf(systest.Create(t, w.server, systest.P256))
	w.add(w.cryptoKey+"/cryptoKeyVersions/1", kmsAlgs[0])
	w.create(kmsAlgs[1])
	w.mint()

	for _, p := range []*kmsProcess{{name: "signer", signs: true}, {name: "verifier"}, {name: "both", signs: true}} {
		p.keys, p.keyRefused = make(map[string]bool), make(map[string]time.Time)
		w.processes = append(w.processes, p)
		config := &gcpjwt.KMSConfig{KeyPath: w.cryptoKey, KMSClient: systest.NamedClient(t, w.server, p.name), KeyRefresh: w.refresh}
		p.ctx = gcpjwt.NewKMSContext(t.Context(), config)
		if p.name != "signer" {
			if p.keyfunc, err = gcpjwt.KMSVerifyKeyfunc(p.ctx, config); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.note("KeyRefresh is %v", w.refresh)
	return w
}

func (w *kmsWorld) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%s %s", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

// create makes a version. The lock keeps a list that shows it from being
// looked at before it is known here.
func (w *kmsWorld) create(row systest.Row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name, err := w.server.CreateVersion(w.cryptoKey, row.Algorithm)
	if err != nil {
		w.Fatal(err)
	}
	w.add(name, row)
	w.note("version %d of %s is made", len(w.versions), row.Alg)
}

// add takes note of a version that was just made.
func (w *kmsWorld) add(name string, row systest.Row) {
	w.versions = append(w.versions, &kmsFact{
		n: len(w.versions) + 1, name: name, kid: gcpjwt.KMSKeyID(name), row: row,
		generated: time.Now(), state: systest.Enabled, since: time.Now(),
	})
}

func (w *kmsWorld) setState(fact *kmsFact, state kmspb.CryptoKeyVersion_CryptoKeyVersionState) {
	w.note("version %d of %s becomes %v", fact.n, fact.row.Alg, state)
	w.server.SetState(fact.name, state)
	fact.state, fact.since = state, time.Now()
}

// mint gets tokens of the ENABLED versions that have none yet.
func (w *kmsWorld) mint() {
	if w.stopped {
		return
	}
	for _, fact := range w.versions {
		if fact.text == "" && fact.enabled() {
			fact.text = systest.Sign(w, systest.KMSContext(w.Context(), w.minter, fact.name), fact.row.Method, nil)
		}
	}
}

// up reports whether Cloud KMS signs, listable whether it lists.
func (w *kmsWorld) up() bool       { return !w.stopped && !w.failing }
func (w *kmsWorld) listable() bool { return w.up() && !w.denied }

// serve fails requests in an outage, and remembers what the processes learn.
func (w *kmsWorld) serve(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
	name := systest.ClientName(ctx)
	if name == "minter" {
		return next(ctx, req)
	}
	w.mu.Lock()
	failing := w.failing
	i := slices.IndexFunc(w.processes, func(p *kmsProcess) bool { return name == p.name })
	w.mu.Unlock()
	if i < 0 {
		return nil, status.Errorf(codes.Internal, "a request of %q", name)
	}
	p := w.processes[i]
	var resp proto.Message
	err := status.Error(codes.Internal, "outage")
	if !failing {
		resp, err = next(ctx, req)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch method {
	case "ListCryptoKeyVersions":
		p.askedAt, p.asked = now, p.asked+1
		if err != nil {
			break
		}
		p.listedAt, p.mayBackOff, p.list = now, false, nil
		for _, version := range resp.(*kmspb.ListCryptoKeyVersionsResponse).CryptoKeyVersions {
			n, _ := strconv.Atoi(version.Name[strings.LastIndexByte(version.Name, '/')+1:])
			p.list = append(p.list, w.versions[n-1])
		}
		slices.SortFunc(p.list, func(a, b *kmsFact) int { return b.n - a.n })
	case "GetPublicKey":
		name := req.(*kmspb.GetPublicKeyRequest).Name
		if err == nil {
			p.keys[name] = true
		} else {
			p.keyRefused[name] = now
		}
	}
	return resp, err
}

// step has something happen, with and without calls under way, and checks
// everything.
func (w *kmsWorld) step(n int) {
	w.note("--- step %d", n)
	if w.rng.IntN(4) == 0 {
		w.outage()
	}
	w.race(w.operation())
	w.mint()
	synctest.Wait()
	w.checkSigners()
	synctest.Wait()
	w.checkVerifiers()
	synctest.Wait()
	pauses := []time.Duration{0, 50 * time.Millisecond, time.Second, 7 * time.Second, w.cooldown, w.refresh / 3, w.refresh / 2, w.refresh, 2 * w.refresh}
	pause := pauses[w.rng.IntN(len(pauses))]
	if w.rng.IntN(40) == 0 {
		pause = w.refresh + systest.Stale
	}
	w.note("%v pass", pause)
	time.Sleep(pause)
}

// outage begins or ends one of three kinds.
func (w *kmsWorld) outage() {
	was := w.listable()
	switch kind := w.rng.IntN(6); {
	case w.stopped:
		w.note("the server starts")
		if err := w.server.Restart(); err != nil {
			w.Fatal(err)
		}
		w.stopped = false
	case w.failing:
		w.note("requests fail no more")
		w.mu.Lock()
		w.failing = false
		w.mu.Unlock()
	case w.denied:
		w.note("listing is allowed")
		w.server.Allow("cloudkms.cryptoKeyVersions.list")
		w.denied = false
	case kind == 0:
		w.note("the server stops")
		w.server.Stop()
		w.stopped = true
	case kind <= 3:
		w.note("requests fail")
		w.mu.Lock()
		w.failing = true
		w.mu.Unlock()
	default:
		w.note("listing is denied")
		w.server.Deny("cloudkms.cryptoKeyVersions.list")
		w.denied = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch is := w.listable(); {
	case was && !is:
		for _, p := range w.processes {
			p.mayBackOff = true
		}
	case !was && is:
		w.listableSince = time.Now()
	}
}

// operation picks what an operator does next.
func (w *kmsWorld) operation() func() {
	pick := func(want ...kmspb.CryptoKeyVersion_CryptoKeyVersionState) *kmsFact {
		var facts []*kmsFact
		for _, fact := range w.versions {
			if slices.Contains(want, fact.state) {
				facts = append(facts, fact)
			}
		}
		if len(facts) == 0 {
			return nil
		}
		// The newest are those in use.
		return facts[max(w.rng.IntN(len(facts)), w.rng.IntN(len(facts)))]
	}
	to := func(fact *kmsFact, state kmspb.CryptoKeyVersion_CryptoKeyVersionState) func() {
		if fact == nil {
			return func() {}
		}
		return func() { w.setState(fact, state) }
	}
	switch w.rng.IntN(10) {
	case 0, 1, 2:
		if len(w.versions) == kmsMaxVersions {
			return func() {}
		}
		row := kmsAlgs[w.rng.IntN(len(kmsAlgs))]
		return func() { w.create(row) }
	case 3, 4, 5:
		return to(pick(systest.Enabled), systest.Disabled)
	case 6, 7:
		return to(pick(systest.Disabled), systest.Enabled)
	case 8:
		return to(pick(systest.Enabled, systest.Disabled), kmspb.CryptoKeyVersion_DESTROY_SCHEDULED)
	default:
		return func() {}
	}
}

// patience is how long a signature may take. Only a stopped server takes any time.
const kmsPatience = 5 * time.Second

// race performs an operation while signatures and verifications are under way.
// They may come before or after it, but are never wrong.
func (w *kmsWorld) race(operation func()) {
	before := make(map[string]bool)
	for _, fact := range w.versions {
		before[fact.kid] = fact.enabled()
	}
	texts := w.sample(3)
	forged := w.forge()
	var (
		group  sync.WaitGroup
		mu     sync.Mutex
		tokens []string
	)
	for _, p := range w.processes {
		for range 2 {
			for _, row := range kmsAlgs {
				if p.signs {
					group.Go(func() {
						ctx, cancel := context.WithTimeout(p.ctx, kmsPatience)
						defer cancel()
						if text, err := gcpjwt.SignedString(ctx, jwt.New(row.Method)); err == nil {
							mu.Lock()
							tokens = append(tokens, text)
							mu.Unlock()
						}
					})
				}
			}
			if p.keyfunc != nil {
				group.Go(func() {
					for _, fact := range texts {
						jwt.Parse(fact.text, p.keyfunc)
					}
					for _, text := range forged {
						if _, err := jwt.Parse(text, p.keyfunc); err == nil {
							w.Errorf("%s accepts the forged token %s", p.name, text)
						}
					}
				})
			}
		}
	}
	operation()
	group.Wait()
	for _, text := range tokens {
		if fact := w.check(text); fact != nil && !before[fact.kid] && !fact.enabled() {
			w.Errorf("version %d, which was %v, signed", fact.n, fact.state)
		}
	}
}

// check verifies a new token with the public key of the version that it names.
func (w *kmsWorld) check(text string) *kmsFact {
	w.Helper()
	header := systest.Header(w, text)
	i := slices.IndexFunc(w.versions, func(f *kmsFact) bool { return f.kid == header["kid"] })
	if i < 0 {
		w.Errorf("a token with the kid %v, which is none", header["kid"])
		return nil
	}
	fact := w.versions[i]
	signingString, sig := systest.Split(w, text)
	if header["alg"] != fact.row.Alg {
		w.Errorf("a token of alg %v by version %d, which is of %s", header["alg"], fact.n, fact.row.Alg)
	} else if err := systest.VerifyBare(w.Context(), fact.row, w.server, nil, fact.name, signingString, sig); err != nil {
		w.Errorf("a token by version %d: %v", fact.n, err)
	}
	return fact
}

// sample returns up to so many versions that have a token, mostly recent ones.
func (w *kmsWorld) sample(n int) (facts []*kmsFact) {
	for range n {
		fact := w.versions[max(w.rng.IntN(len(w.versions)), w.rng.IntN(len(w.versions)))]
		if fact.text != "" && !slices.Contains(facts, fact) {
			facts = append(facts, fact)
		}
	}
	return facts
}

// forge returns tokens that are no good: with a kid of nobody, a kid of another
// version, a flipped bit.
func (w *kmsWorld) forge() (texts []string) {
	for _, fact := range w.sample(3) {
		other := w.versions[w.rng.IntN(len(w.versions))]
		switch {
		case w.rng.IntN(4) == 0:
			texts = append(texts, systest.Relabel(w, fact.text, "kid", fmt.Sprintf("%040x", w.rng.Uint64())))
		case other != fact:
			texts = append(texts, systest.Relabel(w, fact.text, "kid", other.kid))
		default:
			texts = append(texts, systest.Forge(fact.text))
		}
	}
	return texts
}

// kmsView is what a process had been told at one moment.
type kmsView struct {
	kmsProcess
	at time.Time
}

func (w *kmsWorld) view(p *kmsProcess) kmsView {
	w.mu.Lock()
	defer w.mu.Unlock()
	view := kmsView{*p, time.Now()}
	return view
}

// keptUntil returns until when the list that the process has serves in an outage, at
// least and at most. A process counts from its question, which may be older than
// the answer by the time that reading a list may take: it has to connect first, for
// one thing.
func (v *kmsView) keptUntil(refresh time.Duration) (atLeast, atMost time.Time) {
	atMost = v.listedAt.Add(refresh + systest.Stale)
	return atMost.Add(-systest.FetchLimit), atMost
}

// shows reports whether the list that the process has shows a version.
func (v *kmsView) shows(fact *kmsFact) bool { return slices.Contains(v.list, fact) }

// choice returns the version that signs by the process's list: the newest that
// is settled, or else the oldest, of those not tried yet.
func (v *kmsView) choice(w *kmsWorld, row systest.Row, tried ...*kmsFact) *kmsFact {
	var oldest *kmsFact
	for _, fact := range v.list {
		if fact.row.Alg != row.Alg || slices.Contains(tried, fact) {
			continue
		}
		if v.at.Sub(fact.generated) >= w.refresh/2 {
			return fact
		}
		if oldest == nil || !fact.generated.After(oldest.generated) {
			oldest = fact
		}
	}
	return oldest
}

// enabledOf returns the ENABLED versions of an algorithm.
func (w *kmsWorld) enabledOf(row systest.Row) (facts []*kmsFact) {
	for _, fact := range w.versions {
		if fact.row.Alg == row.Alg && fact.enabled() {
			facts = append(facts, fact)
		}
	}
	return facts
}

// mustSign says why a process must be able to sign, "" if it need not.
func (w *kmsWorld) mustSign(view *kmsView, row systest.Row, end time.Time) string {
	if !w.up() || len(w.enabledOf(row)) == 0 {
		return ""
	}
	first := view.choice(w, row)
	second := view.choice(w, row, first)
	kept, _ := view.keptUntil(w.refresh)
	switch {
	case end.Before(kept) &&
		(first != nil && first.enabled() || second != nil && second.enabled()):
		return "it knows of an ENABLED version"
	case !w.listable():
		return ""
	case view.mayBackOff && view.at.Sub(w.listableSince) < systest.Backoff+systest.FetchLimit:
		return "" // spaces out its attempts, and the last one may have ended late
	case first != nil:
		return "the version that it knows of is gone, so it can look for another"
	case view.at.Sub(view.askedAt) >= w.cooldown && !view.mayBackOff:
		return "it knows of no version, and no cool-down keeps it from looking"
	}
	return ""
}

// checkSigners checks what signers can do while nothing changes.
func (w *kmsWorld) checkSigners() {
	type result struct {
		row  systest.Row
		text string
		err  error
	}
	for _, p := range w.processes {
		if !p.signs {
			continue
		}
		view := w.view(p)
		results := make([]result, 2*len(kmsAlgs))
		var group sync.WaitGroup
		for i := range results {
			row := kmsAlgs[i%len(kmsAlgs)]
			group.Go(func() {
				ctx, cancel := context.WithTimeout(p.ctx, kmsPatience)
				defer cancel()
				text, err := gcpjwt.SignedString(ctx, jwt.New(row.Method))
				results[i] = result{row, text, err}
			})
		}
		group.Wait()
		end := time.Now()
		for _, r := range results {
			if why := w.mustSign(&view, r.row, end); r.err != nil && why != "" {
				w.Errorf("%s cannot sign with %s, though %s: %v", p.name, r.row.Alg, why, r.err)
			}
			if r.err != nil {
				if r.text != "" {
					w.Errorf("%s: a token along with the error %v", p.name, r.err)
				}
				continue
			}
			fact := w.check(r.text)
			if fact == nil {
				continue
			}
			if !w.up() || !fact.enabled() {
				w.Errorf("%s signs with version %d, which is %v, Cloud KMS up: %t", p.name, fact.n, fact.state, w.up())
			}
			if !w.listable() || view.mayBackOff {
				continue // may not know of the newest
			}
			for _, newer := range w.enabledOf(r.row) {
				known := view.at.Sub(newer.since) >= w.refresh && view.at.Sub(newer.generated) >= w.refresh
				if newer.n > fact.n && known {
					w.Errorf("%s signs with version %d, KeyRefresh after version %d", p.name, fact.n, newer.n)
				}
			}
		}
	}
}

// verdict is what a verifier must make of a version's token.
type kmsVerdict int

const (
	kmsEither kmsVerdict = iota
	kmsMustAccept
	kmsMustRefuse
)

func (w *kmsWorld) verdict(view *kmsView, fact *kmsFact, end time.Time) (kmsVerdict, string) {
	kept, keptAtMost := view.keptUntil(w.refresh)
	switch {
	case fact.enabled():
		refused, tried := view.keyRefused[fact.name]
		if !view.keys[fact.name] && (!w.up() || tried && view.at.Sub(refused) < systest.Backoff) {
			return kmsEither, "" // cannot have its public key
		}
		switch {
		case view.shows(fact) && end.Before(kept):
			return kmsMustAccept, "it is ENABLED and known"
		case !w.listable() || view.mayBackOff:
			return kmsEither, ""
		case view.at.Sub(view.listedAt) >= w.refresh:
			return kmsMustAccept, "it is ENABLED and the list is due"
		case view.at.Sub(view.askedAt) >= w.cooldown:
			return kmsMustAccept, "it is ENABLED and no cool-down keeps the verifier from looking"
		}
		return kmsEither, ""
	case !view.shows(fact):
		return kmsMustRefuse, "it isn't ENABLED, as the verifier knows"
	case !view.at.Before(keptAtMost):
		return kmsMustRefuse, "the list is too old for any outage"
	case !w.listable():
		return kmsEither, ""
	case !view.mayBackOff && view.at.Sub(view.listedAt) >= w.refresh:
		return kmsMustRefuse, "it isn't ENABLED and the list is due"
	case view.at.Sub(fact.since) >= w.refresh && view.at.Sub(w.listableSince) >= w.refresh+2*systest.Backoff:
		return kmsMustRefuse, "it hasn't been ENABLED for KeyRefresh, and no outage excuses that"
	}
	return kmsEither, ""
}

// checkVerifiers checks what verifiers say while nothing changes.
func (w *kmsWorld) checkVerifiers() {
	facts := w.sample(12)
	forged := w.forge()
	for _, p := range w.processes {
		if p.keyfunc == nil {
			continue
		}
		view := w.view(p)
		errs := make([]error, len(facts))
		var group sync.WaitGroup
		for i, fact := range facts {
			group.Go(func() { _, errs[i] = jwt.Parse(fact.text, p.keyfunc) })
		}
		for _, text := range forged {
			group.Go(func() {
				if _, err := jwt.Parse(text, p.keyfunc); err == nil {
					w.Errorf("%s accepts the forged token %s", p.name, text)
				}
			})
		}
		group.Wait()
		end := time.Now()
		for i, fact := range facts {
			verdict, why := w.verdict(&view, fact, end)
			unknown, unavailable := errors.Is(errs[i], gcpjwt.ErrUnknownKeyID), errors.Is(errs[i], gcpjwt.ErrKeysUnavailable)
			switch {
			case verdict == kmsMustAccept && errs[i] != nil:
				w.Errorf("%s refuses a token by version %d, though %s: %v", p.name, fact.n, why, errs[i])
			case verdict == kmsMustRefuse && errs[i] == nil:
				w.Errorf("%s accepts a token by version %d, though %s", p.name, fact.n, why)
			case errs[i] != nil && !unknown && !unavailable:
				w.Errorf("%s refuses a good token by version %d: %v", p.name, fact.n, errs[i])
			}
		}
		if after := w.view(p); !w.stopped && after.asked-view.asked > 2 {
			w.Errorf("%s asked for the list %d times at once", p.name, after.asked-view.asked)
		}
	}
}
