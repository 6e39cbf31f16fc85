package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// serve serves on the port that App Engine names until ctx ends.
func serve(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+cmp.Or(os.Getenv("PORT"), "8080"))
	if err != nil {
		return err
	}
	return serveOn(ctx, listener)
}

func serveOn(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: newHandler(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// ctx is over, but the requests under way may end in peace.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return server.Shutdown(ctx)
}

// runEmbedded runs the service on an API server of its own.
func runEmbedded(ctx context.Context, args []string, stdout io.Writer) (err error) {
	flags := flag.NewFlagSet("appengine", flag.ContinueOnError)
	wait := flags.Bool("serve", false, "serve on port $PORT (8080) until interrupted")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	api, err := testutil.NewAppEngine()
	if err != nil {
		return fmt.Errorf("start the embedded API server: %w", err)
	}
	defer api.Close()
	// The App Engine SDK looks here for its API server.
	for name, value := range map[string]string{"API_HOST": api.Host(), "API_PORT": api.Port()} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	fmt.Fprintln(stdout, "This isn't App Engine: its API server is embedded in this program.")

	address := "127.0.0.1:0"
	if *wait {
		address = "127.0.0.1:" + cmp.Or(os.Getenv("PORT"), "8080")
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	base := "http://" + listener.Addr().String()
	if *wait {
		fmt.Fprintf(stdout, "Serving %[1]s/token and %[1]s/verify until interrupted.\n", base)
		return serveOn(ctx, listener)
	}

	ctx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- serveOn(ctx, listener) }()
	defer func() {
		stop()
		err = errors.Join(err, <-served)
	}()
	return visit(ctx, base, stdout)
}

// visit makes the requests that a client would, good ones and bad ones.
func visit(ctx context.Context, base string, stdout io.Writer) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // base is on loopback
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}

	token, err := get(ctx, client, base+"/token", "", http.StatusOK, stdout)
	if err != nil {
		return err
	}
	claims, err := get(ctx, client, base+"/verify", token, http.StatusOK, stdout)
	if err != nil {
		return err
	}
	if !strings.Contains(claims, audience) {
		return fmt.Errorf("/verify returned %s, without the audience %s", claims, audience)
	}
	if _, err := get(ctx, client, base+"/verify", forge(token), http.StatusUnauthorized, stdout); err != nil {
		return err
	}
	_, err = get(ctx, client, base+"/verify", "", http.StatusUnauthorized, stdout)
	return err
}

// get makes a request, prints it and the answer, and fails unless the status is
// want.
func get(ctx context.Context, client *http.Client, url, token string, want int, stdout io.Writer) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(stdout, "\nGET %s\n", url)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
		fmt.Fprintf(stdout, "Authorization: Bearer %s\n", shorten(token))
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("GET %s: %w", url, err)
	}
	body := string(bytes.TrimSpace(content))
	fmt.Fprintf(stdout, "  %s\n  %s\n", response.Status, body)
	if response.StatusCode != want {
		return "", fmt.Errorf("GET %s: status %s, want %d", url, response.Status, want)
	}
	return body, nil
}

// forge changes the payload of a token and leaves its signature as it is.
func forge(token string) string {
	header, rest, _ := strings.Cut(token, ".")
	_, signature, _ := strings.Cut(rest, ".")
	return header + ".eyJzdWIiOiJyb290In0." + signature
}

// shorten keeps the parts of a token apart but not whole.
func shorten(token string) string {
	parts := strings.Split(token, ".")
	for i, part := range parts {
		parts[i] = part[:min(len(part), 20)] + "…"
	}
	return strings.Join(parts, ".")
}
