package gcpjwt

import (
	"context"
	"log/slog"
	"sync"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/inside"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// Signer makes tokens with one key or account. It finds the signing method by itself, writes
// the RFC algorithm and the kid that verifiers look for, and verifies its own tokens. It may be
// used concurrently. The zero value is none: its methods return [ErrMissingConfig].
//
// Code that makes tokens best takes an interface with the one method that it calls, so that its
// tests need no Google Cloud:
//
//	interface {
//		Sign(ctx context.Context, claims jwt.Claims) (string, error)
//	}
type Signer struct {
	signs   signs
	keyfunc func() jwt.Keyfunc // is made when it is first needed
	keys    func(ctx context.Context) ([]jwks.Key, error)
	logger  *slog.Logger // of the configuration; nil: none
}

func init() {
	inside.LoggerOf = func(signer any) *slog.Logger { return signer.(*Signer).logger }
}

// signs is what signers differ in.
type signs interface {
	signDraft(ctx context.Context, d *draft) (string, error)
	method() jwt.SigningMethod
}

// NewKMSSigner returns a Signer of the key that config names. It reads the key's algorithm, so
// that a configuration that cannot work shows at start-up and nobody has to state the algorithm.
//
// Where KeyPath names a CryptoKey, the newest ENABLED version signs, of whatever algorithm it
// is: to change the algorithm, create a version of another one. The list of versions states
// algorithms, so that this takes cloudkms.cryptoKeyVersions.list (roles/cloudkms.viewer) and
// useToSign (roles/cloudkms.signer), but not viewPublicKey. Where KeyPath names a
// CryptoKeyVersion, it takes viewPublicKey (roles/cloudkms.publicKeyViewer) and useToSign. A MAC
// key has no public key; its algorithm is found by one MacSign.
//
// A key of EC_SIGN_ED25519 signs EdDSA tokens. The end of ctx ends only what NewKMSSigner itself
// reads, which takes 10 seconds at most. config is copied.
//
// The error is [ErrMissingConfig], [ErrInvalidConfig], [ErrAlgorithmMismatch] for a key that no
// signing method is for, [ErrKeysUnavailable] for a CryptoKey without an ENABLED version, or
// Google's.
func NewKMSSigner(ctx context.Context, config *KMSConfig) (*Signer, error) {
	switch {
	case config == nil:
		return nil, errs.Errorf("%w: NewKMSSigner needs a *KMSConfig", ErrMissingConfig)
	case ctx == nil:
		return nil, errNilContext("NewKMSSigner")
	}
	reading, cancel := keyset.Waiting(ctx)
	defer cancel()
	own := *config
	key, err := own.key(reading)
	if err != nil {
		return nil, err
	}
	if key.pinned != nil {
		err = key.signerMethod(reading)
	} else {
		_, err = key.signingVersion(reading, nil, nil)
	}
	if err != nil {
		return nil, err
	}
	return &Signer{
		signs:   &kmsSigner{key},
		keyfunc: sync.OnceValue(func() jwt.Keyfunc { return key.keyfunc(ctx) }),
		keys:    own.PublicKeys,
		logger:  own.Logger,
	}, nil
}

// NewIAMSigner returns a Signer as the service account that config names: with signJwt if
// IAMType is [IAMJwtType], else with signBlob. It makes no call. config is copied.
//
// The error is [ErrMissingConfig] or [ErrInvalidConfig].
func NewIAMSigner(ctx context.Context, config *IAMConfig) (*Signer, error) {
	switch {
	case config == nil:
		return nil, errs.Errorf("%w: NewIAMSigner needs an *IAMConfig", ErrMissingConfig)
	case ctx == nil:
		return nil, errNilContext("NewIAMSigner")
	}
	own := *config
	own.Delegates = append([]string(nil), config.Delegates...)
	if err := own.check(); err != nil {
		return nil, err
	}
	keyfunc, err := own.VerifyKeyfunc(ctx)
	if err != nil {
		return nil, err
	}
	m := SigningMethodIAMBlob
	if own.IAMType == IAMJwtType {
		m = SigningMethodIAMJWT
	}
	return &Signer{
		signs:   &iamSigner{m, &own},
		keyfunc: func() jwt.Keyfunc { return keyfunc },
		keys:    own.PublicKeys,
		logger:  own.Logger,
	}, nil
}

// NewAppEngineSigner returns a Signer as the app's own account. Sign's context reaches App
// Engine: that of a request that passed appengine.Middleware lends it the request's ticket. The
// app's certificates are cached.
func NewAppEngineSigner() *Signer {
	source := appEngineCertificates(context.Background(), true, 0)
	keyfunc := keyset.Keyfunc(context.Background(), source)
	return &Signer{
		signs:   appEngineSigner{},
		keyfunc: func() jwt.Keyfunc { return keyfunc },
		keys: func(ctx context.Context) ([]jwks.Key, error) {
			return publishedKeys(ctx, appEngineCertificates(ctx, true, 0))
		},
	}
}

// Sign returns claims as a signed JWT. ctx is that of the call: its end ends it, and what it
// carries goes along, such as a trace. Give it a deadline: without one a call may take a minute.
//
// The errors are those of [SignedString].
func (s *Signer) Sign(ctx context.Context, claims jwt.Claims) (string, error) {
	switch {
	case s == nil || s.signs == nil:
		return "", errNoSigner
	case ctx == nil:
		return "", errNilContext("Sign")
	}
	header := inside.Header(ctx)
	if header != nil && header["typ"] == nil {
		header["typ"] = "JWT"
	}
	d, err := newDraft(header, claims)
	if err != nil {
		return "", err
	}
	return s.signs.signDraft(ctx, d)
}

// Keyfunc is a [jwt.Keyfunc] for tokens by the Signer's key: jwt.Parse(text, signer.Keyfunc). It
// accepts what [KMSVerifyKeyfunc], [IAMVerifyKeyfunc] or [AppEngineVerifyKeyfunc] accepts, with
// the same errors, and takes the same permissions.
func (s *Signer) Keyfunc(token *jwt.Token) (any, error) {
	if s == nil || s.signs == nil {
		return nil, errNoSigner
	}
	return s.keyfunc()(token)
}

// PublicKeys returns the keys that tokens may be verified with now, as the method of the
// Signer's configuration does. A Signer is a [jwks.Source].
func (s *Signer) PublicKeys(ctx context.Context) ([]jwks.Key, error) {
	switch {
	case s == nil || s.signs == nil:
		return nil, errNoSigner
	case ctx == nil:
		return nil, errNilContext("PublicKeys")
	}
	return s.keys(ctx)
}

// Method returns the method that fits the key now. That of a CryptoKey changes when a version
// of another algorithm comes into use, and is nil while none is ENABLED. It is also nil for a
// zero Signer.
func (s *Signer) Method() jwt.SigningMethod {
	if s == nil || s.signs == nil {
		return nil
	}
	return s.signs.method()
}

var errNoSigner = errs.Errorf("%w: the zero value is no Signer: "+
	"make it with NewKMSSigner, NewIAMSigner or NewAppEngineSigner", ErrMissingConfig)

type kmsSigner struct{ key *kmsKey }

func (s *kmsSigner) signDraft(ctx context.Context, d *draft) (string, error) {
	text, sig, err := s.key.sign(ctx, nil, d.kmsText)
	if err != nil {
		return "", err
	}
	return withSegment(text, sig), nil
}

func (s *kmsSigner) method() jwt.SigningMethod {
	version := s.key.pinned
	if s.key.rotating != nil {
		version = s.key.rotating.last.Load().newest(nil, s.key.source.delay, nil)
	}
	if version == nil {
		return nil // every version has been disabled
	}
	return version.traits.Load().method
}

// keyfunc makes the Keyfunc of a Signer's key. Its reads are those of the tokens that come, so
// that an outage now is none for good.
func (k *kmsKey) keyfunc(ctx context.Context) jwt.Keyfunc {
	if k.rotating != nil {
		k.rotating.verifies.Store(true)
		return keyset.Keyfunc(ctx, k.source)
	}
	key := k.pinned.keyOf(k.client, k.pinned.traits.Load().method)
	return keyset.Keyfunc(ctx, pinnedKeys{keyset.New([]*keyset.Key{key})})
}

type iamSigner struct {
	by     *SigningMethodIAM
	config *IAMConfig
}

func (s *iamSigner) signDraft(ctx context.Context, d *draft) (string, error) {
	return s.by.callSigned(ctx, s.config, d)
}

func (s *iamSigner) method() jwt.SigningMethod { return s.by }

type appEngineSigner struct{}

func (appEngineSigner) signDraft(ctx context.Context, d *draft) (string, error) {
	return SigningMethodAppEngine.signedString(ctx, d)
}

func (appEngineSigner) method() jwt.SigningMethod { return SigningMethodAppEngine }
