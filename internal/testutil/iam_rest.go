package testutil

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	accountPrefix  = "v1/projects/-/serviceAccounts/"
	robotPath      = "robot/v1/metadata/x509/"
	x509Path       = "service_accounts/v1/metadata/x509/"
	jwkPath        = "service_accounts/v1/jwk/"
	delegatePrefix = "projects/-/serviceAccounts/"
	maxJWTLifetime = 12 * time.Hour
)

// A googleError is an error as Google's REST APIs send it.
type googleError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Status  string `json:"status"`

	Details []json.RawMessage `json:"details,omitempty"`
}

func restInvalid(format string, args ...any) *googleError {
	return &googleError{Code: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), Status: "INVALID_ARGUMENT"}
}

func restNotFound(format string, args ...any) *googleError {
	return &googleError{Code: http.StatusNotFound, Message: fmt.Sprintf(format, args...), Status: "NOT_FOUND"}
}

func restInternal(message string) *googleError {
	return &googleError{Code: http.StatusInternalServerError, Message: message, Status: "INTERNAL"}
}

// restDenied is what Google answers for an account that doesn't exist,
// too.
func restDenied(permission string) *googleError {
	message := fmt.Sprintf("Permission '%s' denied on resource (or it may not exist).", permission)
	return &googleError{Code: http.StatusForbidden, Message: message, Status: "PERMISSION_DENIED"}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

func writeError(w http.ResponseWriter, err *googleError) {
	writeJSON(w, err.Code, map[string]*googleError{"error": err})
}

// An iamCall is a request's path, taken apart.
type iamCall struct {
	what    string // signJwt, signBlob, certificates, jwk or nothing of these
	account string
}

// parsePath accepts the paths of this server. Escaped slashes don't separate.
func parsePath(u *url.URL) (iamCall, *googleError) {
	path := strings.TrimPrefix(u.EscapedPath(), "/")
	for prefix, what := range map[string]string{robotPath: callCertificates, x509Path: callCertificates, jwkPath: callJWK} {
		if name, ok := strings.CutPrefix(path, prefix); ok {
			return newIAMCall(what, name)
		}
	}
	resource, method, _ := cutLast(path, ":")
	if method != callSignJWT && method != callSignBlob {
		return iamCall{}, restNotFound("Method not found.")
	}
	name, ok := strings.CutPrefix(resource, accountPrefix)
	if !ok {
		return iamCall{what: method}, restInvalid("Invalid resource name %s; it must be %s{ACCOUNT_EMAIL_OR_UNIQUEID}.",
			strings.TrimPrefix(resource, "v1/"), delegatePrefix)
	}
	return newIAMCall(method, name)
}

func newIAMCall(what, escaped string) (iamCall, *googleError) {
	name, err := url.PathUnescape(escaped)
	if err != nil || strings.Contains(escaped, "/") {
		return iamCall{what: what}, restNotFound("The requested URL was not found on this server.")
	}
	return iamCall{what, name}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func (s *IAM) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	call, invalid := parsePath(r.URL)
	s.mu.Lock()
	s.headers[call.what] = r.Header.Clone()
	s.mu.Unlock()
	defer s.leave(call.what)
	if !s.arrive(r.Context(), call.what) {
		return
	}
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fault := s.fails.take(call.what)
		switch {
		case fault != nil:
			writeAnswer(w, fault)
		case invalid != nil:
			writeError(w, invalid)
		case call.what == callCertificates || call.what == callJWK:
			s.serveKeys(w, r, call)
		default:
			s.serveSign(w, r, call)
		}
	})
	r.Body = io.NopCloser(bytes.NewReader(body))

	s.mu.Lock()
	intercept := s.intercept
	s.mu.Unlock()
	if intercept != nil {
		intercept(w, r, next)
		return
	}
	next(w, r)
}

// A keyAnswer is an answer of an endpoint for public keys.
type keyAnswer struct {
	header http.Header
	keys   any
	at     time.Time
}

// serveKeys answers a request for an account's public keys.
func (s *IAM) serveKeys(w http.ResponseWriter, r *http.Request, call iamCall) {
	if r.Method != http.MethodGet {
		writeError(w, restNotFound("The requested URL was not found on this server."))
		return
	}
	s.mu.Lock()
	account, held := s.accounts[call.account], s.held[call]
	var answer keyAnswer
	if account != nil {
		answer = account.keyAnswer(call.what, s.caching)
	}
	if account != nil && s.holding {
		if held == nil || wantsFresh(r.Header) {
			s.held[call] = &answer
		} else {
			answer = *held
			answer.header = held.header.Clone()
			answer.header.Set("Age", strconv.Itoa(int(time.Since(held.at)/time.Second)))
		}
	}
	s.mu.Unlock()
	if account == nil {
		writeError(w, restNotFound("Not found; Gaia id not found for email %s", call.account))
		return
	}

	maps.Copy(w.Header(), answer.header)
	etag := w.Header().Get("ETag")
	if etag != "" && r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	writeJSON(w, http.StatusOK, answer.keys)
}

// keyAnswer returns the account's keys in the form of a call. The server's mu
// is held.
func (a *account) keyAnswer(what string, caching http.Header) keyAnswer {
	answer := keyAnswer{header: make(http.Header), at: time.Now()}
	certificates := make(map[string]string)
	for _, key := range a.published {
		certificates[key.id] = key.certificate
	}
	answer.keys = certificates
	if what == callJWK {
		answer.keys = a.jwkSet()
	}
	if len(caching) > 0 {
		hash := sha256.New()
		for _, kid := range slices.Sorted(maps.Keys(certificates)) {
			_, _ = io.WriteString(hash, certificates[kid])
		}
		answer.header.Set("ETag", fmt.Sprintf(`"%x"`, hash.Sum(nil)[:16]))
	}
	for name, values := range caching {
		answer.header[http.CanonicalHeaderKey(name)] = values
	}
	return answer
}

// jwkSet returns a JWK Set (RFC 7517) of the published keys.
func (a *account) jwkSet() map[string]any {
	keys := []map[string]string{} // [] in JSON, not null, if there are none
	for _, key := range a.published {
		keys = append(keys, map[string]string{
			"kty": "RSA",
			"alg": "RS256",
			"use": "sig",
			"kid": key.id,
			"n":   base64.RawURLEncoding.EncodeToString(key.private.N.Bytes()),
			"e":   base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.private.E)).Bytes()),
		})
	}
	return map[string]any{"keys": keys}
}

// wantsFresh reports whether a request doesn't take what a cache has kept (RFC
// 9111, sections 5.2.1 and 5.4).
func wantsFresh(header http.Header) bool {
	if len(header.Values("Cache-Control")) == 0 {
		return strings.Contains(header.Get("Pragma"), "no-cache")
	}
	for directive := range strings.SplitSeq(strings.Join(header.Values("Cache-Control"), ","), ",") {
		switch strings.ToLower(strings.TrimSpace(directive)) {
		case "no-cache", "no-store", "max-age=0":
			return true
		}
	}
	return false
}

func (s *IAM) serveSign(w http.ResponseWriter, r *http.Request, call iamCall) {
	answer, err := s.sign(r, call)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// sign answers signJwt and signBlob.
func (s *IAM) sign(r *http.Request, call iamCall) (answer map[string]string, err *googleError) {
	if r.Method != http.MethodPost {
		return nil, restNotFound("The requested URL was not found on this server.")
	}
	request, err := parseSignRequest(r)
	if err != nil {
		return nil, err
	}

	permission := permissionPrefix + call.what
	var key *accountKey
	s.mu.Lock()
	account := s.accounts[call.account]
	allowed := account != nil && !s.denied[permission] &&
		(len(account.delegates) == 0 || slices.Equal(account.delegates, request.delegates))
	if allowed {
		key = account.pick()
	}
	addExp := s.addExp
	s.mu.Unlock()
	if !allowed {
		return nil, restDenied(permission)
	}
	if key == nil {
		return nil, restInternal("Internal error encountered.")
	}

	if call.what == callSignBlob {
		return signBlob(key, request.payload)
	}
	return signJWT(key, request.payload, addExp)
}

type signRequest struct {
	delegates []string // without their prefix
	payload   string
}

// parseSignRequest reads what signJwt and signBlob have in common. It is as
// strict about JSON as Google's front end.
func parseSignRequest(r *http.Request) (*signRequest, *googleError) {
	for name, values := range r.URL.Query() {
		value := strings.Join(values, ",")
		if !(name == "alt" && value == "json") && name != "prettyPrint" {
			return nil, restInvalid("Invalid JSON payload received. Unknown name %q: Cannot bind query parameter.", name)
		}
	}
	if t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); t != "application/json" {
		return nil, restInvalid("Unsupported content type %q.", t)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, restInvalid("Invalid JSON payload received. %v", err)
	}
	var fields map[string]json.RawMessage
	if !utf8.Valid(body) {
		return nil, restInvalid("Invalid JSON payload received. It is not UTF-8.")
	}
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, restInvalid("Invalid JSON payload received. %v", err)
	}

	request := new(signRequest)
	for name, value := range fields {
		var err error
		switch name {
		case "payload":
			err = json.Unmarshal(value, &request.payload)
		case "delegates":
			err = json.Unmarshal(value, &request.delegates)
		default:
			return nil, restInvalid("Invalid JSON payload received. Unknown name %q: Cannot find field.", name)
		}
		if err != nil {
			return nil, restInvalid("Invalid value at '%s', %s", name, value)
		}
	}
	if request.payload == "" {
		return nil, restInvalid("The payload is required.")
	}
	for i, delegate := range request.delegates {
		name, ok := strings.CutPrefix(delegate, delegatePrefix)
		if !ok || name == "" || strings.Contains(name, "/") {
			return nil, restInvalid("Invalid delegate %q; it must be %s{ACCOUNT_EMAIL_OR_UNIQUEID}.", delegate, delegatePrefix)
		}
		request.delegates[i] = name
	}
	return request, nil
}

func signBlob(key *accountKey, payload string) (map[string]string, *googleError) {
	blob, err := base64.StdEncoding.Strict().DecodeString(payload)
	if err != nil {
		return nil, restInvalid("Invalid value at 'payload' (TYPE_BYTES), Base64 decoding failed for %q", payload)
	}
	signature, err := key.sign(blob)
	if err != nil {
		return nil, restInternal(err.Error())
	}
	return map[string]string{
		"keyId":      key.id,
		"signedBlob": base64.StdEncoding.EncodeToString(signature),
	}, nil
}

func signJWT(key *accountKey, payload string, addExp bool) (map[string]string, *googleError) {
	payload, invalid := checkClaims(payload, addExp)
	if invalid != nil {
		return nil, invalid
	}
	header := fmt.Sprintf(`{"alg":"RS256","kid":"%s","typ":"JWT"}`, key.id)
	signing := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(payload))
	signature, err := key.sign([]byte(signing))
	if err != nil {
		return nil, restInternal(err.Error())
	}
	return map[string]string{
		"keyId":     key.id,
		"signedJwt": signing + "." + base64.RawURLEncoding.EncodeToString(signature),
	}, nil
}

// checkClaims returns the payload to sign, byte for byte as it was sent unless
// an exp is added.
func checkClaims(payload string, addExp bool) (string, *googleError) {
	var claims map[string]json.RawMessage
	if err := json.Unmarshal([]byte(payload), &claims); err != nil || claims == nil {
		return "", restInvalid("The payload must be a JSON object that holds a JWT Claims Set.")
	}
	now := time.Now()
	raw, ok := claims["exp"]
	if !ok {
		if !addExp {
			return payload, nil
		}
		separator := ","
		if len(claims) == 0 {
			separator = ""
		}
		open := payload[:strings.LastIndexByte(payload, '}')]
		return fmt.Sprintf(`%s%s"exp":%d}`, open, separator, now.Add(time.Hour).Unix()), nil
	}
	exp, err := strconv.ParseInt(string(raw), 10, 64)
	switch {
	case err != nil:
		return "", restInvalid("The exp claim must be an integer timestamp.")
	case exp < now.Unix():
		return "", restInvalid("The exp claim must not be in the past.")
	case exp > now.Add(maxJWTLifetime).Unix():
		return "", restInvalid("The exp claim must be no more than 12 hours in the future.")
	}
	return payload, nil
}
