package middleware_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/golang-jwt/jwt/v5/request"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// forge flips a bit of a token's signature.
func forge(token string) string {
	dot := strings.LastIndexByte(token, '.')
	sig, err := base64.RawURLEncoding.DecodeString(token[dot+1:])
	if err != nil {
		panic(err)
	}
	sig[0] ^= 1
	return token[:dot+1] + base64.RawURLEncoding.EncodeToString(sig)
}

// withTrailingBits spells a token's signature in another way, which decodes to
// the same bytes unless decoding is strict.
func withTrailingBits(token string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(token) - 1
	return token[:last] + string(alphabet[strings.IndexByte(alphabet, token[last])+1])
}

// B32, B34: what the Authorization header may look like.
func TestAuthorization(t *testing.T) {
	good := signed(t, nil)
	auth := middleware.New(testKeyfunc)
	for _, test := range []struct {
		name   string
		values []string
		want   answer
	}{
		{"usual", []string{"Bearer " + good}, letIn},
		{"lower case", []string{"bearer " + good}, letIn},
		{"upper case, three blanks", []string{"BEARER   " + good}, letIn},
		{"blank behind", []string{"Bearer " + good + " "}, letIn},
		{"blank in front", []string{" Bearer " + good}, letIn},
		{"tab", []string{"Bearer \t" + good + "\t"}, letIn},

		{"absent", nil, noToken},
		{"empty", []string{""}, noToken},
		{"another scheme", []string{"Basic " + good}, noToken},
		{"no scheme", []string{good}, noToken},
		{"no blank", []string{"Bearer" + good}, noToken},
		{"comma after the scheme", []string{"Bearer," + good}, noToken},

		{"no token", []string{"Bearer"}, invalidToken},
		{"blank token", []string{"Bearer  "}, invalidToken},
		{"two words", []string{"Bearer a b"}, invalidToken},
		{"word behind", []string{"Bearer " + good + " b"}, invalidToken},
		{"word in front", []string{"Bearer a " + good}, invalidToken},
		{"comma behind", []string{"Bearer " + good + ","}, invalidToken},
		{"list", []string{"Bearer " + good + ", Bearer " + good}, invalidToken},
		{"quoted", []string{`Bearer "` + good + `"`}, invalidToken},
		{"padded", []string{"Bearer " + good + "=="}, invalidToken},
		{"trailing bits", []string{"Bearer " + withTrailingBits(good)}, invalidToken},
		{"line break", []string{"Bearer " + good[:len(good)-4] + "\n" + good[len(good)-4:]}, invalidToken},
		{"dots", []string{"Bearer .."}, invalidToken},
		{"forged", []string{"Bearer " + forge(good)}, invalidToken},

		{"same twice", []string{"Bearer " + good, "Bearer " + good}, invalidToken},
		{"good one first", []string{"Bearer " + good, "Basic x"}, invalidToken},
		{"good one last", []string{"Basic x", "Bearer " + good}, invalidToken},
		{"empty one first", []string{"", "Bearer " + good}, invalidToken},
	} {
		t.Run(test.name, func(t *testing.T) { check(t, serve(t, auth, test.values...), test.want) })
	}
}

// Other methods than GET need a token like all others.
func TestMethods(t *testing.T) {
	auth := middleware.New(testKeyfunc)
	for _, method := range []string{http.MethodHead, http.MethodOptions, http.MethodPost, "BREW"} {
		check(t, serveRequest(t, auth, httptest.NewRequest(method, "/", nil)), noToken)
	}
}

// B34: nothing of a token or of the errors about it is in a response.
func TestNothingLeaks(t *testing.T) {
	evil := jwt.MapClaims{"iss": `x", evil="1`, "sub": "secret\r\nSet-Cookie: a=b", "aud": `y", evil="2`}
	auth := middleware.New(testKeyfunc, middleware.WithIssuer("good"), middleware.WithAudience(audience))
	check(t, serve(t, auth, "Bearer "+signed(t, evil)), forbidden)
	check(t, serve(t, auth, "Bearer "+forge(signed(t, evil))), invalidToken)
	evil["exp"] = 1
	check(t, serve(t, auth, "Bearer "+signed(t, evil)), invalidToken)

	for want, err := range map[answer]error{
		invalidToken: errors.New(`secret", evil="3`),
		unavailable:  fmt.Errorf("secret: %w", gcpjwt.ErrKeysUnavailable),
		serverFault:  fmt.Errorf("secret: %w", gcpjwt.ErrInvalidConfig),
	} {
		auth := middleware.New(func(*jwt.Token) (any, error) { return nil, err })
		check(t, serve(t, auth, "Bearer "+signed(t, nil)), want)
	}
	auth = middleware.New(func(*jwt.Token) (any, error) { return nil, gcpjwt.ErrMissingConfig })
	check(t, serve(t, auth, "Bearer "+signed(t, nil)), serverFault)
}

// B37: aud must be a string or an array of strings with an exact member.
func TestAudience(t *testing.T) {
	for _, claims := range claimTypes {
		auth := middleware.New(testKeyfunc, middleware.WithAudience("other", audience), claims.option)
		for _, test := range []struct {
			aud  any
			want answer
		}{
			{audience, letIn},
			{[]string{audience}, letIn},
			{[]string{"x", audience}, letIn},
			{[]string{"other"}, letIn},
			{raw("null"), forbidden},
			{"", forbidden},
			{[]string{}, forbidden},
			{[]string{""}, forbidden},
			{audience + "/", forbidden},
			{strings.ToUpper(audience), forbidden},
			{"https://api", forbidden},
			{[]string{"x", "https://api"}, forbidden},
			{123, invalidToken},
			{raw("{}"), invalidToken},
			{raw(`{"` + audience + `":1}`), invalidToken},
			{true, invalidToken},
			{raw(`["x",5]`), invalidToken},
			{[]any{audience, 5}, invalidToken},
		} {
			t.Run(fmt.Sprint(claims.name, " ", test.aud), func(t *testing.T) {
				check(t, serve(t, auth, "Bearer "+signed(t, jwt.MapClaims{"aud": test.aud})), test.want)
			})
		}
		check(t, serve(t, auth, "Bearer "+signed(t, nil)), forbidden)
	}
	check(t, serve(t, middleware.New(testKeyfunc), "Bearer "+signed(t, jwt.MapClaims{"aud": "any"})), letIn)
}

// claimTypes are the claims that most servers use.
var claimTypes = []struct {
	name   string
	option middleware.Option
}{
	{"MapClaims", middleware.WithClaims(func() jwt.Claims { return jwt.MapClaims{} })},
	{"RegisteredClaims", middleware.WithClaims(func() jwt.Claims { return new(jwt.RegisteredClaims) })},
}

func TestIssuer(t *testing.T) {
	for _, claims := range claimTypes {
		auth := middleware.New(testKeyfunc, middleware.WithIssuer("a", "b"), claims.option)
		for iss, want := range map[any]answer{"a": letIn, "b": letIn, "": forbidden, "A": forbidden, "ab": forbidden, 5: invalidToken} {
			t.Run(fmt.Sprint(claims.name, " ", iss), func(t *testing.T) {
				check(t, serve(t, auth, "Bearer "+signed(t, jwt.MapClaims{"iss": iss})), want)
			})
		}
		check(t, serve(t, auth, "Bearer "+signed(t, nil)), forbidden)
	}
}

// B36: the Host counts only where no audience is configured, forwarded hosts
// never.
func TestHost(t *testing.T) {
	_, config := startIAM(t)
	ctx := gcpjwt.NewIAMContext(t.Context(), config)
	evil := signWith(t, ctx, gcpjwt.SigningMethodIAMJWT, "https://evil.test")
	for _, test := range []struct {
		name      string
		auth      func(http.Handler) http.Handler
		host      string
		forwarded string
		want      answer
	}{
		{"explicit", middleware.NewHandler(t.Context(), config, "https://api.test"), "evil.test", "evil.test", forbidden},
		{"New", middleware.New(gcpjwt.IAMVerifyKeyfunc(t.Context(), config), middleware.WithAudience("https://api.test")), "evil.test", "evil.test", forbidden},
		{"implicit", middleware.NewHandler(t.Context(), config, ""), "evil.test", "", letIn},
		{"implicit, other host", middleware.NewHandler(t.Context(), config, ""), "api.test", "evil.test", forbidden},
		{"implicit, port", middleware.NewHandler(t.Context(), config, ""), "evil.test:8443", "", forbidden},
		{"implicit, no host", middleware.NewHandler(t.Context(), config, ""), "", "evil.test", forbidden},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Host = test.host
			r.Header.Set("X-Forwarded-Host", test.forwarded)
			r.Header.Set("Forwarded", "host="+test.forwarded)
			r.Header.Set("Authorization", "Bearer "+evil)
			check(t, serveRequest(t, test.auth, r), test.want)
		})
	}
}

// B38: clocks may differ by 30 seconds, or by what WithLeeway says.
func TestLeeway(t *testing.T) {
	for _, test := range []struct {
		claim  string
		offset time.Duration // from now
		want   answer
		strict answer // with WithLeeway(0)
	}{
		{"nbf", 0, letIn, letIn},
		{"nbf", 2 * time.Second, letIn, invalidToken},
		{"nbf", 30 * time.Second, letIn, invalidToken},
		{"nbf", 31 * time.Second, invalidToken, invalidToken},
		{"nbf", 10 * time.Minute, invalidToken, invalidToken},
		{"iat", 2 * time.Second, letIn, invalidToken},
		{"iat", 30 * time.Second, letIn, invalidToken},
		{"iat", 31 * time.Second, invalidToken, invalidToken},
		{"exp", time.Second, letIn, letIn},
		{"exp", 0, letIn, invalidToken},
		{"exp", -29 * time.Second, letIn, invalidToken},
		{"exp", -30 * time.Second, invalidToken, invalidToken},
	} {
		t.Run(fmt.Sprint(test.claim, " ", test.offset), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				token := "Bearer " + signed(t, jwt.MapClaims{test.claim: time.Now().Add(test.offset).Unix()})
				for _, claims := range claimTypes {
					check(t, serve(t, middleware.New(testKeyfunc, claims.option), token), test.want)
					check(t, serve(t, middleware.New(testKeyfunc, claims.option, middleware.WithLeeway(0)), token), test.strict)
				}
			})
		})
	}
}

// B39: exp is required of each type of claims.
func TestExpiryRequired(t *testing.T) {
	types := slices.Concat(claimTypes, []struct {
		name   string
		option middleware.Option
	}{
		{"own", middleware.WithClaims(func() jwt.Claims { return new(userClaims) })},
		{"*MapClaims", middleware.WithClaims(func() jwt.Claims { return new(jwt.MapClaims) })},
	})
	for _, claims := range types {
		auth := middleware.New(testKeyfunc, claims.option)
		for _, exp := range []string{"0", "null", `"0"`, "-1", "1e400", "-1e400", "1e300", "false", "[]", "{}", `""`} {
			t.Run(claims.name+" "+exp, func(t *testing.T) {
				check(t, serve(t, auth, "Bearer "+signed(t, jwt.MapClaims{"exp": raw(exp)})), invalidToken)
			})
		}
		absent, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"sub": "x"}).SignedString(testKey)
		if err != nil {
			t.Fatal(err)
		}
		check(t, serve(t, auth, "Bearer "+absent), invalidToken)
		check(t, serve(t, auth, "Bearer "+signed(t, nil)), letIn)
	}
}

// R09: the signature comes first, so a forged token is not merely expired.
func TestForgedAndExpired(t *testing.T) {
	var got error
	auth := middleware.New(testKeyfunc, middleware.WithAudience(audience),
		middleware.WithErrorHandler(func(_ http.ResponseWriter, _ *http.Request, err error) { got = err }))
	expired := signed(t, jwt.MapClaims{"exp": 1, "aud": "other"})

	serve(t, auth, "Bearer "+expired)
	if !errors.Is(got, jwt.ErrTokenExpired) || errors.Is(got, jwt.ErrTokenInvalidAudience) {
		t.Errorf("an expired token for another audience: got %v, want %v alone", got, jwt.ErrTokenExpired)
	}
	serve(t, auth, "Bearer "+forge(expired))
	if !errors.Is(got, jwt.ErrTokenSignatureInvalid) || errors.Is(got, jwt.ErrTokenExpired) || errors.Is(got, jwt.ErrTokenInvalidClaims) {
		t.Errorf("a forged token: got %v, want %v alone", got, jwt.ErrTokenSignatureInvalid)
	}
}

// A 403 says that the token is good otherwise.
func TestForbiddenIsLast(t *testing.T) {
	audienceError := func(*jwt.Token) (any, error) { return nil, jwt.ErrTokenInvalidAudience }
	check(t, serve(t, middleware.New(audienceError), "Bearer "+signed(t, nil)), invalidToken)

	auth := middleware.New(testKeyfunc, middleware.WithAudience(audience))
	check(t, serve(t, auth, "Bearer "+signed(t, jwt.MapClaims{"aud": "other", "exp": 1})), invalidToken)
	check(t, serve(t, auth, "Bearer "+forge(signed(t, jwt.MapClaims{"aud": "other"}))), invalidToken)
}

// B40: what is too long is refused before anything is done with it.
func TestTokenSize(t *testing.T) {
	asked := false
	auth := middleware.New(func(token *jwt.Token) (any, error) {
		asked = true
		return testKeyfunc(token)
	})
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","x":"` + strings.Repeat("x", 1<<20) + `"}`))
	for name, token := range map[string]string{
		"dots":   strings.Repeat(".", 1_000_000),
		"header": header + ".e30.x",
		"signed": signed(t, jwt.MapClaims{"x": strings.Repeat("x", 1<<20)}),
	} {
		t.Run(name, func(t *testing.T) {
			asked = false
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			handler, w := auth(http.NotFoundHandler()), httptest.NewRecorder()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			handler.ServeHTTP(w, r)
			runtime.ReadMemStats(&after)
			check(t, w, invalidToken)
			if n := after.TotalAlloc - before.TotalAlloc; n > 100<<10 {
				t.Errorf("%d bytes were allocated, want few", n)
			}
			if asked {
				t.Error("the Keyfunc was called")
			}
		})
	}

	// The default limit, to the byte.
	long := signed(t, jwt.MapClaims{"x": strings.Repeat("x", 12000)})
	for _, n := range []int{16 << 10, 16<<10 + 1} {
		auth := middleware.New(testKeyfunc, middleware.WithErrorHandler(func(_ http.ResponseWriter, _ *http.Request, err error) {
			tooLong := errors.Is(err, jwt.ErrTokenMalformed) && strings.Contains(err.Error(), "longer than 16384 bytes")
			if tooLong != (n > 16<<10) {
				t.Errorf("a token of %d bytes: got %v", n, err)
			}
		}))
		serve(t, auth, "Bearer "+long+strings.Repeat("A", n-len(long)))
	}
	check(t, serve(t, middleware.New(testKeyfunc, middleware.WithMaxTokenSize(len(long))), "Bearer "+long), letIn)
	check(t, serve(t, middleware.New(testKeyfunc, middleware.WithMaxTokenSize(len(long)-1)), "Bearer "+long), invalidToken)
}

// The error handler can tell what happened, and nothing is written for it.
func TestErrorHandler(t *testing.T) {
	keyfuncError := func(err error) jwt.Keyfunc {
		return func(*jwt.Token) (any, error) { return nil, err }
	}
	good := "Bearer " + signed(t, jwt.MapClaims{"iss": "i", "aud": "a"})
	for _, test := range []struct {
		name    string
		keyfunc jwt.Keyfunc
		header  string
		want    error
	}{
		{"no token", testKeyfunc, "", request.ErrNoTokenInRequest},
		{"malformed", testKeyfunc, "Bearer x", jwt.ErrTokenMalformed},
		{"no such key", keyfuncError(gcpjwt.ErrUnknownKeyID), good, gcpjwt.ErrUnknownKeyID},
		{"unverifiable", keyfuncError(gcpjwt.ErrUnknownKeyID), good, jwt.ErrTokenUnverifiable},
		{"unavailable", keyfuncError(gcpjwt.ErrKeysUnavailable), good, gcpjwt.ErrKeysUnavailable},
		{"misconfigured", keyfuncError(gcpjwt.ErrInvalidConfig), good, gcpjwt.ErrInvalidConfig},
		{"forged", testKeyfunc, forge(good), jwt.ErrTokenSignatureInvalid},
		{"expired", testKeyfunc, "Bearer " + signed(t, jwt.MapClaims{"exp": 1}), jwt.ErrTokenExpired},
		{"early", testKeyfunc, "Bearer " + signed(t, jwt.MapClaims{"nbf": int64(1 << 40)}), jwt.ErrTokenNotValidYet},
		{"no exp", testKeyfunc, "Bearer " + signed(t, jwt.MapClaims{"exp": 0}), jwt.ErrTokenRequiredClaimMissing},
		{"audience", testKeyfunc, "Bearer " + signed(t, jwt.MapClaims{"iss": "i", "aud": "x"}), jwt.ErrTokenInvalidAudience},
		{"issuer", testKeyfunc, "Bearer " + signed(t, jwt.MapClaims{"iss": "x", "aud": "a"}), jwt.ErrTokenInvalidIssuer},
	} {
		t.Run(test.name, func(t *testing.T) {
			auth := middleware.New(test.keyfunc, middleware.WithIssuer("i"), middleware.WithAudience("a"),
				middleware.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) {
					if !errors.Is(err, test.want) {
						t.Errorf("got %v, want %v", err, test.want)
					}
					if len(w.Header()) > 0 {
						t.Errorf("the headers %v are set already", w.Header())
					}
					http.Error(w, r.URL.Path, http.StatusTeapot)
				}))
			w := serve(t, auth, test.header)
			if w.Code != http.StatusTeapot || w.Body.String() != "/\n" {
				t.Errorf("got %d %q, want the handler's answer", w.Code, w.Body)
			}
		})
	}
}

// B18: importing the package changes no stock method.
func TestStockMethods(t *testing.T) {
	for _, method := range []jwt.SigningMethod{
		jwt.SigningMethodRS256, jwt.SigningMethodRS512, jwt.SigningMethodPS256, jwt.SigningMethodES256,
		jwt.SigningMethodES384, jwt.SigningMethodEdDSA, jwt.SigningMethodHS256,
	} {
		if got := jwt.GetSigningMethod(method.Alg()); got != method {
			t.Errorf("%s is a %T, want jwt's own", method.Alg(), got)
		}
	}
}
