package jwks_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

func TestDiscoveryHandler(t *testing.T) {
	keys := allKeys(t)[1:5]
	set, err := jwks.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		issuer    string
		set       string   // its URL
		documents []string // paths
		notFound  []string
	}{
		{
			"https://issuer.example", "https://issuer.example/.well-known/jwks.json",
			[]string{"/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"},
			[]string{"/", "/.well-known", "/.well-known/openid-configuration/", "/.well-known/jwks.json/", "//.well-known/jwks.json"},
		}, {
			"https://issuer.example/", "https://issuer.example/.well-known/jwks.json",
			[]string{"/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"},
			[]string{"/", "//.well-known/openid-configuration", "/.well-known/oauth-authorization-server/"},
		}, {
			"https://issuer.example:8443/tenants/a-1", "https://issuer.example:8443/tenants/a-1/.well-known/jwks.json",
			[]string{"/tenants/a-1/.well-known/openid-configuration", "/.well-known/oauth-authorization-server/tenants/a-1"},
			[]string{"/.well-known/openid-configuration", "/.well-known/oauth-authorization-server", "/.well-known/jwks.json", "/tenants/a-1", "/tenants/A-1/.well-known/jwks.json"},
		}, {
			"https://issuer.example/tenant/", "https://issuer.example/tenant/.well-known/jwks.json",
			[]string{"/tenant/.well-known/openid-configuration", "/.well-known/oauth-authorization-server/tenant"},
			[]string{"/tenant//.well-known/openid-configuration", "/.well-known/oauth-authorization-server/tenant/"},
		}, {
			"http://127.0.0.1:8080/x", "http://127.0.0.1:8080/x/.well-known/jwks.json",
			[]string{"/x/.well-known/openid-configuration", "/.well-known/oauth-authorization-server/x"}, nil,
		}, {
			"http://[::1]", "http://[::1]/.well-known/jwks.json", []string{"/.well-known/openid-configuration"}, nil,
		}, {
			"http://localhost:3000", "http://localhost:3000/.well-known/jwks.json", []string{"/.well-known/openid-configuration"}, nil,
		},
	} {
		t.Run(test.issuer, func(t *testing.T) {
			server := serve(t, jwks.NewDiscoveryHandler(test.issuer, constant(keys...)))
			document := `{"issuer":"` + test.issuer + `","jwks_uri":"` + test.set + `","response_types_supported":["id_token"],` +
				`"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256","ES384","ES256K","EdDSA","Ed25519"]}`
			for _, path := range test.documents {
				response, body := answer(t, server, "GET", path, nil)
				if response.StatusCode != 200 || body != document {
					t.Errorf("%s: %s with\n%s, want\n%s", path, response.Status, body, document)
				}
				got := headers(response, "Content-Type", "Cache-Control", "Access-Control-Allow-Origin")
				if want := "Content-Type: application/json\nCache-Control: public, max-age=300\nAccess-Control-Allow-Origin: *\n"; got != want {
					t.Errorf("%s: headers %s, want %s", path, got, want)
				}
				if again, _ := answer(t, server, "GET", path, map[string][]string{"If-None-Match": {response.Header.Get("ETag")}}); again.StatusCode != 304 {
					t.Errorf("%s: %s with the ETag, want 304", path, again.Status)
				}
			}
			_, path, _ := strings.Cut(strings.SplitN(test.set, "://", 2)[1], "/")
			response, body := answer(t, server, "GET", "/"+path, nil)
			if response.StatusCode != 200 || body != string(set) || response.Header.Get("Content-Type") != "application/jwk-set+json" {
				t.Errorf("/%s: %s with %s, want the JWK Set", path, response.Status, body)
			}
			for _, path := range test.notFound {
				if response, _ := answer(t, server, "GET", path, nil); response.StatusCode != 404 {
					t.Errorf("%s: %s, want 404", path, response.Status)
				}
			}
			if response, _ := answer(t, server, "POST", test.documents[0], nil); response.StatusCode != 405 {
				t.Errorf("POST: %s, want 405", response.Status)
			}
		})
	}
}

func TestDiscoveryNoKeys(t *testing.T) {
	recorder := httptest.NewRecorder()
	jwks.NewDiscoveryHandler("https://issuer.example", constant()).ServeHTTP(recorder, httptest.NewRequest("GET", "/.well-known/openid-configuration", nil))
	if body := recorder.Body.String(); !strings.Contains(body, `"id_token_signing_alg_values_supported":[]`) || recorder.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%s with Cache-Control %s; want no algorithm, and no-store", body, recorder.Header().Get("Cache-Control"))
	}
}

func TestDiscoveryIssuers(t *testing.T) {
	for _, issuer := range []string{
		"", "issuer.example", "/", "https://", "https:///path", "https://:443", "https:issuer.example",
		"http://issuer.example", "http://10.0.0.1", "http://localhost.example", "ftp://issuer.example", "HTTPS://issuer.example",
		"https://issuer.example?", "https://issuer.example/?a=b", "https://issuer.example#", "https://issuer.example/#a",
		"https://user@issuer.example", "https://user:password@issuer.example",
		"https://issuer.example//", "https://issuer.example//a", "https://issuer.example/a//", "https://issuer.example/a//b",
		"https://issuer.example/.", "https://issuer.example/a/../b", "https://issuer.example/./a", "https://issuer.example/..",
		"https://issuer.example/a%2Fb", "https://issuer.example/a%20b", "https://issuer.example/a b", "https://issuer.example/ä",
		" https://issuer.example", "https://issuer.example ", "https://issuer.example\n", "https://user:password@issuer.example:port",
	} {
		t.Run(issuer, func(t *testing.T) {
			message := panicOf(func() { jwks.NewDiscoveryHandler(issuer, constant()) })
			if !strings.HasPrefix(message, "jwks: NewDiscoveryHandler: ") {
				t.Errorf("the panic is %q", message)
			}
			if strings.Contains(message, "password") {
				t.Errorf("the panic %q has the password in it", message)
			}
		})
	}
}
