package gcpjwttest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
)

const (
	p256    = kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256
	account = "login@example.iam.gserviceaccount.com"
)

// recorder is a testing.TB that is ended without the test's being ended.
type recorder struct {
	testing.TB
	fatal string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// end returns with what f ended its test.
func end(t *testing.T, f func(t testing.TB)) string {
	r := &recorder{TB: t}
	var group sync.WaitGroup
	group.Go(func() { f(r) })
	group.Wait()
	return r.fatal
}

func signer(t testing.TB, config *gcpjwt.KMSConfig) *gcpjwt.Signer {
	t.Helper()
	s, err := gcpjwt.NewKMSSigner(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// roundTrip signs a token, verifies it and returns its kid.
func roundTrip(t testing.TB, s *gcpjwt.Signer) (kid string) {
	t.Helper()
	text, err := s.Sign(t.Context(), claims("alice"))
	if err != nil {
		t.Fatalf("Sign: %v", err)
	}
	token, err := jwt.Parse(text, s.Keyfunc, jwt.WithExpirationRequired())
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	kid, _ = token.Header["kid"].(string)
	return kid
}

// What makes no sense ends the test, with a message that says what would.
func TestMistakes(t *testing.T) {
	t.Parallel()
	unavailable := status.Error(codes.Unavailable, "x")
	for name, test := range map[string]struct {
		do   func(t testing.TB)
		want string
	}{
		"no such algorithm": {
			func(t testing.TB) { gcpjwttest.NewKMS(t).NewKey(0) },
			"gcpjwttest: the KMS server doesn't support CRYPTO_KEY_VERSION_ALGORITHM_UNSPECIFIED",
		},
		"version of another server's key": {
			func(t testing.TB) {
				gcpjwttest.NewKMS(t).NewVersion(&gcpjwt.KMSConfig{KeyPath: "projects/p/locations/l/keyRings/r/cryptoKeys/k"})
			},
			"gcpjwttest: no CryptoKey projects/p/locations/l/keyRings/r/cryptoKeys/k",
		},
		"state of a CryptoKey": {
			func(t testing.TB) {
				cloud := gcpjwttest.NewKMS(t)
				cloud.SetState(cloud.NewKey(p256).KeyPath, kmspb.CryptoKeyVersion_DISABLED)
			},
			`gcpjwttest: no CryptoKeyVersion "projects/test/locations/global/keyRings/test/cryptoKeys/key-1"; ` +
				`there are ["projects/test/locations/global/keyRings/test/cryptoKeys/key-1/cryptoKeyVersions/1"]`,
		},
		"denied role": {
			func(t testing.TB) { gcpjwttest.NewKMS(t).Deny("roles/cloudkms.signer") },
			`gcpjwttest: no permission "roles/cloudkms.signer"; there are ["cloudkms.cryptoKeyVersions.create"`,
		},
		"allowed role": {
			func(t testing.TB) { gcpjwttest.NewKMS(t).Allow("roles/cloudkms.signer") },
			`gcpjwttest: no permission "roles/cloudkms.signer"; there are [`,
		},
		"misspelt method": {
			func(t testing.TB) { gcpjwttest.NewKMS(t).Fail("asymmetricSign", unavailable) },
			`gcpjwttest: no method "asymmetricSign"; there are ["AsymmetricSign" `,
		},
		"no gRPC error": {
			func(t testing.TB) { gcpjwttest.NewKMS(t).Fail("AsymmetricSign", io.EOF) },
			"gcpjwttest: a call cannot fail with a *errors.errorString: EOF",
		},
		"no error": {
			func(t testing.TB) { gcpjwttest.NewKMS(t).Fail("AsymmetricSign", nil) },
			"gcpjwttest: a call cannot fail with a <nil>",
		},
		"count of a misspelt method": {
			func(t testing.TB) { gcpjwttest.NewKMS(t).Calls("Sign") },
			`gcpjwttest: no method "Sign"; there are [`,
		},
		"account twice": {
			func(t testing.TB) {
				cloud := gcpjwttest.NewIAM(t)
				cloud.NewAccount(account)
				cloud.NewAccount(account)
			},
			`gcpjwttest: account "` + account + `" exists`,
		},
		"rotation of nothing": {
			func(t testing.TB) { gcpjwttest.NewIAM(t).Rotate(account) },
			`gcpjwttest: no account "` + account + `"`,
		},
		"gRPC error over HTTP": {
			func(t testing.TB) { gcpjwttest.NewIAM(t).Fail("signBlob", unavailable) },
			"gcpjwttest: a call cannot fail with a *status.Error: rpc error: code = Unavailable desc = x",
		},
		"no failure": {
			func(t testing.TB) { gcpjwttest.NewIAM(t).Fail("signBlob", &googleapi.Error{Code: 200}) },
			"gcpjwttest: a call cannot fail with a *googleapi.Error",
		},
		"misspelt method of IAM": {
			func(t testing.TB) { gcpjwttest.NewIAM(t).Calls("signJWT") },
			`gcpjwttest: no method "signJWT"; there are ["certificates" "signBlob" "signJwt"]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := end(t, test.do); !strings.HasPrefix(got, test.want) {
				t.Errorf("the test ended with\n%q, want\n%q", got, test.want)
			}
		})
	}
}

// Servers know nothing of each other, whatever becomes of them.
func TestParallel(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			cloud := gcpjwttest.NewKMS(t)
			config := cloud.NewKey(p256)
			s := signer(t, config)
			for n := 1; n <= 3; n++ {
				want := gcpjwt.KMSKeyID(fmt.Sprintf("%s/cryptoKeyVersions/%d", config.KeyPath, n))
				if got := roundTrip(t, s); got != want {
					t.Errorf("version %d: kid %q, want %q", n, got, want)
				}
				cloud.NewVersion(config)
			}
			if got := cloud.Calls("AsymmetricSign"); got != 3 {
				t.Errorf("%d calls of AsymmetricSign, want 3", got)
			}
			if i%2 == 0 {
				cloud.Stop()
			}

			google := gcpjwttest.NewIAM(t)
			own, err := gcpjwt.NewIAMSigner(t.Context(), google.NewAccount(account))
			if err != nil {
				t.Fatal(err)
			}
			kid := roundTrip(t, own)
			google.Rotate(account)
			if other := roundTrip(t, own); other == kid {
				t.Errorf("kid %q before and after the rotation", kid)
			}
		})
	}
}

// With the default KeyRefresh a key behaves as in production.
func TestDefaultKeyRefresh(t *testing.T) {
	t.Parallel()
	cloud := gcpjwttest.NewKMS(t)
	config := cloud.NewKey(p256)
	config.KeyRefresh = 0
	s := signer(t, config)
	kid := roundTrip(t, s)
	cloud.NewVersion(config)
	if got := roundTrip(t, s); got != kid {
		t.Errorf("the kid is %q at once, want %q for some minutes more", got, kid)
	}
	if got := cloud.Calls("ListCryptoKeyVersions"); got != 1 {
		t.Errorf("%d calls of ListCryptoKeyVersions, want 1", got)
	}
}

// Each algorithm makes tokens that verify, MACs included.
func TestAlgorithms(t *testing.T) {
	t.Parallel()
	cloud := gcpjwttest.NewKMS(t)
	for algorithm, want := range map[kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm]string{
		p256:                                   "KMSES256",
		kmspb.CryptoKeyVersion_EC_SIGN_ED25519: "KMSEdDSA",
		kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256:   "KMSPS256",
		kmspb.CryptoKeyVersion_HMAC_SHA256:                "KMSHS256",
		kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44:          "KMSMLDSA44",
		kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256:   "KMSES256K",
		kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256: "KMSRS256",
	} {
		s := signer(t, cloud.NewKey(algorithm))
		roundTrip(t, s)
		if got := s.Method().Alg(); got != want {
			t.Errorf("%v: method %q, want %q", algorithm, got, want)
		}
	}
}

func TestKMSFail(t *testing.T) {
	t.Parallel()
	cloud := gcpjwttest.NewKMS(t)
	s := signer(t, cloud.NewKey(p256))
	cloud.Fail("AsymmetricSign", status.Error(codes.PermissionDenied, "first"))
	cloud.Fail("AsymmetricSign", status.Error(codes.Internal, "second"))
	for _, want := range []codes.Code{codes.PermissionDenied, codes.Internal, codes.OK} {
		_, err := s.Sign(t.Context(), claims("alice"))
		if status.Code(err) != want {
			t.Errorf("Sign: %v, want code %v", err, want)
		}
	}

	before := cloud.Calls("AsymmetricSign")
	cloud.Fail("AsymmetricSign", status.Error(codes.Unavailable, "not seen"))
	roundTrip(t, s)
	if got := cloud.Calls("AsymmetricSign") - before; got != 2 {
		t.Errorf("%d calls, want 2", got)
	}
	if sum := cloud.Calls(""); sum <= cloud.Calls("AsymmetricSign") {
		t.Errorf("%d calls in all", sum)
	}
}

func TestIAMFail(t *testing.T) {
	t.Parallel()
	cloud := gcpjwttest.NewIAM(t)
	config := cloud.NewAccount(account)
	for method, kind := range map[string]gcpjwt.IAMType{"signBlob": gcpjwt.IAMBlobType, "signJwt": gcpjwt.IAMJwtType} {
		config.IAMType = kind
		s, err := gcpjwt.NewIAMSigner(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		cloud.Fail(method, &googleapi.Error{Code: http.StatusTeapot, Message: "short and stout", Header: http.Header{"X-Test": {"yes"}}})
		_, err = s.Sign(t.Context(), claims("alice"))
		answer, ok := errors.AsType[*googleapi.Error](err)
		if !ok || answer.Code != http.StatusTeapot || answer.Message != "short and stout" || answer.Header.Get("X-Test") != "yes" {
			t.Errorf("%s: error %v, want that of Fail", method, err)
		}
		cloud.Fail(method, &googleapi.Error{Code: http.StatusForbidden, Body: `{"error":{"status":"NOT_FOUND"}}`})
		if _, err = s.Sign(t.Context(), claims("alice")); status.Code(err) != codes.NotFound {
			t.Errorf("%s: error %v, want that of the body", method, err)
		}
		roundTrip(t, s)

		text, err := s.Sign(t.Context(), claims("alice"))
		if err != nil {
			t.Fatal(err)
		}
		cloud.Fail("certificates", &googleapi.Error{Code: http.StatusForbidden})
		if _, err := jwt.Parse(text, s.Keyfunc); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
			t.Errorf("certificates: error %v, want %v", err, gcpjwt.ErrKeysUnavailable)
		}
		if _, err := jwt.Parse(text, s.Keyfunc); err != nil {
			t.Errorf("the certificates after that: %v", err)
		}
	}
	if got := cloud.Calls("signJwt"); got != 4 {
		t.Errorf("%d calls of signJwt, want 4", got)
	}
}

// Certificates that are kept verify in an outage, others don't.
func TestIAMOutage(t *testing.T) {
	t.Parallel()
	cloud := gcpjwttest.NewIAM(t)
	config := cloud.NewAccount(account)
	config.EnableCache = true
	s, err := gcpjwt.NewIAMSigner(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.Sign(t.Context(), claims("alice"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jwt.Parse(text, s.Keyfunc); err != nil {
		t.Fatal(err)
	}

	cloud.Stop()
	if _, err := jwt.Parse(text, s.Keyfunc); err != nil {
		t.Errorf("in the outage, with a cache: %v", err)
	}
	config.EnableCache = false
	if _, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("in the outage, without a cache: %v, want %v", err, gcpjwt.ErrKeysUnavailable)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Sign(ctx, claims("alice")); err == nil {
		t.Error("signed in the outage")
	}
	cloud.Restart()
	cloud.Rotate(account)
	roundTrip(t, s)
}

// What one test leaves in the process is no concern of the next.
func TestAppEngine(t *testing.T) {
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			app := gcpjwttest.NewAppEngine(t)
			if got := app.Calls(""); got != 0 {
				t.Errorf("%d calls before the first, want 0", got)
			}
			s := gcpjwt.NewAppEngineSigner()
			kids := make(map[string]bool)
			for range 3 {
				kids[roundTrip(t, s)] = true
				app.Rotate()
			}
			if len(kids) != 3 {
				t.Errorf("kids %v, want 3", kids)
			}
			if got := app.Calls("GetPublicCertificatesForApp"); got != 3 {
				t.Errorf("%d calls of GetPublicCertificatesForApp, want 3", got)
			}

			app.Fail("SignForApp", &googleapi.Error{Code: http.StatusTeapot, Message: "short and stout"})
			if _, err := s.Sign(t.Context(), claims("alice")); err == nil || !strings.Contains(err.Error(), "418") {
				t.Errorf("Sign: %v, want status 418", err)
			}
			text, err := s.Sign(t.Context(), claims("alice"))
			if err != nil {
				t.Fatal(err)
			}
			app.Fail("GetPublicCertificatesForApp", &googleapi.Error{Code: http.StatusInternalServerError})
			if _, err := jwt.Parse(text, s.Keyfunc); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
				t.Errorf("Parse: %v, want %v", err, gcpjwt.ErrKeysUnavailable)
			}
		})
	}
}

// What the library has to tell goes into the log of the test.
func TestLogger(t *testing.T) {
	t.Parallel()
	log := make(logOf, 10)
	config := gcpjwttest.NewKMS(loggingT{t, log}).NewKey(p256)
	signer(t, config)
	const want = "comes into use"
	select {
	case got := <-log:
		if !strings.Contains(got, want) {
			t.Errorf("the log has %q, want %q in it", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("the log has nothing, want %q", want)
	}
}

// loggingT is a test with a log of its own.
type loggingT struct {
	testing.TB
	log logOf
}

func (t loggingT) Output() io.Writer { return t.log }

type logOf chan string

func (l logOf) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
