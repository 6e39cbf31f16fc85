package testutil

import (
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/googleapi"
)

func TestIAMRefuses(t *testing.T) {
	s, _, _ := startIAM(t)
	const blobBody = `{"payload":"YQ=="}`
	account := "/v1/projects/-/serviceAccounts/" + testAccount
	for _, test := range []struct {
		name, method, path, contentType, body string
		code                                  int
		status, message                       string
	}{
		{name: "method", method: "PUT", path: account + ":signBlob", body: blobBody, code: 404, status: "NOT_FOUND"},
		{name: "other call", path: account + ":generateAccessToken", body: `{}`, code: 404, status: "NOT_FOUND", message: "Method not found."},
		{name: "no call", path: account, body: blobBody, code: 404, status: "NOT_FOUND"},
		{name: "project", path: "/v1/projects/test-project/serviceAccounts/" + testAccount + ":signBlob", body: blobBody, code: 400, status: "INVALID_ARGUMENT", message: "projects/-/serviceAccounts/"},
		{name: "unknown account", path: "/v1/projects/-/serviceAccounts/nobody@test:signJwt", body: `{"payload":"{}"}`, code: 403, status: "PERMISSION_DENIED", message: "Permission 'iam.serviceAccounts.signJwt' denied on resource (or it may not exist)."},
		{name: "account with a slash", path: account + "/x:signBlob", body: blobBody, code: 404, status: "NOT_FOUND"},
		{name: "escaped slash", path: account + "%2Fx:signBlob", body: blobBody, code: 403, status: "PERMISSION_DENIED"},
		{name: "content type", path: account + ":signBlob", contentType: "text/plain", body: blobBody, code: 400, status: "INVALID_ARGUMENT", message: "text/plain"},
		{name: "query", path: account + ":signBlob?x=1", body: blobBody, code: 400, status: "INVALID_ARGUMENT", message: `Unknown name "x": Cannot bind query parameter.`},
		{name: "alt", path: account + ":signBlob?alt=proto", body: blobBody, code: 400, status: "INVALID_ARGUMENT"},
		{name: "not JSON", path: account + ":signBlob", body: `{`, code: 400, status: "INVALID_ARGUMENT", message: "Invalid JSON payload received."},
		{name: "not UTF-8", path: account + ":signJwt", body: "{\"payload\":\"{}\xff\"}", code: 400, status: "INVALID_ARGUMENT", message: "UTF-8"},
		{name: "unknown field", path: account + ":signBlob", body: `{"payload":"YQ==","Payload":"YQ=="}`, code: 400, status: "INVALID_ARGUMENT", message: `Invalid JSON payload received. Unknown name "Payload": Cannot find field.`},
		{name: "type", path: account + ":signBlob", body: `{"payload":1}`, code: 400, status: "INVALID_ARGUMENT", message: "Invalid value at 'payload'"},
		{name: "no payload", path: account + ":signBlob", body: `{}`, code: 400, status: "INVALID_ARGUMENT", message: "required"},
		{name: "base64url", path: account + ":signBlob", body: `{"payload":"-_-_"}`, code: 400, status: "INVALID_ARGUMENT", message: "Base64 decoding failed"},
		{name: "no padding", path: account + ":signBlob", body: `{"payload":"YQ"}`, code: 400, status: "INVALID_ARGUMENT", message: "Base64 decoding failed"},
		{name: "delegate with a project", path: account + ":signBlob", body: `{"payload":"YQ==","delegates":["projects/p/serviceAccounts/a@b"]}`, code: 400, status: "INVALID_ARGUMENT", message: "Invalid delegate"},
		{name: "bare delegate", path: account + ":signBlob", body: `{"payload":"YQ==","delegates":["a@b"]}`, code: 400, status: "INVALID_ARGUMENT", message: "Invalid delegate"},
		{name: "empty delegate", path: account + ":signBlob", body: `{"payload":"YQ==","delegates":["projects/-/serviceAccounts/"]}`, code: 400, status: "INVALID_ARGUMENT", message: "Invalid delegate"},
		{name: "claims not JSON", path: account + ":signJwt", body: `{"payload":"x"}`, code: 400, status: "INVALID_ARGUMENT", message: "JSON object"},
		{name: "claims null", path: account + ":signJwt", body: `{"payload":"null"}`, code: 400, status: "INVALID_ARGUMENT", message: "JSON object"},
		{name: "claims array", path: account + ":signJwt", body: `{"payload":"[]"}`, code: 400, status: "INVALID_ARGUMENT", message: "JSON object"},
		{name: "unknown certificates", method: "GET", path: "/robot/v1/metadata/x509/nobody@test", code: 404, status: "NOT_FOUND", message: "Not found; Gaia id not found for email nobody@test"},
		{name: "certificates posted", path: "/robot/v1/metadata/x509/" + testAccount, code: 404, status: "NOT_FOUND"},
		{name: "other path", method: "GET", path: "/", code: 404, status: "NOT_FOUND"},
	} {
		t.Run(test.name, func(t *testing.T) {
			method := test.method
			if method == "" {
				method = http.MethodPost
			}
			r, err := http.NewRequest(method, s.URL()+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			if test.contentType != "" {
				r.Header.Set("Content-Type", test.contentType)
			}
			response, body := do(t, s.Client(), r)
			var got struct{ Error googleError }
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			if response.StatusCode != test.code || got.Error.Code != test.code || got.Error.Status != test.status || !strings.Contains(got.Error.Message, test.message) {
				t.Errorf("got %s, %+v, want %d %s %q", response.Status, got.Error, test.code, test.status, test.message)
			}
		})
	}
}

func TestIAMExp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, service, _ := startIAM(t, InMemory())
		now := time.Now().Unix()
		const limit = 12 * 60 * 60
		for _, test := range []struct {
			name, payload, added string
			addExp               bool
			refused              string
		}{
			{name: "missing", payload: `{}`},
			{name: "now", payload: fmt.Sprintf(`{"exp":%d}`, now)},
			{name: "limit", payload: fmt.Sprintf(`{"exp":%d}`, now+limit)},
			{name: "past", payload: fmt.Sprintf(`{"exp":%d}`, now-1), refused: "past"},
			{name: "over the limit", payload: fmt.Sprintf(`{"exp":%d}`, now+limit+1), refused: "12 hours"},
			{name: "fraction", payload: fmt.Sprintf(`{"exp":%d.5}`, now+1), refused: "integer"},
			{name: "string", payload: fmt.Sprintf(`{"exp":"%d"}`, now+1), refused: "integer"},
			{name: "null", payload: `{"exp":null}`, refused: "integer"},
			{name: "added", payload: `{"sub":"x"} `, addExp: true, added: fmt.Sprintf(`{"sub":"x","exp":%d}`, now+3600)},
			{name: "added to nothing", payload: `{}`, addExp: true, added: fmt.Sprintf(`{"exp":%d}`, now+3600)},
			{name: "nothing to add", payload: fmt.Sprintf(`{"exp":%d}`, now+1), addExp: true},
		} {
			s.AddExp(test.addExp)
			answer, err := signJWTWith(service, testAccount, test.payload)
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("%s: error %v, want %q", test.name, err, test.refused)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
				continue
			}
			want := test.payload
			if test.added != "" {
				want = test.added
			}
			if got := decodePart(t, strings.Split(answer.SignedJwt, ".")[1]); got != want {
				t.Errorf("%s: payload %s, want %s", test.name, got, want)
			}
		}
		s.Close()
	})
}

func TestIAMPermissions(t *testing.T) {
	s, service, _ := startIAM(t)
	blob := func(delegates ...string) func() error {
		return func() error {
			_, err := signBlobWith(service, testAccount, "x", delegates...)
			return err
		}
	}
	jwt := func() error {
		_, err := signJWTWith(service, testAccount, `{}`)
		return err
	}
	deny := func(permission string) func() {
		return func() { s.Deny("iam.serviceAccounts." + permission) }
	}
	for _, test := range []struct {
		name   string
		set    func()
		call   func() error
		denied string
	}{
		{"signBlob", deny("signBlob"), blob(), "signBlob"},
		{"signJwt", deny("signJwt"), jwt, "signJwt"},
		{"other permission", deny("signJwt"), blob(), ""},
		{"chain", func() { s.SetDelegates(testAccount, "a@b", "1") }, blob(delegatePrefix+"a@b", delegatePrefix+"1"), ""},
		{"chain in another order", func() { s.SetDelegates(testAccount, "a@b", "1") }, blob(delegatePrefix+"1", delegatePrefix+"a@b"), "signBlob"},
		{"no chain", func() { s.SetDelegates(testAccount, "a@b") }, jwt, "signJwt"},
		{"any chain", func() {}, blob(delegatePrefix + "a@b"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.set()
			defer s.SetDelegates(testAccount)
			defer s.Allow("iam.serviceAccounts.signBlob", "iam.serviceAccounts.signJwt")
			err := test.call()
			if test.denied == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			want := "Permission 'iam.serviceAccounts." + test.denied + "' denied on resource (or it may not exist)."
			var refusal *googleapi.Error
			if !errors.As(err, &refusal) || refusal.Code != http.StatusForbidden || refusal.Message != want {
				t.Errorf("got %v, want 403 %s", err, want)
			}
		})
	}
}

func TestIAMCertificateHeaders(t *testing.T) {
	s, _, _ := startIAM(t, InMemory())
	url := s.CertificateURL() + testAccount
	for _, test := range []struct {
		name         string
		header       http.Header
		cacheControl string
		etag, date   bool
	}{
		{"default", nil, "public, max-age=21600, must-revalidate, no-transform", true, true},
		{"none", http.Header{}, "", false, true},
		{"replaced", http.Header{"cache-control": {"max-age=1"}}, "max-age=1", true, true},
		{"Expires 0", http.Header{"Cache-Control": {"public"}, "Expires": {"0"}}, "public", true, true},
		{"Expires garbage", http.Header{"Expires": {"next week"}}, "", true, true},
		{"removed", http.Header{"Date": nil, "Etag": nil}, "", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.SetCertificateHeader(test.header)
			response, _ := get(t, s.Client(), url, nil)
			if got := response.Header.Get("Cache-Control"); got != test.cacheControl {
				t.Errorf("Cache-Control %q, want %q", got, test.cacheControl)
			}
			if got, want := response.Header.Get("Expires"), test.header.Get("Expires"); got != want {
				t.Errorf("Expires %q, want %q", got, want)
			}
			etag := response.Header.Get("ETag")
			if got := etag != ""; got != test.etag {
				t.Errorf("has an ETag: %t, want %t", got, test.etag)
			}
			if got := response.Header.Get("Date") != ""; got != test.date {
				t.Errorf("has a Date: %t, want %t", got, test.date)
			}
			if !test.etag {
				return
			}
			response, body := get(t, s.Client(), url, http.Header{"If-None-Match": {etag}})
			if response.StatusCode != http.StatusNotModified || body != "" {
				t.Errorf("same ETag: %s, body %q, want 304", response.Status, body)
			}
			if got := response.Header.Get("Cache-Control"); got != test.cacheControl {
				t.Errorf("304: Cache-Control %q, want %q", got, test.cacheControl)
			}
			if _, err := s.AddKey(testAccount); err != nil {
				t.Fatal(err)
			}
			if response, _ := get(t, s.Client(), url, http.Header{"If-None-Match": {etag}}); response.StatusCode != http.StatusOK {
				t.Errorf("old ETag: %s, want 200", response.Status)
			}
		})
	}
}

// A call that is cut has been counted, and ends the client's call: Google's REST
// client doesn't repeat it.
func TestIAMCut(t *testing.T) {
	s, service, _ := startIAM(t)
	calls := map[string]func() error{
		callSignBlob: func() error {
			_, err := signBlobWith(service, testAccount, "x")
			return err
		},
		callSignJWT: func() error {
			_, err := signJWTWith(service, testAccount, `{}`)
			return err
		},
		callCertificates: func() error {
			s.Client().CloseIdleConnections() // net/http repeats a GET on a used connection
			response, err := s.Client().Get(s.CertificateURL() + testAccount)
			if err == nil {
				response.Body.Close()
			}
			return err
		},
	}
	for what, call := range calls {
		s.Cut(what, 2)
		for i, cut := range []bool{true, true, false} {
			err := call()
			if (err != nil) != cut {
				t.Errorf("%s, call %d: %v, want it cut: %t", what, i+1, err, cut)
			}
			if _, answered := errors.AsType[*googleapi.Error](err); answered {
				t.Errorf("%s, call %d: %v, want no answer", what, i+1, err)
			}
		}
		if got := s.Calls(what); got != 3 {
			t.Errorf("Calls(%q) = %d, want 3", what, got)
		}
		if got := s.InFlight(""); got != 0 {
			t.Errorf("InFlight = %d, want 0", got)
		}
		s.Cut("", 1)
		if err := call(); err == nil {
			t.Errorf("%s wasn't cut by a cut for all", what)
		}
	}
}

func TestIAMJWKSet(t *testing.T) {
	s, _, uniqueID := startIAM(t)
	if _, err := s.AddKey(testAccount); err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{testAccount, uniqueID} {
		response, body := get(t, s.Client(), s.JWKURL()+account, nil)
		var set struct {
			Keys []struct{ Kty, Alg, Use, Kid, N, E string }
		}
		if err := json.Unmarshal([]byte(body), &set); err != nil {
			t.Fatal(err)
		}
		if len(set.Keys) != 2 || response.Header.Get("Cache-Control") == "" {
			t.Errorf("got %s with header %v, want two keys", body, response.Header)
		}
		for i, key := range set.Keys {
			n, errN := base64.RawURLEncoding.DecodeString(key.N)
			e, errE := base64.RawURLEncoding.DecodeString(key.E)
			if errN != nil || errE != nil {
				t.Fatal(errN, errE)
			}
			got := &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
			if kid := s.KeyIDs(testAccount)[i]; key.Kid != kid || !s.PublicKey(testAccount, kid).Equal(got) ||
				key.Kty != "RSA" || key.Alg != "RS256" || key.Use != "sig" {
				t.Errorf("key %d is %+v, want %s", i, key, kid)
			}
		}
	}
	for _, kid := range s.KeyIDs(testAccount) {
		s.RemoveKey(testAccount, kid)
	}
	if _, body := get(t, s.Client(), s.JWKURL()+testAccount, nil); !strings.Contains(body, `"keys": []`) {
		t.Errorf("without keys: %s, want an empty array", body)
	}
	if response, _ := get(t, s.Client(), s.JWKURL()+"nobody@test", nil); response.StatusCode != http.StatusNotFound {
		t.Errorf("unknown account: %s, want 404", response.Status)
	}
	if got := s.Calls("jwk"); got != 4 {
		t.Errorf("Calls = %d, want 4", got)
	}
}

func TestIAMCacheOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := startIAM(t, InMemory())
		url := s.CertificateURL() + testAccount
		keys := func(header http.Header) (int, string) {
			response, body := get(t, s.Client(), url, header)
			var certificates map[string]string
			if err := json.Unmarshal([]byte(body), &certificates); err != nil {
				t.Fatal(err)
			}
			return len(certificates), response.Header.Get("Age")
		}
		s.CacheCertificates(true)
		keys(nil)
		if _, err := s.AddKey(testAccount); err != nil {
			t.Fatal(err)
		}
		time.Sleep(90 * time.Second)
		for _, test := range []struct {
			name   string
			header http.Header
			want   int
			age    string
		}{
			{"plain", nil, 1, "90"},
			{"another directive", http.Header{"Cache-Control": {"max-age=60"}, "Pragma": {"no-cache"}}, 1, "90"},
			{"no-cache", http.Header{"Cache-Control": {"max-age=60, No-Cache"}}, 2, ""},
			{"plain again", nil, 2, "0"},
		} {
			if got, age := keys(test.header); got != test.want || age != test.age {
				t.Errorf("%s: %d keys of age %q, want %d of %q", test.name, got, age, test.want, test.age)
			}
		}
		if got := s.RequestHeader(callCertificates).Get("User-Agent"); got == "" || s.RequestHeader(callSignJWT) != nil {
			t.Errorf("RequestHeader has User-Agent %q", got)
		}
		keys(http.Header{"Cache-Control": {"no-cache"}})
		if got := s.RequestHeader(callCertificates).Get("Cache-Control"); got != "no-cache" {
			t.Errorf("RequestHeader has Cache-Control %q, want no-cache", got)
		}

		if _, err := s.AddKey(testAccount); err != nil {
			t.Fatal(err)
		}
		if got, _ := keys(nil); got != 2 {
			t.Errorf("before the cache is off: %d keys, want 2", got)
		}
		s.CacheCertificates(false)
		if got, age := keys(nil); got != 3 || age != "" {
			t.Errorf("once the cache is off: %d keys of age %q, want 3", got, age)
		}
		s.CacheCertificates(true)
		if got, _ := keys(http.Header{"Pragma": {"no-cache"}}); got != 3 {
			t.Errorf("Pragma: %d keys, want 3", got)
		}
		s.Close()
	})
}
