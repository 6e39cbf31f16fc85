package gcpjwttest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// Each example is a test: what stands between its braces is the body of a
//
//	func TestSomething(t *testing.T) {

// login is a service that makes tokens. Its configuration comes from outside.
func login(ctx context.Context, config *gcpjwt.KMSConfig) (http.Handler, error) {
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := signer.Sign(r.Context(), claims(r.FormValue("user")))
		if err != nil {
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, text)
	}), nil
}

// api is a service that verifies tokens.
func api(keyfunc jwt.Keyfunc) http.Handler {
	return middleware.New(keyfunc, middleware.WithAudience("api"))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := middleware.TokenFromContext(r.Context())
		subject, _ := token.Claims.GetSubject()
		fmt.Fprint(w, "hello, ", subject)
	}))
}

// claims are those of a user, for an hour.
func claims(user string) jwt.Claims {
	return jwt.RegisteredClaims{
		Subject:   user,
		Audience:  jwt.ClaimStrings{"api"},
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}
}

// A service that signs is given the configuration of a key. What it makes is a token that anybody
// can verify.
func ExampleNewKMS() {
	run(func(t testing.TB) {
		config := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
		service, err := login(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		response := httptest.NewRecorder()
		service.ServeHTTP(response, httptest.NewRequest("POST", "/?user=alice", nil))

		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Parse(response.Body.String(), keyfunc, jwt.WithExpirationRequired())
		if err != nil {
			t.Fatal(err)
		}
		subject, _ := token.Claims.GetSubject()
		fmt.Println(token.Header["alg"], "for", subject)
	})
	// Output: ES256 for alice
}

// A service that verifies is given the Keyfunc of a Signer, and tokens of that Signer's.
func ExampleNewSigner() {
	run(func(t testing.TB) {
		signer := gcpjwttest.NewSigner(t)
		service := api(signer.Keyfunc)
		token, err := signer.Sign(t.Context(), claims("alice"))
		if err != nil {
			t.Fatal(err)
		}
		for _, authorization := range []string{"Bearer " + token, "Bearer x" + token, ""} {
			request := httptest.NewRequest("GET", "/", nil)
			request.Header.Set("Authorization", authorization)
			response := httptest.NewRecorder()
			service.ServeHTTP(response, request)
			fmt.Println(response.Code)
		}
	})
	// Output:
	// 200
	// 401
	// 401
}

// A rotation: the new version signs the next token, the tokens by the old one are good until that
// is disabled, and nothing is ever waited for.
func ExampleKMS_NewVersion() {
	run(func(t testing.TB) {
		cloud := gcpjwttest.NewKMS(t)
		config := cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
		signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		sign := func() string {
			text, err := signer.Sign(t.Context(), claims("alice"))
			if err != nil {
				t.Fatal(err)
			}
			return text
		}

		before := sign()
		version := cloud.NewVersion(config)
		token, err := jwt.Parse(sign(), signer.Keyfunc)
		fmt.Println("by the new version:", token.Header["kid"] == gcpjwt.KMSKeyID(version), err)
		_, err = jwt.Parse(before, signer.Keyfunc)
		fmt.Println("by the old version:", err)

		cloud.SetState(config.KeyPath+"/cryptoKeyVersions/1", kmspb.CryptoKeyVersion_DISABLED)
		_, err = jwt.Parse(before, signer.Keyfunc)
		fmt.Println("once that is disabled:", errors.Is(err, gcpjwt.ErrUnknownKeyID))
	})
	// Output:
	// by the new version: true <nil>
	// by the old version: <nil>
	// once that is disabled: true
}

// An emergency: the version that signs is disabled, and the one before it takes over.
func ExampleKMS_SetState() {
	run(func(t testing.TB) {
		cloud := gcpjwttest.NewKMS(t)
		config := cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
		signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		cloud.SetState(cloud.NewVersion(config), kmspb.CryptoKeyVersion_DISABLED)

		text, err := signer.Sign(t.Context(), claims("alice"))
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Parse(text, signer.Keyfunc)
		fmt.Println(token.Header["kid"] == gcpjwt.KMSKeyID(config.KeyPath+"/cryptoKeyVersions/1"), err)
	})
	// Output: true <nil>
}

// An outage: known keys go on to verify. Nothing can be signed, which takes until the deadline of
// the context to find out.
func ExampleKMS_Stop() {
	run(func(t testing.TB) {
		cloud := gcpjwttest.NewKMS(t)
		signer, err := gcpjwt.NewKMSSigner(t.Context(), cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256))
		if err != nil {
			t.Fatal(err)
		}
		text, err := signer.Sign(t.Context(), claims("alice"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := jwt.Parse(text, signer.Keyfunc); err != nil { // reads the public key
			t.Fatal(err)
		}

		cloud.Stop()
		_, err = jwt.Parse(text, signer.Keyfunc)
		fmt.Println("verify in the outage:", err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = signer.Sign(ctx, claims("alice"))
		fmt.Println("sign in the outage:", errors.Is(err, context.DeadlineExceeded))

		cloud.Restart()
		_, err = signer.Sign(t.Context(), claims("alice"))
		fmt.Println("sign after it:", err)
	})
	// Output:
	// verify in the outage: <nil>
	// sign in the outage: true
	// sign after it: <nil>
}

// A permission is missing: the error names the role to grant.
func ExampleKMS_Deny() {
	run(func(t testing.TB) {
		cloud := gcpjwttest.NewKMS(t)
		signer, err := gcpjwt.NewKMSSigner(t.Context(), cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256))
		if err != nil {
			t.Fatal(err)
		}
		cloud.Deny("cloudkms.cryptoKeyVersions.useToSign")
		_, err = signer.Sign(t.Context(), claims("alice"))
		fmt.Println(status.Code(err))
		fmt.Println(err)

		cloud.Allow("cloudkms.cryptoKeyVersions.useToSign")
		_, err = signer.Sign(t.Context(), claims("alice"))
		fmt.Println(err)
	})
	// Output:
	// PermissionDenied
	// gcpjwt: sign with projects/test/locations/global/keyRings/test/cryptoKeys/key-1/cryptoKeyVersions/1: grant the caller cloudkms.cryptoKeyVersions.useToSign (roles/cloudkms.signer): rpc error: code = PermissionDenied desc = Permission 'cloudkms.cryptoKeyVersions.useToSign' denied on resource 'projects/test/locations/global/keyRings/test/cryptoKeys/key-1/cryptoKeyVersions/1' (or it may not exist).
	// <nil>
}

// One call fails: the service says so, and the next request finds all well again.
func ExampleKMS_Fail() {
	run(func(t testing.TB) {
		cloud := gcpjwttest.NewKMS(t)
		service, err := login(t.Context(), cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256))
		if err != nil {
			t.Fatal(err)
		}
		cloud.Fail("AsymmetricSign", status.Error(codes.Internal, "as the test wants it"))
		for range 2 {
			response := httptest.NewRecorder()
			service.ServeHTTP(response, httptest.NewRequest("POST", "/?user=alice", nil))
			fmt.Println(response.Code)
		}
		fmt.Println(cloud.Calls("AsymmetricSign"), "calls")
	})
	// Output:
	// 503
	// 200
	// 2 calls
}

// A verifier with a client of its own knows as little of the key as one in another process.
func ExampleKMS_Client() {
	run(func(t testing.TB) {
		cloud := gcpjwttest.NewKMS(t)
		config := cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
		if _, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		elsewhere := *config
		elsewhere.KMSClient = cloud.Client()
		if _, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &elsewhere); err != nil {
			t.Fatal(err)
		}
		fmt.Println("the public key was read", cloud.Calls("GetPublicKey"), "times")
	})
	// Output: the public key was read 2 times
}

// A service account, whose key Google changes.
func ExampleNewIAM() {
	run(func(t testing.TB) {
		cloud := gcpjwttest.NewIAM(t)
		config := cloud.NewAccount("login@example.iam.gserviceaccount.com")
		config.IAMType = gcpjwt.IAMJwtType
		signer, err := gcpjwt.NewIAMSigner(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		kids := make(map[any]bool)
		for range 2 {
			text, err := signer.Sign(t.Context(), claims("alice"))
			if err != nil {
				t.Fatal(err)
			}
			token, err := jwt.Parse(text, signer.Keyfunc)
			if err != nil {
				t.Fatal(err)
			}
			kids[token.Header["kid"]] = true
			cloud.Rotate("login@example.iam.gserviceaccount.com")
		}
		fmt.Println(len(kids), "keys,", cloud.Calls("signJwt"), "signatures")

		cloud.Fail("signJwt", &googleapi.Error{Code: http.StatusForbidden, Message: "as the test wants it"})
		_, err = signer.Sign(t.Context(), claims("alice"))
		fmt.Println(err)
	})
	// Output:
	// 2 keys, 2 signatures
	// gcpjwt: signJwt as login@example.iam.gserviceaccount.com: grant the caller iam.serviceAccounts.signJwt (roles/iam.serviceAccountTokenCreator) on that account: googleapi: Error 403: as the test wants it
}

// An App Engine app needs no configuration: the process is the app until the test ends.
func ExampleNewAppEngine() {
	run(func(t testing.TB) {
		app := gcpjwttest.NewAppEngine(t)
		signer := gcpjwt.NewAppEngineSigner()
		for range 2 {
			text, err := signer.Sign(t.Context(), claims("alice"))
			if err != nil {
				t.Fatal(err)
			}
			token, err := jwt.Parse(text, signer.Keyfunc)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println(token.Header["alg"])
			app.Rotate()
		}
	})
	// Output:
	// RS256
	// RS256
}
