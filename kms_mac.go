package gcpjwt

import (
	"context"
	"errors"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/keyset"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

func macSign(
	ctx context.Context, client *kms.KeyManagementClient, name, signingString string,
) ([]byte, error) {
	if err := checkSize(signingString); err != nil {
		return nil, err
	}
	op := calling{
		verb: "sign with", name: name, grant: useToSign, missing: "KeyPath", sent: signingString,
	}
	data := []byte(signingString)
	request := &kmspb.MacSignRequest{Name: name, Data: data, DataCrc32C: checksum(data)}
	var mac []byte
	err := op.do(ctx, retry.Sign, func(ctx context.Context) error {
		response, err := client.MacSign(ctx, request, once)
		switch {
		case err != nil:
			return err
		case response.Name != name:
			return op.corrupt("it comes from %s", errs.Quote(response.Name))
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

// isMACOf takes note that the version is a MAC key of m's algorithm.
func (v *kmsVersion) isMACOf(m *SigningMethodKMS) {
	v.traits.Store(&kmsTraits{algorithm: m.rows[0].algorithm, method: m})
}

// isMAC reports whether the version is known to be a MAC key.
func (v *kmsVersion) isMAC() bool {
	traits := v.traits.Load()
	return traits != nil && traits.method != nil && traits.method.isMAC()
}

// macKey is what the Keyfuncs return for keys that never leave Cloud KMS: where
// to ask, and the versions that may have signed.
type macKey struct {
	ctx    context.Context
	client *kms.KeyManagementClient
	method *SigningMethodKMS
	names  []string
}

// VerifiedByCall says that each verification costs a call, so that whoever can tell that a
// token is of no use without its signature does so first.
func (k *macKey) VerifiedByCall() {}

// Join returns the key that stands for this one and other.
func (k *macKey) Join(other any) any {
	joined := *k
	joined.names = append(append([]string(nil), k.names...), other.(*macKey).names...)
	return &joined
}

// verifyMAC verifies MACs of the method's algorithm.
func (m *SigningMethodKMS) verifyMAC(signingString string, sig []byte, key any) error {
	k, ok := key.(*macKey)
	if ctx, isContext := key.(context.Context); isContext {
		var err error
		if k, err = m.macKeyFromContext(ctx); err != nil {
			return err
		}
	} else if !ok {
		return errs.Errorf("the key of %s never leaves Cloud KMS: use KMSVerifyKeyfunc's key, not %T: %w",
			m.algorithm.Name, key, jwt.ErrInvalidKeyType)
	}
	if k.method != m {
		return errs.Errorf("%w: the key is one for %s, not %s",
			errs.ErrAlgorithmMismatch, k.method.algorithm.Name, m.algorithm.Name)
	}
	// Cloud KMS would refuse another length, or check it with another algorithm's key.
	if len(sig) != m.hash.Size() || len(signingString) > maxData {
		return errs.Errorf("not a MAC of %s: %w", m.algorithm.Name, jwt.ErrSignatureInvalid)
	}
	ctx, cancel := context.WithTimeout(k.ctx, keyset.ReadTimeout)
	defer cancel()
	var failure error
	for _, name := range k.names {
		good, err := macVerify(ctx, k.client, name, signingString, sig)
		if good {
			return nil
		}
		if failure == nil || errors.Is(err, errs.ErrKeysUnavailable) {
			failure = err // an outage outweighs a version that is disabled
		}
	}
	if failure != nil {
		return failure
	}
	return jwt.ErrSignatureInvalid
}

// macKeyFromContext does what a Keyfunc does for a token without kid.
func (m *SigningMethodKMS) macKeyFromContext(ctx context.Context) (*macKey, error) {
	key, err := contextKey(ctx)
	if err != nil {
		return nil, err
	}
	if key.pinned != nil {
		if traits := key.pinned.traits.Load(); traits != nil && traits.method != m {
			return nil, key.pinned.fits(ctx, key.client, m)
		}
		return &macKey{ctx, key.client, m, []string{key.pinned.name}}, nil
	}
	found, err := keyset.Keyfunc(ctx, key.source)(&jwt.Token{Method: m})
	if err != nil {
		return nil, err
	}
	joined := *found.(*macKey)
	joined.ctx = ctx // whose end ends the call
	return &joined, nil
}

const useToVerify = "cloudkms.cryptoKeyVersions.useToVerify (roles/cloudkms.verifier)"

// macVerify asks Cloud KMS whether a version made mac.
func macVerify(
	ctx context.Context, client *kms.KeyManagementClient, name, signingString string, mac []byte,
) (bool, error) {
	good, err := askMAC(ctx, client, name, signingString, mac)
	switch rpcCode(err) {
	case codes.OK:
		return good, nil
	case codes.FailedPrecondition, codes.NotFound:
		// Disabled or destroyed since it was listed: it verifies nothing.
		return false, errs.Errorf("%w: %w", errs.ErrUnknownKeyID, err)
	case codes.InvalidArgument:
		return false, errs.Errorf("%w: the key makes MACs of another length: %w",
			errs.ErrAlgorithmMismatch, err)
	}
	return false, keyset.Unavailable(err)
}

func askMAC(
	ctx context.Context, client *kms.KeyManagementClient, name, signingString string, mac []byte,
) (good bool, err error) {
	op := calling{
		verb: "verify with", name: name, grant: useToVerify, missing: "KeyPath", sent: signingString,
	}
	data := []byte(signingString)
	request := &kmspb.MacVerifyRequest{
		Name: name,
		Data: data, DataCrc32C: checksum(data),
		Mac: mac, MacCrc32C: checksum(mac),
	}
	err = op.do(ctx, retry.Read, func(ctx context.Context) error {
		response, err := client.MacVerify(ctx, request, once)
		switch {
		case err != nil:
			return err
		case response.Name != name:
			return op.corrupt("it comes from %s", errs.Quote(response.Name))
		case !response.VerifiedDataCrc32C || !response.VerifiedMacCrc32C:
			return op.corrupt("the request arrived unverified")
		case response.VerifiedSuccessIntegrity != response.Success:
			return op.corrupt("its verdict contradicts itself")
		}
		good = response.Success
		return nil
	})
	return good, err
}

// probeMAC finds the methods that a version without a public key may be for, by the call
// that verification will make, with a MAC of each length. It takes no other permission than
// that. A MAC key of an algorithm without method has none.
func probeMAC(
	ctx context.Context, client *kms.KeyManagementClient, name string,
) ([]*SigningMethodKMS, error) {
	ctx, cancel := context.WithTimeout(ctx, keyset.ReadTimeout)
	defer cancel()
	methods := []*SigningMethodKMS{}
	for _, m := range kmsMethods {
		if !m.isMAC() {
			continue
		}
		_, err := askMAC(ctx, client, name, "x", make([]byte, m.hash.Size()))
		switch {
		case err == nil:
			methods = append(methods, m)
		case rpcCode(err) != codes.InvalidArgument: // which is of another length's MAC
			return nil, err
		}
	}
	return methods, nil
}
