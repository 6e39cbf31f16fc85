package main

import (
	"context"
	"crypto"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	xoauth2 "golang.org/x/oauth2"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), nil, &out); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	for row, want := range map[string]int{
		`  the API says +hello, alice@example\.com, with https://www\.googleapis\.com/auth/calendar\.readonly`:          1,
		`  the API says +hello, 11111111-2222-3333-4444-555555555555, with https://graph\.microsoft\.com/\.default`:     1,
		`  for many callers +1 exchange for 21 calls`:                                                                   2,
		`  while nobody can log in +hello, .*`:                                                                          2,
		`  with a key of somebody else +refused: gcpjwt: exchange at .*: answered 400 Bad Request: "invalid_grant".*`:   1,
		`  with a key of somebody else +refused: gcpjwt: exchange at .*: answered 401 Unauthorized: "invalid_client".*`: 1,
	} {
		if got := len(regexp.MustCompile(`(?m)^`+row+`$`).FindAllString(out.String(), -1)); got != want {
			t.Errorf("%d lines match %q, want %d:\n%s", got, row, want, &out)
		}
	}
	if strings.Contains(out.String(), "eyJ") {
		t.Errorf("the output holds a JWT:\n%s", &out)
	}
}

// A program that is content with anything would show nothing.
func TestDeviation(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(*scene)
		want  string
	}{
		{"another user", func(s *scene) { s.want = "hello, bob" }, `the API says: got 200 OK, "hello, alice@example.com`},
		{"refused", func(s *scene) { s.register(func(string) crypto.PublicKey { return nil }) }, "invalid_grant"},
		{"no API", func(s *scene) {
			s.login.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.URL.Path == "/api" {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				next.ServeHTTP(w, r)
			})
		}, "the API says: got 403 Forbidden"},
		{"two exchanges", func(s *scene) {
			source := s.source
			s.source = func(ctx context.Context) (xoauth2.TokenSource, error) {
				if _, err := source(ctx); err != nil {
					return nil, err
				}
				return source(ctx)
			}
		}, "the token endpoint got 2 requests"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := newWorkspace(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			test.spoil(s)
			if err := s.play(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
		})
	}
}

func TestRunArguments(t *testing.T) {
	if err := run(t.Context(), []string{"surplus"}, io.Discard); err == nil || !strings.Contains(err.Error(), "surplus") {
		t.Errorf("run with a surplus argument: %v", err)
	}
}

func TestRunCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, nil, io.Discard); err == nil {
		t.Error("run succeeded though its context was over")
	}
}
