package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), nil, &out); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	for row, want := range map[string]int{
		`health check, no token +200 +healthy +-`:                                                                 2,
		`good token.* 200 +hello, reports@test.iam.gserviceaccount.com +-`:                                        2,
		`good token.* 200 +hello, reports +-`:                                                                     3,
		`good token, outage, .* 503 +Service Unavailable +Retry-After: 10`:                                        2,
		`no token +401 +Unauthorized +WWW-Authenticate: Bearer realm="api"`:                                       2,
		`token for another audience +403 +Forbidden +WWW-Authenticate: Bearer realm="api", error="invalid_token"`: 2,
		`token by another issuer +403 +Forbidden +WWW-Authenticate: Bearer realm="api", error="invalid_token"`:    2,
		`forged token +401 +Unauthorized +WWW-Authenticate: Bearer realm="api", error="invalid_token"`:            2,
		`expired token +401 +Unauthorized +WWW-Authenticate: Bearer realm="api", error="invalid_token"`:           2,

		// The log says what the client isn't told.
		`.* reason="gcpjwt: token signature is invalid: .*"`:                      2,
		`.* reason=".*token is expired"`:                                          2,
		`.* reason=".*token has invalid audience"`:                                2,
		`.* reason=".*token has invalid issuer"`:                                  2,
		`.* reason=".*keys unavailable: .*read the certificates of .*"`:           1,
		`.* reason=".*keys unavailable: .*unknown key ID .*list the versions .*"`: 1,
	} {
		if got := len(regexp.MustCompile(`(?m)^`+row+`$`).FindAllString(out.String(), -1)); got < want {
			t.Errorf("%d lines match %q, want %d:\n%s", got, row, want, &out)
		}
	}
}

// A program that is content with any answer would show nothing.
func TestDeviation(t *testing.T) {
	answers := func(status int, body, header string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if header != "" {
				w.Header().Set(header, "10")
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for _, test := range []struct {
		name    string
		handler http.Handler
		status  int
		want    string // "": no error
	}{
		{"good", answers(200, "hello, alice\n", ""), 200, ""},
		{"refused", answers(401, "Unauthorized", "WWW-Authenticate"), 401, ""},
		{"let through", answers(200, "hello, alice", ""), 401, "got status 200, want 401"},
		{"another caller", answers(200, "hello, root", ""), 200, `got body "hello, root"`},
		{"talkative", answers(401, "token is expired", "WWW-Authenticate"), 401, `got body "token is expired"`},
		{"no challenge", answers(403, "Forbidden", ""), 403, "got no WWW-Authenticate"},
		{"no advice", answers(503, "Service Unavailable", ""), 503, "got no Retry-After"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			s := &stage{"test", server, new(bytes.Buffer), "alice"}
			err := s.play(t.Context(), []step{{what: test.name, client: server.Client(), want: test.status}}, io.Discard)
			switch {
			case test.want == "":
				if err != nil {
					t.Error(err)
				}
			case err == nil || !strings.Contains(err.Error(), "test: "+test.name+": "+test.want):
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
