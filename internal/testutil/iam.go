package testutil

import (
	"context"
	"crypto/rsa"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"

	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"
)

// What an IAM server counts.
const (
	callSignJWT      = "signJwt"
	callSignBlob     = "signBlob"
	callCertificates = "certificates"
	callJWK          = "jwk"
)

// permissionPrefix and the name of a call make the permission that it needs.
const permissionPrefix = "iam.serviceAccounts."

// IAM is a server for the IAM Credentials API (signJwt and signBlob) and for
// the endpoints that publish the certificates and the JWK Sets of service
// accounts. Its calls are "signJwt", "signBlob", "certificates" and "jwk". Naming
// an account that doesn't exist in its methods is an error of the test and panics,
// unless the method returns an error.
type IAM struct {
	httpServer
	fails failQueue

	// Guarded by httpServer.mu.
	accounts  map[string]*account // by email and by unique ID
	keys      int                 // made so far
	denied    map[string]bool     // permissions
	caching   http.Header         // of the endpoints for public keys
	holding   bool                // whether a cache is on the way to those
	held      map[iamCall]*keyAnswer
	headers   map[string]http.Header // of the last request of each kind
	intercept func(w http.ResponseWriter, r *http.Request, next http.Handler)
	addExp    bool
}

type account struct {
	accountKeys
	delegates []string // the only chain let through, unless empty
}

// NewIAM starts a server without accounts.
func NewIAM(opts ...Option) (*IAM, error) {
	s := &IAM{
		accounts: make(map[string]*account),
		denied:   make(map[string]bool),
		headers:  make(map[string]http.Header),
	}
	s.SetCertificateHeader(nil)
	if err := s.start(opts, s.serve); err != nil {
		return nil, err
	}
	return s, nil
}

// Service returns Google's REST client on this server.
func (s *IAM) Service(ctx context.Context) (*iamcredentials.Service, error) {
	return iamcredentials.NewService(ctx, option.WithEndpoint(s.URL()), option.WithHTTPClient(s.Client()))
}

// CertificateURL returns the certificate endpoint, to which the escaped email
// or unique ID of an account is appended.
func (s *IAM) CertificateURL() string { return s.URL() + "/" + robotPath }

// JWKURL returns the endpoint for JWK Sets, to which the escaped email or unique
// ID of an account is appended.
func (s *IAM) JWKURL() string { return s.URL() + "/" + jwkPath }

// CreateAccount makes a service account with one key, which signs and is
// published. It can be addressed by its email and by the unique ID.
func (s *IAM) CreateAccount(email string) (uniqueID string, err error) {
	key, err := s.newKey(email)
	if err != nil {
		return "", err
	}
	keys := []*accountKey{key}
	created := &account{accountKeys: accountKeys{published: keys, signing: slices.Clone(keys)}}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accounts[email] != nil {
		return "", fmt.Errorf("testutil: account %q exists", email)
	}
	// 21 digits, as Google's.
	uniqueID = fmt.Sprintf("1%020d", rand.Uint64())
	s.accounts[email] = created
	s.accounts[uniqueID] = created
	return uniqueID, nil
}

// AddKey makes a further key for an account. It is published but doesn't sign
// until SetSigningKeys: Google publishes keys hours before their first use.
func (s *IAM) AddKey(email string) (kid string, err error) {
	key, err := s.newKey(email)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	account := s.accounts[email]
	if account == nil {
		return "", fmt.Errorf("testutil: no account %q", email)
	}
	account.published = append(account.published, key)
	return key.id, nil
}

func (s *IAM) newKey(email string) (*accountKey, error) {
	s.mu.Lock()
	n := s.keys
	s.keys++
	s.mu.Unlock()
	return newAccountKey(email, n)
}

// SetSigningKeys makes each signature of an account come from one of those
// keys, chosen at random. It panics if one is unknown.
func (s *IAM) SetSigningKeys(email string, kids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account(email).setSigning(kids)
}

// RemoveKey makes an account forget a key: it is no longer published, nor does
// it sign. An account that has no signing key left answers INTERNAL.
func (s *IAM) RemoveKey(email, kid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account(email).remove(kid)
}

// KeyIDs returns the IDs of an account's published keys, in order of creation.
func (s *IAM) KeyIDs(email string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account(email).ids()
}

// PublicKey returns a published key, or nil.
func (s *IAM) PublicKey(email, kid string) *rsa.PublicKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account(email).public(kid)
}

// SetDelegates lets only those requests for an account through that carry
// exactly this delegation chain of emails and unique IDs. Without a chain, the
// account takes any.
func (s *IAM) SetDelegates(email string, chain ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account(email).delegates = slices.Clone(chain)
}

// account returns the account of that name for a test, which is mistaken if
// there is none. s.mu is held.
func (s *IAM) account(name string) *account {
	account := s.accounts[name]
	if account == nil {
		panic(fmt.Sprintf("testutil: no account %q", name))
	}
	return account
}

// Deny takes permissions away from the caller:
// "iam.serviceAccounts.signJwt" and "iam.serviceAccounts.signBlob".
func (s *IAM) Deny(permissions ...string) { s.setDenied(true, permissions) }

// Allow gives permissions back.
func (s *IAM) Allow(permissions ...string) { s.setDenied(false, permissions) }

func (s *IAM) setDenied(denied bool, permissions []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, permission := range permissions {
		if permission != permissionPrefix+callSignJWT && permission != permissionPrefix+callSignBlob {
			panic(fmt.Sprintf("testutil: no permission %q", permission))
		}
		s.denied[permission] = denied
	}
}

// SetCertificateHeader replaces the headers that the endpoints for public keys
// send with a 200 or a 304, by default a Cache-Control of six hours. Date and
// ETag are sent as well unless h holds nil for them. An empty h means no
// caching headers at all, a nil one the default.
func (s *IAM) SetCertificateHeader(h http.Header) {
	if h == nil {
		h = http.Header{"Cache-Control": {"public, max-age=21600, must-revalidate, no-transform"}}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caching = h.Clone()
}

// CacheCertificates puts a cache on the way to the endpoints for public keys. It
// keeps the first answer of each and gives it, with its Age, to every request
// that doesn't say Cache-Control: no-cache or the like, as long as it is on. What
// it answers is counted too.
func (s *IAM) CacheCertificates(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = on
	s.held = make(map[iamCall]*keyAnswer)
}

// RequestHeader returns the header of the last request for a call, nil if there
// was none.
func (s *IAM) RequestHeader(what string) http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.headers[what].Clone()
}

// AddExp makes signJwt add an exp an hour ahead to claims without one. Google
// says so only of a deprecated API, so it is off by default.
func (s *IAM) AddExp(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addExp = on
}

// Intercept lets f answer every request, after it has been counted and has
// waited for the latency: on its own, or by calling next, for which it must put
// back a body that it reads. A nil f ends that.
func (s *IAM) Intercept(f func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}
