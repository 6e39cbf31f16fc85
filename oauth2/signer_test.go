package oauth2_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// A Signer of each kind signs, with the header fields that it can have.
func TestSigners(t *testing.T) {
	ctx := context.Background()
	type signed struct {
		ctx     context.Context
		signer  *gcpjwt.Signer
		keyfunc jwt.Keyfunc
	}
	byKMS := func(algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm) func(*testing.T) signed {
		return func(t *testing.T) signed {
			config := gcpjwttest.NewKMS(t).NewKey(algorithm)
			signer, err := gcpjwt.NewKMSSigner(ctx, config)
			if err != nil {
				t.Fatal(err)
			}
			return signed{ctx, signer, signer.Keyfunc}
		}
	}
	byIAM := func(kind gcpjwt.IAMType) func(*testing.T) signed {
		return func(t *testing.T) signed {
			config := gcpjwttest.NewIAM(t).NewAccount(account)
			config.IAMType = kind
			signer, err := gcpjwt.NewIAMSigner(ctx, config)
			if err != nil {
				t.Fatal(err)
			}
			return signed{ctx, signer, signer.Keyfunc}
		}
	}
	byApp := func(t *testing.T) signed {
		server, err := testutil.NewAppEngine()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		ctx := server.Context(ctx)
		return signed{ctx, gcpjwt.NewAppEngineSigner(), gcpjwt.AppEngineVerifyKeyfunc(ctx, false, 0)}
	}
	for _, test := range []struct {
		name   string
		start  func(*testing.T) signed
		header map[string]any
		alg    string
	}{
		{"ES256", byKMS(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256), map[string]any{"typ": "at+jwt", "x5t": "dGh1bWI"}, "ES256"},
		{"PS256", byKMS(kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256), nil, "PS256"},
		{"HS256", byKMS(kmspb.CryptoKeyVersion_HMAC_SHA256), nil, "HS256"},
		{"signBlob", byIAM(gcpjwt.IAMBlobType), map[string]any{"x5t": "dGh1bWI"}, "RS256"},
		{"signJwt", byIAM(gcpjwt.IAMJwtType), nil, "RS256"},
		{"App Engine", byApp, map[string]any{"typ": "at+jwt"}, "RS256"},
	} {
		t.Run(test.name, func(t *testing.T) {
			by := test.start(t)
			source, err := oauth2.NewTokenSource(by.ctx, oauth2.Config{
				Signer:   by.signer,
				Issuer:   "issuer",
				Subject:  "subject",
				Audience: []string{audience},
				Header:   test.header,
			})
			if err != nil {
				t.Fatalf("NewTokenSource: %v", err)
			}
			text := mustToken(t, source).AccessToken
			claims := parse(t, text, by.keyfunc)
			want := jwt.MapClaims{
				"iss": "issuer", "sub": "subject", "aud": audience,
				"iat": claims["iat"], "nbf": claims["iat"], "exp": claims["exp"],
			}
			if diff := cmp.Diff(want, claims); diff != "" {
				t.Errorf("claims differ (-want +got):\n%s", diff)
			}
			token, _, err := jwt.NewParser().ParseUnverified(text, jwt.MapClaims{})
			if err != nil {
				t.Fatal(err)
			}
			wantHeader := map[string]any{"alg": test.alg, "kid": token.Header["kid"], "typ": "JWT"}
			maps.Copy(wantHeader, test.header)
			if diff := cmp.Diff(wantHeader, token.Header); diff != "" {
				t.Errorf("the header differs (-want +got):\n%s", diff)
			}
		})
	}
}

// A source goes along when its key gets a version of another algorithm.
func TestSignerChangesAlgorithm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, config := systest.StartKMSKey(t, kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, testutil.InMemory())
		config.Logger = slog.New(slog.DiscardHandler)
		config.KeyPath, _, _ = strings.Cut(config.KeyPath, "/cryptoKeyVersions/")
		signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		source, err := oauth2.NewTokenSource(t.Context(), oauth2.Config{Signer: signer})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"ES256", "RS256"} {
			token, err := jwt.Parse(mustToken(t, source).AccessToken, signer.Keyfunc)
			if err != nil || token.Header["alg"] != want {
				t.Errorf("got %v, %v, want a token by %s", token, err, want)
			}
			if _, err := server.CreateVersion(config.KeyPath, kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Hour)
			mustToken(t, source) // the old list of versions, and the next one in the background
			time.Sleep(2 * time.Hour)
		}
	})
}

// What a Signer cannot do fails at start-up.
func TestSignerConstructionErrors(t *testing.T) {
	iam := gcpjwttest.NewIAM(t).NewAccount(account)
	iam.IAMType = gcpjwt.IAMJwtType
	signer, err := gcpjwt.NewIAMSigner(t.Context(), iam)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		config oauth2.Config
		want   error
		text   string
	}{
		{"Method too", oauth2.Config{Signer: signer, Method: gcpjwt.SigningMethodIAMJWT}, gcpjwt.ErrInvalidConfig, "Signer or Method"},
		{"zero value", oauth2.Config{Signer: new(gcpjwt.Signer)}, gcpjwt.ErrMissingConfig, "Signer"},
		{"header of signJwt", oauth2.Config{Signer: signer, Header: map[string]any{"typ": "JWT"}}, gcpjwt.ErrInvalidConfig, "Header"},
		{"signJwt over 12 hours", oauth2.Config{Signer: signer, Lifetime: 13 * time.Hour}, gcpjwt.ErrInvalidConfig, "12 hours"},
		{"kid", oauth2.Config{Signer: signer, Header: map[string]any{"kid": "1"}}, gcpjwt.ErrInvalidConfig, "Header"},
	} {
		source, err := oauth2.NewTokenSource(gcpjwt.NewIAMContext(t.Context(), iam), test.config)
		if source != nil || !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: got %v, %v, want %v with %q", test.name, source, err, test.want, test.text)
		}
	}
}

// B30 for a Signer: the end of the constructor's context isn't the source's.
func TestSignerContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, config := systest.StartIAM(t, testutil.InMemory())
		ctx, cancel := context.WithCancel(t.Context())
		signer, err := gcpjwt.NewIAMSigner(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		source, err := oauth2.NewTokenSource(ctx, oauth2.Config{Signer: signer})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(2 * time.Hour)
		if token := mustToken(t, source); !token.Valid() {
			t.Errorf("got a token that expires in %v", time.Until(token.Expiry))
		}
	})
}
