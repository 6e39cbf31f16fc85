package keyset_test

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
)

// fixed is a source of keys that stay as they are. It counts how often others were asked for.
type fixed struct {
	set     *keyset.Set
	err     error
	renewed int
}

// of returns a source of keys.
func of(keys ...*keyset.Key) *fixed { return &fixed{set: keyset.New(keys)} }

func (f *fixed) Accepts(alg string) bool {
	return slices.ContainsFunc(f.set.Keys(), func(key *keyset.Key) bool { return key.Alg == alg })
}

func (f *fixed) Current() *keyset.Set {
	if f.err != nil {
		return nil
	}
	return f.set
}

func (f *fixed) Get(context.Context) (*keyset.Set, error) { return f.set, f.err }

func (f *fixed) Renew(context.Context, *keyset.Set, func(*keyset.Set) bool) (*keyset.Set, error) {
	f.renewed++
	return f.set, f.err
}

// named makes a key that is its own public key.
func named(kid, alg string) *keyset.Key { return &keyset.Key{ID: kid, Alg: alg, Public: kid} }

// resolver supplies keys on use, and counts.
type resolver struct {
	value  any
	method jwt.SigningMethod
	err    error
	calls  int
	called func(ctx context.Context)
}

func (r *resolver) Resolve(ctx context.Context) (any, jwt.SigningMethod, error) {
	r.calls++
	if r.called != nil {
		r.called(ctx)
	}
	return r.value, r.method, r.err
}

// joined is a value that stands for several keys.
type joined []string

func (j joined) Join(other any) any { return append(j, other.(joined)...) }

// unsigned is a token as a Keyfunc gets it. A nil kid is none.
func unsigned(method jwt.SigningMethod, kid any) *jwt.Token {
	header := map[string]any{}
	if kid != nil {
		header["kid"] = kid
	}
	return &jwt.Token{Method: method, Header: header}
}

// foreign are methods of somebody else's, of whom nobody knows what they accept.
type (
	foreign        struct{ jwt.SigningMethod }
	foreignToMatch struct { // cannot be compared
		jwt.SigningMethod
		_ []string
	}
)

// A key is handed out for its algorithm only, whatever kid and signature.
func TestKeyfuncAlgorithm(t *testing.T) {
	t.Parallel()
	source := of(named("rs", "RS256"), named("ps", "PS256"), named("es", "ES384"), named("ed", "EdDSA"), named("ml", "ML-DSA-44"))
	keyfunc := keyset.Keyfunc(t.Context(), source)
	method := func(name string) jwt.SigningMethod { return jwt.GetSigningMethod(name) }
	tests := []struct {
		method jwt.SigningMethod
		good   string // the only kid that fits; "": none
	}{
		{method("RS256"), "rs"}, {method("PS256"), "ps"}, {method("ES384"), "es"}, {method("EdDSA"), "ed"},
		{method("Ed25519"), "ed"}, {method("ML-DSA-44"), "ml"},
		{method("RS384"), ""}, {method("PS512"), ""}, {method("ES256"), ""}, {method("ES512"), ""}, {method("ES256K"), ""},
		{method("HS256"), ""}, {method("none"), ""}, {method("ML-DSA-65"), ""},
		{nil, ""}, {&foreign{method("RS256")}, ""}, {foreignToMatch{SigningMethod: method("RS256")}, ""},
	}
	for _, test := range tests {
		name := "nil"
		if test.method != nil {
			name = fmt.Sprintf("%T %s", test.method, test.method.Alg())
		}
		for _, kid := range []any{"rs", "ps", "es", "ed", "ml", nil} {
			key, err := keyfunc(unsigned(test.method, kid))
			good := test.good != "" && (kid == nil || kid == test.good)
			if good && (err != nil || key != test.good) {
				t.Errorf("%s with kid %v: got %v, %v, want %s", name, kid, key, err, test.good)
			}
			if !good && (key != nil || !errors.Is(err, errs.ErrAlgorithmMismatch) || errors.Is(err, errs.ErrKeysUnavailable)) {
				t.Errorf("%s with kid %v: got %v, %v, want %v", name, kid, key, err, errs.ErrAlgorithmMismatch)
			}
		}
	}
	if source.renewed != 0 {
		t.Errorf("asked for other keys %d times, want never: every kid is known", source.renewed)
	}
}

// Header fields decide nothing but what they are for.
func TestKeyfuncHeader(t *testing.T) {
	t.Parallel()
	tests := []struct {
		header map[string]any
		want   error // nil: the key
	}{
		{map[string]any{"kid": "k"}, nil},
		{map[string]any{"kid": "k", "typ": 5, "jku": "https://evil.example/", "jwk": map[string]any{}, "alg": "none"}, nil},
		{nil, nil},
		{map[string]any{"KID": 42}, nil},
		{map[string]any{"kid": nil}, jwt.ErrTokenMalformed},
		{map[string]any{"kid": 42.0}, jwt.ErrTokenMalformed},
		{map[string]any{"kid": []any{"k"}}, jwt.ErrTokenMalformed},
		{map[string]any{"kid": map[string]any{}}, jwt.ErrTokenMalformed},
		{map[string]any{"kid": ""}, errs.ErrUnknownKeyID},
		{map[string]any{"kid": "K"}, errs.ErrUnknownKeyID},
		{map[string]any{"kid": "k\n"}, errs.ErrUnknownKeyID},
		{map[string]any{"kid": strings.Repeat("k", 64<<10)}, errs.ErrUnknownKeyID},
		{map[string]any{"kid": "k", "crit": []any{"b64"}}, jwt.ErrTokenMalformed},
		{map[string]any{"kid": "k", "crit": []any{}}, jwt.ErrTokenMalformed},
		{map[string]any{"kid": "k", "crit": nil}, jwt.ErrTokenMalformed},
	}
	keyfunc := keyset.Keyfunc(t.Context(), of(named("k", "RS256")))
	for _, test := range tests {
		key, err := keyfunc(&jwt.Token{Method: jwt.SigningMethodRS256, Header: test.header})
		switch {
		case test.want == nil && (err != nil || key != "k"):
			t.Errorf("%.80v: got %v, %v, want the key", test.header, key, err)
		case test.want != nil && (key != nil || !errors.Is(err, test.want)):
			t.Errorf("%.80v: got %v, %v, want %v", test.header, key, err, test.want)
		case err != nil && (len(err.Error()) > 400 || strings.Contains(err.Error(), "\n")):
			t.Errorf("%.80v: message %q isn't fit for a log", test.header, err)
		}
	}
	if _, err := keyfunc(nil); !errors.Is(err, jwt.ErrTokenMalformed) {
		t.Errorf("nil token: got %v, want %v", err, jwt.ErrTokenMalformed)
	}
}

// A token without kid is checked with the first 16 keys of its algorithm, and others aren't
// even looked at (C14).
func TestKeyfuncWithoutKeyID(t *testing.T) {
	t.Parallel()
	var keys []*keyset.Key
	var resolvers []*resolver
	for i := range 100 {
		r := &resolver{value: fmt.Sprint(i)}
		resolvers = append(resolvers, r)
		keys = append(keys, named(fmt.Sprint("other ", i), "ES384"), &keyset.Key{ID: fmt.Sprint(i), Alg: "RS256", Resolver: r})
	}
	for n, want := range map[int]int{1: 1, 3: 3, 16: 16, 17: 16, 100: 16} {
		for _, r := range resolvers {
			r.calls = 0
		}
		got, err := keyset.Keyfunc(t.Context(), of(keys[:2*n]...))(unsigned(jwt.SigningMethodRS256, nil))
		var wanted any = jwt.VerificationKeySet{}
		for i := range want {
			wanted = jwt.VerificationKeySet{Keys: append(wanted.(jwt.VerificationKeySet).Keys, fmt.Sprint(i))}
		}
		if n == 1 {
			wanted = "0" // where there is but one, other code finds its type
		}
		if diff := cmp.Diff(wanted, got); err != nil || diff != "" {
			t.Errorf("%d keys: %v, keys (-want +got):\n%s", n, err, diff)
		}
		calls := 0
		for _, r := range resolvers {
			calls += r.calls
		}
		if calls != want {
			t.Errorf("%d keys: %d of them supplied, want %d", n, calls, want)
		}
	}
}

// Values that can stand for each other become one.
func TestKeyfuncJoins(t *testing.T) {
	t.Parallel()
	method := jwt.GetSigningMethod("HS256")
	var keys []*keyset.Key
	var want joined
	for i := range 100 {
		kid := fmt.Sprint(i)
		keys = append(keys, &keyset.Key{ID: kid, Alg: "HS256", Resolver: &resolver{value: joined{kid}, method: method}})
		if i < 16 {
			want = append(want, kid)
		}
	}
	keyfunc := keyset.Keyfunc(t.Context(), of(keys...))
	if got, err := keyfunc(unsigned(jwt.SigningMethodHS256, nil)); err != nil || !cmp.Equal(got, any(want)) {
		t.Errorf("without kid: got %v, %v, want %v", got, err, want)
	}
	if got, err := keyfunc(unsigned(jwt.SigningMethodHS256, "99")); err != nil || !cmp.Equal(got, any(joined{"99"})) {
		t.Errorf("kid 99: got %v, %v, want that key alone", got, err)
	}
}

// A value that only one method can use comes with it. The context of the call has the values
// of the Keyfunc's and not its end.
func TestKeyfuncResolves(t *testing.T) {
	t.Parallel()
	type key struct{}
	method := &foreign{jwt.SigningMethodHS256}
	r := &resolver{value: "v", method: method, called: func(ctx context.Context) {
		if got := ctx.Value(key{}); got != "lent" || ctx.Err() != nil {
			t.Errorf("the call's context has value %v and has ended with %v, want the Keyfunc's value and no end", got, ctx.Err())
		}
	}}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "lent"))
	keyfunc := keyset.Keyfunc(ctx, of(&keyset.Key{ID: "k", Alg: "HS256", Resolver: r}))
	cancel()
	for _, kid := range []any{"k", nil} {
		token := unsigned(jwt.SigningMethodHS256, kid)
		if got, err := keyfunc(token); got != "v" || err != nil || token.Method != jwt.SigningMethod(method) {
			t.Errorf("kid %v: got %v, %v for method %T, want v for the method that uses it", kid, got, err, token.Method)
		}
	}
	if r.calls != 2 {
		t.Errorf("%d calls, want 2", r.calls)
	}
}

// PS256 and its like are checked with the salt that the RFC demands, by jwt.Parse too (C06).
func TestKeyfuncStrictPSS(t *testing.T) {
	t.Parallel()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyfunc := keyset.Keyfunc(t.Context(), of(&keyset.Key{ID: "k", Alg: "PS256", Public: &private.PublicKey}))
	for _, header := range []string{`{"alg":"PS256","kid":"k"}`, `{"alg":"PS256"}`} {
		text := base64.RawURLEncoding.EncodeToString([]byte(header)) + ".e30"
		digest := sha256.Sum256([]byte(text))
		for _, salt := range []int{1, 20, 31, 32, 33, 190} {
			sig, err := rsa.SignPSS(rand.Reader, private, crypto.SHA256, digest[:], &rsa.PSSOptions{SaltLength: salt})
			if err != nil {
				t.Fatal(err)
			}
			token, err := jwt.Parse(text+"."+base64.RawURLEncoding.EncodeToString(sig), keyfunc)
			if (err == nil) != (salt == 32) {
				t.Errorf("%s, salt of %d bytes: got %v, want good: %v", header, salt, err, salt == 32)
			}
			if want := algorithm.ByName("PS256").Method; token.Method != want {
				t.Errorf("%s: method %T, want the strict one", header, token.Method)
			}
		}
	}
}

// Where a key cannot be had, a token by another one is good, and nothing can be said of the
// rest.
func TestKeyfuncIncomplete(t *testing.T) {
	t.Parallel()
	outage := errors.New("outage")
	down := func(kid string) *keyset.Key {
		return &keyset.Key{ID: kid, Alg: "EdDSA", Resolver: &resolver{err: outage}}
	}
	var public []ed25519.PublicKey
	var private []ed25519.PrivateKey
	for range 2 {
		pub, priv, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		public, private = append(public, pub), append(private, priv)
	}
	text := func(key ed25519.PrivateKey) string {
		text, err := jwt.New(jwt.SigningMethodEdDSA).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	known := &keyset.Key{ID: "known", Alg: "EdDSA", Public: public[0]}
	for _, test := range []struct {
		name string
		keys []*keyset.Key
		by   int
		good bool
	}{
		{"by the known key", []*keyset.Key{down("a"), known, down("b")}, 0, true},
		{"by another", []*keyset.Key{down("a"), known, down("b")}, 1, false},
		{"none is known", []*keyset.Key{down("a"), down("b")}, 0, false},
	} {
		token, err := jwt.Parse(text(private[test.by]), keyset.Keyfunc(t.Context(), of(test.keys...)))
		switch {
		case test.good && err != nil:
			t.Errorf("%s: got %v, want a good token", test.name, err)
		case !test.good && (!errors.Is(err, errs.ErrKeysUnavailable) || !errors.Is(err, outage) || token.Valid):
			t.Errorf("%s: got %v, want %v and %v", test.name, err, errs.ErrKeysUnavailable, outage)
		}
	}
}

// An unknown kid is looked for once. What can't be had says nothing about the token, and
// what no waiting mends isn't called an outage.
func TestKeyfuncErrors(t *testing.T) {
	t.Parallel()
	outage := errors.New("outage")
	source := of(named("k", "RS256"), named("other", "ES384"))
	keyfunc := keyset.Keyfunc(t.Context(), source)
	check := func(what, kid string, want []error, not ...error) {
		t.Helper()
		_, err := keyfunc(unsigned(jwt.SigningMethodRS256, kid))
		for _, want := range want {
			if !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", what, err, want)
			}
		}
		for _, not := range not {
			if errors.Is(err, not) {
				t.Errorf("%s: %v is also %v", what, err, not)
			}
		}
	}
	check("unknown", "unknown", []error{errs.ErrUnknownKeyID}, errs.ErrKeysUnavailable)
	check("of another algorithm", "other", []error{errs.ErrAlgorithmMismatch}, errs.ErrUnknownKeyID)
	if source.renewed != 1 {
		t.Errorf("asked for other keys %d times, want once", source.renewed)
	}
	for err, want := range map[error]error{
		outage:                   errs.ErrKeysUnavailable,
		context.DeadlineExceeded: errs.ErrKeysUnavailable,
		errs.ErrIntegrity:        errs.ErrKeysUnavailable,
		errs.ErrKeysUnavailable:  errs.ErrKeysUnavailable,
	} {
		source.err = err
		check(err.Error(), "k", []error{err, want})
	}
	for _, err := range []error{errs.ErrInvalidConfig, errs.ErrMissingConfig, errs.ErrAlgorithmMismatch} {
		source.err = err
		check(err.Error(), "k", []error{err}, errs.ErrKeysUnavailable)
	}
	if _, err := keyset.Refuse(outage)(unsigned(jwt.SigningMethodRS256, "k")); !errors.Is(err, outage) {
		t.Errorf("Refuse: got %v, want %v", err, outage)
	}
}

// The set's keys are found by kid and algorithm both.
func TestSet(t *testing.T) {
	t.Parallel()
	twice := keyset.Keyfunc(t.Context(), of(
		&keyset.Key{ID: "k", Alg: "RS256", Public: "for RS256"}, &keyset.Key{ID: "k", Alg: "RS512", Public: "for RS512"}))
	for method, want := range map[jwt.SigningMethod]string{jwt.SigningMethodRS256: "for RS256", jwt.SigningMethodRS512: "for RS512"} {
		if got, err := twice(unsigned(method, "k")); got != want || err != nil {
			t.Errorf("%s: got %v, %v, want %s", method.Alg(), got, err, want)
		}
	}
	secret := &keyset.Key{ID: "k", Alg: "HS256", Resolver: &resolver{value: "secret"}}
	if got, err := secret.PublicKey(t.Context()); got != nil || err != nil {
		t.Errorf("PublicKey of a MAC key: got %v, %v, want none", got, err)
	}
	if got, err := named("k", "RS256").PublicKey(t.Context()); got != "k" || err != nil {
		t.Errorf("PublicKey: got %v, %v, want k", got, err)
	}
}
