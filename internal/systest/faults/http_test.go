package faults_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/appengine/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// A faultHTTPCall is one call over HTTP as one operation of the library makes it.
type faultHTTPCall struct {
	name     string
	what     string // as the server counts it
	method   jwt.SigningMethod
	keys     bool // it reads certificates, so that its failure is ErrKeysUnavailable
	cached   bool
	warm     bool // good certificates are known already, but have expired
	deadline time.Duration
}

var (
	faultIAMCalls = []faultHTTPCall{
		{name: "signBlob", what: "signBlob", method: gcpjwt.SigningMethodIAMBlob, deadline: systest.CallLimit},
		{name: "signJwt", what: "signJwt", method: gcpjwt.SigningMethodIAMJWT, deadline: systest.CallLimit},
		{name: "certificates", what: "certificates", method: gcpjwt.SigningMethodIAMBlob, keys: true, deadline: systest.FetchLimit},
		{name: "certificates to cache", what: "certificates", method: gcpjwt.SigningMethodIAMBlob, keys: true, cached: true, deadline: systest.FetchLimit},
		{name: "certificates renewal", what: "certificates", method: gcpjwt.SigningMethodIAMBlob, keys: true, cached: true, warm: true, deadline: systest.FetchLimit},
	}
	faultAppEngineCalls = []faultHTTPCall{
		{name: "SignForApp", what: "SignForApp", method: gcpjwt.SigningMethodAppEngine, deadline: systest.CallLimit},
		{name: "GetPublicCertificatesForApp", what: "GetPublicCertificatesForApp", method: gcpjwt.SigningMethodAppEngine, keys: true, deadline: systest.FetchLimit},
		{name: "GetPublicCertificatesForApp to cache", what: "GetPublicCertificatesForApp", method: gcpjwt.SigningMethodAppEngine, keys: true, cached: true, deadline: systest.FetchLimit},
		{name: "GetPublicCertificatesForApp renewal", what: "GetPublicCertificatesForApp", method: gcpjwt.SigningMethodAppEngine, keys: true, cached: true, warm: true, deadline: systest.FetchLimit},
	}
)

// want completes what an operation promises when its call fails.
func (c faultHTTPCall) want(w faultWant) faultWant {
	switch {
	case c.warm:
		return faultWant{ok: true, calls: [2]int{0, max(2, w.calls[1])}, limit: c.deadline}
	case c.keys:
		w = w.with(gcpjwt.ErrKeysUnavailable)
		w.http = 0 // the certificate endpoint isn't one of Google's APIs
	}
	w.limit = c.deadline
	return w
}

func (c faultHTTPCall) wantFailed(errs ...error) faultWant {
	return c.want(faultWant{is: errs, calls: [2]int{0, 3}}) // net/http may repeat a GET, too
}

// wantCorrupt is for an answer that cannot be what it should be.
func (c faultHTTPCall) wantCorrupt() faultWant {
	if c.keys {
		return c.wantFailed()
	}
	return c.wantFailed(gcpjwt.ErrIntegrity)
}

// A faultIAM is a rig for the IAM Credentials API and the certificates.
type faultIAM struct {
	faultRig
	server *testutil.IAM
	n      atomic.Int64
}

func (c faultHTTPCall) startIAM(t *testing.T) *faultIAM {
	server, config := systest.StartIAM(t, testutil.InMemory())
	server.Client().Transport = faultAuthorized{server.Client().Transport}
	config.EnableCache = c.cached
	rig := &faultIAM{server: server}
	rig.calls = func() int { return server.Calls(c.what) }
	rig.lift = func() { server.Intercept(nil) }
	kid := server.KeyIDs(account)[0]
	ctx := context.Background()

	signed := func(ctx context.Context) (string, error) {
		text, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(ctx, config), systest.Token(c.method))
		if err == nil {
			rig.keepSignature(text)
		}
		return text, err
	}
	if !c.keys {
		rig.do = func(ctx context.Context) error {
			text, err := signed(ctx)
			if err != nil {
				return err
			}
			return systest.Verify(text, faultKeyfunc(server.PublicKey(account, kid)))
		}
		return rig
	}
	text, err := signed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	rig.do = func(ctx context.Context) error {
		return systest.Verify(text, gcpjwt.IAMVerifyKeyfunc(ctx, config))
	}
	if c.warm {
		if err := rig.do(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6*time.Hour + time.Second) // past the server's max-age
	}
	return rig
}

// faultKeyfunc takes tokens by key, under jwt's own method.
func faultKeyfunc(key any) jwt.Keyfunc {
	return func(token *jwt.Token) (any, error) {
		if token.Method != jwt.SigningMethodRS256 {
			return nil, systest.ErrToken
		}
		return key, nil
	}
}

// faultAuthorized is a transport that adds a credential, as Google's does.
type faultAuthorized struct{ http.RoundTripper }

func (a faultAuthorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+faultCredential)
	return a.RoundTripper.RoundTrip(r)
}

func (a faultAuthorized) CloseIdleConnections() {
	a.RoundTripper.(*http.Transport).CloseIdleConnections()
}

// A faultHTTPAnswer answers the nth request, from 1; good answers it well.
type faultHTTPAnswer func(w http.ResponseWriter, r *http.Request, n int, good http.Handler)

func faultIAMCells() []faultCell {
	var cells []faultCell
	for _, call := range faultIAMCalls {
		cell := func(fault string, want faultWant, inject func(*faultIAM)) faultCell {
			return faultCell{
				call: call.name, fault: fault, want: want, keeps: call.cached,
				start: func(t *testing.T) *faultRig {
					rig := call.startIAM(t)
					inject(rig)
					return &rig.faultRig
				},
			}
		}
		add := func(fault string, want faultWant, answer faultHTTPAnswer) {
			cells = append(cells, cell(fault, want, func(r *faultIAM) {
				r.server.Intercept(func(w http.ResponseWriter, request *http.Request, next http.Handler) {
					answer(w, request, int(r.n.Add(1)), next)
				})
			}))
		}
		cells = append(cells, cell("refused connection", call.wantFailed(), func(r *faultIAM) {
			r.server.Stop()
			r.lift = func() {
				if err := r.server.Restart(); err != nil {
					panic(err)
				}
			}
		}))
		// A cut connection is tried again once, a GET by net/http as well.
		restarted := call.wantFailed()
		if call.keys {
			restarted = call.wantTwoFailures()
		}
		cells = append(cells, cell("server restart", restarted, func(r *faultIAM) {
			r.server.Intercept(func(w http.ResponseWriter, request *http.Request, next http.Handler) {
				if r.n.Add(1) > 2 {
					next.ServeHTTP(w, request)
					return
				}
				go func() {
					r.server.Stop() // cuts this very call
					if err := r.server.Restart(); err != nil {
						panic(err)
					}
				}()
				<-request.Context().Done()
			})
		}))
		call.addTransport(add)
		call.addStatuses(add)
		if call.keys {
			call.addCertificates(add)
		} else {
			call.addSignatures(add)
		}
		for _, caller := range faultCallers {
			want := faultWant{is: []error{caller.err}, calls: [2]int{0, 1}, limit: caller.limit}
			if call.keys { // nothing ends with the context of a Keyfunc
				want = call.wantFailed(context.DeadlineExceeded)
			}
			left := cell(caller.name, want, func(r *faultIAM) {
				r.server.Intercept(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
			})
			left.caller = caller.caller
			cells = append(cells, left)
		}
	}
	return cells
}

// addTransport adds faults of the connection and of HTTP itself.
func (c faultHTTPCall) addTransport(add func(string, faultWant, faultHTTPAnswer)) {
	silent := c.wantFailed(context.DeadlineExceeded)
	add("silence", silent, func(_ http.ResponseWriter, r *http.Request, _ int, _ http.Handler) { <-r.Context().Done() })
	add("silence after the header", silent, func(w http.ResponseWriter, r *http.Request, _ int, _ http.Handler) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	add("slow drip", silent, func(w http.ResponseWriter, r *http.Request, _ int, good http.Handler) {
		for _, b := range systest.Body(good, r) {
			if r.Context().Err() != nil {
				return
			}
			_, _ = w.Write([]byte{b})
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Second)
		}
	})
	add("endless drip", silent, func(w http.ResponseWriter, r *http.Request, _ int, _ http.Handler) {
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Second)
		}
	})
	reset := func(part func(body []byte) []byte) faultHTTPAnswer {
		return func(w http.ResponseWriter, r *http.Request, _ int, good http.Handler) {
			body := systest.Body(good, r)
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(part(body))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	add("reset before the header", c.wantFailed(), func(http.ResponseWriter, *http.Request, int, http.Handler) { panic(http.ErrAbortHandler) })
	add("reset before the body", c.wantFailed(), reset(func(body []byte) []byte { return nil }))
	add("reset in mid-body", c.wantFailed(), reset(func(body []byte) []byte { return body[:len(body)/2] }))
	add("header that isn't HTTP", c.wantFailed(), func(w http.ResponseWriter, _ *http.Request, _ int, _ http.Handler) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "220 mail.example.com ESMTP\r\n\r\n")
	})
	add("gzip that is none", c.wantFailed(), func(w http.ResponseWriter, r *http.Request, _ int, good http.Handler) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(systest.Body(good, r))
	})
	add("success after two failures", c.wantTwoFailures(), func(w http.ResponseWriter, r *http.Request, n int, good http.Handler) {
		if n > 2 {
			good.ServeHTTP(w, r)
			return
		}
		systest.Status(w, http.StatusServiceUnavailable)
	})
	body := func(fault string, want faultWant, contentType string, body func(good []byte) []byte) {
		add(fault, want, func(w http.ResponseWriter, r *http.Request, _ int, good http.Handler) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write(body(systest.Body(good, r)))
		})
	}
	const jsonType = "application/json; charset=UTF-8"
	constant := func(s string) func([]byte) []byte { return func([]byte) []byte { return []byte(s) } }
	body("wrong content type", c.wantFailed(), "text/html", constant("<html>\n<title>Sorry</title>\n</html>"))
	body("empty", c.wantFailed(), jsonType, constant(""))
	body("blank", c.wantFailed(), jsonType, constant("\n \n"))
	body("truncated", c.wantFailed(), jsonType, func(good []byte) []byte { return good[:len(good)/2] })
	body("null", c.wantCorrupt(), jsonType, constant("null"))
	body("empty object", c.wantCorrupt(), jsonType, constant("{}"))
	for _, text := range []string{"[]", `"text"`, "42", "true", "{]", "\x00", `{"keyId": 1}`} {
		want := c.wantFailed()
		body("body "+text, want, jsonType, constant(text))
	}
	body("error with status 200", c.wantCorrupt(), jsonType, constant(`{"error": {"code": 500, "message": "Internal error.", "status": "INTERNAL"}}`))
}

// wantTwoFailures is for a good answer to the third attempt.
func (c faultHTTPCall) wantTwoFailures() faultWant {
	want := faultWant{ok: true, calls: [2]int{3, 3}, limit: 2 * time.Second, kept: c.cached}
	if !c.keys {
		want.calls[1] = 4 // the first signature by signBlob tells the kid, the second one has it
	}
	return want
}

// addStatuses adds statuses other than 200.
func (c faultHTTPCall) addStatuses(add func(string, faultWant, faultHTTPAnswer)) {
	retried := []int{429, 500, 502, 503, 504}
	for _, code := range []int{400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 418, 429, 451, 499, 500, 501, 502, 503, 504, 505, 507} {
		want := c.want(faultWant{http: code, calls: [2]int{1, 1}})
		switch {
		case slices.Contains(retried, code) && c.keys:
			want = c.want(faultWant{calls: [2]int{3, 3}})
		case slices.Contains(retried, code):
			want = c.want(faultWant{is: []error{context.DeadlineExceeded}, http: code, calls: [2]int{2, faultManyCalls}})
		}
		add(fmt.Sprintf("status %d", code), want, func(w http.ResponseWriter, _ *http.Request, _ int, _ http.Handler) { systest.Status(w, code) })
		if code%100 < 5 {
			add(fmt.Sprintf("status %d with a page", code), want, func(w http.ResponseWriter, _ *http.Request, _ int, _ http.Handler) {
				w.Header().Set("Content-Type", "text/html")
				w.WriteHeader(code)
				_, _ = io.WriteString(w, "<html>\n<title>Sorry</title>\n"+strings.Repeat("<p>This is a long page.</p>\n", 1000)+"</html>")
			})
		}
	}
	// A good body under another status isn't taken for good where it may be
	// about something else.
	for _, code := range []int{202, 203, 206} {
		if c.keys {
			add(fmt.Sprintf("status %d", code), c.wantFailed(), func(w http.ResponseWriter, r *http.Request, _ int, good http.Handler) {
				body := systest.Body(good, r)
				w.WriteHeader(code)
				_, _ = w.Write(body)
			})
		}
	}
	for _, code := range []int{204, 304} {
		add(fmt.Sprintf("status %d", code), c.wantFailed(), func(w http.ResponseWriter, _ *http.Request, _ int, _ http.Handler) { w.WriteHeader(code) })
	}
	for _, code := range []int{301, 302, 303, 307, 308} {
		for _, to := range []string{"http://evil.example/keys", "", "/elsewhere\nx"} {
			if !c.keys && to != "" {
				continue // where Google's client goes isn't ours to say
			}
			add(fmt.Sprintf("status %d to %.4q", code, to), c.wantFailed(), func(w http.ResponseWriter, _ *http.Request, _ int, _ http.Handler) {
				if to != "" {
					w.Header().Set("Location", to)
				}
				w.WriteHeader(code)
			})
		}
	}
	if c.keys {
		loop := c.wantFailed()
		loop.calls[1] = 20 // ten hops, and those of a renewal in the background
		add("endless redirects", loop, func(w http.ResponseWriter, r *http.Request, n int, _ http.Handler) {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		})
	}
}

// addSignatures adds answers that sign something else, or nothing.
func (c faultHTTPCall) addSignatures(add func(string, faultWant, faultHTTPAnswer)) {
	answer := func(fault string, want faultWant, change func(answer map[string]string)) {
		add(fault, want, func(w http.ResponseWriter, r *http.Request, _ int, good http.Handler) {
			var answer map[string]string
			if err := json.Unmarshal(systest.Body(good, r), &answer); err != nil {
				panic(err)
			}
			change(answer)
			body, err := json.Marshal(answer)
			if err != nil {
				panic(err)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body)
		})
	}
	corrupt := func(fault string, change func(map[string]string)) { answer(fault, c.wantCorrupt(), change) }
	corrupt("no key ID", func(a map[string]string) { delete(a, "keyId") })
	if c.what == "signBlob" {
		sig := func(fault string, change func([]byte) []byte) {
			corrupt(fault, func(a map[string]string) {
				good, _ := base64.StdEncoding.DecodeString(a["signedBlob"])
				a["signedBlob"] = base64.StdEncoding.EncodeToString(change(good))
			})
		}
		corrupt("no signature", func(a map[string]string) { delete(a, "signedBlob") })
		corrupt("signature that isn't base64", func(a map[string]string) { a["signedBlob"] = "!" + a["signedBlob"] })
		sig("signature truncated", func(b []byte) []byte { return b[:len(b)-1] })
		sig("signature oversized", func(b []byte) []byte { return bytes.Repeat(b, 1<<13) })
		return
	}
	corrupt("another key ID", func(a map[string]string) { a["keyId"] = "x" + a["keyId"] })
	corrupt("no token", func(a map[string]string) { delete(a, "signedJwt") })
	part := func(fault string, want faultWant, i int, change func([]byte) []byte) {
		answer(fault, want, func(a map[string]string) {
			parts := strings.Split(a["signedJwt"], ".")
			good, _ := base64.RawURLEncoding.DecodeString(parts[i])
			parts[i] = base64.RawURLEncoding.EncodeToString(change(good))
			a["signedJwt"] = strings.Join(parts, ".")
		})
	}
	replace := func(from, to string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(from), []byte(to), 1) }
	}
	bad, changed := c.wantCorrupt(), c.wantFailed(gcpjwt.ErrSigningStringChanged)
	part("header of another algorithm", bad, 0, replace("RS256", "HS256"))
	part("header without a signature", bad, 0, replace("RS256", "none"))
	part("header of another key", bad, 0, replace(`"kid":"`, `"kid":"x`))
	part("header without kid", bad, 0, replace(`"kid"`, `"kit"`))
	part("header that isn't JSON", bad, 0, func([]byte) []byte { return []byte("RS256") })
	part("header null", bad, 0, func([]byte) []byte { return []byte("null") })
	part("other claims", changed, 1, replace(systest.Claim, "somebody else"))
	part("a further claim", changed, 1, replace("{", `{"admin":true,`))
	part("no claims", changed, 1, func([]byte) []byte { return []byte("{}") })
	part("claims that aren't JSON", changed, 1, func([]byte) []byte { return []byte("claims") })
	part("signature truncated", bad, 2, func(b []byte) []byte { return b[:len(b)-1] })
	part("signature oversized", bad, 2, func(b []byte) []byte { return bytes.Repeat(b, 1<<13) })
	part("no signature", bad, 2, func([]byte) []byte { return nil })
	answer("two parts", bad, func(a map[string]string) {
		a["signedJwt"] = a["signedJwt"][:strings.LastIndex(a["signedJwt"], ".")]
	})
	answer("four parts", bad, func(a map[string]string) { a["signedJwt"] += ".x" })
	answer("padded parts", bad, func(a map[string]string) { a["signedJwt"] = strings.ReplaceAll(a["signedJwt"], ".", "=.") })
}

// addCertificates adds bodies without a usable key.
func (c faultHTTPCall) addCertificates(add func(string, faultWant, faultHTTPAnswer)) {
	body := func(fault string, body func(good []byte) []byte) {
		add(fault, c.wantFailed(), func(w http.ResponseWriter, r *http.Request, _ int, good http.Handler) {
			w.Header().Set("Cache-Control", "public, max-age=21600") // it must not count
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body(systest.Body(good, r)))
		})
	}
	entries := func(fault string, change func(kid, text string) (string, string)) {
		body(fault, func(good []byte) []byte {
			var before map[string]string
			if err := json.Unmarshal(good, &before); err != nil {
				panic(err)
			}
			after := make(map[string]string)
			for kid, text := range before {
				kid, text = change(kid, text)
				after[kid] = text
			}
			body, err := json.Marshal(after)
			if err != nil {
				panic(err)
			}
			return body
		})
	}
	entries("key without an ID", func(kid, text string) (string, string) { return "", text })
	for _, odd := range faultOddKeys() {
		entries(odd.name, func(kid, _ string) (string, string) { return kid, odd.text })
	}
	body("oversized", func(good []byte) []byte { return append(bytes.Repeat([]byte(" "), 1<<20), good...) })
	add("oversized by its compression", c.wantFailed(), func(w http.ResponseWriter, r *http.Request, _ int, good http.Handler) {
		w.Header().Set("Content-Encoding", "gzip")
		body := gzip.NewWriter(w)
		_, _ = body.Write(append(bytes.Repeat([]byte(" "), 8<<20), systest.Body(good, r)...))
		_ = body.Close()
	})
	body("nested deeply", func([]byte) []byte { return []byte(strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)) })
	body("two values", func(good []byte) []byte { return append(good, good...) })
}

type faultOddKey struct{ name, text string }

// faultOddKeys are texts that hold no key for RS256.
func faultOddKeys() []faultOddKey {
	elliptic, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, elliptic.Public(), elliptic)
	if err != nil {
		panic(err)
	}
	public, err := x509.MarshalPKIXPublicKey(elliptic.Public())
	if err != nil {
		panic(err)
	}
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return []faultOddKey{
		{"no text", ""},
		{"text that isn't PEM", "certificate"},
		{"PEM of nothing", block("CERTIFICATE", nil)},
		{"certificate of another kind of key", block("CERTIFICATE", certificate)},
		{"public key of another kind", block("PUBLIC KEY", public)},
		{"certificate under the wrong label", block("PUBLIC KEY", certificate)},
		{"certificate truncated", block("CERTIFICATE", certificate[:len(certificate)/2])},
		{"RSA key of 1024 bits", `-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDRhGF7X4A0ZVlEg594WmODVVUI
iiPQs04aLmvfg8SborHss5gQXu0aIdUT6nb5rTh5hD2yfpF2WIW6M8z0WxRhwicg
XwNUDKIOCwgUbS7mVhUsbWNKIQyM6CN6NjAd8Bnb0tX1M5nPYLb0tGvmGJSuPzOg
q2hpkv8OXNqW8CL0gwIDAQAB
-----END PUBLIC KEY-----
`},
	}
}

// A faultAppEngine is a rig for App Engine.
type faultAppEngine struct {
	faultRig
	server    *testutil.AppEngine
	transport *faultTransport
}

func (c faultHTTPCall) startAppEngine(t *testing.T) *faultAppEngine {
	server, err := testutil.NewAppEngine(testutil.InMemory())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	transport := &faultTransport{next: server.Client().Transport.(*http.Transport)}
	server.Client().Transport = transport
	rig := &faultAppEngine{server: server, transport: transport}
	rig.calls = func() int { return server.Calls(c.what) }
	rig.lift = func() {
		server.Fail(c.what, nil)
		server.InterceptResponse(c.what, nil)
		server.SetLatency(0)
		transport.fault.Store(nil)
	}
	key := server.PublicKey(server.KeyNames()[0])
	background := context.Background()
	signed := func(ctx context.Context) (string, error) {
		text, err := gcpjwt.SignedString(server.Context(ctx), systest.Token(c.method))
		if err == nil {
			rig.keepSignature(text)
		}
		return text, err
	}
	text, err := signed(background)
	if err != nil {
		t.Fatal(err)
	}
	if !c.keys {
		rig.do = func(ctx context.Context) error {
			text, err := signed(ctx)
			if err != nil {
				return err
			}
			return systest.Verify(text, faultKeyfunc(key))
		}
		return rig
	}
	expiration := systest.OwnCache()
	rig.do = func(ctx context.Context) error {
		return systest.Verify(text, gcpjwt.AppEngineVerifyKeyfunc(server.Context(ctx), c.cached, expiration))
	}
	if c.warm {
		if err := rig.do(background); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + time.Second) // past what App Engine states
	}
	return rig
}

// A faultTransport breaks answers on their way.
type faultTransport struct {
	next  *http.Transport
	fault atomic.Pointer[func(*http.Response) (*http.Response, error)]
}

func (t *faultTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if fault := t.fault.Load(); fault != nil && err == nil {
		return (*fault)(response)
	}
	return response, err
}

func (t *faultTransport) CloseIdleConnections() { t.next.CloseIdleConnections() }

func faultAppEngineCells() []faultCell {
	var cells []faultCell
	for _, call := range faultAppEngineCalls {
		cell := func(fault string, want faultWant, inject func(*faultAppEngine)) faultCell {
			return faultCell{
				call: call.name, fault: fault, want: want, keeps: call.cached, serial: true,
				start: func(t *testing.T) *faultRig {
					rig := call.startAppEngine(t)
					inject(rig)
					return &rig.faultRig
				},
			}
		}
		add := func(fault string, want faultWant, inject func(*faultAppEngine)) {
			cells = append(cells, cell(fault, want, inject))
		}
		silent := call.wantFailed(context.DeadlineExceeded)
		add("refused connection", call.wantFailed(), func(r *faultAppEngine) {
			lift := r.lift
			r.server.Stop()
			r.lift = func() {
				if err := r.server.Restart(); err != nil {
					panic(err)
				}
				lift()
			}
		})
		add("server restart", call.wantFailed(), func(r *faultAppEngine) {
			r.server.SetLatency(time.Second)
			time.AfterFunc(500*time.Millisecond, func() {
				r.server.Stop()
				r.server.SetLatency(0)
				if err := r.server.Restart(); err != nil {
					panic(err)
				}
			})
		})
		add("silence", silent, func(r *faultAppEngine) { r.server.SetLatency(time.Hour) })
		broken := func(fault string, want faultWant, body func(good []byte) io.Reader) {
			add(fault, want, func(r *faultAppEngine) {
				f := func(response *http.Response) (*http.Response, error) {
					good, err := io.ReadAll(response.Body)
					response.Body.Close()
					response.Body = io.NopCloser(body(good))
					return response, err
				}
				r.transport.fault.Store(&f)
			})
		}
		broken("reset in mid-body", call.wantFailed(), func(good []byte) io.Reader {
			return io.MultiReader(bytes.NewReader(good[:len(good)/2]), faultReader(func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }))
		})
		broken("body truncated", call.wantFailed(), func(good []byte) io.Reader { return bytes.NewReader(good[:len(good)/2]) })
		broken("body of HTML", call.wantFailed(), func([]byte) io.Reader { return strings.NewReader("<html>\n<title>Sorry</title>\n</html>") })
		broken("no body", call.wantCorrupt(), func([]byte) io.Reader { return strings.NewReader("") })

		for _, code := range []int{301, 400, 401, 403, 404, 413, 429, 500, 502, 503, 504} {
			add(fmt.Sprintf("status %d", code), call.wantFailed(), func(r *faultAppEngine) {
				r.server.Fail(call.what, func() error { return &testutil.HTTPError{Status: code, Body: "as the test\nwants it"} })
			})
		}
		for code := int32(0); code <= 13; code++ {
			want := call.wantFailed()
			if code == 10 || code == 12 { // CANCELLED and DEADLINE_EXCEEDED, the SDK's timeouts
				want = silent
			}
			add(fmt.Sprintf("RPC error %d", code), want, func(r *faultAppEngine) {
				r.server.Fail(call.what, func() error { return &testutil.AppEngineError{Code: code, Detail: "as the test wants it"} })
			})
		}
		for _, code := range []int32{9, 1000, 1001, 1002, 1003, 1005, 1006, 9999} {
			add(fmt.Sprintf("application error %d", code), call.wantFailed(), func(r *faultAppEngine) {
				r.server.Fail(call.what, func() error {
					return &testutil.AppEngineError{App: true, Code: code, Detail: "as the test wants it"}
				})
			})
		}
		add("success after two failures", call.wantFailed(), func(r *faultAppEngine) {
			var n atomic.Int64
			r.server.Fail(call.what, func() error {
				if n.Add(1) > 2 {
					return nil
				}
				return &testutil.HTTPError{Status: http.StatusServiceUnavailable, Body: "try again"}
			})
		})
		answer := func(fault string, want faultWant, change func([]byte) []byte) {
			add(fault, want, func(r *faultAppEngine) { r.server.InterceptResponse(call.what, change) })
		}
		answer("empty", call.wantCorrupt(), func([]byte) []byte { return nil })
		answer("truncated", call.wantFailed(), func(b []byte) []byte { return b[:len(b)-1] })
		answer("half", call.wantFailed(), func(b []byte) []byte { return b[:len(b)/2] })
		answer("no protocol buffer", call.wantFailed(), func([]byte) []byte { return []byte("<html>") })
		if call.keys {
			call.addAppCertificates(answer)
		} else {
			call.addAppSignatures(answer)
		}
		for _, caller := range faultCallers {
			want := faultWant{is: []error{caller.err}, calls: [2]int{0, 1}, limit: caller.limit}
			if call.keys { // nothing ends with the context of a Keyfunc
				want = silent
			}
			left := cell(caller.name, want, func(r *faultAppEngine) { r.server.SetLatency(time.Hour) })
			left.caller = caller.caller
			cells = append(cells, left)
		}
	}
	return cells
}

type faultReader func([]byte) (int, error)

func (f faultReader) Read(b []byte) (int, error) { return f(b) }

// faultFields decodes a message of bytes fields.
func faultFields(message []byte) map[protowire.Number][]byte {
	fields := make(map[protowire.Number][]byte)
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		message = message[n:]
		if kind != protowire.BytesType {
			_, n = protowire.ConsumeVarint(message)
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		message = message[n:]
		fields[number] = value
	}
	return fields
}

func faultMessage(fields map[protowire.Number][]byte) []byte {
	var message []byte
	for _, number := range slices.Sorted(maps.Keys(fields)) {
		message = protowire.AppendTag(message, number, protowire.BytesType)
		message = protowire.AppendBytes(message, fields[number])
	}
	return message
}

// addAppSignatures adds answers of SignForApp: key_name = 1, signature_bytes = 2.
func (c faultHTTPCall) addAppSignatures(add func(string, faultWant, func([]byte) []byte)) {
	change := func(fault string, change func(fields map[protowire.Number][]byte)) {
		add(fault, c.wantCorrupt(), func(b []byte) []byte {
			fields := faultFields(b)
			change(fields)
			return faultMessage(fields)
		})
	}
	change("no key name", func(f map[protowire.Number][]byte) { delete(f, 1) })
	change("no signature", func(f map[protowire.Number][]byte) { delete(f, 2) })
	change("signature truncated", func(f map[protowire.Number][]byte) { f[2] = f[2][:len(f[2])-1] })
	change("signature oversized", func(f map[protowire.Number][]byte) { f[2] = bytes.Repeat(f[2], 1<<12) })
}

// addAppCertificates adds answers of GetPublicCertificatesForApp: repeated
// {key_name = 1, x509_certificate_pem = 2} = 1.
func (c faultHTTPCall) addAppCertificates(add func(string, faultWant, func([]byte) []byte)) {
	change := func(fault string, change func(certificate map[protowire.Number][]byte)) {
		add(fault, c.wantFailed(), func(b []byte) []byte {
			certificate := faultFields(faultFields(b)[1])
			change(certificate)
			// With a lifetime, which must not count.
			message := faultMessage(map[protowire.Number][]byte{1: faultMessage(certificate)})
			return protowire.AppendVarint(protowire.AppendTag(message, 2, protowire.VarintType), 3600)
		})
	}
	change("key without a name", func(f map[protowire.Number][]byte) { delete(f, 1) })
	for _, odd := range faultOddKeys() {
		change(odd.name, func(f map[protowire.Number][]byte) { f[2] = []byte(odd.text) })
	}
	add("certificate that is no message", c.wantFailed(), func([]byte) []byte {
		return faultMessage(map[protowire.Number][]byte{1: []byte("\xff")})
	})
}

// TestFaultNone makes App Engine calls without any fault, so fast that the end
// of a call and that of its context can be seen in either order.
func TestFaultNone(t *testing.T) {
	answer := faultMessage(map[protowire.Number][]byte{1: []byte("key"), 2: make([]byte, 256)})
	ctx := appengine.WithAPICallFunc(t.Context(), func(_ context.Context, _, _ string, _, out protoadapt.MessageV1) error {
		return proto.Unmarshal(answer, protoadapt.MessageV2Of(out))
	})
	const callers, signatures = 16, 5_000
	var failed atomic.Int64
	var last atomic.Pointer[error]
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range signatures {
				if _, err := gcpjwt.SigningMethodAppEngine.Sign("header.payload", ctx); err != nil {
					failed.Add(1)
					last.Store(&err)
				}
			}
		})
	}
	group.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d signatures failed without a fault: %v", n, callers*signatures, *last.Load())
	}
}
