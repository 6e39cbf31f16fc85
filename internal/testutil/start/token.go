package start

import (
	"crypto"
	"testing"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// Token starts a token server without clients.
func Token(t testing.TB, opts ...testutil.Option) *testutil.TokenServer {
	t.Helper()
	server, err := testutil.NewTokenServer(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// TokenClient describes Account, with its keys on google, as a client of a token
// server. The caller may change it.
func TokenClient(google *testutil.IAM) testutil.TokenClient {
	return testutil.TokenClient{
		ID:         Account,
		Algorithms: []string{"RS256"},
		Scopes:     []string{"read", "write"},
		Key: func(kid string) crypto.PublicKey {
			if key := google.PublicKey(Account, kid); key != nil {
				return key
			}
			return nil
		},
	}
}
