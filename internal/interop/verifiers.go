package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"
	"github.com/golang-jwt/jwt/v5"
	"github.com/lestrrat-go/jwx/v3/jwk"
	jwxjwt "github.com/lestrrat-go/jwx/v3/jwt"
	"k8s.io/apiserver/pkg/apis/apiserver"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	kubernetes "k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// goVerifiers returns those that are libraries of Go.
func goVerifiers() []*verifier {
	return []*verifier{
		{name: "go-oidc", version: versionOf("github.com/coreos/go-oidc/v3"), verify: verifyGoOIDC},
		{name: "keyfunc", version: versionOf("github.com/MicahParks/keyfunc/v3"), verify: verifyKeyfunc},
		{name: "jwx", version: versionOf("github.com/lestrrat-go/jwx/v3"), verify: verifyJWX},
		{name: "go-jose", version: versionOf("github.com/go-jose/go-jose/v4"), verify: verifyGoJose},
		{
			name: "Kubernetes", version: versionOf("k8s.io/apiserver"), verify: verifyKubernetes,
			unknown: map[string]string{"EdDSA": "its list of algorithms has those of RSA and ECDSA only"},
		},
		{name: "gcpjwt", version: "this one", verify: verifyOurs},
	}
}

// versionOf returns the version of a module that this program is built with.
func versionOf(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "?"
	}
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	return "?"
}

func verifyGoOIDC(ctx context.Context, at *issuer, token string) (refused, err error) {
	ctx = oidc.ClientContext(ctx, at.client)
	provider, err := oidc.NewProvider(ctx, at.url)
	if err != nil {
		return nil, err
	}
	_, err = provider.Verifier(&oidc.Config{ClientID: audience}).Verify(ctx, token)
	if err != nil && strings.Contains(err.Error(), "fetching keys") {
		return nil, err
	}
	return err, nil
}

// jwksURI returns where the discovery document says that the keys are, for verifiers that
// don't read it themselves.
func jwksURI(ctx context.Context, at *issuer) (string, error) {
	text, err := at.read(ctx, "/.well-known/openid-configuration")
	if err != nil {
		return "", err
	}
	var document struct {
		URI string `json:"jwks_uri"`
	}
	return document.URI, errors.Join(json.Unmarshal(text, &document), ifEmpty(&document.URI))
}

func ifEmpty(text *string) error {
	if *text == "" {
		return errors.New("no jwks_uri")
	}
	return nil
}

func verifyKeyfunc(ctx context.Context, at *issuer, token string) (refused, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	uri, err := jwksURI(ctx, at)
	if err != nil {
		return nil, err
	}
	keys, err := keyfunc.NewDefaultOverrideCtx(ctx, []string{uri}, keyfunc.Override{
		Client: at.client, RateLimitWaitMax: time.Nanosecond, // for an unknown kid it would wait for a minute
	})
	if err != nil {
		return nil, err
	}
	_, err = jwt.Parse(token, keys.KeyfuncCtx(ctx), jwt.WithIssuer(at.url), jwt.WithAudience(audience))
	return err, nil
}

func verifyJWX(ctx context.Context, at *issuer, token string) (refused, err error) {
	uri, err := jwksURI(ctx, at)
	if err != nil {
		return nil, err
	}
	set, err := jwk.Fetch(ctx, uri, jwk.WithHTTPClient(at.client))
	if err != nil {
		return nil, err
	}
	_, err = jwxjwt.ParseString(token, jwxjwt.WithKeySet(set), jwxjwt.WithIssuer(at.url), jwxjwt.WithAudience(audience))
	return err, nil
}

func verifyGoJose(ctx context.Context, at *issuer, token string) (refused, err error) {
	text, err := at.read(ctx, "/.well-known/jwks.json")
	if err != nil {
		return nil, err
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	var allowed []jose.SignatureAlgorithm
	for _, alg := range algorithms {
		allowed = append(allowed, jose.SignatureAlgorithm(alg))
	}
	parsed, err := josejwt.ParseSigned(token, allowed)
	if err != nil {
		return err, nil
	}
	var claims josejwt.Claims
	if err := parsed.Claims(&set, &claims); err != nil {
		return err, nil
	}
	return claims.Validate(josejwt.Expected{Issuer: at.url, AnyAudience: josejwt.Audience{audience}}), nil
}

// compiler is expensive to make.
var compiler = sync.OnceValue(authenticationcel.NewDefaultCompiler)

func verifyKubernetes(ctx context.Context, at *issuer, token string) (refused, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	none := ""
	authenticator, err := kubernetes.New(ctx, kubernetes.Options{
		JWTAuthenticator: apiserver.JWTAuthenticator{
			Issuer:        apiserver.Issuer{URL: at.url, Audiences: []string{audience}},
			ClaimMappings: apiserver.ClaimMappings{Username: apiserver.PrefixedClaimOrExpression{Claim: "sub", Prefix: &none}},
		},
		SupportedSigningAlgs: kubernetes.AllValidSigningAlgorithms(),
		Client:               at.client,
		Compiler:             compiler(),
	})
	if err != nil {
		return nil, err
	}
	for authenticator.HealthCheck() != nil { // until it has read the discovery document
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, authenticator.HealthCheck()
		}
	}
	response, ok, err := authenticator.AuthenticateToken(ctx, token)
	switch {
	case err != nil && strings.Contains(err.Error(), "fetching keys"):
		return nil, err
	case err != nil:
		return err, nil
	case !ok:
		return errors.New("not a token of this issuer"), nil
	case response.User.GetName() != "interop":
		return nil, fmt.Errorf("the user is %q", response.User.GetName())
	}
	return nil, nil
}

func verifyOurs(ctx context.Context, at *issuer, token string) (refused, err error) {
	client := *at.client // keys are shared by client, and this verifier shall know none
	keys, err := jwks.NewKeyfunc(ctx, &jwks.Config{Issuer: at.url, Client: &client})
	if err != nil {
		return nil, err
	}
	_, err = jwt.Parse(token, keys, jwt.WithIssuer(at.url), jwt.WithAudience(audience))
	if errors.Is(err, jwks.ErrKeysUnavailable) {
		return nil, err
	}
	return err, nil
}
