package hygiene_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// needsSeeds fails a fuzz target whose seeds aren't where it is run, which would
// otherwise test next to nothing and pass.
func needsSeeds(f *testing.F) {
	f.Helper()
	if seeds, err := filepath.Glob(filepath.Join("testdata", "fuzz", f.Name(), "*")); err != nil || len(seeds) < 5 {
		f.Fatalf("%d seeds, %v, want at least 5", len(seeds), err)
	}
}

// golden returns a file of testdata/iam: two certificates, and tokens by
// their keys, whose private halves are gone.
func golden(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "iam", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// keysOf returns the keys that a Keyfunc hands out for tokens without kid.
func keysOf(keyfunc jwt.Keyfunc) ([]*rsa.PublicKey, error) {
	got, err := keyfunc(jwt.New(jwt.SigningMethodRS256))
	if err != nil {
		return nil, err
	}
	set, ok := got.(jwt.VerificationKeySet)
	if !ok {
		return []*rsa.PublicKey{got.(*rsa.PublicKey)}, nil
	}
	var keys []*rsa.PublicKey
	for _, key := range set.Keys {
		keys = append(keys, key.(*rsa.PublicKey))
	}
	return keys, nil
}

// serving returns a configuration whose certificates are in body.
func serving(body, cacheControl string) *gcpjwt.IAMConfig {
	client := &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
		response := answer(r, http.StatusOK, body)
		response.Header.Set("Cache-Control", cacheControl)
		return response, nil
	})}
	return &gcpjwt.IAMConfig{ServiceAccount: account, Client: client}
}

// The golden tokens are valid, so that FuzzIAMKeyfunc has something to start
// from.
func TestIAMGolden(t *testing.T) {
	t.Parallel()
	config := serving(golden(t, "certificates.json"), "")
	for _, name := range []string{"first.jwt", "unnamed.jwt"} {
		if _, err := jwt.Parse(golden(t, name), gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzIAMKeyfunc: no token is accepted unless jwt's own method verifies it with
// a key of the set, and none makes anything panic.
func FuzzIAMKeyfunc(f *testing.F) {
	needsSeeds(f)
	for _, name := range []string{"first.jwt", "unnamed.jwt"} {
		text := golden(f, name)
		f.Add(text)
		f.Add(text[:len(text)-1])
		f.Add("." + text)
	}
	config := serving(golden(f, "certificates.json"), "max-age=86400")
	config.EnableCache = true
	keyfunc := gcpjwt.IAMVerifyKeyfunc(context.Background(), config)
	keys, err := keysOf(keyfunc)
	if err != nil || len(keys) != 2 {
		f.Fatalf("%d keys, %v, want 2", len(keys), err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, err := jwt.Parse(text, keyfunc, jwt.WithoutClaimsValidation())
		valid := token != nil && token.Valid
		if valid != (err == nil) {
			t.Fatalf("valid: %v, error: %v", valid, err)
		}
		if !valid {
			return
		}
		i := strings.LastIndexByte(text, '.')
		signed := false
		for _, key := range keys {
			signed = signed || jwt.SigningMethodRS256.Verify(text[:i], token.Signature, key) == nil
		}
		if !signed {
			t.Errorf("%q is accepted, which no key has signed", text)
		}
		switch alg := token.Header["alg"]; alg {
		case "RS256", "KMSRS256", "IAMBlob", "IAMJWT", "AppEngine":
		default:
			t.Errorf("alg %v is accepted", alg)
		}
	})
}

// FuzzCertificates: whatever a server answers is an error or RSA keys that are
// long enough.
func FuzzCertificates(f *testing.F) {
	needsSeeds(f)
	f.Add([]byte(golden(f, "certificates.json")))
	f.Fuzz(func(t *testing.T, body []byte) {
		keys, err := keysOf(gcpjwt.IAMVerifyKeyfunc(context.Background(), serving(string(body), "")))
		if (err == nil) != (len(keys) > 0) {
			t.Errorf("%d keys, %v", len(keys), err)
		}
		for _, key := range keys {
			if bits := key.N.BitLen(); bits < 2048 {
				t.Errorf("a key of %d bits", bits)
			}
		}
		if err == nil {
			var object map[string]json.RawMessage
			if err := json.Unmarshal(body, &object); err != nil {
				t.Errorf("keys in what isn't a JSON object: %v", err)
			}
		}
	})
}

// FuzzAccount: an accepted account never leads to another host, path or query
// than the one it should be appended to.
func FuzzAccount(f *testing.F) {
	needsSeeds(f)
	f.Add(account)
	f.Add("100000000000000000001")
	f.Fuzz(func(t *testing.T, name string) {
		var requests []*http.Request
		client := &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
			requests = append(requests, r)
			return answer(r, http.StatusNotFound, "{}"), nil
		})}
		service, err := iamcredentials.NewService(t.Context(), option.WithHTTPClient(client), option.WithEndpoint("https://iam.example/"))
		if err != nil {
			t.Fatal(err)
		}
		config := &gcpjwt.IAMConfig{ServiceAccount: name, IAMService: service, Client: client, CertificateURL: "https://certs.example/x509/"}
		ctx := gcpjwt.NewIAMContext(t.Context(), config)
		for _, test := range []struct {
			host, before, after, query string
			call                       func() error
		}{
			{"iam.example", "/v1/projects/-/serviceAccounts/", ":signBlob", "alt=json&prettyPrint=false", func() error {
				_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodIAMBlob))
				return err
			}},
			{"iam.example", "/v1/projects/-/serviceAccounts/", ":signJwt", "alt=json&prettyPrint=false", func() error {
				_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodIAMJWT))
				return err
			}},
			{"certs.example", "/x509/", "", "", func() error {
				_, err := gcpjwt.IAMVerifyKeyfunc(ctx, config)(jwt.New(jwt.SigningMethodRS256))
				return err
			}},
		} {
			requests = nil
			if err := test.call(); err == nil {
				t.Fatal("the server knows no account, and nothing fails")
			}
			if len(requests) == 0 {
				continue // refused
			}
			// As a server takes it apart.
			u, err := url.Parse(requests[0].URL.String())
			if err != nil {
				t.Fatal(err)
			}
			escaped := strings.TrimSuffix(strings.TrimPrefix(u.EscapedPath(), test.before), test.after)
			got, err := url.PathUnescape(escaped)
			if err != nil || got != name || strings.Contains(escaped, "/") ||
				u.Scheme != "https" || u.Host != test.host || u.User != nil || u.Path != test.before+name+test.after || u.RawQuery != test.query || u.Fragment != "" {
				t.Errorf("account %q leads to %s", name, u)
			}
		}
	})
}

// fuzzKey is a key that is the same in each process, so that what fuzzing finds
// keeps its meaning.
func fuzzKey() ed25519.PrivateKey {
	seed := sha256.Sum256([]byte("a key for fuzzing Keyfuncs"))
	return ed25519.NewKeyFromSeed(seed[:])
}

// fuzzKMS starts a Cloud KMS server whose one version has fuzzKey, and returns
// the Keyfuncs of that version and of its CryptoKey.
func fuzzKMS(f *testing.F) (version string, keyfuncs []jwt.Keyfunc) {
	server, client := systest.StartKMS(f)
	version, err := server.CreateKey("fuzz", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(fuzzKey().Public())
	if err != nil {
		f.Fatal(err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		response, err := next(ctx, req)
		if public, ok := response.(*kmspb.PublicKey); ok {
			public.PublicKey = &kmspb.ChecksummedData{Data: key, Crc32CChecksum: testutil.Checksum(key)}
		}
		return response, err
	})
	for _, path := range []string{version, systest.CryptoKeyOf(version)} {
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client})
		if err != nil {
			f.Fatal(err)
		}
		keyfuncs = append(keyfuncs, keyfunc)
	}
	return version, keyfuncs
}

// fuzzAppEngine starts an App Engine API server with the golden certificates,
// and returns the app's Keyfunc.
func fuzzAppEngine(f *testing.F) jwt.Keyfunc {
	server, err := testutil.NewAppEngine()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(server.Close)
	var certificates map[string]string
	if err := json.Unmarshal([]byte(golden(f, "certificates.json")), &certificates); err != nil {
		f.Fatal(err)
	}
	server.InterceptResponse("GetPublicCertificatesForApp", func([]byte) []byte {
		var response []byte
		for kid, text := range certificates {
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), kid)
			entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), text)
			response = protowire.AppendBytes(protowire.AppendTag(response, 1, protowire.BytesType), entry)
		}
		return protowire.AppendVarint(protowire.AppendTag(response, 2, protowire.VarintType), 86400)
	})
	return gcpjwt.AppEngineVerifyKeyfunc(server.Context(context.Background()), true, 0)
}

// FuzzKeyfuncs does for the Keyfuncs of Cloud KMS and App Engine what
// FuzzIAMKeyfunc does for that of IAM.
func FuzzKeyfuncs(f *testing.F) {
	needsSeeds(f)
	version, keyfuncs := fuzzKMS(f)
	keyfuncs = append(keyfuncs, fuzzAppEngine(f))

	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"sub": "a"})
	for _, kid := range []any{nil, gcpjwt.KMSKeyID(version), "unknown", 42} {
		if token.Header["kid"] = kid; kid == nil {
			delete(token.Header, "kid")
		}
		text, err := token.SignedString(fuzzKey())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add(golden(f, "first.jwt"))
	f.Add(golden(f, "unnamed.jwt"))

	rsaKeys, err := keysOf(keyfuncs[2])
	if err != nil || len(rsaKeys) != 2 {
		f.Fatalf("%d keys of the app, %v, want 2", len(rsaKeys), err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i, keyfunc := range keyfuncs {
			token, err := jwt.Parse(text, keyfunc, jwt.WithoutClaimsValidation())
			if valid := token != nil && token.Valid; valid != (err == nil) {
				t.Fatalf("Keyfunc %d: valid: %v, error: %v", i, valid, err)
			}
			if err != nil {
				continue
			}
			dot := strings.LastIndexByte(text, '.')
			good := i < 2 && jwt.SigningMethodEdDSA.Verify(text[:dot], token.Signature, fuzzKey().Public()) == nil
			for _, key := range rsaKeys {
				good = good || i == 2 && jwt.SigningMethodRS256.Verify(text[:dot], token.Signature, key) == nil
			}
			if !good {
				t.Errorf("Keyfunc %d accepts %q, which no key of its own has signed", i, text)
			}
		}
	})
}
