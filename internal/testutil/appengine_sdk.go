package testutil

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/appengine/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// Context returns a context under which the SDK's calls reach the server
// whatever API_HOST and API_PORT say, so that tests can run in parallel, and
// over net.Pipe, so that they can run in a bubble of testing/synctest with an
// InMemory server.
//
// It behaves like the SDK, oddities included: the end of a context that has no
// deadline doesn't end a call. Errors have the texts of the SDK's and tell
// appengine.IsTimeoutError the same, but appengine.IsOverQuota knows only the
// SDK's own.
func (s *AppEngine) Context(ctx context.Context) context.Context {
	return appengine.WithAPICallFunc(ctx, s.apiCall)
}

// apiCall follows Call of the SDK's internal package.
func (s *AppEngine) apiCall(ctx context.Context, service, method string, in, out protoadapt.MessageV1) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	timeout := time.Minute
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	message, err := proto.Marshal(protoadapt.MessageV2Of(in))
	if err != nil {
		return err
	}
	request := appendBytesField(nil, 2, []byte(service))
	request = appendBytesField(request, 3, []byte(method))
	request = appendBytesField(request, 4, message)
	request = appendBytesField(request, 5, nil)
	response, err := s.post(request, timeout)
	if err != nil {
		return err
	}
	message, err = parseResponse(service, response)
	if err != nil {
		return err
	}
	return proto.Unmarshal(message, protoadapt.MessageV2Of(out))
}

func (s *AppEngine) post(request []byte, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+appEnginePath, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	for name, value := range appEngineHeader {
		r.Header.Set(name, value)
	}
	r.Header.Set(appEngineDeadlineHeader, strconv.FormatFloat(timeout.Seconds(), 'f', -1, 64))

	body, err := roundTrip(s.piped, r)
	if ctx.Err() != nil {
		return nil, &callError{detail: "Deadline exceeded", code: rpcCancelled, timeout: true}
	}
	return body, err
}

func roundTrip(client *http.Client, r *http.Request) ([]byte, error) {
	response, err := client.Do(r)
	if err != nil {
		return nil, &callError{detail: fmt.Sprintf("service bridge HTTP failed: %v", err)}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return nil, &callError{detail: fmt.Sprintf("service bridge returned HTTP %d (%q)", response.StatusCode, body)}
	}
	if err != nil {
		return nil, &callError{detail: fmt.Sprintf("service bridge response bad: %v", err)}
	}
	return body, nil
}

// parseResponse takes the service's response out of a remote_api.Response.
func parseResponse(service string, message []byte) ([]byte, error) {
	fields, err := parseBytesFields(message, 1, 3, 5)
	if err != nil {
		return nil, err
	}
	if rpc, ok := fields[5]; ok {
		code, detail := parseFault(rpc)
		timeout := code == rpcCancelled || code == rpcDeadlineExceeded
		return nil, &callError{detail, code, timeout}
	}
	if app, ok := fields[3]; ok {
		code, detail := parseFault(app)
		return nil, &apiError{service, detail, code}
	}
	return fields[1], nil
}

// parseFault reads what writeAppEngine has made of an AppEngineError.
func parseFault(message []byte) (code int32, detail string) {
	_, _, n := protowire.ConsumeTag(message)
	value, m := protowire.ConsumeVarint(message[n:])
	_, _, k := protowire.ConsumeTag(message[n+m:])
	text, _ := protowire.ConsumeString(message[n+m+k:])
	return int32(value), text
}

// Codes of remote_api.RpcError that the SDK has texts for.
const (
	rpcOverQuota          = 4
	rpcCapabilityDisabled = 6
	rpcCancelled          = 10
	rpcDeadlineExceeded   = 12
)

// A callError stands for the SDK's internal.CallError.
type callError struct {
	detail  string
	code    int32
	timeout bool
}

func (e *callError) IsTimeout() bool { return e.timeout }

func (e *callError) Error() string {
	var message string
	switch e.code {
	case 0:
		return e.detail
	case rpcOverQuota:
		message = "Over quota"
	case rpcCapabilityDisabled:
		message = "Capability disabled"
	case rpcCancelled:
		message = "Canceled"
	default:
		message = fmt.Sprintf("Call error %d", e.code)
	}
	message += ": " + e.detail
	if e.timeout {
		message += " (timeout)"
	}
	return message
}

// An apiError stands for the SDK's internal.APIError.
type apiError struct {
	service, detail string
	code            int32
}

func (e *apiError) IsTimeout() bool { return false }

// identityErrors are the names of AppIdentityServiceError's codes.
var identityErrors = map[int32]string{
	0:                    "SUCCESS",
	9:                    "UNKNOWN_SCOPE",
	identityBlobTooLarge: "BLOB_TOO_LARGE",
	1001:                 "DEADLINE_EXCEEDED",
	1002:                 "NOT_A_VALID_APP",
	identityUnknownError: "UNKNOWN_ERROR",
	1005:                 "NOT_ALLOWED",
	1006:                 "NOT_IMPLEMENTED",
}

func (e *apiError) Error() string {
	if e.code == 0 {
		if e.detail == "" {
			return "APIError <empty>"
		}
		return e.detail
	}
	message := fmt.Sprintf("API error %d (%s: %s)", e.code, e.service, identityErrors[e.code])
	if e.detail != "" {
		message += ": " + e.detail
	}
	return message
}
