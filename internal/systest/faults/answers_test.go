package faults_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// kmsFault is damage done to the response of an RPC.
type kmsFault struct {
	name      string
	rpc       string
	algorithm systest.Algorithm
	damage    func(resp proto.Message)
}

// kmsDamage makes damage that knows the type of the response.
func kmsDamage[M proto.Message](f func(resp M)) func(proto.Message) {
	return func(resp proto.Message) { f(resp.(M)) }
}

// kmsDamageDER replaces an ECDSA signature by bytes with the right checksum.
func kmsDamageDER(f func(der []byte) []byte) func(proto.Message) {
	return kmsDamage(func(resp *kmspb.AsymmetricSignResponse) {
		resp.Signature = f(resp.Signature)
		resp.SignatureCrc32C = testutil.Checksum(resp.Signature)
	})
}

// kmsDamageKey replaces a public key by bytes with the right checksum.
func kmsDamageKey(f func(key []byte) []byte) func(proto.Message) {
	return kmsDamage(func(resp *kmspb.PublicKey) {
		data := f(resp.PublicKey.Data)
		resp.PublicKey = &kmspb.ChecksummedData{Data: data, Crc32CChecksum: testutil.Checksum(data)}
	})
}

func kmsInts(r, s string) []byte {
	encode := func(hex string) []byte {
		var n []byte
		fmt.Sscanf(hex, "%x", &n)
		return append([]byte{2, byte(len(n))}, n...)
	}
	body := append(encode(r), encode(s)...)
	return append([]byte{0x30, byte(len(body))}, body...)
}

var kmsFaults = []kmsFault{
	{"another name", "AsymmetricSign", systest.P256, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.Name += "0" })},
	{"no name", "AsymmetricSign", systest.P256, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.Name = "" })},
	{"wrong signature checksum", "AsymmetricSign", systest.P256, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.SignatureCrc32C.Value ^= 1 })},
	{"no signature checksum", "AsymmetricSign", systest.P256, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.SignatureCrc32C = nil })},
	{"a checksum beyond 32 bits", "AsymmetricSign", systest.P256, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.SignatureCrc32C.Value += 1 << 32 })},
	{"a flipped bit in the signature", "AsymmetricSign", systest.Ed25519, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.Signature[9] ^= 4 })},
	{"digest not verified", "AsymmetricSign", systest.P256, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.VerifiedDigestCrc32C = false })},
	{"data not verified", "AsymmetricSign", systest.Ed25519, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.VerifiedDataCrc32C = false })},
	{"the other input verified", "AsymmetricSign", systest.P256, kmsDamage(func(r *kmspb.AsymmetricSignResponse) {
		r.VerifiedDigestCrc32C, r.VerifiedDataCrc32C = false, true
	})},
	{"ML-DSA data not verified", "AsymmetricSign", systest.MLDSA44, kmsDamage(func(r *kmspb.AsymmetricSignResponse) { r.VerifiedDataCrc32C = false })},

	{"DER: empty", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return nil })},
	{"DER: r||s", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return bytes.Repeat([]byte{7}, 64) })},
	{"DER: cut", "AsymmetricSign", systest.P256, kmsDamageDER(func(der []byte) []byte { return der[:len(der)-1] })},
	{"DER: trailing byte", "AsymmetricSign", systest.P256, kmsDamageDER(func(der []byte) []byte { return append(der, 0) })},
	{"DER: trailing byte in the sequence", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return append([]byte{0x30, 7}, 2, 1, 1, 2, 1, 1, 0) })},
	{"DER: third integer", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return []byte{0x30, 9, 2, 1, 1, 2, 1, 1, 2, 1, 1} })},
	{"DER: one integer", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return []byte{0x30, 3, 2, 1, 1} })},
	{"DER: negative r", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return kmsInts("81", "01") })},
	{"DER: negative s", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return kmsInts("01", "ff00") })},
	{"DER: zero r", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return kmsInts("00", "01") })},
	{"DER: zero s", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return kmsInts("01", "00") })},
	{"DER: oversized r", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return kmsInts("01"+strings.Repeat("00", 32), "01") })},
	{"DER: oversized s", "AsymmetricSign", systest.P384, kmsDamageDER(func([]byte) []byte { return kmsInts("01", "01"+strings.Repeat("00", 48)) })},
	{"DER: of another curve", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte {
		wide := bytes.Repeat([]byte{0x70}, 48)
		return systest.DER(wide, wide)
	})},
	{"DER: r not minimal", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return kmsInts("0001", "01") })},
	{"DER: s not minimal", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return kmsInts("01", "0001") })},
	{"DER: empty integer", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return []byte{0x30, 5, 2, 0, 2, 1, 1} })},
	{"DER: long form length", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return []byte{0x30, 0x81, 6, 2, 1, 1, 2, 1, 1} })},
	{"DER: indefinite length", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return []byte{0x30, 0x80, 2, 1, 1, 2, 1, 1, 0, 0} })},
	{"DER: a set", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return []byte{0x31, 6, 2, 1, 1, 2, 1, 1} })},
	{"DER: an enumerated", "AsymmetricSign", systest.P256, kmsDamageDER(func([]byte) []byte { return []byte{0x30, 6, 10, 1, 1, 2, 1, 1} })},

	{"another name", "GetPublicKey", systest.P256, kmsDamage(func(r *kmspb.PublicKey) { r.Name += "0" })},
	{"no name", "GetPublicKey", systest.P256, kmsDamage(func(r *kmspb.PublicKey) { r.Name = "" })},
	{"wrong key checksum", "GetPublicKey", systest.P256, kmsDamage(func(r *kmspb.PublicKey) { r.PublicKey.Crc32CChecksum.Value++ })},
	{"no key checksum", "GetPublicKey", systest.P256, kmsDamage(func(r *kmspb.PublicKey) { r.PublicKey.Crc32CChecksum = nil })},
	{"no key", "GetPublicKey", systest.P256, kmsDamage(func(r *kmspb.PublicKey) { r.PublicKey = nil })},
	{"a flipped bit in the key", "GetPublicKey", systest.P256, kmsDamage(func(r *kmspb.PublicKey) { r.PublicKey.Data[40] ^= 1 })},
	{"wrong pem checksum", "GetPublicKey", systest.P256, kmsDamage(func(r *kmspb.PublicKey) {
		r.Pem, r.PublicKey = string(r.PublicKey.Data), nil
		r.PemCrc32C = wrapperspb.Int64(1)
	})},
	{"no pem checksum", "GetPublicKey", systest.P256, kmsDamage(func(r *kmspb.PublicKey) {
		r.Pem, r.PublicKey = string(r.PublicKey.Data), nil
	})},
	{"garbage", "GetPublicKey", systest.P256, kmsDamageKey(func([]byte) []byte { return []byte("garbage") })},
	{"empty key", "GetPublicKey", systest.P256, kmsDamageKey(func([]byte) []byte { return nil })},
	{"garbage in PEM", "GetPublicKey", systest.PKCS2048, kmsDamageKey(func([]byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("garbage")})
	})},
	{"cut PEM", "GetPublicKey", systest.PKCS2048, kmsDamageKey(func(key []byte) []byte { return key[:len(key)/2] })},
	{"short ML-DSA key", "GetPublicKey", systest.MLDSA44, kmsDamageKey(func(key []byte) []byte { return key[:len(key)-1] })},
	{"long ML-DSA key", "GetPublicKey", systest.MLDSA44, kmsDamageKey(func(key []byte) []byte { return append(key, 0) })},

	{"another name", "MacSign", systest.HMAC256, kmsDamage(func(r *kmspb.MacSignResponse) { r.Name += "0" })},
	{"no name", "MacSign", systest.HMAC256, kmsDamage(func(r *kmspb.MacSignResponse) { r.Name = "" })},
	{"wrong MAC checksum", "MacSign", systest.HMAC256, kmsDamage(func(r *kmspb.MacSignResponse) { r.MacCrc32C.Value-- })},
	{"no MAC checksum", "MacSign", systest.HMAC256, kmsDamage(func(r *kmspb.MacSignResponse) { r.MacCrc32C = nil })},
	{"a flipped bit in the MAC", "MacSign", systest.HMAC256, kmsDamage(func(r *kmspb.MacSignResponse) { r.Mac[0] ^= 0x80 })},
	{"data not verified", "MacSign", systest.HMAC256, kmsDamage(func(r *kmspb.MacSignResponse) { r.VerifiedDataCrc32C = false })},
}

// A response that fails a check is asked for again, three times in all, and
// never makes it into a token.
func TestKMSIntegrityOfSigning(t *testing.T) {
	t.Parallel()
	for _, fault := range kmsFaults {
		for _, bad := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s/%s/%d bad", fault.rpc, fault.name, bad), func(t *testing.T) {
				t.Parallel()
				row := systest.RowOf(fault.algorithm)
				server, client := systest.StartKMS(t)
				version := systest.Create(t, server, fault.algorithm)
				kmsSpoil(server, fault.rpc, bad, fault.damage)
				text, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), client, version), jwt.New(row.Method))
				want := min(bad+1, 3)
				if got := server.Calls(fault.rpc); got != want {
					t.Errorf("%s was called %d times, want %d", fault.rpc, got, want)
				}
				if bad < 3 {
					if err != nil {
						t.Fatalf("SignedString: %v", err)
					}
					signingString, sig := systest.Split(t, text)
					if err := systest.VerifyBare(t.Context(), row, server, client, version, signingString, sig); err != nil {
						t.Errorf("verifying the token: %v", err)
					}
					return
				}
				if text != "" || !errors.Is(err, gcpjwt.ErrIntegrity) {
					t.Fatalf("SignedString = %q, %v, want ErrIntegrity", text, err)
				}
				if errors.Is(err, gcpjwt.ErrAlgorithmMismatch) || !strings.Contains(err.Error(), version) {
					t.Errorf("the error is %q, want it to name the key", err)
				}
			})
		}
	}
}

// kmsSpoil damages the first so many responses of an RPC from now on.
func kmsSpoil(server *testutil.KMS, rpc string, bad int, damage func(proto.Message)) {
	var mu sync.Mutex
	server.ResetCalls()
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		resp, err := next(ctx, req)
		if err != nil || method != rpc {
			return resp, err
		}
		mu.Lock()
		defer mu.Unlock()
		if bad--; bad >= 0 {
			damage(resp)
		}
		return resp, err
	})
}

// The public keys that verify are checked alike.
func TestKMSIntegrityOfPublicKeys(t *testing.T) {
	t.Parallel()
	for _, fault := range kmsFaults {
		if fault.rpc != "GetPublicKey" || fault.algorithm == systest.MLDSA44 {
			continue // the Keyfunc asks for an ML-DSA key in PEM first, which isn't looked at
		}
		for _, bad := range []int{2, 3} {
			t.Run(fmt.Sprintf("%s/%d bad", fault.name, bad), func(t *testing.T) {
				t.Parallel()
				server, client := systest.StartKMS(t)
				version := systest.Create(t, server, fault.algorithm)
				kmsSpoil(server, fault.rpc, bad, fault.damage)
				_, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client})
				if got := server.Calls(fault.rpc); got != 3 {
					t.Errorf("%s was called %d times, want 3", fault.rpc, got)
				}
				if bad < 3 && err != nil {
					t.Errorf("KMSVerifyKeyfunc: %v", err)
				}
				if bad >= 3 && (!errors.Is(err, gcpjwt.ErrIntegrity) || !errors.Is(err, gcpjwt.ErrKeysUnavailable)) {
					t.Errorf("KMSVerifyKeyfunc: %v, want ErrIntegrity and ErrKeysUnavailable", err)
				}
			})
		}
	}
}

func TestKMSIntegrityOfMacVerify(t *testing.T) {
	t.Parallel()
	type response = kmspb.MacVerifyResponse
	tests := []struct {
		name   string
		damage func(resp proto.Message)
	}{
		{"another name", kmsDamage(func(r *response) { r.Name += "0" })},
		{"no name", kmsDamage(func(r *response) { r.Name = "" })},
		{"data not verified", kmsDamage(func(r *response) { r.VerifiedDataCrc32C = false })},
		{"MAC not verified", kmsDamage(func(r *response) { r.VerifiedMacCrc32C = false })},
		{"verdict turned around", kmsDamage(func(r *response) { r.Success = !r.Success })},
		{"integrity turned around", kmsDamage(func(r *response) { r.VerifiedSuccessIntegrity = !r.VerifiedSuccessIntegrity })},
	}
	for _, tt := range tests {
		for _, forged := range []bool{false, true} {
			for _, bad := range []int{2, 3} {
				t.Run(fmt.Sprintf("%s/forged=%t/%d bad", tt.name, forged, bad), func(t *testing.T) {
					t.Parallel()
					server, client := systest.StartKMS(t)
					version := systest.Create(t, server, systest.HMAC256)
					text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSHS256, nil)
					if forged {
						text = systest.Forge(text)
					}
					keyfunc := systest.KMSKeyfunc(t, t.Context(), client, version)
					kmsSpoil(server, "MacVerify", bad, tt.damage)
					token, err := jwt.Parse(text, keyfunc)
					if got := server.Calls("MacVerify"); got != 3 {
						t.Errorf("MacVerify was called %d times, want 3", got)
					}
					switch {
					case forged && (err == nil || token.Valid):
						t.Error("a forged token was accepted")
					case bad < 3 && forged && (!errors.Is(err, jwt.ErrSignatureInvalid) || errors.Is(err, gcpjwt.ErrIntegrity)):
						t.Errorf("jwt.Parse: %v, want ErrSignatureInvalid", err)
					case bad < 3 && !forged && err != nil:
						t.Errorf("jwt.Parse: %v", err)
					case bad >= 3 && (!errors.Is(err, gcpjwt.ErrIntegrity) || !errors.Is(err, gcpjwt.ErrKeysUnavailable)):
						t.Errorf("jwt.Parse: %v, want ErrIntegrity and ErrKeysUnavailable", err)
					}
				})
			}
		}
	}
}

// A list that names what it cannot contain is not believed.
func TestKMSIntegrityOfList(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		rename func(version string) string
	}{
		{"another CryptoKey", func(v string) string { return strings.Replace(v, "/signer/", "/other/", 1) }},
		{"another project", func(v string) string { return strings.Replace(v, "projects/test/", "projects/evil/", 1) }},
		{"a CryptoKey whose name only begins alike", func(v string) string { return strings.Replace(v, "/signer/", "/signer2/", 1) }},
		{"no name", func(string) string { return "" }},
		{"the CryptoKey itself", systest.CryptoKeyOf},
		{"no number", func(v string) string { return systest.CryptoKeyOf(v) + "/cryptoKeyVersions/" }},
		{"a word for a number", func(v string) string { return systest.CryptoKeyOf(v) + "/cryptoKeyVersions/latest" }},
		{"a negative number", func(v string) string { return systest.CryptoKeyOf(v) + "/cryptoKeyVersions/-1" }},
		{"a huge number", func(v string) string { return systest.CryptoKeyOf(v) + "/cryptoKeyVersions/99999999999999999999" }},
		{"another collection", func(v string) string { return systest.CryptoKeyOf(v) + "/versions/1" }},
		{"something more", func(v string) string { return v + "/publicKey" }},
	}
	for _, tt := range tests {
		for _, bad := range []int{2, 3} {
			t.Run(fmt.Sprintf("%s/%d bad", tt.name, bad), func(t *testing.T) {
				t.Parallel()
				server, client := systest.StartKMS(t)
				version := systest.Create(t, server, systest.P256)
				kmsSpoil(server, "ListCryptoKeyVersions", bad, kmsDamage(func(r *kmspb.ListCryptoKeyVersionsResponse) {
					r.CryptoKeyVersions[0].Name = tt.rename(version)
				}))
				text, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), client, systest.CryptoKeyOf(version)), jwt.New(gcpjwt.SigningMethodKMSES256))
				if got := server.Calls("ListCryptoKeyVersions"); got != 3 {
					t.Errorf("ListCryptoKeyVersions was called %d times, want 3", got)
				}
				if bad < 3 && err != nil {
					t.Errorf("SignedString: %v", err)
				}
				if bad >= 3 && (text != "" || !errors.Is(err, gcpjwt.ErrIntegrity)) {
					t.Errorf("SignedString = %q, %v, want ErrIntegrity", text, err)
				}
			})
		}
	}
}

// A filter that isn't honoured does no harm.
func TestKMSListIgnoresFilter(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.P256)
	for range 2 {
		if _, err := server.CreateVersion(systest.CryptoKeyOf(version)); err != nil {
			t.Fatal(err)
		}
	}
	server.SetState(systest.CryptoKeyOf(version)+"/cryptoKeyVersions/3", systest.Disabled)
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if req, ok := req.(*kmspb.ListCryptoKeyVersionsRequest); ok {
			req.Filter = ""
		}
		return next(ctx, req)
	})
	config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client, ActivationDelay: -1}
	text := systest.Sign(t, gcpjwt.NewKMSContext(t.Context(), config), gcpjwt.SigningMethodKMSES256, nil)
	if got, want := systest.Header(t, text)["kid"], gcpjwt.KMSKeyID(systest.CryptoKeyOf(version)+"/cryptoKeyVersions/2"); got != want {
		t.Errorf("signed by %v, want version 2", got)
	}
	if got := server.Calls("AsymmetricSign"); got != 1 {
		t.Errorf("AsymmetricSign was called %d times, want 1", got)
	}
}

// kmsPermissionError checks that an error says which permission on which
// resource is missing, and which role has it.
func kmsPermissionError(t *testing.T, err error, resource, permission, role string) {
	t.Helper()
	if status.Code(err) != codes.PermissionDenied {
		t.Fatalf("got %v, want PERMISSION_DENIED", err)
	}
	if _, ok := errors.AsType[*apierror.APIError](err); !ok {
		t.Errorf("got %v, want an *apierror.APIError within", err)
	}
	// Google's own text names the permission and the resource, but no role; ours
	// comes first.
	ours, _, _ := strings.Cut(err.Error(), ": rpc error")
	for _, want := range []string{resource, permission, role} {
		if !strings.Contains(ours, want) {
			t.Errorf("the error is %q, want it to name %s", err, want)
		}
	}
}

func TestKMSMissingPermission(t *testing.T) {
	t.Parallel()
	const (
		sign = "cloudkms.cryptoKeyVersions.useToSign"
		view = "cloudkms.cryptoKeyVersions.viewPublicKey"
		list = "cloudkms.cryptoKeyVersions.list"
	)
	signing := func(ctx context.Context, config *gcpjwt.KMSConfig, row systest.Row) error {
		text, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(ctx, config), jwt.New(row.Method))
		if text != "" {
			err = errors.New("SignedString returned a token")
		}
		return err
	}
	verifying := func(ctx context.Context, config *gcpjwt.KMSConfig, row systest.Row) error {
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
		switch {
		case keyfunc != nil:
			return errors.New("KMSVerifyKeyfunc returned a Keyfunc")
		case !errors.Is(err, gcpjwt.ErrKeysUnavailable):
			return fmt.Errorf("not ErrKeysUnavailable: %v", err)
		}
		return err
	}
	tests := []struct {
		name             string
		algorithm        systest.Algorithm
		rotating         bool
		permission, role string
		resourceIsKey    bool
		call             func(context.Context, *gcpjwt.KMSConfig, systest.Row) error
	}{
		{"sign", systest.P256, false, sign, "roles/cloudkms.signer", false, signing},
		{"sign with the newest", systest.P256, true, sign, "roles/cloudkms.signer", false, signing},
		{"sign with a MAC key", systest.HMAC256, false, sign, "roles/cloudkms.signer", false, signing},
		{"list to sign", systest.P256, true, list, "roles/cloudkms.viewer", true, signing},
		{"list to verify", systest.P256, true, list, "roles/cloudkms.viewer", true, verifying},
		{"read the public key", systest.P256, false, view, "roles/cloudkms.publicKeyViewer", false, verifying},
		{"read the public keys", systest.P256, true, view, "roles/cloudkms.publicKeyViewer", false, verifying},
		{"read the ML-DSA public key", systest.MLDSA44, false, view, "roles/cloudkms.publicKeyViewer", false, verifying},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
			version := systest.Create(t, server, tt.algorithm)
			server.Deny(tt.permission)
			config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
			if tt.rotating {
				config.KeyPath = systest.CryptoKeyOf(version)
			}
			resource := version
			if tt.resourceIsKey {
				resource = systest.CryptoKeyOf(version)
			}
			kmsPermissionError(t, tt.call(t.Context(), config, systest.RowOf(tt.algorithm)), resource, tt.permission, tt.role)
		})
	}
}

// A caller who may sign but not read public keys signs, and isn't refused the
// same thing again and again.
func TestKMSSignerMayNotReadPublicKeys(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []systest.Algorithm{systest.P256, systest.MLDSA44} {
		for _, rotating := range []bool{false, true} {
			row := systest.RowOf(algorithm)
			t.Run(fmt.Sprintf("%s/rotating=%t", row.Alg, rotating), func(t *testing.T) {
				t.Parallel()
				server, client := systest.StartKMS(t)
				version := systest.Create(t, server, algorithm)
				server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
				path, reads := version, 1
				if rotating {
					path, reads = systest.CryptoKeyOf(version), 0 // the list says what the public key would
				}
				for range 50 {
					signingString, sig := systest.Split(t, systest.Sign(t, systest.KMSContext(t.Context(), client, path), row.Method, nil))
					if err := systest.VerifyBare(t.Context(), row, server, client, version, signingString, sig); err != nil {
						t.Fatalf("verifying the token: %v", err)
					}
				}
				if got := server.Calls("GetPublicKey"); got != reads {
					t.Errorf("GetPublicKey was called %d times, want %d", got, reads)
				}
			})
		}
	}
}

// A permission given later is noticed.
func TestKMSPermissionGranted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, client := systest.StartKMS(t, testutil.InMemory())
		version := systest.Create(t, server, systest.PSS2048)
		server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
		ctx := systest.KMSContext(t.Context(), client, version)
		// Without the permission a PSS key cannot be told from a PKCS #1 key.
		systest.Sign(t, ctx, gcpjwt.SigningMethodKMSRS256, nil)
		server.Allow("cloudkms.cryptoKeyVersions.viewPublicKey")
		time.Sleep(5 * time.Minute)
		server.ResetCalls()
		if _, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSRS256)); !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
			t.Errorf("SignedString: %v, want ErrAlgorithmMismatch", err)
		}
		if got := server.Calls("AsymmetricSign"); got != 0 {
			t.Errorf("AsymmetricSign was called %d times, want 0", got)
		}
	})
}

// Only a missing permission is tolerated on reading the public key.
func TestKMSPublicKeyUnreadable(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Internal, codes.Unauthenticated, codes.FailedPrecondition, codes.InvalidArgument} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
			version := systest.Create(t, server, systest.P256)
			server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				if method == "GetPublicKey" {
					return nil, status.Error(code, "no")
				}
				return next(ctx, req)
			})
			text, err := gcpjwt.SignedString(systest.KMSContext(t.Context(), client, version), jwt.New(gcpjwt.SigningMethodKMSES256))
			if text != "" || status.Code(err) != code {
				t.Errorf("SignedString = %q, %v, want code %v", text, err, code)
			}
			if got := server.Calls("AsymmetricSign"); got != 0 {
				t.Errorf("AsymmetricSign was called %d times, want 0", got)
			}
		})
	}
}

// Versions that don't exist or don't sign: Google's code is there, and no token.
func TestKMSUnusableVersion(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []systest.Algorithm{systest.P256, systest.HMAC256} {
		row := systest.RowOf(algorithm)
		tests := []struct {
			name  string
			state kmspb.CryptoKeyVersion_CryptoKeyVersionState
			code  codes.Code
		}{
			{"unknown", 0, codes.NotFound},
			{"disabled", systest.Disabled, codes.FailedPrecondition},
			{"pending generation", kmspb.CryptoKeyVersion_PENDING_GENERATION, codes.FailedPrecondition},
			{"generation failed", kmspb.CryptoKeyVersion_GENERATION_FAILED, codes.FailedPrecondition},
			{"destroy scheduled", kmspb.CryptoKeyVersion_DESTROY_SCHEDULED, codes.FailedPrecondition},
			{"destroyed", systest.Destroyed, codes.FailedPrecondition},
		}
		for _, tt := range tests {
			for _, used := range []bool{false, true} {
				if used && tt.state == 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/used before=%t", row.Alg, tt.name, used), func(t *testing.T) {
					t.Parallel()
					server, client := systest.StartKMS(t)
					version := systest.Create(t, server, algorithm)
					if used {
						systest.Sign(t, systest.KMSContext(t.Context(), client, version), row.Method, nil)
					}
					if tt.state == 0 {
						version = systest.CryptoKeyOf(version) + "/cryptoKeyVersions/2"
					} else {
						server.SetState(version, tt.state)
					}
					ctx := systest.KMSContext(t.Context(), client, version)
					token := jwt.New(row.Method)
					text, err := gcpjwt.SignedString(ctx, token)
					if text != "" || status.Code(err) != tt.code {
						t.Errorf("SignedString = %q, %v, want %v", text, err, tt.code)
					}
					if _, ok := errors.AsType[*apierror.APIError](err); !ok {
						t.Errorf("SignedString: %v, want an *apierror.APIError within", err)
					}
					if !strings.Contains(err.Error(), version) {
						t.Errorf("the error is %q, want it to name the key", err)
					}
					if text, err := token.SignedString(ctx); text != "" || err == nil {
						t.Errorf("token.SignedString = %q, %v, want an error", text, err)
					}
					if got := token.Header["kid"]; got != nil {
						t.Errorf("the failed signature left the kid %v", got)
					}
					if !used { // or the public key is known, and still good for verifying
						if _, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}); status.Code(err) != tt.code {
							t.Errorf("KMSVerifyKeyfunc: %v, want %v", err, tt.code)
						}
					}
				})
			}
		}
	}
}

func TestKMSUnknownCryptoKey(t *testing.T) {
	t.Parallel()
	_, client := systest.StartKMS(t)
	config := &gcpjwt.KMSConfig{KeyPath: "projects/test/locations/global/keyRings/test/cryptoKeys/missing", KMSClient: client}
	_, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), config), jwt.New(gcpjwt.SigningMethodKMSES256))
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "KeyPath") {
		t.Errorf("SignedString: %v, want NOT_FOUND that tells to check KeyPath", err)
	}
	if _, err = gcpjwt.KMSVerifyKeyfunc(t.Context(), config); status.Code(err) != codes.NotFound {
		t.Errorf("KMSVerifyKeyfunc: %v, want NOT_FOUND", err)
	}
}

// The end of the caller's context ends the call, whatever RPC it is in, and it
// can be told from a failure.
func TestKMSContextEnds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		rpc       string // that hangs
		algorithm systest.Algorithm
		rotating  bool
	}{
		{"AsymmetricSign", systest.P256, false},
		{"AsymmetricSign", systest.P256, true},
		{"AsymmetricSign", systest.MLDSA44, false},
		{"GetPublicKey", systest.P256, false},
		{"ListCryptoKeyVersions", systest.P256, true},
		{"MacSign", systest.HMAC256, false},
		{"MacSign", systest.HMAC256, true},
	}
	for _, tt := range tests {
		for _, how := range []string{"ended", "cancelled", "timed out"} {
			t.Run(fmt.Sprintf("%s/%s/rotating=%t/%s", tt.rpc, tt.algorithm, tt.rotating, how), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					server, client := systest.StartKMS(t, testutil.InMemory())
					path := systest.Create(t, server, tt.algorithm)
					if tt.rotating {
						path = systest.CryptoKeyOf(path)
					}
					systest.Hang(server, tt.rpc)

					const patience = 3 * time.Second
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					want, wantAfter := context.Canceled, patience
					switch how {
					case "ended":
						cancel()
						wantAfter = 0
					case "cancelled":
						time.AfterFunc(patience, cancel)
					case "timed out":
						want = context.DeadlineExceeded
						ctx, cancel = context.WithTimeout(ctx, patience)
						defer cancel()
					}
					start := time.Now()
					text, err := gcpjwt.SignedString(systest.KMSContext(ctx, client, path), jwt.New(systest.RowOf(tt.algorithm).Method))
					if text != "" || !errors.Is(err, want) {
						t.Errorf("SignedString = %q, %v, want %v", text, err, want)
					}
					if got := time.Since(start); got != wantAfter {
						t.Errorf("SignedString returned after %v, want %v", got, wantAfter)
					}

					// Whatever was shared with the impatient caller isn't spoilt.
					server.Intercept(nil)
					time.Sleep(time.Minute)
					systest.Sign(t, systest.KMSContext(t.Context(), client, path), systest.RowOf(tt.algorithm).Method, nil)
				})
			})
		}
	}
}

// The same for making a Keyfunc, which even without any deadline gives up.
func TestKMSVerifyKeyfuncContextEnds(t *testing.T) {
	t.Parallel()
	for _, rpc := range []string{"GetPublicKey", "ListCryptoKeyVersions"} {
		t.Run(rpc, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, client := systest.StartKMS(t, testutil.InMemory())
				path := systest.Create(t, server, systest.P256)
				if rpc == "ListCryptoKeyVersions" {
					path = systest.CryptoKeyOf(path)
				}
				systest.Hang(server, rpc)
				make := func(ctx context.Context) (time.Duration, error) {
					start := time.Now()
					_, err := gcpjwt.KMSVerifyKeyfunc(ctx, &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client})
					if err == nil {
						t.Error("KMSVerifyKeyfunc succeeded")
					}
					return time.Since(start), err
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if took, err := make(ctx); took != time.Second || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("with a second: %v after %v, want context.DeadlineExceeded after 1s", err, took)
				}
				if took, err := make(t.Context()); took != 9*time.Second || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
					t.Errorf("with no limit: %v after %v, want context.DeadlineExceeded when the first call's 10s are over", err, took)
				}
			})
		})
	}
}

// A signer that may not read public keys goes on if it cannot even ask.
func TestKMSSignerWithoutPublicKeysInOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := systest.StartKMS(t, testutil.InMemory())
		version := systest.Create(t, server, systest.P256)
		server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
		ctx := systest.KMSContext(t.Context(), client, version)
		systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)
		server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if _, ok := req.(*kmspb.GetPublicKeyRequest); ok {
				return nil, status.Error(codes.ResourceExhausted, "read quota")
			}
			return next(ctx, req)
		})
		time.Sleep(2 * time.Minute)
		if _, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSES256)); err != nil {
			t.Errorf("a signer that may not read public keys, which has signed before: %v", err)
		}
	})
}
