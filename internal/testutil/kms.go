package testutil

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const kmsKeyRing = "projects/test/locations/global/keyRings/test"

// KMS is a Cloud KMS server (google.cloud.kms.v1.KeyManagementService) that
// answers over gRPC and over REST, both by the same rules. Its CryptoKeys live in projects/test/locations/global/keyRings/test and hold real
// keys. It is safe for concurrent use.
//
// The RPCs around asymmetric signing and MACs follow Google's rules; every
// other RPC is UNIMPLEMENTED. It is stricter than Google in one respect: a
// request that sets a field it doesn't implement is refused, so that a test
// cannot pass on a field nobody looked at.
type KMS struct {
	options options
	rest    httpServer
	fails   failQueue

	lifecycle sync.Mutex // held while starting and stopping, guards the next three
	server    *grpc.Server
	served    chan struct{} // closed when server.Serve has returned
	closed    bool

	mu              sync.Mutex // guards the rest; never held while signing, waiting or doing I/O
	network         *network
	keys            map[string]*cryptoKey // by resource name
	rsaKeys         map[int]int           // keys taken from the pool, by size
	denied          map[string]bool
	deniedProjects  map[string]bool
	calls           map[string]int
	projectCalls    map[string]int // by x-goog-user-project
	connections     int
	latency         time.Duration
	generationDelay time.Duration
	likeFakeKMS     bool
	hook            kmsHook
	interceptREST   func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

// A KMSHandler answers one RPC.
type KMSHandler func(ctx context.Context, req proto.Message) (proto.Message, error)

type kmsHook func(ctx context.Context, method string, req proto.Message, next KMSHandler) (proto.Message, error)

// NewKMS starts a Cloud KMS server without any keys.
func NewKMS(opts ...Option) (*KMS, error) {
	s := &KMS{
		options:        newOptions(opts),
		keys:           make(map[string]*cryptoKey),
		rsaKeys:        make(map[int]int),
		denied:         make(map[string]bool),
		deniedProjects: make(map[string]bool),
		calls:          make(map[string]int),
		projectCalls:   make(map[string]int),
	}
	if err := s.startGRPC(""); err != nil {
		return nil, err
	}
	if err := s.rest.start(opts, s.serveREST); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// Client returns Google's client on a new connection of its own, without
// credentials. Closing the client closes the connection. Options that say how
// to connect have no effect. After an outage it reconnects sooner than Google's
// defaults would, so that tests need not wait.
func (s *KMS) Client(ctx context.Context, opts ...option.ClientOption) (*kms.KeyManagementClient, error) {
	conn, err := grpc.NewClient("passthrough:///kms",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(s.dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	if err != nil {
		return nil, err
	}
	client, err := kms.NewKeyManagementClient(ctx, append([]option.ClientOption{option.WithGRPCConn(conn)}, opts...)...)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return client, nil
}

// dial connects to wherever the server listens now: in memory, each start has a
// listener of its own.
func (s *KMS) dial(ctx context.Context, _ string) (net.Conn, error) {
	s.mu.Lock()
	n := s.network
	s.mu.Unlock()
	return n.dial(ctx)
}

// Addr returns the host and port that the server listens on for gRPC.
func (s *KMS) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network.Addr().String()
}

// Close stops the server for good and returns when its goroutines have ended.
// RPCs still running have their contexts cancelled and are waited for. Clients
// stay open; they belong to whoever asked for them.
func (s *KMS) Close() {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	s.stop()
	s.rest.Close()
	s.closed = true
}

// Stop begins an outage: connections are cut, running RPCs cancelled and waited
// for, and new connections refused until Restart.
func (s *KMS) Stop() {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	s.stop()
}

// Restart ends an outage: the server listens on the same address again, with
// the same keys. On a running server it cuts every connection first.
func (s *KMS) Restart() error {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	if s.closed {
		return errors.New("testutil: the KMS server is closed")
	}
	s.stop()
	return errors.Join(s.startGRPC(s.Addr()), s.rest.Restart())
}

func (s *KMS) startGRPC(addr string) error {
	n, err := listen(s.options, addr)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.network = n
	s.mu.Unlock()

	server := grpc.NewServer(grpc.UnaryInterceptor(s.serve), grpc.WaitForHandlers(true))
	kmspb.RegisterKeyManagementServiceServer(server, kmsService{s: s})
	served := make(chan struct{})
	s.server, s.served = server, served
	go func() {
		defer close(served)
		server.Serve(countingListener{n, s.countConnection}) // returns when stopped, its only way to end
	}()
	return nil
}

func (s *KMS) stop() {
	if s.server != nil {
		s.server.Stop()
		<-s.served
		s.server = nil
	}
	s.rest.Stop()
	s.rest.conns.Wait()
}

type countingListener struct {
	net.Listener
	accepted func()
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted()
	}
	return conn, err
}

func (s *KMS) countConnection() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
}

var kmsID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,63}$`)

// CreateKey makes the CryptoKey with the given ID and one ENABLED version, and
// returns that version's resource name. The CryptoKey's purpose follows from
// the algorithm. The server signs and verifies with keys for ASYMMETRIC_SIGN and
// MAC, except for SLH-DSA; keys of other algorithms can only be looked at. The
// protection level is SOFTWARE, or what the algorithm needs, unless level says
// otherwise.
func (s *KMS) CreateKey(id string, alg kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm, level ...kmspb.ProtectionLevel) (version string, err error) {
	v, err := s.generate(alg)
	if err != nil {
		return "", err
	}
	return s.addKey(id, v, level...)
}

// ImportKey makes the CryptoKey with the given ID of a private key, so that several servers
// can have the same one. The key must be of the algorithm, which is one for signatures.
func (s *KMS) ImportKey(id string, alg kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm, private crypto.Signer) (version string, err error) {
	row := algorithms[alg]
	if row == nil || row.purpose != forSigning {
		return "", fmt.Errorf("testutil: the KMS server imports no keys for %v", alg)
	}
	return s.addKey(id, &keyVersion{keyMaterial: keyMaterial{algorithm: alg, row: row, public: private.Public(), signer: private}})
}

// addKey makes a CryptoKey with one version.
func (s *KMS) addKey(id string, v *keyVersion, level ...kmspb.ProtectionLevel) (version string, err error) {
	if !kmsID.MatchString(id) {
		return "", fmt.Errorf("testutil: bad CryptoKey ID %q", id)
	}
	protection := v.row.levels[0]
	if len(level) > 0 {
		protection = level[0]
	}
	if !slices.Contains(v.row.levels, protection) {
		return "", fmt.Errorf("testutil: %v is not for protection level %v", v.algorithm, protection)
	}
	key := &cryptoKey{
		name:       kmsKeyRing + "/cryptoKeys/" + id,
		purpose:    v.row.purpose,
		algorithm:  v.algorithm,
		createTime: time.Now(),
		level:      protection,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[key.name] != nil {
		return "", fmt.Errorf("testutil: CryptoKey %s already exists", key.name)
	}
	s.keys[key.name] = key
	key.add(v, kmspb.CryptoKeyVersion_ENABLED)
	return v.name, nil
}

// CreateVersion adds a version to a CryptoKey, ENABLED at once, and returns its
// resource name. The algorithm is the one in the CryptoKey's version template
// unless alg names another of the same purpose; the template stays as it is.
func (s *KMS) CreateVersion(cryptoKey string, alg ...kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm) (version string, err error) {
	s.mu.Lock()
	key := s.keys[cryptoKey]
	s.mu.Unlock()
	if key == nil {
		return "", fmt.Errorf("testutil: no CryptoKey %s", cryptoKey)
	}
	algorithm := key.algorithm
	if len(alg) > 0 {
		algorithm = alg[0]
	}
	v, err := s.generate(algorithm)
	if err != nil {
		return "", err
	}
	if v.row.purpose != key.purpose {
		return "", fmt.Errorf("testutil: %v is not for keys of purpose %v", algorithm, key.purpose)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key.add(v, kmspb.CryptoKeyVersion_ENABLED)
	return v.name, nil
}

// Versions returns the names of all versions, in whatever state they are.
func (s *KMS) Versions() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.keys {
		for _, v := range key.versions {
			names = append(names, v.name)
		}
	}
	slices.Sort(names)
	return names
}

// SetState moves a version to any state, whatever state it is in. A version
// set to PENDING_GENERATION stays there. It panics if there is no such version.
func (s *KMS) SetState(version string, state kmspb.CryptoKeyVersion_CryptoKeyVersionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mustVersion(version).become(state, time.Now())
}

// SetProtectionLevel changes the level of a version, or that of a CryptoKey with
// all its present and future versions. It panics if there is neither.
func (s *KMS) SetProtectionLevel(name string, level kmspb.ProtectionLevel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.keys[name]
	if key == nil {
		s.mustVersion(name).level = level
		return
	}
	key.level = level
	for _, v := range key.versions {
		v.level = level
	}
}

// PublicKey returns a version's public key, whatever state it is in: an
// *rsa.PublicKey, *ecdsa.PublicKey, *secp256k1.PublicKey, ed25519.PublicKey or
// *mldsa.PublicKey, the bytes of a key for SLH-DSA or a KEM, and nil if the key
// is symmetric. It panics if there is no such version.
func (s *KMS) PublicKey(version string) crypto.PublicKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mustVersion(version).public
}

// mustVersion is called with s.mu held.
func (s *KMS) mustVersion(name string) *keyVersion {
	v := s.version(name)
	if v == nil {
		panic(fmt.Sprintf("testutil: no CryptoKeyVersion %s", name))
	}
	return v
}

// Deny takes permissions, such as "cloudkms.cryptoKeyVersions.useToSign", away
// from every caller: RPCs that need them fail with PERMISSION_DENIED.
func (s *KMS) Deny(permissions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range permissions {
		s.denied[p] = true
	}
}

// Allow gives permissions back.
func (s *KMS) Allow(permissions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range permissions {
		delete(s.denied, p)
	}
}

// DenyUserProject refuses calls that ask, with x-goog-user-project, to be billed
// to one of those projects: they fail with PERMISSION_DENIED.
func (s *KMS) DenyUserProject(projects ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range projects {
		s.deniedProjects[p] = true
	}
}

// AllowUserProject ends what DenyUserProject began.
func (s *KMS) AllowUserProject(projects ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range projects {
		delete(s.deniedProjects, p)
	}
}

// UserProjectCalls returns how many of the calls since ResetCalls have carried
// that project in x-goog-user-project.
func (s *KMS) UserProjectCalls(project string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.projectCalls[project]
}

// LikeFakeKMS makes the server as limited as Google's own fake (kms-integrations,
// fakekms): the fields public_key_format, filter, order_by, page_size,
// page_token and view of a request are UNIMPLEMENTED, and a list has one page.
func (s *KMS) LikeFakeKMS(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.likeFakeKMS = on
}

// Calls returns how many requests for an RPC, such as "AsymmetricSign", have
// arrived, whatever became of them. An empty method counts them all.
func (s *KMS) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if method != "" {
		return s.calls[method]
	}
	sum := 0
	for _, n := range s.calls {
		sum += n
	}
	return sum
}

// ResetCalls sets the counts of all calls to zero.
func (s *KMS) ResetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.calls)
	clear(s.projectCalls)
}

// Connections returns how many connections the server has accepted so far.
func (s *KMS) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections + s.rest.Connections()
}

// SetLatency makes every call that arrives from now on wait before it is
// answered, or until its context ends.
func (s *KMS) SetLatency(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = d
}

// SetGenerationDelay sets how long asymmetric versions that clients create from
// now on stay in PENDING_GENERATION. With no delay, which is the default, only
// the response to CreateCryptoKeyVersion shows that state.
func (s *KMS) SetGenerationDelay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generationDelay = d
}

// Intercept wraps every call that arrives from now on in f, whatever its
// transport, after it has been counted and has waited for the latency. The
// metadata of a call, HTTP headers included, is in ctx. f may fail without calling next,
// change the request before or the response after, or wait until ctx is done,
// at which it must return: Stop and Close wait for it. A nil f removes the
// wrapper.
func (s *KMS) Intercept(f func(ctx context.Context, method string, req proto.Message, next KMSHandler) (proto.Message, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = f
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32C of b as Google's messages carry it.
func Checksum(b []byte) *wrapperspb.Int64Value {
	return wrapperspb.Int64(int64(crc32.Checksum(b, castagnoli)))
}
