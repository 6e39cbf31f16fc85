package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

const (
	account      = "signer@test.iam.gserviceaccount.com"
	refreshToken = "1//refresh-token-of-the-test"
	accessToken  = "ya29.access-token-of-the-test"
)

// google is Google Cloud as the command finds it, at Google's own addresses: a proxy that it is
// told of by the usual variables leads to servers within the test.
type google struct {
	kms     *testutil.KMS
	iam     *testutil.IAM
	version string // of an ES256 key
	env     []string
}

func newGoogle(t *testing.T) *google {
	if runtime.GOOS != "linux" {
		t.Skip("SSL_CERT_FILE has no effect everywhere")
	}
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	kms, err := testutil.NewKMS()
	must(err)
	t.Cleanup(kms.Close)
	version, err := kms.CreateKey("key", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	must(err)
	iam, err := testutil.NewIAM()
	must(err)
	t.Cleanup(iam.Close)
	_, err = iam.CreateAccount(account)
	must(err)
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"access_token": accessToken, "token_type": "Bearer", "expires_in": 3600})
	}))
	t.Cleanup(login.Close)
	iamAddress := strings.TrimPrefix(iam.URL(), "http://")
	proxy, ca := newProxy(t, map[string]backend{
		"cloudkms.googleapis.com":       {kms.Addr(), "h2"},
		"iamcredentials.googleapis.com": {iamAddress, "http/1.1"},
		"www.googleapis.com":            {iamAddress, "http/1.1"},
		"oauth2.googleapis.com":         {login.Listener.Addr().String(), "http/1.1"},
	})

	dir := t.TempDir()
	credentials, err := json.Marshal(map[string]string{
		"type": "authorized_user", "client_id": "client", "client_secret": "client-secret-of-the-test", "refresh_token": refreshToken,
	})
	must(err)
	must(os.WriteFile(filepath.Join(dir, "credentials.json"), credentials, 0o600))
	must(os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600))
	return &google{kms, iam, version, []string{
		"HTTPS_PROXY=" + proxy,
		"SSL_CERT_FILE=" + filepath.Join(dir, "ca.pem"),
		"SSL_CERT_DIR=" + dir,
		"GOOGLE_APPLICATION_CREDENTIALS=" + filepath.Join(dir, "credentials.json"),
	}}
}

// A backend stands for a host.
type backend struct{ address, protocol string }

// newProxy starts a proxy that ends TLS in the name of the hosts, and returns its URL and whom to
// trust for that.
func newProxy(t *testing.T, backends map[string]backend) (proxyURL string, ca []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	for host := range backends {
		template.DNSNames = append(template.DNSNames, host)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	certificate := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}

	var tunnels sync.WaitGroup
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, ok := backends[r.URL.Hostname()]
		if r.Method != http.MethodConnect || !ok {
			t.Errorf("%s %s, which nobody has to ask", r.Method, r.Host)
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		behind, err := net.Dial("tcp", to.address)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		raw, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(raw, "HTTP/1.1 200 OK\r\n\r\n")
		front := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{to.protocol}})
		for from, to := range map[net.Conn]net.Conn{front: behind, behind: front} {
			tunnels.Go(func() {
				io.Copy(to, from)
				to.Close()
			})
		}
	}))
	t.Cleanup(func() {
		proxy.Close()
		tunnels.Wait() // the command has ended, and with it its connections
	})
	return proxy.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// On Google Cloud, which is what the command is for.
func TestGoogle(t *testing.T) {
	t.Parallel()
	g := newGoogle(t)
	cryptoKey, _, _ := strings.Cut(g.version, "/cryptoKeyVersions/")
	for name, test := range map[string]struct{ sign, verify []string }{
		"version":   {[]string{"-kms", g.version}, []string{"-kms", g.version}},
		"CryptoKey": {[]string{"-kms", cryptoKey}, []string{"-kms", cryptoKey}},
		"signJwt":   {[]string{"-service-account", account}, []string{"-service-account", account}},
		"signBlob":  {[]string{"-service-account", account, "-blob"}, []string{"-service-account", account}},
	} {
		t.Run(name, func(t *testing.T) {
			signed := call(t, "", g.env, append([]string{"sign", "-sub", "alice"}, test.sign...)...)
			signed.want(t, 0, "ey", "")
			verified := call(t, signed.stdout, g.env, append(append([]string{"verify"}, test.verify...), "-")...)
			verified.want(t, 0, `"sub": "alice"`, "")
		})
	}
	if got := g.iam.Calls("signJwt"); got != 1 {
		t.Errorf("%d calls of signJwt, want 1", got)
	}

	all := call(t, "", g.env, "jwks", "-kms", cryptoKey, "-kms", g.version, "-service-account", account)
	all.want(t, 0, `"kty": "RSA"`, "")
	var set struct{ Keys []any }
	if err := json.Unmarshal([]byte(all.stdout), &set); err != nil || len(set.Keys) != 2 {
		t.Errorf("%d keys, error %v, want 2:\n%s", len(set.Keys), err, all.stdout)
	}
	mac, err := g.kms.CreateKey("mac", kmspb.CryptoKeyVersion_HMAC_SHA256)
	if err != nil {
		t.Fatal(err)
	}
	call(t, "", g.env, "jwks", "-kms", mac).want(t, 1, "", "MAC keys have none")
}

// What Google refuses ends with status 1 and an error that says what to do, and gives nothing
// away.
func TestGoogleRefuses(t *testing.T) {
	t.Parallel()
	g := newGoogle(t)
	signed := call(t, "", g.env, "sign", "-kms", g.version, "-sub", "alice-of-the-test")
	signed.want(t, 0, "ey", "")
	call(t, "", g.env, "sign", "-kms", g.version+"2").want(t, 1, "", "check KeyPath")
	g.kms.Deny("cloudkms.cryptoKeyVersions.useToSign", "cloudkms.cryptoKeyVersions.viewPublicKey")
	g.iam.Deny("iam.serviceAccounts.signJwt")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"sign", "-kms", g.version, "-sub", "alice-of-the-test"}, "grant the caller cloudkms.cryptoKeyVersions.viewPublicKey (roles/cloudkms.publicKeyViewer)"},
		{[]string{"sign", "-service-account", account, "-sub", "alice-of-the-test"}, "grant the caller iam.serviceAccounts.signJwt (roles/iam.serviceAccountTokenCreator)"},
		{[]string{"verify", "-kms", g.version, signed.stdout}, "keys unavailable"},
		{[]string{"verify", "-service-account", account, signed.stdout}, "algorithm mismatch"},
		{[]string{"verify", "-service-account", "other@test.iam.gserviceaccount.com", signed.stdout}, "algorithm mismatch"},
		{[]string{"jwks", "-kms", g.version}, "grant the caller cloudkms.cryptoKeyVersions.viewPublicKey"},
		{[]string{"jwks", "-service-account", account, "-service-account", "other@test.iam.gserviceaccount.com"}, "404"},
	} {
		r := call(t, "", g.env, test.args...)
		r.want(t, 1, "", test.want)
		for _, secret := range []string{strings.TrimSpace(signed.stdout), "alice-of-the-test", accessToken, refreshToken, "client-secret-of-the-test"} {
			if strings.Contains(r.stderr, secret) {
				t.Errorf("gcpjwt %q: %q in the error:\n%s", test.args, secret, r.stderr)
			}
		}
	}

	// signJwt's rules are known beforehand.
	for _, args := range [][]string{{"-lifetime", "13h"}, {"-claims", `{"exp":1}`}, {"-claims", `{"exp":"tomorrow"}`}} {
		call(t, "", g.env, append([]string{"sign", "-service-account", account}, args...)...).want(t, 2, "", "signJwt")
	}
}

func TestNoCredentials(t *testing.T) {
	t.Parallel()
	env := []string{"GOOGLE_APPLICATION_CREDENTIALS=" + filepath.Join(t.TempDir(), "none.json")}
	const key = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
	call(t, "", env, "sign", "-kms", key).want(t, 1, "", "none.json")
	call(t, "", env, "sign", "-service-account", account).want(t, 1, "", "none.json")
	call(t, "", env, "verify", "-kms", key, "x.y.z").want(t, 1, "", "none.json")
}
