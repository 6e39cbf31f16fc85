package faults_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// A faultKMSCall is one RPC as one operation of the library makes it, over one transport.
type faultKMSCall struct {
	name      string
	rpc       string
	algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm
	method    *gcpjwt.SigningMethodKMS

	rest      bool // the client is Google's for REST, else that for gRPC
	verifies  bool // the operation is a verification, else a signature
	cryptoKey bool // KeyPath names the CryptoKey
	fetch     bool // the RPC reads keys, which are kept
	warm      bool // good keys are known already, but have expired

	bytes    string   // path of the field that holds what was asked for
	sums     []string // paths of its checksums
	verified []string // names of the fields that say what arrived
}

var faultKMSCalls = []faultKMSCall{
	{
		name: "AsymmetricSign digest", rpc: "AsymmetricSign",
		algorithm: kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, method: gcpjwt.SigningMethodKMSES256,
		bytes: "signature", sums: []string{"signature_crc32c"}, verified: []string{"verified_digest_crc32c"},
	},
	{
		name: "AsymmetricSign data", rpc: "AsymmetricSign",
		algorithm: kmspb.CryptoKeyVersion_EC_SIGN_ED25519, method: gcpjwt.SigningMethodKMSEdDSA,
		bytes: "signature", sums: []string{"signature_crc32c"}, verified: []string{"verified_data_crc32c"},
	},
	{
		name: "AsymmetricSign of a CryptoKey", rpc: "AsymmetricSign", cryptoKey: true,
		algorithm: kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, method: gcpjwt.SigningMethodKMSES384,
		bytes: "signature", sums: []string{"signature_crc32c"}, verified: []string{"verified_digest_crc32c"},
	},
	{
		name: "GetPublicKey to sign", rpc: "GetPublicKey", fetch: true,
		algorithm: kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, method: gcpjwt.SigningMethodKMSES256,
		bytes: "public_key.data", sums: []string{"public_key.crc32c_checksum"},
	},
	{
		name: "GetPublicKey to verify", rpc: "GetPublicKey", fetch: true, verifies: true,
		algorithm: kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, method: gcpjwt.SigningMethodKMSES256,
		bytes: "public_key.data", sums: []string{"public_key.crc32c_checksum"},
	},
	{
		name: "GetPublicKey NIST_PQC", rpc: "GetPublicKey", fetch: true,
		algorithm: kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44, method: gcpjwt.SigningMethodKMSMLDSA44,
		bytes: "public_key.data", sums: []string{"public_key.crc32c_checksum"},
	},
	{
		name: "ListCryptoKeyVersions to sign", rpc: "ListCryptoKeyVersions", fetch: true, cryptoKey: true,
		algorithm: kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, method: gcpjwt.SigningMethodKMSES256,
	},
	{
		name: "ListCryptoKeyVersions to verify", rpc: "ListCryptoKeyVersions", fetch: true, cryptoKey: true, verifies: true,
		algorithm: kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, method: gcpjwt.SigningMethodKMSES256,
	},
	{
		name: "ListCryptoKeyVersions renewal", rpc: "ListCryptoKeyVersions", fetch: true, cryptoKey: true, verifies: true, warm: true,
		algorithm: kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, method: gcpjwt.SigningMethodKMSES256,
	},
	{
		name: "MacSign", rpc: "MacSign",
		algorithm: kmspb.CryptoKeyVersion_HMAC_SHA256, method: gcpjwt.SigningMethodKMSHS256,
		bytes: "mac", sums: []string{"mac_crc32c"}, verified: []string{"verified_data_crc32c"},
	},
	{
		name: "MacVerify", rpc: "MacVerify", verifies: true,
		algorithm: kmspb.CryptoKeyVersion_HMAC_SHA256, method: gcpjwt.SigningMethodKMSHS256,
		verified: []string{"verified_data_crc32c", "verified_mac_crc32c", "verified_success_integrity"},
	},
}

// A faultKMS is a rig for Cloud KMS. Its client reaches the server directly or,
// for faults below gRPC, through a proxy.
type faultKMS struct {
	faultRig
	server *testutil.KMS
	proxy  *faultProxy // nil unless asked for
	n      atomic.Int64
}

// start makes a server with one key and an operation on it, all of whose other
// needs have been seen to.
func (c faultKMSCall) start(t *testing.T, proxied bool) *faultKMS {
	server, direct := systest.StartKMS(t, testutil.InMemory())
	version, err := server.CreateKey("key", c.algorithm)
	if err != nil {
		t.Fatal(err)
	}
	rig := &faultKMS{server: server}
	rig.lift = func() { server.Intercept(nil) }
	client := direct
	rig.calls = func() int { return server.Calls(c.rpc) }
	if c.rest {
		if client, err = server.RESTClient(context.Background()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		rig.lift = func() {
			server.Intercept(nil)
			server.InterceptREST(nil)
			server.CutREST(c.rpc, 0)
		}
	}
	if proxied {
		rig.proxy, client = startFaultProxy(t, direct)
		rig.lift = func() { rig.proxy.fault.Store(nil) }
		rig.calls = func() int { return rig.proxy.calls(c.rpc) }
	}
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	if c.cryptoKey {
		config.KeyPath = systest.CryptoKeyOf(version)
	}

	// Tokens to verify come from another client, for which nothing is shared.
	signer := systest.Client(t, server)
	signed := func() string {
		text, err := gcpjwt.SignedString(systest.KMSContext(context.Background(), signer, version), systest.Token(c.method))
		if err != nil {
			t.Fatal(err)
		}
		rig.keepSignature(text)
		return text
	}

	switch {
	case !c.verifies:
		rig.do = func(ctx context.Context) error {
			text, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(ctx, config), systest.Token(c.method))
			if err != nil {
				return err
			}
			return systest.Check(systest.RowOf(c.algorithm), server, version, text)
		}
		if !c.fetch {
			if err := rig.do(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	case c.warm, !c.fetch:
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		text := signed()
		if !c.fetch { // MacVerify takes the Keyfunc's context
			rig.do = func(ctx context.Context) error {
				signingString, sig := systest.Split(t, text)
				return c.method.Verify(signingString, sig, gcpjwt.NewKMSContext(ctx, config))
			}
			break
		}
		rig.do = func(context.Context) error { return systest.Verify(text, keyfunc) }
		time.Sleep(6 * time.Minute) // past KeyRefresh
	default:
		text := signed()
		rig.do = func(ctx context.Context) error {
			keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
			if err != nil {
				return err
			}
			return systest.Verify(text, keyfunc)
		}
	}
	return rig
}

// answer intercepts the RPC of a call; n counts from 1.
func (r *faultKMS) answer(rpc string, f func(ctx context.Context, n int, req proto.Message, next testutil.KMSHandler) (proto.Message, error)) {
	r.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if method != rpc {
			return next(ctx, req)
		}
		return f(ctx, int(r.n.Add(1)), req, next)
	})
}

// alter changes the answers to the RPC of a call: the first few, or all if that
// is 0.
func (r *faultKMS) alter(rpc string, first int, change func(proto.Message)) {
	r.answer(rpc, func(ctx context.Context, n int, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		response, err := next(ctx, req)
		if err == nil {
			r.keepResponse(response)
			if first == 0 || n <= first {
				change(response)
			}
		}
		return response, err
	})
}

func (r *faultKMS) keepResponse(response proto.Message) {
	switch response := response.(type) {
	case *kmspb.AsymmetricSignResponse:
		r.keepSecret(response.Signature)
	case *kmspb.MacSignResponse:
		r.keepSecret(response.Mac)
	}
}

// faultKMSCells makes the cells of Cloud KMS.
func faultKMSCells() []faultCell {
	var cells []faultCell
	calls := slices.Clone(faultKMSCalls)
	for _, call := range faultKMSCalls {
		call.name += " over REST"
		call.rest = true
		calls = append(calls, call)
	}
	for _, call := range calls {
		add := func(fault string, want faultWant, inject func(*faultKMS)) {
			cells = append(cells, call.cell(fault, want, false, inject))
		}
		call.addOutages(add)
		call.addCodes(add)
		call.addAnswers(add)
		for _, caller := range faultCallers {
			cell := call.cell(caller.name, faultWant{is: []error{caller.err}, calls: [2]int{0, 1}, limit: caller.limit}, false, func(r *faultKMS) {
				r.answer(call.rpc, faultSilence)
			})
			if call.warm {
				continue // a Keyfunc keeps the context that it was made with
			}
			cell.caller = caller.caller
			cells = append(cells, cell)
		}
		if call.rest {
			call.addRESTWires(add)
			continue
		}
		for _, fault := range faultWires {
			want := call.wantCode(fault.code)
			if fault.cut {
				want = call.wantRetried(codes.Unavailable)
			} else if call.algorithm == systest.MLDSA44 && fault.code == codes.Unimplemented {
				want.code = codes.InvalidArgument // which the server says to a question without format
			}
			cells = append(cells, call.cell("wire: "+fault.name, want, true, func(r *faultKMS) {
				r.proxy.fail(call.rpc, fault.answer)
			}))
		}
	}
	return cells
}

func (c faultKMSCall) cell(fault string, want faultWant, proxied bool, inject func(*faultKMS)) faultCell {
	return faultCell{
		call: c.name, fault: fault, want: want, keeps: c.fetch,
		start: func(t *testing.T) *faultRig {
			rig := c.start(t, proxied)
			inject(rig)
			return &rig.faultRig
		},
	}
}

// brief reports whether verifications wait for the call. It then gets three
// attempts and not as many as fit in before its deadline.
func (c faultKMSCall) brief() bool { return c.fetch || c.rpc == "MacVerify" }

// limit is how long a call may take if its caller sets no limit.
func (c faultKMSCall) limit() time.Duration {
	if c.brief() {
		return systest.FetchLimit
	}
	return systest.CallLimit
}

// want completes what an operation promises when its call fails.
func (c faultKMSCall) want(w faultWant) faultWant {
	switch {
	case c.warm: // good keys serve on
		return faultWant{ok: true, calls: [2]int{0, max(3, w.calls[1])}, limit: c.limit()}
	case c.verifies:
		w = w.with(gcpjwt.ErrKeysUnavailable)
	}
	if w.limit == 0 {
		w.limit = c.limit()
	}
	return w
}

// wantRetried is for codes that may pass. Not every attempt reaches the server.
func (c faultKMSCall) wantRetried(code codes.Code) faultWant {
	if c.brief() {
		return c.want(faultWant{code: code, calls: [2]int{0, 3}, limit: 2 * time.Second})
	}
	return c.want(faultWant{is: []error{context.DeadlineExceeded}, code: code, calls: [2]int{0, faultManyCalls}})
}

// wantCorrupt is for an answer that is repeated as it fails a check.
func (c faultKMSCall) wantCorrupt() faultWant {
	return c.want(faultWant{is: []error{gcpjwt.ErrIntegrity}, calls: [2]int{3, 3}})
}

func (c faultKMSCall) wantOK(calls int) faultWant {
	return faultWant{ok: true, calls: [2]int{calls, calls}, limit: systest.FetchLimit, kept: c.fetch}
}

func (c faultKMSCall) wantCode(code codes.Code) faultWant {
	once := [2]int{1, 1}
	switch {
	case code == codes.Unavailable, code == codes.ResourceExhausted, code == codes.DeadlineExceeded:
		return c.wantRetried(code)
	case c.rest && (code == codes.Unknown || code == codes.Internal || code == codes.DataLoss):
		return c.wantRetried(code) // HTTP status 500
	case c.rpc == "GetPublicKey" && code == codes.PermissionDenied && !c.verifies:
		// Whoever may sign but not read the public key, signs. That the key may
		// not be read is remembered.
		return faultWant{ok: true, calls: once, limit: 0, pause: 5 * time.Minute}
	case code == codes.Unimplemented && (c.rpc == "GetPublicKey" || c.rpc == "ListCryptoKeyVersions"):
		return c.want(faultWant{code: code, calls: [2]int{2, 2}}) // asked again without format, or filter
	case c.rpc == "GetPublicKey" && code == codes.InvalidArgument:
		return c.want(faultWant{code: code, calls: [2]int{2, 2}}) // asked for in the other format
	case c.rpc == "GetPublicKey" && code == codes.PermissionDenied:
		once[1] = 2
	case c.rpc == "MacVerify" && code == codes.InvalidArgument:
		// What Cloud KMS says to a MAC of another length.
		return faultWant{code: code, is: []error{gcpjwt.ErrAlgorithmMismatch}, calls: once, limit: systest.FetchLimit}
	case c.rpc == "MacVerify" && (code == codes.FailedPrecondition || code == codes.NotFound):
		return faultWant{code: code, is: []error{gcpjwt.ErrUnknownKeyID}, calls: once}
	}
	return c.want(faultWant{code: code, calls: once})
}

func faultSilence(ctx context.Context, _ int, _ proto.Message, _ testutil.KMSHandler) (proto.Message, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// addOutages adds the faults of a server that isn't there.
func (c faultKMSCall) addOutages(add func(string, faultWant, func(*faultKMS))) {
	refused := c.wantRetried(codes.Unavailable)
	if c.rest { // gRPC connects again by itself, and says when there was an outage
		refused = c.want(faultWant{calls: [2]int{0, 0}})
	}
	add("refused connection", refused, func(r *faultKMS) {
		lift := r.lift
		r.server.Stop()
		r.lift = func() {
			if err := r.server.Restart(); err != nil {
				panic(err)
			}
			lift()
		}
	})
	add("silence", c.want(faultWant{is: []error{context.DeadlineExceeded}, calls: [2]int{1, 1}}), func(r *faultKMS) { r.answer(c.rpc, faultSilence) })

	restarted := c.wantOK(2)
	restarted.limit = 5 * time.Second // to connect again
	add("server restart", restarted, func(r *faultKMS) {
		r.answer(c.rpc, func(ctx context.Context, n int, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if n > 1 {
				return next(ctx, req)
			}
			if c.rest { // it has to be back by the time that the caller asks again
				panic(http.ErrAbortHandler)
			}
			go r.server.Restart() // cuts this very call
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	add("success after two outages", c.wantOK(3), func(r *faultKMS) {
		r.answer(c.rpc, func(ctx context.Context, n int, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if n > 2 {
				return next(ctx, req)
			}
			return nil, status.Error(codes.Unavailable, "try again")
		})
	})
}

// addCodes adds every gRPC code.
func (c faultKMSCall) addCodes(add func(string, faultWant, func(*faultKMS))) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		add("code "+code.String(), c.wantCode(code), func(r *faultKMS) {
			r.answer(c.rpc, func(context.Context, int, proto.Message, testutil.KMSHandler) (proto.Message, error) {
				return nil, status.Errorf(code, "as the test wants it")
			})
		})
	}
}

// addAnswers adds answers that arrive, but aren't what was asked for.
func (c faultKMSCall) addAnswers(add func(string, faultWant, func(*faultKMS))) {
	alter := func(fault string, want faultWant, change func(proto.Message)) {
		add(fault, want, func(r *faultKMS) { r.alter(c.rpc, 0, change) })
	}
	corrupt := func(fault string, change func(proto.Message)) { alter(fault, c.wantCorrupt(), change) }

	if c.rpc == "ListCryptoKeyVersions" {
		c.addLists(alter, corrupt)
		return
	}
	corrupt("empty", func(m proto.Message) { proto.Reset(m) })
	corrupt("name of another version", func(m proto.Message) {
		faultSet(m, "name", protoreflect.ValueOfString(faultGet(m, "name").String()+"0"))
	})
	corrupt("name with a line break", func(m proto.Message) {
		faultSet(m, "name", protoreflect.ValueOfString("projects\nlevel=ERROR"))
	})
	corrupt("no name", func(m proto.Message) { faultClear(m, "name") })
	add("success after two corrupt answers", c.wantOK(3), func(r *faultKMS) {
		r.alter(c.rpc, 2, func(m proto.Message) { faultClear(m, "name") })
	})
	for _, sum := range c.sums {
		corrupt("wrong "+sum, func(m proto.Message) { faultSum(m, sum, 1) })
		corrupt("negative "+sum, func(m proto.Message) { faultSum(m, sum, math.MinInt64) })
		corrupt("overflowing "+sum, func(m proto.Message) { faultSum(m, sum, 1<<32) })
		corrupt("missing "+sum, func(m proto.Message) { faultClear(m, sum) })
	}
	for _, field := range c.verified {
		corrupt("false "+field, func(m proto.Message) { faultClear(m, field) })
	}
	if c.rpc == "MacVerify" {
		corrupt("verdict changed on the way", func(m proto.Message) { faultClear(m, "success") })
	}
	if c.bytes == "" {
		return
	}

	// Of bytes whose checksum is right, only what they mean can be wrong.
	meaningless := c.wantCorrupt()
	if c.method.Alg() == "KMSEdDSA" || c.rpc == "MacSign" {
		meaningless = c.want(faultWant{is: []error{gcpjwt.ErrAlgorithmMismatch}, calls: [2]int{1, 1}}) // by its length
	}
	for _, change := range []struct {
		name string
		pem  bool // it leaves a PEM block whole
		to   func([]byte) []byte
	}{
		{"truncated", true, func(b []byte) []byte { return b[:len(b)-1] }},
		{"half", false, func(b []byte) []byte { return b[:len(b)/2] }},
		{"no bytes", false, func([]byte) []byte { return nil }},
		{"one byte more", true, func(b []byte) []byte { return append([]byte{0}, b...) }},
		{"oversized", true, func(b []byte) []byte { return bytes.Repeat(b, 4<<20/len(b)) }},
		{"a page of HTML", false, func([]byte) []byte { return []byte("<html>\n<title>Error</title></html>") }},
	} {
		corrupt(change.name, func(m proto.Message) {
			faultSet(m, c.bytes, protoreflect.ValueOfBytes(change.to(faultGet(m, c.bytes).Bytes())))
		})
		if change.pem && c.rpc == "GetPublicKey" && c.method.Alg() == "KMSES256" {
			continue
		}
		alter(change.name+" with its checksum", meaningless, func(m proto.Message) {
			data := change.to(faultGet(m, c.bytes).Bytes())
			faultSet(m, c.bytes, protoreflect.ValueOfBytes(data))
			sum := c.sums[0]
			faultSet(m, sum, protoreflect.ValueOfMessage(testutil.Checksum(data).ProtoReflect()))
		})
	}
	if c.rpc == "GetPublicKey" && c.method.Alg() == "KMSES256" {
		c.addPublicKeys(corrupt)
	}
}

// addPublicKeys adds public keys that are well-formed, arrive intact and cannot
// be the version's.
func (c faultKMSCall) addPublicKeys(corrupt func(string, func(proto.Message))) {
	put := func(m proto.Message, data []byte) {
		key := m.(*kmspb.PublicKey)
		key.PublicKey = &kmspb.ChecksummedData{Data: data, Crc32CChecksum: testutil.Checksum(data)}
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		panic(err)
	}
	public, err := x509.MarshalPKIXPublicKey(p384.Public())
	if err != nil {
		panic(err)
	}
	corrupt("another curve's key", func(m proto.Message) { put(m, block("PUBLIC KEY", public)) })
	corrupt("PEM of nothing", func(m proto.Message) { put(m, block("PUBLIC KEY", nil)) })
	corrupt("DER in place of PEM", func(m proto.Message) { put(m, public) })
	corrupt("no algorithm", func(m proto.Message) { faultClear(m, "algorithm") })
	corrupt("the old fields with a wrong checksum", func(m proto.Message) {
		key := m.(*kmspb.PublicKey)
		key.Pem, key.PemCrc32C, key.PublicKey = string(key.PublicKey.Data), wrapperspb.Int64(1), nil
	})
	corrupt("the old fields without a checksum", func(m proto.Message) {
		key := m.(*kmspb.PublicKey)
		key.Pem, key.PublicKey = string(key.PublicKey.Data), nil
	})
}

// addLists adds lists of versions.
func (c faultKMSCall) addLists(alter func(string, faultWant, func(proto.Message)), corrupt func(string, func(proto.Message))) {
	first := func(m proto.Message) *kmspb.CryptoKeyVersion {
		return m.(*kmspb.ListCryptoKeyVersionsResponse).CryptoKeyVersions[0]
	}
	for _, name := range []struct{ fault, from, to string }{
		{"version of another key", "/cryptoKeys/", "/cryptoKeys/x"},
		{"version of another project", "projects/", "projects/x"},
		{"version that is no number", "/cryptoKeyVersions/", "/cryptoKeyVersions/x"},
		{"version with a negative number", "/cryptoKeyVersions/", "/cryptoKeyVersions/-"},
		{"version with a huge number", "/cryptoKeyVersions/", "/cryptoKeyVersions/99999999999999999999"},
		{"version with a line break in its name", "/cryptoKeyVersions/", "/cryptoKeyVersions/\nlevel=ERROR "},
		{"version named by a path", "/cryptoKeyVersions/", "/cryptoKeyVersions/../"},
	} {
		corrupt(name.fault, func(m proto.Message) { first(m).Name = strings.Replace(first(m).Name, name.from, name.to, 1) })
	}
	corrupt("version without a name", func(m proto.Message) { first(m).Name = "" })

	// An empty list is the truth if every version is disabled, so it is believed,
	// but asked for again before it refuses anything.
	none := faultWant{is: []error{gcpjwt.ErrAlgorithmMismatch}, calls: [2]int{1, 2}}
	if c.verifies {
		none = faultWant{is: []error{gcpjwt.ErrKeysUnavailable}, calls: [2]int{1, 2}}
	}
	if c.warm {
		none.is = []error{gcpjwt.ErrUnknownKeyID}
	}
	alter("empty", none, func(m proto.Message) { proto.Reset(m) })
	alter("version that is disabled", none, func(m proto.Message) { first(m).State = kmspb.CryptoKeyVersion_DISABLED })
	alter("version without a state", none, func(m proto.Message) { first(m).State = 0 })
	if c.verifies && !c.warm {
		none.is = []error{gcpjwt.ErrAlgorithmMismatch}
	}
	alter("version without an algorithm", none, func(m proto.Message) { first(m).Algorithm = 0 })
}

// addRESTWires adds faults of HTTP, as proxies and broken connections make them.
func (c faultKMSCall) addRESTWires(add func(string, faultWant, func(*faultKMS))) {
	wire := func(fault string, want faultWant, answer func(w http.ResponseWriter, good []byte)) {
		add("wire: "+fault, want, func(r *faultKMS) {
			r.server.InterceptREST(func(w http.ResponseWriter, request *http.Request, next http.Handler) {
				if !c.isREST(request) {
					next.ServeHTTP(w, request)
					return
				}
				recorder := httptest.NewRecorder()
				next.ServeHTTP(recorder, request)
				answer(w, recorder.Body.Bytes())
			})
		})
	}
	unread := c.want(faultWant{calls: [2]int{1, 1}})
	body := func(fault string, change func(good []byte) []byte) {
		wire(fault, unread, func(w http.ResponseWriter, good []byte) {
			w.Header().Set("Content-Type", "application/json; charset=UTF-8")
			_, _ = w.Write(change(good))
		})
	}
	body("a page in place of JSON", func([]byte) []byte { return []byte("<html>\n<title>Sorry</title>\n</html>") })
	body("no body", func([]byte) []byte { return nil })
	body("body truncated", func(good []byte) []byte { return good[:len(good)/2] })
	body("a list in place of an object", func(good []byte) []byte { return slices.Concat([]byte("["), good, []byte("]")) })
	body("something behind the object", func(good []byte) []byte { return append(good, good...) })
	body("no text", func([]byte) []byte { return []byte{0xff, 0xfe, 0} })
	wire("body claimed to be compressed", unread, func(w http.ResponseWriter, good []byte) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(good)
	})
	wire("a field that is new", c.wantOK(1), func(w http.ResponseWriter, good []byte) {
		_, _ = w.Write(bytes.Replace(good, []byte("{"), []byte(`{"fieldToCome": [{}],`), 1))
	})

	// A cut connection is tried again once, a GET by net/http as well.
	cut := c.want(faultWant{calls: [2]int{2, 4}})
	wire("reset before the answer", cut, func(http.ResponseWriter, []byte) { panic(http.ErrAbortHandler) })
	wire("reset in mid-body", cut, func(w http.ResponseWriter, good []byte) {
		w.Header().Set("Content-Length", strconv.Itoa(len(good)))
		_, _ = w.Write(good[:len(good)/2])
		panic(http.ErrAbortHandler)
	})
	add("wire: one connection cut", c.wantOK(2), func(r *faultKMS) { r.server.CutREST(c.rpc, 1) })

	for _, like := range []struct {
		status int
		code   codes.Code
	}{
		{301, codes.Unknown}, {400, codes.InvalidArgument}, {401, codes.Unauthenticated}, {403, codes.PermissionDenied},
		{404, codes.NotFound}, {409, codes.Aborted}, {418, codes.Unknown}, {429, codes.ResourceExhausted}, {499, codes.Canceled},
		{500, codes.Internal}, {501, codes.Unimplemented}, {502, codes.Unavailable}, {503, codes.Unavailable}, {504, codes.DeadlineExceeded},
	} {
		want := c.wantCode(like.code)
		if like.code == codes.Unknown {
			want = c.want(faultWant{code: like.code, calls: [2]int{1, 1}}) // no status 500 here
		}
		if want.http = like.status; like.status == 301 {
			want.http = 0 // net/http finds no place to go to
		}
		wire(fmt.Sprintf("HTTP status %d", like.status), want, func(w http.ResponseWriter, _ []byte) {
			w.Header().Set("Content-Type", "text/html; charset=UTF-8")
			w.WriteHeader(like.status)
			_, _ = io.WriteString(w, "<html>\n<title>Sorry</title>\n</html>")
		})
	}
}

// isREST reports whether an HTTP request is for the call's RPC.
func (c faultKMSCall) isREST(r *http.Request) bool {
	suffix := map[string]string{
		"AsymmetricSign": ":asymmetricSign", "MacSign": ":macSign", "MacVerify": ":macVerify",
		"GetPublicKey": "/publicKey", "ListCryptoKeyVersions": "/cryptoKeyVersions",
	}
	return strings.HasSuffix(r.URL.Path, suffix[c.rpc])
}

// faultGet, faultSet and faultClear reach a field by its path.
func faultGet(m proto.Message, path string) protoreflect.Value {
	parent, field := faultField(m, path)
	return parent.Get(field)
}

func faultSet(m proto.Message, path string, v protoreflect.Value) {
	parent, field := faultField(m, path)
	parent.Set(field, v)
}

func faultClear(m proto.Message, path string) {
	parent, field := faultField(m, path)
	parent.Clear(field)
}

func faultField(m proto.Message, path string) (protoreflect.Message, protoreflect.FieldDescriptor) {
	message := m.ProtoReflect()
	outer, name, nested := strings.Cut(path, ".")
	if nested {
		message = message.Mutable(message.Descriptor().Fields().ByName(protoreflect.Name(outer))).Message()
	} else {
		name = outer
	}
	field := message.Descriptor().Fields().ByName(protoreflect.Name(name))
	if field == nil {
		panic("no field " + path)
	}
	return message, field
}

// faultSum adds to a checksum.
func faultSum(m proto.Message, path string, delta int64) {
	sum := faultGet(m, path).Message().Interface().(*wrapperspb.Int64Value)
	faultSet(m, path, protoreflect.ValueOfMessage(wrapperspb.Int64(sum.Value+delta).ProtoReflect()))
}

// faultWires are faults below gRPC, as proxies and broken connections make them,
// with the gRPC code that they look like.
var faultWires = func() []faultWireFault {
	page := func(code int) func(w http.ResponseWriter, _ []byte) {
		return func(w http.ResponseWriter, _ []byte) {
			w.Header().Set("Content-Type", "text/html; charset=UTF-8")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "<html>\n<title>Sorry</title>\n</html>")
		}
	}
	begin := func(w http.ResponseWriter, messages ...[]byte) {
		w.Header().Set("Content-Type", "application/grpc")
		w.WriteHeader(http.StatusOK)
		for _, message := range messages {
			_, _ = w.Write(message)
		}
		_ = http.NewResponseController(w).Flush()
	}
	end := func(w http.ResponseWriter) { w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0") }
	faults := []faultWireFault{
		{"wrong content type", codes.Unknown, false, page(http.StatusOK)},
		{"reset before the message", codes.Internal, false, func(w http.ResponseWriter, _ []byte) {
			begin(w)
			panic(http.ErrAbortHandler)
		}},
		{"reset in mid-message", codes.Internal, false, func(w http.ResponseWriter, good []byte) {
			begin(w, good[:len(good)/2])
			panic(http.ErrAbortHandler)
		}},
		{"message truncated", codes.Internal, false, func(w http.ResponseWriter, good []byte) {
			begin(w, good[:len(good)/2])
			end(w)
		}},
		{"no message", codes.Internal, false, func(w http.ResponseWriter, _ []byte) {
			begin(w)
			end(w)
		}},
		{"no trailers", codes.Internal, false, func(w http.ResponseWriter, good []byte) { begin(w, good) }},
		{"message that is no protocol buffer", codes.Internal, false, func(w http.ResponseWriter, _ []byte) {
			begin(w, []byte{0, 0, 0, 0, 3, 0xff, 0xff, 0xff})
			end(w)
		}},
		{"message claimed to be compressed", codes.Internal, false, func(w http.ResponseWriter, good []byte) {
			begin(w, append([]byte{1}, good[1:]...))
			end(w)
		}},
		{"connection cut", codes.OK, true, nil},
	}
	for _, like := range []struct {
		status int
		code   codes.Code
	}{
		{301, codes.Unknown}, {400, codes.Internal}, {401, codes.Unauthenticated}, {403, codes.PermissionDenied}, {404, codes.Unimplemented},
		{429, codes.Unavailable}, {500, codes.Unknown}, {502, codes.Unavailable}, {503, codes.Unavailable}, {504, codes.Unavailable},
	} {
		faults = append(faults, faultWireFault{fmt.Sprintf("HTTP status %d", like.status), like.code, false, page(like.status)})
	}
	return faults
}()

type faultWireFault struct {
	name string
	code codes.Code
	cut  bool

	// answer answers a call; good is the good answer, with the prefix that gRPC
	// puts in front of a message. A nil answer cuts the connection.
	answer func(w http.ResponseWriter, good []byte)
}

// A faultProxy passes RPCs on to a client of the server, and breaks some.
type faultProxy struct {
	client *kms.KeyManagementClient
	fault  atomic.Pointer[func(rpc string) (answer func(w http.ResponseWriter, good []byte), broken bool)]

	mu     sync.Mutex
	counts map[string]int
	conns  []net.Conn
}

func (p *faultProxy) fail(rpc string, answer func(w http.ResponseWriter, good []byte)) {
	fault := func(called string) (func(http.ResponseWriter, []byte), bool) { return answer, called == rpc }
	p.fault.Store(&fault)
}

func (p *faultProxy) calls(rpc string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[rpc]
}

// startFaultProxy starts a proxy in front of client, and a client of the proxy.
func startFaultProxy(t *testing.T, client *kms.KeyManagementClient) (*faultProxy, *kms.KeyManagementClient) {
	proxy := &faultProxy{client: client, counts: make(map[string]int)}
	listener := &faultListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: proxy, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(listener)
	t.Cleanup(func() {
		server.Close()
		listener.Close()
		proxy.cut()
	})
	conn, err := grpc.NewClient("passthrough:///proxy",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			proxy.mu.Lock()
			proxy.conns = append(proxy.conns, theirs)
			proxy.mu.Unlock()
			select {
			case listener.conns <- theirs:
				return ours, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond, Multiplier: 1.6}}),
	)
	if err != nil {
		t.Fatal(err)
	}
	proxied, err := kms.NewKeyManagementClient(context.Background(), option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxied.Close() })
	return proxy, proxied
}

func (p *faultProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		conn.Close()
	}
	p.conns = nil
}

func (p *faultProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rpc := path.Base(r.URL.Path)
	p.mu.Lock()
	p.counts[rpc]++
	p.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	response, err := p.pass(r, rpc, body[5:])
	if err != nil {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", fmt.Sprint(int(status.Code(err))))
		return
	}
	message, err := proto.Marshal(response)
	if err != nil {
		panic(err)
	}
	message = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	if fault := p.fault.Load(); fault != nil {
		if answer, broken := (*fault)(rpc); broken {
			if answer == nil {
				p.cut()
				return
			}
			answer(w, message)
			return
		}
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	_, _ = w.Write(message)
}

// pass makes a call of the server.
func (p *faultProxy) pass(r *http.Request, rpc string, request []byte) (proto.Message, error) {
	ctx := metadata.NewOutgoingContext(r.Context(), nil)
	switch rpc {
	case "AsymmetricSign":
		m := new(kmspb.AsymmetricSignRequest)
		_ = proto.Unmarshal(request, m)
		return p.client.AsymmetricSign(ctx, m)
	case "MacSign":
		m := new(kmspb.MacSignRequest)
		_ = proto.Unmarshal(request, m)
		return p.client.MacSign(ctx, m)
	case "MacVerify":
		m := new(kmspb.MacVerifyRequest)
		_ = proto.Unmarshal(request, m)
		return p.client.MacVerify(ctx, m)
	case "GetPublicKey":
		m := new(kmspb.GetPublicKeyRequest)
		_ = proto.Unmarshal(request, m)
		return p.client.GetPublicKey(ctx, m)
	default:
		m := new(kmspb.ListCryptoKeyVersionsRequest)
		_ = proto.Unmarshal(request, m)
		versions := p.client.ListCryptoKeyVersions(ctx, m)
		if _, err := versions.Next(); err != nil {
			return nil, err
		}
		return versions.Response.(*kmspb.ListCryptoKeyVersionsResponse), nil
	}
}

// A faultListener accepts what it is given.
type faultListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *faultListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *faultListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *faultListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
