package gcpjwt

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"weak"

	"google.golang.org/api/iamcredentials/v1"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/registry"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// IAMType says which IAM Credentials method signs, for those who take an
// IAMConfig without a signing method. The zero value is neither.
type IAMType int

const (
	IAMBlobType IAMType = iota + 1 // signBlob, as SigningMethodIAMBlob
	IAMJwtType                     // signJwt, as SigningMethodIAMJWT
)

// IAMConfig says which service account signs or verifies. Calls never change
// its fields, so one configuration may serve any number of goroutines.
type IAMConfig struct {
	// ServiceAccount is the account's email address or unique ID. Required.
	ServiceAccount string

	// Delegates is the chain of accounts (emails or unique IDs) through which
	// the caller reaches ServiceAccount, in order: each must have
	// roles/iam.serviceAccountTokenCreator on the next, the last one on
	// ServiceAccount. Usually empty.
	Delegates []string

	// IAMType picks the signing method in package oauth2. The methods of this
	// package don't look at it.
	IAMType IAMType

	// EnableCache keeps the account's certificates between verifications. If it is
	// false, they are fetched for the tokens at hand, past any HTTP cache on the way.
	EnableCache bool

	// CacheExpiration is how long certificates are kept whose response states
	// no lifetime; if it is 0, those aren't kept. Google's responses do state
	// one. Whatever is stated, certificates are kept for at most 24 hours.
	CacheExpiration time.Duration

	// StaleIfError is how long past their expiry certificates may serve while
	// the endpoint is down. 0 means one hour, a negative value not at all.
	StaleIfError time.Duration

	// IAMService (of google.golang.org/api/iamcredentials/v1) makes the calls.
	// If it is nil, one default service is made on first use and kept for the process. It
	// takes Application Default Credentials.
	IAMService *iamcredentials.Service

	// Client fetches certificates. If it is nil, http.DefaultClient does. A
	// fetch takes at most 10 seconds and 1 MiB, and is never redirected from
	// https to http.
	Client *http.Client

	// CertificateURL is where certificates are: the account, escaped, is
	// appended to it. If it is empty, it is
	// https://www.googleapis.com/robot/v1/metadata/x509/. Plain http is for
	// loopback addresses only.
	CertificateURL string

	// Logger is told of failures that no caller sees, such as that of a
	// background refresh (Warn). If it is nil, slog.Default() is told.
	Logger *slog.Logger
}

// SigningMethodIAM signs as a service account through the IAM Credentials API
// (https://cloud.google.com/iam/docs/reference/credentials/rest), with a key
// that Google holds and rotates. Its key for Sign and token.SignedString is a
// context that carries an [IAMConfig] (see [NewIAMContext]); for Verify it is a
// [*rsa.PublicKey]. A method may be used concurrently.
type SigningMethodIAM struct {
	method
	call       func(ctx context.Context, config *IAMConfig, signingString string) ([]byte, error)
	callSigned func(ctx context.Context, config *IAMConfig, d *draft) (string, error)
}

// certificateAlg is the algorithm of the keys that Google rotates.
const certificateAlg = "RS256"

// The IAM signing methods. Each is registered with jwt under its alias, IAMBlob
// and IAMJWT.
var (
	// SigningMethodIAMBlob signs with signBlob.
	SigningMethodIAMBlob = iamMethod("IAMBlob", signBlob, signedByBlob)

	// SigningMethodIAMJWT signs with signJwt. signJwt makes the header by
	// itself, so Sign and token.SignedString can only succeed if the header
	// happens to be the one that Google makes, and return
	// [ErrSigningStringChanged] otherwise: use [SignedString].
	//
	// An exp claim must be an integer that is neither in the past nor more
	// than 12 hours ahead, which is checked before the call. Set one: a token
	// without exp never expires, unless signJwt adds one.
	SigningMethodIAMJWT = iamMethod("IAMJWT", signJWT, signedByJWT)
)

func iamMethod(alias string,
	call func(context.Context, *IAMConfig, string) ([]byte, error),
	callSigned func(context.Context, *IAMConfig, *draft) (string, error),
) *SigningMethodIAM {
	m := &SigningMethodIAM{call: call, callSigned: callSigned}
	m.implement(alias, algorithm.ByName(certificateAlg))
	return m
}

// Sign has Google sign signingString as the service account and returns the
// RSASSA-PKCS1-v1_5 signature. key is a context that carries an [IAMConfig], whose
// end ends the call.
//
// Which of the account's keys signs is Google's choice, and known only
// afterwards; [SignedString] gets the kid right nevertheless.
func (m *SigningMethodIAM) Sign(signingString string, key any) ([]byte, error) {
	ctx, err := m.checkSign(signingString, key)
	if err != nil {
		return nil, err
	}
	config, err := iamConfig(ctx)
	if err != nil {
		return nil, err
	}
	return m.call(ctx, config, signingString)
}

func (m *SigningMethodIAM) signedString(ctx context.Context, d *draft) (string, error) {
	config, err := iamConfig(ctx)
	if err != nil {
		return "", err
	}
	return m.callSigned(ctx, config, d)
}

// Issuer returns the ServiceAccount, which is the iss of its tokens; "" for a nil config. It is
// for package middleware.
func (c *IAMConfig) Issuer() string {
	if c == nil {
		return ""
	}
	return c.ServiceAccount
}

func iamConfig(ctx context.Context) (*IAMConfig, error) {
	config, ok := IAMFromContext(ctx)
	if !ok {
		return nil, errs.Errorf("%w: the context carries no *IAMConfig: make it with NewIAMContext",
			ErrMissingConfig)
	}
	return config, config.check()
}

// check refuses a configuration that cannot sign.
func (c *IAMConfig) check() error {
	if err := checkAccount("ServiceAccount", c.ServiceAccount); err != nil {
		return err
	}
	for _, delegate := range c.Delegates {
		if err := checkAccount("Delegates", delegate); err != nil {
			return err
		}
	}
	return nil
}

// checkAccount checks an email address or a unique ID. It lets nothing through
// that means something in a URL.
func checkAccount(field, account string) error {
	local, domain, email := strings.Cut(account, "@")
	switch {
	case len(account) > 254:
	case email && isName(local, "._+-") && isName(domain, ".-"),
		!email && account != "" && strings.Trim(account, "0123456789") == "":
		return nil
	}
	return errs.Errorf("%w: %s %s: want a service account's email address or unique ID, "+
		"without projects/-/serviceAccounts/", ErrInvalidConfig, field, errs.Quote(account))
}

// isName reports whether s consists of letters, digits and marks, and not of dots
// alone.
func isName(s, marks string) bool {
	dots := 0
	for _, c := range []byte(s) {
		switch {
		case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
		case strings.IndexByte(marks, c) < 0:
			return false
		case c == '.':
			dots++
		}
	}
	return dots < len(s)
}

// iamKeys are the keys that accounts signed with last.
var iamKeys = registry.New[iamSignerID, lastKey]()

type iamSignerID struct {
	service weak.Pointer[iamcredentials.Service]
	account string
}

func (c *IAMConfig) signerID() iamSignerID {
	id := iamSignerID{account: c.ServiceAccount}
	if c.IAMService != nil {
		id.service = weak.Make(c.IAMService)
	}
	return id
}

func (c *IAMConfig) lastKey() *lastKey {
	return iamKeys.Get(c.signerID(), func() *lastKey { return new(lastKey) })
}

// iamCall makes one attempt of a call as an account that is reached through delegates.
type iamCall func(ctx context.Context, accounts *iamcredentials.ProjectsServiceAccountsService,
	account string, delegates []string) error

// callIAM makes a call to the IAM Credentials API, named by its REST method. sent is what must
// not be repeated in an error.
func callIAM(ctx context.Context, config *IAMConfig, name, sent string, call iamCall) error {
	service, err := defaultIAMService.get(ctx, config.IAMService)
	if err != nil {
		return err
	}
	const prefix = "projects/-/serviceAccounts/"
	var delegates []string
	for _, delegate := range config.Delegates {
		delegates = append(delegates, prefix+delegate)
	}
	op := calling{
		verb: name + " as", name: config.ServiceAccount, missing: "ServiceAccount", sent: sent,
		grant: "iam.serviceAccounts." + name + " (roles/iam.serviceAccountTokenCreator) on that account",
	}
	return op.do(ctx, retry.Sign, func(ctx context.Context) error {
		accounts := service.Projects.ServiceAccounts
		return call(ctx, accounts, prefix+config.ServiceAccount, delegates)
	})
}

// isRSASignature tells what may be a signature by a key of 2048, 3072 or 4096
// bits from what isn't. RS256 allows no shorter key (RFC 7518 section 3.3).
func isRSASignature(sig []byte) bool {
	return len(sig) == 2048/8 || len(sig) == 3072/8 || len(sig) == 4096/8
}

func signBlob(ctx context.Context, config *IAMConfig, signingString string) ([]byte, error) {
	kid, sig, err := signBlobAs(ctx, config, signingString)
	if err == nil {
		remember(&config.lastKey().id, kid)
	}
	return sig, err
}

func signBlobAs(
	ctx context.Context, config *IAMConfig, text string,
) (kid string, sig []byte, err error) {
	var response *iamcredentials.SignBlobResponse
	err = callIAM(ctx, config, "signBlob", text, func(ctx context.Context,
		accounts *iamcredentials.ProjectsServiceAccountsService, account string, delegates []string,
	) (err error) {
		response, err = accounts.SignBlob(account, &iamcredentials.SignBlobRequest{
			Delegates: delegates,
			Payload:   base64.StdEncoding.EncodeToString([]byte(text)),
		}).Context(ctx).Do()
		return err
	})
	if err != nil {
		return "", nil, err
	}
	if response == nil { // the server said null
		response = new(iamcredentials.SignBlobResponse)
	}
	sig, err = base64.StdEncoding.DecodeString(response.SignedBlob)
	if err != nil || !isRSASignature(sig) || response.KeyId == "" {
		return "", nil, errs.Errorf("%w: signBlob as %s: no RSA signature or no key ID in it",
			ErrIntegrity, config.ServiceAccount)
	}
	return response.KeyId, sig, nil
}

func signedByBlob(ctx context.Context, config *IAMConfig, d *draft) (string, error) {
	sign := func(text string) (string, []byte, error) { return signBlobAs(ctx, config, text) }
	return signLearningKeyID(d, certificateAlg, config.lastKey(), sign)
}
