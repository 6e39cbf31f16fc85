package gcpjwt

import (
	"context"
	"crypto"
	"errors"
	"fmt"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The HMAC signing methods. The key never leaves Cloud KMS, so a verification
// is a call too (MacVerify), one for each token. For Verify they take what
// [KMSVerifyKeyfunc]'s Keyfunc returns, or a context that carries a [KMSConfig]
// as Sign does; its end ends the call. A wrong MAC is
// [jwt.ErrSignatureInvalid], a MAC that could not be checked is
// [ErrKeysUnavailable].
var (
	SigningMethodKMSHS256 = kmsMethod("KMSHS256") // HS256: HMAC_SHA256
	SigningMethodKMSHS384 = kmsMethod("KMSHS384") // HS384: HMAC_SHA384
	SigningMethodKMSHS512 = kmsMethod("KMSHS512") // HS512: HMAC_SHA512
)

func macSign(ctx context.Context, client *kms.KeyManagementClient, name, signingString string) ([]byte, error) {
	op := kmsCall{ctx, "sign with", name, "cloudkms.cryptoKeyVersions.useToSign (roles/cloudkms.signer)", signingString}
	data := []byte(signingString)
	request := &kmspb.MacSignRequest{Name: name, Data: data, DataCrc32C: checksum(data)}
	var mac []byte
	err := op.attempt(func() error {
		response, err := client.MacSign(ctx, request)
		switch {
		case err != nil:
			return op.failed(err)
		case response.Name != name:
			return op.corrupt("it comes from %s", quote(response.Name))
		case !response.VerifiedDataCrc32C:
			return op.corrupt("the request arrived unverified")
		case !intact(response.Mac, response.MacCrc32C):
			return op.corrupt("the MAC's checksum is wrong")
		}
		mac = response.Mac
		return nil
	})
	return mac, err
}

// macKey is what the Keyfuncs return for keys that never leave Cloud KMS: where
// to ask, and the versions that may have signed.
type macKey struct {
	ctx    context.Context
	client *kms.KeyManagementClient
	method *SigningMethodKMS
	names  []string
}

// and adds the versions of another key, which may be nil.
func (k *macKey) and(other *macKey) *macKey {
	if other != nil {
		k.names = append(other.names, k.names...)
	}
	return k
}

// macVerifier verifies MACs of one algorithm.
type macVerifier struct{ alg string }

func (v macVerifier) Verify(signingString string, sig []byte, key any) error {
	k, ok := key.(*macKey)
	if ctx, isContext := key.(context.Context); isContext {
		var err error
		if k, err = macKeyFromContext(ctx, v.alg); err != nil {
			return err
		}
	} else if !ok {
		return fmt.Errorf("gcpjwt: the key of %s never leaves Cloud KMS: use KMSVerifyKeyfunc's key, not %T: %w", v.alg, key, jwt.ErrInvalidKeyType)
	}
	// Cloud KMS would check another length with another algorithm's key.
	if method := kmsMethodByAlg[v.alg]; len(sig) != method.hash.Size() || len(signingString) > maxData {
		return fmt.Errorf("gcpjwt: not a MAC of %s: %w", v.alg, jwt.ErrSignatureInvalid)
	}
	ctx, cancel := context.WithTimeout(k.ctx, fetchTimeout)
	defer cancel()
	var failure error
	for _, name := range k.names {
		good, err := macVerify(ctx, k.client, name, signingString, sig)
		if good {
			return nil
		}
		if failure == nil || errors.Is(err, ErrKeysUnavailable) {
			failure = err // an outage outweighs a version that is disabled
		}
	}
	if failure != nil {
		return failure
	}
	return jwt.ErrSignatureInvalid
}

// macKeyFromContext does what a Keyfunc does for a token without kid.
func macKeyFromContext(ctx context.Context, alg string) (*macKey, error) {
	config, ok := KMSFromContext(ctx)
	if !ok {
		return nil, fmt.Errorf("%w: the context carries no *KMSConfig: make it with NewKMSContext", ErrMissingConfig)
	}
	key, err := config.key(ctx)
	if err != nil {
		return nil, err
	}
	method := kmsMethodByAlg[alg]
	if key.pinned != nil {
		return &macKey{ctx, key.client, method, []string{key.pinned.name}}, nil
	}
	found, err := keyfunc(ctx, &rotatingKeys{key.rotating, key.source})(&jwt.Token{Method: method})
	if err != nil {
		return nil, err
	}
	return found.(*macKey), nil
}

// macVerify asks Cloud KMS whether a version made mac.
func macVerify(ctx context.Context, client *kms.KeyManagementClient, name, signingString string, mac []byte) (good bool, err error) {
	op := kmsCall{ctx, "verify with", name, "cloudkms.cryptoKeyVersions.useToVerify (roles/cloudkms.verifier)", signingString}
	data := []byte(signingString)
	request := &kmspb.MacVerifyRequest{
		Name: name,
		Data: data, DataCrc32C: checksum(data),
		Mac: mac, MacCrc32C: checksum(mac),
	}
	err = op.attempt(func() error {
		response, err := client.MacVerify(ctx, request, retriedBriefly)
		switch {
		case err != nil:
			return op.failed(err)
		case response.Name != name:
			return op.corrupt("it comes from %s", quote(response.Name))
		case !response.VerifiedDataCrc32C || !response.VerifiedMacCrc32C:
			return op.corrupt("the request arrived unverified")
		case response.VerifiedSuccessIntegrity != response.Success:
			return op.corrupt("its verdict contradicts itself")
		}
		good = response.Success
		return nil
	})
	switch status.Code(err) {
	case codes.OK:
		return good, nil
	case codes.FailedPrecondition, codes.NotFound:
		// Disabled or destroyed since it was listed: it verifies nothing.
		return false, fmt.Errorf("%w: %w", ErrUnknownKeyID, err)
	}
	return false, unavailable(err)
}

// probeMAC finds out whether a version without a public key is a MAC key in use,
// by the call that verification will make. It takes no other permission than that.
func probeMAC(ctx context.Context, client *kms.KeyManagementClient, name string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	_, err := macVerify(ctx, client, name, "x", make([]byte, crypto.SHA256.Size()))
	if status.Code(err) == codes.InvalidArgument {
		return nil // a MAC key, but not of SHA-256
	}
	return err
}
