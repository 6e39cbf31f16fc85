package oauth2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/oauth2"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

const maxAnswer = 1 << 20

// A courier carries one request to the token endpoint and keeps the answer.
type courier struct {
	base   http.RoundTripper
	answer *http.Response // without its body; nil: none came
}

// RoundTrip makes the request. It reads the body itself, because x/oauth2 would
// cut a long one, and takes away the Location, to which http.Client might send
// the assertion.
func (c *courier) RoundTrip(request *http.Request) (*http.Response, error) {
	base := c.base
	if base == nil {
		base = http.DefaultTransport
	}
	answer, err := base.RoundTrip(request)
	if err != nil || answer == nil || answer.Body == nil {
		return answer, err
	}
	defer answer.Body.Close()
	kept := *answer
	kept.Header = answer.Header.Clone()
	c.answer = &kept

	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxAnswer {
		return nil, errors.New("longer than 1 MiB")
	}
	answer.Header.Del("Location")
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, nil
}

// An answerError is the error for an answer without a usable token. Its text is
// one line, whatever the server sent.
type answerError struct {
	text  string
	parts []error // a RetrieveError, and what was wrong with an answer that is no error
}

func (e *answerError) Error() string { return e.text }

func (e *answerError) Unwrap() []error { return e.parts }

// failure returns the error of an exchange, without what is secret.
func (x *exchange) failure(courier *courier, assertion string, err error) error {
	hide := concealer{append([]string{assertion}, x.secrets...)}
	endpoint := *x.endpoint
	endpoint.RawQuery = "" // it may hold a key
	at := endpoint.String()
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // the rest of its text is the URL
	}
	if courier.answer == nil {
		return errs.Errorf("exchange at %s: %w", at, hide.error(err))
	}

	code := courier.answer.StatusCode
	// Not the server's words.
	status := strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
	text := fmt.Sprintf("exchange at %s: answered %s", at, status)
	retrieve := &oauth2.RetrieveError{Response: &http.Response{
		Status:     status,
		StatusCode: code,
		Proto:      courier.answer.Proto,
		ProtoMajor: courier.answer.ProtoMajor,
		ProtoMinor: courier.answer.ProtoMinor,
		Header:     hide.header(courier.answer.Header),
		Body:       http.NoBody,
		Request:    &http.Request{Method: http.MethodPost, URL: &endpoint, Host: endpoint.Host, Header: http.Header{}},
	}}
	parts := []error{retrieve}
	if given, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		retrieve.ErrorCode = hide.line(given.ErrorCode)
		retrieve.ErrorDescription = hide.line(given.ErrorDescription)
		retrieve.ErrorURI = hide.line(given.ErrorURI)
		if (code < 200 || code > 299) && !bytes.Contains(given.Body, []byte("_token")) {
			retrieve.Body = hide.body(given.Body)
		}
	} else {
		parts = append(parts, hide.error(err))
	}
	switch {
	case len(parts) > 1:
		text += ": " + strings.TrimPrefix(parts[1].Error(), "oauth2: ")
	case retrieve.ErrorDescription != "":
		text += fmt.Sprintf(": %q: %q", retrieve.ErrorCode, retrieve.ErrorDescription)
	case retrieve.ErrorCode != "":
		text += fmt.Sprintf(": %q", retrieve.ErrorCode)
	case courier.answer.Header.Get("Location") != "":
		text += ": redirects are not followed"
	}
	return errs.Errorf("%w", &answerError{text, parts})
}
