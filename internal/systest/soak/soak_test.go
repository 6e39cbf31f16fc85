package soak_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/googleapis/gax-go/v2/callctx"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestMain(m *testing.M) { systest.Main(m) }

const account = systest.Account

var (
	soakFor  = flag.Duration("soak", 0, "how long TestSoak runs at full speed; 0: a while on a clock of its own")
	soakSeed = flag.Uint64("seed", 1, "seed of TestSoak")
)

const (
	// soakRefresh is how long key lists may be used. It is short so that many
	// lifetimes pass in a run.
	soakRefresh = time.Second

	// soakGrace is how long after a fault its consequences may show: a few
	// back-offs, and the time that a busy machine takes.
	soakGrace = 10 * time.Second

	soakTokens  = 64 // that are kept of each signer
	soakEnabled = 3  // versions of a CryptoKey, besides the first
)

// A soakServer is one of the servers and when it last failed.
type soakServer struct {
	name    string
	faults  []soakFault
	restart func() error

	fault  atomic.Pointer[soakFault]
	active atomic.Bool
	ended  atomic.Int64 // when its last fault did
}

// A soakFault is what happens to some answers while it lasts.
type soakFault struct {
	name string
	grpc func(ctx context.Context, req proto.Message, next testutil.KMSHandler) (proto.Message, error)
	http func(w http.ResponseWriter, r *http.Request, next http.Handler)
	set  func(on bool) // for those that aren't interceptors
}

// healthy reports since when the server has been without faults.
func (s *soakServer) healthy() (since time.Time, ok bool) {
	return time.Unix(0, s.ended.Load()), !s.active.Load()
}

// A soakToken is a token that must verify, unless its key is withdrawn.
type soakToken struct {
	text string
	key  *soakKey
}

// A soakKey is one key of a signer.
type soakKey struct{ withdrawn atomic.Int64 }

// A soakSigner signs and verifies with one method and configuration.
type soakSigner struct {
	name    string
	server  *soakServer
	method  jwt.SigningMethod
	ctx     context.Context // with the configuration
	peer    *soakSigner     // of a tenant who may not sign: whose tokens it verifies
	keyfunc jwt.Keyfunc
	keyOf   func(kid string) *soakKey

	mu     sync.Mutex
	tokens []soakToken
	next   int
}

// some returns a token to verify.
func (s *soakSigner) some(rng *rand.Rand) soakToken {
	if s.peer != nil {
		return s.peer.some(rng)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[rng.IntN(len(s.tokens))]
}

// A soakCount counts what happened.
type soakCount struct {
	signed, accepted, forged, withdrawn, denied atomic.Int64

	mu      sync.Mutex
	refused map[string]int // by reason
}

func (c *soakCount) refuse(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[reason]++
}

// TestSoak has signers and verifiers of every method at work while the servers
// restart, rotate their keys, corrupt what they answer and stall. Whatever is
// accepted must be good, whatever fails must have a reason, and when the faults
// are over every token by a key that is left must verify.
//
// With -soak it runs at full speed in real time. Without, time passes only when
// everybody waits, so that nothing depends on the speed of the machine.
func TestSoak(t *testing.T) {
	if *soakFor > 0 {
		runSoak(t, &soak{lasts: *soakFor})
		return
	}
	synctest.Test(t, func(t *testing.T) {
		runSoak(t, &soak{lasts: 20 * time.Second, pause: 400 * time.Millisecond})
		time.Sleep(systest.CallLimit) // calls under way come to their end
	})
}

func runSoak(t *testing.T, s *soak) {
	seed := *soakSeed
	t.Logf("-soak %v -seed %d", *soakFor, seed)
	s.start(t)
	warm := rand.New(rand.NewPCG(seed, 3000))
	for _, signer := range s.signers { // what is made once is made
		if err := s.sign(t, signer); err != nil {
			t.Fatalf("%s: %v", signer.name, err)
		}
		if err := systest.Verify(signer.some(warm).text, signer.keyfunc); err != nil {
			t.Fatalf("%s: %v", signer.name, err)
		}
	}
	goroutines, heap := s.usage(0)

	ctx, cancel := context.WithTimeout(t.Context(), s.lasts)
	defer cancel()
	var group sync.WaitGroup
	for i, signer := range s.signers {
		group.Go(func() { s.signAll(ctx, t, signer) })
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		group.Go(func() { s.verifyAll(ctx, t, signer, rng) })
	}
	for i, server := range s.servers {
		rng := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		group.Go(func() { s.disturb(ctx, t, server, rng) })
	}
	group.Go(func() { s.rotateAll(ctx, t, rand.New(rand.NewPCG(seed, 2000))) })
	if *soakFor > 0 {
		group.Go(func() { freeze(ctx, t, s.lasts, rand.New(rand.NewPCG(seed, 4000))) })
	}
	group.Wait()

	s.settle(t)
	goroutinesAfter, heapAfter := s.usage(goroutines + 10)
	s.checkTenants(t)
	t.Logf("%d signed, %d accepted, %d forgeries refused, %d refused as withdrawn, %d refused to a tenant, %d rotations, %d faults; failures: %v",
		s.count.signed.Load(), s.count.accepted.Load(), s.count.forged.Load(), s.count.withdrawn.Load(), s.count.denied.Load(), s.rotations.Load(), s.disturbances.Load(), s.count.refused)
	t.Logf("goroutines: %d before, %d after; heap: %d KiB before, %d KiB after", goroutines, goroutinesAfter, heap>>10, heapAfter>>10)
	if limit := goroutines + 10; goroutinesAfter > limit {
		t.Errorf("%d goroutines are left, want at most %d", goroutinesAfter, limit)
	}
	if limit := heap + 32<<20; heapAfter > limit {
		t.Errorf("the heap has %d KiB, want at most %d", heapAfter>>10, limit>>10)
	}
	if s.count.signed.Load() == 0 || s.count.accepted.Load() == 0 || s.count.forged.Load() == 0 || s.count.denied.Load() == 0 {
		t.Error("nothing happened")
	}
}

// A soak is the state of a run.
type soak struct {
	lasts time.Duration
	pause time.Duration // after each signature and verification

	servers []*soakServer
	signers []*soakSigner
	rotate  []func() (done bool, err error)
	tenants []*soakTenant
	idle    []func() // closes idle connections
	count   soakCount

	rotations, disturbances atomic.Int64
	billed                  atomic.Int64 // calls that read for everybody, but name a tenant's project
}

// soakProject is what the calls of a tenant who may not sign are billed to.
const soakProject = "tenant-without-permission"

// A soakTenant is one of several configurations of a key. Each has its Logger.
type soakTenant struct {
	name string
	mu   sync.Mutex
	log  bytes.Buffer
}

// addTenant returns the Logger of a further one.
func (s *soak) addTenant(name string) *slog.Logger {
	tenant := &soakTenant{name: name}
	s.tenants = append(s.tenants, tenant)
	return slog.New(slog.NewTextHandler(tenant, nil))
}

// Write keeps what the Logger is told.
func (t *soakTenant) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.log.Write(line)
}

// checkTenants checks that each tenant's Logger has heard of the key that they share, and
// that nobody's has heard of what only their calls met.
func (s *soak) checkTenants(t *testing.T) {
	if n := s.billed.Load(); n != 0 {
		t.Errorf("%d calls that read for everybody were billed to a tenant", n)
	}
	for _, tenant := range s.tenants {
		tenant.mu.Lock()
		log := tenant.log.String()
		tenant.mu.Unlock()
		if log == "" {
			t.Errorf("%s: its Logger was told nothing", tenant.name)
		}
		for _, private := range []string{soakProject, "PermissionDenied", "PERMISSION_DENIED", "USER_PROJECT_DENIED"} {
			if strings.Contains(log, private) {
				t.Errorf("%s: its Logger was told %q", tenant.name, private)
			}
		}
	}
}

// start starts servers, and makes the signers.
func (s *soak) start(t *testing.T) {
	s.count.refused = make(map[string]int)
	// RSA keys are the same for all servers of a process: this makes those that
	// are needed before the time runs.
	spare, err := testutil.NewIAM(testutil.InMemory())
	if err != nil {
		t.Fatal(err)
	}
	defer spare.Close()
	if _, err := spare.CreateAccount(account); err != nil {
		t.Fatal(err)
	}
	for range s.accountKeys() + 1 {
		if _, err := spare.AddKey(account); err != nil {
			t.Fatal(err)
		}
	}
	s.addKMS(t)
	s.addIAM(t)
	s.addAppEngine(t)
}

// sign signs one token and keeps it.
func (s *soak) sign(t *testing.T, signer *soakSigner) error {
	ctx, cancel := context.WithTimeout(signer.ctx, 5*time.Second)
	defer cancel()
	text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(signer.method, jwt.MapClaims{"sub": "soak", "exp": time.Now().Add(time.Hour).Unix()}))
	if signer.peer != nil && status.Code(err) == codes.PermissionDenied {
		s.count.denied.Add(1)
		return nil
	}
	if err != nil {
		return err
	}
	if signer.peer != nil {
		t.Errorf("%s: signed, but may not", signer.name)
		return nil
	}
	s.count.signed.Add(1)
	kid, _ := systest.Header(t, text)["kid"].(string)
	if kid == "" { // signBlob and App Engine, while two keys sign
		return nil
	}
	key := signer.keyOf(kid)
	if key == nil {
		t.Errorf("%s: signed with a key %q that it doesn't have", signer.name, kid)
		return nil
	}
	signer.mu.Lock()
	defer signer.mu.Unlock()
	if made := (soakToken{text, key}); len(signer.tokens) < soakTokens {
		signer.tokens = append(signer.tokens, made)
	} else {
		signer.tokens[signer.next%soakTokens] = made
	}
	signer.next++
	return nil
}

func (s *soak) signAll(ctx context.Context, t *testing.T, signer *soakSigner) {
	for ctx.Err() == nil {
		if err := s.sign(t, signer); err != nil {
			s.explain(t, signer, "sign", err)
		}
		time.Sleep(s.pause)
	}
}

// verifyAll verifies tokens, good ones and forgeries.
func (s *soak) verifyAll(ctx context.Context, t *testing.T, signer *soakSigner, rng *rand.Rand) {
	for i := 0; ctx.Err() == nil; i++ {
		time.Sleep(s.pause)
		if i%8 == 0 {
			runtime.Gosched() // or those who wait for the network starve
		}
		token := signer.some(rng)
		if rng.IntN(4) == 0 {
			name, forged := soakForge(rng, token.text)
			if err := systest.Verify(forged, signer.keyfunc); err == nil {
				t.Errorf("%s: accepted %s: %s", signer.name, name, forged)
			}
			s.count.forged.Add(1)
			continue
		}
		before := time.Now()
		withdrawn := token.key.withdrawn.Load()
		err := systest.Verify(token.text, signer.keyfunc)
		switch {
		case err == nil && withdrawn != 0:
			// It may be accepted for the lifetime of the list, and in an outage.
			since, ok := signer.server.healthy()
			if gone := time.Unix(0, withdrawn); ok && before.Sub(since) > soakRefresh+soakGrace && before.Sub(gone) > soakRefresh+soakGrace {
				t.Errorf("%s: accepted a token whose key was withdrawn %v ago", signer.name, before.Sub(gone))
			}
		case err == nil:
			s.count.accepted.Add(1)
		case token.key.withdrawn.Load() != 0 && (errors.Is(err, gcpjwt.ErrUnknownKeyID) || errors.Is(err, gcpjwt.ErrKeysUnavailable)):
			s.count.withdrawn.Add(1)
		default:
			s.explain(t, signer, "verify", err)
		}
	}
}

// soakForge makes a token that must be refused out of a good one.
func soakForge(rng *rand.Rand, text string) (name, forged string) {
	parts := strings.Split(text, ".")
	parser := jwt.NewParser()
	header, _ := parser.DecodeSegment(parts[0])
	join := func() string { return strings.Join(parts, ".") }
	encode := func(b []byte) string { return (&jwt.Token{}).EncodeSegment(b) }
	switch rng.IntN(4) {
	case 0:
		sig, _ := parser.DecodeSegment(parts[2])
		sig[rng.IntN(len(sig))] ^= 1 << rng.IntN(8)
		parts[2] = encode(sig)
		return "a signature with a bit flipped", join()
	case 1:
		claims, _ := parser.DecodeSegment(parts[1])
		parts[1] = encode(bytes.Replace(claims, []byte("soak"), []byte("root"), 1))
		return "other claims", join()
	case 2:
		algs := []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512", "none", "ML-DSA-44", "KMSRS256", "IAMBlob", "AppEngine"}
		alg := algs[rng.IntN(len(algs))]
		at := bytes.Index(header, []byte(`"alg":"`)) + len(`"alg":"`)
		end := at + bytes.IndexByte(header[at:], '"')
		if string(header[at:end]) == alg {
			alg = "none"
		}
		parts[0] = encode(slices.Concat(header[:at], []byte(alg), header[end:]))
		return "another algorithm " + alg, join()
	default:
		at := bytes.Index(header, []byte(`"kid":"`)) + len(`"kid":"`)
		end := at + bytes.IndexByte(header[at:], '"')
		parts[0] = encode(slices.Concat(header[:at], fmt.Appendf(nil, "%x", rng.Uint64()), header[end:]))
		return "another kid", join()
	}
}

// explain accepts a failure that a fault of the server accounts for.
func (s *soak) explain(t *testing.T, signer *soakSigner, what string, err error) {
	reason := soakReason(err)
	s.count.refuse(reason)
	since, healthy := signer.server.healthy()
	if reason == "" || healthy && time.Since(since) > soakGrace {
		t.Errorf("%s: %s failed without a reason, %v after the last fault: %v", signer.name, what, time.Since(since), err)
	}
}

// soakReason is why a call may fail while servers do, "" if that is no reason.
func soakReason(err error) string {
	var (
		answer *googleapi.Error
		netErr net.Error
	)
	switch {
	case errors.Is(err, gcpjwt.ErrIntegrity):
		return "integrity"
	case errors.Is(err, gcpjwt.ErrKeysUnavailable):
		return "keys unavailable"
	case errors.Is(err, gcpjwt.ErrUnknownKeyID):
		return "unknown key ID" // a key newer than the list, which can't be read anew
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.As(err, &answer) && (answer.Code >= 500 || answer.Code == http.StatusTooManyRequests):
		return fmt.Sprint("status ", answer.Code)
	case slices.Contains([]codes.Code{codes.Unavailable, codes.Internal, codes.ResourceExhausted, codes.FailedPrecondition}, status.Code(err)):
		return status.Code(err).String()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, net.ErrClosed), errors.As(err, &netErr):
		return "connection"
	case strings.HasPrefix(err.Error(), "gcpjwt: App Engine's "):
		return "App Engine" // the SDK's errors have no types
	case strings.Contains(err.Error(), "invalid character"), strings.Contains(err.Error(), "syntax error"), strings.Contains(err.Error(), "unexpected EOF"), strings.Contains(err.Error(), "unexpected end of JSON"):
		return "not JSON" // nor do those of Google's client here
	}
	return ""
}

// disturb breaks a server every now and then. In a long run there are quiet
// times too, in which nothing may fail.
func (s *soak) disturb(ctx context.Context, t *testing.T, server *soakServer, rng *rand.Rand) {
	for soakPause(ctx, rng, 100*time.Millisecond) {
		if s.lasts >= time.Minute && rng.IntN(50) == 0 && !soakPause(ctx, rng, 4*soakGrace) {
			return
		}
		server.active.Store(true)
		s.disturbances.Add(1)
		if i := rng.IntN(len(server.faults) + 1); i == len(server.faults) {
			if err := server.restart(); err != nil {
				t.Errorf("%s: %v", server.name, err)
			}
		} else {
			fault := &server.faults[i]
			if fault.set != nil {
				fault.set(true)
			} else {
				server.fault.Store(fault)
			}
			soakPause(ctx, rng, 300*time.Millisecond)
			if fault.set != nil {
				fault.set(false)
			} else {
				server.fault.Store(nil)
			}
		}
		server.ended.Store(time.Now().UnixNano())
		server.active.Store(false)
	}
}

// soakPause waits for a random time and reports whether the run goes on.
func soakPause(ctx context.Context, rng *rand.Rand, most time.Duration) bool {
	select {
	case <-time.After(time.Duration(rng.Int64N(int64(most)))):
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *soak) rotateAll(ctx context.Context, t *testing.T, rng *rand.Rand) {
	for soakPause(ctx, rng, 50*time.Millisecond) {
		done, err := s.rotate[rng.IntN(len(s.rotate))]()
		if err != nil {
			t.Errorf("rotate: %v", err)
		}
		if done {
			s.rotations.Add(1)
		}
	}
}

// settle waits, now that there are no more faults, for every token to be
// accepted or refused as it must be. What takes longest is the back-off.
func (s *soak) settle(t *testing.T) {
	deadline := time.Now().Add(systest.Backoff + soakGrace)
	for _, signer := range s.signers {
		for _, token := range signer.tokens {
			for {
				err := systest.Verify(token.text, signer.keyfunc)
				withdrawn := token.key.withdrawn.Load() != 0
				if err == nil != withdrawn {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("%s: after all faults, a token whose key is withdrawn (%v): got error %v", signer.name, withdrawn, err)
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		if err := s.sign(t, signer); err != nil {
			t.Errorf("%s: after all faults: %v", signer.name, err)
		}
	}
}

// usage measures goroutines and heap when nothing is going on. It waits a
// little for the goroutines of closed connections to become few enough.
func (s *soak) usage(enough uint64) (goroutines, heap uint64) {
	samples := []metrics.Sample{{Name: "/sched/goroutines:goroutines"}, {Name: "/memory/classes/heap/objects:bytes"}}
	for range 100 {
		for _, idle := range s.idle {
			idle()
		}
		time.Sleep(20 * time.Millisecond)
		runtime.GC()
		metrics.Read(samples)
		if enough == 0 && goroutines == samples[0].Value.Uint64() || samples[0].Value.Uint64() <= enough {
			break
		}
		goroutines = samples[0].Value.Uint64()
	}
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}

// addKMS adds a Cloud KMS server, and four signers of each method: by a version's path and
// by a CryptoKey's, over gRPC and over REST. Of ES256 keys there is a tenant, too, who may
// verify but not sign.
func (s *soak) addKMS(t *testing.T) {
	kmsServer, overGRPC := systest.StartKMS(t, testutil.InMemory())
	httpClient := kmsServer.HTTPClient()
	overREST, err := kmsServer.RESTClient(context.Background(), option.WithHTTPClient(httpClient))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { overREST.Close() })
	s.idle = append(s.idle, httpClient.CloseIdleConnections)
	kmsServer.DenyUserProject(soakProject)
	server := &soakServer{name: "Cloud KMS", restart: kmsServer.Restart}
	fail := func(code codes.Code) soakFault {
		return soakFault{name: code.String(), grpc: func(context.Context, proto.Message, testutil.KMSHandler) (proto.Message, error) {
			return nil, status.Error(code, "as the soak wants it")
		}}
	}
	alter := func(name string, change func(proto.Message)) soakFault {
		return soakFault{name: name, grpc: func(ctx context.Context, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			response, err := next(ctx, req)
			if err == nil {
				change(response)
			}
			return response, err
		}}
	}
	server.faults = []soakFault{
		fail(codes.Unavailable), fail(codes.Internal), fail(codes.ResourceExhausted),
		alter("empty", func(m proto.Message) {
			if _, list := m.(*kmspb.ListCryptoKeyVersionsResponse); !list { // whose emptiness is news
				proto.Reset(m)
			}
		}),
		alter("wrong name", func(m proto.Message) {
			if list, ok := m.(*kmspb.ListCryptoKeyVersionsResponse); ok {
				for _, version := range list.CryptoKeyVersions {
					version.Name += "x"
				}
				return
			}
			m.ProtoReflect().Set(m.ProtoReflect().Descriptor().Fields().ByName("name"), protoreflect.ValueOfString("projects/other"))
		}),
		alter("flipped bits", func(m proto.Message) {
			switch m := m.(type) {
			case *kmspb.AsymmetricSignResponse:
				m.Signature[len(m.Signature)/2] ^= 1
			case *kmspb.MacSignResponse:
				m.Mac[0] ^= 1
			case *kmspb.PublicKey:
				m.PublicKey.Data[len(m.PublicKey.Data)/2] ^= 1
			case *kmspb.MacVerifyResponse:
				m.Success = !m.Success
			}
		}),
		{name: "stall", set: func(on bool) {
			kmsServer.SetLatency(0)
			if on {
				kmsServer.SetLatency(100 * time.Millisecond)
			}
		}},
		{name: "HTTP 502", http: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { systest.Status(w, http.StatusBadGateway) }},
		{name: "truncated", http: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			good := systest.Body(next, r)
			_, _ = w.Write(good[:len(good)/2])
		}},
		{name: "reset", http: func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }},
	}
	kmsServer.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if reads := method == "GetPublicKey" || method == "ListCryptoKeyVersions"; reads && len(md.Get(projectHeader)) > 0 {
			s.billed.Add(1)
		}
		if fault := server.fault.Load(); fault != nil && fault.grpc != nil {
			return fault.grpc(ctx, req, next)
		}
		return next(ctx, req)
	})
	kmsServer.InterceptREST(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if fault := server.fault.Load(); fault != nil && fault.http != nil {
			fault.http(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	})
	s.servers = append(s.servers, server)

	for _, row := range systest.Methods() {
		first, err := kmsServer.CreateKey(row.Method.Alg(), row.Algorithm)
		if err != nil {
			t.Fatal(err)
		}
		keys := map[string]*soakKey{gcpjwt.KMSKeyID(first): new(soakKey)}
		var mu sync.Mutex
		keyOf := func(kid string) *soakKey {
			mu.Lock()
			defer mu.Unlock()
			return keys[kid]
		}
		var versions []string // those to withdraw, oldest first
		var last time.Time
		s.rotate = append(s.rotate, func() (bool, error) {
			switch {
			case strings.Contains(row.Algorithm.String(), "4096"), strings.HasPrefix(row.Algorithm.String(), "RSA") && len(keys) > 3:
				return false, nil // making them takes too long
			case time.Since(last) < max(2*soakRefresh, s.lasts/20):
				return false, nil // the server keeps all versions, and keys are large
			}
			last = time.Now()
			// Nobody may see the version before its key is noted.
			mu.Lock()
			defer mu.Unlock()
			version, err := kmsServer.CreateVersion(systest.CryptoKeyOf(first))
			if err != nil {
				return false, err
			}
			keys[gcpjwt.KMSKeyID(version)] = new(soakKey)
			if versions = append(versions, version); len(versions) > soakEnabled {
				kmsServer.SetState(versions[0], kmspb.CryptoKeyVersion_DISABLED)
				keys[gcpjwt.KMSKeyID(versions[0])].withdrawn.Store(time.Now().UnixNano())
				versions = versions[1:]
			}
			return true, nil
		})
		for _, over := range []struct {
			name   string
			client *kms.KeyManagementClient
			billed context.Context
		}{
			{"gRPC", overGRPC, metadata.AppendToOutgoingContext(context.Background(), projectHeader, soakProject)},
			{"REST", overREST, callctx.SetHeaders(context.Background(), projectHeader, soakProject)},
		} {
			for _, path := range []string{first, systest.CryptoKeyOf(first)} {
				add := func(ctx context.Context, name string, peer *soakSigner, logger *slog.Logger) *soakSigner {
					config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: over.client, KeyRefresh: soakRefresh, Logger: logger}
					keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
					if err != nil {
						t.Fatal(err)
					}
					signer := &soakSigner{
						name: name, server: server, method: row.Method, peer: peer,
						ctx: gcpjwt.NewKMSContext(ctx, config), keyfunc: keyfunc, keyOf: keyOf,
					}
					s.signers = append(s.signers, signer)
					return signer
				}
				name := row.Method.Alg() + " with " + path + " over " + over.name
				if row.Algorithm != systest.P256 || path == first {
					add(context.Background(), name, nil, nil)
					continue
				}
				peer := add(context.Background(), name, nil, s.addTenant(name))
				name += " by a tenant"
				add(over.billed, name, peer, s.addTenant(name))
			}
		}
	}
}

const projectHeader = "x-goog-user-project"

// A soakAccount rotates the keys of an account as Google does: a key is
// published for a while before it signs, and after.
type soakAccount struct {
	mu   sync.Mutex
	keys map[string]*soakKey
	kids []string // the published ones, oldest first
	most int      // keys

	add     func() (string, error)
	signing func(kids ...string)
	remove  func(kid string)
	at      time.Time
}

func (a *soakAccount) keyOf(kid string) *soakKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.keys[kid]
}

// rotate takes one step, if the last one was long enough ago: two keys sign at
// random while a new one is phased in.
func (a *soakAccount) rotate() (done bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) < 3*soakRefresh || len(a.keys) >= a.most {
		return false, nil
	}
	a.at = time.Now()
	a.signing(a.kids[len(a.kids)-1])
	if len(a.kids) == 3 {
		a.remove(a.kids[0])
		a.keys[a.kids[0]].withdrawn.Store(time.Now().UnixNano())
		a.kids = a.kids[1:]
		a.signing(a.kids...)
	}
	kid, err := a.add()
	if err != nil {
		return false, err
	}
	a.keys[kid] = new(soakKey)
	a.kids = append(a.kids, kid)
	return true, nil
}

// accountKeys is how many keys an account gets. Each takes a while to make.
func (s *soak) accountKeys() int {
	if s.lasts < time.Minute {
		return 4
	}
	return 12
}

func (s *soak) newAccount(kid string) *soakAccount {
	return &soakAccount{most: s.accountKeys(), keys: map[string]*soakKey{kid: new(soakKey)}, kids: []string{kid}, at: time.Now()}
}

// addIAM adds an IAM Credentials server and a signer of each of its methods.
func (s *soak) addIAM(t *testing.T) {
	iam, config := systest.StartIAM(t, testutil.InMemory())
	iam.SetCertificateHeader(http.Header{"Cache-Control": {fmt.Sprintf("max-age=%d", soakRefresh/time.Second)}})
	config.EnableCache = true
	config.StaleIfError = soakRefresh
	server := &soakServer{name: "IAM", restart: func() error {
		iam.Stop()
		return iam.Restart()
	}}
	fail := func(code int) soakFault {
		return soakFault{name: fmt.Sprint(code), http: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { systest.Status(w, code) }}
	}
	body := func(name string, change func(good []byte) []byte) soakFault {
		return soakFault{name: name, http: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			_, _ = w.Write(change(systest.Body(next, r)))
		}}
	}
	server.faults = []soakFault{
		fail(500), fail(503), fail(429),
		body("truncated", func(good []byte) []byte { return good[:len(good)/2] }),
		body("empty object", func([]byte) []byte { return []byte("{}") }),
		body("page", func([]byte) []byte { return []byte("<html>") }),
		{name: "reset", http: func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }},
		{name: "stall", set: func(on bool) {
			iam.SetLatency(0)
			if on {
				iam.SetLatency(100 * time.Millisecond)
			}
		}},
	}
	iam.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if fault := server.fault.Load(); fault != nil {
			fault.http(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	})
	s.servers = append(s.servers, server)
	s.idle = append(s.idle, iam.Client().CloseIdleConnections)

	keys := s.newAccount(iam.KeyIDs(account)[0])
	keys.add = func() (string, error) { return iam.AddKey(account) }
	keys.signing = func(kids ...string) { iam.SetSigningKeys(account, kids...) }
	keys.remove = func(kid string) { iam.RemoveKey(account, kid) }
	s.rotate = append(s.rotate, keys.rotate)
	for _, method := range []*gcpjwt.SigningMethodIAM{gcpjwt.SigningMethodIAMBlob, gcpjwt.SigningMethodIAMJWT} {
		s.signers = append(s.signers, &soakSigner{
			name: method.Alg(), server: server, method: method,
			ctx:     gcpjwt.NewIAMContext(context.Background(), config),
			keyfunc: gcpjwt.IAMVerifyKeyfunc(context.Background(), config), keyOf: keys.keyOf,
		})
	}
}

// addAppEngine adds an App Engine API server and its signer.
func (s *soak) addAppEngine(t *testing.T) {
	app, err := testutil.NewAppEngine(testutil.InMemory())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	app.SetMaxCacheTime(soakRefresh)
	server := &soakServer{name: "App Engine", restart: func() error {
		app.Stop()
		return app.Restart()
	}}
	calls := []string{"SignForApp", "GetPublicCertificatesForApp"}
	fail := func(err error) func(bool) {
		return func(on bool) {
			for _, call := range calls {
				app.Fail(call, nil)
				if on {
					app.Fail(call, func() error { return err })
				}
			}
		}
	}
	server.faults = []soakFault{
		{name: "503", set: fail(&testutil.HTTPError{Status: http.StatusServiceUnavailable, Body: "as the soak wants it"})},
		{name: "UNKNOWN_ERROR", set: fail(&testutil.AppEngineError{App: true, Code: 1003})},
		{name: "truncated", set: func(on bool) {
			for _, call := range calls {
				app.InterceptResponse(call, nil)
				if on {
					app.InterceptResponse(call, func(b []byte) []byte { return b[:len(b)/2] })
				}
			}
		}},
		{name: "stall", set: func(on bool) {
			app.SetLatency(0)
			if on {
				app.SetLatency(100 * time.Millisecond)
			}
		}},
	}
	s.servers = append(s.servers, server)
	s.idle = append(s.idle, app.Client().CloseIdleConnections)

	keys := s.newAccount(app.KeyNames()[0])
	keys.add = app.AddKey
	keys.signing = app.SetSigningKeys
	keys.remove = app.RemoveKey
	s.rotate = append(s.rotate, keys.rotate)
	ctx := app.Context(context.Background())
	s.signers = append(s.signers, &soakSigner{
		name: "AppEngine", server: server, method: gcpjwt.SigningMethodAppEngine, ctx: ctx,
		keyfunc: gcpjwt.AppEngineVerifyKeyfunc(ctx, true, systest.OwnCache()), keyOf: keys.keyOf,
	})
}
