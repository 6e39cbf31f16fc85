// Package gcpjwttest has servers for the tests of programs that use gcpjwt, as httptest has for
// those that use net/http. There are Cloud KMS, the IAM Credentials API with the certificates of
// service accounts, and App Engine. They listen on loopback, speak Google's protocols and hold
// real keys. Google's own clients run unmodified. No test needs Google Cloud, credentials or a
// network.
//
// It is for tests only. Whoever reaches a server can have it sign, and its keys end with the test.
//
// A test of code that makes tokens gives it the configuration of a key or an account:
//
//	config := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
//
// A test of code that verifies tokens has a Signer make some, and gives the code its Keyfunc:
//
//	signer := gcpjwttest.NewSigner(t)
//	token, err := signer.Sign(t.Context(), claims)
//
// The servers refuse what Google refuses. Told to, they rotate keys, deny permissions, fail and go
// down. They end with the test and leave no goroutine behind. Each is independent of all
// others, so that tests can be parallel, except with [NewAppEngine].
//
// A method that is given what makes no sense, such as the name of no key, ends the test. So it
// is for the goroutine of the test.
package gcpjwttest

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// NewSigner returns a Signer of ES256 tokens with a Cloud KMS server of its own. Its Keyfunc
// verifies them. Each has a key of its own, but all have the same kid. For a kid that a verifier
// doesn't know, make a Signer of the second key of one KMS, by [KMS.NewKey].
func NewSigner(t testing.TB) *gcpjwt.Signer {
	t.Helper()
	signer, err := gcpjwt.NewKMSSigner(t.Context(), NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256))
	if err != nil {
		t.Fatalf("gcpjwttest: NewSigner: %v", err)
	}
	return signer
}

// server is what all servers have in common.
type server struct {
	t    testing.TB
	fake interface {
		Methods() []string
		Calls(method string) int
		FailNext(method string, err error) error
	}
}

// Fail makes the next call of a method fail with err, and one call more each time that it is
// called. What gcpjwt tries again, such as UNAVAILABLE and 503, isn't seen unless every attempt
// fails. For Cloud KMS err is a gRPC status error, for the others a *googleapi.Error, of which
// Code, Header and Body, or else Message, make the answer (App Engine's: Code and Message).
func (s *server) Fail(method string, err error) {
	s.t.Helper()
	s.must(s.fake.FailNext(method, err))
}

// Calls returns how many calls of a method have arrived, refused ones included, or of all methods
// if it is "". A token by signBlob or SignForApp takes two if its key is new to the process.
func (s *server) Calls(method string) int {
	s.t.Helper()
	if method != "" {
		s.known("method", method, s.fake.Methods())
	}
	return s.fake.Calls(method)
}

// known ends the test unless a name is one of those that there are.
func (s *server) known(what, name string, names []string) {
	s.t.Helper()
	if !slices.Contains(names, name) {
		s.t.Fatalf("gcpjwttest: no %s %q; there are %q", what, name, names)
	}
}

// must ends the test if there is an error.
func (s *server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("gcpjwttest: %s", strings.TrimPrefix(err.Error(), "testutil: "))
	}
}

// logger writes to the log of the test.
func (s *server) logger() *slog.Logger { return slog.New(slog.NewTextHandler(s.t.Output(), nil)) }
