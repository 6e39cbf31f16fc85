package gcpjwt

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"google.golang.org/appengine/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/fetch"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/internal/registry"
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
var SigningMethodAppEngine = appEngineMethod()

func appEngineMethod() *SigningMethodAppEngineImpl {
	m := new(SigningMethodAppEngineImpl)
	m.alias, m.algorithm = "AppEngine", algorithm.ByName(certificateAlg)
	m.verify = m.algorithm.Method.Verify
	return m
}

// Sign has App Engine sign signingString and returns the RSASSA-PKCS1-v1_5
// signature. key is a context, whose end ends the call.
//
// Which of the app's keys signs is Google's choice, and known only afterwards;
// [SignedString] gets the kid right nevertheless.
func (m *SigningMethodAppEngineImpl) Sign(signingString string, key any) ([]byte, error) {
	ctx, err := m.checkSign(signingString, key)
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

func (m *SigningMethodAppEngineImpl) signedString(ctx context.Context, d *draft) (string, error) {
	return signLearningKeyID(d, certificateAlg, &m.lastKeyID, func(signingString string) (string, []byte, error) {
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
		return "", nil, errs.Errorf("%w: SignForApp: no RSA signature or no key name in it", ErrIntegrity)
	}
	return signed.kid, signed.sig, nil
}

// appEngineCalls bounds the calls through the App Engine SDK, which takes no notice of a
// context's cancellation and has 100 connections for all of the app.
var appEngineCalls = newAbandonable(32)

// appEngineTimeout bounds a call where the caller sets no deadline. The SDK alone would wait
// for 60 seconds.
const appEngineTimeout = 10 * time.Second

// callAppEngine makes a call through the SDK, which has an error of its own for a deadline.
// sent is what must not be repeated in an error.
func callAppEngine[T any](ctx context.Context, name, sent string, call func(ctx context.Context) (T, error)) (T, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, appEngineTimeout)
		defer cancel()
	}
	value, err := abandon(ctx, appEngineCalls, call)
	if err == nil {
		return value, nil
	}
	if appengine.IsTimeoutError(err) && !errors.Is(err, context.DeadlineExceeded) {
		err = errs.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	op := calling{verb: "App Engine's", name: name + " (which takes App Engine Standard with app_engine_apis: true)", sent: sent}
	return value, op.failed(ctx, err)
}

// appEngineCache holds the app's certificates, by how long they are kept where
// App Engine doesn't say. A process is one app.
var appEngineCache = registry.New[time.Duration, keyset.Shared]()

// appEngineCertificates returns the key source of the app. Calls carry the values of ctx, as
// App Engine may ask for the ticket of a request.
func appEngineCertificates(ctx context.Context, cached bool, expiration time.Duration) *keyset.Published {
	ctx = context.WithoutCancel(ctx)
	source := &keyset.Published{
		Shared:     appEngineCache.Get(expiration, func() *keyset.Shared { return new(keyset.Shared) }),
		Allows:     isCertificateAlg,
		Cached:     cached,
		Expiration: expiration,
		Signer:     "App Engine",
		Read: func(bounded context.Context, _ bool) (*keyset.Set, fetch.Lifetime, error) {
			end, _ := bounded.Deadline()
			ctx, cancel := context.WithDeadline(ctx, end)
			defer cancel()
			return readAppEngineCertificates(ctx)
		},
	}
	source.Loggers.Add(nil)
	return source
}

// readAppEngineCertificates does what appengine.PublicCertificates does, except
// that it doesn't drop the lifetime that App Engine states.
func readAppEngineCertificates(ctx context.Context) (*keyset.Set, fetch.Lifetime, error) {
	const call = "GetPublicCertificatesForApp"
	response, err := callAppEngine(ctx, call, "", func(ctx context.Context) (*emptypb.Empty, error) {
		// The response's message type is internal to the SDK. As an empty message
		// all of it is unknown fields.
		response := new(emptypb.Empty)
		err := appengine.APICall(ctx, "app_identity_service", call, new(emptypb.Empty), response)
		return response, err
	})
	if err != nil {
		return nil, fetch.Lifetime{}, err
	}
	pems, lifetime, err := parseAppEngineCertificates(response.ProtoReflect().GetUnknown())
	if err != nil {
		return nil, fetch.Lifetime{}, errs.Errorf("App Engine's %s: %w", call, err)
	}
	set, err := certificateKeys(pems)
	if err != nil {
		return nil, fetch.Lifetime{}, errs.Errorf("App Engine's %s: %w", call, err)
	}
	return set, lifetime, nil
}

// parseAppEngineCertificates reads a GetPublicCertificateForAppResponse:
// certificates {key_name = 1, x509_certificate_pem = 2} = 1,
// max_client_cache_time_in_second = 2.
func parseAppEngineCertificates(message []byte) (pems map[string][]byte, lifetime fetch.Lifetime, err error) {
	const maxSeconds = math.MaxInt64 / uint64(time.Second)
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
			lifetime = fetch.Lifetime{Stated: true, Value: time.Duration(min(integer, maxSeconds)) * time.Second}
		}
		return nil
	})
	return pems, lifetime, err
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
