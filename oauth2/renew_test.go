package oauth2_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	xoauth2 "golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// startSource starts a server and a source whose tokens live for lifetime, in a
// bubble of synctest.
func startSource(t *testing.T, ctx context.Context, lifetime time.Duration) (*testutil.IAM, xoauth2.TokenSource) {
	t.Helper()
	server, config := systest.StartIAM(t, testutil.InMemory())
	source, err := oauth2.NewTokenSource(gcpjwt.NewIAMContext(ctx, config), oauth2.Config{
		Method:   gcpjwt.SigningMethodIAMJWT,
		Audience: []string{audience},
		Lifetime: lifetime,
	})
	if err != nil {
		t.Fatalf("NewTokenSource: %v", err)
	}
	return server, source
}

// checkSignatures checks how many signatures the server has made or refused.
func checkSignatures(t *testing.T, server *testutil.IAM, want int) {
	t.Helper()
	if got := server.Calls("signJwt"); got != want {
		t.Errorf("the server got %d calls, want %d", got, want)
	}
}

// A token is renewed in the background ahead of its expiry, and not handed out
// shortly before it (R07).
func TestRenewal(t *testing.T) {
	for _, test := range []struct{ lifetime, renewEarly, expireEarly time.Duration }{
		{11 * time.Hour, 5 * time.Minute, 10 * time.Second},
		{time.Hour, 5 * time.Minute, 10 * time.Second},
		{time.Minute, 15 * time.Second, 6 * time.Second},
		{10 * time.Second, 2500 * time.Millisecond, time.Second},
	} {
		t.Run(test.lifetime.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, source := startSource(t, t.Context(), test.lifetime)
				first := mustToken(t, source)
				server.SetLatency(time.Second / 2)

				time.Sleep(test.lifetime - test.renewEarly - time.Nanosecond)
				if mustToken(t, source) != first {
					t.Error("the token was replaced before its renewal is due")
				}
				synctest.Wait()
				checkSignatures(t, server, 1)

				time.Sleep(time.Nanosecond)
				start := time.Now()
				if mustToken(t, source) != first || time.Since(start) != 0 {
					t.Error("a caller waited for a renewal")
				}
				time.Sleep(time.Second)
				second := mustToken(t, source)
				if second == first {
					t.Error("the token was not renewed")
				}
				checkSignatures(t, server, 2)
			})
			synctest.Test(t, func(t *testing.T) {
				server, source := startSource(t, t.Context(), test.lifetime)
				first := mustToken(t, source)
				server.SetLatency(time.Second / 2)

				time.Sleep(test.lifetime - test.expireEarly)
				if token := mustToken(t, source); token == first || time.Until(token.Expiry) <= test.expireEarly {
					t.Errorf("got a token that expires in %v", time.Until(token.Expiry))
				}
			})
		})
	}
}

// B30: the end of the constructor's context isn't the source's.
func TestConstructorContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Minute)
		server, source := startSource(t, ctx, 0)
		first := mustToken(t, source)
		cancel()

		time.Sleep(55 * time.Minute) // in the background
		mustToken(t, source)
		synctest.Wait()
		second := mustToken(t, source)
		if second == first || !second.Valid() {
			t.Errorf("got the token of %v, want a new one", second.Expiry)
		}
		time.Sleep(2 * time.Hour) // past the expiry
		if third := mustToken(t, source); !third.Valid() {
			t.Error("got an expired token")
		}
		checkSignatures(t, server, 3)
	})
}

// B30: concurrent callers at the expiry share one signature.
func TestConcurrentCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, source := startSource(t, t.Context(), 0)
		server.SetLatency(time.Second)
		time.Sleep(2 * time.Hour)
		server.ResetCalls()

		tokens := make([]*xoauth2.Token, 200)
		var callers sync.WaitGroup
		for i := range tokens {
			callers.Go(func() { tokens[i] = mustToken(t, source) })
		}
		callers.Wait()
		for _, token := range tokens {
			if token != tokens[0] || !token.Valid() {
				t.Fatal("the callers got different tokens, or an expired one")
			}
		}
		checkSignatures(t, server, 1)
	})
}

// The context's end ends the wait for the first token, and nothing is left
// behind once the signature has run into its own time limit.
func TestConstructorGivesUp(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(context.Context) (context.Context, context.CancelFunc)
		want error
	}{
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 2*time.Second)
		}, context.DeadlineExceeded},
		{"cancelled", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(2*time.Second, cancel)
			return ctx, cancel
		}, context.Canceled},
		{"own limit", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return ctx, func() {}
		}, context.DeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, config := systest.StartIAM(t, testutil.InMemory())
				server.SetLatency(time.Hour)
				ctx, cancel := test.end(t.Context())
				defer cancel()
				start := time.Now()
				source, err := oauth2.JWTAccessTokenSource(ctx, config, audience)
				if source != nil || !errors.Is(err, test.want) {
					t.Errorf("got %v, %v, want %v", source, err, test.want)
				}
				want := 2 * time.Second
				if test.name == "own limit" {
					want = 30 * time.Second
				}
				if waited := time.Since(start); waited != want {
					t.Errorf("the constructor took %v, want %v", waited, want)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// An outage is survived for as long as the token is valid, and never with an
// expired one. Nobody queues, and tokens flow again soon after its end.
func TestOutage(t *testing.T) {
	outages := map[string]func(*testutil.IAM){
		"unreachable": (*testutil.IAM).Stop,
		"503": func(server *testutil.IAM) {
			server.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				http.Error(w, "{}", http.StatusServiceUnavailable)
			})
		},
		"hangs": func(server *testutil.IAM) { server.SetLatency(time.Hour) },
	}
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, source := startSource(t, t.Context(), 0)
				first := mustToken(t, source)
				outage(server)

				for time.Until(first.Expiry) > 10*time.Second {
					start := time.Now()
					if mustToken(t, source) != first {
						t.Fatal("got another token")
					}
					if waited := time.Since(start); waited > 0 {
						t.Fatalf("a caller with a valid token waited for %v", waited)
					}
					time.Sleep(10 * time.Second)
				}
				// One caller after each back-off waits for an attempt.
				for range 10 {
					if token, err := source.Token(); err == nil {
						t.Fatalf("got a token that expires in %v", time.Until(token.Expiry))
					}
					start := time.Now()
					if _, err := source.Token(); err == nil || time.Since(start) > 0 {
						t.Fatalf("the next caller got %v after %v, want an error at once", err, time.Since(start))
					}
					time.Sleep(20 * time.Second)
				}

				server.Intercept(nil)
				server.SetLatency(0)
				if err := server.Restart(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute)
				if token := mustToken(t, source); token == first || !token.Valid() {
					t.Error("got no new token after the outage")
				}
			})
		})
	}
}

// Attempts during an outage are spaced out however many calls are made.
func TestOutageAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, source := startSource(t, t.Context(), 0)
		server.Deny("iam.serviceAccounts.signJwt")
		time.Sleep(55 * time.Minute)
		server.ResetCalls()
		for range 280 {
			mustToken(t, source)
			time.Sleep(time.Second)
		}
		if n := server.Calls("signJwt"); n < 5 || n > 15 {
			t.Errorf("the server got %d calls in 280 seconds, want some, but few", n)
		}
	})
}

// A token that expired on its way from the signer is not handed out.
func TestSlowSigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, config := systest.StartIAM(t, testutil.InMemory())
		// Only a server that has forgotten the time signs a token after its exp.
		server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(w, r)
			time.Sleep(5 * time.Second)
		})
		_, err := oauth2.NewTokenSource(gcpjwt.NewIAMContext(t.Context(), config), oauth2.Config{
			Method:   gcpjwt.SigningMethodIAMJWT,
			Lifetime: 5 * time.Second,
		})
		if !errors.Is(err, jwt.ErrTokenExpired) {
			t.Errorf("got %v, want %v", err, jwt.ErrTokenExpired)
		}
	})
}

// The times in a token are whole seconds, by which Fresh must not count beyond
// exp: a source made late in a second has a token for less than its lifetime.
func TestFractionsOfSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(900 * time.Millisecond)
		_, source := startSource(t, t.Context(), 10*time.Second)
		first := mustToken(t, source)
		if got := time.Until(first.Expiry); got != 9100*time.Millisecond {
			t.Errorf("the token expires in %v, want 9.1s", got)
		}
		time.Sleep(8100 * time.Millisecond)
		if mustToken(t, source) == first {
			t.Error("got a token that expires within a second")
		}
	})
}
