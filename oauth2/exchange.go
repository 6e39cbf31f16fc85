package oauth2

import (
	"context"
	"errors"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/someone1/gcp-jwt-go/v3/internal/fetch"
)

// ExchangeConfig describes an assertion and the token endpoint that takes it (RFC
// 7523). The program holds no secret and no private key.
type ExchangeConfig struct {
	// Config describes the assertion. Issuer must be set. An empty Audience means
	// TokenURL, a Lifetime of 0 five minutes. Each assertion has a jti of its own,
	// whatever JWTID says.
	Config

	// TokenURL is the token endpoint: an https URL without user and fragment. Plain
	// http is for loopback addresses only.
	TokenURL string

	// Scopes are what the access token shall be good for, one in each element. They
	// go into the parameter scope of the request. [NewJWTBearerSource] writes them
	// into the claim scope of the assertion too, where Google looks for them. A
	// claim scope in Claims beside Scopes is an error.
	Scopes []string

	// EndpointParams are further parameters of the request. They cannot be grant_type,
	// scope, assertion, client_assertion and client_assertion_type, and with
	// [NewClientCredentialsSource] neither client_id nor client_secret. The map is copied.
	EndpointParams url.Values

	// Client makes the requests, without following redirects. Its Timeout counts
	// if it is shorter than 10 seconds. nil means http.DefaultClient.
	Client *http.Client
}

const (
	defaultAssertionLifetime = 5 * time.Minute
	exchangeTimeout          = 10 * time.Second

	// How long a token is used whose answer has no expires_in. RFC 6749 section 5.1
	// leaves that to the documentation of the server.
	unstatedLifetime = time.Hour
)

// A grant is a way to use an assertion.
type grant struct {
	fixed     url.Values // parameters of each request
	assertion string     // the parameter for the assertion
	refused   []string   // parameters that EndpointParams cannot have
}

// The parameters of both grants, which EndpointParams can have with neither.
var grantParams = []string{"grant_type", "scope", "assertion", "client_assertion", "client_assertion_type"}

var (
	jwtBearer = grant{
		fixed:     url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}},
		assertion: "assertion",
		refused:   grantParams,
	}
	clientCredentials = grant{
		fixed: url.Values{
			"grant_type":            {"client_credentials"},
			"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
		},
		assertion: "client_assertion",
		// A second way to authenticate is not allowed (RFC 6749 section 2.3).
		refused: append([]string{"client_id", "client_secret"}, grantParams...),
	}
)

// NewJWTBearerSource returns a source of access tokens that a token endpoint gives for a
// signed assertion (RFC 7523 section 2.1: the assertion is the grant).
//
// Access tokens are kept and renewed as those of [NewTokenSource]. What is said there about
// ctx, the first token, the Logger and Token goes for this source too. A renewal is one
// signature, for an assertion that is used once, and one request. The request takes 10
// seconds at most, and its answer must not be longer than 1 MiB.
//
// The Expiry of a token is what expires_in says, counted from the request, or an hour later
// if the answer has none. An expires_in that is no number, or 0 or less, or more than 68
// years, is an error. The token's Extra method finds the other fields of the answer.
//
// The error is [gcpjwt.ErrInvalidConfig] if config cannot work. If the endpoint answered, but
// not with a usable token, errors.As finds an *oauth2.RetrieveError. Else the error is that
// of the connection or of the signature.
//
// No error holds the assertion, a token or a client_secret, nor do Body and Response of a
// RetrieveError. The Body is cut to 4 KiB. It is empty where a token may be in it: for a
// status 2xx, and wherever it speaks of one.
func NewJWTBearerSource(ctx context.Context, config ExchangeConfig) (oauth2.TokenSource, error) {
	if err := config.checkScopes(); err != nil {
		return nil, err
	}
	if len(config.Scopes) > 0 {
		claims := map[string]any{"scope": strings.Join(config.Scopes, " ")}
		maps.Copy(claims, config.Claims)
		config.Claims = claims
	}
	return newExchangeSource(ctx, config, "", jwtBearer)
}

// NewClientCredentialsSource returns a source of access tokens that a token endpoint gives to
// a client, which a signed assertion authenticates (RFC 7523 section 2.2, also known as
// private_key_jwt). Issuer is the client_id. An empty Subject means the Issuer. The request
// has the Subject as its parameter client_id too, which some servers demand.
//
// Everything else is as with [NewJWTBearerSource].
func NewClientCredentialsSource(ctx context.Context, config ExchangeConfig) (oauth2.TokenSource, error) {
	if err := config.checkScopes(); err != nil {
		return nil, err
	}
	if config.Subject == "" {
		config.Subject = config.Issuer
	}
	return newExchangeSource(ctx, config, config.Subject, clientCredentials)
}

func newExchangeSource(ctx context.Context, config ExchangeConfig, clientID string, grant grant) (oauth2.TokenSource, error) {
	exchange, err := config.newExchange(clientID, grant)
	if err != nil {
		return nil, err
	}
	if config.Issuer == "" {
		return nil, invalid("Issuer: an assertion needs one")
	}
	if len(config.Audience) == 0 {
		config.Audience = []string{config.TokenURL}
	}
	if config.Lifetime == 0 {
		config.Lifetime = defaultAssertionLifetime
	}
	config.JWTID = true
	maker, err := config.newMaker(ctx)
	if err != nil {
		return nil, err
	}
	return start(ctx, &source{maker: maker, exchange: exchange})
}

// A scope has none of the blanks that separate scopes (RFC 6749 section 3.3).
var scopePattern = regexp.MustCompile(`^[!#-\[\]-~]+$`)

func (c ExchangeConfig) checkScopes() error {
	for _, scope := range c.Scopes {
		if !scopePattern.MatchString(scope) {
			return invalid("Scopes: %q is no scope", scope)
		}
	}
	for name := range c.Claims {
		if len(c.Scopes) > 0 && strings.EqualFold(name, "scope") {
			return invalid("Claims: %s is not for it beside Scopes", name)
		}
	}
	return nil
}

// newExchange checks all but the description of the assertion.
func (c ExchangeConfig) newExchange(clientID string, grant grant) (*exchange, error) {
	endpoint, err := url.Parse(c.TokenURL)
	switch { // the URL may have a password
	case c.TokenURL == "":
		return nil, invalid("TokenURL: it is empty")
	case err != nil || endpoint.Hostname() == "" || endpoint.User != nil || strings.Contains(c.TokenURL, "#"):
		return nil, invalid("TokenURL: want an absolute URL without user and fragment")
	case endpoint.Scheme != "https" && (endpoint.Scheme != "http" || !fetch.IsLoopback(endpoint.Hostname())):
		return nil, invalid("TokenURL: want https; http is for loopback only")
	}

	params := maps.Clone(grant.fixed)
	var secrets []string
	for name, values := range c.EndpointParams {
		if slices.ContainsFunc(grant.refused, func(refused string) bool { return strings.EqualFold(refused, name) }) {
			return nil, invalid("EndpointParams: %s is not for it: the source sets it, or leaves it out", name)
		}
		params[name] = slices.Clone(values)
		if secretParam.MatchString(name) {
			secrets = append(secrets, values...)
		}
	}
	client := c.Client
	if client == nil {
		client = http.DefaultClient
	}
	return &exchange{
		endpoint:  endpoint,
		client:    *client,
		clientID:  clientID,
		scopes:    slices.Clone(c.Scopes),
		params:    params,
		assertion: grant.assertion,
		secrets:   secrets,
	}, nil
}

// An exchange is the way from an assertion to an access token.
type exchange struct {
	endpoint  *url.URL
	client    http.Client
	clientID  string // "": none
	scopes    []string
	params    url.Values // all others but the assertion
	assertion string     // the parameter for it
	secrets   []string   // in params
}

// do exchanges an assertion. It returns the token and how long that lives.
//
// Package x/oauth2 builds the request and reads the answer. Of its clients,
// clientcredentials is the one that takes parameters of all kinds, grant_type
// included. It cuts an answer that is too long, follows redirects, takes an
// expires_in of 0 for none, and puts the body into its error: the courier and
// what follows here mend that.
func (x *exchange) do(ctx context.Context, assertion string) (*oauth2.Token, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()

	courier := &courier{base: x.client.Transport}
	client := x.client
	client.Transport = courier
	params := maps.Clone(x.params)
	params.Set(x.assertion, assertion)
	config := clientcredentials.Config{
		ClientID:       x.clientID,
		TokenURL:       x.endpoint.String(),
		Scopes:         x.scopes,
		EndpointParams: params,
		AuthStyle:      oauth2.AuthStyleInParams,
	}
	sent := time.Now().Round(0)
	token, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, &client))
	if err != nil {
		return nil, 0, x.failure(courier, assertion, err)
	}
	lifetime, err := lifetimeOf(token)
	if err != nil {
		return nil, 0, x.failure(courier, assertion, err)
	}
	token.Expiry = sent.Add(lifetime)
	if !time.Now().Before(token.Expiry) {
		return nil, 0, x.failure(courier, assertion, errors.New("the token expired on its way"))
	}
	return token, lifetime, nil
}

// lifetimeOf returns how long a token lives by its expires_in. x/oauth2 has
// already refused one that is no integer, but not one in quotes.
func lifetimeOf(token *oauth2.Token) (time.Duration, error) {
	var seconds float64
	switch value := token.Extra("expires_in").(type) {
	case nil:
		return unstatedLifetime, nil
	case float64: // in JSON
		seconds = value
	case int64: // in a form
		seconds = float64(value)
	default:
		if value == "" { // a form without it
			return unstatedLifetime, nil
		}
		return 0, errors.New("expires_in is no number")
	}
	if seconds < 1 || seconds > math.MaxInt32 || seconds != math.Trunc(seconds) {
		return 0, errors.New("expires_in is no sensible number of seconds")
	}
	return time.Duration(seconds) * time.Second, nil
}
