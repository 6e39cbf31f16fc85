package storms_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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

const account = systest.Account

// A stormFault is how the origin of public keys fails.
type stormFault int32

const (
	stormNone stormFault = iota
	stormRefused
	stormError
	stormSilent
)

func (f stormFault) String() string {
	return [...]string{"none", "refused", "error", "silent"}[f]
}

// A stormOrigin is a signer whose keys rotate, and a verifier that reads them
// from where they are published.
type stormOrigin struct {
	name     string
	fresh    time.Duration // how long keys may be used after they were read
	stale    time.Duration // how much longer while they can't be read
	cooldown time.Duration // between readings for an unknown kid
	repeated stormFault    // that a reading takes for one that passes soon
	leaves   bool          // the end of a caller's context ends its wait

	verify  func(ctx context.Context, text string) error
	token   func() string // by the newest key
	rotate  func()        // the newest key is a new one, the others are withdrawn
	latency func(d time.Duration)
	fetches func() int // attempts at reading the keys so far

	fault atomic.Int32
}

func (o *stormOrigin) fail(f stormFault) { o.fault.Store(int32(f)) }

func (o *stormOrigin) failing() stormFault { return stormFault(o.fault.Load()) }

// stormOrigins are the two kinds of keys that rotate.
var stormOrigins = []struct {
	name  string
	start func(t *testing.T) *stormOrigin
}{
	{"certificates", startStormCertificates},
	{"CryptoKey", startStormCryptoKey},
}

func startStormCertificates(t *testing.T) *stormOrigin {
	server, config := systest.StartIAM(t, testutil.InMemory())
	o := &stormOrigin{name: "certificates", fresh: 6 * time.Hour, stale: time.Hour, cooldown: time.Minute, repeated: stormError}
	config.EnableCache = true
	var refused atomic.Int64
	// Only the certificates fail, so that tokens can be signed meanwhile.
	config.Client = &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
		switch o.failing() {
		case stormRefused:
			refused.Add(1)
			return nil, syscall.ECONNREFUSED
		case stormError:
			refused.Add(1)
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader("{}")), Header: http.Header{}, Request: r}, nil
		case stormSilent:
			refused.Add(1)
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		return server.Client().Transport.RoundTrip(r)
	})}
	o.verify = func(ctx context.Context, text string) error {
		return systest.Verify(text, gcpjwt.IAMVerifyKeyfunc(ctx, config))
	}
	o.token = func() string {
		return systest.Sign(t, gcpjwt.NewIAMContext(context.Background(), config), gcpjwt.SigningMethodIAMBlob, nil)
	}
	o.rotate = func() {
		kid, err := server.AddKey(account)
		if err != nil {
			t.Fatal(err)
		}
		server.SetSigningKeys(account, kid)
		for _, old := range server.KeyIDs(account) {
			if old != kid {
				server.RemoveKey(account, old)
			}
		}
	}
	o.latency = server.SetLatency
	o.fetches = func() int { return int(refused.Load()) + server.Calls("certificates") }
	return o
}

func startStormCryptoKey(t *testing.T) *stormOrigin {
	server, client := systest.StartKMS(t, testutil.InMemory())
	version, err := server.CreateKey("storm", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		t.Fatal(err)
	}
	// Only what verifiers read fails, so that tokens can be signed meanwhile.
	const signing = "signer"
	signer := systest.NamedClient(t, server, signing)
	o := &stormOrigin{name: "CryptoKey", fresh: 5 * time.Minute, stale: time.Hour, cooldown: time.Minute, repeated: stormRefused, leaves: true}
	config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client}
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if systest.ClientName(ctx) == signing {
			return next(ctx, req)
		}
		switch o.failing() {
		case stormRefused:
			return nil, status.Error(codes.Unavailable, "down")
		case stormError:
			return nil, status.Error(codes.Internal, "down")
		case stormSilent:
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return next(ctx, req)
	})
	o.verify = func(ctx context.Context, text string) error {
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
		if err != nil {
			return err
		}
		return systest.Verify(text, keyfunc)
	}
	newest := version
	o.token = func() string {
		return systest.Sign(t, systest.KMSContext(context.Background(), signer, newest), gcpjwt.SigningMethodKMSES256, nil)
	}
	o.rotate = func() {
		old := newest
		if newest, err = server.CreateVersion(systest.CryptoKeyOf(old)); err != nil {
			t.Fatal(err)
		}
		server.SetState(old, kmspb.CryptoKeyVersion_DISABLED)
	}
	o.latency = server.SetLatency
	o.fetches = func() int { return server.Calls("ListCryptoKeyVersions") }
	return o
}

// A stormLog is what callers met with.
type stormLog struct {
	mu       sync.Mutex
	calls    int
	accepted int
	refused  map[string]int
	waited   int
	slowest  time.Duration
}

// verify verifies a token and notes how that went.
func (l *stormLog) verify(ctx context.Context, o *stormOrigin, text string) error {
	began := time.Now()
	err := o.verify(ctx, text)
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.slowest = max(l.slowest, took)
	if took > 0 {
		l.waited++
	}
	if err == nil {
		l.accepted++
		return nil
	}
	if l.refused == nil {
		l.refused = make(map[string]int)
	}
	l.refused[stormReason(err)]++
	return err
}

func (l *stormLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d verifications, %d accepted, refused %v, %d waited, slowest %v", l.calls, l.accepted, l.refused, l.waited, l.slowest)
}

// stormReason is the sentinel of an error. ErrKeysUnavailable comes first, since
// it says that the token may still be good.
func stormReason(err error) string {
	for _, reason := range []error{
		gcpjwt.ErrKeysUnavailable, gcpjwt.ErrUnknownKeyID, gcpjwt.ErrAlgorithmMismatch,
		context.Canceled, context.DeadlineExceeded, jwt.ErrTokenSignatureInvalid,
	} {
		if errors.Is(err, reason) {
			return reason.Error()
		}
	}
	return err.Error()
}

// stormTest runs a storm on both kinds of keys, with and without a rotation in
// the middle of it.
func stormTest(t *testing.T, storm func(t *testing.T, o *stormOrigin, rotates bool)) {
	for _, origin := range stormOrigins {
		for _, rotates := range []bool{false, true} {
			name := origin.name
			if rotates {
				name += " and a rotation"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { storm(t, origin.start(t), rotates) })
			})
		}
	}
}

// stormAttempts bounds the attempts during an outage: the back-off grows to a minute
// in ten steps. A reading makes three attempts if the fault may pass soon.
func stormAttempts(o *stormOrigin, fault stormFault, outage time.Duration) int {
	n := 12 + int(outage/time.Minute)
	if fault == o.repeated {
		n *= 3
	}
	return n
}

// TestStormExpiryDuringOutage lets the keys of a busy verifier expire while they
// cannot be read: they serve for as long as promised, without a wait, and not a
// moment longer.
func TestStormExpiryDuringOutage(t *testing.T) {
	for _, fault := range []stormFault{stormRefused, stormError, stormSilent} {
		t.Run(fault.String(), func(t *testing.T) {
			stormTest(t, func(t *testing.T, o *stormOrigin, rotates bool) {
				var stale, dead, rotated stormLog
				ctx := t.Context()
				old := o.token()
				read := time.Now()
				if err := o.verify(ctx, old); err != nil {
					t.Fatal(err)
				}
				time.Sleep(o.fresh / 3)
				o.fail(fault)
				began, before := time.Now(), o.fetches()
				text := old
				if rotates {
					o.rotate()
					text = o.token()
				}
				time.Sleep(o.fresh/2 - o.fresh/3)

				for time.Since(read) < o.fresh+o.stale {
					if err := stale.verify(ctx, o, old); err != nil {
						t.Fatalf("%v after the keys were read: got %v, want them to serve for %v and %v more", time.Since(read), err, o.fresh, o.stale)
					}
					if rotates {
						if err := rotated.verify(ctx, o, text); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
							t.Fatalf("a token by a new key during the outage: got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
						}
					}
					time.Sleep(20 * time.Second)
				}
				time.Sleep(time.Until(read.Add(o.fresh + o.stale + time.Millisecond)))
				for range 60 {
					if err := dead.verify(ctx, o, old); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Fatalf("%v after the keys were read: got %v, want %v", time.Since(read), err, gcpjwt.ErrKeysUnavailable)
					}
					time.Sleep(10 * time.Second)
				}
				outage, attempts := time.Since(began), o.fetches()-before

				o.fail(stormNone)
				recovered := stormUntil(t, 2*time.Minute, func() error { return o.verify(ctx, text) })
				if rotates {
					if err := o.verify(ctx, old); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
						t.Errorf("a token by the withdrawn key after the outage: got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
					}
				}
				t.Logf("outage of %v: %d attempts; known key: %v; new key: %v; past the end: %v; recovered after %v", outage, attempts, &stale, &rotated, &dead, recovered)
				if stale.slowest > 0 && !rotates {
					t.Errorf("a caller waited %v for keys that others had", stale.slowest)
				}
				if slowest := max(stale.slowest, dead.slowest, rotated.slowest); slowest > systest.FetchLimit {
					t.Errorf("the slowest caller took %v, want at most %v", slowest, systest.FetchLimit)
				}
				if limit := stormAttempts(o, fault, outage); attempts > limit {
					t.Errorf("made %d attempts in %v, want at most %d", attempts, outage, limit)
				}
				if limit := systest.Backoff + systest.FetchLimit; recovered > limit {
					t.Errorf("recovered %v after the outage, want at most %v", recovered, limit)
				}
			})
		})
	}
}

// stormUntil repeats f each second until it succeeds and says how long that took.
func stormUntil(t *testing.T, limit time.Duration, f func() error) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		err := f()
		took := time.Since(began)
		if err == nil {
			return took
		}
		if took > limit {
			t.Fatalf("still failing after %v: %v", took, err)
		}
		time.Sleep(time.Second)
	}
}

// TestStormColdOutage starts verifiers whose keys have never been read, and
// cannot be: the first ones wait for the first attempt, those that follow are
// told at once.
func TestStormColdOutage(t *testing.T) {
	for _, fault := range []stormFault{stormRefused, stormError, stormSilent} {
		t.Run(fault.String(), func(t *testing.T) {
			stormTest(t, func(t *testing.T, o *stormOrigin, rotates bool) {
				const seconds, perSecond = 100, 20
				ctx := t.Context()
				text := o.token()
				o.fail(fault)
				began, before := time.Now(), o.fetches()
				var first, later stormLog
				var group sync.WaitGroup
				for i := range seconds * perSecond {
					log := &first
					if time.Since(began) > systest.FetchLimit {
						log = &later
					}
					group.Go(func() {
						if err := log.verify(ctx, o, text); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
							t.Errorf("got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
						}
					})
					if i == seconds*perSecond/2 && rotates {
						o.rotate()
					}
					time.Sleep(time.Second / perSecond)
				}
				group.Wait()
				outage, attempts := time.Since(began), o.fetches()-before
				o.fail(stormNone)
				text = o.token()
				recovered := stormUntil(t, 2*time.Minute, func() error { return o.verify(ctx, text) })

				t.Logf("outage of %v: %d attempts; at first: %v; later: %v; recovered after %v", outage, attempts, &first, &later, recovered)
				if slowest := max(first.slowest, later.slowest); slowest > systest.FetchLimit {
					t.Errorf("the slowest caller took %v, want at most %v", slowest, systest.FetchLimit)
				}
				if limit := stormAttempts(o, fault, outage); attempts > limit {
					t.Errorf("made %d attempts in %v, want at most %d", attempts, outage, limit)
				}
				// Only the one that each attempt is for waits for it.
				if limit := 12 + int(outage/time.Minute); later.waited > limit {
					t.Errorf("%d callers waited although an attempt had failed, want at most %d", later.waited, limit)
				}
				if limit := systest.Backoff + systest.FetchLimit; recovered > limit {
					t.Errorf("recovered %v after the outage, want at most %v", recovered, limit)
				}
			})
		})
	}
}

// TestStormFlapping has an endpoint come and go for many lifetimes of its keys:
// no good token is refused.
func TestStormFlapping(t *testing.T) {
	stormTest(t, func(t *testing.T, o *stormOrigin, rotates bool) {
		const period = 45 * time.Second
		ctx := t.Context()
		old := o.token()
		if err := o.verify(ctx, old); err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(4 * o.fresh)
		var log, rotated stormLog
		var learnt time.Duration
		before := o.fetches()
		began := time.Now()
		faults := []stormFault{stormRefused, stormNone, stormError, stormNone, stormSilent, stormNone}
		var done atomic.Bool
		go func() {
			for i := 0; !done.Load(); i++ {
				o.fail(faults[i%len(faults)])
				time.Sleep(period)
			}
		}()
		text, turn := old, time.Now().Add(2*o.fresh)
		for time.Now().Before(end) {
			if rotates && text == old && time.Now().After(turn) {
				o.rotate()
				text = o.token()
				learnt = stormUntil(t, 5*time.Minute, func() error { return rotated.verify(ctx, o, text) })
			}
			if err := log.verify(ctx, o, text); err != nil {
				t.Fatalf("a good token was refused: %v", err)
			}
			time.Sleep(o.fresh / 100)
		}
		done.Store(true)
		time.Sleep(period)
		o.fail(stormNone)
		attempts, lasted := o.fetches()-before, time.Since(began)
		t.Logf("flapped for %v: %d attempts; %v; new key learnt after %v: %v", lasted, attempts, &log, learnt, &rotated)
		if log.slowest > 0 {
			t.Errorf("a caller waited %v for keys that others had", log.slowest)
		}
		if rotated.slowest > systest.FetchLimit {
			t.Errorf("the slowest caller took %v, want at most %v", rotated.slowest, systest.FetchLimit)
		}
		// A new kid is asked for at once, or when the outage is over and the
		// back-off and the cool-down have passed.
		if limit := period + systest.Backoff + systest.FetchLimit; learnt > limit {
			t.Errorf("learnt a new key after %v, want at most %v", learnt, limit)
		}
		// Each renewal has up to ten failures in an outage of 45 seconds, each with
		// three repetitions.
		if limit := int(lasted/(o.fresh/2)+2) * 45; attempts > limit {
			t.Errorf("made %d attempts, want at most %d", attempts, limit)
		}
	})
}

// TestStormForgedKeyIDs floods a verifier with 10,000 kids that no key has.
func TestStormForgedKeyIDs(t *testing.T) {
	for _, fault := range []stormFault{stormNone, stormRefused, stormSilent} {
		t.Run("fault "+fault.String(), func(t *testing.T) {
			stormTest(t, func(t *testing.T, o *stormOrigin, rotates bool) {
				const forgeries, senders = 10_000, 10
				const lasts = 3 * time.Minute
				ctx := t.Context()
				old := o.token()
				if err := o.verify(ctx, old); err != nil {
					t.Fatal(err)
				}
				o.latency(100 * time.Millisecond)
				o.fail(fault)
				before, began := o.fetches(), time.Now()
				var forged, good stormLog
				var group sync.WaitGroup
				for sender := range senders {
					group.Go(func() {
						for i := range forgeries / senders {
							err := forged.verify(ctx, o, stormForge(old, fmt.Sprintf("forged-%d-%d", sender, i)))
							if !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
								t.Errorf("a forged kid: got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
								return
							}
							time.Sleep(lasts / (forgeries / senders))
						}
					})
				}
				var learnt time.Duration
				group.Go(func() {
					text := old
					for i := 0; time.Since(began) < lasts; i++ {
						if rotates && i == 30 {
							o.rotate()
							text = o.token()
							if fault == stormNone {
								learnt = stormUntil(t, 5*time.Minute, func() error { return o.verify(ctx, text) })
							} else {
								text = old // it serves on in an outage
							}
						}
						if err := good.verify(ctx, o, text); err != nil {
							t.Errorf("a good token was refused: %v", err)
						}
						time.Sleep(time.Second)
					}
				})
				group.Wait()
				attempts, lasted := o.fetches()-before, time.Since(began)
				t.Logf("%v: %d attempts; forged: %v; good: %v; new key learnt after %v", lasted, attempts, &forged, &good, learnt)
				limit := 2 + int(lasted/o.cooldown) + int(lasted/(o.fresh/2)) // the cool-down's, and renewals
				if fault != stormNone {
					limit = stormAttempts(o, fault, lasted)
				}
				if attempts > limit {
					t.Errorf("made %d attempts, want at most %d", attempts, limit)
				}
				if good.slowest > 0 {
					t.Errorf("a caller with a good token waited %v", good.slowest)
				}
				if forged.slowest > systest.FetchLimit {
					t.Errorf("the slowest caller took %v, want at most %v", forged.slowest, systest.FetchLimit)
				}
				if limit := o.cooldown + 2*time.Second; learnt > limit {
					t.Errorf("learnt a new key after %v, want at most %v", learnt, limit)
				}
			})
		})
	}
}

// stormForge puts another kid into a token's header. The signature, which isn't
// looked at for want of a key, stays.
func stormForge(text, kid string) string {
	alg := "RS256"
	if len(text) < 400 { // ECDSA signatures are shorter
		alg = "ES256"
	}
	header := fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":"JWT"}`, alg, kid)
	return base64.RawURLEncoding.EncodeToString([]byte(header)) + text[strings.IndexByte(text, '.'):]
}

// TestStormColdCallers has 2,000 callers ask at once for keys that nobody has
// read yet. Every tenth leaves before they are there, if it can.
func TestStormColdCallers(t *testing.T) {
	stormTest(t, func(t *testing.T, o *stormOrigin, rotates bool) {
		const callers = 2000
		const latency = 2 * time.Second
		old := o.token()
		text := old
		o.latency(latency)
		before := o.fetches()
		var stay, leave stormLog
		var group sync.WaitGroup
		if rotates {
			o.latency(0)
			o.rotate()
			text = o.token()
			o.latency(latency)
		}
		for i := range callers {
			group.Go(func() {
				if i%10 != 0 || !o.leaves {
					if err := stay.verify(t.Context(), o, text); err != nil {
						t.Errorf("a good token was refused: %v", err)
					}
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := leave.verify(ctx, o, text); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a caller that leaves: got %v, want %v", err, context.DeadlineExceeded)
				}
			})
		}
		group.Wait()
		attempts := o.fetches() - before
		t.Logf("%d fetches; stayed: %v; left: %v", attempts, &stay, &leave)
		if attempts != 1 {
			t.Errorf("made %d fetches, want 1", attempts)
		}
		if limit := 2 * latency; stay.slowest > limit { // a list, then the public key
			t.Errorf("the slowest caller took %v, want at most %v", stay.slowest, limit)
		}
		if leave.slowest > time.Second {
			t.Errorf("the slowest caller that leaves took %v, want 1s", leave.slowest)
		}
		if rotates {
			if err := o.verify(t.Context(), old); err == nil {
				t.Error("a token by a withdrawn key was accepted")
			}
		}
	})
}

// TestStormWithdrawal withdraws a key at different moments of its lifetime under
// a busy verifier: its tokens are refused within that lifetime, and those by the
// new key are good at once.
func TestStormWithdrawal(t *testing.T) {
	for _, origin := range stormOrigins {
		t.Run(origin.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := origin.start(t)
				ctx := t.Context()
				text := o.token()
				if err := o.verify(ctx, text); err != nil {
					t.Fatal(err)
				}
				var longest time.Duration
				for i := range 5 {
					time.Sleep(o.fresh * time.Duration(i) / 5)
					old := text
					began := time.Now()
					o.rotate()
					for {
						err := o.verify(ctx, old)
						took := time.Since(began)
						if errors.Is(err, gcpjwt.ErrUnknownKeyID) {
							longest = max(longest, took)
							break
						}
						if err != nil || took > o.fresh {
							t.Fatalf("%v after its key was withdrawn: got %v for a token, want %v within %v", took, err, gcpjwt.ErrUnknownKeyID, o.fresh)
						}
						time.Sleep(o.fresh / 200)
					}
					text = o.token()
					if learnt := stormUntil(t, o.cooldown+time.Second, func() error { return o.verify(ctx, text) }); learnt > o.cooldown {
						t.Errorf("learnt a new key after %v, want at most %v", learnt, o.cooldown)
					}
				}
				t.Logf("tokens by a withdrawn key were accepted for %v at most", longest)
			})
		})
	}
}

// TestStormOneHangs verifies tokens of 50 accounts, or CryptoKeys, one of which
// never answers. All of them rotate in the middle of it, if any does.
func TestStormOneHangs(t *testing.T) {
	const signers, callers, rounds = 50, 20, 6
	const latency = 100 * time.Millisecond
	const pause = 5 * time.Second
	check := func(t *testing.T, verify func(ctx context.Context, signer int) error, rotate func(), fetches func() int) {
		var good, hanging stormLog
		var group sync.WaitGroup
		began := time.Now()
		for signer := range signers {
			log, origin := &good, &stormOrigin{verify: func(ctx context.Context, _ string) error { return verify(ctx, signer) }}
			if signer == 0 {
				log = &hanging
			}
			for range callers {
				group.Go(func() {
					for range rounds {
						err := log.verify(t.Context(), origin, "")
						if signer == 0 != errors.Is(err, gcpjwt.ErrKeysUnavailable) || signer != 0 && err != nil {
							t.Errorf("signer %d: got %v", signer, err)
							return
						}
						time.Sleep(pause)
					}
				})
			}
		}
		if rotate != nil {
			time.Sleep(2*pause + pause/2)
			rotate()
		}
		group.Wait()
		t.Logf("%v: %d fetches; good: %v; hanging: %v", time.Since(began), fetches(), &good, &hanging)
		if limit := 2 * latency; good.slowest > limit { // a list, then the public key
			t.Errorf("the slowest caller of a good signer took %v, want at most %v", good.slowest, limit)
		}
		if hanging.slowest > systest.FetchLimit {
			t.Errorf("the slowest caller of the hanging signer took %v, want at most %v", hanging.slowest, systest.FetchLimit)
		}
		limit := signers + 10
		if rotate != nil {
			limit += signers
		}
		if fetches() > limit {
			t.Errorf("made %d fetches, want at most %d", fetches(), limit)
		}
	}

	for _, rotates := range []bool{false, true} {
		t.Run(fmt.Sprintf("certificates, rotation %v", rotates), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, config := systest.StartIAM(t, testutil.InMemory())
				token := func() *string {
					text := systest.Sign(t, gcpjwt.NewIAMContext(context.Background(), config), gcpjwt.SigningMethodIAMBlob, nil)
					return &text
				}
				var text atomic.Pointer[string]
				text.Store(token())
				var rotate func()
				if rotates {
					rotate = func() {
						kid, err := server.AddKey(account)
						if err != nil {
							t.Fatal(err)
						}
						server.SetSigningKeys(account, kid)
						text.Store(token())
					}
				}
				server.SetLatency(latency)
				// All accounts have the keys of the one that the server knows.
				client := &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
					if strings.Contains(r.URL.Path, "/signer-0@") {
						<-r.Context().Done()
						return nil, r.Context().Err()
					}
					r = r.Clone(r.Context())
					r.URL.Path = r.URL.Path[:strings.LastIndexByte(r.URL.Path, '/')+1] + account
					return server.Client().Transport.RoundTrip(r)
				})}
				check(t, func(ctx context.Context, signer int) error {
					config := *config
					config.Client = client
					config.EnableCache = true
					config.ServiceAccount = fmt.Sprintf("signer-%d@test.iam.gserviceaccount.com", signer)
					return systest.Verify(*text.Load(), gcpjwt.IAMVerifyKeyfunc(ctx, &config))
				}, rotate, func() int { return server.Calls("certificates") })
			})
		})
		t.Run(fmt.Sprintf("CryptoKey, rotation %v", rotates), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, client := systest.StartKMS(t, testutil.InMemory())
				signer := systest.Client(t, server)
				var configs [signers]*gcpjwt.KMSConfig
				var texts [signers]atomic.Pointer[string]
				token := func(i int, version string) {
					text := systest.Sign(t, gcpjwt.NewKMSContext(context.Background(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: signer}), gcpjwt.SigningMethodKMSES256, nil)
					texts[i].Store(&text)
				}
				for i := range signers {
					version, err := server.CreateKey(fmt.Sprint("storm-", i), kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
					if err != nil {
						t.Fatal(err)
					}
					configs[i] = &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client}
					token(i, version)
				}
				var rotate func()
				if rotates {
					rotate = func() {
						server.SetLatency(0)
						defer server.SetLatency(latency)
						for i := range signers {
							version, err := server.CreateVersion(configs[i].KeyPath)
							if err != nil {
								t.Fatal(err)
							}
							token(i, version)
						}
					}
				}
				server.SetLatency(latency)
				server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
					if list, ok := req.(*kmspb.ListCryptoKeyVersionsRequest); ok && strings.HasSuffix(list.Parent, "/storm-0") {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return next(ctx, req)
				})
				check(t, func(ctx context.Context, signer int) error {
					keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, configs[signer])
					if err != nil {
						return err
					}
					return systest.Verify(*texts[signer].Load(), keyfunc)
				}, rotate, func() int { return server.Calls("ListCryptoKeyVersions") })
			})
		})
	}
}

// TestStormSigning has 2,000 signers of a CryptoKey whose newest version is
// disabled under them, while its list can be read and while it cannot. No
// signature fails, and the known list serves for as long as promised.
func TestStormSigning(t *testing.T) {
	for _, fault := range []stormFault{stormNone, stormRefused, stormError, stormSilent} {
		t.Run("list "+fault.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				signers := 2000
				if fault != stormNone {
					signers = 500
				}
				server, client := systest.StartKMS(t, testutil.InMemory())
				version, err := server.CreateKey("storm", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
				if err != nil {
					t.Fatal(err)
				}
				newer, err := server.CreateVersion(systest.CryptoKeyOf(version))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour) // so that the newer one signs
				ctx := gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client})
				signs := func(want string) error {
					text, err := gcpjwt.SignedString(ctx, systest.Token(gcpjwt.SigningMethodKMSES256))
					if err != nil {
						return err
					}
					if kid := systest.Header(t, text)["kid"]; kid != gcpjwt.KMSKeyID(want) {
						return fmt.Errorf("got kid %v, want that of %s", kid, want)
					}
					return systest.Check(systest.RowOf(systest.P256), server, want, text)
				}
				if err := signs(newer); err != nil {
					t.Fatal(err)
				}
				read := time.Now()
				server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
					if method == "ListCryptoKeyVersions" {
						switch fault {
						case stormRefused:
							return nil, status.Error(codes.Unavailable, "down")
						case stormError:
							return nil, status.Error(codes.Internal, "down")
						case stormSilent:
							<-ctx.Done()
							return nil, ctx.Err()
						}
					}
					return next(ctx, req)
				})
				server.SetState(newer, kmspb.CryptoKeyVersion_DISABLED)
				server.SetLatency(50 * time.Millisecond)
				before := server.Calls("ListCryptoKeyVersions")
				var group sync.WaitGroup
				var slowest atomic.Int64
				for range signers {
					group.Go(func() {
						began := time.Now()
						if err := signs(version); err != nil {
							t.Errorf("got error %v, want none", err)
						}
						took := int64(time.Since(began))
						for seen := slowest.Load(); took > seen && !slowest.CompareAndSwap(seen, took); seen = slowest.Load() {
						}
					})
				}
				group.Wait()
				attempts := server.Calls("ListCryptoKeyVersions") - before
				t.Logf("%d signatures: %d lists, the slowest signature took %v", signers, attempts, time.Duration(slowest.Load()))
				limit := 2
				if fault == stormRefused {
					limit = 4 * 2 // with repetitions
				}
				if attempts > limit {
					t.Errorf("made %d lists, want at most %d", attempts, limit)
				}
				if limit := systest.FetchLimit + time.Second; time.Duration(slowest.Load()) > limit {
					t.Errorf("the slowest signature took %v, want at most %v", time.Duration(slowest.Load()), limit)
				}
				if fault == stormNone {
					return
				}

				const promised = 5*time.Minute + time.Hour
				for time.Since(read) < promised-time.Minute {
					if err := signs(version); err != nil {
						t.Fatalf("%v after the list was read: got error %v, want none", time.Since(read), err)
					}
					time.Sleep(time.Minute)
				}
				time.Sleep(time.Until(read.Add(promised + time.Second)))
				if err := signs(version); err == nil {
					t.Errorf("%v after the list was read: got a signature, want none on such an old list", time.Since(read))
				}
			})
		})
	}
}

// TestStormDisabledTogether disables two versions at once while the list is
// being read, so that what has been read has both of them. The one that is left
// signs.
func TestStormDisabledTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := systest.StartKMS(t, testutil.InMemory())
		first, err := server.CreateKey("storm", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
		if err != nil {
			t.Fatal(err)
		}
		var others []string
		for range 2 {
			version, err := server.CreateVersion(systest.CryptoKeyOf(first))
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, version)
		}
		time.Sleep(time.Hour) // so that the newest one signs
		ctx := gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(first), KMSClient: client})
		systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)

		server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			response, err := next(ctx, req)
			if method == "ListCryptoKeyVersions" {
				time.Sleep(2 * time.Second)
			}
			return response, err
		})
		time.Sleep(3 * time.Minute)
		systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil) // sets off a renewal
		time.Sleep(time.Second)
		for _, version := range others {
			server.SetState(version, kmspb.CryptoKeyVersion_DISABLED)
		}
		text := systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)
		if err := systest.Check(systest.RowOf(systest.P256), server, first, text); err != nil {
			t.Error(err)
		}
	})
}
