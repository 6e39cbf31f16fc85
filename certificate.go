package gcpjwt

import (
	"cmp"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"weak"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/fetch"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/internal/registry"
)

// defaultCertificateURL is where Google publishes the certificates of service
// accounts.
const defaultCertificateURL = "https://www.googleapis.com/robot/v1/metadata/x509/"

// certificates is what is known of accounts' certificates. It belongs to the process.
// Configurations that differ in how long they keep them share nothing.
var certificates = registry.New[certificateID, keyset.Shared]()

type certificateID struct {
	url        string
	client     weak.Pointer[http.Client]
	expiration time.Duration
	stale      time.Duration
}

// certificates returns the key source of the account. cached says whether to keep the keys.
func (c *IAMConfig) certificates(cached bool) (*keyset.Published, error) {
	if c == nil {
		return nil, errs.Errorf("%w: nil *IAMConfig", ErrMissingConfig)
	}
	if err := checkAccount("ServiceAccount", c.ServiceAccount); err != nil {
		return nil, err
	}
	base := cmp.Or(c.CertificateURL, defaultCertificateURL)
	if err := fetch.CheckURL("CertificateURL", base); err != nil {
		return nil, err
	}
	u, err := url.Parse(base)
	if err != nil || u.Path == "" {
		return nil, errs.Errorf("%w: CertificateURL %s: want a path, as the account is appended to it",
			ErrInvalidConfig, errs.Quote(base))
	}
	if c.CacheExpiration < 0 {
		return nil, errs.Errorf("%w: CacheExpiration is negative", ErrInvalidConfig)
	}
	client := cmp.Or(c.Client, http.DefaultClient)
	host := errs.Quote(u.Host)
	target := base + url.PathEscape(c.ServiceAccount)
	stale := fetch.StaleIfError(c.StaleIfError)
	id := certificateID{target, weak.Make(client), c.CacheExpiration, stale}
	source := &keyset.Published{
		Shared:     certificates.Get(id, func() *keyset.Shared { return new(keyset.Shared) }),
		Allows:     isCertificateAlg,
		Cached:     cached,
		Expiration: c.CacheExpiration,
		Stale:      c.StaleIfError,
		Signer:     c.ServiceAccount,
		Read: func(ctx context.Context, fresh bool) (*keyset.Set, fetch.Lifetime, error) {
			response, err := fetch.Get(ctx, fetch.Request{Client: client, URL: target, Fresh: fresh})
			if err != nil {
				return nil, fetch.Lifetime{}, c.certificatesFailed(err)
			}
			set, err := parseCertificates(response.Body)
			if err != nil {
				return nil, fetch.Lifetime{}, c.certificatesFailed(errs.Errorf("ask %s: %w", host, err))
			}
			return set, response.Lifetime, nil
		},
	}
	source.Tell(c.Logger)
	return source, nil
}

func isCertificateAlg(alg string) bool { return alg == certificateAlg }

// certificatesFailed says which certificates could not be read.
func (c *IAMConfig) certificatesFailed(err error) error {
	hint := ""
	var status *fetch.StatusError
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		hint = " (check ServiceAccount, and CertificateURL if the account is of another universe domain)"
	}
	return errs.Errorf("read the certificates of %s%s: %w", c.ServiceAccount, hint, err)
}

// parseCertificates reads a JSON object of PEM certificates or public keys by
// kid. What isn't an RSA key for RS256 is left out; an error means that there is
// no other.
func parseCertificates(body []byte) (*keyset.Set, error) {
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

var errNoKey = errors.New("the response holds no usable key")

// certificateKeys makes a key set of PEM certificates or public keys by kid.
// Neither validity nor signature of a certificate is checked: it comes from
// Google over TLS and is but a container of the key.
func certificateKeys(pems map[string][]byte) (*keyset.Set, error) {
	var keys []*keyset.Key
	for kid, text := range pems {
		if key, ok := rsaPublicKey(text); ok && kid != "" {
			keys = append(keys, &keyset.Key{ID: kid, Alg: certificateAlg, Public: key})
		}
	}
	if len(keys) == 0 {
		return nil, errNoKey
	}
	slices.SortFunc(keys, func(a, b *keyset.Key) int { return strings.Compare(a.ID, b.ID) })
	return keyset.New(keys), nil
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
