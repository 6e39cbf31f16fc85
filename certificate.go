package gcpjwt

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"weak"

	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
)

// defaultCertificateURL is where Google publishes the certificates of service
// accounts.
const defaultCertificateURL = "https://www.googleapis.com/robot/v1/metadata/x509/"

// certificateCache holds the certificates of accounts whose configurations
// enable the cache. Configurations that differ in how long they keep them don't share them.
var certificateCache = newRegistry[certificateID, refresh.Value[*keySet]]()

type certificateID struct {
	url        string
	client     weak.Pointer[http.Client]
	expiration time.Duration
	stale      time.Duration
}

// certificates returns the key source of the account.
func (c *IAMConfig) certificates() (*certificates, error) {
	if err := checkAccount("ServiceAccount", c.ServiceAccount); err != nil {
		return nil, err
	}
	base := c.CertificateURL
	if base == "" {
		base = defaultCertificateURL
	}
	if err := checkCertificateURL(base); err != nil {
		return nil, err
	}
	if c.CacheExpiration < 0 {
		return nil, fmt.Errorf("%w: CacheExpiration is negative", ErrInvalidConfig)
	}
	client := c.Client
	if client == nil {
		client = http.DefaultClient
	}
	src := &certificates{
		expiration: c.CacheExpiration,
		stale:      c.StaleIfError,
		signer:     c.ServiceAccount,
		logger:     c.Logger,
	}
	if src.stale == 0 {
		src.stale = defaultStaleIfError
	}
	src.stale = max(src.stale, 0)
	target := base + url.PathEscape(c.ServiceAccount)
	if c.EnableCache {
		id := certificateID{target, weak.Make(client), src.expiration, src.stale}
		src.cached = certificateCache.get(id, func() *refresh.Value[*keySet] { return new(refresh.Value[*keySet]) })
	}
	secure := stayingSecure(client)
	src.fetch = func(ctx context.Context) (*keySet, time.Duration, bool, error) {
		set, lifetime, ok, err := fetchCertificates(ctx, secure, target)
		if err != nil {
			err = fmt.Errorf("gcpjwt: fetch the certificates of %s: %w", c.ServiceAccount, foreign(ctx, err))
		}
		return set, lifetime, ok, err
	}
	return src, nil
}

// checkCertificateURL lets plain http through on loopback only, since whoever
// can alter the answer can sign tokens.
func checkCertificateURL(base string) error {
	u, err := url.Parse(base)
	if err != nil {
		return fmt.Errorf("%w: CertificateURL is no URL", ErrInvalidConfig) // it may have a password
	}
	shown := quote(u.Redacted())
	switch {
	case u.Host == "" || u.Path == "" || u.User != nil || strings.ContainsAny(base, "?#"):
		return fmt.Errorf("%w: CertificateURL %s: want an absolute URL with a path, and without user, query and fragment", ErrInvalidConfig, shown)
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("%w: CertificateURL %s: want https", ErrInvalidConfig, shown)
}

func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// stayingSecure returns a copy of client that follows no redirect to plain http,
// except from one loopback address to another.
func stayingSecure(client *http.Client) *http.Client {
	secure := *client
	secure.CheckRedirect = func(request *http.Request, via []*http.Request) error {
		switch {
		case request.URL.Scheme != "https" && (via[len(via)-1].URL.Scheme == "https" || !isLoopback(request.URL.Hostname())):
			return errors.New("redirected to plain http")
		case client.CheckRedirect != nil:
			return client.CheckRedirect(request, via)
		case len(via) >= 10:
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}
	return &secure
}

func fetchCertificates(ctx context.Context, client *http.Client, target string) (*keySet, time.Duration, bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, 0, false, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, 0, false, err
	}
	defer response.Body.Close()
	body, err := readBody(response)
	if err != nil {
		return nil, 0, false, err
	}
	set, err := parseCertificates(body)
	lifetime, ok := statedLifetime(response.Header, time.Now())
	return set, lifetime, ok, err
}

// parseCertificates reads a JSON object of PEM certificates or public keys by
// kid. What isn't an RSA key for RS256 is left out; an error means that there is
// no other.
func parseCertificates(body []byte) (*keySet, error) {
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(body, &entries); err != nil {
		return nil, fmt.Errorf("the response is no JSON object: %w", err)
	}
	keys := make(map[string][]byte, len(entries))
	for kid, entry := range entries {
		var text string
		if json.Unmarshal(entry, &text) == nil {
			keys[kid] = []byte(text)
		}
	}
	return certificateKeys(keys)
}

// certificateKeys makes a key set of PEM certificates or public keys by kid.
// Neither validity nor signature of a certificate is checked: it comes from
// Google over TLS and is but a container of the key.
func certificateKeys(pems map[string][]byte) (*keySet, error) {
	var keys []*verifyKey
	for kid, text := range pems {
		if key, ok := rsaPublicKey(text); ok && kid != "" {
			keys = append(keys, &verifyKey{kid: kid, alg: certificateAlg, key: key})
		}
	}
	if len(keys) == 0 {
		return nil, errNoKey
	}
	slices.SortFunc(keys, func(a, b *verifyKey) int {
		if a.kid < b.kid {
			return -1
		}
		return 1
	})
	return newKeySet(keys), nil
}

// rsaPublicKey reads an RSA key of at least 2048 bits (RFC 7518 section 3.3).
func rsaPublicKey(text []byte) (*rsa.PublicKey, bool) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, false
	}
	var key any
	switch block.Type {
	case "CERTIFICATE":
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, false
		}
		key = certificate.PublicKey
	case "PUBLIC KEY":
		var err error
		if key, err = x509.ParsePKIXPublicKey(block.Bytes); err != nil {
			return nil, false
		}
	}
	public, ok := key.(*rsa.PublicKey)
	return public, ok && public.N.BitLen() >= 2048
}
