// Package fetch reads public keys over HTTP, with its rules: https, one size and one time
// limit, no answer but 200, and the lifetime that the answer states.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// maxBody bounds an answer. Google's have a few KiB.
const maxBody = 1 << 20

// A Request is what to read.
type Request struct {
	Client *http.Client // nil: http.DefaultClient
	URL    string

	// Fresh asks caches on the way for an answer of now.
	Fresh bool
}

// A Response is what was read.
type Response struct {
	Body     []byte
	Lifetime Lifetime
}

// A Lifetime is for how long a response says it may be kept.
type Lifetime struct {
	Stated bool
	Value  time.Duration
}

// StatusError is the error of an answer other than 200.
type StatusError struct{ Code int }

func (e *StatusError) Error() string {
	return fmt.Sprintf("the server answered %d %s", e.Code, http.StatusText(e.Code))
}

// Get makes the request, by the policy that all calls have. An error names the host that was
// asked, and nothing else of the URL.
func Get(ctx context.Context, request Request) (response Response, err error) {
	client := stayingSecure(request.Client)
	err = retry.Do(ctx, retry.Read, kindOf, func(ctx context.Context) (err error) {
		response, err = get(ctx, client, request)
		return err
	})
	if err != nil {
		host := "?"
		if u, parseErr := url.Parse(request.URL); parseErr == nil {
			host = u.Host
		}
		return Response{}, errs.Errorf("ask %s: %w", errs.Quote(host), errs.Foreign(err))
	}
	return response, nil
}

func kindOf(err error) retry.Kind {
	var status *StatusError
	if errors.As(err, &status) {
		return retry.OfStatus(status.Code)
	}
	return retry.OfTransport(err)
}

func get(ctx context.Context, client *http.Client, r Request) (Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return Response{}, err
	}
	if r.Fresh {
		request.Header.Set("Cache-Control", "no-cache")
	}
	response, err := client.Do(request)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the URL, whose query may be a secret
		}
		return Response{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Response{}, &StatusError{response.StatusCode} // its body may be anything
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("the response is longer than %d bytes", maxBody)
	}
	if err != nil {
		return Response{}, err
	}
	return Response{body, statedLifetime(response.Header, time.Now())}, nil
}

// CheckURL refuses what keys are not to be read from: whoever can alter the answer can sign
// tokens, so that plain http is for loopback only. field is what to call the URL.
func CheckURL(field, text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errs.Errorf("%w: %s is no URL", errs.ErrInvalidConfig, field) // it may have a password
	}
	shown := errs.Quote(u.Redacted())
	switch {
	case u.Host == "" || u.Hostname() == "" || u.User != nil || strings.ContainsAny(text, "?#"):
		return errs.Errorf("%w: %s %s: want an absolute URL without user, query and fragment",
			errs.ErrInvalidConfig, field, shown)
	case u.Scheme == "https", u.Scheme == "http" && IsLoopback(u.Hostname()):
		return nil
	}
	return errs.Errorf("%w: %s %s: want https", errs.ErrInvalidConfig, field, shown)
}

// IsLoopback reports whether a URL's host is this machine, where plain http is fit for anything.
func IsLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// stayingSecure returns a copy of client that follows no redirect to plain http, except from
// one loopback address to another.
func stayingSecure(client *http.Client) *http.Client {
	if client == nil {
		client = http.DefaultClient
	}
	secure := *client
	secure.CheckRedirect = func(request *http.Request, via []*http.Request) error {
		from, to := via[len(via)-1].URL, request.URL
		switch {
		case to.Scheme != "https" && (from.Scheme == "https" || !IsLoopback(to.Hostname())):
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
