package testutil_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// A gRPC error of a hook comes out as Google's JSON, with its details.
func TestKMSRESTErrors(t *testing.T) {
	s, client := overREST.newKMS(t)
	key, _ := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	fail := func(t *testing.T, err error) error {
		t.Helper()
		s.Intercept(func(context.Context, string, proto.Message, testutil.KMSHandler) (proto.Message, error) {
			return nil, err
		})
		// An RPC that the client doesn't repeat.
		_, got := client.CreateCryptoKeyVersion(t.Context(), &kmspb.CreateCryptoKeyVersionRequest{Parent: key})
		return got
	}
	for _, known := range restCodes {
		err := fail(t, status.Error(known.code, "no luck"))
		answer, ok := errors.AsType[*googleapi.Error](err)
		if !ok || codeOf(err) != known.code || answer.Code != known.http || answer.Message != "no luck" {
			t.Errorf("%v: got %v (%v)", known.code, err, codeOf(err))
		}
	}
	for name, test := range map[string]struct {
		err  error
		want codes.Code
	}{
		"a code that doesn't exist": {status.Error(99, "x"), codes.Unknown},
		"no status":                 {io.ErrUnexpectedEOF, codes.Unknown},
		"a context's end":           {context.Canceled, codes.Canceled},
		"a deadline":                {fmt.Errorf("waiting: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
	} {
		if got := codeOf(fail(t, test.err)); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}

	// What the client library makes of them differs from gRPC.
	if got := status.Code(fail(t, status.Error(codes.FailedPrecondition, "x"))); got != codes.InvalidArgument {
		t.Errorf("the client turned FAILED_PRECONDITION into %v, want InvalidArgument", got)
	}
	detailed, err := status.New(codes.ResourceExhausted, "slowly").WithDetails(&errdetails.ErrorInfo{Reason: "RATE_LIMIT_EXCEEDED", Domain: "googleapis.com"})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := errors.AsType[*apierror.APIError](fail(t, detailed.Err()))
	if !ok || got.Reason() != "RATE_LIMIT_EXCEEDED" || got.GRPCStatus().Code() != codes.ResourceExhausted {
		t.Errorf("got %v, want a RESOURCE_EXHAUSTED with its reason", got)
	}
}

// send makes a raw request and returns its status, Content-Type and body.
func send(t *testing.T, s *testutil.KMS, method, path, contentType, body string) (int, string, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.RESTURL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	client := s.HTTPClient()
	defer client.CloseIdleConnections()
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("Content-Type"), text
}

func TestKMSRESTRefusals(t *testing.T) {
	s, _ := newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	const jsonType = "application/json"
	sign := "/v1/" + version + ":asymmetricSign"
	for _, test := range []struct {
		name, method, path, contentType, body string
		code                                  int
		text                                  string
	}{
		{"no API", "GET", "/", "", "", 404, "Error 404"},
		{"another version of the API", "GET", "/v2/" + key, "", "", 404, "Error 404"},
		{"another verb", "GET", sign, "", "", 404, "Error 404"},
		{"another method", "POST", "/v1/" + version + ":asymmetricDecrypt", jsonType, "{}", 404, "Error 404"},
		{"an escaped slash", "POST", "/v1/" + version + "%2F:asymmetricSign", jsonType, "{}", 400, "malformed"},
		{"unknown member", "POST", sign, jsonType, `{"data":"YQ==","hash":1}`, 400, "hash"},
		{"unknown member in a digest", "POST", sign, jsonType, `{"digest":{"md5":"YQ=="}}`, 400, "md5"},
		{"member of no use here", "POST", "/v1/" + version + ":destroy", jsonType, `{"etag":"x"}`, 400, "etag"},
		{"member twice", "POST", sign, jsonType, `{"data":"YQ==","data":"YQ=="}`, 400, "data"},
		{"no JSON", "POST", sign, jsonType, `{`, 400, "Invalid JSON payload"},
		{"no object", "POST", sign, jsonType, `[]`, 400, "Invalid JSON payload"},
		{"no base64", "POST", sign, jsonType, `{"data":"!"}`, 400, "Invalid JSON payload"},
		{"checksum that is no number", "POST", sign, jsonType, `{"data":"YQ==","dataCrc32c":"x"}`, 400, "Invalid JSON payload"},
		{"another name in the body", "POST", sign, jsonType, `{"data":"YQ==","name":"` + key + `"}`, 400, "The body names"},
		{"another type", "POST", sign, "text/plain", `{"data":"YQ=="}`, 400, `content type "text/plain"`},
		{"no type", "POST", sign, "", `{"data":"YQ=="}`, 400, "content type"},
		{"nothing to sign", "POST", sign, jsonType, "", 400, "Exactly one"},
		{"body of a GET", "GET", "/v1/" + key, jsonType, "{}", 400, "no body"},
		{"query beside a body", "POST", sign + "?data=YQ==", jsonType, "{}", 400, `"data": Cannot bind`},
		{"unknown parameter", "GET", "/v1/" + key + "?x=1", "", "", 400, `"x": Cannot bind`},
		{"parameter that is the path", "GET", "/v1/" + key + "?name=x", "", "", 400, `"name": Cannot bind`},
		{"parameter twice", "GET", "/v1/" + key + "/cryptoKeyVersions?filter=a&filter=b", "", "", 400, `"filter": Cannot bind`},
		{"parameter of a wrong type", "GET", "/v1/" + key + "/cryptoKeyVersions?pageSize=x", "", "", 400, "pageSize"},
		{"unknown enum", "GET", "/v1/" + version + "/publicKey?publicKeyFormat=SSH", "", "", 400, "publicKeyFormat"},
		{"parameter of no use here", "GET", "/v1/" + key + "/cryptoKeyVersions?orderBy=name", "", "", 400, "order_by"},
		{"malformed query", "GET", "/v1/" + key + "?%zz", "", "", 400, "Invalid JSON payload"},
		{"another alt", "GET", "/v1/" + key + "?alt=proto", "", "", 400, "alt"},
		{"another encoding of enums", "GET", "/v1/" + key + "?$alt=json%3Benum-encoding=float", "", "", 400, "alt"},
		{"nothing to update", "PATCH", "/v1/" + version, jsonType, "{}", 400, "update_mask"},
		{"update of a body's member twice", "PATCH", "/v1/" + version + "?cryptoKeyVersion=x", jsonType, "{}", 400, "Cannot bind"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, contentType, body := send(t, s, test.method, test.path, test.contentType, test.body)
			if code != test.code || !strings.Contains(string(body), test.text) && !strings.Contains(unquoted(body), test.text) {
				t.Errorf("got %d %s, want %d with %q", code, body, test.code, test.text)
			}
			wantType := "application/json; charset=UTF-8"
			if test.code == http.StatusNotFound {
				wantType = "text/html; charset=UTF-8"
			}
			if contentType != wantType {
				t.Errorf("Content-Type = %q, want %q", contentType, wantType)
			}
		})
	}
}

// unquoted returns the message of an error.
func unquoted(body []byte) string {
	var answer struct{ Error struct{ Message string } }
	json.Unmarshal(body, &answer)
	return answer.Error.Message
}

// What other clients than Go's may send, and the form of the answers.
func TestKMSRESTForms(t *testing.T) {
	s, _ := newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	sum := fmt.Sprint(testutil.Checksum([]byte("a")).Value)
	pemSum := fmt.Sprint(testutil.Checksum([]byte(publicPEM(t, s, version))).Value)
	for _, test := range []struct {
		name, method, path, body string
		want                     map[string]any
	}{
		{"names of enums", "GET", "/v1/" + key, "", map[string]any{"purpose": "ASYMMETRIC_SIGN"}},
		{"numbers of enums", "GET", "/v1/" + key + "?%24alt=json%3Benum-encoding%3Dint", "", map[string]any{"purpose": 5.0}},
		{"no pretty print", "GET", "/v1/" + key + "?alt=json&prettyPrint=false", "", map[string]any{"purpose": "ASYMMETRIC_SIGN"}},
		{"checksums are strings", "GET", "/v1/" + version + "/publicKey", "", map[string]any{"pemCrc32c": pemSum}},
		{"format by name", "GET", "/v1/" + version + "/publicKey?publicKeyFormat=PEM", "", map[string]any{"publicKeyFormat": "PEM"}},
		{"format by number", "GET", "/v1/" + version + "/publicKey?publicKeyFormat=2", "", map[string]any{"publicKeyFormat": "DER"}},
		{"names as in the proto", "GET", "/v1/" + version + "/publicKey?public_key_format=PEM", "", map[string]any{"publicKeyFormat": "PEM"}},
		{"checksum as a string", "POST", "/v1/" + version + ":asymmetricSign", `{"data":"YQ==","dataCrc32c":"` + sum + `"}`, map[string]any{"verifiedDataCrc32c": true}},
		{"checksum as a number", "POST", "/v1/" + version + ":asymmetricSign", `{"data":"YQ","data_crc32c":` + sum + `}`, map[string]any{"verifiedDataCrc32c": true}},
		{"no checksum", "POST", "/v1/" + version + ":asymmetricSign", `{"data":"YQ=="}`, map[string]any{"verifiedDataCrc32c": nil}},
		{"update", "PATCH", "/v1/" + version + "?updateMask=state", `{"state":"DISABLED"}`, map[string]any{"state": "DISABLED", "name": version}},
		{"create", "POST", "/v1/" + key + "/cryptoKeyVersions", "", map[string]any{"state": "PENDING_GENERATION"}},
	} {
		code, _, body := send(t, s, test.method, test.path, "application/json", test.body)
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil || code != http.StatusOK {
			t.Errorf("%s: got %d %s, %v", test.name, code, body, err)
			continue
		}
		for member, want := range test.want {
			if got[member] != want {
				t.Errorf("%s: %s = %v, want %v, in %s", test.name, member, got[member], want, body)
			}
		}
	}
}

func publicPEM(t *testing.T, s *testutil.KMS, version string) string {
	t.Helper()
	key, err := overGRPC.connect(t, s).GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version})
	if err != nil {
		t.Fatal(err)
	}
	return key.Pem
}

func TestKMSRESTCut(t *testing.T) {
	s, client := overREST.newKMS(t)
	_, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	get := func() error {
		_, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version})
		return err
	}
	sign := func() error {
		_, err := client.AsymmetricSign(t.Context(), &kmspb.AsymmetricSignRequest{Name: version, Data: []byte("a")})
		return err
	}
	s.CutREST("AsymmetricSign", 1)
	for i, want := range []bool{false, true} {
		if err := sign(); (err == nil) != want {
			t.Errorf("AsymmetricSign %d: %v, want success: %t", i+1, err, want)
		} else if err != nil && status.Code(err) != codes.Unknown {
			t.Errorf("AsymmetricSign %d: %v, want an error without a status", i+1, err)
		}
	}
	if got := s.Calls("AsymmetricSign"); got != 2 {
		t.Errorf("Calls = %d, want 2", got)
	}

	s.CutREST("", 1)
	s.CutREST("AsymmetricSign", 1)
	s.CutREST("AsymmetricSign", 0)
	// net/http repeats a GET on its own if the connection isn't new.
	if err := get(); err != nil {
		t.Errorf("GetPublicKey on a used connection: %v", err)
	}
	if got := s.Calls("GetPublicKey"); got != 2 {
		t.Errorf("Calls = %d, want 2", got)
	}
	if err := sign(); err != nil {
		t.Errorf("AsymmetricSign once all cuts are over: %v", err)
	}
	if got := s.Connections(); got != 3 {
		t.Errorf("Connections = %d, want 3", got)
	}
}

func TestKMSRESTIntercept(t *testing.T) {
	s, client := overREST.newKMS(t)
	_, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	sign := func() (*kmspb.AsymmetricSignResponse, error) {
		return client.AsymmetricSign(t.Context(), &kmspb.AsymmetricSignRequest{Name: version, Data: []byte("a")})
	}
	for name, body := range map[string]string{
		"HTML":  "<!DOCTYPE html><title>Login</title>",
		"empty": "",
		"huge":  `{"signature":"` + strings.Repeat("A", 8<<20),
	} {
		for _, code := range []int{http.StatusOK, http.StatusBadGateway} {
			s.InterceptREST(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
				w.WriteHeader(code)
				io.WriteString(w, body)
			})
			if _, err := sign(); err == nil {
				t.Errorf("%s with status %d: no error", name, code)
			} else if answer, ok := errors.AsType[*googleapi.Error](err); ok != (code != http.StatusOK) || ok && answer.Body != body {
				t.Errorf("%s with status %d: got %.200v", name, code, err)
			}
		}
	}

	// A request can be looked at, changed and passed on to the gRPC hook.
	s.Intercept(func(ctx context.Context, _ string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if data := req.(*kmspb.AsymmetricSignRequest).Data; string(data) != "b" {
			t.Errorf("data = %q, want b", data)
		}
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("x-goog-api-client")) != 1 {
			t.Errorf("metadata = %v, want the client's headers", md)
		}
		return next(ctx, req)
	})
	s.InterceptREST(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		encode := base64.StdEncoding.EncodeToString
		changed := strings.Replace(string(body), encode([]byte("a")), encode([]byte("b")), 1)
		r.Body = io.NopCloser(strings.NewReader(changed))
		next.ServeHTTP(w, r)
	})
	if _, err := sign(); err != nil {
		t.Errorf("changing hook: %v", err)
	}
	s.InterceptREST(nil)
	s.Intercept(nil)
	if _, err := sign(); err != nil {
		t.Errorf("no hook: %v", err)
	}
	if got := s.Calls("AsymmetricSign"); got != 8 {
		t.Errorf("Calls = %d, want 8", got)
	}
}

// The client lists without the caller's context (kms v1.37.0): a list that
// hangs ends with the connection.
func TestKMSRESTHangingList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, client := overREST.newKMS(t, testutil.InMemory())
		key, _ := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
		ended := false
		s.Intercept(func(ctx context.Context, _ string, _ proto.Message, _ testutil.KMSHandler) (proto.Message, error) {
			<-ctx.Done()
			time.Sleep(time.Minute)
			ended = true
			return nil, ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		listed := make(chan error, 1)
		go func() {
			_, err := client.ListCryptoKeyVersions(ctx, &kmspb.ListCryptoKeyVersionsRequest{Parent: key}).Next()
			listed <- err
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case err := <-listed:
			t.Errorf("the list ended before its connection: %v", err)
		default:
		}
		s.Stop()
		if !ended {
			t.Error("Stop returned before the list's handler")
		}
		if err := <-listed; err == nil {
			t.Error("the list succeeded")
		}
	})
}

func TestKMSRESTHTTPClient(t *testing.T) {
	s, _ := newKMS(t)
	key, _ := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	requests := 0
	own := s.HTTPClient()
	own.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		requests++
		return http.DefaultTransport.RoundTrip(r)
	})
	defer http.DefaultClient.CloseIdleConnections()
	client, err := s.RESTClient(t.Context(), option.WithHTTPClient(own))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.GetCryptoKey(t.Context(), &kmspb.GetCryptoKeyRequest{Name: key}); err != nil || requests != 1 {
		t.Errorf("GetCryptoKey: %v after %d requests, want 1", err, requests)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
