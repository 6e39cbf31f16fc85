package gcpjwt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/appengine/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/someone1/gcp-jwt-go/v3/internal/refresh"
)

// SigningMethodAppEngineImpl is the type of [SigningMethodAppEngine].
type SigningMethodAppEngineImpl struct {
	method
	lastKeyID atomic.Pointer[string]
}

// SigningMethodAppEngine signs as the service account of an App Engine Standard
// application through its App Identity service, with a key that Google holds and
// rotates. It works where the app has the bundled services (app_engine_apis:
// true in app.yaml). It is registered with jwt as AppEngine.
//
// Its key for Sign and token.SignedString is a context, best that of a request
// that passed appengine.Middleware, as App Engine may ask for that request's
// ticket; no configuration is needed. For Verify it is a [*rsa.PublicKey].
var SigningMethodAppEngine = &SigningMethodAppEngineImpl{
	method: method{alias: "AppEngine", alg: certificateAlg, verifier: jwt.SigningMethodRS256},
}

// Sign has App Engine sign signingString and returns the RSASSA-PKCS1-v1_5
// signature. key is a context, whose end ends the call.
//
// Which of the app's keys signs is Google's choice, and known only afterwards;
// [SignedString] gets the kid right nevertheless.
func (m *SigningMethodAppEngineImpl) Sign(signingString string, key any) ([]byte, error) {
	ctx, err := signingContext(key)
	if err != nil {
		return nil, err
	}
	kid, sig, err := signForApp(ctx, signingString)
	if err != nil {
		return nil, err
	}
	remember(&m.lastKeyID, kid)
	return sig, nil
}

func (m *SigningMethodAppEngineImpl) signedString(ctx context.Context, token *jwt.Token) (string, error) {
	setAlg(token, m.alg)
	return signLearningKeyID(token, m.alg, &m.lastKeyID, func(signingString string) (string, []byte, error) {
		return signForApp(ctx, signingString)
	})
}

func signForApp(ctx context.Context, signingString string) (kid string, sig []byte, err error) {
	type signature struct {
		kid string
		sig []byte
	}
	signed, err := callAppEngine(ctx, "SignForApp", signingString, func(ctx context.Context) (s signature, err error) {
		s.kid, s.sig, err = appengine.SignBytes(ctx, []byte(signingString))
		return s, err
	})
	switch {
	case err != nil:
		return "", nil, err
	case signed.kid == "" || !isRSASignature(signed.sig):
		return "", nil, fmt.Errorf("%w: SignForApp: no RSA signature or no key name in it", ErrIntegrity)
	}
	return signed.kid, signed.sig, nil
}

// callAppEngine makes a call through the App Engine SDK, which takes no notice of
// a context's cancellation and has an error of its own for a deadline. The
// caller leaves when its context ends; the call runs out by the deadline, or
// after the SDK's 60 seconds. sent is what must not be repeated in an error.
func callAppEngine[T any](ctx context.Context, name, sent string, call func(ctx context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var done result
	if ctx.Done() == nil {
		done.value, done.err = call(ctx) // nothing to leave for
	} else {
		results := make(chan result, 1)
		go func() {
			growStack(0)
			value, err := call(ctx)
			results <- result{value, err}
		}()
		select {
		case done = <-results:
		case <-ctx.Done():
			done.err = ctx.Err()
		}
	}
	switch {
	case done.err == nil:
		return done.value, nil
	case appengine.IsTimeoutError(done.err) && !errors.Is(done.err, context.DeadlineExceeded):
		done.err = fmt.Errorf("%w: %w", context.DeadlineExceeded, done.err)
	}
	return done.value, fmt.Errorf("gcpjwt: App Engine's %s (which takes App Engine Standard with app_engine_apis: true): %w", name, foreign(ctx, done.err, sent))
}

// growStack makes room for a call through the SDK in one step. The stack of a new
// goroutine would double several times in that call, and be copied each time.
//
//go:noinline
func growStack(i int) byte {
	var room [6 << 10]byte
	return room[i]
}

// appEngineCache holds the app's certificates, by how long they are kept where
// App Engine doesn't say.
var appEngineCache = newRegistry[time.Duration, refresh.Value[*keySet]]()

func appEngineCertificates(enableCache bool, cacheExpiration time.Duration) *certificates {
	src := &certificates{
		fetch:      fetchAppEngineCertificates,
		expiration: cacheExpiration,
		stale:      defaultStaleIfError,
		signer:     "App Engine",
	}
	if enableCache {
		src.cached = appEngineCache.get(cacheExpiration, func() *refresh.Value[*keySet] { return new(refresh.Value[*keySet]) })
	}
	return src
}

// fetchAppEngineCertificates does what appengine.PublicCertificates does, except
// that it doesn't drop the lifetime that App Engine states.
func fetchAppEngineCertificates(ctx context.Context) (*keySet, time.Duration, bool, error) {
	const call = "GetPublicCertificatesForApp"
	response, err := callAppEngine(ctx, call, "", func(ctx context.Context) (*emptypb.Empty, error) {
		// The response's message type is internal to the SDK. As an empty message
		// all of it is unknown fields.
		response := new(emptypb.Empty)
		err := appengine.APICall(ctx, "app_identity_service", call, new(emptypb.Empty), response)
		return response, err
	})
	if err != nil {
		return nil, 0, false, err
	}
	pems, lifetime, ok, err := parseAppEngineCertificates(response.ProtoReflect().GetUnknown())
	if err != nil {
		return nil, 0, false, fmt.Errorf("gcpjwt: App Engine's %s: %w", call, err)
	}
	set, err := certificateKeys(pems)
	if err != nil {
		err = fmt.Errorf("gcpjwt: App Engine's %s: %w", call, err)
	}
	return set, lifetime, ok, err
}

// parseAppEngineCertificates reads a GetPublicCertificateForAppResponse:
// certificates {key_name = 1, x509_certificate_pem = 2} = 1,
// max_client_cache_time_in_second = 2.
func parseAppEngineCertificates(message []byte) (pems map[string][]byte, lifetime time.Duration, ok bool, err error) {
	pems = make(map[string][]byte)
	err = eachField(message, func(number protowire.Number, value []byte, integer uint64) error {
		switch {
		case number == 1 && value != nil:
			var kid string
			var text []byte
			if err := eachField(value, func(number protowire.Number, value []byte, _ uint64) error {
				switch number {
				case 1:
					kid = string(value)
				case 2:
					text = value
				}
				return nil
			}); err != nil {
				return err
			}
			pems[kid] = text
		case number == 2 && value == nil && integer <= math.MaxInt64: // it is signed
			lifetime, ok = time.Duration(min(integer, uint64(maxLifetime/time.Second)))*time.Second, true
		}
		return nil
	})
	return pems, lifetime, ok, err
}

// eachField calls f with each field of a protocol buffer message: value for
// bytes, else integer.
func eachField(message []byte, f func(number protowire.Number, value []byte, integer uint64) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var value []byte
		var integer uint64
		switch kind {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			integer, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := f(number, value, integer); err != nil {
			return err
		}
	}
	return nil
}
