package testutil

import (
	"encoding/json"
	"errors"
	"fmt"
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
		{"removed", http.Header{"Date": nil, "Etag": nil}, "", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.SetCertificateHeader(test.header)
			response, _ := get(t, s.Client(), url, nil)
			if got := response.Header.Get("Cache-Control"); got != test.cacheControl {
				t.Errorf("Cache-Control %q, want %q", got, test.cacheControl)
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
