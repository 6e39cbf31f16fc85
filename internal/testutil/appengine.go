package testutil

import (
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"google.golang.org/api/googleapi"
	"google.golang.org/protobuf/encoding/protowire"
)

// The one service of the App Engine API that is implemented, and its methods.
const (
	identityService       = "app_identity_service"
	methodSign            = "SignForApp"
	methodCertificates    = "GetPublicCertificatesForApp"
	methodAccount         = "GetServiceAccountName"
	appEngineAccount      = "test-app@appspot.gserviceaccount.com"
	appEngineKeyCacheTime = time.Hour
	appEngineMaxPayload   = 8192
)

// Codes of remote_api.RpcError and of AppIdentityServiceError.
const (
	rpcCallNotFound      = 1
	rpcParseError        = 2
	identityBlobTooLarge = 1000
	identityUnknownError = 1003
)

// appEngineHeader is what the SDK sends with every call. The deadline differs.
var appEngineHeader = map[string]string{
	"Content-Type":                  "application/octet-stream",
	"X-Google-RPC-Service-Endpoint": "app-engine-apis",
	"X-Google-RPC-Service-Method":   "/VMRemoteAPI.CallRemoteAPI",
}

const (
	appEnginePath           = "/rpc_http"
	appEngineDeadlineHeader = "X-Google-RPC-Service-Deadline"
)

// AppEngine is App Engine's API server, of which it implements App Identity.
type AppEngine struct {
	httpServer
	fails failQueue

	// Guarded by httpServer.mu.
	accountKeys
	keys       int // made so far
	cacheTime  time.Duration
	maxPayload int
	faults     map[string]func() error
	responses  map[string]func([]byte) []byte
}

// An AppEngineError is a fault that the API server reports inside a response:
// as an application_error if App is set, as an rpc_error otherwise.
type AppEngineError struct {
	App    bool
	Code   int32
	Detail string
}

func (e *AppEngineError) Error() string {
	return fmt.Sprintf("App Engine error %d: %s", e.Code, e.Detail)
}

// An HTTPError is a fault that the API server answers with an HTTP status.
type HTTPError struct {
	Status int
	Body   string
}

func (e *HTTPError) Error() string {
	return fmt.Sprintf("HTTP status %d: %s", e.Status, e.Body)
}

// NewAppEngine starts a server for an app with one key, which signs.
func NewAppEngine(opts ...Option) (*AppEngine, error) {
	s := &AppEngine{
		cacheTime:  appEngineKeyCacheTime,
		maxPayload: appEngineMaxPayload,
		faults:     make(map[string]func() error),
		responses:  make(map[string]func([]byte) []byte),
	}
	name, err := s.AddKey()
	if err != nil {
		return nil, err
	}
	s.SetSigningKeys(name)
	if err := s.start(opts, s.serve); err != nil {
		return nil, err
	}
	return s, nil
}

// Host returns what API_HOST must be for the SDK to reach the server.
func (s *AppEngine) Host() string { return "127.0.0.1" }

// Port returns what API_PORT must be for the SDK to reach the server. It is
// empty for a server in memory, which only Context reaches.
func (s *AppEngine) Port() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opts.inMemory {
		return ""
	}
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		panic(err)
	}
	return port
}

// ServiceAccount returns the email of the app's service account.
func (s *AppEngine) ServiceAccount() string { return appEngineAccount }

// AddKey makes a further key, published but not signing yet.
func (s *AppEngine) AddKey() (keyName string, err error) {
	s.mu.Lock()
	n := s.keys
	s.keys++
	s.mu.Unlock()
	key, err := newAccountKey(appEngineAccount, n)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = append(s.published, key)
	return key.id, nil
}

// SetSigningKeys makes each signature come from one of those keys, chosen at
// random. It panics if one is unknown.
func (s *AppEngine) SetSigningKeys(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setSigning(names)
}

// RemoveKey makes the app forget a key: it is no longer published, nor does it
// sign. An app that has no signing key left answers UNKNOWN_ERROR.
func (s *AppEngine) RemoveKey(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(name)
}

// KeyNames returns the names of the published keys, in order of creation.
func (s *AppEngine) KeyNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids()
}

// PublicKey returns a published key, or nil.
func (s *AppEngine) PublicKey(name string) *rsa.PublicKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.public(name)
}

// SetMaxCacheTime sets how long clients are told that they may keep the
// certificates, an hour by default. At 0 they are told nothing.
func (s *AppEngine) SetMaxCacheTime(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cacheTime = d
}

// SetMaxPayload sets how many bytes SignForApp takes, 8192 by default: Google
// documents that there is a limit, not what it is.
func (s *AppEngine) SetMaxPayload(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxPayload = n
}

// Fail lets f decide how each call of a method fails: with an *AppEngineError,
// an *HTTPError, any other error (HTTP status 500), or not at all if it
// returns nil. A nil f ends that.
func (s *AppEngine) Fail(method string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[checkMethod(method)] = f
}

// InterceptResponse lets f alter the encoded response of a method, SignForApp's
// say, before it is wrapped into the one of the API server. A nil f ends that.
func (s *AppEngine) InterceptResponse(method string, f func(response []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.responses[checkMethod(method)] = f
}

func checkMethod(method string) string {
	switch method {
	case methodSign, methodCertificates, methodAccount:
		return method
	}
	panic(fmt.Sprintf("testutil: no method %q", method))
}

func (s *AppEngine) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	request, invalid := parseRequest(body)
	defer s.leave(request.method)
	if !s.arrive(r.Context(), request.method) {
		return
	}
	if err := checkTransport(r); err != nil {
		writeAppEngine(w, nil, err)
		return
	}
	if invalid != nil {
		writeAppEngine(w, nil, invalid)
		return
	}
	response, err := s.call(request)
	writeAppEngine(w, response, err)
}

// checkTransport refuses HTTP requests that the SDK doesn't make.
func checkTransport(r *http.Request) error {
	if r.URL.Path != appEnginePath {
		return &HTTPError{http.StatusNotFound, "not found"}
	}
	if r.Method != http.MethodPost {
		return &HTTPError{http.StatusMethodNotAllowed, "only POST is allowed"}
	}
	for name, want := range appEngineHeader {
		if got := r.Header.Get(name); got != want {
			return &HTTPError{http.StatusBadRequest, fmt.Sprintf("header %s is %q, not %q", name, got, want)}
		}
	}
	deadline := r.Header.Get(appEngineDeadlineHeader)
	if _, err := strconv.ParseFloat(deadline, 64); err != nil {
		return &HTTPError{http.StatusBadRequest, fmt.Sprintf("header %s is %q, not seconds", appEngineDeadlineHeader, deadline)}
	}
	return nil
}

// An appEngineRequest is a remote_api.Request. Its request ID, the ticket of
// an incoming request, isn't looked at: calls without one are allowed.
type appEngineRequest struct {
	service, method string
	request         []byte
}

func parseRequest(body []byte) (appEngineRequest, error) {
	fields, err := parseBytesFields(body, 2, 3, 4, 5)
	if err != nil {
		return appEngineRequest{}, err
	}
	for _, required := range []protowire.Number{2, 3, 4} {
		if _, ok := fields[required]; !ok {
			return appEngineRequest{}, &AppEngineError{Code: rpcParseError, Detail: fmt.Sprintf("field %d is missing", required)}
		}
	}
	return appEngineRequest{string(fields[2]), string(fields[3]), fields[4]}, nil
}

// parseBytesFields decodes a message whose fields are strings, bytes or
// messages, and refuses fields other than those known.
func parseBytesFields(message []byte, known ...protowire.Number) (map[protowire.Number][]byte, error) {
	fields := make(map[protowire.Number][]byte)
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, &AppEngineError{Code: rpcParseError, Detail: protowire.ParseError(n).Error()}
		}
		if kind != protowire.BytesType || !slices.Contains(known, number) {
			return nil, &AppEngineError{Code: rpcParseError, Detail: fmt.Sprintf("unknown field %d of type %d", number, kind)}
		}
		message = message[n:]
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return nil, &AppEngineError{Code: rpcParseError, Detail: protowire.ParseError(n).Error()}
		}
		message = message[n:]
		fields[number] = value
	}
	return fields, nil
}

func (s *AppEngine) call(r appEngineRequest) ([]byte, error) {
	handlers := map[string]func([]byte) ([]byte, error){
		methodSign:         s.signForApp,
		methodCertificates: s.publicCertificates,
		methodAccount:      s.serviceAccountName,
	}
	handler := handlers[r.method]
	if r.service != identityService || handler == nil {
		return nil, &AppEngineError{
			Code:   rpcCallNotFound,
			Detail: fmt.Sprintf("The API package '%s' or call '%s()' was not found.", r.service, r.method),
		}
	}
	if answer, fails := errors.AsType[*googleapi.Error](s.fails.take(r.method)); fails {
		return nil, &HTTPError{answer.Code, answer.Message}
	}
	s.mu.Lock()
	fault, intercept := s.faults[r.method], s.responses[r.method]
	s.mu.Unlock()
	if fault != nil {
		if err := fault(); err != nil {
			return nil, err
		}
	}
	response, err := handler(r.request)
	if err == nil && intercept != nil {
		response = intercept(response)
	}
	return response, err
}

func (s *AppEngine) signForApp(request []byte) ([]byte, error) {
	fields, err := parseBytesFields(request, 1)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	key, limit := s.pick(), s.maxPayload
	s.mu.Unlock()
	if len(fields[1]) > limit {
		return nil, &AppEngineError{App: true, Code: identityBlobTooLarge}
	}
	if key == nil {
		return nil, &AppEngineError{App: true, Code: identityUnknownError, Detail: "no key signs"}
	}
	signature, err := key.sign(fields[1])
	if err != nil {
		return nil, err
	}
	response := appendBytesField(nil, 1, []byte(key.id))
	return appendBytesField(response, 2, signature), nil
}

func (s *AppEngine) publicCertificates(request []byte) ([]byte, error) {
	if _, err := parseBytesFields(request); err != nil {
		return nil, err
	}
	s.mu.Lock()
	keys, cacheTime := slices.Clone(s.published), s.cacheTime
	s.mu.Unlock()
	var response []byte
	for _, key := range keys {
		certificate := appendBytesField(nil, 1, []byte(key.id))
		certificate = appendBytesField(certificate, 2, []byte(key.certificate))
		response = appendBytesField(response, 1, certificate)
	}
	if cacheTime != 0 {
		response = appendVarintField(response, 2, uint64(cacheTime/time.Second))
	}
	return response, nil
}

func (s *AppEngine) serviceAccountName(request []byte) ([]byte, error) {
	if _, err := parseBytesFields(request); err != nil {
		return nil, err
	}
	return appendBytesField(nil, 1, []byte(appEngineAccount)), nil
}

// writeAppEngine sends a remote_api.Response, or a plain HTTP error.
func writeAppEngine(w http.ResponseWriter, response []byte, err error) {
	if fault, ok := errors.AsType[*AppEngineError](err); ok {
		// Both kinds of error have a code and a detail under these numbers.
		detail := appendVarintField(nil, 1, uint64(int64(fault.Code)))
		detail = appendBytesField(detail, 2, []byte(fault.Detail))
		number := protowire.Number(5)
		if fault.App {
			number = 3
		}
		response = appendBytesField(nil, number, detail)
	} else if fault, ok := errors.AsType[*HTTPError](err); ok {
		w.WriteHeader(fault.Status)
		_, _ = io.WriteString(w, fault.Body)
		return
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	} else {
		response = appendBytesField(nil, 1, response)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(response)
}

func appendBytesField(b []byte, number protowire.Number, value []byte) []byte {
	b = protowire.AppendTag(b, number, protowire.BytesType)
	return protowire.AppendBytes(b, value)
}

func appendVarintField(b []byte, number protowire.Number, value uint64) []byte {
	b = protowire.AppendTag(b, number, protowire.VarintType)
	return protowire.AppendVarint(b, value)
}
