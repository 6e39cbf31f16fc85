package gcpjwt

import (
	"context"
	"errors"
	"iter"
	"math"
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
	last lastKey
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
	m.implement("AppEngine", algorithm.ByName(certificateAlg))
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
	remember(&m.last.id, kid)
	return sig, nil
}

func (m *SigningMethodAppEngineImpl) signedString(ctx context.Context, d *draft) (string, error) {
	sign := func(text string) (string, []byte, error) { return signForApp(ctx, text) }
	return signLearningKeyID(d, certificateAlg, &m.last, sign)
}

func signForApp(ctx context.Context, text string) (kid string, sig []byte, err error) {
	type signature struct {
		kid string
		sig []byte
	}
	sign := func(ctx context.Context) (s signature, err error) {
		s.kid, s.sig, err = appengine.SignBytes(ctx, []byte(text))
		return s, err
	}
	signed, err := callAppEngine(ctx, "SignForApp", text, sign)
	switch {
	case err != nil:
		return "", nil, err
	case signed.kid == "" || !isRSASignature(signed.sig):
		return "", nil, errs.Errorf("%w: SignForApp: no RSA signature or no key name in it",
			ErrIntegrity)
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
func callAppEngine[T any](
	ctx context.Context, name, sent string, call func(ctx context.Context) (T, error),
) (T, error) {
	carryOut := abandon[T]
	if ctx.Done() == nil {
		// The SDK heeds a deadline, and a goroutine takes a fifth of a call on loopback.
		carryOut = attend[T]
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, appEngineTimeout)
		defer cancel()
	}
	value, err := carryOut(ctx, appEngineCalls, call)
	if err == nil {
		return value, nil
	}
	if appengine.IsTimeoutError(err) && !errors.Is(err, context.DeadlineExceeded) {
		err = errs.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	const needs = " (which takes App Engine Standard with app_engine_apis: true)"
	op := calling{verb: "App Engine's", name: name + needs, sent: sent}
	return value, op.failed(ctx, err)
}

// appEngineCache holds the app's certificates, by how long they are kept where
// App Engine doesn't say. A process is one app.
var appEngineCache = registry.New[time.Duration, keyset.Shared]()

// appEngineCertificates returns the key source of the app. Calls carry the values of ctx, as
// App Engine may ask for the ticket of a request.
func appEngineCertificates(
	ctx context.Context, cached bool, expiration time.Duration,
) *keyset.Published {
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
	source.Tell(nil)
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
func parseAppEngineCertificates(message []byte) (map[string][]byte, fetch.Lifetime, error) {
	const maxSeconds = math.MaxInt64 / uint64(time.Second)
	pems := make(map[string][]byte)
	var lifetime fetch.Lifetime
	for field, err := range fields(message) {
		if err != nil {
			return nil, fetch.Lifetime{}, err
		}
		switch {
		case field.number == 1 && field.bytes != nil:
			var kid string
			var text []byte
			for field, err := range fields(field.bytes) {
				if err != nil {
					return nil, fetch.Lifetime{}, err
				}
				switch field.number {
				case 1:
					kid = string(field.bytes)
				case 2:
					text = field.bytes
				}
			}
			pems[kid] = text
		case field.number == 2 && field.bytes == nil && field.integer <= math.MaxInt64: // it is signed
			lifetime.Stated = true
			lifetime.Value = time.Duration(min(field.integer, maxSeconds)) * time.Second
		}
	}
	return pems, lifetime, nil
}

// field is a field of a protocol buffer message: of bytes, or else of an integer.
type field struct {
	number  protowire.Number
	bytes   []byte
	integer uint64
}

// fields returns the fields of a message, and an error in the place of what isn't one.
func fields(message []byte) iter.Seq2[field, error] {
	return func(yield func(field, error) bool) {
		for len(message) > 0 {
			f, n := consumeField(message)
			if n < 0 {
				yield(f, protowire.ParseError(n))
				return
			}
			if !yield(f, nil) {
				return
			}
			message = message[n:]
		}
	}
}

// consumeField reads the field that message begins with, and how long it is. A negative length
// is an error.
func consumeField(message []byte) (f field, n int) {
	number, kind, n := protowire.ConsumeTag(message)
	if n < 0 {
		return f, n
	}
	f.number = number
	var m int
	switch kind {
	case protowire.BytesType:
		f.bytes, m = protowire.ConsumeBytes(message[n:])
	case protowire.VarintType:
		f.integer, m = protowire.ConsumeVarint(message[n:])
	default:
		m = protowire.ConsumeFieldValue(number, kind, message[n:])
	}
	if m < 0 {
		return f, m
	}
	return f, n + m
}
