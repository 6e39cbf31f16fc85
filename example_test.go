package gcpjwt_test

import (
	"context"
	"crypto/ecdsa"
	"encoding/base64"
	"errors"
	"fmt"
	"log"
	"path"
	"strings"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// A Signer needs the name of a key and nothing else: it finds the algorithm by itself.
func ExampleNewKMSSigner() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	ctx := context.Background()

	// A CryptoKey, whose newest version signs. Without a KMSClient, Application Default
	// Credentials are used.
	signer, err := gcpjwt.NewKMSSigner(ctx, &gcpjwt.KMSConfig{
		KeyPath:   path.Dir(path.Dir(version)), // projects/P/locations/L/keyRings/R/cryptoKeys/K
		KMSClient: client,
	})
	if err != nil {
		log.Fatal(err)
	}
	text, err := signer.Sign(ctx, jwt.RegisteredClaims{
		Subject:   "alice",
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	})
	if err != nil {
		log.Fatal(err)
	}

	token, err := jwt.Parse(text, signer.Keyfunc, jwt.WithExpirationRequired())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.Header["alg"], token.Header["kid"] == gcpjwt.KMSKeyID(version))
	// Output: ES256 true
}

// Code that makes tokens takes an interface with one method, so that its tests need neither
// Google Cloud nor a key.
func ExampleSigner() {
	var signer exampleSigner = exampleStandIn{} // in production a *gcpjwt.Signer

	header, err := exampleAuthorize(context.Background(), signer, "alice")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(header)
	// Output: Bearer token-for-alice
}

// exampleSigner is what exampleAuthorize needs of a Signer.
type exampleSigner interface {
	Sign(ctx context.Context, claims jwt.Claims) (string, error)
}

var _ exampleSigner = (*gcpjwt.Signer)(nil)

func exampleAuthorize(ctx context.Context, signer exampleSigner, user string) (string, error) {
	text, err := signer.Sign(ctx, jwt.RegisteredClaims{Subject: user})
	return "Bearer " + text, err
}

// exampleStandIn stands in for a Signer in a test.
type exampleStandIn struct{}

func (exampleStandIn) Sign(_ context.Context, claims jwt.Claims) (string, error) {
	subject, err := claims.GetSubject()
	return "token-for-" + subject, err
}

// A service account signs with signBlob, or with signJwt if IAMType is IAMJwtType.
func ExampleNewIAMSigner() {
	_, config, stop := exampleIAM() // &gcpjwt.IAMConfig{ServiceAccount: "..."}
	defer stop()
	ctx := context.Background()

	signer, err := gcpjwt.NewIAMSigner(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	text, err := signer.Sign(ctx, jwt.MapClaims{"sub": "alice"})
	if err != nil {
		log.Fatal(err)
	}
	token, err := jwt.Parse(text, signer.Keyfunc)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.Header["alg"], token.Header["kid"] == config.KeyID())
	// Output: RS256 true
}

// The app signs with the context of a request, which lends it what App Engine wants.
func ExampleNewAppEngineSigner() {
	server, ctx, stop := exampleAppEngine()
	defer stop()

	signer := gcpjwt.NewAppEngineSigner() // once per process
	text, err := signer.Sign(ctx, jwt.MapClaims{"sub": "alice"})
	if err != nil {
		log.Fatal(err)
	}
	header := exampleHeader(text)
	fmt.Println(header["alg"], header["kid"] == server.KeyNames()[0])
	// Output: RS256 true
}

// The public keys, for a JWK Set that others verify with. Package jwks serves one.
func ExampleKMSConfig_PublicKeys() {
	server, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	cryptoKey := path.Dir(path.Dir(version))
	if _, err := server.CreateVersion(cryptoKey); err != nil {
		log.Fatal(err)
	}
	config := &gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: client}

	keys, err := config.PublicKeys(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range keys { // the newest first
		fmt.Println(key.Algorithm, key.KeyID == gcpjwt.KMSKeyID(version))
	}
	// Output:
	// ES256 false
	// ES256 true
}

// Cloud KMS signs, here with an ES256 key.
func ExampleSignedString() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	// Without a KMSClient, Application Default Credentials are used.
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, jwt.RegisteredClaims{
		Subject:   "alice",
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}

	header := exampleHeader(text)
	fmt.Println("alg", header["alg"])
	fmt.Println("kid is that of the key:", header["kid"] == config.KeyID())
	// Output:
	// alg ES256
	// kid is that of the key: true
}

// A KeyPath that names a CryptoKey, and none of its versions, signs with the
// newest ENABLED one, and the kid says which that is.
func ExampleSignedString_cryptoKey() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	config := &gcpjwt.KMSConfig{
		KeyPath:   path.Dir(path.Dir(version)), // projects/P/locations/L/keyRings/R/cryptoKeys/K
		KMSClient: client,
	}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println("signed by version 1:", exampleHeader(text)["kid"] == gcpjwt.KMSKeyID(version))
	// Output: signed by version 1: true
}

// An RSA key in Cloud KMS is made for one padding, PKCS #1 v1.5 (RS256, RS512) or
// PSS (PS256, PS512), and signs with that only.
func ExampleSignedString_rsa() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSPS256, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}

	printVerified(config, text)
	// Output: PS256 token for alice
}

// Ed25519 signs the token as it is, not a hash of it, so that Cloud KMS gets the
// whole of it, of at most 64 KiB.
func ExampleSignedString_ed25519() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSEdDSA, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}

	printVerified(config, text)
	// Output: EdDSA token for alice
}

// An HMAC key never leaves Cloud KMS: only those verify who may ask Cloud KMS,
// and each token costs them a call.
func ExampleSignedString_hmac() {
	server, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_HMAC_SHA256)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSHS256, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	server.ResetCalls()
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		log.Fatal(err)
	}

	fmt.Println("alg", exampleHeader(text)["alg"])
	fmt.Println("calls to verify:", server.Calls("MacVerify"))
	// Output:
	// alg HS256
	// calls to verify: 1
}

// ML-DSA withstands quantum computers. jwt has no such methods, so importing
// gcpjwt is what makes jwt.Parse know them.
func ExampleSignedString_mlDSA() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSMLDSA65, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}

	printVerified(config, text)
	signature := text[strings.LastIndexByte(text, '.')+1:]
	fmt.Println(base64.RawURLEncoding.DecodedLen(len(signature)), "bytes of signature")
	// Output:
	// ML-DSA-65 token for alice
	// 3309 bytes of signature
}

// A service account signs with signBlob. Google says only afterwards which of its
// keys it used; SignedString sees to it that the kid is that key's.
func ExampleSignedString_signBlob() {
	server, config, stop := exampleIAM() // &gcpjwt.IAMConfig{ServiceAccount: "..."}
	defer stop()
	ctx := gcpjwt.NewIAMContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}

	header := exampleHeader(text)
	fmt.Println("alg", header["alg"])
	fmt.Println("kid is that of Google's key:", header["kid"] == server.KeyIDs(account)[0])
	// Output:
	// alg RS256
	// kid is that of Google's key: true
}

// signJwt makes the header by itself and wants exp, if there is one, to be within
// 12 hours.
func ExampleSignedString_signJwt() {
	server, config, stop := exampleIAM() // &gcpjwt.IAMConfig{ServiceAccount: "..."}
	defer stop()
	ctx := gcpjwt.NewIAMContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, jwt.RegisteredClaims{
		Subject:   "alice",
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}

	// The header is Google's.
	header := exampleHeader(text)
	fmt.Println("alg", header["alg"])
	fmt.Println("kid is that of Google's key:", header["kid"] == server.KeyIDs(account)[0])
	// Output:
	// alg RS256
	// kid is that of Google's key: true
}

// An app in App Engine Standard signs as its own service account. There is
// nothing to configure; ctx is that of a request.
func ExampleSignedString_appEngine() {
	server, ctx, stop := exampleAppEngine()
	defer stop()

	token := jwt.NewWithClaims(gcpjwt.SigningMethodAppEngine, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}

	header := exampleHeader(text)
	fmt.Println("alg", header["alg"])
	fmt.Println("kid is that of the app's key:", header["kid"] == server.KeyNames()[0])
	// Output:
	// alg RS256
	// kid is that of the app's key: true
}

// jwt's own SignedString, whose key is the context, leaves the header as it is:
// the alias stands in it until the method is overridden, and no kid. The
// Keyfuncs accept that, other libraries don't.
func ExampleSigningMethodKMS_Sign() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSRS512, jwt.MapClaims{"sub": "alice"})
	token.Header["alg"] = "RS512" // what Override does for the whole process
	token.Header["kid"] = config.KeyID()
	text, err := token.SignedString(ctx)
	if err != nil {
		log.Fatal(err)
	}

	printVerified(config, text)
	// Output: RS512 token for alice
}

// signBlob signs what jwt's own SignedString gives it. The kid is known only
// after a signature, so that here the token has none.
func ExampleSigningMethodIAM_Sign() {
	_, config, stop := exampleIAM() // &gcpjwt.IAMConfig{ServiceAccount: "..."}
	defer stop()
	ctx := gcpjwt.NewIAMContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"sub": "alice"})
	token.Header["alg"] = "RS256"
	text, err := token.SignedString(ctx)
	if err != nil {
		log.Fatal(err)
	}

	verified, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(context.Background(), config))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("alg", verified.Header["alg"], "kid", verified.Header["kid"])
	// Output: alg RS256 kid <nil>
}

// The key for jwt's own SignedString is the context of a request.
func ExampleSigningMethodAppEngineImpl_Sign() {
	_, ctx, stop := exampleAppEngine()
	defer stop()

	token := jwt.NewWithClaims(gcpjwt.SigningMethodAppEngine, jwt.MapClaims{"sub": "alice"})
	token.Header["alg"] = "RS256"
	text, err := token.SignedString(ctx)
	if err != nil {
		log.Fatal(err)
	}

	verified, err := jwt.Parse(text, gcpjwt.AppEngineVerifyKeyfunc(ctx, true, 0))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("alg", verified.Header["alg"], "kid", verified.Header["kid"])
	// Output: alg RS256 kid <nil>
}

// Override makes jwt.Parse give tokens this method, and jwt's own SignedString
// write its RFC name, in the whole process. Keyfuncs and SignedString don't need
// it; it is for code that looks at token.Method.
func ExampleSigningMethodKMS_Override() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384)
	defer stop()
	defer gcpjwt.KMSUndoOverride(gcpjwt.SigningMethodKMSES384) // for other tests
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	fmt.Println(gcpjwt.SigningMethodKMSES384.Alg())
	gcpjwt.SigningMethodKMSES384.Override()
	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSES384, jwt.MapClaims{"sub": "alice"})
	text, err := token.SignedString(ctx)
	if err != nil {
		log.Fatal(err)
	}

	printVerified(config, text)
	// Output:
	// KMSES384
	// ES384 token for alice
}

// Who has the public key verifies without Google Cloud, with jwt's own methods or
// any other library.
func ExampleSigningMethodKMS_Verify() {
	server, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)
	text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, jwt.MapClaims{"sub": "alice"}))
	if err != nil {
		log.Fatal(err)
	}

	// gcloud kms keys versions get-public-key prints it.
	public := server.PublicKey(version).(*ecdsa.PublicKey)
	keyfunc := func(*jwt.Token) (any, error) { return public, nil }
	token, err := jwt.Parse(text, keyfunc, jwt.WithValidMethods([]string{"ES256"}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("valid:", token.Valid)

	// Without jwt's parser it is the method that verifies.
	dot := strings.LastIndexByte(text, '.')
	err = gcpjwt.SigningMethodKMSES256.Verify(text[:dot], token.Signature, public)
	fmt.Println("error:", err)
	// Output:
	// valid: true
	// error: <nil>
}

// A Keyfunc is made once, at start-up, and serves the whole process. The parser's
// options check what the signature doesn't say.
func ExampleKMSVerifyKeyfunc() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	text := exampleToken(config, jwt.MapClaims{
		"sub": "alice",
		"aud": "https://api.example.com",
		"exp": time.Now().Add(time.Hour).Unix(),
	})

	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	for _, audience := range []string{"https://api.example.com", "https://other.example.com"} {
		_, err := jwt.Parse(text, keyfunc, jwt.WithAudience(audience), jwt.WithExpirationRequired())
		fmt.Println(audience, errors.Is(err, jwt.ErrTokenInvalidAudience))
	}
	// Output:
	// https://api.example.com false
	// https://other.example.com true
}

// A Keyfunc of a CryptoKey accepts tokens signed with any ENABLED version, new
// ones too, of which it learns by their kid.
func ExampleKMSVerifyKeyfunc_cryptoKey() {
	server, client, version1, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: path.Dir(path.Dir(version1)), KMSClient: client}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}

	version2, err := server.CreateVersion(path.Dir(path.Dir(version1)))
	if err != nil {
		log.Fatal(err)
	}
	for i, version := range []string{version1, version2} {
		// A KeyPath that names a version signs with that one.
		text := exampleToken(&gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}, jwt.MapClaims{"sub": "alice"})
		_, err := jwt.Parse(text, keyfunc)
		fmt.Printf("version %d: %v\n", i+1, err)
	}
	// Output:
	// version 1: <nil>
	// version 2: <nil>
}

// The certificates of a service account verify what signBlob and signJwt sign.
// EnableCache keeps them between tokens.
func ExampleIAMVerifyKeyfunc() {
	server, config, stop := exampleIAM() // &gcpjwt.IAMConfig{ServiceAccount: "..."}
	defer stop()
	config.EnableCache = true
	ctx := gcpjwt.NewIAMContext(context.Background(), config)

	keyfunc := gcpjwt.IAMVerifyKeyfunc(context.Background(), config)
	for _, method := range []jwt.SigningMethod{gcpjwt.SigningMethodIAMBlob, gcpjwt.SigningMethodIAMJWT} {
		text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(method, jwt.MapClaims{
			"sub": "alice",
			"exp": time.Now().Add(time.Hour).Unix(),
		}))
		if err != nil {
			log.Fatal(err)
		}
		token, err := jwt.Parse(text, keyfunc, jwt.WithExpirationRequired())
		if err != nil {
			log.Fatal(err)
		}
		subject, _ := token.Claims.GetSubject()
		fmt.Println(token.Header["alg"], "token for", subject)
	}
	fmt.Println("fetched", server.Calls("certificates"), "time")
	// Output:
	// RS256 token for alice
	// RS256 token for alice
	// fetched 1 time
}

// The app verifies the tokens that it has signed itself. Elsewhere
// IAMVerifyKeyfunc does, with the app's service account.
func ExampleAppEngineVerifyKeyfunc() {
	_, ctx, stop := exampleAppEngine()
	defer stop()
	text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodAppEngine, jwt.MapClaims{"sub": "alice"}))
	if err != nil {
		log.Fatal(err)
	}

	// Certificates are kept as long as App Engine says, or else for an hour.
	keyfunc := gcpjwt.AppEngineVerifyKeyfunc(ctx, true, time.Hour)
	token, err := jwt.Parse(text, keyfunc)
	if err != nil {
		log.Fatal(err)
	}
	subject, _ := token.Claims.GetSubject()
	fmt.Println(token.Header["alg"], "token for", subject)
	// Output: RS256 token for alice
}

// One context can carry the configurations of several signers, one for each
// service.
func ExampleNewKMSContext() {
	ctx := gcpjwt.NewKMSContext(context.Background(), &gcpjwt.KMSConfig{
		KeyPath: "projects/p/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1",
	})
	ctx = gcpjwt.NewIAMContext(ctx, &gcpjwt.IAMConfig{
		ServiceAccount: "api-signer@my-project.iam.gserviceaccount.com",
	})

	_, isKMS := gcpjwt.KMSFromContext(ctx)
	_, isIAM := gcpjwt.IAMFromContext(ctx)
	fmt.Println(isKMS, isIAM)
	// Output: true true
}

// A context without the configuration that a method needs is an error.
func ExampleNewIAMContext() {
	ctx := gcpjwt.NewIAMContext(context.Background(), &gcpjwt.IAMConfig{
		ServiceAccount: "api-signer@my-project.iam.gserviceaccount.com",
	})

	_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSES256))
	fmt.Println(errors.Is(err, gcpjwt.ErrMissingConfig))
	// Output: true
}

func ExampleKMSFromContext() {
	ctx := gcpjwt.NewKMSContext(context.Background(), &gcpjwt.KMSConfig{
		KeyPath: "projects/p/locations/global/keyRings/r/cryptoKeys/k",
	})

	if config, ok := gcpjwt.KMSFromContext(ctx); ok {
		fmt.Println(config.KeyPath)
	}
	// Output: projects/p/locations/global/keyRings/r/cryptoKeys/k
}

func ExampleIAMFromContext() {
	ctx := gcpjwt.NewIAMContext(context.Background(), &gcpjwt.IAMConfig{
		ServiceAccount: "api-signer@my-project.iam.gserviceaccount.com",
	})

	if config, ok := gcpjwt.IAMFromContext(ctx); ok {
		fmt.Println(config.ServiceAccount)
	}
	// Output: api-signer@my-project.iam.gserviceaccount.com
}

// The kid that SignedString sets can be worked out from the name of the version,
// for a JWK Set say.
func ExampleKMSKeyID() {
	fmt.Println(gcpjwt.KMSKeyID("projects/p/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1"))
	// Output: b16a44b7a5b98912ee3911d505f0d4704b194c86
}

// Of a CryptoKey it is the version that signed last, so that it is known only
// after a signature.
func ExampleKMSConfig_KeyID() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	pinned := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	following := &gcpjwt.KMSConfig{KeyPath: path.Dir(path.Dir(version)), KMSClient: client}

	fmt.Println(pinned.KeyID() == gcpjwt.KMSKeyID(version), following.KeyID() == "")
	exampleToken(following, jwt.MapClaims{"sub": "alice"})
	fmt.Println(following.KeyID() == pinned.KeyID())
	// Output:
	// true true
	// true
}

// Google picks the key of a service account, so that it is known only after a
// signature.
func ExampleIAMConfig_KeyID() {
	_, config, stop := exampleIAM() // &gcpjwt.IAMConfig{ServiceAccount: "..."}
	defer stop()
	ctx := gcpjwt.NewIAMContext(context.Background(), config)

	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("that of the token:", config.KeyID() == exampleHeader(text)["kid"])
	// Output: that of the token: true
}

// App Engine picks the key of an app, so that it is known only after a signature.
func ExampleSigningMethodAppEngineImpl_KeyID() {
	_, ctx, stop := exampleAppEngine()
	defer stop()

	fmt.Printf("before: %q\n", gcpjwt.SigningMethodAppEngine.KeyID())
	token := jwt.NewWithClaims(gcpjwt.SigningMethodAppEngine, jwt.MapClaims{"sub": "alice"})
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("after: that of the token:", gcpjwt.SigningMethodAppEngine.KeyID() == exampleHeader(text)["kid"])
	// Output:
	// before: ""
	// after: that of the token: true
}

// ErrKeysUnavailable says nothing about the token: answer 503, not 401, as package
// middleware does. Look for it first.
func Example_keysUnavailable() {
	server, config, stop := exampleIAM() // &gcpjwt.IAMConfig{ServiceAccount: "..."}
	defer stop()
	ctx := gcpjwt.NewIAMContext(context.Background(), config)
	text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"sub": "alice"}))
	if err != nil {
		log.Fatal(err)
	}
	keyfunc := gcpjwt.IAMVerifyKeyfunc(context.Background(), config)

	server.Stop() // an outage
	_, err = jwt.Parse(text, keyfunc)
	switch {
	case err == nil:
		fmt.Println("200")
	case errors.Is(err, gcpjwt.ErrKeysUnavailable):
		fmt.Println("503")
	default:
		fmt.Println("401")
	}
	// Output: 503
}

// At start-up ErrKeysUnavailable may also be a key that doesn't exist or a role
// that is missing, on which it makes no sense to wait.
func Example_startUp() {
	server, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}

	server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey", "cloudkms.cryptoKeyVersions.useToVerify")
	_, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), config)
	if errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		switch code := status.Code(err); code {
		case codes.NotFound, codes.PermissionDenied:
			fmt.Println("give up:", code)
		default:
			fmt.Println("try again:", code)
		}
	}
	// Output: give up: PermissionDenied
}

// A key signs for the algorithm only that it was made for.
func Example_algorithmMismatch() {
	_, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	ctx := gcpjwt.NewKMSContext(context.Background(), config)

	// Signing, it is a mistake of the signer's.
	_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSRS256))
	fmt.Println("signing:", errors.Is(err, gcpjwt.ErrAlgorithmMismatch))

	// Verifying, it is one of the token's.
	forged, err := jwt.New(jwt.SigningMethodHS256).SignedString([]byte("the public key"))
	if err != nil {
		log.Fatal(err)
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	_, err = jwt.Parse(forged, keyfunc)
	fmt.Println("verifying:", errors.Is(err, gcpjwt.ErrAlgorithmMismatch))
	// Output:
	// signing: true
	// verifying: true
}

// Google's failures to sign keep their code: that of gRPC from Cloud KMS, that of
// HTTP from IAM Credentials.
func Example_signingFails() {
	// Without a deadline, a call goes on for up to a minute in an outage.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	kmsServer, client, version, stop := exampleKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	defer stop()
	kmsServer.Deny("cloudkms.cryptoKeyVersions.useToSign")
	kmsContext := gcpjwt.NewKMSContext(ctx, &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client})
	_, err := gcpjwt.SignedString(kmsContext, jwt.New(gcpjwt.SigningMethodKMSES256))
	fmt.Println(status.Code(err))

	iamServer, config, stop := exampleIAM() // &gcpjwt.IAMConfig{ServiceAccount: "..."}
	defer stop()
	iamServer.Deny("iam.serviceAccounts.signBlob")
	_, err = gcpjwt.SignedString(gcpjwt.NewIAMContext(ctx, config), jwt.New(gcpjwt.SigningMethodIAMBlob))
	if failure := (*googleapi.Error)(nil); errors.As(err, &failure) {
		fmt.Println(failure.Code)
	}
	// Output:
	// PermissionDenied
	// 403
}

// exampleKMS starts a Cloud KMS server that has one key with one version.
func exampleKMS(algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm) (server *testutil.KMS, client *kms.KeyManagementClient, version string, stop func()) {
	server, err := testutil.NewKMS()
	if err != nil {
		log.Fatal(err)
	}
	if client, err = server.Client(context.Background()); err != nil {
		log.Fatal(err)
	}
	if version, err = server.CreateKey("example", algorithm); err != nil {
		log.Fatal(err)
	}
	return server, client, version, func() {
		client.Close()
		server.Close()
	}
}

// exampleIAM starts an IAM Credentials server that has one account, which the
// configuration names.
func exampleIAM() (server *testutil.IAM, config *gcpjwt.IAMConfig, stop func()) {
	server, err := testutil.NewIAM()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := server.CreateAccount(account); err != nil {
		log.Fatal(err)
	}
	service, err := server.Service(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	return server, &gcpjwt.IAMConfig{
		ServiceAccount: account,
		IAMService:     service,
		Client:         server.Client(),
		CertificateURL: server.CertificateURL(),
	}, server.Close
}

// exampleAppEngine starts an App Engine API server, and returns a context like
// that of a request to an app.
func exampleAppEngine() (server *testutil.AppEngine, ctx context.Context, stop func()) {
	gcpjwt.ResetAppEngine()
	server, err := testutil.NewAppEngine()
	if err != nil {
		log.Fatal(err)
	}
	return server, server.Context(context.Background()), func() {
		server.Close()
		gcpjwt.ResetAppEngine()
	}
}

// exampleToken signs claims with an ES256 key.
func exampleToken(config *gcpjwt.KMSConfig, claims jwt.MapClaims) string {
	ctx := gcpjwt.NewKMSContext(context.Background(), config)
	text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, claims))
	if err != nil {
		log.Fatal(err)
	}
	return text
}

// exampleHeader returns the header of a token.
func exampleHeader(text string) map[string]any {
	token, _, err := jwt.NewParser().ParseUnverified(text, jwt.MapClaims{})
	if err != nil {
		log.Fatal(err)
	}
	return token.Header
}

// printVerified verifies a token and prints what it is.
func printVerified(config *gcpjwt.KMSConfig, text string) {
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	token, err := jwt.Parse(text, keyfunc)
	if err != nil {
		log.Fatal(err)
	}
	subject, err := token.Claims.GetSubject()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.Header["alg"], "token for", subject)
}
