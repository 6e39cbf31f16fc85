// Rotation shows a Cloud KMS key being rotated under load. A signer and a
// verifier, with a client each as if they were two services, know no more than
// the name of a CryptoKey, while an operator creates, disables and destroys
// versions of it.
//
//	go run ./examples/rotation
//
// It runs on an embedded Cloud KMS server, prints what happens when, and fails if
// a signature failed, a good token was refused, or a token by a disabled version
// was accepted later than KeyRefresh after the disabling.
//
// KeyRefresh is very short here, so that the show is too. The default is five
// minutes, and Google itself may take up to hours until a disabled version is
// disabled everywhere.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

const (
	// keyRefresh is the longest that signer and verifier may go by an old list of
	// versions.
	keyRefresh = 400 * time.Millisecond

	// pace is how often the signer signs.
	pace = 5 * time.Millisecond
)

// quiet is a Logger for programs that show by themselves what happens.
var quiet = slog.New(slog.DiscardHandler)

// signTokens signs tokens with the newest version of a CryptoKey until stop is
// closed.
func signTokens(ctx context.Context, client *kms.KeyManagementClient, cryptoKey string, stop <-chan struct{}, tokens chan<- string, log *timeline) {
	defer close(tokens)
	config := &gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: client, KeyRefresh: keyRefresh, Logger: quiet}
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		log.signed("", err)
		return
	}
	ticks := time.NewTicker(pace)
	defer ticks.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticks.C:
		}
		claims := jwt.RegisteredClaims{Subject: "rotation", ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Minute))}
		text, err := signer.Sign(ctx, claims)
		log.signed(config.KeyID(), err) // nobody else signs with this client
		if err == nil {
			tokens <- text
		}
	}
}

// verifyTokens verifies each token as it arrives and, to see how disabled versions
// fare, the last token of each version again and again.
func verifyTokens(ctx context.Context, client *kms.KeyManagementClient, cryptoKey string, tokens <-chan string, log *timeline) error {
	config := &gcpjwt.KMSConfig{KeyPath: cryptoKey, KMSClient: client, KeyRefresh: keyRefresh, Logger: quiet}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	if err != nil {
		return err
	}
	parser := jwt.NewParser(jwt.WithExpirationRequired())
	last := make(map[string]string) // by kid
	verify := func(text string) {
		began := time.Now()
		token, err := parser.ParseWithClaims(text, &jwt.RegisteredClaims{}, keyfunc)
		kid, _ := token.Header["kid"].(string)
		log.verified(kid, began, err)
		last[kid] = text
	}
	for text := range tokens {
		verify(text)
		for _, old := range last {
			if old != text {
				verify(old)
			}
		}
	}
	return nil
}

// operate is what the operator does. Each step says how long its effects are
// watched.
func operate(ctx context.Context, client *kms.KeyManagementClient, cryptoKey string, log *timeline) error {
	version := func(number int) string { return fmt.Sprintf("%s/cryptoKeyVersions/%d", cryptoKey, number) }
	create := func() error {
		_, err := client.CreateCryptoKeyVersion(ctx, &kmspb.CreateCryptoKeyVersionRequest{
			Parent: cryptoKey, CryptoKeyVersion: &kmspb.CryptoKeyVersion{},
		})
		return err
	}
	disable := func(number int) error {
		_, err := client.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
			CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: version(number), State: kmspb.CryptoKeyVersion_DISABLED},
			UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
		})
		return err
	}
	destroy := func(number int) error {
		_, err := client.DestroyCryptoKeyVersion(ctx, &kmspb.DestroyCryptoKeyVersionRequest{Name: version(number)})
		return err
	}
	steps := []struct {
		event   string
		do      func() error
		revokes int // the version that is no good afterwards, if any
		watch   time.Duration
	}{
		// A planned rotation: a new version, then, once its predecessor's tokens
		// have expired, an end to that.
		{"create version 2", create, 0, 700 * time.Millisecond},
		{"disable version 1", func() error { return disable(1) }, 1, 700 * time.Millisecond},
		{"destroy version 1", func() error { return destroy(1) }, 0, 300 * time.Millisecond},

		// An emergency: the newest version has to go while it signs. The signer
		// falls back to the one before.
		{"create version 3", create, 0, 700 * time.Millisecond},
		{"disable version 3", func() error { return disable(3) }, 3, 700 * time.Millisecond},

		// And a version that goes without having been disabled before.
		{"create version 4", create, 0, 700 * time.Millisecond},
		{"destroy version 2", func() error { return destroy(2) }, 2, 600 * time.Millisecond},
	}
	for _, step := range steps {
		if step.revokes != 0 {
			log.revoking(step.revokes)
		}
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.event, err)
		}
		if step.revokes != 0 {
			log.revoked(step.revokes)
		}
		log.event(step.event)
		select {
		case <-time.After(step.watch):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// rotate runs the signer and the verifier while the operator works.
func rotate(ctx context.Context, signing, verifying, operating *kms.KeyManagementClient, cryptoKey string, log *timeline) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop, tokens := make(chan struct{}), make(chan string)
	var group sync.WaitGroup
	group.Go(func() { signTokens(ctx, signing, cryptoKey, stop, tokens, log) })
	group.Go(func() {
		if err := verifyTokens(ctx, verifying, cryptoKey, tokens, log); err != nil {
			cancel(fmt.Errorf("make the Keyfunc: %w", err))
		}
		for range tokens {
			// Let a signer that is still at work end.
		}
	})

	log.event("start with version 1")
	var err error
	select {
	case <-time.After(500 * time.Millisecond):
		err = operate(ctx, operating, cryptoKey, log)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	close(stop)
	group.Wait()
	log.event("end")
	return err
}

// numberOf returns the number of the version that has a key ID, "?" if it isn't
// one of the first few.
func numberOf(cryptoKey, kid string) string {
	for number := 1; number < 10; number++ {
		if kid == gcpjwt.KMSKeyID(fmt.Sprintf("%s/cryptoKeyVersions/%d", cryptoKey, number)) {
			return fmt.Sprint(number)
		}
	}
	return "?"
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "rotation:", err)
		stop()
		os.Exit(1)
	}
}
