package documents_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// A forger knows a good token, and what verifiers of it cost.
type forger struct {
	good    string // with the header of all good tokens
	keyfunc jwt.Keyfunc
	calls   func() int // made so far, of whatever kind
	latency func(time.Duration)
}

const forgedAudience = "https://api.example.com"

// forgeries are the columns of the table: the nth forged token of each kind.
var forgeries = []struct {
	name  string
	token func(t *testing.T, good string, n int) string
}{
	{"Unknown kid", func(t *testing.T, good string, n int) string {
		return systest.Forge(systest.Relabel(t, good, "kid", fmt.Sprintf("%040x", n)))
	}},
	{"Wrong signature", func(t *testing.T, good string, n int) string { return forged(t, good, "n", n) }},
	{"No kid", func(t *testing.T, good string, n int) string {
		return systest.Relabel(t, forged(t, good, "n", n), "kid", nil)
	}},
	{"Wrong alg", func(t *testing.T, good string, n int) string {
		algs := []string{"none", "RS384", "RS512", "HS512", "ES384", "PS256", "alg"}
		return systest.Relabel(t, good, "alg", algs[n%len(algs)])
	}},
	{"Expired", func(t *testing.T, good string, n int) string {
		return forged(t, good, "exp", time.Now().Unix()-3600-int64(n))
	}},
	{"Other audience", func(t *testing.T, good string, n int) string {
		return forged(t, good, "aud", fmt.Sprint("https://other.example.com/", n))
	}},
}

// forged returns a token with one claim changed, and so with a wrong signature.
func forged(t *testing.T, good, claim string, value any) string {
	t.Helper()
	parts := strings.Split(good, ".")
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	claims := make(map[string]any)
	if err := json.Unmarshal(raw, &claims); err != nil {
		t.Fatal(err)
	}
	claims[claim] = value
	if raw, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	parts[1] = base64.RawURLEncoding.EncodeToString(raw)
	return strings.Join(parts, ".")
}

// forgers are the rows of the table.
var forgers = map[string]func(t *testing.T) *forger{
	"Cloud KMS, version":       func(t *testing.T) *forger { return kmsForger(t, systest.P256, 1, true) },
	"Cloud KMS, CryptoKey":     func(t *testing.T) *forger { return kmsForger(t, systest.P256, 20, false) },
	"Cloud KMS HS*, version":   func(t *testing.T) *forger { return kmsForger(t, systest.HMAC256, 1, true) },
	"Cloud KMS HS*, CryptoKey": func(t *testing.T) *forger { return kmsForger(t, systest.HMAC256, 20, false) },
	"signBlob, signJwt, cache": func(t *testing.T) *forger { return iamForger(t, true) },
	"signBlob, signJwt":        func(t *testing.T) *forger { return iamForger(t, false) },
	"App Engine, cache":        func(t *testing.T) *forger { return appEngineForger(t, true) },
	"App Engine":               func(t *testing.T) *forger { return appEngineForger(t, false) },
	"JWK Set by URL": func(t *testing.T) *forger {
		return jwksForger(t, jwks.Config{URL: forgedIssuer + "/.well-known/jwks.json"})
	},
	"JWK Set by issuer": func(t *testing.T) *forger { return jwksForger(t, jwks.Config{Issuer: forgedIssuer}) },
}

const forgedIssuer = "https://issuer.example.com"

func forgedClaims() jwt.MapClaims {
	return jwt.MapClaims{"sub": "alice", "aud": forgedAudience, "exp": time.Now().Add(time.Hour).Unix()}
}

func kmsForger(t *testing.T, algorithm systest.Algorithm, versions int, pinned bool) *forger {
	server, client := start.KMS(t, testutil.InMemory())
	name := systest.Create(t, server, algorithm)
	// A list serves for long, so that it is renewed for forged tokens only.
	config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(name), KMSClient: client, KeyRefresh: time.Hour}
	for range versions - 1 {
		if _, err := server.CreateVersion(config.KeyPath); err != nil {
			t.Fatal(err)
		}
	}
	if pinned {
		config.KeyPath = name
	}
	text := systest.Sign(t, systest.KMSContext(t.Context(), client, name), systest.RowOf(algorithm).Method, forgedClaims())
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return &forger{text, keyfunc, func() int { return server.Calls("") }, server.SetLatency}
}

func iamForger(t *testing.T, cached bool) *forger {
	server, config := start.IAM(t, testutil.InMemory())
	config.EnableCache = cached
	text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMBlob, forgedClaims())
	return &forger{text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config),
		func() int { return server.Calls("") }, server.SetLatency}
}

func appEngineForger(t *testing.T, cached bool) *forger {
	server, err := testutil.NewAppEngine(testutil.InMemory())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	ctx := server.Context(t.Context())
	text := systest.Sign(t, ctx, gcpjwt.SigningMethodAppEngine, forgedClaims())
	return &forger{text, gcpjwt.AppEngineVerifyKeyfunc(ctx, cached, systest.OwnCache()),
		func() int { return server.Calls("") }, server.SetLatency}
}

// jwksForger counts the requests to the issuer, not what they cost the issuer.
func jwksForger(t *testing.T, config jwks.Config) *forger {
	server, client := start.KMS(t, testutil.InMemory())
	signer, err := gcpjwt.NewKMSSigner(t.Context(), &gcpjwt.KMSConfig{KeyPath: systest.Create(t, server, systest.P256), KMSClient: client})
	if err != nil {
		t.Fatal(err)
	}
	text, err := signer.Sign(t.Context(), forgedClaims())
	if err != nil {
		t.Fatal(err)
	}
	handler := jwks.NewDiscoveryHandler(forgedIssuer, signer, jwks.WithMaxAge(time.Hour))
	var calls, latency atomic.Int64
	config.Client = &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
		calls.Add(1)
		time.Sleep(time.Duration(latency.Load()))
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, r)
		return recorder.Result(), nil
	})}
	keyfunc, err := jwks.NewKeyfunc(t.Context(), &config)
	if err != nil {
		t.Fatal(err)
	}
	return &forger{text, keyfunc, func() int { return int(calls.Load()) }, func(d time.Duration) { latency.Store(int64(d)) }}
}

// cost says in the words of the table what forged tokens cost: a hundred in turn each
// minute, and a hundred at once.
func (f *forger) cost(t *testing.T, forge func(*testing.T, string, int) string, verify func(text string) error) string {
	const tokens = 100
	if err := verify(f.good); err != nil {
		t.Fatalf("a good token: %v", err)
	}
	made := 0
	next := func() string { made++; return forge(t, f.good, made) }
	check := func(text string) {
		if verify(text) == nil {
			t.Errorf("a forged token is good: %s", text)
		}
	}
	count := func(all func()) int {
		time.Sleep(time.Minute)
		before := f.calls()
		all()
		synctest.Wait() // for what goes on in the background
		return f.calls() - before
	}

	var inTurn [3]int
	for minute := range inTurn {
		inTurn[minute] = count(func() {
			for range tokens {
				check(next())
			}
		})
	}
	f.latency(10 * time.Millisecond)
	atOnce := count(func() {
		var all sync.WaitGroup
		for range tokens {
			text := next()
			all.Go(func() { check(text) })
		}
		all.Wait()
	})
	f.latency(0)

	each := inTurn[0]
	switch steady := inTurn == [3]int{each, each, each}; {
	case steady && each == 0 && atOnce == 0:
		return "0"
	case steady && each < tokens && atOnce == each:
		return fmt.Sprint(each, " per minute")
	case steady && each%tokens == 0 && atOnce == each:
		return fmt.Sprint(each/tokens, " per token")
	case steady && each == tokens && atOnce <= 3: // two are under way, and the next one is for all others
		return "1 per token, shared"
	}
	return fmt.Sprintf("%v a minute, and %d at once", inTurn, atOnce)
}

// TestForgeries checks SECURITY.md's table of what forged tokens cost, by counting calls.
func TestForgeries(t *testing.T) {
	atTop(t)
	parser := jwt.NewParser(jwt.WithAudience(forgedAudience), jwt.WithExpirationRequired())
	ways := []struct {
		name   string
		verify func(jwt.Keyfunc) func(text string) error
	}{
		{"jwt.Parse", func(keyfunc jwt.Keyfunc) func(string) error {
			return func(text string) error {
				_, err := parser.Parse(text, keyfunc)
				return err
			}
		}},
		{"middleware", func(keyfunc jwt.Keyfunc) func(string) error {
			verifier := middleware.NewVerifier(keyfunc, middleware.WithAudience(forgedAudience))
			return func(text string) error {
				_, err := verifier.Verify(context.Background(), text)
				return err
			}
		}},
	}
	rows := tableAfter(t, "SECURITY.md", "## What forged tokens cost")
	header := rows[0][1:]
	documented := make(map[string][]string) // by the name of the row
	for _, row := range rows[1:] {
		documented[row[0]] = row[1:]
	}
	for name, start := range forgers {
		for _, way := range ways {
			cells, both := documented[name]
			if !both {
				cells = documented[name+", "+way.name]
			}
			if len(cells) != len(forgeries) {
				t.Errorf("SECURITY.md: the table has %d cells for %s with %s, want %d", len(cells), name, way.name, len(forgeries))
				continue
			}
			for i, forgery := range forgeries {
				if header[i] != forgery.name {
					t.Fatalf("SECURITY.md: the table's column %d is %q, want %q", i+1, header[i], forgery.name)
				}
				t.Run(name+"/"+way.name+"/"+forgery.name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						f := start(t)
						if got := f.cost(t, forgery.token, way.verify(f.keyfunc)); got != cells[i] {
							t.Errorf("they cost %s, and SECURITY.md says %s", got, cells[i])
						}
					})
				})
			}
		}
	}
	for row := range documented {
		name := row
		for _, way := range ways {
			name = strings.TrimSuffix(name, ", "+way.name)
		}
		if forgers[name] == nil {
			t.Errorf("SECURITY.md: nothing measures the row %s", row)
		}
	}
}

// tableAfter returns the cells of the first table after a line, without its rule.
func tableAfter(t *testing.T, document, line string) (rows [][]string) {
	t.Helper()
	after := false
	for _, text := range read(t, document) {
		switch {
		case text == line:
			after = true
		case after && strings.HasPrefix(text, "|--"):
		case after && strings.HasPrefix(text, "|"):
			rows = append(rows, cellsOf(text))
		case len(rows) > 0:
			return rows
		}
	}
	if len(rows) < 2 {
		t.Fatalf("%s has no table after %s", document, line)
	}
	return rows
}

// cellsOf returns the cells of a table's row.
func cellsOf(line string) (cells []string) {
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		cells = append(cells, strings.TrimSpace(cell))
	}
	return cells
}
