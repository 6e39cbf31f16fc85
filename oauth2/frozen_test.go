//go:build unix

package oauth2_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// C24: a renewal that failed while nobody waited for it fails no caller who comes after the
// expiry, whether it has ended or not.
func TestLateRenewal(t *testing.T) {
	for _, test := range []struct {
		name string
		call time.Duration // after the start of the renewal
	}{
		{"ended", 10*time.Second + 50*time.Millisecond},
		{"under way", 5 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rig := startExchange(t, testutil.InMemory())
				rig.endpoint.SetExpiresIn(8 * time.Second)
				source := rig.source(t, oauth2.NewJWTBearerSource)
				first := mustToken(t, source)
				time.Sleep(6 * time.Second)
				rig.endpoint.Intercept(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
				mustToken(t, source)
				synctest.Wait()

				time.Sleep(test.call)
				rig.endpoint.Intercept(nil)
				if token := mustToken(t, source); token == first || time.Until(token.Expiry) < 7*time.Second {
					t.Errorf("got a token that expires in %v, want a new one", time.Until(token.Expiry))
				}
			})
		})
	}
}

const (
	// frozenIAM and frozenToken hold URLs for TestFrozenChild in the environment.
	frozenIAM, frozenToken = "GCPJWT_TEST_IAM_URL", "GCPJWT_TEST_TOKEN_URL"

	// frozenLife is how long its tokens live. It renews them in the last quarter.
	frozenLife = 4 * time.Second
)

// TestFrozenChild is the process that TestFrozen freezes. It reports on standard output.
func TestFrozenChild(t *testing.T) {
	if os.Getenv(frozenIAM) == "" {
		t.Skip("only TestFrozen runs this")
	}
	service, err := iamcredentials.NewService(t.Context(), option.WithEndpoint(os.Getenv(frozenIAM)), option.WithHTTPClient(http.DefaultClient))
	if err != nil {
		t.Fatal(err)
	}
	config := &gcpjwt.IAMConfig{ServiceAccount: account, IAMType: gcpjwt.IAMJwtType, IAMService: service}
	signer, err := gcpjwt.NewIAMSigner(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	source, err := oauth2.NewJWTBearerSource(t.Context(), oauth2.ExchangeConfig{
		Config:   oauth2.Config{Signer: signer, Issuer: account, Subject: account},
		TokenURL: os.Getenv(frozenToken),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	first := mustToken(t, source)
	time.Sleep(time.Until(first.Expiry) - frozenLife/4 + 50*time.Millisecond) // the last quarter
	if mustToken(t, source) != first {
		t.Fatal("this process was too slow")
	}
	fmt.Println("renewing")

	// Its parent freezes it here.
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, err = source.Token()
	fmt.Println("woke", err)
}

// C24: a process that is frozen during a renewal, until after the expiry, serves its first
// caller on waking.
func TestFrozen(t *testing.T) {
	for range 5 {
		if freeze(t) {
			return
		}
		t.Log("the machine was too slow to freeze a process during a renewal; trying again")
	}
	t.Error("never froze a process during a renewal")
}

// freeze reports false if no renewal was under way when the process was frozen.
func freeze(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rig := startExchange(t)
	rig.endpoint.SetExpiresIn(frozenLife)
	arrived, frozen := make(chan struct{}), make(chan struct{})
	cut := sync.OnceFunc(func() { close(frozen) })
	defer cut()
	var requests atomic.Int32
	rig.endpoint.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch requests.Add(1) {
		case 1:
			next.ServeHTTP(w, r)
			return
		case 2:
			close(arrived)
		}
		<-frozen
		panic(http.ErrAbortHandler) // cuts the connection
	})

	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestFrozenChild$")
	child.Env = append(os.Environ(), frozenIAM+"="+rig.google.URL(), frozenToken+"="+rig.endpoint.TokenURL())
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()

	select {
	case <-arrived:
	case <-ctx.Done():
		t.Fatal("the child renews nothing")
	}
	select {
	case line := <-lines:
		if line != "renewing" {
			t.Fatalf("the child says %q", line)
		}
	case <-time.After(time.Second): // a caller waits for the renewal
		return false
	}
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	cut()
	time.Sleep(frozenLife / 2) // past the expiry
	rig.endpoint.Intercept(nil)
	if err := child.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	if line := <-lines; line != "woke <nil>" {
		t.Errorf("the child says %q, want no error", line)
	}
	for range lines { // what package testing prints
	}
	return true
}
