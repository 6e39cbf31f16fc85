package testutil_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"go.uber.org/goleak"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type algorithm = kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm

const (
	enabled          = kmspb.CryptoKeyVersion_ENABLED
	disabled         = kmspb.CryptoKeyVersion_DISABLED
	destroyScheduled = kmspb.CryptoKeyVersion_DESTROY_SCHEDULED
	destroyed        = kmspb.CryptoKeyVersion_DESTROYED
	pending          = kmspb.CryptoKeyVersion_PENDING_GENERATION
)

// A transport makes clients of a server.
type transport struct {
	name string
	dial func(*testutil.KMS, context.Context, ...option.ClientOption) (*kms.KeyManagementClient, error)
}

var (
	overGRPC = transport{"gRPC", (*testutil.KMS).Client}
	overREST = transport{"REST", (*testutil.KMS).RESTClient}
)

// overEach runs f for each transport.
func overEach(t *testing.T, f func(t *testing.T, over transport)) {
	for _, over := range []transport{overGRPC, overREST} {
		t.Run(over.name, func(t *testing.T) { f(t, over) })
	}
}

// newKMS starts a server and a client that end with the test.
func (over transport) newKMS(t *testing.T, opts ...testutil.Option) (*testutil.KMS, *kms.KeyManagementClient) {
	t.Helper()
	s, err := testutil.NewKMS(opts...)
	if err != nil {
		t.Fatalf("NewKMS: %v", err)
	}
	t.Cleanup(s.Close)
	return s, over.connect(t, s)
}

func (over transport) connect(t *testing.T, s *testutil.KMS) *kms.KeyManagementClient {
	t.Helper()
	client, err := over.dial(s, t.Context())
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func newKMS(t *testing.T, opts ...testutil.Option) (*testutil.KMS, *kms.KeyManagementClient) {
	t.Helper()
	return overGRPC.newKMS(t, opts...)
}

// restCodes are the codes by their names in a REST API's errors, and the HTTP
// status that each comes with.
var restCodes = map[string]struct {
	code codes.Code
	http int
}{
	"CANCELLED":           {codes.Canceled, 499},
	"UNKNOWN":             {codes.Unknown, 500},
	"INVALID_ARGUMENT":    {codes.InvalidArgument, 400},
	"DEADLINE_EXCEEDED":   {codes.DeadlineExceeded, 504},
	"NOT_FOUND":           {codes.NotFound, 404},
	"ALREADY_EXISTS":      {codes.AlreadyExists, 409},
	"PERMISSION_DENIED":   {codes.PermissionDenied, 403},
	"RESOURCE_EXHAUSTED":  {codes.ResourceExhausted, 429},
	"FAILED_PRECONDITION": {codes.FailedPrecondition, 400},
	"ABORTED":             {codes.Aborted, 409},
	"OUT_OF_RANGE":        {codes.OutOfRange, 400},
	"UNIMPLEMENTED":       {codes.Unimplemented, 501},
	"INTERNAL":            {codes.Internal, 500},
	"UNAVAILABLE":         {codes.Unavailable, 503},
	"DATA_LOSS":           {codes.DataLoss, 500},
	"UNAUTHENTICATED":     {codes.Unauthenticated, 401},
}

// codeOf returns the code that the server has answered with. Over REST it is in
// the body, since HTTP has fewer codes.
func codeOf(err error) codes.Code {
	var answer *googleapi.Error
	if !errors.As(err, &answer) {
		return status.Code(err)
	}
	var body struct {
		Error struct {
			Code            int
			Message, Status string
		}
	}
	if json.Unmarshal([]byte(answer.Body), &body) != nil {
		return codes.Unknown
	}
	known := restCodes[body.Error.Status]
	if answer.Code != known.http || body.Error.Code != known.http || body.Error.Message != answer.Message {
		return codes.Unknown
	}
	return known.code
}

func createKey(t *testing.T, s *testutil.KMS, id string, alg algorithm, level ...kmspb.ProtectionLevel) (key, version string) {
	t.Helper()
	version, err := s.CreateKey(id, alg, level...)
	if err != nil {
		t.Fatalf("CreateKey(%q, %v): %v", id, alg, err)
	}
	return strings.TrimSuffix(version, "/cryptoKeyVersions/1"), version
}

func TestKMSAdmin(t *testing.T) {
	s, _ := newKMS(t)
	key, first := createKey(t, s, "k", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256)
	second, err := s.CreateVersion(key, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256)
	if err != nil || second != key+"/cryptoKeyVersions/2" {
		t.Fatalf("CreateVersion = %q, %v", second, err)
	}
	if s.PublicKey(first).(*rsa.PublicKey).Equal(s.PublicKey(second)) {
		t.Error("two versions share an RSA key")
	}

	failures := map[string]func() (string, error){
		"existing key":      func() (string, error) { return s.CreateKey("k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519) },
		"bad ID":            func() (string, error) { return s.CreateKey("a/b", kmspb.CryptoKeyVersion_EC_SIGN_ED25519) },
		"foreign algorithm": func() (string, error) { return s.CreateKey("l", 99) },
		"secp256k1 in software": func() (string, error) {
			return s.CreateKey("l", kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256, kmspb.ProtectionLevel_SOFTWARE)
		},
		"external MAC": func() (string, error) {
			return s.CreateKey("l", kmspb.CryptoKeyVersion_HMAC_SHA256, kmspb.ProtectionLevel_EXTERNAL)
		},
		"no level":          func() (string, error) { return s.CreateKey("l", kmspb.CryptoKeyVersion_EC_SIGN_ED25519, 0) },
		"version of no key": func() (string, error) { return s.CreateVersion(key + "x") },
		"version of a MAC":  func() (string, error) { return s.CreateVersion(key, kmspb.CryptoKeyVersion_HMAC_SHA256) },
		"unknown algorithm": func() (string, error) { return s.CreateVersion(key, 0) },
	}
	for name, f := range failures {
		if got, err := f(); err == nil {
			t.Errorf("%s: got %q, want an error", name, got)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("SetState of an unknown version didn't panic")
		}
	}()
	s.SetState(key+"/cryptoKeyVersions/3", enabled)
}

func TestKMSCounts(t *testing.T) { overEach(t, testKMSCounts) }

func testKMSCounts(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	if got := s.Connections(); got != 0 {
		t.Errorf("Connections before the first call = %d, want 0", got)
	}
	for range 3 {
		if _, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version}); err != nil {
			t.Fatal(err)
		}
	}
	client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version + "0"}) // refused, but counted
	client.GetCryptoKey(t.Context(), &kmspb.GetCryptoKeyRequest{Name: key})
	if got := s.Calls("GetPublicKey"); got != 4 {
		t.Errorf("Calls(GetPublicKey) = %d, want 4", got)
	}
	if got := s.Calls(""); got != 5 {
		t.Errorf("Calls() = %d, want 5", got)
	}
	s.ResetCalls()
	if got := s.Calls(""); got != 0 {
		t.Errorf("Calls() after ResetCalls = %d, want 0", got)
	}
	if got := s.Connections(); got != 1 {
		t.Errorf("Connections = %d, want 1", got)
	}
}

func TestKMSIntercept(t *testing.T) { overEach(t, testKMSIntercept) }

func testKMSIntercept(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	_, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	req := &kmspb.AsymmetricSignRequest{Name: version, Data: []byte("header.payload")}

	s.Intercept(func(context.Context, string, proto.Message, testutil.KMSHandler) (proto.Message, error) {
		return nil, status.Error(codes.ResourceExhausted, "quota")
	})
	if _, err := client.AsymmetricSign(t.Context(), req); codeOf(err) != codes.ResourceExhausted {
		t.Errorf("failing hook: got %v, want RESOURCE_EXHAUSTED", err)
	}

	var method string
	s.Intercept(func(ctx context.Context, m string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		method = m
		resp, err := next(ctx, req)
		if err == nil {
			resp.(*kmspb.AsymmetricSignResponse).Name += "0"
		}
		return resp, err
	})
	resp, err := client.AsymmetricSign(t.Context(), req)
	if err != nil || resp.Name != version+"0" || method != "AsymmetricSign" {
		t.Errorf("changing hook: got name %q, error %v, method %q", resp.GetName(), err, method)
	}

	s.Intercept(nil)
	if resp, err = client.AsymmetricSign(t.Context(), req); err != nil || resp.Name != version {
		t.Errorf("no hook: got name %q, error %v", resp.GetName(), err)
	}
	if got := s.Calls("AsymmetricSign"); got != 3 {
		t.Errorf("Calls = %d, want 3", got)
	}
}

// Clients sign and list while the admin plane changes the key under them.
func TestKMSConcurrentUse(t *testing.T) { overEach(t, testKMSConcurrentUse) }

func testKMSConcurrentUse(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				_, err := client.AsymmetricSign(t.Context(), &kmspb.AsymmetricSignRequest{Name: version, Data: []byte("header.payload")})
				if code := codeOf(err); code != codes.OK && code != codes.FailedPrecondition {
					t.Errorf("AsymmetricSign: %v", err)
				}
				if _, err := client.ListCryptoKeyVersions(t.Context(), &kmspb.ListCryptoKeyVersionsRequest{Parent: key}).Next(); err != nil {
					t.Errorf("ListCryptoKeyVersions: %v", err)
				}
			}
		})
	}
	for i := range 100 {
		s.SetState(version, []kmspb.CryptoKeyVersion_CryptoKeyVersionState{enabled, disabled}[i%2])
		s.SetLatency(time.Duration(i) * time.Microsecond)
	}
	if _, err := s.CreateVersion(key); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if got := s.Calls(""); got != 160 {
		t.Errorf("Calls() = %d, want 160", got)
	}
}

func TestKMSOutage(t *testing.T) { overEach(t, testKMSOutage) }

func testKMSOutage(t *testing.T, over transport) {
	for name, opts := range map[string][]testutil.Option{"TCP": nil, "in memory": {testutil.InMemory()}} {
		t.Run(name, func(t *testing.T) {
			s, client := over.newKMS(t, opts...)
			_, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
			get := func(timeout time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				_, err := client.GetPublicKey(ctx, &kmspb.GetPublicKeyRequest{Name: version})
				return err
			}
			if err := get(10 * time.Second); err != nil {
				t.Fatalf("before the outage: %v", err)
			}

			// A request that is running when the outage begins is cancelled.
			arrived := make(chan struct{})
			s.Intercept(func(ctx context.Context, _ string, _ proto.Message, _ testutil.KMSHandler) (proto.Message, error) {
				close(arrived)
				<-ctx.Done()
				return nil, ctx.Err()
			})
			failed := make(chan error, 1)
			go func() {
				_, err := client.MacSign(t.Context(), &kmspb.MacSignRequest{Name: version}) // wrong in itself: not retried once served
				failed <- err
			}()
			<-arrived
			addr := s.Addr()
			s.Intercept(nil)
			s.Stop()
			s.Stop()
			if err := get(100 * time.Millisecond); err == nil {
				t.Error("a call succeeded during the outage")
			}
			if opts == nil {
				if conn, err := net.Dial("tcp", addr); err == nil {
					conn.Close()
					t.Error("a connection was accepted during the outage")
				}
			}

			if err := s.Restart(); err != nil {
				t.Fatalf("Restart: %v", err)
			}
			if err := <-failed; err == nil {
				t.Error("the cancelled call succeeded")
			}
			if err := get(10 * time.Second); err != nil {
				t.Errorf("after the outage: %v", err)
			}
			if got := s.Addr(); got != addr {
				t.Errorf("Addr = %s, want %s as before", got, addr)
			}
			if got := s.Connections(); got != 2 {
				t.Errorf("Connections = %d, want 2", got)
			}

			s.Close()
			s.Close()
			if err := s.Restart(); err == nil {
				t.Error("Restart after Close succeeded")
			}
		})
	}
}

// In a bubble, hours pass at once: the server may only wait for its own clock,
// channels and pipes.
func TestKMSInBubble(t *testing.T) {
	overEach(t, func(t *testing.T, over transport) {
		synctest.Test(t, func(t *testing.T) { testKMSInBubble(t, over) })
	})
}

func testKMSInBubble(t *testing.T, over transport) {
	s, client := over.newKMS(t, testutil.InMemory())
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256)

	s.SetLatency(20 * time.Second)
	start := time.Now()
	if _, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version}); err != nil {
		t.Fatalf("GetPublicKey: %v", err)
	}
	if got := time.Since(start); got != 20*time.Second {
		t.Errorf("the call took %v, want 20s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start = time.Now()
	if _, err := client.GetPublicKey(ctx, &kmspb.GetPublicKeyRequest{Name: version}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
	if got := time.Since(start); got != time.Second {
		t.Errorf("the call took %v, want 1s", got)
	}
	s.SetLatency(0)

	s.SetGenerationDelay(time.Minute)
	v, err := client.CreateCryptoKeyVersion(t.Context(), &kmspb.CreateCryptoKeyVersionRequest{Parent: key})
	if err != nil {
		t.Fatalf("CreateCryptoKeyVersion: %v", err)
	}
	_, err = client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: v.Name})
	if codeOf(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "PENDING_GENERATION") {
		t.Errorf("while generating: got %v, want FAILED_PRECONDITION", err)
	}
	time.Sleep(time.Minute)
	if _, err = client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: v.Name}); err != nil {
		t.Errorf("once generated: %v", err)
	}

	if _, err := client.DestroyCryptoKeyVersion(t.Context(), &kmspb.DestroyCryptoKeyVersionRequest{Name: v.Name}); err != nil {
		t.Fatalf("DestroyCryptoKeyVersion: %v", err)
	}
	time.Sleep(30 * 24 * time.Hour)
	_, err = client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: v.Name})
	if codeOf(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "current state is: DESTROYED") {
		t.Errorf("a month after Destroy: got %v, want DESTROYED", err)
	}

	s.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		time.Sleep(3 * time.Second)
		s.Restart()
	}()
	if over.name == overREST.name {
		<-ended // the REST client doesn't wait for a connection
	}
	if _, err = client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version}); err != nil {
		t.Errorf("across an outage: %v", err)
	}
}

// The same private key makes the same CryptoKey on two servers.
func TestKMSImportKey(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const p256 = kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256
	var versions []string
	for range 2 {
		s, client := newKMS(t)
		version, err := s.ImportKey("imported", p256, private)
		if err != nil {
			t.Fatalf("ImportKey: %v", err)
		}
		versions = append(versions, version)
		if got := fetchKey(t, client, version, p256); !private.PublicKey.Equal(got) {
			t.Errorf("the public key is %v, want %v", got, private.Public())
		}
		for id, algorithm := range map[string]algorithm{
			"imported": p256, // a second time
			"no id":    p256,
			"mac":      kmspb.CryptoKeyVersion_HMAC_SHA256,
			"unknown":  0,
		} {
			if _, err := s.ImportKey(id, algorithm, private); err == nil {
				t.Errorf("ImportKey(%q, %v) succeeded", id, algorithm)
			}
		}
		if got := s.Versions(); !slices.Equal(got, []string{version}) {
			t.Errorf("Versions = %q, want %q", got, version)
		}
	}
	if versions[0] != versions[1] {
		t.Errorf("the versions are %q, want the same", versions)
	}
}

// A fault of FailNext is seen once, over either transport, and no other call sees it.
func TestKMSFailNext(t *testing.T) { overEach(t, testKMSFailNext) }

func testKMSFailNext(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	key, version := createKey(t, s, "key", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	for _, text := range []string{"first", "second"} {
		if err := s.FailNext("GetPublicKey", status.Error(codes.Aborted, text)); err != nil {
			t.Fatalf("FailNext: %v", err)
		}
	}
	if _, err := client.GetCryptoKey(t.Context(), &kmspb.GetCryptoKeyRequest{Name: key}); err != nil {
		t.Errorf("GetCryptoKey: %v", err)
	}
	for _, want := range []string{"first", "second", ""} {
		_, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("GetPublicKey: %v, want %q", err, want)
		}
	}
}
