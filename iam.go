package gcpjwt

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"weak"

	"github.com/golang-jwt/jwt/v5"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iamcredentials/v1"
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

	// EnableCache keeps the account's certificates between verifications. If
	// it is false, each verification fetches them.
	EnableCache bool

	// CacheExpiration is how long certificates are kept whose response states
	// no lifetime; if it is 0, those aren't kept. Google's responses do state
	// one. Whatever is stated, certificates are kept for at most 24 hours.
	CacheExpiration time.Duration

	// StaleIfError is how long past their expiry certificates may serve while
	// the endpoint is down. 0 means one hour, a negative value not at all.
	StaleIfError time.Duration

	// IAMService (of google.golang.org/api/iamcredentials/v1) makes the calls.
	// If it is nil, one default service, which takes Application Default Credentials, is made on first use and kept for
	// the process.
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
	// background refresh. If it is nil, they aren't logged.
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
	callSigned func(ctx context.Context, config *IAMConfig, token *jwt.Token) (string, error)
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
	callSigned func(context.Context, *IAMConfig, *jwt.Token) (string, error),
) *SigningMethodIAM {
	return &SigningMethodIAM{
		method:     method{alias: alias, alg: certificateAlg, verifier: jwt.SigningMethodRS256},
		call:       call,
		callSigned: callSigned,
	}
}

// Sign has Google sign signingString as the service account and returns the
// RSASSA-PKCS1-v1_5 signature. key is a context that carries an [IAMConfig], whose
// end ends the call.
//
// Which of the account's keys signs is Google's choice, and known only
// afterwards; [SignedString] gets the kid right nevertheless.
func (m *SigningMethodIAM) Sign(signingString string, key any) ([]byte, error) {
	ctx, err := signingContext(key)
	if err != nil {
		return nil, err
	}
	config, err := iamConfig(ctx)
	if err != nil {
		return nil, err
	}
	return m.call(ctx, config, signingString)
}

func (m *SigningMethodIAM) signedString(ctx context.Context, token *jwt.Token) (string, error) {
	config, err := iamConfig(ctx)
	if err != nil {
		return "", err
	}
	setAlg(token, m.alg)
	return m.callSigned(ctx, config, token)
}

func iamConfig(ctx context.Context) (*IAMConfig, error) {
	config, ok := IAMFromContext(ctx)
	if !ok {
		return nil, fmt.Errorf("%w: the context carries no *IAMConfig: make it with NewIAMContext", ErrMissingConfig)
	}
	if err := checkAccount("ServiceAccount", config.ServiceAccount); err != nil {
		return nil, err
	}
	for _, delegate := range config.Delegates {
		if err := checkAccount("Delegates", delegate); err != nil {
			return nil, err
		}
	}
	return config, nil
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
	return fmt.Errorf("%w: %s %s: want a service account's email address or unique ID, without projects/-/serviceAccounts/", ErrInvalidConfig, field, quote(account))
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

// iamKeyIDs are the key IDs that accounts signed with last.
var iamKeyIDs = newRegistry[iamSignerID, atomic.Pointer[string]]()

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

func (c *IAMConfig) lastKeyID() *atomic.Pointer[string] {
	return iamKeyIDs.get(c.signerID(), func() *atomic.Pointer[string] { return new(atomic.Pointer[string]) })
}

// iamTimeout bounds a call, with all its attempts, where the caller sets no deadline.
const iamTimeout = time.Minute

// iamRetryable are answers that say nothing about the request (AIP-194).
var iamRetryable = []int{
	http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

// callIAM makes a call to the IAM Credentials API, named by its REST method, and
// repeats it while the answer is one of iamRetryable, which the client doesn't do by
// itself. sent is what must not be repeated in an error.
func callIAM(ctx context.Context, config *IAMConfig, name string, call func(ctx context.Context, service *iamcredentials.Service, account string, delegates []string) error, sent ...string) error {
	service, err := defaultIAMService.get(ctx, config.IAMService)
	if err != nil {
		return err
	}
	const prefix = "projects/-/serviceAccounts/"
	var delegates []string
	for _, delegate := range config.Delegates {
		delegates = append(delegates, prefix+delegate)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, iamTimeout)
		defer cancel()
	}
	backoff := gax.Backoff{Initial: 100 * time.Millisecond, Max: 10 * time.Second, Multiplier: 2}
	for {
		if err = call(ctx, service, prefix+config.ServiceAccount, delegates); err == nil {
			return nil
		}
		var answer *googleapi.Error
		if !errors.As(err, &answer) || !slices.Contains(iamRetryable, answer.Code) || gax.Sleep(ctx, backoff.Pause()) != nil {
			break
		}
	}
	err = foreign(ctx, err, sent...)
	var answer *googleapi.Error
	if errors.As(err, &answer) && answer.Code == http.StatusForbidden {
		return fmt.Errorf("gcpjwt: %s as %s: grant the caller iam.serviceAccounts.%s (roles/iam.serviceAccountTokenCreator) on that account: %w", name, config.ServiceAccount, name, err)
	}
	return fmt.Errorf("gcpjwt: %s as %s: %w", name, config.ServiceAccount, err)
}

// isRSASignature tells what may be a signature by a key of 2048, 3072 or 4096
// bits from what isn't. RS256 allows no shorter key (RFC 7518 section 3.3).
func isRSASignature(sig []byte) bool {
	return len(sig) == 2048/8 || len(sig) == 3072/8 || len(sig) == 4096/8
}

func signBlob(ctx context.Context, config *IAMConfig, signingString string) ([]byte, error) {
	kid, sig, err := signBlobAs(ctx, config, signingString)
	if err == nil {
		remember(config.lastKeyID(), kid)
	}
	return sig, err
}

func signBlobAs(ctx context.Context, config *IAMConfig, signingString string) (kid string, sig []byte, err error) {
	request := &iamcredentials.SignBlobRequest{Payload: base64.StdEncoding.EncodeToString([]byte(signingString))}
	var response *iamcredentials.SignBlobResponse
	err = callIAM(ctx, config, "signBlob", func(ctx context.Context, service *iamcredentials.Service, account string, delegates []string) (err error) {
		request.Delegates = delegates
		response, err = service.Projects.ServiceAccounts.SignBlob(account, request).Context(ctx).Do()
		return err
	}, request.Payload, signingString)
	if err != nil {
		return "", nil, err
	}
	if response == nil { // the server said null
		response = new(iamcredentials.SignBlobResponse)
	}
	sig, err = base64.StdEncoding.DecodeString(response.SignedBlob)
	if err != nil || !isRSASignature(sig) || response.KeyId == "" {
		return "", nil, fmt.Errorf("%w: signBlob as %s: no RSA signature or no key ID in it", ErrIntegrity, config.ServiceAccount)
	}
	return response.KeyId, sig, nil
}

func signedByBlob(ctx context.Context, config *IAMConfig, token *jwt.Token) (string, error) {
	return signLearningKeyID(token, certificateAlg, config.lastKeyID(), func(signingString string) (string, []byte, error) {
		return signBlobAs(ctx, config, signingString)
	})
}

func signJWT(ctx context.Context, config *IAMConfig, signingString string) ([]byte, error) {
	_, encoded, _ := strings.Cut(signingString, ".")
	payload, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("gcpjwt: signJwt needs a signing string of base64url parts: %w", jwt.ErrTokenMalformed)
	}
	if err := checkExpiry(nil, payload, time.Now()); err != nil {
		return nil, err
	}
	signed, err := signPayload(ctx, config, payload)
	if err != nil {
		return nil, err
	}
	if signed.signingString != signingString {
		return nil, fmt.Errorf("%w than the one given to Sign: use SignedString, which returns the token that Google made", ErrSigningStringChanged)
	}
	return signed.signature, nil
}

func signedByJWT(ctx context.Context, config *IAMConfig, token *jwt.Token) (string, error) {
	for field, value := range token.Header {
		if field != "alg" && field != "kid" && (field != "typ" || value != "JWT") {
			return "", fmt.Errorf("%w than asked for: the header is Google's and cannot carry %s: remove it, or use SigningMethodIAMBlob", ErrSigningStringChanged, quote(field))
		}
	}
	payload, err := json.Marshal(token.Claims)
	if err != nil {
		return "", err
	}
	if err := checkExpiry(token.Claims, payload, time.Now()); err != nil {
		return "", err
	}
	signed, err := signPayload(ctx, config, payload)
	if err != nil {
		return "", err
	}
	if !sameClaims(payload, signed.payload) {
		return "", fmt.Errorf("%w: the claims in Google's token are not those of the caller", ErrSigningStringChanged)
	}
	token.Header, token.Signature = signed.header, signed.signature
	headerOf(certificateAlg, signed.kid) // is issued now
	return signed.raw, nil
}

// signedJWT is a token that signJwt made.
type signedJWT struct {
	raw           string
	signingString string
	header        map[string]any
	kid           string
	payload       []byte
	signature     []byte
}

func signPayload(ctx context.Context, config *IAMConfig, payload []byte) (signed signedJWT, err error) {
	request := &iamcredentials.SignJwtRequest{Payload: string(payload)}
	var response *iamcredentials.SignJwtResponse
	err = callIAM(ctx, config, "signJwt", func(ctx context.Context, service *iamcredentials.Service, account string, delegates []string) (err error) {
		request.Delegates = delegates
		response, err = service.Projects.ServiceAccounts.SignJwt(account, request).Context(ctx).Do()
		return err
	}, request.Payload)
	if err != nil {
		return signed, err
	}
	if response == nil { // the server said null
		response = new(iamcredentials.SignJwtResponse)
	}
	signed, err = parseSignedJWT(response.SignedJwt, response.KeyId)
	if err != nil || signed.header["alg"] != certificateAlg || signed.header["kid"] != response.KeyId {
		return signed, fmt.Errorf("%w: signJwt as %s: no RS256 token by the key that it names", ErrIntegrity, config.ServiceAccount)
	}
	remember(config.lastKeyID(), response.KeyId)
	return signed, nil
}

// parseSignedJWT reads a token that is said to be by the key of ID kid.
func parseSignedJWT(raw, kid string) (signed signedJWT, err error) {
	header, rest, _ := strings.Cut(raw, ".")
	payload, signature, ok := strings.Cut(rest, ".")
	if !ok || kid == "" {
		return signed, jwt.ErrTokenMalformed
	}
	signed = signedJWT{raw: raw, kid: kid, signingString: raw[:len(header)+1+len(payload)]}
	if known, ok := issuedHeaders.peek(kid); ok && known.segment == header {
		signed.header = maps.Clone(known.fields)
	} else if decoded, err := base64.RawURLEncoding.DecodeString(header); err != nil {
		return signed, err
	} else if err := json.Unmarshal(decoded, &signed.header); err != nil {
		return signed, err
	}
	if signed.payload, err = base64.RawURLEncoding.DecodeString(payload); err != nil {
		return signed, err
	}
	signed.signature, err = base64.RawURLEncoding.DecodeString(signature)
	if err == nil && !isRSASignature(signed.signature) {
		err = jwt.ErrTokenMalformed
	}
	return signed, err
}

// signJwt's limit on how far exp may be ahead.
const maxExpiry = 12 * time.Hour

// checkExpiry refuses what signJwt would refuse, with the reason. claims are nil if
// payload is all that is known of them.
func checkExpiry(claims jwt.Claims, payload []byte, now time.Time) error {
	if !bytes.HasPrefix(bytes.TrimSpace(payload), []byte("{")) { // null, of a nil map or pointer, would pass otherwise
		return fmt.Errorf("gcpjwt: signJwt needs a JSON object as claims: %w", jwt.ErrTokenInvalidClaims)
	}
	text, err := expiryOf(claims, payload)
	if err != nil {
		return fmt.Errorf("gcpjwt: signJwt needs a JSON object as claims: %w", err)
	}
	if text == nil {
		return nil
	}
	exp, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil:
		return fmt.Errorf("gcpjwt: signJwt needs an integer as exp: %w", jwt.ErrInvalidType)
	case exp > now.Add(maxExpiry).Unix():
		return fmt.Errorf("gcpjwt: signJwt refuses an exp more than 12 hours ahead: %w", jwt.ErrTokenInvalidClaims)
	case exp < now.Unix():
		return fmt.Errorf("gcpjwt: signJwt refuses an exp in the past: %w", jwt.ErrTokenExpired)
	}
	return nil
}

// expiryOf returns exp as it stands in payload, which is what claims are in JSON; nil
// if it doesn't. Of claims of jwt's own types it is known without reading all of
// payload again. Of others GetExpirationTime may say something else.
func expiryOf(claims jwt.Claims, payload []byte) ([]byte, error) {
	switch claims := claims.(type) {
	case jwt.MapClaims:
		if exp, ok := claims["exp"]; ok {
			return json.Marshal(exp)
		}
		return nil, nil
	case jwt.RegisteredClaims:
		if claims.ExpiresAt != nil {
			return claims.ExpiresAt.MarshalJSON()
		}
		return nil, nil
	}
	var fields map[string]json.RawMessage // a struct's field would match EXP too
	err := json.Unmarshal(payload, &fields)
	return fields["exp"], err
}

// sameClaims reports whether got holds the claims of want, and nothing else but
// an exp that Google may add where there is none.
func sameClaims(want, got []byte) bool {
	if bytes.Equal(want, got) {
		return true
	}
	var claims [2]map[string]any
	for i, data := range [][]byte{want, got} {
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.UseNumber()
		if decoder.Decode(&claims[i]) != nil {
			return false
		}
	}
	if _, ok := claims[0]["exp"]; !ok {
		delete(claims[1], "exp")
	}
	return maps.EqualFunc(claims[0], claims[1], func(a, b any) bool { return reflect.DeepEqual(a, b) })
}
