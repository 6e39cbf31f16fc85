package gcpjwt_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iamcredentials/v1"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// iamMethods are the methods that sign as a service account, by the call that
// they make.
var iamMethods = []struct {
	call   string
	method *gcpjwt.SigningMethodIAM
}{
	{"signBlob", gcpjwt.SigningMethodIAMBlob},
	{"signJwt", gcpjwt.SigningMethodIAMJWT},
}

// iamAnswer has the server answer signJwt with whatever edit makes of the header
// and the payload, signed by the account's key.
func iamAnswer(server *testutil.IAM, service *iamcredentials.Service, edit func(header, payload string) (string, string)) {
	server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.HasSuffix(r.URL.Path, ":signJwt") {
			next.ServeHTTP(w, r)
			return
		}
		var request struct{ Payload string }
		_ = json.NewDecoder(r.Body).Decode(&request)
		header, payload := edit(fmt.Sprintf(`{"alg":"RS256","kid":%q,"typ":"JWT"}`, server.KeyIDs(account)[0]), request.Payload)
		signingString := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))

		// The same key signs blobs.
		blob := &iamcredentials.SignBlobRequest{Payload: base64.StdEncoding.EncodeToString([]byte(signingString))}
		signed, err := service.Projects.ServiceAccounts.SignBlob("projects/-/serviceAccounts/"+account, blob).Do()
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		signature, _ := base64.StdEncoding.DecodeString(signed.SignedBlob)
		iamWriteJSON(w, map[string]string{
			"keyId":     signed.KeyId,
			"signedJwt": signingString + "." + base64.RawURLEncoding.EncodeToString(signature),
		})
	})
}

func iamWriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// B16: the token is Google's, byte for byte, as rebuilding its header would
// break the signature.
func TestIAMJWTReturnsGooglesToken(t *testing.T) {
	t.Parallel()
	server, config := systest.StartIAM(t)
	kid := server.KeyIDs(account)[0]
	header := fmt.Sprintf(`{ "typ":"JWT","kid":%q, "x-added":{"by":["Google"]},"alg":"RS256"}`, kid)
	iamAnswer(server, config.IAMService, func(_, payload string) (string, string) {
		return header, strings.Replace(payload, `{`, "{\n  ", 1)
	})

	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, jwt.MapClaims{"sub": "<&>"})
	text, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), config), token)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Split(text, ".")[0], base64.RawURLEncoding.EncodeToString([]byte(header)); got != want {
		t.Errorf("header %s, want %s, as Google wrote it", got, want)
	}
	if !iamSignedBy(text, server.PublicKey(account, kid)) {
		t.Error("the signature doesn't fit the token")
	}
	if _, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); err != nil {
		t.Errorf("Parse: %v", err)
	}
	if diff := cmp.Diff(map[string]any{"alg": "IAMJWT", "typ": "JWT"}, token.Header); diff != "" {
		t.Errorf("token.Header was changed (-want +got):\n%s", diff)
	}
}

// signJwt makes a header of its own, so a field that the caller set would get
// lost.
func TestIAMJWTRefusesHeaderFields(t *testing.T) {
	t.Parallel()
	server := gcpjwttest.NewIAM(t)
	config := server.NewAccount(account)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	for field, value := range map[string]any{"typ": "at+jwt", "cty": "JWT", "crit": []string{"b64"}, "b64": false, "x": map[string]any{}} {
		token := jwt.New(gcpjwt.SigningMethodIAMJWT)
		token.Header[field] = value
		if text, err := gcpjwt.SignedString(ctx, token); !errors.Is(err, gcpjwt.ErrSigningStringChanged) || text != "" {
			t.Errorf("%s: got %q, %v, want %v", field, text, err, gcpjwt.ErrSigningStringChanged)
		} else if !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v doesn't name it", field, err)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want none", got)
	}
}

// Sign can return a signature only where it is one of the text it was given.
func TestIAMJWTSign(t *testing.T) {
	t.Parallel()
	server, config := systest.StartIAM(t)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	kid := server.KeyIDs(account)[0]
	tests := []struct {
		name   string
		header map[string]any
		want   error
	}{
		{"Google's header", map[string]any{"alg": "RS256", "kid": kid, "typ": "JWT"}, nil},
		{"jwt's header", map[string]any{"alg": "IAMJWT", "typ": "JWT"}, gcpjwt.ErrSigningStringChanged},
		{"without kid", map[string]any{"alg": "RS256", "typ": "JWT"}, gcpjwt.ErrSigningStringChanged},
		{"another kid", map[string]any{"alg": "RS256", "kid": kid + "0", "typ": "JWT"}, gcpjwt.ErrSigningStringChanged},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, jwt.MapClaims{"sub": "somebody"})
			token.Header = test.header
			text, err := token.SignedString(ctx)
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if test.want == nil && !iamSignedBy(text, server.PublicKey(account, kid)) {
				t.Error("the signature doesn't fit the token")
			}
		})
	}

	for _, text := range []string{"", "e30", "e30.", "e30.!", "e30.e30.e30", "e30.W10"} {
		if sig, err := gcpjwt.SigningMethodIAMJWT.Sign(text, ctx); err == nil {
			t.Errorf("Sign(%q): got a signature of %d bytes, want an error", text, len(sig))
		}
	}
}

func TestIAMBlobSign(t *testing.T) {
	t.Parallel()
	server, config := systest.StartIAM(t)
	kid := server.KeyIDs(account)[0]
	text, err := jwt.New(gcpjwt.SigningMethodIAMBlob).SignedString(gcpjwt.NewIAMContext(t.Context(), config))
	if err != nil {
		t.Fatal(err)
	}
	if !iamSignedBy(text, server.PublicKey(account, kid)) {
		t.Error("the signature doesn't fit the token")
	}
	if got := config.KeyID(); got != kid {
		t.Errorf("KeyID: got %q, want %q", got, kid)
	}
	if _, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); err != nil {
		t.Errorf("a token with alg IAMBlob: %v", err)
	}
}

func TestIAMJWTClaims(t *testing.T) {
	t.Parallel()
	const claims = `{"sub":"a","n":9007199254740993,"o":{"k":[1,"x",null]}}`
	tests := []struct {
		name, payload string
		want          error
	}{
		{"as they were", claims, nil},
		{"another order", `{"o":{"k":[1,"x",null]},"n":9007199254740993,"sub":"a"}`, nil},
		{"another spelling", `{"sub":"\u0061", "n":9007199254740993, "o":{"k":[1,"x",null]}}`, nil},
		{"exp added", `{"sub":"a","n":9007199254740993,"o":{"k":[1,"x",null]},"exp":4102444800}`, nil},
		{"another value", `{"sub":"b","n":9007199254740993,"o":{"k":[1,"x",null]}}`, gcpjwt.ErrSigningStringChanged},
		{"a digit lost", `{"sub":"a","n":9007199254740992,"o":{"k":[1,"x",null]}}`, gcpjwt.ErrSigningStringChanged},
		{"a claim lost", `{"sub":"a","n":9007199254740993}`, gcpjwt.ErrSigningStringChanged},
		{"another list", `{"sub":"a","n":9007199254740993,"o":{"k":["x",1,null]}}`, gcpjwt.ErrSigningStringChanged},
		{"iat added", `{"sub":"a","n":9007199254740993,"o":{"k":[1,"x",null]},"iat":1}`, gcpjwt.ErrSigningStringChanged},
		{"null", `null`, gcpjwt.ErrSigningStringChanged},
		{"no JSON", `sub=a`, gcpjwt.ErrSigningStringChanged},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, config := systest.StartIAM(t)
			iamAnswer(server, config.IAMService, func(header, _ string) (string, string) { return header, test.payload })
			var asked jwt.MapClaims
			decoder := json.NewDecoder(strings.NewReader(claims))
			decoder.UseNumber()
			if err := decoder.Decode(&asked); err != nil {
				t.Fatal(err)
			}
			text, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), config), jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, asked))
			if !errors.Is(err, test.want) || (err != nil) != (text == "") {
				t.Errorf("got %q, %v, want %v", text, err, test.want)
			}
		})
	}
}

// An exp that Google adds is welcome; Sign cannot return a signature of it.
func TestIAMJWTAddedExpiry(t *testing.T) {
	t.Parallel()
	server, config := systest.StartIAM(t)
	server.AddExp(true)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)

	parsed, err := jwt.Parse(systest.Sign(t, ctx, gcpjwt.SigningMethodIAMJWT, nil), gcpjwt.IAMVerifyKeyfunc(ctx, config), jwt.WithExpirationRequired())
	if err != nil || parsed.Claims.(jwt.MapClaims)["sub"] != "somebody" {
		t.Errorf("Parse: got %v, %v, want the claims and an exp", parsed, err)
	}

	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, jwt.MapClaims{"sub": "somebody"})
	token.Header = map[string]any{"alg": "RS256", "kid": server.KeyIDs(account)[0], "typ": "JWT"}
	if _, err := token.SignedString(ctx); !errors.Is(err, gcpjwt.ErrSigningStringChanged) {
		t.Errorf("Sign: got %v, want %v", err, gcpjwt.ErrSigningStringChanged)
	}
}

// B11: what signJwt would refuse is refused with the reason and without a call.
func TestIAMJWTExpiry(t *testing.T) {
	t.Parallel()
	in := func(d time.Duration) func() any {
		return func() any { return time.Now().Add(d).Unix() }
	}
	is := func(v any) func() any { return func() any { return v } }
	tests := []struct {
		name string
		exp  func() any
		want error  // nil: it is signed
		text string // in the error
	}{
		{"in an hour", in(time.Hour), nil, ""},
		{"now", in(0), nil, ""},
		{"at the limit", in(12 * time.Hour), nil, ""},
		{"a second over the limit", in(12*time.Hour + time.Second), jwt.ErrTokenInvalidClaims, "12 hours"},
		{"in a year", in(365 * 24 * time.Hour), jwt.ErrTokenInvalidClaims, "12 hours"},
		{"at the end of time", is(int64(math.MaxInt64)), jwt.ErrTokenInvalidClaims, "12 hours"},
		{"a second ago", in(-time.Second), jwt.ErrTokenExpired, "in the past"},
		{"0", is(0), jwt.ErrTokenExpired, "in the past"},
		{"-1", is(-1), jwt.ErrTokenExpired, "in the past"},
		{"at the beginning of time", is(int64(math.MinInt64)), jwt.ErrTokenExpired, "in the past"},
		{`"0"`, is("0"), jwt.ErrInvalidType, "integer"},
		{"null", is(nil), jwt.ErrInvalidType, "integer"},
		{"1e400", is(json.RawMessage("1e400")), jwt.ErrInvalidType, "integer"},
		{"1e3", is(json.RawMessage("1e3")), jwt.ErrInvalidType, "integer"},
		{"half a second", is(json.RawMessage("946688400.5")), jwt.ErrInvalidType, "integer"},
		{"beyond int64", is(json.RawMessage("9223372036854775808")), jwt.ErrInvalidType, "integer"},
		{"true", is(true), jwt.ErrInvalidType, "integer"},
		{"object", is(map[string]any{}), jwt.ErrInvalidType, "integer"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // a clock at a full second
				server, config := systest.StartIAM(t, testutil.InMemory())
				ctx := gcpjwt.NewIAMContext(t.Context(), config)
				token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, jwt.MapClaims{"exp": test.exp()})
				text, err := gcpjwt.SignedString(ctx, token)
				if test.want == nil {
					if err != nil || server.Calls("signJwt") != 1 {
						t.Errorf("got %v after %d calls, want a token after one", err, server.Calls("signJwt"))
					}
					return
				}
				if text != "" || !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
					t.Errorf("got %q, %v, want %v that says %q", text, err, test.want, test.text)
				}
				token.Header = map[string]any{"alg": "RS256"}
				if _, err := token.SignedString(ctx); !errors.Is(err, test.want) {
					t.Errorf("Sign: got %v, want %v", err, test.want)
				}
				if got := server.Calls(""); got != 0 {
					t.Errorf("%d calls, want none", got)
				}
			})
		})
	}
}

// Claims of any type are checked before the call, by what they are in JSON: methods
// of claims may say something else, or panic.
func TestIAMJWTExpiryOfTypedClaims(t *testing.T) {
	t.Parallel()
	server, config := systest.StartIAM(t)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	at := func(d time.Duration) jwt.RegisteredClaims {
		return jwt.RegisteredClaims{ExpiresAt: jwt.NewNumericDate(time.Now().Add(d))}
	}
	late := at(13 * time.Hour)
	type shadowing struct {
		jwt.RegisteredClaims
		Exp int64 `json:"exp"`
	}
	for name, test := range map[string]struct {
		claims jwt.Claims
		want   error // nil: it is signed
	}{
		"none":                     {jwt.RegisteredClaims{}, nil},
		"in an hour":               {at(time.Hour), nil},
		"in an hour, by pointer":   {&shadowing{Exp: in(time.Hour)}, nil},
		"too late":                 {late, jwt.ErrTokenInvalidClaims},
		"too late, by pointer":     {&late, jwt.ErrTokenInvalidClaims},
		"past, embedded":           {struct{ jwt.RegisteredClaims }{at(-time.Hour)}, jwt.ErrTokenExpired},
		"past, for the getter":     {shadowing{at(-time.Hour), in(time.Hour)}, nil},
		"past, but for the getter": {shadowing{at(time.Hour), in(-time.Hour)}, jwt.ErrTokenExpired},
		"an error of the getter":   {wrongClaims{}, nil},
		"a panic of the getter": {struct {
			*jwt.RegisteredClaims
			Email string `json:"email"`
		}{Email: "somebody@example.com"}, nil},
		"map by pointer": {&jwt.MapClaims{"exp": in(time.Hour)}, nil},
		"past map":       {&jwt.MapClaims{"exp": in(-time.Hour)}, jwt.ErrTokenExpired},
		"null": {struct {
			jwt.RegisteredClaims
			ExpiresAt *jwt.NumericDate `json:"exp"`
		}{}, jwt.ErrInvalidType},
		"nil pointer": {(*jwt.RegisteredClaims)(nil), jwt.ErrTokenInvalidClaims},
		"nil map":     {jwt.MapClaims(nil), jwt.ErrTokenInvalidClaims},
	} {
		server.ResetCalls()
		text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, test.claims))
		switch calls := server.Calls(""); {
		case test.want == nil && (err != nil || calls != 1):
			t.Errorf("%s: got %v after %d calls, want a token after one", name, err, calls)
		case test.want != nil && (text != "" || !errors.Is(err, test.want) || calls != 0):
			t.Errorf("%s: got %q, %v after %d calls, want %v before any", name, text, err, calls, test.want)
		}
	}
}

type wrongClaims struct{ jwt.MapClaims }

func (wrongClaims) GetExpirationTime() (*jwt.NumericDate, error) { return nil, jwt.ErrInvalidType }

func (wrongClaims) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }

// Names of claims are case-sensitive (RFC 7519 section 4), encoding/json's
// matching of struct fields is not.
func TestIAMJWTExpiryIsCaseSensitive(t *testing.T) {
	t.Parallel()
	config := gcpjwttest.NewIAM(t).NewAccount(account)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	for name, value := range map[string]any{"EXP": "never", "Exp": 1} {
		if _, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, jwt.MapClaims{name: value})); err != nil {
			t.Errorf("a claim %s, which isn't exp: %v", name, err)
		}
	}
	// Nor may a claim of another name hide an exp that has passed.
	claims := json.RawMessage(`{"exp":1,"EXP":` + fmt.Sprint(time.Now().Add(time.Hour).Unix()) + `}`)
	if _, err := gcpjwt.SigningMethodIAMJWT.Sign("e30."+base64.RawURLEncoding.EncodeToString(claims), ctx); !errors.Is(err, jwt.ErrTokenExpired) {
		t.Errorf("exp in the past beside another EXP: got %v, want %v", err, jwt.ErrTokenExpired)
	}
}

func TestIAMJWTNeedsAnObject(t *testing.T) {
	t.Parallel()
	server := gcpjwttest.NewIAM(t)
	config := server.NewAccount(account)
	for _, payload := range []string{`[]`, `"x"`, `1`, `null`, ``, `{`, `{}x`, `{}{}`} {
		signingString := "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload))
		if _, err := gcpjwt.SigningMethodIAMJWT.Sign(signingString, gcpjwt.NewIAMContext(t.Context(), config)); err == nil {
			t.Errorf("payload %q: got a signature, want an error", payload)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want none", got)
	}
}

// iamFail has the server answer with an error in Google's form, by status, for
// the first calls of a kind; 0 is a good answer. The last status stays.
func iamFail(server *testutil.IAM, statuses ...int) {
	var mu sync.Mutex
	server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		status := statuses[0]
		if len(statuses) > 1 {
			statuses = statuses[1:]
		}
		mu.Unlock()
		if status == 0 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":{"code":%d,"message":"made up","status":"X"}}`, status)
	})
}

// B13: an answer that says nothing about the request is asked for again, within
// the caller's deadline.
func TestIAMRetries(t *testing.T) {
	t.Parallel()
	tests := []struct {
		statuses []int
		calls    int
		code     int // of the error, 0: none
	}{
		{[]int{0}, 1, 0},
		{[]int{503, 503, 0}, 3, 0},
		{[]int{429, 0}, 2, 0},
		{[]int{500, 502, 504, 0}, 4, 0},
		{[]int{400, 0}, 1, 400},
		{[]int{401, 0}, 1, 401},
		{[]int{403, 0}, 1, 403},
		{[]int{404, 0}, 1, 404},
		{[]int{501, 0}, 1, 501},
		{[]int{503, 400, 0}, 2, 400},
	}
	for _, m := range iamMethods {
		for _, test := range tests {
			t.Run(fmt.Sprint(m.call, test.statuses), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					server, config := systest.StartIAM(t, testutil.InMemory())
					// The first signature of all makes the key known, so that
					// each further one is one call.
					systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), m.method, nil)
					server.ResetCalls()
					iamFail(server, test.statuses...)
					_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), config), jwt.New(m.method))
					if got := server.Calls(m.call); got != test.calls {
						t.Errorf("%d calls, want %d", got, test.calls)
					}
					var answer *googleapi.Error
					switch errors.As(err, &answer); {
					case test.code == 0 && err != nil:
						t.Errorf("got %v, want a token", err)
					case test.code != 0 && (answer == nil || answer.Code != test.code):
						t.Errorf("got %v, want a googleapi.Error of code %d", err, test.code)
					case test.code != 0 && !strings.Contains(err.Error(), account):
						t.Errorf("%v doesn't name the account", err)
					}
				})
			})
		}
	}
}

// B13: an outage ends with the caller's deadline, or after a minute.
func TestIAMOutage(t *testing.T) {
	t.Parallel()
	for _, m := range iamMethods {
		for _, status := range []int{429, 503} {
			for _, timeout := range []time.Duration{300 * time.Millisecond, time.Minute} {
				t.Run(fmt.Sprint(m.call, " ", status, " ", timeout), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						server, config := systest.StartIAM(t, testutil.InMemory())
						iamFail(server, status)
						ctx := t.Context()
						if timeout < time.Minute {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeout(ctx, timeout)
							defer cancel()
						}
						began := time.Now()
						_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(ctx, config), jwt.New(m.method))
						if !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
						}
						var answer *googleapi.Error
						if !errors.As(err, &answer) || answer.Code != status {
							t.Errorf("%v doesn't say that Google answered %d", err, status)
						}
						if took := time.Since(began); took > timeout {
							t.Errorf("came back after %v, want %v at most", took, timeout)
						}
						// 100 ms, 200 ms and so on, each multiplied by a random
						// number up to 1.
						if got := server.Calls(m.call); got < 2 || got > 100 {
							t.Errorf("%d calls, want a few, spaced out", got)
						}
					})
				})
			}
		}
	}
}

// B13: whose permission is missing for what, and which role grants it.
func TestIAMPermissionDenied(t *testing.T) {
	t.Parallel()
	for _, m := range iamMethods {
		t.Run(m.call, func(t *testing.T) {
			t.Parallel()
			server, config := systest.StartIAM(t)
			server.Deny("iam.serviceAccounts." + m.call)
			_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), config), jwt.New(m.method))
			var answer *googleapi.Error
			if !errors.As(err, &answer) || answer.Code != http.StatusForbidden {
				t.Fatalf("got %v, want a googleapi.Error of code 403", err)
			}
			for _, want := range []string{"gcpjwt: ", account, "grant the caller iam.serviceAccounts." + m.call, "roles/iam.serviceAccountTokenCreator"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v doesn't say %s", err, want)
				}
			}
			if got := server.Calls(m.call); got != 1 {
				t.Errorf("%d calls, want 1", got)
			}
		})
	}
}

func TestIAMDelegates(t *testing.T) {
	t.Parallel()
	for _, m := range iamMethods {
		t.Run(m.call, func(t *testing.T) {
			t.Parallel()
			server, config := systest.StartIAM(t)
			chain := []string{"first@test.iam.gserviceaccount.com", "100000000000000000002", "third@test.iam.gserviceaccount.com"}
			server.SetDelegates(account, chain...)
			var sent []string
			server.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				body, _ := io.ReadAll(r.Body)
				var request struct{ Delegates []string }
				_ = json.Unmarshal(body, &request)
				sent = request.Delegates
				r.Body = io.NopCloser(bytes.NewReader(body))
				next.ServeHTTP(w, r)
			})

			config.Delegates = chain
			systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), m.method, nil)
			var want []string
			for _, delegate := range chain {
				want = append(want, "projects/-/serviceAccounts/"+delegate)
			}
			if diff := cmp.Diff(want, sent); diff != "" {
				t.Errorf("delegates (-want +got):\n%s", diff)
			}

			config = &gcpjwt.IAMConfig{ServiceAccount: account, IAMService: config.IAMService, Delegates: []string{chain[1], chain[0], chain[2]}}
			var answer *googleapi.Error
			if _, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), config), jwt.New(m.method)); !errors.As(err, &answer) {
				t.Errorf("in another order: got %v, want Google's refusal", err)
			}
		})
	}
}

// iamBadAccounts are names that must not reach a URL.
var iamBadAccounts = []string{
	"", " ", "-", ".", "..", "signer", "@", "a@", "@b", "a@b@c", "a b@c", "a@b c", "a@b\n", "\na@b", "a@b\x00", "a@b\r\nX: y",
	"../a@b", "a@b/..", "a@b/../c@d", "a/b@c", "..@b", ".@..", "a@..", "a@b?x=y", "a@b#c", "a%2f@b", "a@b%00", "a@b:signBlob", `a\@b`, "a;b@c",
	"projects/-/serviceAccounts/x@y", "-/serviceAccounts/x@y", "https://x@y", "a@[::1]", "ä@b", "a@ü", "12345x", "１２３", "-5", "1.5",
	strings.Repeat("1", 255), strings.Repeat("a", 250) + "@b.de",
}

func TestIAMMalformedAccounts(t *testing.T) {
	t.Parallel()
	server := gcpjwttest.NewIAM(t)
	good := server.NewAccount(account)
	check := func(t *testing.T, what, name string, err error) {
		t.Helper()
		if !errors.Is(err, gcpjwt.ErrInvalidConfig) {
			t.Errorf("%s %q: got %v, want %v", what, name, err, gcpjwt.ErrInvalidConfig)
		} else if len(err.Error()) > 500 || strings.ContainsAny(err.Error(), "\x00\r\n") {
			t.Errorf("%s %q: %v isn't fit for a log", what, name, err)
		}
	}
	for _, name := range iamBadAccounts {
		config := *good
		config.ServiceAccount = name
		for _, m := range iamMethods {
			_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), &config), jwt.New(m.method))
			check(t, m.call, name, err)
			_, err = m.method.Sign("e30.e30", gcpjwt.NewIAMContext(t.Context(), &config))
			check(t, m.call+" by Sign", name, err)
		}
		for _, cached := range []bool{false, true} {
			config.EnableCache = cached
			_, err := gcpjwt.IAMVerifyKeyfunc(t.Context(), &config)(jwt.New(jwt.SigningMethodRS256))
			check(t, "Keyfunc", name, err)
		}

		config = *good
		config.Delegates = []string{"good@test.iam.gserviceaccount.com", name}
		for _, m := range iamMethods {
			_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), &config), jwt.New(m.method))
			check(t, m.call+" through", name, err)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want none", got)
	}
}

func TestIAMAccountNames(t *testing.T) {
	t.Parallel()
	server, config := systest.StartIAM(t)
	names := []string{"a@b", "1@2", "my_app+x.y-z@example.com.iam.gserviceaccount.com", strings.Repeat("a", 252) + "@b"}
	for _, name := range names {
		uniqueID, err := server.CreateAccount(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{name, uniqueID} {
			config := *config
			config.ServiceAccount = name
			for _, m := range iamMethods {
				text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), &config), m.method, nil)
				if _, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), &config)); err != nil {
					t.Errorf("%s as %s: %v", m.call, name, err)
				}
			}
		}
	}
}

// An answer that isn't a signature by the key it names is an error, not a
// token.
func TestIAMIntegrity(t *testing.T) {
	t.Parallel()
	const kid = "0123456789abcdef0123456789abcdef01234567"
	signature := make([]byte, 256)
	blob := func(keyID, signed string) map[string]any {
		return map[string]any{"keyId": keyID, "signedBlob": signed}
	}
	token := func(keyID, header string, payload string, signature []byte) map[string]any {
		encode := base64.RawURLEncoding.EncodeToString
		return map[string]any{
			"keyId":     keyID,
			"signedJwt": encode([]byte(header)) + "." + encode([]byte(payload)) + "." + encode(signature),
		}
	}
	const header, payload = `{"alg":"RS256","kid":"` + kid + `","typ":"JWT"}`, `{"sub":"somebody"}`
	standard := base64.StdEncoding.EncodeToString
	tests := []struct {
		name   string
		method jwt.SigningMethod
		answer map[string]any
		good   bool
	}{
		{"blob, as it should be", gcpjwt.SigningMethodIAMBlob, blob(kid, standard(signature)), true},
		{"blob empty", gcpjwt.SigningMethodIAMBlob, blob(kid, ""), false},
		{"blob absent", gcpjwt.SigningMethodIAMBlob, map[string]any{"keyId": kid}, false},
		{"blob not base64", gcpjwt.SigningMethodIAMBlob, blob(kid, strings.Repeat("!", 344)), false},
		{"blob in base64url", gcpjwt.SigningMethodIAMBlob, blob(kid, base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 256))), false},
		{"blob short", gcpjwt.SigningMethodIAMBlob, blob(kid, standard(signature[:255])), false},
		{"blob of 3072 bits", gcpjwt.SigningMethodIAMBlob, blob(kid, standard(make([]byte, 384))), true},
		{"blob of 4096 bits", gcpjwt.SigningMethodIAMBlob, blob(kid, standard(make([]byte, 512))), true},
		{"blob long", gcpjwt.SigningMethodIAMBlob, blob(kid, standard(make([]byte, 257))), false},
		{"blob very long", gcpjwt.SigningMethodIAMBlob, blob(kid, standard(make([]byte, 1024))), false},
		{"blob without key ID", gcpjwt.SigningMethodIAMBlob, blob("", standard(signature)), false},
		{"blob, nothing at all", gcpjwt.SigningMethodIAMBlob, map[string]any{}, false},

		{"JWT, as it should be", gcpjwt.SigningMethodIAMJWT, token(kid, header, payload, signature), true},
		{"JWT empty", gcpjwt.SigningMethodIAMJWT, map[string]any{"keyId": kid, "signedJwt": ""}, false},
		{"JWT of two parts", gcpjwt.SigningMethodIAMJWT, map[string]any{"keyId": kid, "signedJwt": "e30.e30"}, false},
		{"JWT of four parts", gcpjwt.SigningMethodIAMJWT, map[string]any{"keyId": kid, "signedJwt": token(kid, header, payload, signature)["signedJwt"].(string) + ".e30"}, false},
		{"JWT not base64url", gcpjwt.SigningMethodIAMJWT, map[string]any{"keyId": kid, "signedJwt": "!.!.!"}, false},
		{"JWT without header", gcpjwt.SigningMethodIAMJWT, token(kid, ``, payload, signature), false},
		{"JWT with header null", gcpjwt.SigningMethodIAMJWT, token(kid, `null`, payload, signature), false},
		{"JWT with header []", gcpjwt.SigningMethodIAMJWT, token(kid, `[]`, payload, signature), false},
		{"JWT without key ID", gcpjwt.SigningMethodIAMJWT, token("", header, payload, signature), false},
		{"JWT without any key ID", gcpjwt.SigningMethodIAMJWT, token("", `{"alg":"RS256","kid":""}`, payload, signature), false},
		{"JWT of another key", gcpjwt.SigningMethodIAMJWT, token("x"+kid, header, payload, signature), false},
		{"JWT with kid []", gcpjwt.SigningMethodIAMJWT, token(kid, `{"alg":"RS256","kid":[]}`, payload, signature), false},
		{"JWT without kid", gcpjwt.SigningMethodIAMJWT, token(kid, `{"alg":"RS256"}`, payload, signature), false},
		{"JWT with alg none", gcpjwt.SigningMethodIAMJWT, token(kid, `{"alg":"none","kid":"`+kid+`"}`, payload, signature), false},
		{"JWT with alg RS512", gcpjwt.SigningMethodIAMJWT, token(kid, `{"alg":"RS512","kid":"`+kid+`"}`, payload, signature), false},
		{"JWT with a short signature", gcpjwt.SigningMethodIAMJWT, token(kid, header, payload, signature[:255]), false},
		{"JWT with a long signature", gcpjwt.SigningMethodIAMJWT, token(kid, header, payload, make([]byte, 257)), false},
		{"JWT without signature", gcpjwt.SigningMethodIAMJWT, token(kid, header, payload, nil), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, config := systest.StartIAM(t)
			server.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { iamWriteJSON(w, test.answer) })
			ctx := gcpjwt.NewIAMContext(t.Context(), config)
			text, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(test.method, jwt.MapClaims{"sub": "somebody"}))
			if test.good {
				if err != nil {
					t.Errorf("got %v, want a token", err)
				}
				return
			}
			if !errors.Is(err, gcpjwt.ErrIntegrity) || text != "" {
				t.Errorf("SignedString: got %q, %v, want %v", text, err, gcpjwt.ErrIntegrity)
			}
			if _, err := test.method.Sign("e30.eyJzdWIiOiJzb21lYm9keSJ9", ctx); !errors.Is(err, gcpjwt.ErrIntegrity) {
				t.Errorf("Sign: got %v, want %v", err, gcpjwt.ErrIntegrity)
			}
			if got := config.KeyID(); got != "" {
				t.Errorf("KeyID: got %q, want none", got)
			}
		})
	}
}

// An answer that isn't JSON is an error that still names the account.
func TestIAMAnswerWithoutJSON(t *testing.T) {
	t.Parallel()
	for _, m := range iamMethods {
		server, config := systest.StartIAM(t)
		server.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.WriteString(w, "<html>")
		})
		_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), config), jwt.New(m.method))
		if err == nil || !strings.Contains(err.Error(), account) {
			t.Errorf("%s: got %v, want an error that names the account", m.call, err)
		}
	}
}

// Key IDs belong to a service and an account, not to the process.
func TestIAMKeyIDsAreKeptApart(t *testing.T) {
	t.Parallel()
	server, config := systest.StartIAM(t)
	_, elsewhere := systest.StartIAM(t)
	if _, err := server.CreateAccount("other@test.iam.gserviceaccount.com"); err != nil {
		t.Fatal(err)
	}
	other := *config
	other.ServiceAccount = "other@test.iam.gserviceaccount.com"
	equal := *config

	systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMBlob, nil)
	if got, want := equal.KeyID(), server.KeyIDs(account)[0]; got != want {
		t.Errorf("an equal configuration: got %q, want %q", got, want)
	}
	if got := other.KeyID(); got != "" {
		t.Errorf("another account: got %q, want none", got)
	}
	if got := elsewhere.KeyID(); got != "" {
		t.Errorf("another service: got %q, want none", got)
	}
}

// R06: a configuration belongs to the caller. Run with -race, this also shows
// that calls only read it, and that a client of one isn't used for another.
func TestIAMConfigStaysAsItIs(t *testing.T) {
	t.Parallel()
	type running struct {
		server         *testutil.IAM
		config, before *gcpjwt.IAMConfig
	}
	var all []running
	for range 2 {
		server, config := systest.StartIAM(t)
		config.Delegates = []string{"first@test.iam.gserviceaccount.com"}
		config.EnableCache = true
		before := *config
		before.Delegates = slices.Clone(config.Delegates)
		all = append(all, running{server, config, &before})
	}

	var callers sync.WaitGroup
	for _, r := range all {
		for range 4 {
			callers.Go(func() {
				ctx := gcpjwt.NewIAMContext(context.Background(), r.config)
				for _, m := range iamMethods {
					text, err := gcpjwt.SignedString(ctx, jwt.New(m.method))
					if err == nil {
						_, err = jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(ctx, r.config))
					}
					if err != nil {
						t.Errorf("%s: %v", m.call, err)
					}
					_ = r.config.KeyID()
				}
			})
		}
	}
	callers.Wait()
	for i, r := range all {
		same := cmp.Comparer(func(a, b *iamcredentials.Service) bool { return a == b })
		client := cmp.Comparer(func(a, b *http.Client) bool { return a == b })
		if diff := cmp.Diff(r.before, r.config, same, client); diff != "" {
			t.Errorf("configuration %d has changed (-before +after):\n%s", i, diff)
		}
		if r.server.Calls("signJwt") != 4 || r.server.Calls("certificates") == 0 {
			t.Errorf("server %d: %d calls of signJwt and %d of certificates, want 4 and some", i, r.server.Calls("signJwt"), r.server.Calls("certificates"))
		}
	}
}

// A token that is signed again gets the kid of the key that then signs.
func TestIAMSignAgain(t *testing.T) {
	server := gcpjwttest.NewIAM(t)
	config := server.NewAccount(account)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, jwt.MapClaims{"n": 1})
	if _, err := gcpjwt.SignedString(ctx, token); err != nil {
		t.Fatal(err)
	}
	server.Rotate(account)
	text, err := gcpjwt.SignedString(ctx, token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jwt.Parse(text, gcpjwt.IAMVerifyKeyfunc(t.Context(), config)); err != nil {
		t.Errorf("second signature of the same token: %v", err)
	}
}

// C17: a connection that breaks is repeated once, on a new one.
func TestIAMCutConnection(t *testing.T) {
	t.Parallel()
	for _, m := range iamMethods {
		for cuts, want := range map[int]bool{1: true, 2: false} {
			server, config := systest.StartIAM(t)
			server.Cut(m.call, cuts)
			token := jwt.New(m.method)
			token.Header["kid"] = "mine" // so that one signature is enough
			_, err := gcpjwt.SignedString(gcpjwt.NewIAMContext(t.Context(), config), token)
			if (err == nil) != want || err != nil && !strings.Contains(err.Error(), account) {
				t.Errorf("%s, %d connections cut: got %v, want a token: %v", m.call, cuts, err, want)
			}
			if got := server.Calls(m.call); got != 2 {
				t.Errorf("%s, %d connections cut: %d calls, want 2", m.call, cuts, got)
			}
		}
	}
}

// C19: an exp that is no integer is the error that the documentation promises, which says what
// may be the cause.
func TestIAMJWTTimePrecision(t *testing.T) {
	if !iamAlone(t) { // jwt.TimePrecision is everybody's
		return
	}
	jwt.TimePrecision = time.Millisecond
	server := gcpjwttest.NewIAM(t)
	config := server.NewAccount(account)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	claims := jwt.RegisteredClaims{ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	for _, claims := range []jwt.Claims{claims, &claims, jwt.MapClaims{"exp": claims.ExpiresAt}} {
		_, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, claims))
		if !errors.Is(err, jwt.ErrInvalidType) || !strings.Contains(err.Error(), "jwt.TimePrecision") {
			t.Errorf("%T: got %v, want %v that names jwt.TimePrecision", claims, err, jwt.ErrInvalidType)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("%d calls, want none", got)
	}
	if _, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(gcpjwt.SigningMethodIAMBlob, claims)); err != nil {
		t.Errorf("signBlob: %v", err)
	}
}
