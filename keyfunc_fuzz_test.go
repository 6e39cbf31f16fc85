package gcpjwt_test

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
)

// iamSeeds fails a fuzz target whose seeds aren't where it is run, which would
// otherwise test next to nothing and pass.
func iamSeeds(f *testing.F) {
	f.Helper()
	if seeds, err := filepath.Glob(filepath.Join("testdata", "fuzz", f.Name(), "*")); err != nil || len(seeds) < 5 {
		f.Fatalf("%d seeds, %v, want at least 5", len(seeds), err)
	}
}

// iamGolden returns a file of testdata/iam: two certificates, and tokens by
// their keys, whose private halves are gone.
func iamGolden(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "iam", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// iamKeysOf returns the keys that a Keyfunc hands out for tokens without kid.
func iamKeysOf(keyfunc jwt.Keyfunc) ([]*rsa.PublicKey, error) {
	got, err := keyfunc(jwt.New(jwt.SigningMethodRS256))
	if err != nil {
		return nil, err
	}
	set, ok := got.(jwt.VerificationKeySet)
	if !ok {
		return []*rsa.PublicKey{got.(*rsa.PublicKey)}, nil
	}
	var keys []*rsa.PublicKey
	for _, key := range set.Keys {
		keys = append(keys, key.(*rsa.PublicKey))
	}
	return keys, nil
}

// The golden tokens are valid, so that FuzzIAMKeyfunc has something to start
// from.
func TestIAMGolden(t *testing.T) {
	t.Parallel()
	o := &certOrigin{body: iamGolden(t, "certificates.json")}
	for _, name := range []string{"first.jwt", "unnamed.jwt"} {
		if _, err := jwt.Parse(iamGolden(t, name), gcpjwt.IAMVerifyKeyfunc(t.Context(), o.config())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzIAMKeyfunc: no token is accepted unless jwt's own method verifies it with
// a key of the set, and none makes anything panic.
func FuzzIAMKeyfunc(f *testing.F) {
	iamSeeds(f)
	for _, name := range []string{"first.jwt", "unnamed.jwt"} {
		text := iamGolden(f, name)
		f.Add(text)
		f.Add(text[:len(text)-1])
		f.Add("." + text)
	}
	o := &certOrigin{body: iamGolden(f, "certificates.json"), header: http.Header{"Cache-Control": {"max-age=86400"}}}
	config := o.config()
	config.EnableCache = true
	keyfunc := gcpjwt.IAMVerifyKeyfunc(context.Background(), config)
	keys, err := iamKeysOf(keyfunc)
	if err != nil || len(keys) != 2 {
		f.Fatalf("%d keys, %v, want 2", len(keys), err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, err := jwt.Parse(text, keyfunc, jwt.WithoutClaimsValidation())
		valid := token != nil && token.Valid
		if valid != (err == nil) {
			t.Fatalf("valid: %v, error: %v", valid, err)
		}
		if !valid {
			return
		}
		i := strings.LastIndexByte(text, '.')
		signed := false
		for _, key := range keys {
			signed = signed || jwt.SigningMethodRS256.Verify(text[:i], token.Signature, key) == nil
		}
		if !signed {
			t.Errorf("%q is accepted, which no key has signed", text)
		}
		switch alg := token.Header["alg"]; alg {
		case "RS256", "KMSRS256", "IAMBlob", "IAMJWT", "AppEngine":
		default:
			t.Errorf("alg %v is accepted", alg)
		}
	})
}

// FuzzCertificates: whatever a server answers is an error or RSA keys that are
// long enough.
func FuzzCertificates(f *testing.F) {
	iamSeeds(f)
	f.Add([]byte(iamGolden(f, "certificates.json")))
	f.Fuzz(func(t *testing.T, body []byte) {
		o := &certOrigin{body: string(body)}
		keys, err := iamKeysOf(gcpjwt.IAMVerifyKeyfunc(context.Background(), o.config()))
		if (err == nil) != (len(keys) > 0) {
			t.Errorf("%d keys, %v", len(keys), err)
		}
		for _, key := range keys {
			if bits := key.N.BitLen(); bits < 2048 {
				t.Errorf("a key of %d bits", bits)
			}
		}
		if err == nil {
			var object map[string]json.RawMessage
			if err := json.Unmarshal(body, &object); err != nil {
				t.Errorf("keys in what isn't a JSON object: %v", err)
			}
		}
	})
}

// FuzzAccount: an accepted account never leads to another host, path or query
// than the one it should be appended to.
func FuzzAccount(f *testing.F) {
	iamSeeds(f)
	f.Add(account)
	f.Add("100000000000000000001")
	f.Fuzz(func(t *testing.T, name string) {
		var requests []*http.Request
		client := &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
			requests = append(requests, r)
			return &http.Response{StatusCode: http.StatusNotFound, Header: make(http.Header), Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
		})}
		service, err := iamcredentials.NewService(t.Context(), option.WithHTTPClient(client), option.WithEndpoint("https://iam.example/"))
		if err != nil {
			t.Fatal(err)
		}
		config := &gcpjwt.IAMConfig{ServiceAccount: name, IAMService: service, Client: client, CertificateURL: "https://certs.example/x509/"}
		ctx := gcpjwt.NewIAMContext(t.Context(), config)
		for _, test := range []struct {
			host, before, after, query string
			call                       func() error
		}{
			{"iam.example", "/v1/projects/-/serviceAccounts/", ":signBlob", "alt=json&prettyPrint=false", func() error {
				_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodIAMBlob))
				return err
			}},
			{"iam.example", "/v1/projects/-/serviceAccounts/", ":signJwt", "alt=json&prettyPrint=false", func() error {
				_, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodIAMJWT))
				return err
			}},
			{"certs.example", "/x509/", "", "", func() error {
				_, err := gcpjwt.IAMVerifyKeyfunc(ctx, config)(jwt.New(jwt.SigningMethodRS256))
				return err
			}},
		} {
			requests = nil
			if err := test.call(); err == nil {
				t.Fatal("the server knows no account, and nothing fails")
			}
			if len(requests) == 0 {
				continue // refused
			}
			// As a server takes it apart.
			u, err := url.Parse(requests[0].URL.String())
			if err != nil {
				t.Fatal(err)
			}
			escaped := strings.TrimSuffix(strings.TrimPrefix(u.EscapedPath(), test.before), test.after)
			got, err := url.PathUnescape(escaped)
			if err != nil || got != name || strings.Contains(escaped, "/") ||
				u.Scheme != "https" || u.Host != test.host || u.User != nil || u.Path != test.before+name+test.after || u.RawQuery != test.query || u.Fragment != "" {
				t.Errorf("account %q leads to %s", name, u)
			}
		}
	})
}
