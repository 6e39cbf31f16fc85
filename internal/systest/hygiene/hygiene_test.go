package hygiene_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestMain(m *testing.M) { systest.Main(m) }

const account = systest.Account

// A requestLog answers requests itself and keeps their URLs.
type requestLog struct {
	mu       sync.Mutex
	requests []*http.Request
	answer   func(*http.Request) *http.Response
}

func (r *requestLog) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, request)
	if r.answer != nil {
		return r.answer(request), nil
	}
	return answer(request, http.StatusNotFound, `{"error": {"code": 404, "message": "Not found."}}`), nil
}

func answer(request *http.Request, status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Request: request, Body: io.NopCloser(strings.NewReader(body)),
		Header: http.Header{"Content-Type": {"application/json"}},
	}
}

// take returns the requests so far and forgets them.
func (r *requestLog) take() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := r.requests
	r.requests = nil
	return requests
}

// hostileAccounts are accounts from someone who wants a request to go elsewhere.
func hostileAccounts() []string {
	accounts := []string{
		"", "-", ".", "..", "/", "@", "a@", "@b", "@evil.example", "a@b@evil.example", "a@b@evil.example/x",
		"../../v1/projects/-/serviceAccounts/a@b", "projects/-/serviceAccounts/a@b", "projects/p/serviceAccounts/a@b",
		"a@b:signJwt", "a@b:generateAccessToken?alt=", "a@b?access_token=x", "a@b#", "a@b;x", "a@b&x=y", "a@b,c@d",
		"//evil.example/a@b", "https://evil.example/a@b", "evil.example/a@b", "evil.example:443/a@b", "a@evil.example:8443",
		"a@b/../../../x", "a@b/..", "..@..", ".@b", "a@.", "a%2f..%2fx@b", "%2e%2e@b", "a@b%00", "a@b\x00", `a\..\x@b`,
		"{account}", "{+account}", "a@{b}", "a@b\nHost: evil.example", "a@b\r\n\r\nGET / HTTP/1.1", "a b@c", "a@b c",
		"a@\u2025", "ａ@ｂ", "a@b\u2028", "\ufeffa@b", "a@b\u202e", "１２３", "123/", "123:signJwt", "+123", "0x10", " 123", "123\n",
		strings.Repeat("a", 64<<10) + "@b", strings.Repeat("1", 64<<10),
	}
	for c := rune(0); c < 0x180; c++ {
		accounts = append(accounts, "a"+string(c)+"b@example.com", "a@exam"+string(c)+"ple.com", string(c)+"a@b.c", "a@b.c"+string(c), "12"+string(c)+"34")
	}
	return accounts
}

// TestAccounts checks that whatever an account or a delegate looks like,
// requests go to the host and path that they are meant for, or nowhere.
func TestAccounts(t *testing.T) {
	recorder := new(requestLog)
	client := &http.Client{Transport: recorder}
	service, err := iamcredentials.NewService(t.Context(), option.WithHTTPClient(client), option.WithEndpoint("https://iam.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	const good = "signer@test.iam.gserviceaccount.com"
	blob := jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"sub": "somebody"})
	var refused, sent int
	for _, hostile := range hostileAccounts() {
		for _, use := range []struct {
			name    string
			account string // that requests are about
			path    string
			query   string
			do      func() error
		}{
			{"ServiceAccount to sign", hostile, "/v1/projects/-/serviceAccounts/%s:signBlob", "alt=json&prettyPrint=false", func() error {
				_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), &gcpjwt.IAMConfig{ServiceAccount: hostile, IAMService: service}), blob)
				return err
			}},
			{"Delegates", good, "/v1/projects/-/serviceAccounts/%s:signBlob", "alt=json&prettyPrint=false", func() error {
				_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), &gcpjwt.IAMConfig{ServiceAccount: good, Delegates: []string{hostile}, IAMService: service}), blob)
				return err
			}},
			{"ServiceAccount to verify", hostile, "/certs/%s", "", func() error {
				keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), &gcpjwt.IAMConfig{ServiceAccount: hostile, Client: client, CertificateURL: "https://iam.example.com/certs/"})
				_, err := keyfunc(&jwt.Token{Method: jwt.SigningMethodRS256, Header: map[string]any{"kid": "k"}})
				return err
			}},
		} {
			err := use.do()
			if err == nil {
				t.Errorf("%s %.50q: got no error", use.name, hostile)
				continue
			}
			systest.CheckText(t, err.Error())
			requests := recorder.take()
			if len(requests) == 0 {
				refused++
				if !errors.Is(err, gcpjwt.ErrInvalidConfig) {
					t.Errorf("%s %.50q: got %v, want %v", use.name, hostile, err, gcpjwt.ErrInvalidConfig)
				}
				continue
			}
			sent++
			for _, request := range requests {
				want := "https://iam.example.com" + fmt.Sprintf(use.path, use.account)
				if use.query != "" {
					want += "?" + use.query
				}
				if got := shownURL(request.URL); got != want {
					t.Errorf("%s %.50q: request to %s, want %s", use.name, hostile, got, want)
				}
				if request.Host != "iam.example.com" && request.Host != "" {
					t.Errorf("%s %.50q: Host %q", use.name, hostile, request.Host)
				}
			}
		}
	}
	t.Logf("%d refused without a request, %d requests to where they belong", refused, sent)
	if refused == 0 || sent == 0 {
		t.Error("the accounts are all of one kind")
	}
}

// shownURL shows a URL as a server reads it: where it connects to, and the
// path with nothing decoded that an escape kept apart.
func shownURL(u *url.URL) string {
	u = &url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, Fragment: u.Fragment}
	if u.Opaque != "" || u.User != nil {
		return "with a user or opaque: " + u.String()
	}
	path, err := url.PathUnescape(u.EscapedPath())
	if err != nil || path != u.Path || strings.Contains(u.EscapedPath(), "%2F") {
		return "odd path: " + u.EscapedPath()
	}
	text := u.Scheme + "://" + u.Host + path
	if u.RawQuery != "" {
		text += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		text += "#" + u.Fragment
	}
	return text
}

// TestCertificateURL checks that an account cannot become part of the
// host, the query or the fragment, however the URL in front of it ends.
func TestCertificateURL(t *testing.T) {
	for _, base := range []string{
		"https://certs.example.com", "https://certs.example.com:8443", "https://certs.example.com/", "https://certs.example.com/x509",
		"https://certs.example.com/x509/", "https://certs.example.com/?", "https://certs.example.com?", "https://certs.example.com/#", "https://certs.example.com/x509?a=",
		"https://certs.example.com/%", "https://certs.example.com/%2", "https:certs.example.com/", "https:///x509/", "//certs.example.com/", "ftp://certs.example.com/",
		"http://certs.example.com/", "http://127.0.0.1.evil.example/", "http://localhost.evil.example/", "http://127.0.0.1@evil.example/", "https://user:secret@certs.example.com/",
		"https://certs.example.com\n/", "https://certs.example.com/\n",
	} {
		for _, account := range []string{"signer@evil.example", "123456"} {
			recorder := new(requestLog)
			keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), &gcpjwt.IAMConfig{
				ServiceAccount: account, CertificateURL: base, Client: &http.Client{Transport: recorder},
			})
			_, err := keyfunc(&jwt.Token{Method: jwt.SigningMethodRS256, Header: map[string]any{"kid": "k"}})
			if err == nil {
				t.Fatalf("%q: got no error", base)
			}
			systest.CheckText(t, err.Error())
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q: the error holds the password: %v", base, err)
			}
			for _, request := range recorder.take() {
				u := request.URL
				if !strings.HasPrefix(u.Host, "certs.example.com") || u.Port() != "" && u.Port() != "8443" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !strings.HasSuffix(u.Path, account) {
					t.Errorf("CertificateURL %q and account %s: request to %s", base, account, u)
				}
			}
		}
	}
}

// TestKeyPaths does for key paths what TestAccounts does for
// accounts: a path is refused, or is the resource name in the request and in its
// routing header, and nothing else.
func TestKeyPaths(t *testing.T) {
	const prefix = "projects/p/locations/l/keyRings/r/cryptoKeys/"
	paths := []string{
		"", "/", prefix, prefix + "k/", prefix + "/cryptoKeyVersions/1", prefix + "k/cryptoKeyVersions/", prefix + "k/cryptoKeyVersions/1/",
		prefix + "k/cryptoKeyVersions/0", prefix + "k/cryptoKeyVersions/01", prefix + "k/cryptoKeyVersions/-1", prefix + "k/cryptoKeyVersions/1.0",
		prefix + "k/cryptoKeyVersions/99999999999999999999", prefix + "k/cryptoKeyVersions/1?alt=x", prefix + "k/cryptoKeyVersions/1:destroy",
		prefix + "k/cryptoKeyVersions/1&name=x", prefix + "k/cryptoKeyVersions/1%26", prefix + "../cryptoKeyVersions/1", prefix + "k/../k2/cryptoKeyVersions/1",
		"gcpkms://" + prefix + "k", "//cloudkms.googleapis.com/" + prefix + "k", "name=" + prefix + "k", prefix + "k/cryptoKeyVersions/1\n", "\n" + prefix + "k",
		"projects/../locations/l/keyRings/r/cryptoKeys/k", "projects/.../locations/l/keyRings/r/cryptoKeys/k", "projects/a:b:c/locations/l/keyRings/r/cryptoKeys/k",
		"projects/" + strings.Repeat("p", 64<<10) + "/locations/l/keyRings/r/cryptoKeys/k", prefix + strings.Repeat("k", 64<<10), strings.Repeat("/", 64<<10),
	}
	for c := rune(0); c < 0x180; c++ {
		paths = append(paths,
			"projects/p"+string(c)+"/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1",
			prefix+"k"+string(c)+"k/cryptoKeyVersions/1", prefix+"k"+string(c), prefix+"k/cryptoKeyVersions/1"+string(c))
	}
	server, client := systest.StartKMS(t, testutil.InMemory())
	var requests atomic.Int64
	server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		requests.Add(1)
		var name string
		switch req := req.(type) {
		case *kmspb.GetPublicKeyRequest:
			name = req.Name
		case *kmspb.ListCryptoKeyVersionsRequest:
			name = req.Parent
		}
		routing, _ := metadata.FromIncomingContext(ctx)
		params, err := url.ParseQuery(strings.Join(routing.Get("x-goog-request-params"), "&"))
		if err != nil || len(params) != 1 || params.Get("name")+params.Get("parent") != name {
			t.Errorf("%s of %q: routing header %q", method, name, routing.Get("x-goog-request-params"))
		}
		return nil, status.Error(codes.NotFound, name)
	})
	var refused int
	for _, path := range paths {
		before := requests.Load()
		ctx := gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client})
		_, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, jwt.MapClaims{"sub": "somebody"}))
		if err == nil {
			t.Fatalf("%.100q: got no error", path)
		}
		systest.CheckText(t, err.Error())
		if requests.Load() == before {
			refused++
			if !errors.Is(err, gcpjwt.ErrInvalidConfig) {
				t.Errorf("%.100q: got %v, want %v", path, err, gcpjwt.ErrInvalidConfig)
			}
		} else if !strings.HasSuffix(err.Error(), path) { // what the server says that it got
			t.Errorf("%.100q: got %v, want the server to have got that name", path, err)
		}
	}
	t.Logf("%d refused without a request, %d requests", refused, requests.Load())
	if refused == 0 || requests.Load() == 0 {
		t.Error("the paths are all of one kind")
	}
}

// hostileKeyIDs are kids from someone who writes tokens.
var hostileKeyIDs = []string{
	"a\nb", "a\r\nlevel=ERROR msg=\"all is well\"", "\x1b[2J", "\x00", "a\u2028b", "\u0085", "\xff\xfe", "../../../secret", "https://evil.example/", "?x=y", "#", "%0a", `"`, `\n`, "{kid}",
	strings.Repeat("k", 64<<10), strings.Repeat("\n", 64<<10), strings.Repeat("\u2028", 100), strings.Repeat("k", 256), strings.Repeat("k", 257),
}

// TestKeyIDs checks that a kid reaches no request, and errors only quoted
// and cut to size.
func TestKeyIDs(t *testing.T) {
	for _, kid := range hostileKeyIDs {
		t.Run(fmt.Sprintf("%.20q", kid), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				iam, config := systest.StartIAM(t, testutil.InMemory())
				config.EnableCache = true
				iam.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					if want := "/robot/v1/metadata/x509/" + account; r.RequestURI != want {
						t.Errorf("got a request for %.100q, want %s", r.RequestURI, want)
					}
					next.ServeHTTP(w, r)
				})
				kms, client := systest.StartKMS(t, testutil.InMemory())
				version, err := kms.CreateKey("key", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
				if err != nil {
					t.Fatal(err)
				}
				kms.Intercept(func(ctx context.Context, _ string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
					if text := fmt.Sprint(req); strings.Contains(text, kid) && len(kid) > 1 {
						t.Errorf("got a request with the kid: %.200q", text)
					}
					return next(ctx, req)
				})
				ofKMS, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client})
				if err != nil {
					t.Fatal(err)
				}
				for _, verifier := range []struct {
					alg     string
					keyfunc jwt.Keyfunc
				}{
					{"RS256", gcpjwt.IAMVerifyKeyfunc(t.Context(), config)},
					{"ES256", ofKMS},
				} {
					text := forgedToken(t, map[string]any{"alg": verifier.alg, "kid": kid})
					_, err := jwt.Parse(text, verifier.keyfunc)
					if !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
						t.Fatalf("got %v, want %v", err, gcpjwt.ErrUnknownKeyID)
					}
					systest.CheckText(t, err.Error())
				}
			})
		})
	}
}

// forgedToken makes a token with a header of the caller's and no good signature.
func forgedToken(t *testing.T, header map[string]any) string {
	t.Helper()
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	return encode(header) + "." + encode(map[string]any{"sub": systest.Claim}) + "." + base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte("signature"), 30))
}

// TestHeaders puts hostile values into the other header fields that are
// read, and into tokens that break half-way.
func TestHeaders(t *testing.T) {
	config := gcpjwttest.NewIAM(t).NewAccount(account)
	keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
	var texts []string
	for _, hostile := range append([]string{"none", "None", "RS256\n", "rs256", ""}, hostileKeyIDs...) {
		texts = append(texts, forgedToken(t, map[string]any{"alg": hostile, "kid": "k"}), forgedToken(t, map[string]any{"alg": "RS256", "kid": []string{hostile}}),
			forgedToken(t, map[string]any{"alg": "RS256", "kid": map[string]string{hostile: hostile}}), forgedToken(t, map[string]any{"alg": "RS256", "typ": hostile, "crit": []string{hostile}, "jku": hostile}),
			forgedToken(t, map[string]any{"alg": []string{hostile}}))
	}
	whole := forgedToken(t, map[string]any{"alg": "RS256"})
	for i := 0; i < len(whole); i += 7 {
		texts = append(texts, whole[:i], whole[:i]+"!"+whole[i:])
	}
	for _, text := range texts {
		_, err := jwt.Parse(text, keyfunc)
		if err == nil {
			t.Fatalf("%.100q was accepted", text)
		}
		// The parser's own errors are jwt's; the Keyfunc's have to be clean.
		if !errors.Is(err, jwt.ErrTokenMalformed) {
			systest.CheckText(t, err.Error())
		}
		for _, secret := range []string{systest.Claim, "signaturesignature", "eyJ"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error holds a part of the token: %.200q", err)
			}
		}
	}
}

// TestEcho has servers answer with what they were asked, as some do to
// say what was wrong with it. No error passes that on.
func TestEcho(t *testing.T) {
	for name, echo := range map[string]func(payload string) string{
		"quoted": func(payload string) string {
			return fmt.Sprintf("Invalid value at 'payload' (TYPE_BYTES): %q\n%s", payload, payload)
		},
		"decoded": func(payload string) string {
			raw, err := base64.StdEncoding.DecodeString(payload)
			if err != nil { // that of signJwt is plain
				return payload
			}
			return "cannot sign " + string(raw)
		},
	} {
		t.Run("IAM, "+name, func(t *testing.T) {
			server, config := systest.StartIAM(t)
			server.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				var request struct{ Payload string }
				_ = json.NewDecoder(r.Body).Decode(&request)
				message, _ := json.Marshal(echo(request.Payload))
				w.WriteHeader(http.StatusBadRequest)
				_, _ = fmt.Fprintf(w, `{"error": {"code": 400, "message": %s, "status": "INVALID_ARGUMENT"}}`, message)
			})
			for _, method := range []jwt.SigningMethod{gcpjwt.SigningMethodIAMBlob, gcpjwt.SigningMethodIAMJWT} {
				token := systest.Token(method)
				_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), config), token)
				checkEcho(t, err, token)
			}
		})
	}
	t.Run("Cloud KMS", func(t *testing.T) {
		server, client := systest.StartKMS(t)
		server.Intercept(func(ctx context.Context, _ string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			switch req := req.(type) {
			case *kmspb.AsymmetricSignRequest:
				return nil, status.Errorf(codes.InvalidArgument, "data: %s", req.Data)
			case *kmspb.MacSignRequest:
				return nil, status.Errorf(codes.InvalidArgument, "data: %s", req.Data)
			}
			return next(ctx, req)
		})
		for _, row := range systest.Methods() {
			if row.Method.Alg() != "KMSEdDSA" && row.Method.Alg() != "KMSHS256" {
				continue // those that send a digest have nothing to echo
			}
			version, err := server.CreateKey(row.Method.Alg(), row.Algorithm)
			if err != nil {
				t.Fatal(err)
			}
			token := systest.Token(row.Method)
			_, err = gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}), token)
			checkEcho(t, err, token)
		}
	})
}

func checkEcho(t *testing.T, err error, token *jwt.Token) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	systest.CheckText(t, err.Error())
	claims, jsonErr := json.Marshal(token.Claims)
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	for _, secret := range []string{systest.Claim, "eyJ", base64.StdEncoding.EncodeToString(claims)} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error holds %q: %.300q", secret, err)
		}
	}
}

// TestLogs checks that what a server says cannot forge a record of the
// log in either of slog's formats, and that no secret gets there.
func TestLogs(t *testing.T) {
	const evil = "x\nlevel=ERROR msg=forged\r\n{\"level\":\"ERROR\",\"msg\":\"forged\"}"
	for _, format := range []string{"text", "JSON"} {
		t.Run(format, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				var handler slog.Handler = slog.NewTextHandler(&out, nil)
				if format == "JSON" {
					handler = slog.NewJSONHandler(&out, nil)
				}
				records := new(recordCount)
				logger := slog.New(countingHandler{handler, records})

				iam, config := systest.StartIAM(t, testutil.InMemory())
				iam.SetCertificateHeader(http.Header{"Cache-Control": {"max-age=300"}})
				config.EnableCache, config.Logger = true, logger
				ofIAM := gcpjwt.IAMVerifyKeyfunc(t.Context(), config)
				text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMBlob, nil)
				kms, client := systest.StartKMS(t, testutil.InMemory())
				version, err := kms.CreateKey("key", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
				if err != nil {
					t.Fatal(err)
				}
				path := systest.CryptoKeyOf(version)
				ofKMS, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client, Logger: logger})
				if err != nil {
					t.Fatal(err)
				}
				byKMS := systest.Sign(t, gcpjwt.NewKMSContext(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}), gcpjwt.SigningMethodKMSES256, nil)
				verify := func() {
					for _, err := range []error{systest.Verify(text, ofIAM), systest.Verify(byKMS, ofKMS)} {
						if err != nil {
							t.Error(err)
						}
					}
				}
				verify()

				answers := []func(w http.ResponseWriter){
					func(w http.ResponseWriter) { w.WriteHeader(http.StatusTeapot); _, _ = io.WriteString(w, evil) },
					func(w http.ResponseWriter) { _, _ = io.WriteString(w, evil) },
					func(w http.ResponseWriter) {
						w.Header().Set("Location", "http://evil.example/\n"+evil)
						w.WriteHeader(302)
					},
					func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"\nlevel=ERROR": "x"}`) },
				}
				lists := []func(m *kmspb.ListCryptoKeyVersionsResponse) error{
					func(*kmspb.ListCryptoKeyVersionsResponse) error { return status.Error(codes.Internal, evil) },
					func(m *kmspb.ListCryptoKeyVersionsResponse) error { m.CryptoKeyVersions[0].Name = evil; return nil },
				}
				time.Sleep(5 * time.Minute)
				var n, m atomic.Int64
				iam.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { answers[int(n.Add(1))%len(answers)](w) })
				kms.Intercept(func(ctx context.Context, _ string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
					response, err := next(ctx, req)
					if list, ok := response.(*kmspb.ListCryptoKeyVersionsResponse); ok {
						err = lists[int(m.Add(1))%len(lists)](list)
					}
					return response, err
				})
				for range 10 {
					verify()
					time.Sleep(time.Minute)
				}

				synctest.Wait()
				records.mu.Lock()
				defer records.mu.Unlock()
				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				if len(lines) != records.n || records.n < 10 {
					t.Errorf("got %d lines for %d records", len(lines), records.n)
				}
				for _, line := range lines {
					if format == "JSON" && !json.Valid([]byte(line)) {
						t.Errorf("not a line of JSON: %q", line)
					}
					if format == "text" && !strings.Contains(line, ` level=WARN msg="gcpjwt: `) && !strings.Contains(line, ` level=INFO msg="gcpjwt: `) {
						t.Errorf("a forged record: %q", line)
					}
					if strings.Contains(line, "eyJ") {
						t.Errorf("a record with a token: %q", line)
					}
					systest.CheckText(t, line)
				}
			})
		})
	}
}

type recordCount struct {
	mu sync.Mutex
	n  int
}

// A countingHandler counts the records that a handler gets.
type countingHandler struct {
	slog.Handler
	records *recordCount
}

func (c countingHandler) Handle(ctx context.Context, record slog.Record) error {
	c.records.mu.Lock() // of the buffer, too
	defer c.records.mu.Unlock()
	c.records.n++
	return c.Handler.Handle(ctx, record)
}

// TestRedirects checks that certificates come over https all the way, and
// that the plain server at the end of a redirect isn't even asked.
func TestRedirects(t *testing.T) {
	config := gcpjwttest.NewIAM(t).NewAccount(account)
	text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMBlob, nil)
	certificates := config.CertificateURL + account

	// good serves the account's certificates over TLS, and redirects under /to/.
	good := func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		response, err := config.Client.Get(certificates)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer response.Body.Close()
		_, _ = io.Copy(w, response.Body)
	}
	secure := httptest.NewTLSServer(http.HandlerFunc(good))
	t.Cleanup(secure.Close)
	var plainly atomic.Int64
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		plainly.Add(1)
		good(w, r)
	}))
	t.Cleanup(plain.Close)
	via := func(urls ...string) string {
		to := ""
		for i := len(urls) - 1; i >= 0; i-- {
			if to != "" {
				to = urls[i] + "/?to=" + url.QueryEscape(to)
			} else {
				to = urls[i] + "/"
			}
		}
		return to
	}
	errOwn := errors.New("this client follows no redirect")
	for _, test := range []struct {
		name  string
		first string // where the first answer sends the client to; "": nowhere
		own   error  // of the client's own CheckRedirect
		ok    bool
	}{
		{"none", "", nil, true},
		{"to https", via(secure.URL), nil, true},
		{"twice to https", via(secure.URL, secure.URL), nil, true},
		{"to https, as the client doesn't like", via(secure.URL), errOwn, false},
		{"to http", via(plain.URL), nil, false},
		{"to https, then http", via(secure.URL, plain.URL), nil, false},
		{"to http on loopback by name", via(strings.Replace(plain.URL, "127.0.0.1", "localhost", 1)), nil, false},
		{"to another scheme", "ftp://127.0.0.1/", nil, false},
		{"to a file", "file:///etc/passwd", nil, false},
		{"in a circle", "loop", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			plainly.Store(0)
			entry := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch test.first {
				case "":
					good(w, r)
				case "loop":
					http.Redirect(w, r, r.URL.String(), http.StatusFound)
				default:
					http.Redirect(w, r, test.first, http.StatusFound)
				}
			}))
			defer entry.Close()
			client := entry.Client() // all of these servers have the same certificate
			defer client.CloseIdleConnections()
			if test.own != nil {
				client.CheckRedirect = func(*http.Request, []*http.Request) error { return test.own }
			}
			keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), &gcpjwt.IAMConfig{ServiceAccount: account, Client: client, CertificateURL: entry.URL + "/"})
			err := systest.Verify(text, keyfunc)
			if test.ok {
				if err != nil {
					t.Errorf("got error %v, want none", err)
				}
				return
			}
			if !errors.Is(err, gcpjwt.ErrKeysUnavailable) || test.own != nil && !errors.Is(err, test.own) {
				t.Errorf("got error %v, want %v", err, gcpjwt.ErrKeysUnavailable)
			}
			if n := plainly.Load(); n != 0 {
				t.Errorf("made %d requests over plain http", n)
			}
		})
	}
}
