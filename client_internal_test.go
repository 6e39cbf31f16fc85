package gcpjwt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

type fakeClient struct{ number int }

// newDefaultClient returns a default client of its own.
func newDefaultClient(make func(ctx context.Context) (*fakeClient, error)) *defaultClient[fakeClient] {
	return &defaultClient[fakeClient]{name: "Fake", make: make}
}

func TestDefaultClientOwn(t *testing.T) {
	t.Parallel()
	d := newDefaultClient(func(context.Context) (*fakeClient, error) {
		t.Error("the default client was made")
		return nil, errors.New("unreachable")
	})
	own := &fakeClient{7}
	if got, err := d.get(t.Context(), own); got != own || err != nil {
		t.Errorf("get = %v, %v, want the configuration's own client", got, err)
	}
}

// A client that could not be made is tried again by the next call, and once
// made it is kept.
func TestDefaultClientRetries(t *testing.T) {
	t.Parallel()
	errNoCredentials := errors.New("no credentials")
	tries := 0
	d := newDefaultClient(func(context.Context) (*fakeClient, error) {
		if tries++; tries < 3 {
			return nil, errNoCredentials
		}
		return &fakeClient{tries}, nil
	})
	for try := 1; try < 3; try++ {
		got, err := d.get(t.Context(), nil)
		if got != nil || !errors.Is(err, errNoCredentials) || !strings.HasPrefix(err.Error(), "gcpjwt: make the default Fake client") {
			t.Errorf("get = %v, %v, want errNoCredentials", got, err)
		}
		if tries != try {
			t.Errorf("made %d times, want %d", tries, try)
		}
	}
	for range 3 {
		if got, err := d.get(t.Context(), nil); err != nil || got.number != 3 {
			t.Errorf("get = %v, %v, want the client of the third try", got, err)
		}
	}
	if tries != 3 {
		t.Errorf("made %d times, want 3", tries)
	}
}

// Callers that come while the client is being made share it, and the one whose
// context ends doesn't wait, nor does it spoil the client for the others.
func TestDefaultClientConcurrent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		d := newDefaultClient(func(ctx context.Context) (*fakeClient, error) {
			time.Sleep(10 * time.Second) // a slow metadata server
			return &fakeClient{int(made.Add(1))}, ctx.Err()
		})

		// The first caller, whose context the client is made with, leaves.
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		var group sync.WaitGroup
		group.Go(func() {
			if got, err := d.get(impatient, nil); got != nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the impatient caller got %v, %v, want context.DeadlineExceeded", got, err)
			}
			if got := time.Since(start); got != time.Second {
				t.Errorf("the impatient caller waited for %v, want 1s", got)
			}
		})
		synctest.Wait()
		var clients [50]*fakeClient
		for i := range clients {
			group.Go(func() {
				var err error
				if clients[i], err = d.get(t.Context(), nil); err != nil {
					t.Errorf("get: %v", err)
				}
			})
		}
		group.Wait()
		for _, client := range clients {
			if client != clients[0] || client == nil {
				t.Fatal("two callers got different clients")
			}
		}
		if got := made.Load(); got != 1 {
			t.Errorf("made %d times, want 1", got)
		}
	})
}

// Without credentials there is no default client of Cloud KMS, until there are.
// Making one takes no call.
func TestDefaultKMSClientCredentials(t *testing.T) {
	t.Cleanup(func() {
		if client := defaultKMSClient.made.Swap(nil); client != nil {
			client.Close()
		}
	})
	file := filepath.Join(t.TempDir(), "credentials.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)

	// The KeyPath is that of a CryptoKey, which resolving leaves alone.
	config := &KMSConfig{KeyPath: "projects/p/locations/l/keyRings/r/cryptoKeys/k"}
	for range 2 {
		_, err := SignedString(NewKMSContext(t.Context(), config), jwt.New(SigningMethodKMSES256))
		if err == nil || !strings.Contains(err.Error(), "default Cloud KMS client") {
			t.Errorf("SignedString without credentials: %v, want an error about the default client", err)
		}
		_, err = KMSVerifyKeyfunc(t.Context(), config)
		if !errors.Is(err, ErrKeysUnavailable) || !strings.Contains(err.Error(), "default Cloud KMS client") {
			t.Errorf("KMSVerifyKeyfunc without credentials: %v, want ErrKeysUnavailable about the default client", err)
		}
	}

	const user = `{"type": "authorized_user", "client_id": "id", "client_secret": "secret", "refresh_token": "token"}`
	if err := os.WriteFile(file, []byte(user), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := config.key(t.Context())
	if err != nil || key.client == nil {
		t.Fatalf("with credentials: %v", err)
	}
	again, err := (&KMSConfig{KeyPath: config.KeyPath}).key(t.Context())
	if err != nil || again.client != key.client {
		t.Errorf("a second configuration got another client, %v", err)
	}
}
