package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"sync"
	"sync/atomic"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// A scale says how large a fleet is, and what happens to it when.
type scale struct {
	verifiers, signers int

	length   time.Duration
	rotation time.Duration // from one new version to the next
	retire   time.Duration // from a new version to the disabling of the one before

	keyRefresh time.Duration
	maxAge     time.Duration // of the JWK Set, in whole seconds
	lifetime   time.Duration // of a token
	sign       time.Duration // from one token of a signer to its next
	verify     time.Duration // from one token that a verifier gets to the next
	minute     time.Duration // what calls are counted by

	// When these begin, and how long the outages last.
	deploy, kmsOutage, publisherOutage, outage time.Duration
}

// A network is where the fleet runs.
type network interface {
	options() []testutil.Option
	listen() (net.Listener, dial, error)
}

type dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// A fleet is signers and verifiers of one CryptoKey, and a publisher of its keys.
type fleet struct {
	scale
	published bool // whether verifiers use the publisher
	network   network
	began     time.Time
	server    *testutil.KMS
	key       string
	publisher *publisher
	board     board
	report    *report

	restart atomic.Pointer[chan struct{}] // closed when all processes restart
}

// simulate has a fleet live through what its scale says.
func simulate(ctx context.Context, s scale, published bool, n network) (*report, error) {
	server, err := testutil.NewKMS(n.options()...)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	version, err := server.CreateKey("fleet", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		return nil, err
	}
	f := &fleet{
		scale: s, published: published, network: n, began: time.Now(),
		server: server, key: path.Dir(path.Dir(version)),
		report: &report{scale: s, published: published},
	}
	restart := make(chan struct{})
	f.restart.Store(&restart)
	if published {
		if f.publisher, err = f.publish(ctx); err != nil {
			return nil, err
		}
		defer f.publisher.close()
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var processes sync.WaitGroup
	failure := make(chan error, 1)
	start := func(live func(context.Context, *rand.Rand) error, number int) {
		processes.Go(func() {
			if err := live(ctx, rand.New(rand.NewPCG(uint64(number), 1))); err != nil && ctx.Err() == nil {
				select {
				case failure <- err:
				default:
				}
				stop()
			}
		})
	}
	for i := range s.signers {
		start(f.signer, i)
	}
	for i := range s.verifiers {
		start(f.verifier, s.signers+i)
	}
	processes.Go(func() { f.count(ctx) })
	err = f.operate(ctx, version)
	stop()
	processes.Wait()
	select {
	case err := <-failure:
		return nil, err
	default:
	}
	return f.report, err
}

// process makes the clients of a process that starts now, and closes them when it ends.
func (f *fleet) process(ctx context.Context) (*gcpjwt.KMSConfig, func(), error) {
	client, err := f.server.Client(context.WithoutCancel(ctx))
	if err != nil {
		return nil, nil, err
	}
	return f.config(client), func() { client.Close() }, nil
}

func (f *fleet) config(client *kms.KeyManagementClient) *gcpjwt.KMSConfig {
	config := &gcpjwt.KMSConfig{
		KeyPath: f.key, KMSClient: client, KeyRefresh: f.keyRefresh, Logger: slog.New(slog.DiscardHandler),
	}
	if f.published {
		config.ActivationDelay = f.maxAge + f.keyRefresh
	}
	return config
}

// signer signs a token now and then, with the newest version.
func (f *fleet) signer(ctx context.Context, random *rand.Rand) error {
	for ctx.Err() == nil {
		if err := f.signerProcess(ctx, random); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) signerProcess(ctx context.Context, random *rand.Rand) error {
	restart := *f.restart.Load()
	config, end, err := f.process(ctx)
	if err != nil {
		return err
	}
	defer end()
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		return err
	}
	for pause(ctx, restart, jitter(random, f.sign)) {
		now := time.Now()
		expires := now.Add(f.lifetime).Truncate(time.Second)
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		text, err := signer.Sign(limited, jwt.MapClaims{"sub": "fleet", "exp": expires.Unix()})
		cancel()
		switch {
		case err == nil:
			f.board.add(text, expires)
		case ctx.Err() == nil && !f.down(f.kmsOutage, now, time.Now()):
			f.report.fail(&f.report.unsigned, err)
		}
	}
	return nil
}

// verifier verifies tokens that signers have made, new ones and old ones.
func (f *fleet) verifier(ctx context.Context, random *rand.Rand) error {
	for ctx.Err() == nil {
		if err := f.verifierProcess(ctx, random); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) verifierProcess(ctx context.Context, random *rand.Rand) error {
	restart := *f.restart.Load()
	keyfunc, end, err := f.keyfunc(ctx)
	if err != nil {
		return err
	}
	defer end()
	for wait := time.Duration(random.Int64N(int64(f.verify))); pause(ctx, restart, wait); wait = jitter(random, f.verify) {
		token := f.board.pick(random)
		if token == nil {
			continue
		}
		began := time.Now()
		_, err := jwt.Parse(token.text, keyfunc)
		if ctx.Err() == nil {
			f.judge(token, began, time.Now(), err)
		}
	}
	return nil
}

// keyfunc returns the Keyfunc of a verifier that starts now.
func (f *fleet) keyfunc(ctx context.Context) (jwt.Keyfunc, func(), error) {
	if !f.published {
		config, end, err := f.process(ctx)
		if err != nil {
			return nil, nil, err
		}
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
		if err != nil {
			end()
		}
		return keyfunc, end, err
	}
	client := f.publisher.client()
	keyfunc, err := jwks.NewKeyfunc(ctx, &jwks.Config{
		URL: "http://127.0.0.1/jwks.json", Client: client, Logger: slog.New(slog.DiscardHandler),
	})
	return keyfunc, client.CloseIdleConnections, err
}

// promise is for how long after a version was disabled its tokens may still be accepted.
func (f *fleet) promise() time.Duration {
	if f.published {
		return f.keyRefresh + f.maxAge
	}
	return f.keyRefresh
}

// backoff is the longest time from the end of an outage to the next attempt.
const backoff = time.Minute

// judge takes note of what a verifier made of a token.
func (f *fleet) judge(token *token, began, ended time.Time, err error) {
	f.report.verified.Add(1)
	version := f.board.disabledAt(token.kid)
	switch {
	case err == nil && !version.since.IsZero():
		limit := version.since.Add(f.promise())
		for _, begins := range []time.Duration{f.kmsOutage, f.publisherOutage} {
			if f.down(begins, version.from, limit) {
				limit = f.began.Add(begins + f.outage + f.promise() + backoff)
			}
		}
		if began.After(limit) {
			f.report.fail(&f.report.tooLong, fmt.Errorf("accepted %v after its version was disabled", began.Sub(version.since)))
		}
	case err != nil && ended.Before(token.expires) && (version.from.IsZero() || ended.Before(version.from)):
		f.report.fail(&f.report.refused, err)
	}
}

// down reports whether an outage was there at any time between two.
func (f *fleet) down(begins time.Duration, from, to time.Time) bool {
	begun := f.began.Add(begins)
	return to.After(begun) && from.Before(begun.Add(f.outage))
}

// operate rotates the key, restarts the fleet and causes the outages.
func (f *fleet) operate(ctx context.Context, version string) error {
	type event struct {
		at time.Duration
		do func() error
	}
	events := []event{
		{f.deploy, func() error {
			next := make(chan struct{})
			close(*f.restart.Swap(&next))
			return nil
		}},
		{f.kmsOutage, func() error { f.server.Intercept(unavailable); return nil }},
		{f.kmsOutage + f.outage, func() error { f.server.Intercept(nil); return nil }},
	}
	if f.published {
		events = append(events,
			event{f.publisherOutage, func() error { f.publisher.down.Store(true); return nil }},
			event{f.publisherOutage + f.outage, func() error { f.publisher.down.Store(false); return nil }},
		)
	}
	for at := f.rotation; at < f.length; at += f.rotation {
		var old string
		events = append(events,
			event{at, func() (err error) {
				old = version
				version, err = f.server.CreateVersion(f.key)
				return err
			}},
			event{at + f.retire, func() error {
				f.board.disable(gcpjwt.KMSKeyID(old), func() { f.server.SetState(old, kmspb.CryptoKeyVersion_DISABLED) })
				return nil
			}},
		)
	}
	var failure error
	var happening sync.WaitGroup
	var failed sync.Mutex
	for _, event := range events {
		if event.at >= f.length {
			continue
		}
		happening.Go(func() {
			if !pause(ctx, nil, time.Until(f.began.Add(event.at))) {
				return
			}
			err := event.do()
			failed.Lock()
			defer failed.Unlock()
			failure = errors.Join(failure, err)
		})
	}
	pause(ctx, nil, time.Until(f.began.Add(f.length)))
	happening.Wait()
	return errors.Join(failure, ctx.Err())
}

// unavailable is what Cloud KMS answers in an outage.
func unavailable(context.Context, string, proto.Message, testutil.KMSHandler) (proto.Message, error) {
	return nil, status.Error(codes.Unavailable, "an outage")
}

// count takes note each minute of what has been asked in it.
func (f *fleet) count(ctx context.Context) {
	var reads, cryptographic, requests int
	for pause(ctx, nil, f.minute) {
		total := f.server.Calls("")
		list := f.server.Calls("ListCryptoKeyVersions")
		f.report.reads.add(list - reads)
		f.report.cryptographic.add(total - list - cryptographic)
		reads, cryptographic = list, total-list
		if f.published {
			now := int(f.publisher.requests.Load())
			f.report.requests.add(now - requests)
			requests = now
		}
	}
}

// pause waits, and reports false if the context has ended or all processes restart.
func pause(ctx context.Context, restart <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-restart:
		return false
	case <-ctx.Done():
		return false
	}
}

// jitter keeps processes from moving in step.
func jitter(random *rand.Rand, d time.Duration) time.Duration {
	return d*3/4 + time.Duration(random.Int64N(int64(d/2)))
}

// A publisher is a process that publishes the keys.
type publisher struct {
	dial     dial
	server   *http.Server
	serving  sync.WaitGroup
	end      func()
	requests atomic.Int64
	down     atomic.Bool
}

// publish starts the publisher.
func (f *fleet) publish(ctx context.Context) (*publisher, error) {
	config, end, err := f.process(ctx)
	if err != nil {
		return nil, err
	}
	listener, dial, err := f.network.listen()
	if err != nil {
		end()
		return nil, err
	}
	p := &publisher{dial: dial, end: end}
	handler := jwks.NewHandler(config, jwks.WithMaxAge(f.maxAge))
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		if p.down.Load() {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		handler.ServeHTTP(w, r)
	})}
	p.serving.Go(func() { _ = p.server.Serve(listener) }) // its only end is Close
	return p, nil
}

// client returns a client of a process of its own.
func (p *publisher) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: p.dial}}
}

func (p *publisher) close() {
	_ = p.server.Close()
	p.serving.Wait()
	p.end()
}
