package main

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	xoauth2 "golang.org/x/oauth2"
)

// run does what the package comment says.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	fmt.Fprintln(stdout, "IAM Credentials, Cloud KMS and the token endpoints are embedded in this program.")
	var failures []error
	for _, start := range []func(context.Context) (*scene, error){newWorkspace, newEntra} {
		s, err := start(ctx)
		if err == nil {
			err = s.play(ctx, stdout)
		}
		if s != nil {
			s.close()
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// callers is how many use one source at once.
const callers = 20

// play logs in, uses the token, and lets others try.
func (s *scene) play(ctx context.Context, stdout io.Writer) error {
	fmt.Fprintf(stdout, "\n%s\n", s.title)
	source, err := s.source(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", s.title, err)
	}
	client := &http.Client{Transport: &xoauth2.Transport{Source: source}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()

	var failures []error
	note := func(what, got string, err error) {
		if err != nil {
			got += "FAILED: " + err.Error()
			failures = append(failures, fmt.Errorf("%s: %s: %w", s.title, what, err))
		}
		fmt.Fprintf(stdout, "  %-28s%s\n", what, got)
	}

	got, err := s.greeting(ctx, client)
	note("the API says", got, err)

	got, err = s.manyCallers(ctx, client)
	note("for many callers", got, err)

	s.setDown(true)
	got, err = s.greeting(ctx, client)
	note("while nobody can log in", got, err)
	s.setDown(false)

	got, err = s.stranger(ctx)
	note("with a key of somebody else", got, err)
	return errors.Join(failures...)
}

// greeting calls the API and checks whom it greets.
func (s *scene) greeting(ctx context.Context, client *http.Client) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.login.APIURL(), nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if got := string(body); got != s.want {
		return "", fmt.Errorf("got %s, %q, want %q", response.Status, got, s.want)
	}
	return string(body), nil
}

// manyCallers checks that one exchange serves all.
func (s *scene) manyCallers(ctx context.Context, client *http.Client) (string, error) {
	results := make([]error, callers)
	var group sync.WaitGroup
	for i := range results {
		group.Go(func() { _, results[i] = s.greeting(ctx, client) })
	}
	group.Wait()
	if err := errors.Join(results...); err != nil {
		return "", err
	}
	if exchanges := s.login.Calls("token"); exchanges != 1 {
		return "", fmt.Errorf("the token endpoint got %d requests, want 1", exchanges)
	}
	return fmt.Sprintf("1 exchange for %d calls", callers+1), nil
}

// stranger checks that a key that the endpoint doesn't know gets no token.
func (s *scene) stranger(ctx context.Context) (string, error) {
	s.register(func(string) crypto.PublicKey { return s.other })
	_, err := s.source(ctx)
	refused, ok := errors.AsType[*xoauth2.RetrieveError](err)
	switch {
	case err == nil:
		return "", errors.New("it got a token")
	case !ok || refused.ErrorCode != s.refusal:
		return "", fmt.Errorf("got %w, want %s", err, s.refusal)
	}
	return "refused: " + err.Error(), nil
}
