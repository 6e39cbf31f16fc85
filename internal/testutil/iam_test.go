package testutil

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/googleapi"
	"google.golang.org/api/iamcredentials/v1"
)

const testAccount = "signer@test-project.iam.gserviceaccount.com"

// startIAM starts a server with one account, and Google's client on it.
func startIAM(t *testing.T, opts ...Option) (s *IAM, service *iamcredentials.Service, uniqueID string) {
	t.Helper()
	s, err := NewIAM(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if uniqueID, err = s.CreateAccount(testAccount); err != nil {
		t.Fatal(err)
	}
	if service, err = s.Service(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s, service, uniqueID
}

func signBlobWith(service *iamcredentials.Service, account, blob string, delegates ...string) (*iamcredentials.SignBlobResponse, error) {
	return service.Projects.ServiceAccounts.SignBlob(delegatePrefix+account, &iamcredentials.SignBlobRequest{
		Payload:   base64.StdEncoding.EncodeToString([]byte(blob)),
		Delegates: delegates,
	}).Do()
}

func signJWTWith(service *iamcredentials.Service, account, payload string) (*iamcredentials.SignJwtResponse, error) {
	return service.Projects.ServiceAccounts.SignJwt(delegatePrefix+account, &iamcredentials.SignJwtRequest{
		Payload: payload,
	}).Do()
}

// get fetches a URL and closes the body.
func get(t *testing.T, client *http.Client, url string, header http.Header) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		r.Header[name] = values
	}
	return do(t, client, r)
}

func do(t *testing.T, client *http.Client, r *http.Request) (*http.Response, string) {
	t.Helper()
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// fetchKeys reads a certificate endpoint.
func fetchKeys(t *testing.T, client *http.Client, url string) map[string]*rsa.PublicKey {
	t.Helper()
	response, body := get(t, client, url, nil)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", url, response.Status)
	}
	var certificates map[string]string
	if err := json.Unmarshal([]byte(body), &certificates); err != nil {
		t.Fatal(err)
	}
	keys := make(map[string]*rsa.PublicKey)
	for kid, certificate := range certificates {
		keys[kid] = certifiedKey(t, certificate)
	}
	return keys
}

func certifiedKey(t *testing.T, certificate string) *rsa.PublicKey {
	t.Helper()
	block, _ := pem.Decode([]byte(certificate))
	if block == nil {
		t.Fatalf("not PEM: %q", certificate)
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.PublicKey.(*rsa.PublicKey)
}

func verify(t *testing.T, key *rsa.PublicKey, data string, signature []byte) {
	t.Helper()
	if key == nil {
		t.Fatal("no such key is published")
	}
	digest := sha256.Sum256([]byte(data))
	if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature); err != nil {
		t.Error(err)
	}
}

func TestIAMSigns(t *testing.T) {
	s, service, uniqueID := startIAM(t)
	if len(uniqueID) != 21 {
		t.Errorf("unique ID %q has %d digits, want 21", uniqueID, len(uniqueID))
	}
	kid := s.KeyIDs(testAccount)[0]
	for _, url := range []string{
		s.CertificateURL() + "signer%40test-project.iam.gserviceaccount.com",
		s.CertificateURL() + uniqueID,
		s.URL() + "/service_accounts/v1/metadata/x509/" + testAccount,
	} {
		keys := fetchKeys(t, s.Client(), url)
		if len(keys) != 1 || !s.PublicKey(testAccount, kid).Equal(keys[kid]) {
			t.Errorf("GET %s: got keys %v, want %s", url, keys, kid)
		}
	}

	key := s.PublicKey(testAccount, kid)
	payload := fmt.Sprintf(`{ "b":"<&>é", "a":1,"exp":%d}`, time.Now().Add(time.Hour).Unix())
	for _, account := range []string{testAccount, uniqueID} {
		blob, err := signBlobWith(service, account, "\x00blob\xff")
		if err != nil {
			t.Fatal(err)
		}
		signature, err := base64.StdEncoding.DecodeString(blob.SignedBlob)
		if err != nil {
			t.Fatal(err)
		}
		verify(t, key, "\x00blob\xff", signature)

		answer, err := signJWTWith(service, account, payload)
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(answer.SignedJwt, ".")
		if len(parts) != 3 {
			t.Fatalf("signedJwt %q has %d parts", answer.SignedJwt, len(parts))
		}
		if signature, err = base64.RawURLEncoding.DecodeString(parts[2]); err != nil {
			t.Fatal(err)
		}
		verify(t, key, parts[0]+"."+parts[1], signature)
		wantHeader := `{"alg":"RS256","kid":"` + kid + `","typ":"JWT"}`
		if got := decodePart(t, parts[0]); got != wantHeader {
			t.Errorf("header %s, want %s", got, wantHeader)
		}
		if got := decodePart(t, parts[1]); got != payload {
			t.Errorf("payload %s, want %s", got, payload)
		}
		if blob.KeyId != kid || answer.KeyId != kid {
			t.Errorf("keyId %q and %q, want %q", blob.KeyId, answer.KeyId, kid)
		}
	}
	for what, want := range map[string]int{"signBlob": 2, "signJwt": 2, "certificates": 3, "": 7, "other": 0} {
		if got := s.Calls(what); got != want {
			t.Errorf("Calls(%q) = %d, want %d", what, got, want)
		}
	}
	if got := s.Connections(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
	s.ResetCalls()
	if got := s.Calls(""); got != 0 {
		t.Errorf("%d calls after ResetCalls", got)
	}
}

func decodePart(t *testing.T, part string) string {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestIAMRotation(t *testing.T) {
	s, service, _ := startIAM(t, InMemory())
	first := s.KeyIDs(testAccount)[0]
	second, err := s.AddKey(testAccount)
	if err != nil {
		t.Fatal(err)
	}
	signers := func() []string {
		var kids []string
		// That one of two keys is never chosen in 40 has probability 2^-39.
		for range 40 {
			answer, err := signBlobWith(service, testAccount, "x")
			if err != nil {
				t.Fatal(err)
			}
			signature, err := base64.StdEncoding.DecodeString(answer.SignedBlob)
			if err != nil {
				t.Fatal(err)
			}
			verify(t, s.PublicKey(testAccount, answer.KeyId), "x", signature)
			if !slices.Contains(kids, answer.KeyId) {
				kids = append(kids, answer.KeyId)
			}
		}
		slices.Sort(kids)
		return kids
	}
	both := slices.Sorted(slices.Values([]string{first, second}))

	if got, want := s.KeyIDs(testAccount), []string{first, second}; !slices.Equal(got, want) {
		t.Errorf("published %v, want %v", got, want)
	}
	if got, want := signers(), []string{first}; !slices.Equal(got, want) {
		t.Errorf("signing before its time: %v, want %v", got, want)
	}
	s.SetSigningKeys(testAccount, first, second)
	if got := signers(); !slices.Equal(got, both) {
		t.Errorf("phasing in: signed by %v, want %v", got, both)
	}
	if s.PublicKey(testAccount, first).Equal(s.PublicKey(testAccount, second)) {
		t.Error("both keys are the same")
	}
	s.RemoveKey(testAccount, first)
	if got, want := signers(), []string{second}; !slices.Equal(got, want) {
		t.Errorf("after removal: signed by %v, want %v", got, want)
	}
	if got := fetchKeys(t, s.Client(), s.CertificateURL()+testAccount); len(got) != 1 || got[second] == nil {
		t.Errorf("after removal: published %v, want %s", got, second)
	}
	s.RemoveKey(testAccount, second)
	var failure *googleapi.Error
	if _, err := signBlobWith(service, testAccount, "x"); !errors.As(err, &failure) || failure.Code != http.StatusInternalServerError {
		t.Errorf("without keys: got %v, want 500", err)
	}
}

func TestIAMMistakes(t *testing.T) {
	s, _, _ := startIAM(t, InMemory())
	if _, err := s.CreateAccount(testAccount); err == nil {
		t.Error("CreateAccount made an account twice")
	}
	if _, err := s.AddKey("nobody@test"); err == nil {
		t.Error("AddKey knows nobody@test")
	}
	if got := s.PublicKey(testAccount, "unknown"); got != nil {
		t.Errorf("PublicKey returned %v", got)
	}
	for name, f := range map[string]func(){
		"unknown key":        func() { s.SetSigningKeys(testAccount, "unknown") },
		"unknown account":    func() { s.RemoveKey("nobody@test", "unknown") },
		"unknown permission": func() { s.Deny("signJwt") },
	} {
		if !panics(f) {
			t.Errorf("%s: no panic", name)
		}
	}
}

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

func TestIAMIntercept(t *testing.T) {
	s, service, _ := startIAM(t, InMemory())
	s.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if s.Calls("signBlob") == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if body, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(body), "payload") {
			t.Errorf("intercepted body %q, %v", body, err)
		} else {
			r.Body = io.NopCloser(strings.NewReader(string(body)))
		}
		w.Header().Set("X-Test", "seen")
		next.ServeHTTP(w, r)
	})
	var failure *googleapi.Error
	if _, err := signBlobWith(service, testAccount, "x"); !errors.As(err, &failure) || failure.Code != http.StatusServiceUnavailable {
		t.Errorf("got %v, want 503", err)
	}
	answer, err := signBlobWith(service, testAccount, "x")
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.ServerResponse.Header.Get("X-Test"); got != "seen" {
		t.Errorf("X-Test %q, want seen", got)
	}
	s.Intercept(nil)
	if answer, err = signBlobWith(service, testAccount, "x"); err != nil || answer.Header.Get("X-Test") != "" {
		t.Errorf("still intercepted: %v, %v", answer, err)
	}
}

func TestIAMOutage(t *testing.T) {
	for name, opts := range map[string][]Option{"TCP": nil, "in memory": {InMemory()}} {
		t.Run(name, func(t *testing.T) {
			s, service, _ := startIAM(t, opts...)
			url := s.URL()
			arrived := make(chan struct{})
			s.Intercept(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
				close(arrived)
				<-r.Context().Done()
			})
			cut := make(chan error)
			go func() {
				_, err := signBlobWith(service, testAccount, "x")
				cut <- err
			}()
			<-arrived
			s.Stop()
			s.Stop()
			if err := <-cut; err == nil {
				t.Error("a call under way survived Stop")
			}
			if _, err := signBlobWith(service, testAccount, "x"); err == nil {
				t.Error("a call during an outage succeeded")
			}
			s.Intercept(nil)
			for range 2 {
				if err := s.Restart(); err != nil {
					t.Fatal(err)
				}
			}
			if got := s.URL(); got != url {
				t.Errorf("restarted on %s, want %s", got, url)
			}
			if _, err := signBlobWith(service, testAccount, "x"); err != nil {
				t.Error(err)
			}
			s.Close()
			s.Close()
			if err := s.Restart(); err == nil {
				t.Error("restarted after Close")
			}
		})
	}
}

func TestIAMConcurrency(t *testing.T) {
	s, service, _ := startIAM(t)
	if _, err := s.AddKey(testAccount); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			s.SetSigningKeys(testAccount, s.KeyIDs(testAccount)[i%2])
			if _, err := signBlobWith(service, testAccount, "x"); err != nil {
				t.Error(err)
			}
			response, err := s.Client().Get(s.CertificateURL() + testAccount)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
		})
	}
	wg.Wait()
	if got := s.Calls(""); got != 40 {
		t.Errorf("%d calls, want 40", got)
	}
}

// An hour of latency passes at once in a bubble, and a caller's deadline ends
// the wait.
func TestIAMLatencyInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, service, _ := startIAM(t, InMemory())
		defer s.Close()
		s.SetLatency(time.Hour)
		start := time.Now()
		if _, err := signBlobWith(service, testAccount, "x"); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(start); got != time.Hour {
			t.Errorf("took %v, want 1h", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		call := service.Projects.ServiceAccounts.SignJwt(delegatePrefix+testAccount, &iamcredentials.SignJwtRequest{Payload: "{}"})
		if _, err := call.Context(ctx).Do(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		if got := time.Since(start); got != time.Hour+time.Minute {
			t.Errorf("came back after %v, want 1h1m", got)
		}
		if got := s.Calls("signJwt"); got != 1 {
			t.Errorf("%d calls, want 1", got)
		}
		if got := fetchKeys(t, s.Client(), s.CertificateURL()+testAccount); len(got) != 1 {
			t.Errorf("published %v, want one key", got)
		}
	})
}
