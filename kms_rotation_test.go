package gcpjwt_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// kmsRig is a server with one CryptoKey whose only version, of P-256, is an
// hour old. It lives in a bubble where time passes only when all wait.
type kmsRig struct {
	*testing.T
	server    *testutil.KMS
	client    *kms.KeyManagementClient
	cryptoKey string
	generated time.Time // of the version that a test is about
}

func kmsBubble(t *testing.T, f func(rig *kmsRig)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute) // so that what runs in the background ends
		server, client := systest.StartKMS(t, testutil.InMemory())
		rig := &kmsRig{T: t, server: server, client: client}
		rig.cryptoKey = systest.CryptoKeyOf(systest.Create(t, server, systest.P256))
		time.Sleep(time.Hour)
		f(rig)
	})
}

// version returns a version's name.
func (rig *kmsRig) version(n int) string {
	return fmt.Sprintf("%s/cryptoKeyVersions/%d", rig.cryptoKey, n)
}

// create adds a version, which is ENABLED at once.
func (rig *kmsRig) create(algorithm ...systest.Algorithm) (version string) {
	rig.Helper()
	version, err := rig.server.CreateVersion(rig.cryptoKey, algorithm...)
	if err != nil {
		rig.Fatal(err)
	}
	return version
}

// signs signs with a configuration of the CryptoKey, and checks which version
// did it and how long it took.
func (rig *kmsRig) signs(n int, took time.Duration) (text string) {
	rig.Helper()
	start := time.Now()
	text = systest.Sign(rig, systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey), gcpjwt.SigningMethodKMSES256, nil)
	if got := time.Since(start); got != took {
		rig.Errorf("the signature took %v, want %v", got, took)
	}
	if got, want := systest.Header(rig, text)["kid"], gcpjwt.KMSKeyID(rig.version(n)); got != want {
		rig.Errorf("version %s signed, want %d", rig.number(got), n)
	}
	return text
}

// number returns the number of the version that a kid names.
func (rig *kmsRig) number(kid any) string {
	for n := 1; n < 1000; n++ {
		if gcpjwt.KMSKeyID(rig.version(n)) == kid {
			return fmt.Sprint(n)
		}
	}
	return fmt.Sprintf("of kid %v", kid)
}

// by returns a token by a version, signed by somebody else.
func (rig *kmsRig) by(version string) string {
	rig.Helper()
	return systest.Sign(rig, systest.KMSContext(rig.Context(), systest.Client(rig, rig.server), version), gcpjwt.SigningMethodKMSES256, nil)
}

// accepts checks that a token is accepted without any waiting.
func (rig *kmsRig) accepts(keyfunc jwt.Keyfunc, text string) {
	rig.Helper()
	start := time.Now()
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		rig.Errorf("jwt.Parse: %v", err)
	}
	if got := time.Since(start); got != 0 {
		rig.Errorf("jwt.Parse took %v, want nothing", got)
	}
}

// refuses checks that a token is refused because of an error.
func (rig *kmsRig) refuses(keyfunc jwt.Keyfunc, text string, want error) {
	rig.Helper()
	if _, err := jwt.Parse(text, keyfunc); !errors.Is(err, want) {
		rig.Errorf("jwt.Parse: %v, want %v", err, want)
	}
}

// lists returns how often the list of versions was asked for.
func (rig *kmsRig) lists() int { return rig.server.Calls("ListCryptoKeyVersions") }

// delayLists makes the answers to ListCryptoKeyVersions arrive late, with what
// was true when they set out.
func (rig *kmsRig) delayLists(d time.Duration) {
	rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		resp, err := next(ctx, req)
		if method == "ListCryptoKeyVersions" {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
		return resp, err
	})
}

// failLists makes ListCryptoKeyVersions fail.
func (rig *kmsRig) failLists() {
	rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		if method == "ListCryptoKeyVersions" {
			return nil, status.Error(codes.Internal, "no list today")
		}
		return next(ctx, req)
	})
}

// Versions are compared as the numbers they are: Cloud KMS lists them as
// strings, 10 before 2.
func TestRotationNewestVersion(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		for range 11 {
			rig.create()
		}
		time.Sleep(time.Hour)
		rig.signs(12, 0)
		for n := 12; n > 1; n-- {
			rig.server.SetState(rig.version(n), systest.Disabled)
			rig.signs(n-1, 0)
		}
	})
}

// A list of more than one page, whose first ends in the middle of the numbers.
func TestRotationManyVersions(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		for range 129 {
			rig.create()
		}
		time.Sleep(time.Hour)
		first, middle := rig.by(rig.version(1)), rig.by(rig.version(99))
		rig.server.ResetCalls()
		last := rig.signs(130, 0)
		if got := rig.lists(); got != 2 {
			rig.Errorf("ListCryptoKeyVersions was called %d times, want once for each of 2 pages", got)
		}
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		for _, text := range []string{first, middle, last} {
			rig.accepts(keyfunc, text)
		}
	})
}

// A new version is taken up within KeyRefresh, without any signature waiting or
// failing, however slow the list is, and without any token that a verifier
// refuses, though that reads the list at other times.
func TestRotationTakesUpNewVersion(t *testing.T) {
	for _, phase := range []time.Duration{0, time.Minute, 149 * time.Second, 151 * time.Second, 4 * time.Minute} {
		t.Run(phase.String(), func(t *testing.T) {
			kmsBubble(t, func(rig *kmsRig) {
				keyfunc := systest.KMSKeyfunc(rig, rig.Context(), systest.Client(rig, rig.server), rig.cryptoKey)
				time.Sleep(17 * time.Second)
				rig.signs(1, 0)
				rig.delayLists(8 * time.Second)
				for start := time.Now(); time.Since(start) < phase; time.Sleep(time.Second) {
					rig.accepts(keyfunc, rig.signs(1, 0))
				}
				rig.create()
				created := time.Now()
				ctx := systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey)
				by2 := 0
				for ; by2 < 60; time.Sleep(time.Second) {
					before := time.Now()
					text := systest.Sign(rig, ctx, gcpjwt.SigningMethodKMSES256, nil)
					if got := time.Since(before); got != 0 {
						rig.Fatalf("%v after the new version a signature took %v", before.Sub(created), got)
					}
					rig.accepts(keyfunc, text)
					switch systest.Header(rig, text)["kid"] {
					case gcpjwt.KMSKeyID(rig.version(2)):
						by2++
						if age := before.Sub(created); age < systest.Refresh/2 {
							rig.Fatalf("version 2 signs after %v, before verifiers can have read of it", age)
						}
					case gcpjwt.KMSKeyID(rig.version(1)):
						if age := before.Sub(created); age > systest.Refresh || by2 > 0 {
							rig.Fatalf("version 1 still signs %v after version 2 was made", age)
						}
					}
				}
			})
		})
	}
}

// A version that is too new for verifiers waits only where there is another.
func TestRotationSettling(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.create()
		rig.signs(1, 0)
		rig.server.SetState(rig.version(1), systest.Disabled)
		rig.signs(2, 0)
		rig.create()
		time.Sleep(systest.Refresh / 3)
		rig.create()
		time.Sleep(systest.Refresh/2 - 1)
		rig.signs(2, 0) // and has the list read in the background
		synctest.Wait()
		rig.signs(3, 0) // 2 and 3 are settled, 4 wants a nanosecond
		time.Sleep(time.Nanosecond)
		rig.signs(4, 0)

		// Enabled again, a version isn't new.
		rig.server.SetState(rig.version(4), systest.Disabled)
		rig.signs(3, 0)
		rig.server.SetState(rig.version(4), systest.Enabled)
		time.Sleep(systest.Refresh)
		rig.signs(4, 0)
	})
}

// Recovery at once when the version in use is not ENABLED any more, at the
// cost of one reading. If the list doesn't say so yet, as Cloud KMS is
// consistent only in the end, the next version is tried all the same.
func TestRotationVersionInUseGone(t *testing.T) {
	for _, state := range []kmspb.CryptoKeyVersion_CryptoKeyVersionState{
		systest.Disabled, kmspb.CryptoKeyVersion_DESTROY_SCHEDULED, systest.Destroyed,
	} {
		for _, listed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/still listed=%t", state, listed), func(t *testing.T) {
				kmsBubble(t, func(rig *kmsRig) {
					rig.create()
					time.Sleep(time.Hour)
					rig.signs(2, 0)
					if listed {
						kmsFreezeList(rig)
					}
					rig.server.SetState(rig.version(2), state)
					rig.server.ResetCalls()
					rig.signs(1, 0)
					if got := rig.server.Calls("AsymmetricSign"); got != 2 || rig.lists() != 1 {
						rig.Errorf("%d AsymmetricSign and %d ListCryptoKeyVersions, want 2 and 1", got, rig.lists())
					}
					for range 10 {
						rig.signs(1, 0)
					}
				})
			})
		}
	}
}

// kmsFreezeList makes the list stay as it is.
func kmsFreezeList(rig *kmsRig) {
	request := &kmspb.ListCryptoKeyVersionsRequest{Parent: rig.cryptoKey, Filter: "state=ENABLED"}
	var frozen []*kmspb.CryptoKeyVersion
	for version, err := range rig.client.ListCryptoKeyVersions(rig.Context(), request).All() {
		if err != nil {
			rig.Fatal(err)
		}
		frozen = append(frozen, version)
	}
	rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
		resp, err := next(ctx, req)
		if resp, ok := resp.(*kmspb.ListCryptoKeyVersionsResponse); ok {
			resp.CryptoKeyVersions = frozen
		}
		return resp, err
	})
}

// The version in use is disabled and replaced while a reading of the list is
// under way that began before. Its answer is no reason to give up.
func TestRotationReplacedDuringReading(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.signs(1, 0)
		time.Sleep(systest.Refresh / 2)
		rig.delayLists(4 * time.Second)
		rig.signs(1, 0) // sets off the reading, whose answer is {1}
		time.Sleep(time.Second)
		rig.create()
		rig.server.SetState(rig.version(1), systest.Disabled)
		// 3 seconds for that answer, 4 for the next.
		rig.signs(2, 7*time.Second)
	})
}

// The same for a verifier and a kid.
func TestRotationUnknownKeyIDDuringReading(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		old := rig.by(rig.version(1))
		time.Sleep(systest.Refresh / 2)
		rig.delayLists(4 * time.Second)
		rig.accepts(keyfunc, old)
		time.Sleep(time.Second)
		text := rig.by(rig.create())
		start := time.Now()
		if _, err := jwt.Parse(text, keyfunc); err != nil {
			rig.Errorf("jwt.Parse: %v", err)
		}
		if got := time.Since(start); got != 7*time.Second {
			rig.Errorf("jwt.Parse took %v, want 3s for one answer and 4s for the next", got)
		}
	})
}

// While the list cannot be read, what is known signs; if that is disabled, the
// next known version does.
func TestRotationSignsWithoutList(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.create()
		time.Sleep(time.Hour)
		rig.signs(2, 0)
		began := time.Now()
		rig.failLists()
		for time.Since(began) < 20*time.Minute {
			rig.signs(2, 0)
			time.Sleep(20 * time.Second)
		}
		rig.server.SetState(rig.version(2), systest.Disabled)
		for time.Since(began) < systest.Refresh+systest.Stale-time.Second {
			rig.signs(1, 0)
			time.Sleep(20 * time.Second)
		}
		time.Sleep(systest.Refresh + systest.Stale - time.Since(began))
		text, err := gcpjwt.SignedString(systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey), jwt.New(gcpjwt.SigningMethodKMSES256))
		if text != "" || status.Code(err) != codes.Internal {
			rig.Errorf("after an hour and more: SignedString = %q, %v, want INTERNAL", text, err)
		}
		rig.server.Intercept(nil)
		time.Sleep(systest.Backoff)
		rig.signs(1, 0)
	})
}

// Without any version of the method's algorithm there is nothing to sign with.
// Asking for it again and again doesn't mean to read the list each time.
func TestRotationNoVersionOfAlgorithm(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		ctx := systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey)
		refused := func() {
			rig.Helper()
			text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSEdDSA))
			if text != "" || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
				rig.Errorf("SignedString = %q, %v, want ErrAlgorithmMismatch", text, err)
			}
			for _, want := range []string{"KMSEdDSA", "EC_SIGN_ED25519", rig.cryptoKey} {
				if !strings.Contains(err.Error(), want) {
					rig.Errorf("the error is %q, want it to name %s", err, want)
				}
			}
		}
		for range 100 {
			refused()
		}
		if got := rig.lists(); got > 2 {
			rig.Errorf("ListCryptoKeyVersions was called %d times, want at most 2", got)
		}
		if got := rig.server.Calls("AsymmetricSign"); got != 0 {
			rig.Errorf("AsymmetricSign was called %d times, want 0", got)
		}
		rig.signs(1, 0) // which minds neither

		// Made at last, it signs as soon as the cool-down is over.
		rig.create(systest.Ed25519)
		time.Sleep(systest.Cooldown)
		if _, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSEdDSA)); err != nil {
			rig.Errorf("SignedString: %v", err)
		}
		rig.server.SetState(rig.version(2), systest.Disabled)
		if text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSEdDSA)); text != "" || status.Code(err) != codes.FailedPrecondition {
			rig.Errorf("SignedString = %q, %v, want FAILED_PRECONDITION", text, err)
		}
		refused()
	})
}

// Each method signs with the newest version of its own algorithm.
func TestRotationMixedAlgorithms(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		// 1 is P-256.
		for _, algorithm := range []systest.Algorithm{
			systest.Ed25519, systest.PKCS2048, systest.PSS2048, systest.P384, systest.PSS2048, systest.PKCS2048, systest.MLDSA44, systest.P384,
		} {
			rig.create(algorithm)
		}
		time.Sleep(time.Hour)
		ctx := systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey)
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		for algorithm, n := range map[systest.Algorithm]int{
			systest.P256: 1, systest.Ed25519: 2, systest.PSS2048: 6, systest.PKCS2048: 7, systest.MLDSA44: 8, systest.P384: 9,
		} {
			row := systest.RowOf(algorithm)
			text := systest.Sign(rig, ctx, row.Method, nil)
			if got, want := systest.Header(rig, text)["kid"], gcpjwt.KMSKeyID(rig.version(n)); got != want {
				rig.Errorf("%s: version %s signed, want %d", row.Alg, rig.number(got), n)
			}
			rig.accepts(keyfunc, text)
			rig.accepts(keyfunc, systest.SignBare(rig, ctx, row.Method, row.Alg))
			rig.refuses(keyfunc, systest.Forge(text), jwt.ErrTokenSignatureInvalid)

			// The right signature under the name of a version of another algorithm.
			other := gcpjwt.KMSKeyID(rig.version(n%9 + 1))
			rig.refuses(keyfunc, systest.Relabel(rig, text, "kid", other), gcpjwt.ErrAlgorithmMismatch)
		}
		if text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSRS512)); !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
			rig.Errorf("SignedString with RS512 = %q, %v, want ErrAlgorithmMismatch", text, err)
		}
	})
}

// A verifier takes every ENABLED version, by kid or by trying, and no other;
// those don't disturb (R03).
func TestRotationVerifierStates(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		states := map[int]kmspb.CryptoKeyVersion_CryptoKeyVersionState{
			2: kmspb.CryptoKeyVersion_PENDING_GENERATION,
			3: systest.Disabled,
			5: kmspb.CryptoKeyVersion_DESTROY_SCHEDULED,
			6: systest.Destroyed,
			7: kmspb.CryptoKeyVersion_GENERATION_FAILED,
			8: kmspb.CryptoKeyVersion_PENDING_IMPORT,
			9: kmspb.CryptoKeyVersion_IMPORT_FAILED,
		}
		texts, bare := make(map[int]string), make(map[int]string)
		for n := 1; n <= 10; n++ {
			if n > 1 {
				rig.create()
			}
			texts[n] = rig.by(rig.version(n))
			bare[n] = systest.SignBare(rig, systest.KMSContext(rig.Context(), systest.Client(rig, rig.server), rig.version(n)), gcpjwt.SigningMethodKMSES256, "ES256")
		}
		for n, state := range states {
			rig.server.SetState(rig.version(n), state)
		}
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		for n := range texts {
			if _, skipped := states[n]; skipped {
				rig.refuses(keyfunc, texts[n], gcpjwt.ErrUnknownKeyID)
				rig.refuses(keyfunc, bare[n], jwt.ErrTokenSignatureInvalid)
				continue
			}
			rig.accepts(keyfunc, texts[n])
			rig.accepts(keyfunc, bare[n])
		}
		if got, _ := keyfunc(&jwt.Token{Method: jwt.SigningMethodES256}); len(got.(jwt.VerificationKeySet).Keys) != 3 {
			rig.Errorf("without a kid there are %d keys to try, want 3", len(got.(jwt.VerificationKeySet).Keys))
		}

		// What was generated in the meantime is learnt by its kid.
		rig.server.SetState(rig.version(2), systest.Enabled)
		time.Sleep(systest.Cooldown)
		rig.accepts(keyfunc, texts[2])
	})
}

// B19 for versions: unknown kids cost one reading in a cool-down, and none if
// they cannot be kids of ours.
func TestRotationForgedKeyIDs(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		good := rig.by(rig.version(1))
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		forge := func() string {
			return systest.Relabel(rig, good, "kid", fmt.Sprintf("%016x%016x%08x", rand.Uint64(), rand.Uint64(), rand.Uint32()))
		}
		for _, kid := range []any{"", strings.Repeat("k", 257), strings.Repeat("k", 1<<20), 1, []string{"a"}} {
			rig.refuses(keyfunc, systest.Relabel(rig, good, "kid", kid), jwt.ErrTokenUnverifiable)
		}
		if got := rig.lists(); got != 1 {
			rig.Errorf("ListCryptoKeyVersions was called %d times, want the first reading alone", got)
		}

		rig.server.ResetCalls()
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				for range 100 {
					rig.refuses(keyfunc, forge(), gcpjwt.ErrUnknownKeyID)
				}
			})
		}
		group.Wait()
		if got := rig.lists(); got != 1 {
			rig.Errorf("B19: 1,000 forged kids cost %d ListCryptoKeyVersions, want 1", got)
		}
		rig.accepts(keyfunc, good)

		// In the long run: one in each cool-down, of which there are two in half a
		// KeyRefresh, so that none is needed in the background.
		rig.server.ResetCalls()
		start := time.Now()
		for time.Since(start) < time.Hour {
			rig.refuses(keyfunc, forge(), gcpjwt.ErrUnknownKeyID)
			time.Sleep(time.Second)
		}
		if got := rig.lists(); got > 60 {
			rig.Errorf("B19: an hour of forged kids cost %d ListCryptoKeyVersions, want at most 60", got)
		}

		// A new version made right after a forged kid is learnt when the cool-down
		// is over, if no good kid came at a better time.
		time.Sleep(systest.Cooldown)
		rig.refuses(keyfunc, forge(), gcpjwt.ErrUnknownKeyID)
		text := rig.by(rig.create())
		time.Sleep(systest.Cooldown - 1)
		rig.refuses(keyfunc, text, gcpjwt.ErrUnknownKeyID)
		time.Sleep(time.Nanosecond)
		rig.accepts(keyfunc, text)
	})
}

// A disabled version's tokens are refused KeyRefresh later at the latest, by a
// busy verifier and by one that had nothing to do in between.
func TestRotationRevocation(t *testing.T) {
	for _, refresh := range []time.Duration{time.Second, time.Minute, 0, time.Hour} {
		lifetime := refresh
		if lifetime == 0 {
			lifetime = systest.Refresh
		}
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/busy=%t", refresh, busy), func(t *testing.T) {
				kmsBubble(t, func(rig *kmsRig) {
					old := rig.by(rig.version(1))
					rig.create()
					config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client, KeyRefresh: refresh}
					keyfunc, err := gcpjwt.KMSVerifyKeyfunc(rig.Context(), config)
					if err != nil {
						rig.Fatal(err)
					}
					rig.server.SetState(rig.version(1), systest.Disabled)
					start := time.Now()
					rig.accepts(keyfunc, old) // known, and not worth a reading yet
					for busy && time.Since(start) < lifetime-lifetime/20 {
						jwt.Parse(old, keyfunc)
						time.Sleep(lifetime / 20)
					}
					time.Sleep(lifetime - time.Since(start))
					rig.refuses(keyfunc, old, gcpjwt.ErrUnknownKeyID)
				})
			})
		}
	}
}

// In an outage a verifier goes on for KeyRefresh and an hour. Then it says at
// once that it cannot tell, and never that the token is bad.
func TestRotationOutage(t *testing.T) {
	tests := map[string]func(rig *kmsRig){
		"stopped": func(rig *kmsRig) { rig.server.Stop() },
		"failing": func(rig *kmsRig) { kmsFail(codes.Internal)(rig.server) },
		"hanging": func(rig *kmsRig) { systest.Hang(rig.server, "ListCryptoKeyVersions") },
		"denied":  func(rig *kmsRig) { rig.server.Deny("cloudkms.cryptoKeyVersions.list") },
	}
	for name, fail := range tests {
		t.Run(name, func(t *testing.T) {
			kmsBubble(t, func(rig *kmsRig) {
				text := rig.by(rig.version(1))
				keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
				began := time.Now()
				fail(rig)
				rig.server.ResetCalls()
				for time.Since(began) < systest.Refresh+systest.Stale {
					rig.accepts(keyfunc, text)
					rig.refuses(keyfunc, systest.Forge(text), jwt.ErrTokenSignatureInvalid)
					time.Sleep(10 * time.Second)
				}
				// Attempts are spaced out. A gRPC client makes some of its own.
				if got := rig.lists(); name != "stopped" && got > 80 {
					rig.Errorf("%d attempts in %v, want about one a minute", got, time.Since(began))
				}

				var (
					group  sync.WaitGroup
					mu     sync.Mutex
					waited int
				)
				for range 50 {
					group.Go(func() {
						start := time.Now()
						_, err := jwt.Parse(text, keyfunc)
						if !errors.Is(err, gcpjwt.ErrKeysUnavailable) || errors.Is(err, jwt.ErrTokenSignatureInvalid) {
							rig.Errorf("jwt.Parse: %v, want ErrKeysUnavailable alone", err)
						}
						if got := time.Since(start); got > systest.FetchLimit {
							rig.Errorf("jwt.Parse took %v", got)
						} else if got > 0 {
							mu.Lock()
							waited++
							mu.Unlock()
						}
					})
				}
				group.Wait()
				if waited > 1 {
					rig.Errorf("%d of 50 callers queued, want at most the one that tries", waited)
				}
				unknown := systest.Relabel(rig, text, "kid", "unknown")
				rig.refuses(keyfunc, unknown, gcpjwt.ErrKeysUnavailable)

				rig.server.Intercept(nil)
				rig.server.Allow("cloudkms.cryptoKeyVersions.list")
				if err := rig.server.Restart(); err != nil {
					rig.Fatal(err)
				}
				time.Sleep(systest.Backoff + systest.FetchLimit)
				if _, err := jwt.Parse(text, keyfunc); err != nil {
					rig.Errorf("a minute after the outage: jwt.Parse: %v", err)
				}
				rig.accepts(keyfunc, text)
			})
		})
	}
}

// An unknown kid in an outage is no reason to say that the token is bad: the
// version may be a new one.
func TestRotationUnknownKeyIDInOutage(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		good := rig.by(rig.version(1))
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		text := rig.by(rig.create())
		rig.failLists()
		for range 10 {
			rig.refuses(keyfunc, text, gcpjwt.ErrKeysUnavailable)
			rig.accepts(keyfunc, good)
		}
		if got := rig.lists(); got > 3 {
			rig.Errorf("ListCryptoKeyVersions was called %d times, want few", got)
		}
	})
}

// Old keys serve while Cloud KMS is down, not after. A verifier that had
// nothing to do since an outage ended has no excuse for them.
func TestRotationRevocationAfterOutage(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		old := rig.by(rig.version(1))
		rig.create()
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		rig.failLists()
		time.Sleep(systest.Refresh)
		rig.accepts(keyfunc, old)
		rig.server.Intercept(nil)
		rig.server.SetState(rig.version(1), systest.Disabled)
		time.Sleep(4 * systest.Refresh)
		rig.refuses(keyfunc, old, gcpjwt.ErrUnknownKeyID)
	})
}

// An outage that is over when the next callers come, and whose back-off is,
// isn't one for them: several at once all get their signature, though the
// version in use was replaced in the meantime.
func TestRotationCallersAfterOutage(t *testing.T) {
	for _, pause := range []time.Duration{2 * time.Second, 2 * systest.Backoff} {
		t.Run(pause.String(), func(t *testing.T) {
			kmsBubble(t, func(rig *kmsRig) {
				keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
				ctx := systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey)
				rig.failLists()
				time.Sleep(systest.Refresh)
				rig.signs(1, 0) // the one failed attempt, with a back-off of 100 ms
				synctest.Wait()
				rig.server.Intercept(nil)
				rig.create()
				rig.server.SetState(rig.version(1), systest.Disabled)
				time.Sleep(pause)
				rig.delayLists(time.Second)
				var group sync.WaitGroup
				for range 10 {
					group.Go(func() {
						text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSES256))
						if err != nil {
							rig.Errorf("SignedString after the outage: %v", err)
							return
						}
						if _, err := jwt.Parse(text, keyfunc); err != nil {
							rig.Errorf("jwt.Parse: %v", err)
						}
					})
				}
				group.Wait()
			})
		})
	}
}

// The end of a Keyfunc's context ends neither the Keyfunc nor what it waits for (C23).
func TestRotationKeyfuncOutlivesItsContext(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		text := rig.by(rig.version(1))
		ctx, cancel := context.WithTimeout(rig.Context(), time.Minute)
		keyfunc := systest.KMSKeyfunc(rig, ctx, rig.client, rig.cryptoKey)
		cancel()
		rig.accepts(keyfunc, text)
		time.Sleep(2 * systest.Stale) // idle
		rig.delayLists(5 * time.Second)
		start := time.Now()
		if _, err := jwt.Parse(text, keyfunc); err != nil || time.Since(start) != 5*time.Second {
			rig.Errorf("jwt.Parse: %v after %v, want a verified token after 5s", err, time.Since(start))
		}
	})
}

// Configurations of one client share what is known, per KeyRefresh.
func TestRotationShared(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		text := rig.signs(1, 0)
		for range 20 {
			rig.accepts(systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey), text)
			rig.signs(1, 0)
		}
		if got := rig.lists(); got != 1 {
			rig.Errorf("ListCryptoKeyVersions was called %d times, want 1", got)
		}
		if got := rig.server.Calls("GetPublicKey"); got != 1 {
			rig.Errorf("GetPublicKey was called %d times, want 1", got)
		}
		config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client, KeyRefresh: time.Minute}
		systest.Sign(rig, gcpjwt.NewKMSContext(rig.Context(), config), gcpjwt.SigningMethodKMSES256, nil)
		if got := rig.lists(); got != 2 {
			rig.Errorf("with another KeyRefresh: ListCryptoKeyVersions was called %d times, want 2", got)
		}
	})
}

// kmsLog collects what a Logger is told.
type kmsLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *kmsLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// warnings returns the records that warn.
func (l *kmsLog) warnings(t *testing.T) []map[string]any {
	return slices.DeleteFunc(l.records(t), func(record map[string]any) bool { return record["level"] != "WARN" })
}

func (l *kmsLog) records(t *testing.T) (records []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range strings.Split(strings.TrimSpace(l.buf.String()), "\n") {
		if line == "" {
			continue
		}
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("the log line %q: %v", line, err)
		}
		records = append(records, record)
	}
	return records
}

// The Logger hears of failures that no caller sees, and of no others.
func TestRotationLogger(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		log := new(kmsLog)
		config := &gcpjwt.KMSConfig{
			KeyPath: rig.cryptoKey, KMSClient: rig.client,
			Logger: slog.New(slog.NewJSONHandler(log, nil)),
		}
		text := rig.by(rig.version(1))
		rig.server.Deny("cloudkms.cryptoKeyVersions.list")
		if _, err := gcpjwt.KMSVerifyKeyfunc(rig.Context(), config); err == nil {
			rig.Error("KMSVerifyKeyfunc without permission succeeded")
		}
		rig.server.Allow("cloudkms.cryptoKeyVersions.list")
		time.Sleep(systest.NotReady)
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(rig.Context(), config)
		if err != nil {
			rig.Fatal(err)
		}
		rig.accepts(keyfunc, text)
		if got := log.warnings(rig.T); len(got) != 0 {
			rig.Errorf("logged %v, want nothing yet", got)
		}

		rig.server.Deny("cloudkms.cryptoKeyVersions.list")
		time.Sleep(systest.Refresh / 2)
		rig.accepts(keyfunc, text)
		synctest.Wait()
		got := log.warnings(rig.T)
		if len(got) != 1 {
			rig.Fatalf("logged %v, want the one failed renewal", got)
		}
		if got[0]["age"] != float64(systest.Refresh/2) || got[0]["key"] != rig.cryptoKey || !strings.Contains(fmt.Sprint(got[0]["error"]), "cloudkms.cryptoKeyVersions.list") {
			rig.Errorf("logged %v, want a warning that names the key, the age of what is known and the permission", got[0])
		}
	})
}

// A public key that cannot be read keeps nobody from the others, and is read
// when it is needed and can be.
func TestRotationPublicKeyMissing(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.create()
		first, second := rig.by(rig.version(1)), rig.by(rig.version(2))
		rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if req, ok := req.(*kmspb.GetPublicKeyRequest); ok && req.Name == rig.version(2) {
				return nil, status.Error(codes.Internal, "no")
			}
			return next(ctx, req)
		})
		log := new(kmsLog)
		keyfunc, err := gcpjwt.KMSVerifyKeyfunc(rig.Context(), &gcpjwt.KMSConfig{
			KeyPath: rig.cryptoKey, KMSClient: rig.client, Logger: slog.New(slog.NewJSONHandler(log, nil)),
		})
		if err != nil {
			rig.Fatal(err)
		}
		rig.accepts(keyfunc, first)
		rig.refuses(keyfunc, second, gcpjwt.ErrKeysUnavailable)
		rig.accepts(keyfunc, systest.SignBare(rig, systest.KMSContext(rig.Context(), systest.Client(rig, rig.server), rig.version(1)), gcpjwt.SigningMethodKMSES256, "ES256"))
		synctest.Wait()
		if got := log.warnings(rig.T); len(got) != 1 {
			rig.Errorf("logged %v, want a warning", got)
		}
		rig.server.Intercept(nil)
		time.Sleep(systest.Backoff)
		rig.accepts(keyfunc, second)
	})
}

// A first version that is still being generated, and a CryptoKey without any.
func TestRotationNothingYet(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.server.SetState(rig.version(1), kmspb.CryptoKeyVersion_PENDING_GENERATION)
		ctx := systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey)
		if text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSES256)); text != "" || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
			rig.Errorf("SignedString = %q, %v, want ErrAlgorithmMismatch", text, err)
		}
		if _, err := gcpjwt.KMSVerifyKeyfunc(rig.Context(), &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client}); err == nil {
			rig.Error("KMSVerifyKeyfunc succeeded")
		}
		rig.server.SetState(rig.version(1), systest.Enabled)
		time.Sleep(systest.Cooldown)
		rig.signs(1, 0)
		rig.accepts(systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey), rig.by(rig.version(1)))
	})
}

// A token that is signed again gets the kid of the version that then signs.
func TestRotationSignAgain(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		ctx := systest.KMSContext(rig.Context(), rig.client, rig.cryptoKey)
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, jwt.MapClaims{"n": 1})
		text, err := gcpjwt.SignedString(ctx, token)
		if err != nil {
			rig.Fatal(err)
		}
		rig.accepts(keyfunc, text)
		rig.create()
		time.Sleep(time.Hour)
		token.Claims = jwt.MapClaims{"n": 2}
		gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSES256))
		text, err = gcpjwt.SignedString(ctx, token)
		if err != nil {
			rig.Fatal(err)
		}
		if _, err := jwt.Parse(text, keyfunc); err != nil {
			rig.Errorf("second signature of the same token: %v", err)
		}
	})
}

// A token without kid isn't forged if a key that may have signed it cannot be had.
func TestRotationIncompleteKeySet(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.create()
		other := systest.Client(rig, rig.server)
		text := systest.SignBare(rig, systest.KMSContext(rig.Context(), other, rig.version(2)), gcpjwt.SigningMethodKMSES256, "ES256")
		rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if req, ok := req.(*kmspb.GetPublicKeyRequest); ok && req.Name == rig.version(2) {
				return nil, status.Error(codes.Internal, "no")
			}
			return next(ctx, req)
		})
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		_, err := jwt.Parse(text, keyfunc)
		if !errors.Is(err, gcpjwt.ErrKeysUnavailable) {
			rig.Errorf("a good token without kid by a version whose key can't be read: %v", err)
		}
	})
}

// A verification doesn't wait for a public key because a signer happened to read
// the list.
func TestRotationSignersFetchKeysForVerifiers(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.signs(1, 0)
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		rig.create()
		text := rig.by(rig.version(2))
		time.Sleep(systest.Refresh - time.Second)
		rig.signs(1, 0) // sets off the reading
		synctest.Wait()
		rig.server.SetLatency(5 * time.Second)
		rig.accepts(keyfunc, text)
	})
}

// reentrantHandler does something for each record.
type reentrantHandler struct {
	slog.Handler
	f func()
}

func (h reentrantHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h reentrantHandler) Handle(context.Context, slog.Record) error {
	h.f()
	return nil
}

// A log handler may need a token by the key that the record is about.
func TestRotationLoggerSigns(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.create()
		rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if req, ok := req.(*kmspb.GetPublicKeyRequest); ok && req.Name == rig.version(2) {
				return nil, status.Error(codes.Internal, "no")
			}
			return next(ctx, req)
		})
		ctx, cancel := context.WithTimeout(rig.Context(), time.Hour)
		defer cancel()
		config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client}
		config.Logger = slog.New(reentrantHandler{f: func() {
			gcpjwt.SignedString(gcpjwt.NewKMSContext(ctx, config), jwt.New(gcpjwt.SigningMethodKMSES256))
		}})
		start := time.Now()
		gcpjwt.KMSVerifyKeyfunc(ctx, config)
		if d := time.Since(start); d > time.Minute {
			rig.Errorf("stuck for %v (until the context's end)", d)
		}
	})
}

// R03: one destroyed version doesn't stop the verifier; it takes one to be left.
func TestKMSDestroyedVersion(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	first := systest.Create(t, server, systest.P256)
	old := systest.Sign(t, systest.KMSContext(t.Context(), client, first), gcpjwt.SigningMethodKMSES256, nil)
	second, err := server.CreateVersion(systest.CryptoKeyOf(first))
	if err != nil {
		t.Fatal(err)
	}
	server.SetState(first, systest.Destroyed)
	ctx := systest.KMSContext(t.Context(), client, systest.CryptoKeyOf(first))
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(first))
	text := systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)
	if got, want := systest.Header(t, text)["kid"], gcpjwt.KMSKeyID(second); got != want {
		t.Errorf("R03: signed by %v, want version 2", got)
	}
	if _, err := jwt.Parse(text, keyfunc); err != nil {
		t.Errorf("R03: jwt.Parse of a token by version 2: %v", err)
	}
	if _, err := jwt.Parse(old, keyfunc); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
		t.Errorf("R03: jwt.Parse of a token by version 1: %v, want ErrUnknownKeyID", err)
	}

	// All gone. Another client knows nothing of the versions that were.
	server.SetState(second, systest.Destroyed)
	keyfunc, err = gcpjwt.KMSVerifyKeyfunc(t.Context(), &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(first), KMSClient: systest.Client(t, server)})
	if keyfunc != nil || err == nil || !errors.Is(err, gcpjwt.ErrKeysUnavailable) || !strings.Contains(err.Error(), "no version that is ENABLED") {
		t.Errorf("R03: KMSVerifyKeyfunc without any ENABLED version: %v, want ErrKeysUnavailable", err)
	}
}

// B20: after a rotation the new key is accepted at the cost of one more read,
// and what that read no longer shows is refused.
func TestKMSRotationSeenByVerifier(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	a := systest.Create(t, server, systest.P256)
	byA := systest.Sign(t, systest.KMSContext(t.Context(), client, a), gcpjwt.SigningMethodKMSES256, nil)
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(a))
	if _, err := jwt.Parse(byA, keyfunc); err != nil {
		t.Fatalf("B20: jwt.Parse of a token by A: %v", err)
	}
	b, err := server.CreateVersion(systest.CryptoKeyOf(a))
	if err != nil {
		t.Fatal(err)
	}
	byB := systest.Sign(t, systest.KMSContext(t.Context(), client, b), gcpjwt.SigningMethodKMSES256, nil)
	server.SetState(a, systest.Disabled)
	server.ResetCalls()
	if _, err := jwt.Parse(byB, keyfunc); err != nil {
		t.Errorf("B20: jwt.Parse of a token by B: %v", err)
	}
	for range 10 {
		if _, err := jwt.Parse(byA, keyfunc); !errors.Is(err, gcpjwt.ErrUnknownKeyID) {
			t.Errorf("B20: jwt.Parse of a token by A: %v, want ErrUnknownKeyID", err)
		}
	}
	// B's public key is known from signing with it.
	if got := server.Calls(""); got != 1 || server.Calls("ListCryptoKeyVersions") != 1 {
		t.Errorf("B20: %d calls, %d of them ListCryptoKeyVersions, want 1 and 1", got, server.Calls("ListCryptoKeyVersions"))
	}
}

// A CryptoKey whose versions are of different algorithms, as after a move to
// post-quantum keys, verifies all of them, each with its own.
func TestMLDSAMigration(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	classic := systest.Create(t, server, systest.P256)
	cryptoKey := systest.CryptoKeyOf(classic)
	byVersion := map[string]systest.Row{classic: systest.RowOf(systest.P256)}
	for _, tt := range kmsMLDSA {
		version, err := server.CreateVersion(cryptoKey, tt.row.Algorithm)
		if err != nil {
			t.Fatal(err)
		}
		byVersion[version] = tt.row
	}
	ctx := systest.KMSContext(t.Context(), client, cryptoKey)
	keyfunc := systest.KMSKeyfunc(t, t.Context(), client, cryptoKey)
	for version, row := range byVersion {
		text := systest.Sign(t, ctx, row.Method, nil)
		if got, want := systest.Header(t, text)["kid"], gcpjwt.KMSKeyID(version); got != want {
			t.Errorf("%s: signed by %v, want the version of that algorithm", row.Alg, got)
		}
		_, sig := systest.Split(t, text)
		if _, err := jwt.Parse(text, keyfunc); err != nil {
			t.Errorf("%s: jwt.Parse: %v", row.Alg, err)
		}
		if _, err := jwt.Parse(systest.Relabel(t, text, "kid", nil), keyfunc); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
			t.Errorf("%s: jwt.Parse after removing the kid: %v, want ErrTokenSignatureInvalid", row.Alg, err)
		}
		if _, err := jwt.Parse(systest.SignBare(t, ctx, row.Method, row.Alg), keyfunc); err != nil {
			t.Errorf("%s: jwt.Parse of a token without kid: %v", row.Alg, err)
		}
		for _, other := range byVersion {
			if other.Alg == row.Alg {
				continue
			}
			relabelled, _ := systest.Split(t, systest.Relabel(t, text, "alg", other.Alg))
			_, err := jwt.Parse(relabelled+"."+base64.RawURLEncoding.EncodeToString(sig), keyfunc)
			if !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
				t.Errorf("a token by the %s version that says %s: %v, want ErrAlgorithmMismatch", row.Alg, other.Alg, err)
			}
		}
	}
}

// C15: a renewal costs one GetPublicKey for each new version, also where a CryptoKey, or all
// of them together, have more versions than the process keeps in mind otherwise.
func TestRotationManyMoreVersions(t *testing.T) {
	tests := map[string]struct{ keys, versions int }{
		"one key of 5,000":    {1, 5000},
		"110 keys of 40 each": {110, 40},
	}
	for name, tt := range tests {
		t.Run("C15/"+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Minute)
				server, client := systest.StartKMS(t, testutil.InMemory())
				var keys []string
				var keyfuncs []jwt.Keyfunc
				for i := range tt.keys {
					first, err := server.CreateKey(fmt.Sprintf("key-%d", i), systest.Ed25519)
					if err != nil {
						t.Fatal(err)
					}
					keys = append(keys, systest.CryptoKeyOf(first))
					for range tt.versions - 1 {
						if _, err := server.CreateVersion(keys[i]); err != nil {
							t.Fatal(err)
						}
					}
					keyfuncs = append(keyfuncs, systest.KMSKeyfunc(t, t.Context(), client, keys[i]))
				}
				if got, want := server.Calls("GetPublicKey"), tt.keys*tt.versions; got != want {
					t.Errorf("GetPublicKey was called %d times, want %d", got, want)
				}
				other := systest.Client(t, server)
				for renewal := range 2 {
					var texts []string
					for _, key := range keys {
						version, err := server.CreateVersion(key)
						if err != nil {
							t.Fatal(err)
						}
						texts = append(texts, systest.Sign(t, systest.KMSContext(t.Context(), other, version), gcpjwt.SigningMethodKMSEdDSA, nil))
					}
					time.Sleep(systest.Refresh)
					server.ResetCalls()
					for i, keyfunc := range keyfuncs {
						if _, err := jwt.Parse(texts[i], keyfunc); err != nil {
							t.Errorf("jwt.Parse: %v", err)
						}
					}
					synctest.Wait()
					if got := server.Calls("GetPublicKey"); got != tt.keys {
						t.Errorf("renewal %d: GetPublicKey was called %d times, want once for each of %d new versions", renewal+1, got, tt.keys)
					}
				}
			})
		})
	}
}

// C40: a list that hangs is left after 10 seconds, or with the caller's context, though Google's
// REST client takes no notice of either. Four are left behind at most.
func TestRotationHangingList(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, connect kmsConnect) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, _ := systest.StartKMS(t, testutil.InMemory())
			config := kmsUse{algorithm: systest.P256, rotating: true}.config(t, server, connect)
			ctx := gcpjwt.NewKMSContext(t.Context(), config)
			release := make(chan struct{})
			hang := func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
				if method == "ListCryptoKeyVersions" {
					select { // as a server that has lost the client, too
					case <-release:
					case <-ctx.Done():
					}
				}
				return next(ctx, req)
			}
			server.Intercept(hang)
			for range 20 {
				hurried, cancel := context.WithTimeout(ctx, time.Second)
				began := time.Now()
				_, err := gcpjwt.SignedString(hurried, jwt.New(gcpjwt.SigningMethodKMSES256))
				cancel()
				if took := time.Since(began); err == nil || took > time.Second {
					t.Errorf("C40: SignedString: %v after %v, want an error within a second", err, took)
				}
				began = time.Now()
				_, err = gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
				if took := time.Since(began); !errors.Is(err, gcpjwt.ErrKeysUnavailable) || took > systest.FetchLimit+100*time.Millisecond {
					t.Errorf("C40: KMSVerifyKeyfunc: %v after %v, want ErrKeysUnavailable within %v", err, took, systest.FetchLimit)
				}
				time.Sleep(systest.Backoff)
			}
			if got := server.Calls("ListCryptoKeyVersions"); strings.Contains(t.Name(), "REST") && got > 4 {
				t.Errorf("C40: %d lists hang, want 4 at most", got)
			}
			server.Intercept(nil)
			close(release)
			time.Sleep(systest.Backoff)
			if _, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSES256)); err != nil {
				t.Errorf("C40: SignedString once the server answers: %v", err)
			}
		})
	})
}

// C40: a connection that is cut once is nobody's to notice, over REST too.
func TestRotationCutConnection(t *testing.T) {
	t.Parallel()
	for _, use := range kmsUses {
		t.Run(fmt.Sprintf("C40/%s/rotating=%t", use.rpc, use.rotating), func(t *testing.T) {
			t.Parallel()
			server, _ := systest.StartKMS(t)
			config := use.config(t, server, kmsTransports[1].connect)
			server.CutREST(use.rpc, 1)
			if err := kmsSignAndVerify(t.Context(), config, systest.RowOf(use.algorithm)); err != nil {
				t.Errorf("cut once: %v", err)
			}
			// Twice is an outage.
			config.KMSClient = kmsTransports[1].connect(t, server)
			server.CutREST(use.rpc, 1000)
			server.ResetCalls()
			if err := kmsSignAndVerify(t.Context(), config, systest.RowOf(use.algorithm)); err == nil {
				t.Error("cut for good: no error")
			}
			// net/http itself repeats a GET on a connection that had been idle.
			if got := server.Calls(use.rpc); got < 2 || got > 3 {
				t.Errorf("cut for good: %d calls of %s, want 2", got, use.rpc)
			}
		})
	}
}

// ActivationDelay is how long after its generation a version first signs. Where all are newer
// the oldest signs, which most verifiers know.
func TestRotationActivationDelay(t *testing.T) {
	for delay, want := range map[time.Duration]time.Duration{
		0:                systest.Refresh / 2,
		-1:               0,
		-time.Hour:       0,
		time.Nanosecond:  time.Nanosecond,
		time.Minute:      time.Minute,
		20 * time.Minute: 20 * time.Minute,
	} {
		t.Run(delay.String(), func(t *testing.T) {
			kmsBubble(t, func(rig *kmsRig) {
				config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client, ActivationDelay: delay}
				ctx := gcpjwt.NewKMSContext(rig.Context(), config)
				signer, err := gcpjwt.NewKMSSigner(rig.Context(), config)
				if err != nil {
					rig.Fatal(err)
				}
				by := func(n int) {
					rig.Helper()
					text, err := signer.Sign(rig.Context(), jwt.MapClaims{})
					if err != nil {
						rig.Fatal(err)
					}
					for _, text := range []string{text, systest.Sign(rig, ctx, gcpjwt.SigningMethodKMSES256, nil)} {
						if got := systest.Header(rig, text)["kid"]; got != gcpjwt.KMSKeyID(rig.version(n)) {
							rig.Errorf("%v after version 2 was generated version %s signs, want %d", time.Since(rig.generated), rig.number(got), n)
						}
					}
				}
				by(1)
				rig.create()
				rig.generated = time.Now()
				// Another list, as an unknown kid sets off.
				rig.refuses(signer.Keyfunc, systest.Relabel(rig, systest.Sign(rig, ctx, gcpjwt.SigningMethodKMSES256, nil), "kid", "unknown"), gcpjwt.ErrUnknownKeyID)
				for time.Since(rig.generated) < want {
					by(1)
					time.Sleep(min(want/10+1, want-time.Since(rig.generated)))
				}
				by(2)
			})
		})
	}
}

// A CryptoKey whose versions are all new doesn't change its mind with each of them.
func TestRotationAllVersionsNew(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		first, err := rig.server.CreateKey("new", systest.P256)
		if err != nil {
			rig.Fatal(err)
		}
		rig.cryptoKey = systest.CryptoKeyOf(first)
		config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client, KeyRefresh: 10 * time.Second, ActivationDelay: 10 * time.Minute}
		ctx := gcpjwt.NewKMSContext(rig.Context(), config)
		began := time.Now()
		last := 1
		for time.Since(began) < 25*time.Minute {
			if age := time.Since(began); age == 3*time.Minute || age == 6*time.Minute {
				rig.create()
			}
			got := systest.Header(rig, systest.Sign(rig, ctx, gcpjwt.SigningMethodKMSES256, nil))["kid"]
			n, _ := strconv.Atoi(rig.number(got))
			if n < last {
				rig.Errorf("after %v version %d signs, though %d has signed", time.Since(began), n, last)
			}
			if age := time.Since(began) - time.Duration(n-1)*3*time.Minute; n > 1 && age < 10*time.Minute {
				rig.Errorf("version %d signs when it is %v old", n, age)
			}
			last = n
			time.Sleep(10 * time.Second)
		}
		if last != 3 {
			rig.Errorf("in the end version %d signs, want 3", last)
		}
	})
}

// A version whose key was imported has no time of generation: that of the import counts.
func TestRotationImportedVersion(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		rig.create()
		rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			resp, err := next(ctx, req)
			if resp, ok := resp.(*kmspb.ListCryptoKeyVersionsResponse); ok {
				for _, v := range resp.CryptoKeyVersions {
					v.ImportTime, v.GenerateTime = v.GenerateTime, nil
					v.CreateTime = timestamppb.New(time.Now().Add(-time.Hour))
				}
			}
			return resp, err
		})
		rig.signs(1, 0)
		time.Sleep(systest.Refresh/2 - 1)
		rig.signs(1, 0)
		time.Sleep(time.Nanosecond)
		rig.signs(2, 0)
	})
}

// What changes is told (Info): versions that come into use and go out of it, and the first
// signature of each in this process.
func TestRotationTellsOfChanges(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		log := new(kmsLog)
		config := &gcpjwt.KMSConfig{KeyPath: rig.cryptoKey, KMSClient: rig.client, Logger: slog.New(slog.NewJSONHandler(log, nil))}
		ctx := gcpjwt.NewKMSContext(rig.Context(), config)
		told := func(want ...string) {
			rig.Helper()
			synctest.Wait()
			var got []string
			for _, record := range log.records(rig.T) {
				text := strings.TrimPrefix(record["msg"].(string), "gcpjwt: a version of a Cloud KMS key ")
				got = append(got, fmt.Sprint(record["level"], " ", path.Base(record["version"].(string)), " ", text))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				rig.Errorf("told (-want +got):\n%s", diff)
			}
		}
		for range 3 {
			systest.Sign(rig, ctx, gcpjwt.SigningMethodKMSES256, nil)
		}
		want := []string{"INFO 1 comes into use", "INFO 1 signs for the first time in this process"}
		told(want...)
		rig.create()
		for range 3 {
			time.Sleep(systest.Refresh)
			systest.Sign(rig, ctx, gcpjwt.SigningMethodKMSES256, nil)
		}
		want = append(want, "INFO 2 comes into use", "INFO 2 signs for the first time in this process")
		told(want...)
		rig.server.SetState(rig.version(1), systest.Disabled)
		for range 3 {
			time.Sleep(systest.Refresh)
			systest.Sign(rig, ctx, gcpjwt.SigningMethodKMSES256, nil)
		}
		told(append(want, "INFO 1 goes out of use")...)
	})
}

// Public keys that cannot be read in time are left for later, and none is asked for twice.
func TestRotationSlowPublicKeys(t *testing.T) {
	kmsBubble(t, func(rig *kmsRig) {
		for range 99 {
			rig.create()
		}
		text := rig.by(rig.version(1))
		rig.server.ResetCalls()
		rig.server.Intercept(func(ctx context.Context, method string, req proto.Message, next testutil.KMSHandler) (proto.Message, error) {
			if method == "GetPublicKey" {
				time.Sleep(4 * time.Second)
			}
			return next(ctx, req)
		})
		keyfunc := systest.KMSKeyfunc(rig, rig.Context(), rig.client, rig.cryptoKey)
		synctest.Wait()
		if got := rig.server.Calls("GetPublicKey"); got > 30 {
			rig.Errorf("in 10 seconds GetPublicKey was called %d times, want 8 at once, 4 seconds each", got)
		}
		if _, err := jwt.Parse(text, keyfunc); err != nil {
			rig.Errorf("jwt.Parse: %v", err)
		}
		for range 5 { // renewals, each of which fills in some more
			time.Sleep(systest.Refresh)
			jwt.Parse(text, keyfunc)
		}
		synctest.Wait()
		if got := rig.server.Calls("GetPublicKey"); got != 100 {
			rig.Errorf("GetPublicKey was called %d times, want once for each of 100 versions", got)
		}
	})
}
