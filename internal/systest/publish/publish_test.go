// Package publish tests published keys together with what signs by them.
package publish

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// strict is a consumer that uses a JWK Set for exactly as long as its max-age says, asks for
// no other on an unknown kid, and renews nothing early.
type strict struct {
	handler http.Handler
	keys    []jwks.Key
	until   time.Time
}

func (s *strict) verify(t *testing.T, token string) error {
	t.Helper()
	if !time.Now().Before(s.until) {
		began := time.Now()
		recorder := httptest.NewRecorder()
		s.handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		if recorder.Code != http.StatusOK {
			t.Fatalf("the handler answered %d", recorder.Code)
		}
		_, age, _ := strings.Cut(recorder.Header().Get("Cache-Control"), "max-age=")
		seconds, err := strconv.Atoi(age)
		if err != nil {
			t.Fatal(err)
		}
		if s.keys, err = jwks.Parse(recorder.Body.Bytes()); err != nil {
			t.Fatal(err)
		}
		s.until = began.Add(time.Duration(seconds) * time.Second)
	}
	_, err := jwt.Parse(token, func(token *jwt.Token) (any, error) {
		for _, key := range s.keys {
			if key.KeyID == token.Header["kid"] {
				return key.Public, nil
			}
		}
		return nil, errors.New("no such key in the set")
	})
	return err
}

// refusals rotates a CryptoKey 20 times, every two hours, and returns how many tokens three
// strict consumers verified and how many good ones they refused. The signer and the
// publisher are processes of their own.
func refusals(t *testing.T, delay time.Duration, options ...jwks.HandlerOption) (verified, refused int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const rotations, every, lifetime = 20, 2 * time.Hour, 15 * time.Minute
		server, client := systest.StartKMS(t, testutil.InMemory())
		server.SetGenerationDelay(20 * time.Second) // asynchronous, as in Cloud KMS
		version, err := server.CreateKey("key", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
		if err != nil {
			t.Fatal(err)
		}
		cryptoKey := path.Dir(path.Dir(version))
		publisherClient, err := server.Client(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer publisherClient.Close()
		logger := slog.New(slog.DiscardHandler)
		signer, err := gcpjwt.NewKMSSigner(t.Context(), &gcpjwt.KMSConfig{
			KeyPath: cryptoKey, KMSClient: client, ActivationDelay: delay, Logger: logger,
		})
		if err != nil {
			t.Fatal(err)
		}
		handler := jwks.NewHandler(&gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: publisherClient, Logger: logger}, options...)

		random := rand.New(rand.NewPCG(1, 2))
		var consumers []*strict
		for range 3 {
			consumers = append(consumers, &strict{handler: handler})
		}
		var (
			recent  []string // tokens that haven't expired
			kids    = make(map[string]bool)
			rotated = time.Now()
			retired = true
		)
		for end := time.Now().Add((rotations + 1) * every); time.Now().Before(end); {
			time.Sleep(time.Minute + time.Duration(random.Int64N(int64(30*time.Second))))
			if time.Since(rotated) >= every {
				if version, err = server.CreateVersion(cryptoKey); err != nil {
					t.Fatal(err)
				}
				rotated, retired = time.Now(), false
			}
			// Once no good token is left that the old version signed.
			if !retired && time.Since(rotated) >= delay+20*time.Second+systest.Refresh+lifetime {
				old := path.Join(cryptoKey, "cryptoKeyVersions", strconv.Itoa(number(t, version)-1))
				server.SetState(old, kmspb.CryptoKeyVersion_DISABLED)
				retired = true
			}
			token, err := signer.Sign(t.Context(), jwt.MapClaims{"sub": "strict", "exp": time.Now().Add(lifetime).Unix()})
			if err != nil {
				t.Fatal(err)
			}
			kids[systest.Header(t, token)["kid"].(string)] = true
			recent = append(recent, token)
			recent = recent[max(0, len(recent)-9):] // 14 minutes' worth at most
			for _, token := range []string{token, recent[random.IntN(len(recent))]} {
				for _, consumer := range consumers[:1+random.IntN(len(consumers))] {
					verified++
					if consumer.verify(t, token) != nil {
						refused++
					}
				}
			}
		}
		if len(kids) != rotations+1 {
			t.Errorf("%d versions signed, want %d", len(kids), rotations+1)
		}
	})
	return verified, refused
}

func number(t *testing.T, version string) int {
	t.Helper()
	n, err := strconv.Atoi(path.Base(version))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestStrictConsumers publishes each version for long enough before it signs.
func TestStrictConsumers(t *testing.T) {
	for _, test := range []struct {
		name   string
		maxAge time.Duration // 0: the default, 5 minutes
	}{
		{"the default", 0}, {"an hour", time.Hour}, {"a second", time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var options []jwks.HandlerOption
			maxAge := 5 * time.Minute
			if test.maxAge > 0 {
				maxAge = test.maxAge
				options = append(options, jwks.WithMaxAge(maxAge))
			}
			verified, refused := refusals(t, maxAge+systest.Refresh, options...)
			if refused > 0 || verified < 5000 {
				t.Errorf("%d of %d good tokens were refused in 20 rotations, want none of 5,000 at least", refused, verified)
			}
		})
	}
}

// TestStrictConsumersTooSoon shows that the rule for ActivationDelay is no caution: its
// default is too short for a set with a max-age of an hour.
func TestStrictConsumersTooSoon(t *testing.T) {
	t.Parallel()
	if verified, refused := refusals(t, systest.Refresh/2, jwks.WithMaxAge(time.Hour)); refused == 0 {
		t.Errorf("none of %d tokens was refused: the other test proves nothing", verified)
	}
}

// get returns what the handler answers.
func get(t *testing.T, handler http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	return recorder
}

// TestStartUp has 10,000 requests at once cost one list and a key for each version, and
// further ones nothing.
func TestStartUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, client := systest.StartKMS(t, testutil.InMemory())
		version, err := server.CreateKey("key", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
		if err != nil {
			t.Fatal(err)
		}
		cryptoKey := path.Dir(path.Dir(version))
		second, err := server.CreateVersion(cryptoKey)
		if err != nil {
			t.Fatal(err)
		}
		server.SetLatency(time.Second)
		handler := jwks.NewHandler(&gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: client})
		var requests sync.WaitGroup
		for range 10_000 {
			requests.Go(func() {
				if answer := get(t, handler); answer.Code != http.StatusOK {
					t.Errorf("status %d", answer.Code)
				}
			})
		}
		requests.Wait()
		for range 1000 {
			get(t, handler)
		}
		if lists, keys := server.Calls("ListCryptoKeyVersions"), server.Calls("GetPublicKey"); lists != 1 || keys != 2 {
			t.Errorf("%d lists and %d public keys were read, want 1 and 2", lists, keys)
		}
		body := get(t, handler).Body.String()
		newest, oldest := strings.Index(body, gcpjwt.KMSKeyID(second)), strings.Index(body, gcpjwt.KMSKeyID(version))
		if oldest < 0 || newest < 0 || newest > oldest {
			t.Errorf("the newest version isn't first: %s", body)
		}
		server.SetLatency(0)
		time.Sleep(time.Minute)
	})
}

// TestOutage serves the last keys for as long as a Keyfunc would, at once, and 503 beyond
// and before.
func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, client := systest.StartKMS(t, testutil.InMemory())
		version, err := server.CreateKey("key", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
		if err != nil {
			t.Fatal(err)
		}
		config := &gcpjwt.KMSConfig{KeyPath: path.Dir(path.Dir(version)), KMSClient: client, Logger: slog.New(slog.DiscardHandler)}
		handler := jwks.NewHandler(config)
		server.Stop()
		if answer := get(t, handler); answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("without keys: %d with Cache-Control %s", answer.Code, answer.Header().Get("Cache-Control"))
		}
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		first := get(t, handler)
		if first.Code != http.StatusOK {
			t.Fatalf("status %d", first.Code)
		}
		server.Stop()
		slow := 0
		for range (systest.Refresh + systest.Stale - time.Minute) / (30 * time.Second) {
			time.Sleep(30 * time.Second)
			began := time.Now()
			answer := get(t, handler)
			if answer.Code != http.StatusOK || answer.Body.String() != first.Body.String() || answer.Header().Get("ETag") != first.Header().Get("ETag") {
				t.Fatalf("in the outage: %d with %s", answer.Code, answer.Body)
			}
			if time.Since(began) > 0 {
				slow++
			}
		}
		if slow > 1 { // the one that found out
			t.Errorf("%d requests waited for Cloud KMS, which was known to be down", slow)
		}
		time.Sleep(2 * time.Minute)
		if answer := get(t, handler); answer.Code != http.StatusServiceUnavailable {
			t.Errorf("beyond the hour: %d", answer.Code)
		}
	})
}

// TestMAC publishes no MAC key, and says so without an error.
func TestMAC(t *testing.T) {
	config := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_HMAC_SHA256)
	for _, name := range []string{config.KeyPath, config.KeyPath + "/cryptoKeyVersions/1"} {
		answer := get(t, jwks.NewHandler(&gcpjwt.KMSConfig{KeyPath: name, KMSClient: config.KMSClient}))
		if answer.Code != http.StatusOK || answer.Body.String() != `{"keys":[]}` {
			t.Errorf("%s: %d with %s", name, answer.Code, answer.Body)
		}
	}
}
