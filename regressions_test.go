package gcpjwt_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

// A token that is signed again gets the kid of the version that then signs.
func TestSignAgainAfterRotation(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		ctx := systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey)
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, jwt.MapClaims{"n": 1})
		text, err := gcpjwt.SignedString(ctx, token)
		if err != nil {
			rig.Fatal(err)
		}
		rig.accepts(keyfunc, text)
		rig.create()
		time.Sleep(time.Hour)
		token.Claims = jwt.MapClaims{"n": 2}
		gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSES256))
		text, err = gcpjwt.SignedString(ctx, token)
		if err != nil {
			rig.Fatal(err)
		}
		if _, err := jwt.Parse(text, keyfunc); err != nil {
			rig.Errorf("second signature of the same token: %v", err)
		}
	})
}

// The same with a service account whose key has changed.
func TestSignAgainWithSignBlob(t *testing.T) {
	server, config := start.IAM(t)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"n": 1})
	if _, err := gcpjwt.SignedString(ctx, token); err != nil {
		t.Fatal(err)
	}
	kid, _ := server.AddKey(account)
	server.SetSigningKeys(account, kid)
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); err != nil {
		t.Errorf("second signature of the same token: %v", err)
	}
}

// The longest StaleIfError there is doesn't overflow.
func TestStaleIfErrorForEver(t *testing.T) {
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		config.StaleIfError = math.MaxInt64
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, text, nil)
		server.Stop()
		time.Sleep(certLifetime + time.Minute)
		certWant(t, keyfunc, text, nil)
		server.Restart()
	})
}

// An Expires in the year 1, which some servers send for never, doesn't underflow.
func TestExpiresLongAgo(t *testing.T) {
	if certFreshFor(t, http.Header{"Expires": {"Mon, 01 Jan 0001 00:00:00 GMT"}, "Age": {"5"}}, 0, time.Hour) {
		t.Error("certificates whose Expires is the year 1 are kept an hour")
	}
}

// If one version that may have signed cannot be asked, another that is disabled
// is no reason to refuse the token.
func TestMACOutageOutweighsDisabledVersion(t *testing.T) {
	server, client := start.KMS(t)
	first := systest.Create(t, server, systest.HMAC256)
	second, _ := server.CreateVersion(systest.CryptoKeyOf(first))
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(first))
	text := systest.SignBare(t, systest.KMSContext(t.Context(), client, second), gcpjwt.SigningMethodKMSHS256, "HS256")
	server.SetState(first, systest.Disabled) // not yet known
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if req, ok := req.(*kmspb.MacVerifyRequest); ok && req.Name == second {
			return nil, status.Error(codes.Internal, "no")
		}
		return next(ctx, req)
	})
	_, err := jwt.Parse(text, keyfunc)
	if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("got %v, want ErrKeysUnavailable", err)
	}
}

// The time limit is for the verification, not for each version that it asks.
func TestMACVerificationIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := start.KMS(t, testutil.InMemory())
		first := systest.Create(t, server, systest.HMAC256)
		for range 9 {
			server.CreateVersion(systest.CryptoKeyOf(first))
		}
		keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(first))
		text := systest.SignBare(t, systest.KMSContext(t.Context(), client, first), gcpjwt.SigningMethodKMSHS256, "HS256")
		systest.Hang(server, "MacVerify")
		start := time.Now()
		jwt.Parse(text, keyfunc)
		if got := time.Since(start); got > 11*time.Second {
			t.Errorf("one verification took %v", got)
		}
	})
}

// A token without kid isn't forged if a key that may have signed it cannot be had.
func TestIncompleteKeySet(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.create()
		other := systest.Client(rig, rig.server)
		text := systest.SignBare(rig, systest.KMSContext(rig.Context(), other, rig.version(2)), gcpjwt.SigningMethodKMSES256, "ES256")
		rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if req, ok := req.(*kmspb.GetPublicKeyRequest); ok && req.Name == rig.version(2) {
				return nil, status.Error(codes.Internal, "no")
			}
			return next(ctx, req)
		})
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		_, err := jwt.Parse(text, keyfunc)
		if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
			rig.Errorf("a good token without kid by a version whose key can't be read: %v", err)
		}
	})
}

// A server that repeats the decoded payload doesn't get it into an error.
func TestSignBlobEcho(t *testing.T) {
	server, config := start.IAM(t)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		var body struct{ Payload string }
		json.NewDecoder(r.Body).Decode(&body)
		raw, _ := base64.StdEncoding.DecodeString(body.Payload)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(400)
		fmt.Fprintf(w, `{"error":{"code":400,"message":%q,"status":"INVALID_ARGUMENT"}}`, "cannot sign "+string(raw))
	})
	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"ssn": "123-45-6789-secret"})
	_, err := gcpjwt.SignedString(ctx, token)
	signing, _ := token.SigningString()
	if strings.Contains(err.Error(), signing) {
		t.Errorf("the error holds the signing string: %v", err)
	}
}

// A verification doesn't wait for a public key because a signer happened to read
// the list.
func TestSignersFetchKeysForVerifiers(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.signs(1, 0)
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		rig.create()
		text := rig.by(rig.version(2))
		time.Sleep(systest.Refresh - time.Second)
		rig.signs(1, 0) // sets off the reading
		synctest.Wait()
		rig.server.SetLatency(5 * time.Second)
		rig.accepts(keyfunc, text)
	})
}

// A transport that ends its goroutine doesn't leave callers waiting.
func TestTransportEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		config := &gcpjwt.IAMConfig{ServiceAccount: account, EnableCache: true, Client: &http.Client{Transport: systest.Transport(func(*http.Request) (*http.Response, error) {
			n++
			runtime.Goexit()
			return nil, nil
		})}}
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		start := time.Now()
		jwt.Parse(certToken(t, "k"), gcpjwt.IAMVerifyKeyfunc(ctx, config))
		if d := time.Since(start); d > time.Minute {
			t.Errorf("took %v; %d fetches", d, n)
		}
	})
}

// A signer that may not read public keys goes on if it cannot even ask.
func TestSignerWithoutPublicKeysInOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := start.KMS(t, testutil.InMemory())
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

// reentrantHandler does something for each record.
type reentrantHandler struct {
	slog.Handler
	f func()
}

func (h reentrantHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h reentrantHandler) Handle(context.Context, slog.Record) error {
	h.f()
	return nil
}

// A log handler may need a token by the key that the record is about.
func TestLoggerSignsWithTheSameKey(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.create()
		rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if req, ok := req.(*kmspb.GetPublicKeyRequest); ok && req.Name == rig.version(2) {
				return nil, status.Error(codes.Internal, "no")
			}
			return next(ctx, req)
		})
		ctx, cancel := context.WithTimeout(rig.Context(), time.Hour)
		defer cancel()
		config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client}
		config.Logger = slog.New(reentrantHandler{f: func() {
			gcpjwt.SignedString(gcpjwt.NewKMSContext(ctx, config), jwt.New(gcpjwt.SigningMethodKMSES256))
		}})
		start := time.Now()
		gcpjwt.KMSVerifyKeyfunc(ctx, config)
		if d := time.Since(start); d > time.Minute {
			rig.Errorf("stuck for %v (until the context's end)", d)
		}
	})
}
