package gcpjwt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

// certLifetime is what the server states in these tests. Certificates are
// renewed in the background from certRenewal on.
const (
	certLifetime = time.Hour
	certRenewal  = certLifetime - 5*time.Minute
)

// certBubble runs f in a bubble with a server whose account's certificates are
// cached, and a token of that account.
func certBubble(t *testing.T, f func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server, config := start.IAM(t, testutil.InMemory())
		server.SetCertificateHeader(http.Header{"Cache-Control": {fmt.Sprintf("max-age=%d", int(certLifetime/time.Second))}})
		config.EnableCache = true
		text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
		f(t, server, config, text)
		server.SetLatency(0)
		server.Intercept(nil)
		time.Sleep(time.Hour) // fetches under way come to their end
	})
}

// certWant checks what comes of a token, and that it takes no time.
func certWant(t *testing.T, keyfunc jwt.Keyfunc, text string, want error) {
	t.Helper()
	certWantAfter(t, keyfunc, text, want, 0)
}

func certWantAfter(t *testing.T, keyfunc jwt.Keyfunc, text string, want error, took time.Duration) {
	t.Helper()
	began := time.Now()
	if _, err := jwt.Parse(text, keyfunc); !errors.Is(err, want) {
		t.Errorf("Parse: got %v, want %v", err, want)
	}
	if got := time.Since(began); got != took {
		t.Errorf("Parse took %v, want %v", got, took)
	}
}

// certWantFetches checks the number of requests so far.
func certWantFetches(t *testing.T, server *testutil.IAM, want int) {
	t.Helper()
	synctest.Wait()
	if got := server.Calls("certificates"); got != want {
		t.Errorf("%d requests for certificates, want %d", got, want)
	}
}

// certForged is a token as a Keyfunc gets it, whose kid names no key.
func certForged(kid string) *jwt.Token {
	return &jwt.Token{Method: jwt.SigningMethodRS256, Header: map[string]any{"alg": "RS256", "kid": kid}}
}

func certRandomKeyID() string { return fmt.Sprintf("%020x%020x", rand.Uint64(), rand.Uint64()) }

func TestCacheKeepsCertificates(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		for range 100 {
			certWant(t, keyfunc, text, nil)
			time.Sleep(certRenewal / 101)
		}
		certWantFetches(t, server, 1)
	})
}

func TestCacheIsOptIn(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		config.EnableCache = false
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		for range 5 {
			certWant(t, keyfunc, text, nil)
		}
		certWantFetches(t, server, 5)

		// An unknown kid is worth no second look at what was fetched for it.
		if _, err := keyfunc(certForged(certRandomKeyID())); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
			t.Errorf("got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
		}
		certWantFetches(t, server, 6)
	})
}

// B19: unknown kids cost one request in a minute, however many there are.
func TestCacheUnknownKeyIDs(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		forge := func(n int) {
			for range n {
				if _, err := keyfunc(certForged(certRandomKeyID())); !errors.Is(err, gcpjwt.ErrUnknownKeyID) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
					t.Fatalf("got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
				}
			}
		}
		forge(1000)
		certWantFetches(t, server, 2)
		time.Sleep(time.Minute - 1)
		forge(1000)
		certWantFetches(t, server, 2)
		time.Sleep(time.Nanosecond)
		forge(1000)
		certWantFetches(t, server, 3)
		certWant(t, keyfunc, text, nil)
	})
}

// B19 with all of them at once, on a cold cache and on a warm one.
func TestCacheUnknownKeyIDsAtOnce(t *testing.T) {
	t.Parallel()
	for _, warm := range []bool{false, true} {
		t.Run(fmt.Sprintf("warm %v", warm), func(t *testing.T) {
			t.Parallel()
			certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
				keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
				if warm {
					certWant(t, keyfunc, text, nil)
				}
				server.SetLatency(time.Second)
				var callers sync.WaitGroup
				for range 10_000 {
					callers.Go(func() {
						if _, err := keyfunc(certForged(certRandomKeyID())); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
							t.Errorf("got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
						}
					})
				}
				callers.Wait()
				if got := server.Calls("certificates"); got > 2 {
					t.Errorf("%d requests, want 2 at most", got)
				}
			})
		})
	}
}

// Nobody chooses a kid that long, so it isn't worth a request.
func TestCacheImplausibleKeyIDs(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, text, nil)
		for _, kid := range []string{"", strings.Repeat("a", 257), strings.Repeat("a", 64<<10)} {
			_, err := keyfunc(certForged(kid))
			if !errors.Is(err, gcpjwt.ErrUnknownKeyID) || len(err.Error()) > 300 {
				t.Errorf("kid of %d bytes: got %v, want a short %v", len(kid), err, gcpjwt.ErrUnknownKeyID)
			}
		}
		certWantFetches(t, server, 1)
	})
}

// B20: a new key is learnt from its first token, and a withdrawn one is
// forgotten by that.
func TestCacheRotation(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, oldText string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, oldText, nil)
		certWantFetches(t, server, 1)

		oldKid := server.KeyIDs(account)[0]
		kid, err := server.AddKey(account)
		if err != nil {
			t.Fatal(err)
		}
		server.SetSigningKeys(account, kid)
		server.RemoveKey(account, oldKid)
		text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
		certWant(t, keyfunc, text, nil)
		certWantFetches(t, server, 2)
		certWant(t, keyfunc, oldText, gcpjwt.ErrUnknownKeyID)
		certWantFetches(t, server, 2)
	})
}

// B20 where the answer to a renewal under way is older than the new key: it is
// no reason to refuse the key for a minute.
func TestCacheRotationDuringRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := certJSON(t, map[string]any{"old": certPublicKey(t, certKey().Public())})
		o := &certOrigin{body: old, header: http.Header{"Cache-Control": {"max-age=3600"}}}
		config := o.config()
		config.EnableCache = true
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, certToken(t, "old"), nil)
		time.Sleep(certRenewal)
		o.set(func(o *certOrigin) { o.latency = time.Second })
		certWant(t, keyfunc, certToken(t, "old"), nil) // sets off the renewal
		synctest.Wait()
		o.set(func(o *certOrigin) { o.body = strings.Replace(old, "old", "new", 1) })
		certWantAfter(t, keyfunc, certToken(t, "new"), nil, 2*time.Second)
		if got := o.fetches(); got != 3 {
			t.Errorf("%d requests, want 3", got)
		}
	})
}

// A withdrawn key is forgotten with the next renewal at the latest.
func TestCacheForgetsWithdrawnKeys(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, oldText string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, oldText, nil)
		oldKid := server.KeyIDs(account)[0]
		if _, err := server.AddKey(account); err != nil {
			t.Fatal(err)
		}
		server.RemoveKey(account, oldKid)
		time.Sleep(certLifetime)
		certWant(t, keyfunc, oldText, gcpjwt.ErrUnknownKeyID)
	})
}

// B27: a cold cache is filled by one request, for any number of callers.
func TestCacheOneFetch(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{50, 2000} {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			t.Parallel()
			certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
				server.SetLatency(time.Second)
				var running sync.WaitGroup
				for range callers {
					running.Go(func() {
						// A Keyfunc for each request is as good as one for all.
						certWantAfter(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), config), text, nil, time.Second)
					})
				}
				running.Wait()
				certWantFetches(t, server, 1)
			})
		})
	}
}

// B27: an account that hangs is no matter to others.
func TestCacheAccountsAreIndependent(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		const hanging = "hanging@test.iam.gserviceaccount.com"
		if _, err := server.CreateAccount(hanging); err != nil {
			t.Fatal(err)
		}
		server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.HasSuffix(r.URL.Path, hanging) {
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		})
		other := *config
		other.ServiceAccount = hanging
		var stuck sync.WaitGroup
		for range 100 {
			stuck.Go(func() {
				certWantAfter(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), &other), text, gcpjwt.ErrKeysUnavailable, 10*time.Second)
			})
		}
		synctest.Wait()
		certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), config), text, nil)
		stuck.Wait()
		certWantFetches(t, server, 2)
	})
}

// A verifier in use never waits: certificates are renewed before they expire.
func TestCacheRenewsInTheBackground(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, text, nil)
		server.SetLatency(9 * time.Second)
		for began := time.Now(); time.Since(began) < 10*certLifetime; time.Sleep(time.Minute) {
			certWant(t, keyfunc, text, nil)
		}
		if got := server.Calls("certificates"); got < 10 || got > 12 {
			t.Errorf("%d requests in 10 lifetimes, want 11 or so", got)
		}
	})
	// A renewed set is used: that is what renewing is for.
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, text, nil)
		time.Sleep(certRenewal - 1)
		certWant(t, keyfunc, text, nil)
		certWantFetches(t, server, 1)
		time.Sleep(time.Nanosecond)
		server.RemoveKey(account, server.KeyIDs(account)[0])
		if _, err := server.AddKey(account); err != nil {
			t.Fatal(err)
		}
		certWant(t, keyfunc, text, nil)
		certWantFetches(t, server, 2)
		certWant(t, keyfunc, text, gcpjwt.ErrUnknownKeyID)
	})
}

// Keys expire during an outage: they serve for StaleIfError, and come back when
// the endpoint does.
func TestCacheStaleIfError(t *testing.T) {
	t.Parallel()
	tests := []struct {
		configured, want time.Duration
	}{
		{0, time.Hour},
		{10 * time.Minute, 10 * time.Minute},
		{30 * time.Hour, 30 * time.Hour},
		{-1, 0},
		{-time.Hour, 0},
	}
	for _, test := range tests {
		t.Run(test.configured.String(), func(t *testing.T) {
			t.Parallel()
			certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
				config.StaleIfError = test.configured
				keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
				certWant(t, keyfunc, text, nil)
				server.Stop()

				time.Sleep(certLifetime - 1)
				certWant(t, keyfunc, text, nil)
				time.Sleep(time.Nanosecond)
				if test.want > 0 {
					certWant(t, keyfunc, text, nil)
					time.Sleep(test.want - 1)
					certWant(t, keyfunc, text, nil)
					time.Sleep(time.Nanosecond)
				}
				certWant(t, keyfunc, text, gcpjwt.ErrKeysUnavailable)
				time.Sleep(time.Hour)
				certWant(t, keyfunc, text, gcpjwt.ErrKeysUnavailable)

				if err := server.Restart(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute) // the back-off's upper bound
				certWant(t, keyfunc, text, nil)
				certWantFetches(t, server, 2)
			})
		})
	}
}

// An outage is found out by one caller; the others don't queue, and what is
// left of the endpoint isn't run over.
func TestCacheColdOutage(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		server.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			http.Error(w, "down", http.StatusServiceUnavailable)
		})
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, text, gcpjwt.ErrKeysUnavailable)

		// Attempts take long now, of which only those who make them take notice.
		server.SetLatency(5 * time.Second)
		waited, refused := 0, 0
		for range 15 * 60 {
			time.Sleep(time.Second)
			var callers sync.WaitGroup
			var mu sync.Mutex
			for range 10 {
				callers.Go(func() {
					began := time.Now()
					_, err := jwt.Parse(text, keyfunc)
					if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Errorf("got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
					}
					mu.Lock()
					defer mu.Unlock()
					if time.Since(began) > 0 {
						waited++
					} else {
						refused++
					}
				})
			}
			callers.Wait()
		}
		// 100 ms, 200 ms and so on up to a minute, after each attempt.
		got := server.Calls("certificates")
		if got > 40 {
			t.Errorf("%d requests in a quarter of an hour and more, want one a minute or so", got)
		}
		if waited != got-1 || refused < 8_000 {
			t.Errorf("%d callers waited and %d didn't, want one for each of %d requests", waited, refused, got-1)
		}

		server.Intercept(nil)
		server.SetLatency(0)
		time.Sleep(time.Minute)
		certWant(t, keyfunc, text, nil)
		certWant(t, keyfunc, text, nil)
		certWantFetches(t, server, got+1)
	})
}

// An unknown kid in an outage may name a new key, so the token isn't bad yet.
func TestCacheUnknownKeyIDInAnOutage(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		certWant(t, keyfunc, text, nil)
		server.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			http.Error(w, "down", http.StatusServiceUnavailable)
		})
		for range 1000 {
			if _, err := keyfunc(certForged(certRandomKeyID())); !errors.Is(err, gcpjwt.ErrKeysUnavailable) || !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
				t.Fatalf("got %v, want %v and %v", err, gcpjwt.ErrKeysUnavailable, gcpjwt.ErrUnknownKeyID)
			}
		}
		certWantFetches(t, server, 2)
		certWant(t, keyfunc, text, nil)
	})
}

// A caller leaves when its context ends, and the fetch goes on for the others.
func TestCacheCallersLeave(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		server.SetLatency(5 * time.Second)
		var callers sync.WaitGroup
		for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
			ctx, cancel := context.WithCancel(t.Context())
			if want == context.Canceled { //nolint:errorlint // one of two values
				time.AfterFunc(time.Second, cancel)
			} else {
				ctx, cancel = context.WithTimeout(ctx, time.Second)
			}
			defer cancel()
			callers.Go(func() {
				certWantAfter(t, gcpjwt.IAMVerifyKeyfunc(ctx, config), text, want, time.Second)
			})
		}
		callers.Go(func() {
			time.Sleep(2 * time.Second)
			certWantAfter(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), config), text, nil, 3*time.Second)
		})
		callers.Wait()
		certWantFetches(t, server, 1)
	})
}

// Certificates are the process's: equal configurations share them, whoever made
// them, and others don't.
func TestCacheSharing(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(server *testutil.IAM, config *gcpjwt.IAMConfig)
		shared bool
	}{
		{"equal", func(*testutil.IAM, *gcpjwt.IAMConfig) {}, true},
		{"other signing fields", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) {
			c.IAMService, c.IAMType, c.Delegates = nil, gcpjwt.IAMJwtType, []string{"a@b"}
		}, true},
		{"other logger", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.Logger = slog.New(slog.DiscardHandler) }, true},
		{"StaleIfError spelt out", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.StaleIfError = time.Hour }, true},
		{"other client", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { client := *c.Client; c.Client = &client }, false},
		{"other URL", func(s *testutil.IAM, c *gcpjwt.IAMConfig) {
			c.CertificateURL = s.URL() + "/service_accounts/v1/metadata/x509/"
		}, false},
		{"without cache", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.EnableCache = false }, false},
		{"other CacheExpiration", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.CacheExpiration = time.Minute }, false},
		{"other StaleIfError", func(_ *testutil.IAM, c *gcpjwt.IAMConfig) { c.StaleIfError = -1 }, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
				certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), config), text, nil)
				other := *config
				test.change(server, &other)
				certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), &other), text, nil)
				want := 2
				if test.shared {
					want = 1
				}
				certWantFetches(t, server, want)
			})
		})
	}

	t.Run("other account", func(t *testing.T) {
		t.Parallel()
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			const name = "other@test.iam.gserviceaccount.com"
			if _, err := server.CreateAccount(name); err != nil {
				t.Fatal(err)
			}
			certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), config), text, nil)
			other := *config
			other.ServiceAccount = name
			certWant(t, gcpjwt.IAMVerifyKeyfunc(t.Context(), &other), text, gcpjwt.ErrUnknownKeyID)
		})
	})
}

// The logger is told of what no caller sees, and of nothing else.
func TestCacheLogger(t *testing.T) {
	t.Parallel()
	outage := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		http.Error(w, "down", http.StatusServiceUnavailable)
	}
	start := func(config *gcpjwt.IAMConfig) *bytes.Buffer {
		log := new(bytes.Buffer) // a handler holds a lock while it writes
		config.Logger = slog.New(slog.NewTextHandler(log, nil))
		return log
	}
	t.Run("in the background", func(t *testing.T) {
		t.Parallel()
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			log := start(config)
			keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
			certWant(t, keyfunc, text, nil)
			server.Intercept(outage)
			time.Sleep(certRenewal)
			certWant(t, keyfunc, text, nil)
			synctest.Wait()
			if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, account) || !strings.Contains(got, "503") {
				t.Errorf("log %q, want one line with the account and the status", got)
			}
		})
	})
	t.Run("seen by callers", func(t *testing.T) {
		t.Parallel()
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			log := start(config)
			server.Intercept(outage)
			keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
			certWant(t, keyfunc, text, gcpjwt.ErrKeysUnavailable)
			server.Intercept(nil)
			time.Sleep(time.Minute)
			certWant(t, keyfunc, text, nil)
			server.Intercept(outage)
			if _, err := keyfunc(certForged(certRandomKeyID())); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
				t.Errorf("an unknown kid: got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
			}
			synctest.Wait()
			if got := log.String(); got != "" {
				t.Errorf("log %q, want nothing that callers saw", got)
			}
		})
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
			certWant(t, keyfunc, text, nil)
			server.Intercept(outage)
			time.Sleep(certLifetime)
			certWant(t, keyfunc, text, nil)
		})
	})
}

// A response without lifetime and no CacheExpiration isn't kept, nor does it
// serve in an outage.
func TestCacheWithoutLifetime(t *testing.T) {
	t.Parallel()
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		server.SetCertificateHeader(http.Header{})
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		for range 3 {
			certWant(t, keyfunc, text, nil)
		}
		certWantFetches(t, server, 3)
		server.Stop()
		certWant(t, keyfunc, text, gcpjwt.ErrKeysUnavailable)
	})
	certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
		server.SetCertificateHeader(http.Header{})
		config.CacheExpiration = time.Minute
		keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
		for range 3 {
			certWant(t, keyfunc, text, nil)
		}
		certWantFetches(t, server, 1)
		time.Sleep(time.Minute)
		certWant(t, keyfunc, text, nil)
		certWantFetches(t, server, 2)
	})
}

// A verification with warm keys allocates no more than one with a key at hand.
func TestCacheHitAllocatesNothing(t *testing.T) {
	server, config := start.IAM(t)
	config.EnableCache = true
	text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
	key := any(server.PublicKey(account, server.KeyIDs(account)[0]))
	allocations := func(keyfunc jwt.Keyfunc) float64 {
		return testing.AllocsPerRun(200, func() {
			if _, err := jwt.Parse(text, keyfunc); err != nil {
				t.Fatal(err)
			}
		})
	}
	want := allocations(func(*jwt.Token) (any, error) { return key, nil })
	if got := allocations(gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); got > want {
		t.Errorf("%v allocations, want %v as with a key at hand", got, want)
	}
	if got := server.Calls("certificates"); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}

	// The Keyfunc on its own tells more exactly than the whole of Parse.
	token, _, err := jwt.NewParser().ParseUnverified(text, jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
	if got := testing.AllocsPerRun(200, func() { _, _ = keyfunc(token) }); got != 0 {
		t.Errorf("the Keyfunc makes %v allocations, want none", got)
	}
}

// The longest StaleIfError there is doesn't overflow.
func TestCacheStaleIfErrorForEver(t *testing.T) {
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

// A transport that ends its goroutine doesn't leave callers waiting.
func TestCacheTransportEndsItsGoroutine(t *testing.T) {
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
