package bench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"
	"github.com/lestrrat-go/httprc/v3"
	"github.com/lestrrat-go/jwx/v3/jwk"
	jwxjwt "github.com/lestrrat-go/jwx/v3/jwt"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// A consumer verifies tokens with the keys of a JWK Set at a URL, which it keeps.
type consumer struct {
	name string
	make func(ctx context.Context, url string, client *http.Client) (verifier, error)
}

// A verifier verifies tokens of one algorithm, all of which have the claims of a Suite.
type verifier func(alg, token string) error

// consumers are package jwks, first, and the other libraries.
var consumers = []consumer{
	{"gcpjwt", func(ctx context.Context, url string, client *http.Client) (verifier, error) {
		ours, err := jwks.NewKeyfunc(ctx, &jwks.Config{URL: url, Client: client, Logger: silent})
		return byKeyfunc(ours), err
	}},
	{"keyfunc", func(ctx context.Context, url string, client *http.Client) (verifier, error) {
		set, err := keyfunc.NewDefaultOverrideCtx(ctx, []string{url}, keyfunc.Override{
			Client:                  client,
			RefreshErrorHandlerFunc: func(string) func(context.Context, error) { return func(context.Context, error) {} },
		})
		if err != nil {
			return nil, err
		}
		return byKeyfunc(set.Keyfunc), nil
	}},
	{"go-oidc", func(ctx context.Context, url string, client *http.Client) (verifier, error) {
		set := oidc.NewRemoteKeySet(oidc.ClientContext(ctx, client), url)
		verifiers := make(map[string]*oidc.IDTokenVerifier)
		for _, alg := range []string{"RS256", "ES256", "EdDSA"} {
			verifiers[alg] = oidc.NewVerifier(issuer, set, &oidc.Config{ClientID: audience, SupportedSigningAlgs: []string{alg}})
		}
		return func(alg, token string) error {
			_, err := verifiers[alg].Verify(ctx, token)
			return err
		}, nil
	}},
	{"jwx", func(ctx context.Context, url string, client *http.Client) (verifier, error) {
		cache, err := jwk.NewCache(ctx, httprc.NewClient())
		if err != nil {
			return nil, err
		}
		// It is ready once it has been read, or fails to be.
		ready, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := cache.Register(ready, url, jwk.WithHTTPClient(client)); err != nil && ctx.Err() != nil {
			return nil, err
		}
		set, err := cache.CachedSet(url)
		if err != nil {
			return nil, err
		}
		options := []jwxjwt.ParseOption{
			jwxjwt.WithKeySet(set),
			jwxjwt.WithIssuer(issuer),
			jwxjwt.WithAudience(audience),
			jwxjwt.WithRequiredClaim("exp"),
		}
		return func(_, token string) error {
			_, err := jwxjwt.Parse([]byte(token), options...)
			return err
		}, nil
	}},
}

var silent = slog.New(slog.DiscardHandler)

func byKeyfunc(f jwt.Keyfunc) verifier {
	parsers := make(map[string]*jwt.Parser)
	for _, alg := range []string{"RS256", "ES256", "EdDSA"} {
		parsers[alg] = parser(alg)
	}
	return func(alg, token string) error {
		_, err := parsers[alg].Parse(token, f)
		return err
	}
}

// setURL is where the JWK Set of all keys is.
func (s *Suite) setURL() string { return s.webKeysURL + "/" + allKeys }

// KeySet compares verifying with a key from a JWK Set that has been read.
func (s *Suite) KeySet() ([]Comparison, error) {
	var verifiers []verifier
	for _, consumer := range consumers {
		v, err := consumer.make(s.ctx, s.setURL(), http.DefaultClient)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", consumer.name, err)
		}
		verifiers = append(verifiers, v)
	}
	var comparisons []Comparison
	for _, k := range s.keys {
		switch k.name {
		case "RS256-2048", "ES256", "EdDSA":
		default:
			continue
		}
		static := func(*jwt.Token) (any, error) { return k.public, nil }
		c := Comparison{
			Name:   "verify/jwks-" + k.name,
			Others: []Other{{Way: Way{"static", parsing(parser(k.alg), k.token, static)}, Limit: staticLimit}},
		}
		for i, v := range verifiers {
			way := Way{consumers[i].name, func() error { return v(k.alg, k.token) }}
			if i == 0 {
				c.Ours = append(c.Ours, way)
			} else {
				c.Others = append(c.Others, Other{Way: way, Limit: libraryLimit})
			}
		}
		comparisons = append(comparisons, c)
	}
	return comparisons, nil
}

// Forged is what tokens cost whose kid nobody knows.
type Forged struct {
	Name    string
	Fetches int           // for all of them together
	Each    time.Duration // until such a token was refused
}

// Forged has n tokens refused, each with a kid of its own, while all good keys are known.
func (s *Suite) Forged(n int) ([]Forged, error) {
	tokens := make([]string, n)
	for i := range tokens {
		token, err := relabelled(s.rsa.token, fmt.Sprintf("forged-%d", i))
		if err != nil {
			return nil, err
		}
		tokens[i] = token
	}
	var results []Forged
	for _, consumer := range consumers {
		ctx, cancel := context.WithCancel(s.ctx)
		var fetches atomic.Int64
		verify, err := consumer.make(ctx, s.setURL(), &http.Client{Transport: slow{0, &fetches}})
		if err == nil {
			err = verify("RS256", s.rsa.token)
		}
		if err != nil {
			cancel()
			return nil, fmt.Errorf("%s: %w", consumer.name, err)
		}
		known := fetches.Load()
		began := time.Now()
		for _, token := range tokens {
			if verify("RS256", token) == nil {
				err = fmt.Errorf("%s took a forged token", consumer.name)
			}
		}
		results = append(results, Forged{consumer.name, int(fetches.Load() - known), time.Since(began) / time.Duration(n)})
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

// relabelled returns a token with another kid. Its signature isn't right any more.
func relabelled(token, kid string) (string, error) {
	encoded, rest, _ := strings.Cut(token, ".")
	data, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return "", err
	}
	var header map[string]any
	if err := json.Unmarshal(data, &header); err != nil {
		return "", err
	}
	if header["kid"] = kid; kid == "" {
		delete(header, "kid")
	}
	if data, err = json.Marshal(header); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(data) + "." + rest, nil
}

// An Outage is what happened when the server of the keys was down at the start.
type Outage struct {
	Name     string
	Requests int           // for keys, of all callers
	P99      time.Duration // until a caller was told
	Recovery time.Duration // until a token was verified once the server was back; negative: it took longer than the patience
}

// Outage has callers verify a token at once while the server of the keys answers 503, and
// then one caller again and again once it is back, for as long as patience lasts. A request
// takes rtt.
func (s *Suite) Outage(callers int, rtt, patience time.Duration) ([]Outage, error) {
	var results []Outage
	for _, consumer := range consumers {
		ctx, cancel := context.WithCancel(s.ctx)
		var requests atomic.Int64
		var back, verified atomic.Bool
		client := &http.Client{Transport: switched{slow{rtt, &requests}, &back}}
		verify, err := consumer.make(ctx, s.setURL(), client)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("%s: %w", consumer.name, err)
		}
		waits, err := crowd(callers, func() error {
			if within(patience, func() error { return verify("RS256", s.rsa.token) }) == nil {
				verified.Store(true)
			}
			return nil
		})
		if verified.Load() {
			err = errors.New("a token was verified without keys")
		}
		result := Outage{Name: consumer.name, Requests: int(requests.Load()), P99: Quantile(waits, 0.99), Recovery: -1}
		back.Store(true)
		for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
			if within(patience, func() error { return verify("RS256", s.rsa.token) }) == nil {
				result.Recovery = time.Since(began)
				break
			}
		}
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", consumer.name, err)
		}
		results = append(results, result)
	}
	return results, nil
}

// within leaves do behind after a while: jwx waits for as long as its context lasts.
func within(patience time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return context.DeadlineExceeded
	}
}

// switched answers 503 until it is told that the server is back.
type switched struct {
	slow
	back *atomic.Bool
}

func (s switched) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.back.Load() {
		return s.slow.RoundTrip(r)
	}
	s.requests.Add(1)
	time.Sleep(s.rtt)
	return &http.Response{
		StatusCode: http.StatusServiceUnavailable,
		Status:     "503 Service Unavailable",
		Header:     make(http.Header),
		Body:       io.NopCloser(strings.NewReader("")),
		Request:    r,
	}, nil
}

// A StartUp is what happened when many asked for a JWK Set that nobody had asked for yet.
type StartUp struct {
	CallsPerKey float64 // to Cloud KMS: the list of versions, and the public keys
	Median, P99 time.Duration
}

// StartUp has requests for the JWK Set of a CryptoKey come all at once. A call to Cloud KMS
// takes rtt.
func (s *Suite) StartUp(requests int, rtt time.Duration) (StartUp, error) {
	const versions = 2
	server, cryptoKey, err := s.newCryptoKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, versions)
	if err != nil {
		return StartUp{}, err
	}
	server.server.SetLatency(rtt)
	handler := jwks.NewHandler(&gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: server.client, Logger: silent})
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "/", nil)
	if err != nil {
		return StartUp{}, err
	}
	waits, err := crowd(requests, func() error {
		answer := refusals{good: http.StatusOK, header: make(http.Header)}
		handler.ServeHTTP(&answer, request)
		if status := answer.status.Load(); status != 0 {
			return fmt.Errorf("the request was answered with %d", status)
		}
		return nil
	})
	if lists := server.server.Calls("ListCryptoKeyVersions"); err == nil && lists != 1 {
		err = fmt.Errorf("the versions were listed %d times", lists)
	}
	return StartUp{float64(server.server.Calls("GetPublicKey")) / versions, Quantile(waits, 0.5), Quantile(waits, 0.99)}, err
}

// kmsServer is a server with a client.
type kmsServer struct {
	server *testutil.KMS
	client *kms.KeyManagementClient
}

// newCryptoKey makes a CryptoKey with a number of versions, on a server of its own.
func (s *Suite) newCryptoKey(algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm, versions int) (*kmsServer, string, error) {
	server, err := testutil.NewKMS()
	if err != nil {
		return nil, "", err
	}
	s.onClose(server.Close)
	client, err := server.Client(s.ctx)
	if err != nil {
		return nil, "", err
	}
	s.onClose(func() { client.Close() })
	version, err := server.CreateKey("key", algorithm)
	for range versions - 1 {
		if err == nil {
			_, err = server.CreateVersion(cryptoKeyOf(version))
		}
	}
	return &kmsServer{server, client}, cryptoKeyOf(version), err
}

// withoutKidLimit is what a forged token without a kid may cost in verifications of one with
// a kid, however many versions a CryptoKey has.
const withoutKidLimit = 16

// WithoutKid compares a forged token without a kid with a good one with a kid. The key has 100
// versions of ES384, which takes longer to verify than any other algorithm.
func (s *Suite) WithoutKid() (Comparison, error) {
	server, cryptoKey, err := s.newCryptoKey(kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, 100)
	if err != nil {
		return Comparison{}, err
	}
	config := &gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: server.client, ActivationDelay: -1, Logger: silent}
	good, err := sign(gcpjwt.NewKMSContext(s.ctx, config), gcpjwt.SigningMethodKMSES384)
	if err != nil {
		return Comparison{}, err
	}
	private, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		return Comparison{}, err
	}
	forged, err := jwt.NewWithClaims(jwt.SigningMethodES384, claims()).SignedString(private)
	if err != nil {
		return Comparison{}, err
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(s.ctx, config)
	if err != nil {
		return Comparison{}, err
	}
	parser := parser("ES384")
	return Comparison{
		Name: "withoutkid",
		Ours: []Way{{"forged", func() error {
			if _, err := parser.Parse(forged, keyfunc); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
				return fmt.Errorf("a forged token: %w", err)
			}
			return nil
		}}},
		Others: []Other{{Way: Way{"with-kid", parsing(parser, good, keyfunc)}, Limit: withoutKidLimit}},
	}, nil
}
