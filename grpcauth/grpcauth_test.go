package grpcauth_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/oauth"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/grpcauth"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/tokens"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// codeOf is the code that stands for an HTTP status.
var codeOf = map[int]codes.Code{
	http.StatusOK:                  codes.OK,
	http.StatusUnauthorized:        codes.Unauthenticated,
	http.StatusForbidden:           codes.PermissionDenied,
	http.StatusInternalServerError: codes.Internal,
	http.StatusServiceUnavailable:  codes.Unavailable,
}

// The same token gets the same over HTTP, in unary calls and in streams.
func TestTable(t *testing.T) {
	cases := tokens.Cases(time.Now())
	if len(cases) < 60 {
		t.Fatalf("the table has %d tokens, want 60 at least", len(cases))
	}
	v := newVerifier()
	web := httptest.NewServer(v.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer web.Close()
	conn := serve(t, v, nil)
	for _, test := range cases {
		t.Run(test.Name, func(t *testing.T) {
			if got := statusOver(t, web, test.Text); got != test.Status {
				t.Errorf("over HTTP: got status %d, want %d", got, test.Status)
			}
			for name, call := range calls {
				var header, trailer metadata.MD
				who, err := call(with(t.Context(), "Bearer "+test.Text), conn, grpc.Header(&header), grpc.Trailer(&trailer))
				check(t, name, err, codeOf[test.Status])
				if err == nil && who != "somebody" {
					t.Errorf("%s: the handler found %s", name, who)
				}
				for _, key := range slices.Concat(slices.Collect(maps.Keys(header)), slices.Collect(maps.Keys(trailer))) {
					if key != "content-type" && key != "grpc-status-details-bin" { // check has looked at the details
						t.Errorf("%s: the client got %v %v", name, header, trailer)
					}
				}
			}
		})
	}
}

func statusOver(t *testing.T, server *httptest.Server, token string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

// check checks an error down to its last detail.
func check(t *testing.T, name string, err error, want codes.Code) {
	t.Helper()
	got := status.Convert(err)
	if got.Code() != want {
		t.Errorf("%s: got %v, want %v", name, err, want)
		return
	}
	if want == codes.OK {
		return
	}
	if got.Message() != want.String() {
		t.Errorf("%s: got the message %q, want %q", name, got.Message(), want)
	}
	if want != codes.Unavailable {
		if details := got.Details(); len(details) > 0 {
			t.Errorf("%s: got the details %v, want none", name, details)
		}
		return
	}
	if details := got.Details(); len(details) != 1 {
		t.Errorf("%s: got the details %v, want a RetryInfo", name, details)
	} else if info, ok := details[0].(*errdetails.RetryInfo); !ok || info.RetryDelay.AsDuration() != 10*time.Second {
		t.Errorf("%s: got %v, want a RetryInfo of 10 seconds", name, details[0])
	}
}

// What metadata may look like: as the Authorization header, with and without a token.
func TestMetadata(t *testing.T) {
	good := tokens.Sign(`{"alg":"EdDSA"}`, tokens.Payload(time.Now()))
	required, optional := serve(t, newVerifier(), nil), serve(t, newVerifier(middleware.WithOptional()), nil)
	const refused = codes.Unauthenticated
	for _, test := range []struct {
		name     string
		values   []string
		want     codes.Code
		optional codes.Code // with WithOptional
	}{
		{"usual", []string{"Bearer " + good}, codes.OK, codes.OK},
		{"lower case, blanks", []string{"bearer   " + good + " "}, codes.OK, codes.OK},
		{"none", nil, refused, codes.OK},
		{"empty", []string{""}, refused, codes.OK},
		{"another scheme", []string{"Basic x"}, refused, codes.OK},
		{"no scheme", []string{good}, refused, codes.OK},
		{"no token", []string{"Bearer"}, refused, refused},
		{"two words", []string{"Bearer a b"}, refused, refused},
		{"forged", []string{"Bearer " + tokens.Forge(good)}, refused, refused},
		{"same twice", []string{"Bearer " + good, "Bearer " + good}, refused, refused},
		{"good one first", []string{"Bearer " + good, "Basic x"}, refused, refused},
		{"good one last", []string{"Basic x", "Bearer " + good}, refused, refused},
		{"a list", []string{"Bearer " + good + ",Bearer " + good}, refused, refused},
	} {
		t.Run(test.name, func(t *testing.T) {
			for name, call := range calls {
				_, err := call(with(t.Context(), test.values...), required)
				check(t, name, err, test.want)
				who, err := call(with(t.Context(), test.values...), optional)
				check(t, name+", optional", err, test.optional)
				if want := test.want == codes.OK; err == nil && want != (who == "somebody") {
					t.Errorf("%s: the handler found %s", name, who)
				}
			}
		})
	}
}

func TestWithSkip(t *testing.T) {
	v := newVerifier()
	conn := serve(t, v, []grpcauth.Option{grpcauth.WithSkip(func(method string) bool { return method == unary })})
	who, err := callUnary(with(t.Context(), "Bearer x"), conn)
	if check(t, "skipped", err, codes.OK); who != "a stranger" {
		t.Errorf("the handler found %s", who)
	}
	_, err = callStream(t.Context(), conn)
	check(t, "not skipped", err, codes.Unauthenticated)

	// A panic would end the process, as nothing in gRPC catches it.
	conn = serve(t, v, []grpcauth.Option{grpcauth.WithSkip(func(string) bool { panic("secret") })})
	for name, call := range calls {
		_, err := call(with(t.Context(), "Bearer "+tokens.Sign(`{"alg":"EdDSA"}`, tokens.Payload(time.Now()))), conn)
		check(t, name, err, codes.Internal)
	}
}

// What somebody's Keyfunc panics with, http.ErrAbortHandler included, ends nothing.
func TestPanics(t *testing.T) {
	for _, value := range []any{"secret", http.ErrAbortHandler, errors.New("secret")} {
		conn := serve(t, middleware.NewVerifier(func(*jwt.Token) (any, error) { panic(value) }), nil)
		for name, call := range calls {
			_, err := call(with(t.Context(), "Bearer "+tokens.Sign(`{"alg":"EdDSA"}`, tokens.Payload(time.Now()))), conn)
			check(t, name, err, codes.Internal)
		}
	}
	conn := serve(t, new(middleware.Verifier), nil)
	for name, call := range calls {
		_, err := call(with(t.Context(), "Bearer x"), conn)
		check(t, name, err, codes.Internal)
	}
	for name, construct := range map[string]func(){
		"unary":  func() { grpcauth.UnaryServerInterceptor(nil) },
		"stream": func() { grpcauth.StreamServerInterceptor(nil) },
		"skip":   func() { grpcauth.WithSkip(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: nil didn't panic", name)
				}
			}()
			construct()
		}()
	}
}

// An interceptor in front finds the reason, the client doesn't.
func TestReason(t *testing.T) {
	expired := tokens.Sign(`{"alg":"EdDSA"}`, tokens.Payload(time.Now(), "exp", "1"))
	var reason error
	conn := serveWith(t, []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			response, err := handler(ctx, req)
			reason = err
			return response, err
		},
		grpcauth.UnaryServerInterceptor(newVerifier()),
	)})
	for authorization, want := range map[string]error{
		"Bearer " + expired: jwt.ErrTokenExpired,
		"Basic x":           request.ErrNoTokenInRequest,
		"Bearer":            jwt.ErrTokenMalformed,
	} {
		_, err := callUnary(with(t.Context(), authorization), conn)
		check(t, authorization, err, codes.Unauthenticated)
		if !errors.Is(reason, want) {
			t.Errorf("%s: the reason is %v, want %v", authorization, errors.Unwrap(reason), want)
		}
	}
}

// 1,000 calls at once share one signature on the client.
func TestClientSignsOnce(t *testing.T) {
	google := gcpjwttest.NewKMS(t)
	config := google.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	source, err := oauth2.NewTokenSource(gcpjwt.NewKMSContext(t.Context(), config), oauth2.Config{
		Method: gcpjwt.SigningMethodKMSES256, Issuer: tokens.Issuer, Subject: "somebody", Audience: []string{tokens.Audience},
	})
	if err != nil {
		t.Fatal(err)
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	v := middleware.NewVerifier(keyfunc, middleware.WithIssuer(tokens.Issuer), middleware.WithAudience(tokens.Audience))
	conn := serve(t, v, nil, grpc.WithPerRPCCredentials(oauth.TokenSource{TokenSource: source}))
	var group sync.WaitGroup
	for range 500 {
		for name, call := range calls {
			group.Go(func() {
				if who, err := call(t.Context(), conn); err != nil || who != "somebody" {
					t.Errorf("%s: got %s, %v", name, who, err)
				}
			})
		}
	}
	group.Wait()
	if n := google.Calls("AsymmetricSign"); n != 1 {
		t.Errorf("%d signatures for 1,000 calls, want 1", n)
	}
}

// FuzzMetadata sends any authorization values. A call passes if a request with the same
// headers does.
func FuzzMetadata(f *testing.F) {
	good := tokens.Sign(`{"alg":"EdDSA"}`, tokens.Payload(time.Now(), "exp", "253402300799"))
	for _, first := range []string{"Bearer " + good, "bEARER\t" + good, "Bearer", "Basic x", "", "Bearer\n" + good} {
		f.Add(first, "", byte(1))
		f.Add(first, "Bearer "+good, byte(2))
		f.Add("", first, byte(0))
	}
	f.Fuzz(func(t *testing.T, first, second string, n byte) {
		values := []string{first, second}[:n%3]
		for _, v := range []*middleware.Verifier{newVerifier(), newVerifier(middleware.WithOptional())} {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header["Authorization"] = values
			w := httptest.NewRecorder()
			v.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)

			ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{"authorization": values})
			_, err := grpcauth.UnaryServerInterceptor(v)(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unary},
				func(context.Context, any) (any, error) { return nil, nil })
			check(t, "unary", err, codeOf[w.Code])
		}
	})
}

// BenchmarkUnary shows what the interceptor adds to a call beyond the verification.
func BenchmarkUnary(b *testing.B) {
	v := newVerifier()
	text := tokens.Sign(`{"alg":"EdDSA"}`, tokens.Payload(time.Now()))
	ctx := metadata.NewIncomingContext(b.Context(), metadata.Pairs("authorization", "Bearer "+text, "user-agent", "grpc-go", ":authority", "localhost"))
	interceptor := grpcauth.UnaryServerInterceptor(v)
	info := &grpc.UnaryServerInfo{FullMethod: unary}
	b.Run("Verify", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := v.Verify(ctx, text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("interceptor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := interceptor(ctx, nil, info, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
}
