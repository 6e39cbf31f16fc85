package gcpjwt_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// iamOwnKey are Keyfuncs of all kinds that take certKey for the signer's only
// key, with the kid that it has there.
var iamOwnKey = []struct {
	name  string
	start func(t *testing.T) (keyfunc jwt.Keyfunc, kid string)
}{
	{"IAM", func(t *testing.T) (jwt.Keyfunc, string) {
		o := &certOrigin{body: certJSON(t, map[string]any{"k": certificateOf(t, certKey().Public(), certKey())})}
		return gcpjwt.IAMVerifyKeyfunc(t.Context(), o.config()), "k"
	}},
	{"App Engine", func(t *testing.T) (jwt.Keyfunc, string) {
		server := aeServer(t)
		server.InterceptResponse("GetPublicCertificatesForApp", func([]byte) []byte {
			return aeCertificates(nil, "k", certificateOf(t, certKey().Public(), certKey()))
		})
		return gcpjwt.AppEngineVerifyKeyfunc(server.Context(t.Context()), false, 0), "k"
	}},
	{"KMS", func(t *testing.T) (jwt.Keyfunc, string) {
		server, client := systest.StartKMS(t)
		version := systest.CreateKey(t, server, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256)
		server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			response, err := next(ctx, req)
			if public, ok := response.(*kmspb.PublicKey); ok && err == nil {
				data := []byte(certPublicKey(t, certKey().Public()))
				public.PublicKey = &kmspb.ChecksummedData{Data: data, Crc32CChecksum: testutil.Checksum(data)}
			}
			return response, err
		})
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client})
		if err != nil {
			t.Fatal(err)
		}
		return keyfunc, gcpjwt.KMSKeyID(version)
	}},
}

// aeCertificates appends a certificate to a GetPublicCertificateForAppResponse.
func aeCertificates(response []byte, kid, certificate string) []byte {
	var entry []byte
	for i, text := range []string{kid, certificate} {
		entry = protowire.AppendTag(entry, protowire.Number(i+1), protowire.BytesType)
		entry = protowire.AppendString(entry, text)
	}
	response = protowire.AppendTag(response, 1, protowire.BytesType)
	return protowire.AppendBytes(response, entry)
}

// iamRaw makes a token of a header and a payload as they are, which method
// signs with key.
func iamRaw(t testing.TB, header, payload string, method jwt.SigningMethod, key any) string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	signature, err := method.Sign(text, key)
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// B10: the key is for RS256 and nothing else, whatever alg says.
func TestKeyfuncAlgorithms(t *testing.T) { iamTestAlgorithms(t) }

// B10 again, where Override has given all names to methods of this package.
func TestKeyfuncAlgorithmsAfterOverride(t *testing.T) {
	if !iamAlone(t) {
		return
	}
	for _, m := range iamAllMethods {
		m.method.Override()
	}
	iamTestAlgorithms(t)
}

func iamTestAlgorithms(t *testing.T) {
	public := []byte(certPublicKey(t, certKey().Public()))
	certificate := []byte(certificateOf(t, certKey().Public(), certKey()))
	tests := []struct {
		alg    string
		method jwt.SigningMethod
		key    any
		want   error // nil: accepted
	}{
		{"RS256", jwt.SigningMethodRS256, certKey(), nil},
		{"KMSRS256", jwt.SigningMethodRS256, certKey(), nil}, // as token.SignedString has it
		{"IAMBlob", jwt.SigningMethodRS256, certKey(), nil},
		{"HS256", jwt.SigningMethodHS256, public, gcpjwt.ErrAlgorithmMismatch},
		{"HS256", jwt.SigningMethodHS256, certificate, gcpjwt.ErrAlgorithmMismatch},
		{"HS512", jwt.SigningMethodHS512, public, gcpjwt.ErrAlgorithmMismatch},
		{"KMSHS256", jwt.SigningMethodHS256, public, gcpjwt.ErrAlgorithmMismatch},
		{"RS384", jwt.SigningMethodRS384, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"RS512", jwt.SigningMethodRS512, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"KMSRS512", jwt.SigningMethodRS512, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"PS256", jwt.SigningMethodPS256, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"KMSPS256", jwt.SigningMethodPS256, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"PS512", jwt.SigningMethodPS512, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"ES256", jwt.SigningMethodRS256, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"EdDSA", jwt.SigningMethodRS256, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"ML-DSA-44", jwt.SigningMethodRS256, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"none", jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, gcpjwt.ErrAlgorithmMismatch},
		{"none", jwt.SigningMethodRS256, certKey(), gcpjwt.ErrAlgorithmMismatch},
		{"None", jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, jwt.ErrTokenUnverifiable},
		{"rs256", jwt.SigningMethodRS256, certKey(), jwt.ErrTokenUnverifiable},
		{"Rs256", jwt.SigningMethodRS256, certKey(), jwt.ErrTokenUnverifiable},
		{"RS256 ", jwt.SigningMethodRS256, certKey(), jwt.ErrTokenUnverifiable},
		{"iamblob", jwt.SigningMethodRS256, certKey(), jwt.ErrTokenUnverifiable},
		{"", jwt.SigningMethodRS256, certKey(), jwt.ErrTokenUnverifiable},
		// By another scheme than alg says.
		{"RS256", jwt.SigningMethodRS512, certKey(), jwt.ErrTokenSignatureInvalid},
		{"RS256", jwt.SigningMethodPS256, certKey(), jwt.ErrTokenSignatureInvalid},
		{"RS256", jwt.SigningMethodHS256, public, jwt.ErrTokenSignatureInvalid},
		{"RS256", jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, jwt.ErrTokenSignatureInvalid},
	}
	for _, source := range iamOwnKey {
		t.Run(source.name, func(t *testing.T) {
			keyfunc, kid := source.start(t)
			for i, test := range tests {
				for _, header := range []string{
					fmt.Sprintf(`{"alg":%q,"kid":%q}`, test.alg, kid),
					fmt.Sprintf(`{"alg":%q}`, test.alg),
				} {
					token, err := jwt.Parse(iamRaw(t, header, `{"sub":"somebody"}`, test.method, test.key), keyfunc)
					switch {
					case test.want == nil && err != nil:
						t.Errorf("%s: got %v, want a valid token", header, err)
					case test.want != nil && (!errors.Is(err, test.want) || token.Valid):
						t.Errorf("%d: %s signed with %s: got %v, want %v", i, header, test.method.Alg(), err, test.want)
					}
				}
			}
		})
	}
}

// What cannot be good costs no request.
func TestKeyfuncRefusesWithoutFetching(t *testing.T) {
	t.Parallel()
	o := &certOrigin{body: certJSON(t, map[string]any{"k": certPublicKey(t, certKey().Public())})}
	keyfunc := gcpjwt.IAMVerifyKeyfunc(t.Context(), o.config())
	for _, method := range []jwt.SigningMethod{
		jwt.SigningMethodHS256, jwt.SigningMethodPS256, jwt.SigningMethodRS512, jwt.SigningMethodES256, jwt.SigningMethodNone, gcpjwt.SigningMethodKMSES256,
	} {
		if _, err := keyfunc(jwt.New(method)); !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
			t.Errorf("%s: got %v, want %v", method.Alg(), err, gcpjwt.ErrAlgorithmMismatch)
		}
	}
	if _, err := keyfunc(&jwt.Token{Method: jwt.SigningMethodRS256, Header: map[string]any{"kid": 42}}); !errors.Is(err, jwt.ErrTokenMalformed) {
		t.Errorf("kid 42: got %v, want %v", err, jwt.ErrTokenMalformed)
	}
	if got := o.fetches(); got != 0 {
		t.Errorf("%d requests, want none", got)
	}
}

// iamForeign is a signing method of somebody else's, who trusts everyone. It
// cannot be compared.
type iamForeign struct{ _ []string }

func (iamForeign) Alg() string                      { return "RS256" }
func (iamForeign) Sign(string, any) ([]byte, error) { return []byte("signature"), nil }
func (iamForeign) Verify(string, []byte, any) error { return nil }

// B10: what somebody else registered as RS256 gets no key, since nobody knows
// what it does.
func TestKeyfuncForeignMethod(t *testing.T) {
	t.Cleanup(func() {
		jwt.RegisterSigningMethod("RS256", func() jwt.SigningMethod { return jwt.SigningMethodRS256 })
	})
	for _, source := range iamOwnKey {
		t.Run(source.name, func(t *testing.T) {
			keyfunc, kid := source.start(t)
			for _, foreign := range []jwt.SigningMethod{iamForeign{}, &iamForeign{}} {
				jwt.RegisterSigningMethod("RS256", func() jwt.SigningMethod { return foreign })
				for _, header := range []string{fmt.Sprintf(`{"alg":"RS256","kid":%q}`, kid), `{"alg":"RS256"}`} {
					token, err := jwt.Parse(iamRaw(t, header, `{}`, jwt.SigningMethodRS256, certKey()), keyfunc)
					if !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) || token.Valid {
						t.Errorf("%T: got %v, want %v", foreign, err, gcpjwt.ErrAlgorithmMismatch)
					}
				}
			}
		})
	}
}

// B17: whatever JSON the header is, the worst it gets is an error.
func TestKeyfuncHeaders(t *testing.T) {
	for _, source := range iamOwnKey {
		t.Run(source.name, func(t *testing.T) {
			keyfunc, kid := source.start(t)
			tests := []struct {
				header string
				want   error // nil: accepted
			}{
				{fmt.Sprintf(`{"alg":"RS256","kid":%q}`, kid), nil},
				{`{"alg":"RS256"}`, nil}, // every key
				{fmt.Sprintf(`{"alg":"RS256","kid":%q,"typ":5,"jku":"https://evil.example/"}`, kid), nil},
				{`{"alg":"RS256","kid":null}`, jwt.ErrTokenMalformed},
				{`{"alg":"RS256","kid":42}`, jwt.ErrTokenMalformed},
				{`{"alg":"RS256","kid":true}`, jwt.ErrTokenMalformed},
				{`{"alg":"RS256","kid":{}}`, jwt.ErrTokenMalformed},
				{`{"alg":"RS256","kid":[]}`, jwt.ErrTokenMalformed},
				{fmt.Sprintf(`{"alg":"RS256","kid":[%q]}`, kid), jwt.ErrTokenMalformed},
				{`{"alg":"RS256","kid":""}`, gcpjwt.ErrUnknownKeyID},
				{`{"alg":"RS256","kid":"unknown"}`, gcpjwt.ErrUnknownKeyID},
				{`{"alg":"RS256","kid":"\u0000\n"}`, gcpjwt.ErrUnknownKeyID},
				{fmt.Sprintf(`{"alg":"RS256","kid":" %s"}`, kid), gcpjwt.ErrUnknownKeyID},
				{fmt.Sprintf(`{"alg":"RS256","kid":%q}`, strings.Repeat("k", 64<<10)), gcpjwt.ErrUnknownKeyID},
				{fmt.Sprintf(`{"alg":"RS256","kid":%q,"crit":["b64"]}`, kid), jwt.ErrTokenMalformed},
				{fmt.Sprintf(`{"alg":"RS256","kid":%q,"crit":null}`, kid), jwt.ErrTokenMalformed},
				{`{"alg":5}`, jwt.ErrTokenUnverifiable},
				{`{"alg":null}`, jwt.ErrTokenUnverifiable},
				{`{"alg":["RS256"]}`, jwt.ErrTokenUnverifiable},
				{`{}`, jwt.ErrTokenUnverifiable},
				{`null`, jwt.ErrTokenUnverifiable},
				{`[]`, jwt.ErrTokenMalformed},
				{`"RS256"`, jwt.ErrTokenMalformed},
				{`{"alg":"RS256"`, jwt.ErrTokenMalformed},
				{``, jwt.ErrTokenMalformed},
			}
			for _, test := range tests {
				name := test.header[:min(len(test.header), 60)]
				_, err := jwt.Parse(iamRaw(t, test.header, `{"sub":"somebody"}`, jwt.SigningMethodRS256, certKey()), keyfunc)
				switch {
				case test.want == nil && err != nil:
					t.Errorf("%s: got %v, want a valid token", name, err)
				case test.want != nil && !errors.Is(err, test.want):
					t.Errorf("%s: got %v, want %v", name, err, test.want)
				case err != nil && (len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\x00\n")):
					t.Errorf("%s: an error of %d bytes, want one fit for a log", name, len(err.Error()))
				}
			}

			// A Keyfunc may be called by somebody else than jwt's parser.
			for name, token := range map[string]*jwt.Token{
				"nil":       nil,
				"empty":     {},
				"no header": {Method: jwt.SigningMethodHS256},
				"no method": {Header: map[string]any{"alg": "RS256", "kid": kid}},
			} {
				if key, err := keyfunc(token); err == nil {
					t.Errorf("%s token: got a %T, want an error", name, key)
				}
			}
		})
	}
}

// A configuration that cannot work is an error of each token, and not one that
// looks like an outage.
func TestKeyfuncWithoutConfig(t *testing.T) {
	t.Parallel()
	token := &jwt.Token{Method: jwt.SigningMethodRS256, Header: map[string]any{}}
	if _, err := gcpjwt.IAMVerifyKeyfunc(t.Context(), nil)(token); !errors.Is(err, gcpjwt.ErrMissingConfig) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("nil *IAMConfig: got %v, want %v", err, gcpjwt.ErrMissingConfig)
	}
	if _, err := gcpjwt.IAMVerifyKeyfunc(t.Context(), &gcpjwt.IAMConfig{})(token); !errors.Is(err, gcpjwt.ErrInvalidConfig) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
		t.Errorf("empty IAMConfig: got %v, want %v", err, gcpjwt.ErrInvalidConfig)
	}
	if keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), nil); !errors.Is(err, gcpjwt.ErrMissingConfig) || keyfunc != nil {
		t.Errorf("nil *KMSConfig: got %v, want %v", err, gcpjwt.ErrMissingConfig)
	}
}

// v2's misspelt names do what the others do.
func TestMisspeltKeyfuncs(t *testing.T) {
	config := gcpjwttest.NewIAM(t).NewAccount(account)
	text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMJWT, nil)
	if _, err := jwt.Parse(text, gcpjwt.IAMVerfiyKeyfunc(t.Context(), config)); err != nil { // deprecated
		t.Errorf("IAMVerfiyKeyfunc: %v", err)
	}
	if _, err := gcpjwt.IAMVerfiyKeyfunc(t.Context(), nil)(nil); !errors.Is(err, gcpjwt.ErrMissingConfig) { // deprecated
		t.Errorf("IAMVerfiyKeyfunc: got %v, want %v", err, gcpjwt.ErrMissingConfig)
	}

	app := aeServer(t)
	ctx := app.Context(t.Context())
	text = systest.Sign(t, ctx, gcpjwt.SigningMethodAppEngine, nil)
	for _, cached := range []bool{true, true, false, false} {
		if _, err := jwt.Parse(text, gcpjwt.AppEngineVerfiyKeyfunc(ctx, cached, time.Hour)); err != nil { // deprecated
			t.Errorf("AppEngineVerfiyKeyfunc: %v", err)
		}
	}
	if got := app.Calls("GetPublicCertificatesForApp"); got != 3 {
		t.Errorf("AppEngineVerfiyKeyfunc: %d requests, want one for the cached ones and 2", got)
	}

	key := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	text = systest.Sign(t, gcpjwt.NewKMSContext(t.Context(), key), gcpjwt.SigningMethodKMSES256, nil)
	keyfunc, err := gcpjwt.KMSVerfiyKeyfunc(t.Context(), key) // deprecated
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		t.Errorf("KMSVerfiyKeyfunc: %v", err)
	}
	if _, err := gcpjwt.KMSVerfiyKeyfunc(t.Context(), nil); !errors.Is(err, gcpjwt.ErrMissingConfig) { // deprecated
		t.Errorf("KMSVerfiyKeyfunc: got %v, want %v", err, gcpjwt.ErrMissingConfig)
	}
}

// R05: keys have the types that other code expects. A token that names no key
// is checked against each.
func TestKeyfuncKeyTypes(t *testing.T) {
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			s := signer.start(t)
			token := jwt.New(jwt.SigningMethodRS256)
			key, err := s.keyfunc(token)
			if public, ok := key.(*rsa.PublicKey); !ok || !public.Equal(s.publicKey(s.keyIDs()[0])) {
				t.Errorf("one key: got %T, %v, want the *rsa.PublicKey", key, err)
			}

			for range 2 {
				if _, err := s.addKey(); err != nil {
					t.Fatal(err)
				}
			}
			kids := s.keyIDs()
			key, err = s.keyfunc(token)
			if set, ok := key.(jwt.VerificationKeySet); !ok || len(set.Keys) != 3 {
				t.Fatalf("three keys: got %T, %v, want a jwt.VerificationKeySet of 3", key, err)
			}
			for i, kid := range kids {
				token.Header["kid"] = kid
				key, err := s.keyfunc(token)
				if public, ok := key.(*rsa.PublicKey); !ok || !public.Equal(s.publicKey(kid)) {
					t.Errorf("kid of key %d: got %T, %v, want that *rsa.PublicKey", i, key, err)
				}
			}
			if s.method == gcpjwt.SigningMethodIAMJWT {
				return // always names its key
			}

			s.setSigningKeys(kids[1])
			unnamed := jwt.New(s.method)
			unnamed.Header["alg"] = "RS256"
			text, err := unnamed.SignedString(s.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, named := iamHeader(t, text)["kid"]; named || !iamSignedBy(text, s.publicKey(kids[1])) {
				t.Fatal("the token has a kid or isn't signed by the second key")
			}
			if _, err := jwt.Parse(text, s.keyfunc); err != nil {
				t.Errorf("a token by the second of three keys: %v", err)
			}
			// A kid names one key, and no other will do.
			if header, err := json.Marshal(map[string]any{"alg": "RS256", "kid": kids[0]}); err != nil {
				t.Error(err)
			} else if _, err := jwt.Parse(base64.RawURLEncoding.EncodeToString(header)+text[strings.IndexByte(text, '.'):], s.keyfunc); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
				t.Errorf("a token that names another key than it was signed with: got %v, want %v", err, jwt.ErrTokenSignatureInvalid)
			}
		})
	}

	server, client := systest.StartKMS(t)
	for _, test := range []struct {
		algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm
		method    jwt.SigningMethod
		is        func(key any) bool
	}{
		{kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256, jwt.SigningMethodPS256, func(key any) bool { _, ok := key.(*rsa.PublicKey); return ok }},
		{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, jwt.SigningMethodES256, func(key any) bool { _, ok := key.(*ecdsa.PublicKey); return ok }},
		{kmspb.CryptoKeyVersion_EC_SIGN_ED25519, jwt.SigningMethodEdDSA, func(key any) bool { _, ok := key.(ed25519.PublicKey); return ok }},
	} {
		t.Run(test.algorithm.String(), func(t *testing.T) {
			version := systest.CreateKey(t, server, test.algorithm)
			keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client})
			if err != nil {
				t.Fatal(err)
			}
			if key, err := keyfunc(jwt.New(test.method)); !test.is(key) {
				t.Errorf("a key of type %T, %v", key, err)
			}
		})
	}
}

// Every signer's tokens are accepted with Override as without, by Keyfuncs that
// know nothing of it.
func TestKeyfuncAfterOverride(t *testing.T) {
	if !iamAlone(t) {
		return
	}
	check := func(t *testing.T, method iamOverridable, ctx context.Context, keyfunc jwt.Keyfunc, stock jwt.SigningMethod) {
		t.Helper()
		var texts []string
		add := func(how string, text string, err error) {
			if err != nil {
				t.Errorf("%s: %v", how, err)
				return
			}
			texts = append(texts, text)
		}
		for _, overridden := range []bool{false, true} {
			if overridden {
				method.Override()
			}
			text, err := gcpjwt.SignedString(ctx, jwt.New(method))
			add("SignedString", text, err)
			if got, want := iamHeader(t, text)["alg"], iamAllMethods[method.Alg()].alg; want != "" && got != want {
				t.Errorf("alg %v, want %s", got, want)
			}
			if method != iamOverridable(gcpjwt.SigningMethodIAMJWT) {
				text, err = jwt.New(method).SignedString(ctx)
				add("token.SignedString", text, err)
				if got, want := iamHeader(t, text)["alg"], method.Alg(); got != want {
					t.Errorf("alg %v, want %s", got, want)
				}
			}
			for _, text := range texts {
				if _, err := jwt.Parse(text, keyfunc); err != nil {
					t.Errorf("overridden: %v: %v", overridden, err)
				}
			}
		}
		// What the others registered under that name doesn't matter.
		if stock != nil {
			jwt.RegisterSigningMethod(stock.Alg(), func() jwt.SigningMethod { return stock })
			if _, err := jwt.Parse(texts[len(texts)-1], keyfunc); err != nil {
				t.Errorf("by jwt's own method: %v", err)
			}
		}
	}
	for _, signer := range iamSigners {
		t.Run(signer.name, func(t *testing.T) {
			s := signer.start(t)
			check(t, s.method.(iamOverridable), s.ctx, s.keyfunc, jwt.SigningMethodRS256)
		})
	}

	server, client := systest.StartKMS(t)
	for alias, algorithm := range map[string]kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm{
		"KMSRS256":   kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256,
		"KMSPS256":   kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256,
		"KMSRS512":   kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA512,
		"KMSPS512":   kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA512,
		"KMSES256":   kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256,
		"KMSES384":   kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384,
		"KMSEdDSA":   kmspb.CryptoKeyVersion_EC_SIGN_ED25519,
		"KMSHS256":   kmspb.CryptoKeyVersion_HMAC_SHA256,
		"KMSHS384":   kmspb.CryptoKeyVersion_HMAC_SHA384,
		"KMSHS512":   kmspb.CryptoKeyVersion_HMAC_SHA512,
		"KMSMLDSA44": kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44,
		"KMSMLDSA65": kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65,
		"KMSMLDSA87": kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_87,
	} {
		t.Run(alias, func(t *testing.T) {
			if testing.Short() && strings.HasSuffix(algorithm.String(), "4096_SHA512") {
				t.Skip("making a key of 4096 bits takes long")
			}
			config := &gcpjwt.KMSConfig{KeyPath: systest.CreateKey(t, server, algorithm), KMSClient: client}
			ctx := gcpjwt.NewKMSContext(t.Context(), config)
			keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
			if err != nil {
				t.Fatal(err)
			}
			check(t, iamAllMethods[alias].method, ctx, keyfunc, iamStock[iamAllMethods[alias].alg])
		})
	}
}

// C23: the end of a constructor's context ends nothing later, whatever has to be read again.
func TestKeyfuncOutlivesItsContext(t *testing.T) {
	defer gcpjwt.ResetAppEngine()
	synctest.Test(t, func(t *testing.T) {
		server, client := systest.StartKMS(t, testutil.InMemory())
		iam, account := systest.StartIAM(t, testutil.InMemory())
		app := aeServer(t, testutil.InMemory())
		_ = iam
		ctx := gcpjwt.NewIAMContext(t.Context(), account)
		tokens := map[string]string{
			"IAM": systest.Sign(t, ctx, gcpjwt.SigningMethodIAMJWT, nil),
			"App": systest.Sign(t, app.Context(t.Context()), gcpjwt.SigningMethodAppEngine, nil),
		}
		type constructor func(ctx context.Context) (jwt.Keyfunc, error)
		all := make(map[string]constructor) // by the name of a token and more
		signer := func(s *gcpjwt.Signer, err error) (jwt.Keyfunc, error) { return s.Keyfunc, err }

		for name, algorithm := range map[string]kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm{
			"ECC": kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256,
			"MAC": kmspb.CryptoKeyVersion_HMAC_SHA256,
		} {
			version, err := server.CreateKey(name, algorithm)
			if err != nil {
				t.Fatal(err)
			}
			pinned := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
			following := &gcpjwt.KMSConfig{KeyPath: path.Dir(path.Dir(version)), KMSClient: client}
			s, err := gcpjwt.NewKMSSigner(t.Context(), pinned)
			if err != nil {
				t.Fatal(err)
			}
			if tokens[name], err = s.Sign(t.Context(), jwt.MapClaims{"sub": "somebody"}); err != nil {
				t.Fatal(err)
			}
			for how, config := range map[string]*gcpjwt.KMSConfig{"pinned": pinned, "following": following} {
				all[name+" "+how] = func(ctx context.Context) (jwt.Keyfunc, error) { return gcpjwt.KMSVerifyKeyfunc(ctx, config) }
				all[name+" "+how+", Signer"] = func(ctx context.Context) (jwt.Keyfunc, error) { return signer(gcpjwt.NewKMSSigner(ctx, config)) }
			}
		}
		for _, cached := range []bool{false, true} {
			config := *account
			config.EnableCache = cached
			all[fmt.Sprint("IAM cached ", cached)] = func(ctx context.Context) (jwt.Keyfunc, error) {
				return gcpjwt.IAMVerifyKeyfunc(ctx, &config), nil
			}
			all[fmt.Sprint("IAM VerifyKeyfunc, cached ", cached)] = config.VerifyKeyfunc
			all[fmt.Sprint("IAM Signer, cached ", cached)] = func(ctx context.Context) (jwt.Keyfunc, error) {
				return signer(gcpjwt.NewIAMSigner(ctx, &config))
			}
			all[fmt.Sprint("App Engine cached ", cached)] = func(ctx context.Context) (jwt.Keyfunc, error) {
				return gcpjwt.AppEngineVerifyKeyfunc(app.Context(ctx), cached, 0), nil
			}
		}

		keyfuncs := make(map[string]jwt.Keyfunc)
		for name, construct := range all {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			keyfunc, err := construct(ctx)
			cancel()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			keyfuncs[name] = keyfunc
		}
		for _, wait := range []time.Duration{0, 10 * time.Minute, 7 * time.Hour, 7 * time.Hour} {
			time.Sleep(wait)
			for name, keyfunc := range keyfuncs {
				if _, err := jwt.Parse(tokens[name[:3]], keyfunc); err != nil {
					t.Errorf("%s: after another %v: %v", name, wait, err)
				}
			}
		}
	})
}

// A token whose key is known costs no memory beyond what jwt's parser takes, nor a timer.
func TestKeyfuncHitAllocatesNothing(t *testing.T) {
	server, client := systest.StartKMS(t)
	version := systest.CreateKey(t, server, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	for _, name := range []string{version, path.Dir(path.Dir(version))} {
		config := &gcpjwt.KMSConfig{KeyPath: name, KMSClient: client}
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		token := &jwt.Token{
			Method: jwt.SigningMethodES256,
			Header: map[string]any{"alg": "ES256", "kid": gcpjwt.KMSKeyID(version)},
		}
		if got := testing.AllocsPerRun(200, func() {
			if _, err := keyfunc(token); err != nil {
				t.Error(err)
			}
		}); got != 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}
