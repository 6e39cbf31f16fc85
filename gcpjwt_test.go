package gcpjwt_test

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"
	"google.golang.org/appengine/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // which configurations without a Logger tell
	log.SetOutput(os.Stderr)                       // and which would swallow what examples say
	goleak.VerifyTestMain(m)
}

// account is the service account that most tests sign as.
const account = systest.Account

// An iamSigner is a signer whose keys Google holds and rotates, with all that a
// test wants to do to it.
type iamSigner struct {
	method  jwt.SigningMethod
	ctx     context.Context // carries the configuration
	keyfunc jwt.Keyfunc

	calls          func() int // signatures asked for so far
	latency        func(time.Duration)
	keyIDs         func() []string
	publicKey      func(kid string) *rsa.PublicKey
	addKey         func() (kid string, err error)
	setSigningKeys func(kids ...string)
	beforeSigning  func(f func()) // has f called before each signature
	lastKeyID      func() string
}

// iamSigners are the ways to start one. The App Engine app is one for the
// process, so tests that go through all of them don't run in parallel.
var iamSigners = []struct {
	name  string
	start func(t testing.TB, opts ...testutil.Option) *iamSigner
}{
	{"signBlob", func(t testing.TB, opts ...testutil.Option) *iamSigner {
		return iamStart(t, gcpjwt.SigningMethodIAMBlob, "signBlob", opts)
	}},
	{"signJwt", func(t testing.TB, opts ...testutil.Option) *iamSigner {
		return iamStart(t, gcpjwt.SigningMethodIAMJWT, "signJwt", opts)
	}},
	{"App Engine", aeStart},
}

func iamStart(t testing.TB, method jwt.SigningMethod, rpc string, opts []testutil.Option) *iamSigner {
	t.Helper()
	server, config := systest.StartIAM(t, opts...)
	return &iamSigner{
		method:         method,
		ctx:            gcpjwt.NewIAMContext(context.Background(), config),
		keyfunc:        gcpjwt.IAMVerifyKeyfunc(context.Background(), config),
		calls:          func() int { return server.Calls(rpc) },
		latency:        server.SetLatency,
		keyIDs:         func() []string { return server.KeyIDs(account) },
		publicKey:      func(kid string) *rsa.PublicKey { return server.PublicKey(account, kid) },
		addKey:         func() (string, error) { return server.AddKey(account) },
		setSigningKeys: func(kids ...string) { server.SetSigningKeys(account, kids...) },
		beforeSigning: func(f func()) {
			server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.HasSuffix(r.URL.Path, ":"+rpc) {
					f()
				}
				next.ServeHTTP(w, r)
			})
		},
		lastKeyID: config.KeyID,
	}
}

// iamHeader returns the header of a token as a verifier sees it.
func iamHeader(t testing.TB, text string) map[string]any {
	t.Helper()
	encoded, _, _ := strings.Cut(text, ".")
	var header map[string]any
	data, err := base64.RawURLEncoding.DecodeString(encoded)
	if err == nil {
		err = json.Unmarshal(data, &header)
	}
	if err != nil {
		t.Fatalf("header of %s: %v", text, err)
	}
	return header
}

// iamSignedBy reports whether a token carries an RS256 signature by a key. It
// shares no code with what is tested.
func iamSignedBy(text string, key *rsa.PublicKey) bool {
	i := strings.LastIndexByte(text, '.')
	if i < 0 || key == nil {
		return false
	}
	signature, err := base64.RawURLEncoding.DecodeString(text[i+1:])
	digest := sha256.Sum256([]byte(text[:i]))
	return err == nil && rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature) == nil
}

func TestContexts(t *testing.T) {
	t.Parallel()
	iam, kms := &gcpjwt.IAMConfig{ServiceAccount: account}, &gcpjwt.KMSConfig{KeyPath: "x"}

	ctx := gcpjwt.NewKMSContext(gcpjwt.NewIAMContext(t.Context(), iam), kms)
	if got, ok := gcpjwt.IAMFromContext(ctx); got != iam || !ok {
		t.Errorf("IAMFromContext: got %v, %v, want the configuration put in", got, ok)
	}
	if got, ok := gcpjwt.KMSFromContext(ctx); got != kms || !ok {
		t.Errorf("KMSFromContext: got %v, %v, want the configuration put in", got, ok)
	}

	for name, ctx := range map[string]context.Context{
		"empty": t.Context(),
		"nil":   gcpjwt.NewKMSContext(gcpjwt.NewIAMContext(t.Context(), nil), nil),
	} {
		if got, ok := gcpjwt.IAMFromContext(ctx); got != nil || ok {
			t.Errorf("%s: IAMFromContext: got %v, %v, want nil, false", name, got, ok)
		}
		if got, ok := gcpjwt.KMSFromContext(ctx); got != nil || ok {
			t.Errorf("%s: KMSFromContext: got %v, %v, want nil, false", name, got, ok)
		}
	}
}

func TestErrorsAreDistinct(t *testing.T) {
	t.Parallel()
	all := []error{
		gcpjwt.ErrMissingConfig, gcpjwt.ErrInvalidConfig, gcpjwt.ErrAlgorithmMismatch, gcpjwt.ErrIntegrity,
		gcpjwt.ErrUnknownKeyID, gcpjwt.ErrKeysUnavailable, gcpjwt.ErrSigningStringChanged,
	}
	for i, err := range all {
		if !strings.HasPrefix(err.Error(), "gcpjwt: ") {
			t.Errorf("%q doesn't say whose error it is", err)
		}
		for _, other := range all[:i] {
			if errors.Is(err, other) || err.Error() == other.Error() {
				t.Errorf("%q and %q cannot be told apart", err, other)
			}
		}
	}
}

func TestSignedStringRefuses(t *testing.T) {
	server := gcpjwttest.NewIAM(t)
	config := server.NewAccount(account)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	withKeyID := func(method jwt.SigningMethod, kid any) *jwt.Token {
		token := jwt.New(method)
		token.Header["kid"] = kid
		return token
	}
	tests := []struct {
		name  string
		ctx   context.Context
		token *jwt.Token
		want  error // nil: any
	}{
		{"nil token", ctx, nil, jwt.ErrTokenMalformed},
		{"nil method", ctx, &jwt.Token{Header: map[string]any{}, Claims: jwt.MapClaims{}}, jwt.ErrInvalidKeyType},
		{"stock RS256", ctx, jwt.New(jwt.SigningMethodRS256), jwt.ErrInvalidKeyType},
		{"stock HS256", ctx, jwt.New(jwt.SigningMethodHS256), jwt.ErrInvalidKeyType},
		{"stock none", ctx, jwt.New(jwt.SigningMethodNone), jwt.ErrInvalidKeyType},
		{"signBlob without configuration", t.Context(), jwt.New(gcpjwt.SigningMethodIAMBlob), gcpjwt.ErrMissingConfig},
		{"signJwt without configuration", t.Context(), jwt.New(gcpjwt.SigningMethodIAMJWT), gcpjwt.ErrMissingConfig},
		{"KMS with a configuration for IAM", ctx, jwt.New(gcpjwt.SigningMethodKMSES256), gcpjwt.ErrMissingConfig},
		{"nil configuration", gcpjwt.NewIAMContext(ctx, nil), jwt.New(gcpjwt.SigningMethodIAMBlob), gcpjwt.ErrMissingConfig},
		{"kid 42", ctx, withKeyID(gcpjwt.SigningMethodIAMBlob, 42), nil},
		{"kid empty", ctx, withKeyID(gcpjwt.SigningMethodIAMBlob, ""), nil},
		{"kid nil", ctx, withKeyID(gcpjwt.SigningMethodIAMBlob, nil), nil},
		{"claims that aren't JSON", ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"f": func() {}}), nil},
		{"claims that aren't JSON, signJwt", ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, jwt.MapClaims{"f": func() {}}), nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := gcpjwt.SignedString(test.ctx, test.token)
			if err == nil || got != "" {
				t.Fatalf("got %q, %v, want an error and no token", got, err)
			}
			if test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want none", got)
	}
}

func TestSignTakesNothingButContexts(t *testing.T) {
	t.Parallel()
	server := gcpjwttest.NewIAM(t)
	config := server.NewAccount(account)
	methods := []jwt.SigningMethod{
		gcpjwt.SigningMethodIAMBlob, gcpjwt.SigningMethodIAMJWT, gcpjwt.SigningMethodAppEngine, gcpjwt.SigningMethodKMSES256,
	}
	for _, method := range methods {
		for _, key := range []any{nil, config, []byte("secret"), "secret", context.Context(nil)} {
			if sig, err := method.Sign("e30.e30", key); !errors.Is(err, jwt.ErrInvalidKeyType) || sig != nil {
				t.Errorf("%s with a %T: got %v, %v, want %v", method.Alg(), key, sig, err, jwt.ErrInvalidKeyType)
			}
		}
	}
	for _, method := range methods[:2] {
		if _, err := method.Sign("e30.e30", t.Context()); !errors.Is(err, gcpjwt.ErrMissingConfig) {
			t.Errorf("%s without configuration: got %v, want %v", method.Alg(), err, gcpjwt.ErrMissingConfig)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want none", got)
	}
}

func TestSignedStringNamesTheKey(t *testing.T) {
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			s := signer.start(t)
			kid := s.keyIDs()[0]
			if got := s.lastKeyID(); got != "" {
				t.Errorf("KeyID before the first signature: got %q, want none", got)
			}
			// These characters have two spellings in JSON.
			claims := jwt.MapClaims{"sub": `<a href="x">&amp;</a> ü 🙂`, "n": 12345678901234.0, "list": []any{"a", 1.5, nil}}
			token := jwt.NewWithClaims(s.method, claims)
			before := maps.Clone(token.Header)
			text, err := gcpjwt.SignedString(s.ctx, token)
			if err != nil {
				t.Fatal(err)
			}

			want := map[string]any{"alg": "RS256", "kid": kid, "typ": "JWT"}
			if diff := cmp.Diff(want, iamHeader(t, text)); diff != "" {
				t.Errorf("header (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, token.Header); diff != "" || token.Signature != nil || token.Raw != "" {
				t.Errorf("the caller's token was written to; its header (-want +got):\n%s", diff)
			}
			if !iamSignedBy(text, s.publicKey(kid)) {
				t.Error("the key that the kid names didn't sign")
			}
			parsed, err := jwt.Parse(text, s.keyfunc)
			if err != nil {
				t.Fatalf("Parse: %v", err)
			}
			if diff := cmp.Diff(claims, parsed.Claims); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
			if got := s.lastKeyID(); got != kid {
				t.Errorf("KeyID: got %q, want %q", got, kid)
			}
			if got := s.method.Alg(); got == "RS256" {
				t.Error("the method calls itself RS256 without Override")
			}
		})
	}
}

// Once the key is known, a token costs one call.
func TestSignedStringSteadyState(t *testing.T) {
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			s := signer.start(t)
			systest.Sign(t, s.ctx, s.method, nil)
			before := s.calls()
			const tokens = 20
			for range tokens {
				systest.Sign(t, s.ctx, s.method, nil)
			}
			if got := s.calls() - before; got != tokens {
				t.Errorf("%d calls for %d tokens, want one each", got, tokens)
			}
		})
	}
}

// A token without a header map is signed like any other.
func TestSignedStringWithoutHeader(t *testing.T) {
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			s := signer.start(t)
			text, err := gcpjwt.SignedString(s.ctx, &jwt.Token{Method: s.method, Claims: jwt.MapClaims{}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := jwt.Parse(text, s.keyfunc); err != nil {
				t.Errorf("Parse: %v", err)
			}
		})
	}
}

// While Google phases a key in, either of two keys signs.
func TestSignedStringWhileKeysChange(t *testing.T) {
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			s := signer.start(t)
			second, err := s.addKey()
			if err != nil {
				t.Fatal(err)
			}
			kids := s.keyIDs()
			s.setSigningKeys(kids[0], second)

			const goroutines = 100
			texts := make([]string, goroutines)
			var running sync.WaitGroup
			for i := range texts {
				running.Go(func() {
					text, err := gcpjwt.SignedString(s.ctx, jwt.New(s.method))
					if err != nil {
						t.Errorf("SignedString: %v", err)
						return
					}
					texts[i] = text
					if _, err := jwt.Parse(text, s.keyfunc); err != nil {
						t.Errorf("Parse: %v", err)
					}
				})
			}
			running.Wait()

			by := make(map[string]int)
			for _, text := range texts {
				if text == "" {
					continue // reported above
				}
				kid, named := iamHeader(t, text)["kid"].(string)
				by[kid]++
				switch {
				case named && !iamSignedBy(text, s.publicKey(kid)):
					t.Errorf("a token names key %q, which didn't sign it", kid)
				case !named && !iamSignedBy(text, s.publicKey(kids[0])) && !iamSignedBy(text, s.publicKey(second)):
					t.Error("neither key signed a token without kid")
				}
			}
			if by[kids[0]] == 0 || by[second] == 0 {
				t.Errorf("tokens by kid: %v, want some by each key", by)
			}
			if got := s.calls(); got > 4*goroutines {
				t.Errorf("%d calls for %d tokens, want 4 each at most", got, goroutines)
			}
		})
	}
}

// After three signatures by another key than expected the fourth goes without kid.
func TestSignedStringGivesUpOnKeyIDs(t *testing.T) {
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			s := signer.start(t)
			second, err := s.addKey()
			if err != nil {
				t.Fatal(err)
			}
			kids, next := []string{s.keyIDs()[0], second}, 0
			systest.Sign(t, s.ctx, s.method, nil) // the first key is known now
			s.beforeSigning(func() {
				next++
				s.setSigningKeys(kids[next%2])
			})
			before := s.calls()
			text := systest.Sign(t, s.ctx, s.method, nil)

			wantKid, wantCalls := any(nil), 4
			if s.method == gcpjwt.SigningMethodIAMJWT {
				wantKid, wantCalls = second, 1 // Google writes the header, so the kid is right at once
			}
			if got := iamHeader(t, text)["kid"]; got != wantKid {
				t.Errorf("kid %v, want %v", got, wantKid)
			}
			if got := s.calls() - before; got != wantCalls {
				t.Errorf("%d calls, want %d", got, wantCalls)
			}
			if _, err := jwt.Parse(text, s.keyfunc); err != nil {
				t.Errorf("Parse: %v", err)
			}

			// The next token is signed with a kid again.
			s.beforeSigning(func() { s.setSigningKeys(second) })
			if got := iamHeader(t, systest.Sign(t, s.ctx, s.method, nil))["kid"]; got != second {
				t.Errorf("kid afterwards: got %v, want %v", got, second)
			}
		})
	}
}

func TestSignedStringKeepsTheCallersKeyID(t *testing.T) {
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			s := signer.start(t)
			token := jwt.New(s.method)
			token.Header["kid"] = "mine"
			text, err := gcpjwt.SignedString(s.ctx, token)
			if err != nil {
				t.Fatal(err)
			}
			want := "mine"
			if s.method == gcpjwt.SigningMethodIAMJWT {
				want = s.keyIDs()[0] // the header is Google's
			}
			if got := iamHeader(t, text)["kid"]; got != want || token.Header["kid"] != "mine" {
				t.Errorf("kid %v, token.Header's %v, want %q and the caller's", got, token.Header["kid"], want)
			}
			if !iamSignedBy(text, s.publicKey(s.keyIDs()[0])) {
				t.Error("the account's key didn't sign")
			}
			if got := s.calls(); got != 1 {
				t.Errorf("%d calls, want 1", got)
			}
		})
	}
}

// A caller leaves when its context ends, and can tell why.
func TestSigningEndsWithTheContext(t *testing.T) {
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			defer gcpjwt.ResetAppEngine()
			synctest.Test(t, func(t *testing.T) {
				s := signer.start(t, testutil.InMemory())
				s.latency(20 * time.Second)

				ends := []struct {
					want error
					end  func(ctx context.Context) (context.Context, context.CancelFunc)
				}{
					{context.DeadlineExceeded, func(ctx context.Context) (context.Context, context.CancelFunc) {
						return context.WithTimeout(ctx, time.Second)
					}},
					{context.Canceled, func(ctx context.Context) (context.Context, context.CancelFunc) {
						ctx, cancel := context.WithCancel(ctx)
						time.AfterFunc(time.Second, cancel)
						return ctx, cancel
					}},
				}
				for _, test := range ends {
					ctx, cancel := test.end(s.ctx)
					began := time.Now()
					_, err := gcpjwt.SignedString(ctx, jwt.New(s.method))
					if took := time.Since(began); took != time.Second {
						t.Errorf("%v: came back after %v, want 1s", test.want, took)
					}
					if !errors.Is(err, test.want) {
						t.Errorf("SignedString: got %v, want %v", err, test.want)
					}
					// By now the context has ended before the call.
					if _, err := s.method.Sign("e30.e30", ctx); !errors.Is(err, test.want) {
						t.Errorf("Sign: got %v, want %v", err, test.want)
					}
					cancel()
				}
				time.Sleep(time.Minute) // the App Engine SDK goes on for that long at most
			})
		})
	}
}

// everySigner returns a context with a configuration for each method, and how many calls
// have been made.
func everySigner(t testing.TB) (methods []jwt.SigningMethod, contextOf func(jwt.SigningMethod) context.Context, calls func() int) {
	t.Helper()
	iam, iamConfig := systest.StartIAM(t)
	kms, client := systest.StartKMS(t)
	app := aeStart(t)
	keys := make(map[jwt.SigningMethod]*gcpjwt.KMSConfig)
	for _, row := range systest.Methods() {
		id := strings.ToLower(row.Alias)
		version, err := kms.CreateKey(id, row.Algorithm)
		if err != nil {
			t.Fatal(err)
		}
		keys[row.Method] = &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
		methods = append(methods, row.Method)
	}
	methods = append(methods, gcpjwt.SigningMethodIAMBlob, gcpjwt.SigningMethodIAMJWT, gcpjwt.SigningMethodAppEngine)
	return methods, func(method jwt.SigningMethod) context.Context {
		ctx := gcpjwt.NewIAMContext(app.ctx, iamConfig)
		return gcpjwt.NewKMSContext(ctx, keys[method])
	}, func() int { return iam.Calls("") + kms.Calls("") + app.calls() }
}

// C26: claims that make no JSON object are refused by each method, before any call.
func TestClaimsThatAreNoObject(t *testing.T) {
	methods, contextOf, calls := everySigner(t)
	for _, method := range methods {
		for name, claims := range map[string]jwt.Claims{
			"nil":           nil,
			"a nil map":     jwt.MapClaims(nil),
			"a nil pointer": (*jwt.RegisteredClaims)(nil),
			"an array":      arrayClaims{},
			"a panic":       panickingClaims{},
		} {
			ctx := contextOf(method)
			text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(method, claims))
			if text != "" || !errors.Is(err, jwt.ErrTokenInvalidClaims) {
				t.Errorf("%s, %s: SignedString = %q, %v, want ErrTokenInvalidClaims", method.Alg(), name, text, err)
			}
			if name == "a panic" { // which is the caller's here
				continue
			}
			if text, err := jwt.NewWithClaims(method, claims).SignedString(ctx); text != "" || !errors.Is(err, jwt.ErrTokenInvalidClaims) {
				t.Errorf("%s, %s: token.SignedString = %q, %v, want ErrTokenInvalidClaims", method.Alg(), name, text, err)
			}
		}
	}
	if got := calls(); got != 0 {
		t.Errorf("%d calls, want none", got)
	}
}

type arrayClaims struct{ jwt.MapClaims }

func (arrayClaims) MarshalJSON() ([]byte, error) { return []byte("[1]"), nil }

type panickingClaims struct{ jwt.MapClaims }

func (panickingClaims) MarshalJSON() ([]byte, error) { panic("of the caller's") }

// C25: SignedString reads the token and writes nothing. One token may be signed again, by
// another signer too, and from several goroutines; each of its signatures names its own key,
// and a kid of the caller's stays whoever has used the same one before.
func TestSignedStringIsPure(t *testing.T) {
	methods, contextOf, _ := everySigner(t)
	claims := jwt.MapClaims{"sub": "somebody"}
	header := map[string]any{"typ": "JWT", "alg": "set by nobody"}
	further := map[string]any{"typ": "at+jwt", "alg": "set by nobody", "x5t": "1"} // which signJwt cannot carry
	own := map[string]any{"typ": "JWT", "kid": "somebody's own"}
	kidOf := make(map[jwt.SigningMethod]string)
	for _, method := range methods {
		kidOf[method], _ = iamHeader(t, systest.Sign(t, contextOf(method), method, nil))["kid"].(string)
	}
	var running sync.WaitGroup
	for i := range 50 {
		running.Go(func() {
			for n := range 4 {
				method := methods[(i+n)%len(methods)]
				// The maps are those of all goroutines, which the race detector watches.
				header := header
				if method != gcpjwt.SigningMethodIAMJWT {
					header = further
				}
				text, err := gcpjwt.SignedString(contextOf(method), &jwt.Token{Method: method, Header: header, Claims: claims})
				if err != nil {
					t.Errorf("%s: %v", method.Alg(), err)
					continue
				}
				if got := iamHeader(t, text)["kid"]; got != kidOf[method] {
					t.Errorf("%s: kid %v, want %s", method.Alg(), got, kidOf[method])
				}
				text, err = gcpjwt.SignedString(contextOf(method), &jwt.Token{Method: method, Header: own, Claims: claims})
				if err != nil {
					t.Errorf("%s: %v", method.Alg(), err)
					continue
				}
				want := "somebody's own"
				if method == gcpjwt.SigningMethodIAMJWT {
					want = kidOf[method] // the header is Google's
				}
				if got := iamHeader(t, text)["kid"]; got != want {
					t.Errorf("%s: kid %v, want %s", method.Alg(), got, want)
				}
			}
		})
	}
	running.Wait()
	for _, tt := range []struct{ got, want map[string]any }{
		{header, map[string]any{"typ": "JWT", "alg": "set by nobody"}},
		{further, map[string]any{"typ": "at+jwt", "alg": "set by nobody", "x5t": "1"}},
		{own, map[string]any{"typ": "JWT", "kid": "somebody's own"}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("the caller's header (-want +got):\n%s", diff)
		}
	}

	// One token through all methods in turn, as it is.
	token := jwt.NewWithClaims(methods[0], claims)
	before := *token
	for range 2 {
		for _, method := range methods {
			token.Method = method
			if got := iamHeader(t, systest.SignToken(t, contextOf(method), token))["kid"]; got != kidOf[method] {
				t.Errorf("%s: kid %v, want %s", method.Alg(), got, kidOf[method])
			}
		}
	}
	token.Method = before.Method
	if diff := cmp.Diff(before, *token, cmp.Comparer(func(a, b jwt.SigningMethod) bool { return a == b })); diff != "" {
		t.Errorf("the caller's token (-want +got):\n%s", diff)
	}
}

// C27: zero values, nil pointers and nil contexts are errors, never panics.
func TestZeroValues(t *testing.T) {
	var (
		noContext context.Context
		noKMS     *gcpjwt.KMSConfig
		noIAM     *gcpjwt.IAMConfig
		noSigner  *gcpjwt.Signer
	)
	text := systest.SignToken(t, gcpjwt.NewIAMContext(t.Context(), gcpjwttest.NewIAM(t).NewAccount(account)), jwt.New(gcpjwt.SigningMethodIAMBlob))
	parse := func(keyfunc jwt.Keyfunc) error { _, err := jwt.Parse(text, keyfunc); return err }

	errorsOf := map[string]func() error{
		"KMSVerifyKeyfunc(nil, config)":    func() error { _, err := gcpjwt.KMSVerifyKeyfunc(noContext, new(gcpjwt.KMSConfig)); return err },
		"KMSVerifyKeyfunc(ctx, nil)":       func() error { _, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), nil); return err },
		"KMSVerifyKeyfunc(ctx, zero)":      func() error { _, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), new(gcpjwt.KMSConfig)); return err },
		"IAMVerifyKeyfunc(nil, config)":    func() error { return parse(gcpjwt.IAMVerifyKeyfunc(noContext, new(gcpjwt.IAMConfig))) },
		"IAMVerifyKeyfunc(ctx, nil)":       func() error { return parse(gcpjwt.IAMVerifyKeyfunc(t.Context(), nil)) },
		"IAMVerifyKeyfunc(ctx, zero)":      func() error { return parse(gcpjwt.IAMVerifyKeyfunc(t.Context(), new(gcpjwt.IAMConfig))) },
		"AppEngineVerifyKeyfunc(nil)":      func() error { return parse(gcpjwt.AppEngineVerifyKeyfunc(noContext, true, 0)) },
		"AppEngineVerifyKeyfunc(ctx, < 0)": func() error { return parse(gcpjwt.AppEngineVerifyKeyfunc(t.Context(), true, -1)) },
		"(*IAMConfig)(nil).VerifyKeyfunc":  func() error { _, err := noIAM.VerifyKeyfunc(t.Context()); return err },
		"IAMConfig.VerifyKeyfunc(nil)":     func() error { _, err := new(gcpjwt.IAMConfig).VerifyKeyfunc(noContext); return err },
		"(*KMSConfig)(nil).PublicKeys":     func() error { _, err := noKMS.PublicKeys(t.Context()); return err },
		"KMSConfig.PublicKeys(nil)":        func() error { _, err := new(gcpjwt.KMSConfig).PublicKeys(noContext); return err },
		"KMSConfig zero .PublicKeys":       func() error { _, err := new(gcpjwt.KMSConfig).PublicKeys(t.Context()); return err },
		"(*IAMConfig)(nil).PublicKeys":     func() error { _, err := noIAM.PublicKeys(t.Context()); return err },
		"IAMConfig.PublicKeys(nil)":        func() error { _, err := new(gcpjwt.IAMConfig).PublicKeys(noContext); return err },
		"IAMConfig zero .PublicKeys":       func() error { _, err := new(gcpjwt.IAMConfig).PublicKeys(t.Context()); return err },
		"NewKMSSigner(nil, config)":        func() error { _, err := gcpjwt.NewKMSSigner(noContext, new(gcpjwt.KMSConfig)); return err },
		"NewKMSSigner(ctx, nil)":           func() error { _, err := gcpjwt.NewKMSSigner(t.Context(), nil); return err },
		"NewKMSSigner(ctx, zero)":          func() error { _, err := gcpjwt.NewKMSSigner(t.Context(), new(gcpjwt.KMSConfig)); return err },
		"NewIAMSigner(nil, config)":        func() error { _, err := gcpjwt.NewIAMSigner(noContext, new(gcpjwt.IAMConfig)); return err },
		"NewIAMSigner(ctx, nil)":           func() error { _, err := gcpjwt.NewIAMSigner(t.Context(), nil); return err },
		"NewIAMSigner(ctx, zero)":          func() error { _, err := gcpjwt.NewIAMSigner(t.Context(), new(gcpjwt.IAMConfig)); return err },
		"(*Signer)(nil).Sign":              func() error { _, err := noSigner.Sign(t.Context(), jwt.MapClaims{}); return err },
		"(*Signer)(nil).Keyfunc":           func() error { return parse(noSigner.Keyfunc) },
		"(*Signer)(nil).PublicKeys":        func() error { _, err := noSigner.PublicKeys(t.Context()); return err },
		"Signer zero .Sign":                func() error { _, err := new(gcpjwt.Signer).Sign(t.Context(), jwt.MapClaims{}); return err },
		"Signer zero .Keyfunc":             func() error { return parse(new(gcpjwt.Signer).Keyfunc) },
		"Signer zero .PublicKeys":          func() error { _, err := new(gcpjwt.Signer).PublicKeys(t.Context()); return err },
		"NewAppEngineSigner().Sign(nil)":   func() error { _, err := gcpjwt.NewAppEngineSigner().Sign(noContext, jwt.MapClaims{}); return err },
		"NewAppEngineSigner().PublicKeys":  func() error { _, err := gcpjwt.NewAppEngineSigner().PublicKeys(noContext); return err },
		"SignedString(nil)": func() error {
			_, err := gcpjwt.SignedString(noContext, jwt.New(gcpjwt.SigningMethodKMSES256))
			return err
		},
		"SignedString of no token":     func() error { _, err := gcpjwt.SignedString(t.Context(), nil); return err },
		"SignedString of a zero token": func() error { _, err := gcpjwt.SignedString(t.Context(), new(jwt.Token)); return err },
		"NewKMSContext(nil, nil)": func() error {
			_, err := gcpjwt.SigningMethodKMSES256.Sign("a.b", gcpjwt.NewKMSContext(noContext, nil))
			return err
		},
		"NewIAMContext(nil, nil)": func() error {
			_, err := gcpjwt.SigningMethodIAMBlob.Sign("a.b", gcpjwt.NewIAMContext(noContext, nil))
			return err
		},
		"a Keyfunc of no token": func() error {
			_, err := gcpjwt.IAMVerifyKeyfunc(t.Context(), gcpjwttest.NewIAM(t).NewAccount(account))(nil)
			return err
		},
		"a Keyfunc of a zero token": func() error {
			_, err := gcpjwt.IAMVerifyKeyfunc(t.Context(), gcpjwttest.NewIAM(t).NewAccount(account))(new(jwt.Token))
			return err
		},
		"a zero client":            func() error { return signZeroClient(t, "/cryptoKeyVersions/1") },
		"a zero client, CryptoKey": func() error { return signZeroClient(t, "") },
	}
	for _, method := range []jwt.SigningMethod{
		new(gcpjwt.SigningMethodKMS), new(gcpjwt.SigningMethodIAM), new(gcpjwt.SigningMethodAppEngineImpl),
	} {
		if got := method.Alg(); got != "" {
			t.Errorf("%T: Alg of the zero value = %q, want none", method, got)
		}
		method.(iamOverridable).Override() // changes nothing
		name := fmt.Sprintf("%T zero ", method)
		errorsOf[name+".Sign"] = func() error { _, err := method.Sign("a.b", t.Context()); return err }
		errorsOf[name+".Verify"] = func() error { return method.Verify("a.b", []byte("c"), certKey().Public()) }
		errorsOf[name+"in SignedString"] = func() error { _, err := gcpjwt.SignedString(t.Context(), jwt.New(method)); return err }
		errorsOf[name+"in token.SignedString"] = func() error { _, err := jwt.New(method).SignedString(t.Context()); return err }
	}
	for name, try := range errorsOf {
		t.Run(name, func(t *testing.T) {
			err := try()
			if err == nil || !strings.Contains(err.Error(), "gcpjwt: ") || strings.Contains(err.Error(), "runtime error") && !strings.Contains(name, "zero client") {
				t.Errorf("got %v, want an error of this package", err)
			}
		})
	}
	for name, got := range map[string]string{
		"(*KMSConfig)(nil).KeyID": noKMS.KeyID(), "KMSConfig zero .KeyID": new(gcpjwt.KMSConfig).KeyID(),
		"(*IAMConfig)(nil).KeyID": noIAM.KeyID(), "IAMConfig zero .KeyID": new(gcpjwt.IAMConfig).KeyID(),
		"(*IAMConfig)(nil).Issuer": noIAM.Issuer(), "IAMConfig zero .Issuer": new(gcpjwt.IAMConfig).Issuer(),
		"App Engine's KeyID": new(gcpjwt.SigningMethodAppEngineImpl).KeyID(), "App Engine's nil KeyID": (*gcpjwt.SigningMethodAppEngineImpl)(nil).KeyID(),
	} {
		if got != "" {
			t.Errorf("%s = %q, want none", name, got)
		}
	}
	if got := noSigner.Method(); got != nil {
		t.Errorf("(*Signer)(nil).Method = %v, want none", got)
	}
	if got := new(gcpjwt.Signer).Method(); got != nil {
		t.Errorf("Method of a zero Signer = %v, want none", got)
	}
	if got := new(gcpjwt.SigningMethodKMS).Hash(); got != 0 {
		t.Errorf("Hash of a zero SigningMethodKMS = %v, want none", got)
	}
	if _, ok := gcpjwt.KMSFromContext(noContext); ok {
		t.Error("KMSFromContext(nil) found something")
	}
	if _, ok := gcpjwt.IAMFromContext(noContext); ok {
		t.Error("IAMFromContext(nil) found something")
	}
}

// signZeroClient signs with a client that nobody made.
func signZeroClient(t testing.TB, version string) error {
	config := &gcpjwt.KMSConfig{
		KeyPath:   "projects/p/locations/l/keyRings/r/cryptoKeys/k" + version,
		KMSClient: new(kms.KeyManagementClient),
	}
	_, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), config), jwt.New(gcpjwt.SigningMethodKMSES256))
	return err
}

// C28: what panics in code of others, and be it in the background, ends neither the process nor
// the call of somebody else.
func TestPanicsOfOthers(t *testing.T) {
	if !iamAlone(t) { // a panic that gets away would end all tests
		return
	}
	var logged atomic.Int32
	logger := slog.New(panicking{count: &logged})
	wantLogged := func(t *testing.T) {
		t.Helper()
		if synctest.Wait(); logged.Swap(0) == 0 {
			t.Error("the Logger was never told anything")
		}
	}
	t.Run("Logger of certificates", func(t *testing.T) {
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			config.Logger = logger
			keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
			certWant(t, keyfunc, text, nil)
			server.Stop()
			time.Sleep(certRenewal)
			certWant(t, keyfunc, text, nil)
			wantLogged(t)
			certWant(t, keyfunc, text, nil)
		})
	})
	t.Run("Logger of Cloud KMS", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			server, client := systest.StartKMS(t, testutil.InMemory())
			version := systest.CreateKey(t, server, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
			signer, err := gcpjwt.NewKMSSigner(t.Context(), &gcpjwt.KMSConfig{KeyPath: path.Dir(path.Dir(version)), KMSClient: client, Logger: logger})
			if err != nil {
				t.Fatal(err)
			}
			text, err := signer.Sign(t.Context(), jwt.MapClaims{})
			if err != nil {
				t.Fatal(err)
			}
			wantLogged(t) // of a version that came into use
			certWant(t, signer.Keyfunc, text, nil)
			server.Stop()
			time.Sleep(4 * time.Minute)
			certWant(t, signer.Keyfunc, text, nil) // renews the list in the background
			time.Sleep(20 * time.Second)
			wantLogged(t)
			certWant(t, signer.Keyfunc, text, nil)
			time.Sleep(time.Minute) // calls under way come to their end
		})
	})
	client := &http.Client{Transport: systest.Transport(func(*http.Request) (*http.Response, error) { panic("hunter2") })}
	t.Run("transport of certificates", func(t *testing.T) {
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			config.Client = client
			for _, config.EnableCache = range []bool{false, true} {
				keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
				certWant(t, keyfunc, text, gcpjwt.ErrKeysUnavailable)
				if _, err := jwt.Parse(text, keyfunc); strings.Contains(err.Error(), "hunter2") {
					t.Errorf("%v tells what the transport panicked with", err)
				}
			}
		})
	})
	t.Run("transport in the background", func(t *testing.T) {
		certBubble(t, func(t *testing.T, server *testutil.IAM, config *gcpjwt.IAMConfig, text string) {
			working := server.Client().Transport
			config.Client = &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) { return working.RoundTrip(r) })}
			keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
			certWant(t, keyfunc, text, nil)
			working = client.Transport
			time.Sleep(certRenewal)
			certWant(t, keyfunc, text, nil)
			synctest.Wait()
			certWant(t, keyfunc, text, nil)
		})
	})
	t.Run("transport of IAM Credentials", func(t *testing.T) {
		service, err := iamcredentials.NewService(t.Context(), option.WithHTTPClient(client))
		if err != nil {
			t.Fatal(err)
		}
		ctx := gcpjwt.NewIAMContext(t.Context(), &gcpjwt.IAMConfig{ServiceAccount: account, IAMService: service})
		for _, m := range iamMethods {
			if _, err := gcpjwt.SignedString(ctx, jwt.New(m.method)); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: got %v, want an error that doesn't tell what the transport panicked with", m.call, err)
			}
		}
	})
	t.Run("App Engine", func(t *testing.T) {
		server := aeServer(t)
		ctx := appengine.WithAPICallFunc(t.Context(), func(context.Context, string, string, protoadapt.MessageV1, protoadapt.MessageV1) error {
			panic("hunter2")
		})
		for range 100 { // more than may be under way
			if _, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodAppEngine)); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("got %v, want an error that doesn't tell what the call panicked with", err)
			}
			for _, cached := range []bool{false, true} {
				if _, err := gcpjwt.AppEngineVerifyKeyfunc(ctx, cached, 0)(certForged("x")); !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
					t.Fatalf("got %v, want %v", err, gcpjwt.ErrKeysUnavailable)
				}
			}
		}
		systest.Sign(t, server.Context(t.Context()), gcpjwt.SigningMethodAppEngine, nil)
	})
}

// panicking is a handler that counts what it is told.
type panicking struct {
	slog.Handler
	count *atomic.Int32
}

func (panicking) Enabled(context.Context, slog.Level) bool { return true }

func (p panicking) Handle(context.Context, slog.Record) error {
	p.count.Add(1)
	panic("the handler is broken")
}

// C18: no error holds what was to be signed, however a server that repeats it has escaped it.
func TestErrorsHoldNoPayload(t *testing.T) {
	const pin = "8374918365"
	claims := jwt.MapClaims{"sub": "somebody", "pin": pin, "note": `"<&>" and ü`}
	quoted := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	payload := quoted(claims)
	encoded := base64.RawURLEncoding.EncodeToString([]byte(payload))
	repeat := map[string]string{
		"as it is":            payload,
		"as a JSON string":    quoted(payload),
		"as one within one":   quoted(map[string]any{"request": quoted(map[string]string{"payload": payload})}),
		"as a Go string":      strconv.Quote(payload),
		"in a URL":            url.QueryEscape(payload),
		"as a segment":        encoded,
		"as a signing string": "eyJhbGciOiJSUzI1NiJ9." + encoded,
	}

	server, config := systest.StartIAM(t)
	app := aeServer(t)
	kms, client := systest.StartKMS(t)
	rest, err := kms.RESTClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rest.Close() })
	version := systest.CreateKey(t, kms, kmspb.CryptoKeyVersion_EC_SIGN_ED25519) // which takes data, not a digest
	text := ""                                                                   // of the server's error
	server.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, quoted(map[string]any{"error": map[string]any{"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}))
	})
	app.Fail("SignForApp", func() error { return &testutil.AppEngineError{Code: 3, Detail: text} })
	kms.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if method == "AsymmetricSign" {
			return nil, status.Error(codes.InvalidArgument, text)
		}
		return next(ctx, req)
	})
	for name, signer := range map[string]struct {
		ctx    context.Context
		method jwt.SigningMethod
	}{
		"signBlob":       {gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMBlob},
		"signJwt":        {gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT},
		"App Engine":     {app.Context(t.Context()), gcpjwt.SigningMethodAppEngine},
		"Cloud KMS":      {gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}), gcpjwt.SigningMethodKMSEdDSA},
		"Cloud KMS REST": {gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: rest}), gcpjwt.SigningMethodKMSEdDSA},
	} {
		for how, said := range repeat {
			text = "Invalid value at 'payload': " + said + ", which is too odd"
			_, err := gcpjwt.SignedString(signer.ctx, jwt.NewWithClaims(signer.method, claims))
			if err == nil {
				t.Fatalf("%s: no error", name)
			}
			message := err.Error()
			for _, secret := range []string{pin, "somebody", encoded[20:40]} {
				if strings.Contains(message, secret) {
					t.Errorf("%s, %s: %s holds %s", name, how, message, secret)
				}
			}
			for _, want := range []string{"Invalid value at", "[...]", "too odd"} {
				if !strings.Contains(message, want) {
					t.Errorf("%s, %s: %s has lost %q", name, how, message, want)
				}
			}
		}
	}
}

// A context without a configuration has none, whatever its parent has.
func TestNilConfigHidesParents(t *testing.T) {
	t.Parallel()
	parent := gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{KeyPath: "parent's"})
	var none *gcpjwt.KMSConfig
	if config, ok := gcpjwt.KMSFromContext(gcpjwt.NewKMSContext(parent, none)); ok || config != nil {
		t.Errorf("Cloud KMS: got %v, %t, want none", config, ok)
	}
	parent = gcpjwt.NewIAMContext(t.Context(), &gcpjwt.IAMConfig{ServiceAccount: "parent's"})
	var noAccount *gcpjwt.IAMConfig
	if config, ok := gcpjwt.IAMFromContext(gcpjwt.NewIAMContext(parent, noAccount)); ok || config != nil {
		t.Errorf("IAM: got %v, %t, want none", config, ok)
	}
}
