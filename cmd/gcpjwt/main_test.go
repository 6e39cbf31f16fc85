package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// program is the command, built once.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gcpjwt")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "gcpjwt")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Printf("go build: %v\n%s", err, out)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// A result is what became of a call of the program.
type result struct {
	args           []string
	status         int
	stdout, stderr string
}

// call runs the program, in an environment with nothing but env.
func call(t *testing.T, stdin string, env []string, args ...string) result {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = t.TempDir()
	command.Env = append([]string{"HOME=" + command.Dir}, env...)
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatalf("gcpjwt %q: %v", args, err)
		}
	}
	return result{args, command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// want checks the exit status, and that stdout and stderr hold a text, or nothing at all if it is
// "". An error is one line.
func (r result) want(t *testing.T, status int, stdout, stderr string) {
	t.Helper()
	if r.status != status {
		t.Errorf("gcpjwt %q: exit status %d, want %d", r.args, r.status, status)
	}
	if !strings.Contains(r.stdout, stdout) || status != 0 && r.stdout != "" {
		t.Errorf("gcpjwt %q: stdout is %q, want %q", r.args, r.stdout, stdout)
	}
	line := strings.HasPrefix(r.stderr, "gcpjwt: ") && strings.Count(r.stderr, "gcpjwt: ") == 1 && strings.Count(r.stderr, "\n") == 1
	if status == 0 && r.stderr != "" || status != 0 && !line || !strings.Contains(r.stderr, stderr) {
		t.Errorf("gcpjwt %q: stderr is %q, want one line with %q", r.args, r.stderr, stderr)
	}
}

// described is the output of verify.
type described struct{ Header, Claims map[string]any }

func (r result) described(t *testing.T) (d described) {
	t.Helper()
	r.want(t, 0, "", "")
	decoder := json.NewDecoder(strings.NewReader(r.stdout))
	decoder.UseNumber()
	if err := decoder.Decode(&d); err != nil {
		t.Fatalf("gcpjwt %q: no JSON: %v\n%s", r.args, err, r.stdout)
	}
	return d
}

func sign(t *testing.T, args ...string) (token string) {
	t.Helper()
	r := call(t, "", nil, append([]string{"sign", "-embedded"}, args...)...)
	r.want(t, 0, "", "")
	token, ok := strings.CutSuffix(r.stdout, "\n")
	if !ok || strings.Count(token, ".") != 2 || strings.ContainsAny(token, " \n") {
		t.Fatalf("gcpjwt %q: stdout is %q, want a token on a line", r.args, r.stdout)
	}
	return token
}

// sh$ gcpjwt sign -embedded -sub alice | gcpjwt verify -embedded -
func TestEmbedded(t *testing.T) {
	t.Parallel()
	before := time.Now().Unix()
	token := sign(t, "-sub", "alice")
	got := call(t, token+"\n", nil, "verify", "-embedded", "-").described(t)
	iat, err := got.Claims["iat"].(json.Number).Int64()
	if err != nil || iat < before || iat > time.Now().Unix() {
		t.Errorf("iat %v, error %v, want now", iat, err)
	}
	at := func(seconds int64) string { return time.Unix(seconds, 0).UTC().Format("2006-01-02T15:04:05Z") }
	number := func(n int64) json.Number { return json.Number(fmt.Sprint(n)) }
	want := described{
		Header: map[string]any{"alg": "ES256", "typ": "JWT", "kid": got.Header["kid"]},
		Claims: map[string]any{
			"sub": "alice",
			"iat": number(iat), "iat (UTC)": at(iat),
			"nbf": number(iat), "nbf (UTC)": at(iat),
			"exp": number(iat + 3600), "exp (UTC)": at(iat + 3600),
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verify (-want +got):\n%s", diff)
	}
	if argument := call(t, "", nil, "verify", "-embedded", token).described(t); !cmp.Equal(got, argument) {
		t.Errorf("verify prints %v for the argument, %v for the same on stdin", argument, got)
	}

	r := call(t, "", nil, "jwks", "-embedded")
	r.want(t, 0, "\n", "")
	keys, err := jwks.Parse([]byte(r.stdout))
	if err != nil || len(keys) != 1 || keys[0].KeyID != got.Header["kid"] || keys[0].Algorithm != "ES256" {
		t.Fatalf("jwks: %v, error %v, want the one key:\n%s", keys, err, r.stdout)
	}
	if _, err := jwt.Parse(token, func(*jwt.Token) (any, error) { return keys[0].Public, nil }); err != nil {
		t.Errorf("the token by the printed key: %v", err)
	}
}

// The text that verify prints is for people: indented, with times next to their numbers.
func TestVerifyText(t *testing.T) {
	t.Parallel()
	token := sign(t, "-claims", `{"exp":4102444800,"iat":1700000000.5,"nbf":0,"url":"https://a.example/?b&c","name":"\u001b[31m\u202eZo\u00eb\udb40\udc01","id":9007199254740993}`)
	got := call(t, token, nil, "verify", "-embedded", "-").stdout
	_, claims, _ := strings.Cut(got, `"claims": `)
	want := `{
    "exp": 4102444800,
    "exp (UTC)": "2100-01-01T00:00:00Z",
    "iat": 1700000000.5,
    "iat (UTC)": "2023-11-14T22:13:20Z",
    "id": 9007199254740993,
    "name": "\u001b[31m\u202eZoë\udb40\udc01",
    "nbf": 0,
    "nbf (UTC)": "1970-01-01T00:00:00Z",
    "url": "https://a.example/?b&c"
  }
}
`
	if claims != want {
		t.Errorf("claims are %s, want %s", claims, want)
	}
}

// Flags win over -claims, which win over the defaults.
func TestClaims(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "claims.json")
	if err := os.WriteFile(file, []byte(`{"iss":"file","sub":"file","roles":["a","b"],"exp":4102444800}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want map[string]any
	}{
		{[]string{"-iss", "i", "-sub", "s", "-aud", "a"}, map[string]any{"iss": "i", "sub": "s", "aud": "a"}},
		{[]string{"-aud", "a", "-aud", "b"}, map[string]any{"aud": []any{"a", "b"}}},
		{[]string{"-claims", "@" + file}, map[string]any{"iss": "file", "sub": "file", "roles": []any{"a", "b"}, "exp": json.Number("4102444800")}},
		{[]string{"-claims", "@" + file, "-sub", "flag"}, map[string]any{"iss": "file", "sub": "flag"}},
		{[]string{"-claims", `{"aud":["x"],"n":1e2}`, "-aud", "flag"}, map[string]any{"aud": "flag", "n": json.Number("1e2")}},
		{[]string{"-claims", `{"iat":1700000000,"nbf":1700000001}`}, map[string]any{"iat": json.Number("1700000000"), "nbf": json.Number("1700000001")}},
	} {
		got := call(t, "", nil, "verify", "-embedded", sign(t, test.args...)).described(t).Claims
		for name, want := range test.want {
			if !cmp.Equal(got[name], want) {
				t.Errorf("sign %q: claim %s is %v, want %v", test.args, name, got[name], want)
			}
		}
	}

	got := call(t, "", nil, "verify", "-embedded", sign(t, "-claims", "@"+file, "-lifetime", "90s")).described(t).Claims
	iat, _ := got["iat"].(json.Number).Int64()
	if exp, _ := got["exp"].(json.Number).Int64(); exp != iat+90 {
		t.Errorf("with -lifetime 90s exp is %d after iat, want 90", exp-iat)
	}
}

// What isn't good is refused with a reason, and nothing of the token is in it.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	good := sign(t, "-iss", "me", "-aud", "you")
	other, err := gcpjwttest.NewSigner(t).Sign(t.Context(), jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	header, rest, _ := strings.Cut(good, ".")
	for _, test := range []struct {
		name  string
		token string
		args  []string
		want  string
	}{
		{"expired", sign(t, "-claims", `{"exp":1700000000}`), nil, "token is expired"},
		{"early", sign(t, "-claims", `{"nbf":4102444800,"exp":4102444801}`), nil, "token is not valid yet"},
		{"quoted exp", sign(t, "-claims", `{"exp":"4102444800"}`), nil, "exp"},
		{"audience", good, []string{"-aud", "somebody", "-aud", "else"}, "token has invalid audience"},
		{"issuer", good, []string{"-iss", "you"}, "token has invalid issuer"},
		{"another key", other, nil, "unknown key ID"},
		{"forged", header + ".e30." + rest[strings.LastIndex(rest, ".")+1:], nil, ""},
		{"changed signature", good[:len(good)-8] + "AAAAAAAA", nil, "token signature is invalid"},
		{"no token", "alice", nil, "malformed"},
		{"much", strings.Repeat("x", 20000), nil, "longer than 16384 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"verify", "-embedded"}, test.args...)
			for _, r := range []result{call(t, "", nil, append(args, test.token)...), call(t, test.token, nil, append(args, "-")...)} {
				r.want(t, 1, "", test.want)
				for part := range strings.SplitSeq(test.token, ".") {
					if len(part) > 3 && strings.Contains(r.stderr, part) {
						t.Errorf("the error has a part of the token: %s", r.stderr)
					}
				}
			}
		})
	}
	call(t, "", nil, "verify", "-embedded", "-aud", "nobody", "-aud", "you", "-iss", "me", good).want(t, 0, `"aud": "you"`, "")
}

// Wrong usage ends with status 2, and says what would be right.
func TestUsage(t *testing.T) {
	t.Parallel()
	token := sign(t)
	const secret = "claim-that-stays-private"
	broken := filepath.Join(t.TempDir(), "claims.json")
	if err := os.WriteFile(broken, []byte(`{"sub":"`+secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "want a command: sign, verify or jwks"},
		{[]string{"resign"}, `no command "resign": want sign, verify or jwks`},
		{[]string{token}, "no command"},
		{[]string{"-embedded", "sign"}, "no command"},

		{[]string{"sign"}, "want one of -kms, -service-account and -embedded"},
		{[]string{"sign", "-kms", "k", "-embedded"}, "want one of -kms, -service-account and -embedded"},
		{[]string{"sign", "-kms", ""}, "-kms is empty"},
		{[]string{"sign", "-kms", "k"}, `KeyPath "k": projects/ is missing`},
		{[]string{"sign", "-kms", token}, "KeyPath"},
		{[]string{"sign", "-service-account", "a/b"}, "want a service account's email address"},
		{[]string{"sign", "-embedded", "-blob"}, "-blob is for -service-account"},
		{[]string{"sign", "-embedded", "-blob=" + token}, "-blob"},
		{[]string{"sign", "-embedded", "surplus"}, "want flags only"},
		{[]string{"sign", "-embedded", "-sub", ""}, "-sub is empty"},
		{[]string{"sign", "-embedded", "-aud", ""}, "-aud: it is empty"},
		{[]string{"sign", "-embedded", "-lifetime", "1week"}, `invalid value "1week" for flag -lifetime`},
		{[]string{"sign", "-embedded", "-lifetime", token}, "for flag -lifetime"},
		{[]string{"sign", "-embedded", "-lifetime=" + token}, "for flag -lifetime"},
		{[]string{"sign", "-embedded", "-lifetime", `{"sub":"` + secret + `"}`}, "for flag -lifetime"},
		{[]string{"sign", "-embedded", "-lifetime", "-1h"}, "-lifetime: want a second or more"},
		{[]string{"sign", "-embedded", "-" + token}, "not defined"},
		{[]string{"sign", "-embedded", "--=" + token}, "bad flag syntax"},
		{[]string{"sign", "-embedded", "-lifetime"}, "flag needs an argument: -lifetime"},
		{[]string{"sign", "-embedded", "-claims", `{"sub":"` + secret}, "-claims: not JSON, at byte 32"},
		{[]string{"sign", "-embedded", "-claims", `{"` + secret + `":1,"` + secret + `":2}`}, "each name once"},
		{[]string{"sign", "-embedded", "-claims", `"` + secret + `"`}, "want a JSON object"},
		{[]string{"sign", "-embedded", "-claims", `null`}, "want a JSON object"},
		{[]string{"sign", "-embedded", "-claims", `[]`}, "want a JSON object"},
		{[]string{"sign", "-embedded", "-claims", "@" + broken}, "-claims: not JSON, at byte 32"},
		{[]string{"sign", "-embedded", "-claims", "@none.json"}, "none.json: no such file"},
		{[]string{"sign", "-embedded", "-claims", "@/dev/zero"}, "-claims: more than 1048576 bytes"},

		{[]string{"verify", token}, "want one of -kms, -service-account, -jwks, -issuer and -embedded"},
		{[]string{"verify", "-embedded"}, "want one TOKEN, or - for standard input"},
		{[]string{"verify", "-embedded", token, "-aud", "a"}, "after all flags"},
		{[]string{"verify", "-embedded", "-"}, "the token is empty"},
		{[]string{"verify", "-embedded", " \n"}, "the token is empty"},
		{[]string{"verify", "-kms", "k", token}, "KeyPath"},
		{[]string{"verify", "-service-account", "a/b", token}, "service account"},
		{[]string{"verify", "-jwks", "http://example.com/jwks.json", token}, "want https"},
		{[]string{"verify", "-jwks", "jwks.json", token}, "URL"},
		{[]string{"verify", "-issuer", "https://u:p@example.com", token}, "without user"},
		{[]string{"verify", "-token", token}, "flag provided but not defined: -token"},

		{[]string{"jwks"}, "want keys and accounts, with -kms and -service-account, or -embedded"},
		{[]string{"jwks", "-embedded", "-kms", "k"}, "or -embedded"},
		{[]string{"jwks", "-embedded", "surplus"}, "want flags only"},
		{[]string{"jwks", "-kms", "k"}, "KeyPath"},
		{[]string{"jwks", "-service-account", "a/b"}, "service account"},
	} {
		r := call(t, "", nil, test.args...)
		r.want(t, 2, "", test.want)
		for _, hidden := range append(strings.Split(token, "."), secret) {
			if strings.Contains(r.stderr, hidden) {
				t.Errorf("gcpjwt %q: %q is in the error: %s", r.args, hidden, r.stderr)
			}
		}
	}
}

// Help that was asked for is a result.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-h"}, {"--help"}, {"help"}} {
		call(t, "", nil, args...).want(t, 0, "gcpjwt sign -embedded -sub alice | gcpjwt verify -embedded -\n", "")
	}
	for command, flags := range map[string][]string{
		"sign":   {"kms KEY", "service-account EMAIL", "blob", "embedded", "iss", "sub", "aud", "lifetime", "claims JSON"},
		"verify": {"kms KEY", "service-account EMAIL", "jwks URL", "issuer URL", "embedded", "aud", "iss"},
		"jwks":   {"kms KEY", "service-account EMAIL", "embedded"},
	} {
		r := call(t, "", nil, command, "-h")
		r.want(t, 0, "gcpjwt "+command+" ", "")
		for _, flag := range flags {
			if !strings.Contains(r.stdout, "\n  -"+flag) {
				t.Errorf("the help of %s lacks -%s:\n%s", command, flag, r.stdout)
			}
		}
		if !strings.Contains(r.stdout, "gcpjwt "+command+" -") {
			t.Errorf("the help of %s has no example:\n%s", command, r.stdout)
		}
	}
}

// Keys that somebody publishes, found by their address and by the issuer's name.
func TestPublished(t *testing.T) {
	t.Parallel()
	cloud := gcpjwttest.NewKMS(t)
	config := cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	var handler http.Handler
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	defer server.Close()
	handler = jwks.NewDiscoveryHandler(server.URL, signer)
	make := func(issuer string) string {
		text, err := signer.Sign(t.Context(), jwt.MapClaims{"iss": issuer, "exp": time.Now().Add(time.Hour).Unix()})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}

	call(t, make(server.URL), nil, "verify", "-issuer", server.URL, "-").want(t, 0, `"alg": "EdDSA"`, "")
	call(t, make("other"), nil, "verify", "-issuer", server.URL, "-").want(t, 1, "", "token has invalid issuer")
	call(t, make("other"), nil, "verify", "-issuer", server.URL, "-iss", "other", "-").want(t, 0, `"iss": "other"`, "")
	call(t, make("other"), nil, "verify", "-jwks", server.URL+"/.well-known/jwks.json", "-").want(t, 0, `"iss": "other"`, "")
	call(t, make("other"), nil, "verify", "-jwks", server.URL+"/nothing", "-").want(t, 1, "", "404")
	server.Close()
	call(t, make(server.URL), nil, "verify", "-issuer", server.URL, "-").want(t, 1, "", "keys unavailable")
}
