package bench

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// Accounts is a verifier for the tokens of many service accounts.
type Accounts struct {
	// Verify verifies a token of the account of that number.
	Verify func(i int) error

	// Memory is what each account takes in the cache, in bytes: two keys, as
	// Google publishes for an account, and its Keyfunc.
	Memory float64
}

// Accounts fills the cache with the certificates of n accounts. They all have the
// same keys, which makes no difference to the cache.
func (s *Suite) Accounts(n int) (*Accounts, error) {
	iam, err := testutil.NewIAM()
	if err != nil {
		return nil, err
	}
	s.onClose(iam.Close)
	if _, err = iam.CreateAccount(account); err != nil {
		return nil, err
	}
	if _, err = iam.AddKey(account); err != nil {
		return nil, err
	}
	config := gcpjwt.IAMConfig{ServiceAccount: account}
	if config.IAMService, err = iam.Service(s.ctx); err != nil {
		return nil, err
	}
	token, err := sign(gcpjwt.NewIAMContext(s.ctx, &config), gcpjwt.SigningMethodIAMBlob)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, iam.CertificateURL()+account, nil)
	if err != nil {
		return nil, err
	}
	certificates, err := send(request)
	if err != nil {
		return nil, err
	}
	url := s.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(certificates)
	}))

	parser := parser("RS256")
	keyfuncs := make([]jwt.Keyfunc, n)
	verify := func(i int) error {
		_, err := parser.Parse(token, keyfuncs[i])
		return err
	}
	before := heap()
	for i := range keyfuncs {
		keyfuncs[i] = gcpjwt.IAMVerifyKeyfunc(s.ctx, &gcpjwt.IAMConfig{
			ServiceAccount: fmt.Sprintf("signer-%d@bench.iam.gserviceaccount.com", i),
			EnableCache:    true,
			CertificateURL: url + "/",
		})
		if err := verify(i); err != nil {
			return nil, err
		}
	}
	return &Accounts{verify, (heap() - before) / float64(n)}, nil
}

// Tokens is a middleware that remembers many tokens.
type Tokens struct {
	// Request makes a request with the token of that number.
	Request func(i int) error

	// Memory is what each token takes in the cache, in bytes and in multiples of its text.
	Memory, Multiple float64
}

// Tokens fills the middleware's cache with n tokens, which have a number of further claims.
// Those without any are 500 bytes long. They are by an Ed25519 key in memory, with which they
// are soon made; how a token was verified makes no difference to the cache.
func (s *Suite) Tokens(n, furtherClaims int) (*Tokens, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	keyfunc := func(*jwt.Token) (any, error) { return public, nil }
	// A cache in shards may drop tokens before it is full, so leave it room.
	handler := remembering(keyfunc, 2*n+1000)
	requests := make([]func() error, n)
	length := 0
	for i := range requests {
		claims := moreClaims{claims(), furtherClaims}
		claims.ID = strconv.Itoa(i)
		if furtherClaims == 0 {
			claims.Subject = strings.Repeat("x", 147) // which makes 500 bytes
		}
		token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(private)
		if err != nil {
			return nil, err
		}
		requests[i] = requesting(handler, token)
		length = len(token)
	}
	before := heap()
	for _, request := range requests {
		if err := request(); err != nil {
			return nil, err
		}
	}
	memory := (heap() - before) / float64(n)
	return &Tokens{func(i int) error { return requests[i]() }, memory, memory / float64(length)}, nil
}

// moreClaims adds claims that are short to write and take much memory.
type moreClaims struct {
	jwt.RegisteredClaims
	further int
}

func (c moreClaims) MarshalJSON() ([]byte, error) {
	data, err := json.Marshal(c.RegisteredClaims)
	if err != nil {
		return nil, err
	}
	data = data[:len(data)-1]
	for i := range c.further {
		data = fmt.Appendf(data, `,"%x":%d`, i, i%10)
	}
	return append(data, '}'), nil
}

// heap returns how many bytes are in use.
func heap() float64 {
	runtime.GC()
	runtime.GC() // what the first one finalizes
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}
