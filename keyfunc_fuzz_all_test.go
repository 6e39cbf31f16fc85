package gcpjwt_test

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

// fuzzKey is a key that is the same in each process, so that what fuzzing finds
// keeps its meaning.
func fuzzKey() ed25519.PrivateKey {
	seed := sha256.Sum256([]byte("a key for fuzzing Keyfuncs"))
	return ed25519.NewKeyFromSeed(seed[:])
}

// fuzzKMS starts a Cloud KMS server whose one version has fuzzKey, and returns
// the Keyfuncs of that version and of its CryptoKey.
func fuzzKMS(f *testing.F) (version string, keyfuncs []jwt.Keyfunc) {
	server, client := start.KMS(f)
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
	gcpjwt.ResetAppEngine()
	server, err := testutil.NewAppEngine()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(server.Close)
	var certificates map[string]string
	if err := json.Unmarshal([]byte(iamGolden(f, "certificates.json")), &certificates); err != nil {
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
	iamSeeds(f)
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
	f.Add(iamGolden(f, "first.jwt"))
	f.Add(iamGolden(f, "unnamed.jwt"))

	rsaKeys, err := iamKeysOf(keyfuncs[2])
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
