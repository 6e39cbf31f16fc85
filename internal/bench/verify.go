package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"
	"github.com/lestrrat-go/jwx/v3/jwa"
	jwxjwt "github.com/lestrrat-go/jwx/v3/jwt"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// What a warm verification may cost in verifications with a key in a variable, and
// in those by other libraries.
const (
	staticLimit  = 1.01
	libraryLimit = 1.00
)

// Verify compares verifying one token over and over again. All ways check its
// signature, algorithm, issuer, audience and expiry. No way has anything left to
// fetch after its first call.
func (s *Suite) Verify() ([]Comparison, error) {
	var comparisons []Comparison
	for _, k := range s.keys {
		if !k.verified {
			continue
		}
		c, err := s.verify(k)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		comparisons = append(comparisons, c)
	}
	// The other sources of keys, each with one RS256 key of 2048 bits.
	rotating, err := gcpjwt.KMSVerifyKeyfunc(s.ctx, &gcpjwt.KMSConfig{KeyPath: s.rsa.cryptoKey(), KMSClient: s.rsa.client, Logger: silent})
	if err != nil {
		return nil, err
	}
	for _, source := range []struct {
		name    string
		keyfunc jwt.Keyfunc
		token   string
	}{
		{"cryptokey", rotating, s.rsa.token},
		{"iam", gcpjwt.IAMVerifyKeyfunc(s.ctx, s.google.iam), s.google.iamToken},
		{"appengine", gcpjwt.AppEngineVerifyKeyfunc(s.google.appEngine, true, 0), s.google.appEngineToken},
	} {
		c, err := againstStatic(source.name, "RS256", source.token, source.keyfunc)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source.name, err)
		}
		comparisons = append(comparisons, c)
	}
	return comparisons, nil
}

// againstStatic compares a Keyfunc with one that returns the same key from a
// variable.
func againstStatic(name, alg, token string, ours jwt.Keyfunc) (Comparison, error) {
	parser := parser(alg)
	parsed, _, err := parser.ParseUnverified(token, jwt.MapClaims{})
	if err != nil {
		return Comparison{}, err
	}
	key, err := ours(parsed)
	if err != nil {
		return Comparison{}, err
	}
	static := func(*jwt.Token) (any, error) { return key, nil }
	return Comparison{
		Name:   "verify/" + name,
		Ours:   []Way{{"gcpjwt", parsing(parser, token, ours)}},
		Others: []Other{{Way: Way{"static", parsing(parser, token, static)}, Limit: staticLimit}},
	}, nil
}

func parsing(parser *jwt.Parser, token string, keyfunc jwt.Keyfunc) func() error {
	return func() error {
		_, err := parser.Parse(token, keyfunc)
		return err
	}
}

func (s *Suite) verify(k *key) (Comparison, error) {
	ours, err := gcpjwt.KMSVerifyKeyfunc(s.ctx, k.config())
	if err != nil {
		return Comparison{}, err
	}
	c, err := againstStatic(k.name, k.alg, k.token, ours)
	if err != nil || !k.foreign() {
		return c, err
	}
	url := s.webKeysURL + "/" + k.name
	set, err := keyfunc.NewDefaultCtx(s.ctx, []string{url})
	if err != nil {
		return c, err
	}
	alg, ok := jwa.LookupSignatureAlgorithm(k.alg)
	if !ok {
		return c, errors.New("jwx doesn't know the algorithm")
	}
	c.Others = append(c.Others,
		Other{Way: Way{"keyfunc", parsing(parser(k.alg), k.token, set.Keyfunc)}, Limit: libraryLimit},
		Other{Way: Way{"go-oidc", oidcVerifying(s.ctx, url, k)}, Limit: libraryLimit},
		Other{Way: Way{"jwx", jwxVerifying(alg, k)}, Limit: libraryLimit},
	)
	return c, nil
}

func oidcVerifying(ctx context.Context, url string, k *key) func() error {
	verifier := oidc.NewVerifier(issuer, oidc.NewRemoteKeySet(ctx, url), &oidc.Config{
		ClientID:             audience,
		SupportedSigningAlgs: []string{k.alg},
	})
	return func() error {
		_, err := verifier.Verify(ctx, k.token)
		return err
	}
}

func jwxVerifying(alg jwa.SignatureAlgorithm, k *key) func() error {
	token := []byte(k.token)
	options := []jwxjwt.ParseOption{
		jwxjwt.WithKey(alg, k.public),
		jwxjwt.WithIssuer(issuer),
		jwxjwt.WithAudience(audience),
		jwxjwt.WithRequiredClaim("exp"),
	}
	return func() error {
		_, err := jwxjwt.Parse(token, options...)
		return err
	}
}
