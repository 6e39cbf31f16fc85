package testutil

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/status"
)

// A failQueue holds the errors with which the next calls fail.
type failQueue struct {
	mu   sync.Mutex
	next map[string][]error // by method
}

// put adds an error, if it is one that a call of the method can fail with.
func (q *failQueue) put(methods []string, method string, err error, can bool) error {
	switch {
	case !slices.Contains(methods, method):
		return fmt.Errorf("testutil: no method %q; there are %q", method, methods)
	case !can:
		return fmt.Errorf("testutil: a call cannot fail with a %T: %v", err, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == nil {
		q.next = make(map[string][]error)
	}
	q.next[method] = append(q.next[method], err)
	return nil
}

// take returns what a call fails with, nil if it doesn't.
func (q *failQueue) take(method string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue := q.next[method]
	if len(queue) == 0 {
		return nil
	}
	q.next[method] = queue[1:]
	return queue[0]
}

// Methods returns the RPCs that the server implements.
func (s *KMS) Methods() []string { return slices.Sorted(maps.Keys(kmsRPCs)) }

// FailNext makes the next call of an RPC fail with a gRPC status error, without a look at the
// request. After n calls of FailNext the next n calls fail.
func (s *KMS) FailNext(method string, err error) error {
	_, ok := status.FromError(err)
	return s.fails.put(s.Methods(), method, err, ok && err != nil)
}

// Methods returns what the server counts.
func (s *IAM) Methods() []string { return []string{callCertificates, callSignBlob, callSignJWT} }

// FailNext makes the next call of one of the Methods fail with a *googleapi.Error: Code is the
// HTTP status, Header is sent along, and Body, or else Message, is the answer. After n calls
// of FailNext the next n calls fail.
func (s *IAM) FailNext(method string, err error) error {
	return s.fails.put(s.Methods(), method, err, isAnswer(err))
}

// Methods returns the methods of the API that the server implements.
func (s *AppEngine) Methods() []string {
	return []string{methodCertificates, methodAccount, methodSign}
}

// FailNext makes the next call of a method fail with a *googleapi.Error, of which Code is the
// HTTP status and Message the body. After n calls of FailNext the next n calls fail.
func (s *AppEngine) FailNext(method string, err error) error {
	return s.fails.put(s.Methods(), method, err, isAnswer(err))
}

// isAnswer reports whether an error can be an HTTP answer.
func isAnswer(err error) bool {
	answer, ok := errors.AsType[*googleapi.Error](err)
	return ok && answer.Code >= 400 && answer.Code < 600
}

// writeAnswer sends an error that isAnswer accepts.
func writeAnswer(w http.ResponseWriter, err error) {
	answer, _ := errors.AsType[*googleapi.Error](err)
	text, _ := json.Marshal(map[string]any{"error": map[string]any{"code": answer.Code, "message": answer.Message}})
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.Code)
	_, _ = w.Write([]byte(cmp.Or(answer.Body, string(text))))
}
