package soak_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
)

// frozenEnv holds a frozenPlan, as JSON, where TestFrozenProcess is the process to freeze.
const frozenEnv = "GCPJWT_FROZEN"

// A frozenPlan says where that process finds the servers, which run on without it.
type frozenPlan struct {
	Version, GRPC, REST, IAM, Certificates string
}

// longFreeze is longer than a read may take.
const longFreeze = systest.FetchLimit + time.Second

// freeze stops a process that signs and verifies again and again, for longer than its keys
// may be used, while they rotate. Nothing good may fail once it wakes.
func freeze(ctx context.Context, t *testing.T, lasts time.Duration, rng *rand.Rand) {
	server, _ := systest.StartKMS(t)
	version := systest.Create(t, server, systest.P256)
	iam, config := systest.StartIAM(t)
	iam.SetCertificateHeader(http.Header{"Cache-Control": {"max-age=1"}})
	plan, err := json.Marshal(frozenPlan{version, server.Addr(), server.RESTURL(), iam.URL(), config.CertificateURL})
	if err != nil {
		t.Error(err)
		return
	}

	// Pdeathsig goes by the thread that starts the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0], "-test.run=^TestFrozenProcess$", "-test.v", "-test.timeout=0")
	cmd.Env = append(os.Environ(), frozenEnv+"="+string(plan))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	signal := func(sig os.Signal) {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
	}
	freezes, rotations := 0, 0
	var frozen time.Duration
	for server.Calls("AsymmetricSign") == 0 && soakPause(ctx, rng, 20*time.Millisecond) {
	}
	for soakPause(ctx, rng, soakRefresh) {
		pause := soakRefresh + time.Duration(rng.Int64N(int64(2*soakRefresh)))
		if lasts >= time.Minute && rng.IntN(20) == 0 {
			pause = longFreeze
		}
		signal(syscall.SIGSTOP)
		if freezes%8 == 0 { // the server keeps all versions
			if _, err := server.CreateVersion(systest.CryptoKeyOf(version)); err != nil {
				t.Error(err)
			}
			rotations++
		}
		time.Sleep(pause)
		signal(syscall.SIGCONT)
		freezes++
		frozen += pause
	}
	stdin.Close() // it ends
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process that was frozen: %v", err)
	}
	t.Logf("%d freezes of %v in all, with %d rotations; the process said:\n%s", freezes, frozen.Round(time.Second), rotations, output.Bytes())
	if freezes == 0 {
		t.Error("nothing was frozen")
	}
}

// TestFrozenProcess is the process that TestSoak freezes.
func TestFrozenProcess(t *testing.T) {
	text := os.Getenv(frozenEnv)
	if text == "" {
		t.Skip("TestSoak runs it, in a process of its own")
	}
	var plan frozenPlan
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()

	type worker struct {
		name    string
		ctx     context.Context
		method  jwt.SigningMethod
		keyfunc jwt.Keyfunc
	}
	var workers []worker
	overGRPC, overREST := plan.clients(t)
	for name, client := range map[string]*kms.KeyManagementClient{"gRPC": overGRPC, "REST": overREST} {
		for _, path := range []string{plan.Version, systest.CryptoKeyOf(plan.Version)} {
			config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client, KeyRefresh: soakRefresh}
			keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
			if err != nil {
				t.Fatal(err)
			}
			workers = append(workers, worker{path + " over " + name, gcpjwt.NewKMSContext(context.Background(), config), gcpjwt.SigningMethodKMSES256, keyfunc})
		}
	}
	httpClient := &http.Client{Transport: &http.Transport{}}
	service, err := iamcredentials.NewService(ctx, option.WithEndpoint(plan.IAM), option.WithHTTPClient(httpClient))
	if err != nil {
		t.Fatal(err)
	}
	iam := &gcpjwt.IAMConfig{
		ServiceAccount: account, IAMType: gcpjwt.IAMJwtType, IAMService: service,
		Client: httpClient, CertificateURL: plan.Certificates, EnableCache: true,
	}
	iamCtx := gcpjwt.NewIAMContext(context.Background(), iam)
	workers = append(workers, worker{"signJwt", iamCtx, gcpjwt.SigningMethodIAMJWT, gcpjwt.IAMVerifyKeyfunc(context.Background(), iam)})

	before := runtime.NumGoroutine()
	var signed, verified atomic.Int64
	var group sync.WaitGroup
	for i, w := range workers {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 0))
			var tokens []string
			for ctx.Err() == nil {
				text, err := gcpjwt.SignedString(w.ctx, jwt.NewWithClaims(w.method, jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()}))
				if err != nil {
					t.Errorf("%s: sign: %v", w.name, err)
					continue
				}
				signed.Add(1)
				if tokens = append(tokens, text); len(tokens) > soakTokens {
					tokens = tokens[1:]
				}
				for _, text := range []string{text, tokens[rng.IntN(len(tokens))]} {
					if err := systest.Verify(text, w.keyfunc); err != nil {
						t.Errorf("%s: verify: %v", w.name, err)
					}
					verified.Add(1)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	group.Wait()
	httpClient.CloseIdleConnections()
	after := runtime.NumGoroutine()
	for range 100 { // those of connections end soon
		if after <= before {
			break
		}
		time.Sleep(20 * time.Millisecond)
		after = runtime.NumGoroutine()
	}
	t.Logf("%d signed, %d verified; goroutines: %d before, %d after", signed.Load(), verified.Load(), before, after)
}

// clients connects to the servers as Google's clients do.
func (p frozenPlan) clients(t *testing.T) (overGRPC, overREST *kms.KeyManagementClient) {
	conn, err := grpc.NewClient(p.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if overGRPC, err = kms.NewKeyManagementClient(context.Background(), option.WithGRPCConn(conn)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { overGRPC.Close() })
	httpClient := &http.Client{Transport: &http.Transport{}}
	overREST, err = kms.NewKeyManagementRESTClient(context.Background(), option.WithEndpoint(p.REST), option.WithHTTPClient(httpClient))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		overREST.Close()
		httpClient.CloseIdleConnections()
	})
	return overGRPC, overREST
}
