package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"
	htransport "google.golang.org/api/transport/http"
	"google.golang.org/appengine/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/protoadapt"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// stopwatch adds up the time that calls take.
type stopwatch struct{ sum atomic.Int64 }

func (s *stopwatch) read() time.Duration { return time.Duration(s.sum.Load()) }

func (s *stopwatch) add(began time.Time) { s.sum.Add(int64(time.Since(began))) }

// unary measures calls over gRPC.
func (s *stopwatch) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	defer s.add(time.Now())
	return invoke(ctx, method, request, reply, conn, options...)
}

// appEngine measures calls of the App Engine SDK.
func (s *stopwatch) appEngine(ctx context.Context) context.Context {
	return appengine.WithAPICallFunc(ctx, func(ctx context.Context, service, method string, in, out protoadapt.MessageV1) error {
		defer s.add(time.Now())
		return appengine.APICall(ctx, service, method, in, out)
	})
}

// timed measures HTTP requests, down to the last byte of the answer.
type timed struct {
	http.RoundTripper
	stopwatch *stopwatch
}

func (t timed) RoundTrip(request *http.Request) (*http.Response, error) {
	defer t.stopwatch.add(time.Now())
	response, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, err
}

// connect measures keys on Google Cloud.
func (b *bed) connect(ctx context.Context, keyPaths []string, account string) error {
	if appengine.IsAppEngine() {
		if err := b.addAppEngine(ctx); err != nil {
			return err
		}
	}
	if account != "" {
		transport, err := htransport.NewTransport(ctx, timed{http.DefaultTransport, &b.calls}, option.WithScopes(iamcredentials.CloudPlatformScope))
		if err != nil {
			return err
		}
		service, err := iamcredentials.NewService(ctx, option.WithHTTPClient(&http.Client{Transport: transport}))
		if err != nil {
			return err
		}
		if err := b.addIAM(ctx, gcpjwt.IAMConfig{ServiceAccount: account, IAMService: service}); err != nil {
			return err
		}
	}
	if len(keyPaths) == 0 {
		return nil
	}
	client, err := b.kmsClient(ctx)
	if err != nil {
		return err
	}
	for _, path := range keyPaths {
		config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client}
		method, err := methodOf(ctx, config)
		if err != nil {
			return err
		}
		if err := b.addKMS(ctx, config, method, path[strings.LastIndex(path, "/cryptoKeys/")+len("/cryptoKeys/"):]); err != nil {
			return err
		}
	}
	return nil
}

// methods are those that the verification of a signature takes no call for.
var methods = []*gcpjwt.SigningMethodKMS{
	gcpjwt.SigningMethodKMSES256, gcpjwt.SigningMethodKMSES384,
	gcpjwt.SigningMethodKMSRS256, gcpjwt.SigningMethodKMSRS512,
	gcpjwt.SigningMethodKMSPS256, gcpjwt.SigningMethodKMSPS512,
	gcpjwt.SigningMethodKMSEdDSA,
	gcpjwt.SigningMethodKMSMLDSA44, gcpjwt.SigningMethodKMSMLDSA65, gcpjwt.SigningMethodKMSMLDSA87,
}

// methodOf finds the method that a key is for. The library refuses all others,
// if the caller may read the public key.
func methodOf(ctx context.Context, config *gcpjwt.KMSConfig) (*gcpjwt.SigningMethodKMS, error) {
	for _, m := range methods {
		_, err := (signer{config.KeyPath, gcpjwt.NewKMSContext(ctx, config), m}).sign()
		switch {
		case err == nil:
			return m, nil
		case !errors.Is(err, gcpjwt.ErrAlgorithmMismatch):
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s is for none of the signing methods measured here", config.KeyPath)
}

// kmsClient makes a client whose calls are measured.
func (b *bed) kmsClient(ctx context.Context, options ...option.ClientOption) (*kms.KeyManagementClient, error) {
	options = append(options, option.WithGRPCDialOption(grpc.WithUnaryInterceptor(b.calls.unary)))
	client, err := kms.NewKeyManagementClient(ctx, options...)
	if err == nil {
		b.onClose(client.Close)
	}
	return client, err
}

// embedded are the keys on the embedded servers: those of the tables that v2 had
// in its README, and two of kinds that Cloud KMS got later.
var embedded = []struct {
	size      string
	algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm
	method    *gcpjwt.SigningMethodKMS
}{
	{"", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, gcpjwt.SigningMethodKMSES256},
	{"", kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384, gcpjwt.SigningMethodKMSES384},
	{"2048", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_2048_SHA256, gcpjwt.SigningMethodKMSPS256},
	{"3072", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_3072_SHA256, gcpjwt.SigningMethodKMSPS256},
	{"4096", kmspb.CryptoKeyVersion_RSA_SIGN_PSS_4096_SHA256, gcpjwt.SigningMethodKMSPS256},
	{"2048", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, gcpjwt.SigningMethodKMSRS256},
	{"3072", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_3072_SHA256, gcpjwt.SigningMethodKMSRS256},
	{"4096", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_4096_SHA256, gcpjwt.SigningMethodKMSRS256},
	{"", kmspb.CryptoKeyVersion_EC_SIGN_ED25519, gcpjwt.SigningMethodKMSEdDSA},
	{"", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_65, gcpjwt.SigningMethodKMSMLDSA65},
}

// embed measures keys on embedded servers.
func (b *bed) embed(ctx context.Context, rtt time.Duration) error {
	app, err := testutil.NewAppEngine()
	if err != nil {
		return err
	}
	b.onClose(func() error { app.Close(); return nil })
	app.SetLatency(rtt)
	if err := b.addAppEngine(app.Context(ctx)); err != nil {
		return err
	}

	iam, err := testutil.NewIAM()
	if err != nil {
		return err
	}
	b.onClose(func() error { iam.Close(); return nil })
	iam.SetLatency(rtt)
	const account = "api-signer@example.iam.gserviceaccount.com"
	if _, err := iam.CreateAccount(account); err != nil {
		return err
	}
	client := &http.Client{Transport: timed{iam.Client().Transport, &b.calls}}
	service, err := iamcredentials.NewService(ctx, option.WithEndpoint(iam.URL()), option.WithHTTPClient(client))
	if err != nil {
		return err
	}
	if err := b.addIAM(ctx, gcpjwt.IAMConfig{ServiceAccount: account, IAMService: service, CertificateURL: iam.CertificateURL()}); err != nil {
		return err
	}

	server, err := testutil.NewKMS()
	if err != nil {
		return err
	}
	b.onClose(func() error { server.Close(); return nil })
	server.SetLatency(rtt)
	kmsClient, err := b.kmsClient(ctx, option.WithEndpoint(server.Addr()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		return err
	}
	for _, e := range embedded {
		version, err := server.CreateKey(e.method.Alg()+"-"+e.size, e.algorithm)
		if err != nil {
			return err
		}
		if err := b.addKMS(ctx, &gcpjwt.KMSConfig{KeyPath: version, KMSClient: kmsClient}, e.method, e.size); err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) addAppEngine(ctx context.Context) error {
	ctx = b.calls.appEngine(ctx)
	s := signer{"AppEngine", ctx, gcpjwt.SigningMethodAppEngine}
	token, err := s.sign()
	if err != nil {
		return err
	}
	b.signers = append(b.signers, s)
	b.verifiers = append(b.verifiers,
		verifier{"AppEngineVerify", "false", gcpjwt.AppEngineVerifyKeyfunc(ctx, false, 0), token},
		verifier{"AppEngineVerify", "true", gcpjwt.AppEngineVerifyKeyfunc(ctx, true, 0), token},
	)
	return nil
}

func (b *bed) addIAM(ctx context.Context, config gcpjwt.IAMConfig) error {
	config.Client = &http.Client{Transport: timed{http.DefaultTransport, &b.calls}}
	cached := config
	cached.EnableCache = true
	ctx = gcpjwt.NewIAMContext(ctx, &config)
	blob := signer{"IAMBlob", ctx, gcpjwt.SigningMethodIAMBlob}
	token, err := blob.sign()
	if err != nil {
		return err
	}
	b.signers = append(b.signers, blob, signer{"IAMJWT", ctx, gcpjwt.SigningMethodIAMJWT})
	b.verifiers = append(b.verifiers,
		verifier{"IAMVerify", "false", gcpjwt.IAMVerifyKeyfunc(ctx, &config), token},
		verifier{"IAMVerify", "true", gcpjwt.IAMVerifyKeyfunc(ctx, &cached), token},
	)
	return nil
}

// addKMS adds a key, with a note that tells it from others, such as its size.
func (b *bed) addKMS(ctx context.Context, config *gcpjwt.KMSConfig, method *gcpjwt.SigningMethodKMS, note string) error {
	alias := method.Alg()
	name, alg := alias, strings.TrimPrefix(alias, "KMS")
	if note != "" {
		name += " (" + note + ")"
		alg = note + "-" + alg
	}
	s := signer{name, gcpjwt.NewKMSContext(ctx, config), method}
	token, err := s.sign()
	if err != nil {
		return err
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(ctx, config)
	if err != nil {
		return err
	}
	b.signers = append(b.signers, s)
	b.verifiers = append(b.verifiers, verifier{"KMSVerify (" + alg + ")", "always", keyfunc, token})
	return nil
}
