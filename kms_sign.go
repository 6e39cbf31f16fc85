package gcpjwt

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"hash/crc32"
	"log/slog"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/retry"
)

// kmsText makes the text that a method is to sign with a version.
type kmsText = func(m *SigningMethodKMS, v *kmsVersion) (string, error)

const useToSign = "cloudkms.cryptoKeyVersions.useToSign (roles/cloudkms.signer)"

// sign signs with m, or with the method that fits the key if m is nil. text is asked for once
// the version is known, and again if that turns out to have been disabled meanwhile.
func (k *kmsKey) sign(
	ctx context.Context, m *SigningMethodKMS, text kmsText,
) (signed string, sig []byte, err error) {
	version, err := k.signingVersion(ctx, m, nil)
	if err != nil {
		return "", nil, err
	}
	signed, sig, err = version.sign(ctx, k.client, m, text)
	if k.rotating == nil || err != nil && rpcCode(err) != codes.FailedPrecondition {
		return signed, sig, err
	}
	if err != nil {
		other, otherErr := k.signingVersion(ctx, m, version)
		if otherErr != nil {
			return "", nil, err
		}
		version = other
		if signed, sig, err = version.sign(ctx, k.client, m, text); err != nil {
			return "", nil, err
		}
	}
	remember(&k.rotating.lastKeyID, version.kid)
	if !version.signed.Swap(true) {
		k.rotating.loggers.Log(slog.LevelInfo,
			"a version of a Cloud KMS key signs for the first time in this process",
			"version", version.name)
	}
	return signed, sig, nil
}

// sign signs with one version; m is nil for the method that fits.
func (v *kmsVersion) sign(
	ctx context.Context, client *kms.KeyManagementClient, m *SigningMethodKMS, text kmsText,
) (string, []byte, error) {
	traits := v.traits.Load()
	if m == nil {
		m = traits.method // a Signer's version has one
	}
	signed, err := text(m, v)
	if err != nil {
		return "", nil, err
	}
	input := m.rows[0].input // of a caller who may not know the algorithm
	if traits != nil {
		row, _ := m.row(traits.algorithm)
		if input = row.input; traits.external && input == sendDigest {
			input = sendData
		}
	}
	var sig []byte
	if input == sendMAC {
		sig, err = macSign(ctx, client, v.name, signed)
	} else {
		sig, err = m.asymmetricSign(ctx, client, v, input, signed)
	}
	switch {
	case traits == nil && rpcCode(err) == codes.InvalidArgument:
		return "", nil, errs.Errorf("%w; if the key is of protection level EXTERNAL or of an "+
			"_EXTERNAL_MU algorithm, grant the caller %s to find out", err, viewPublicKey)
	case err != nil:
		return "", nil, err
	}
	for _, row := range m.rows {
		if len(sig) == row.length && (traits == nil || traits.algorithm == row.algorithm) {
			if input == sendMAC && traits == nil {
				v.isMACOf(m)
			}
			return signed, sig, nil
		}
	}
	return "", nil, errs.Errorf("%w: a signature of %d bytes by %s doesn't fit %s",
		errs.ErrAlgorithmMismatch, len(sig), v.name, m.alias)
}

// maxData is what Cloud KMS takes where it hashes by itself.
const maxData = 64 << 10

// checkSize refuses a text that Cloud KMS would refuse.
func checkSize(signingString string) error {
	if len(signingString) > maxData {
		return errs.Errorf("the key signs at most %d bytes of header and payload, not %d: "+
			"use fewer or shorter claims", maxData, len(signingString))
	}
	return nil
}

// asymmetricSign makes the one RPC of a signature and checks its answer.
func (m *SigningMethodKMS) asymmetricSign(
	ctx context.Context, client *kms.KeyManagementClient,
	v *kmsVersion, input kmsInput, signingString string,
) ([]byte, error) {
	request := &kmspb.AsymmetricSignRequest{Name: v.name}
	switch input {
	case sendDigest:
		request.Digest, request.DigestCrc32C = digestOf(m.hash, []byte(signingString))
	case sendMu:
		prefix, err := v.muPrefix(ctx, client, m)
		if err != nil {
			return nil, err
		}
		request.Digest, request.DigestCrc32C = muOf(prefix, signingString)
	default:
		if err := checkSize(signingString); err != nil {
			return nil, err
		}
		request.Data = []byte(signingString)
		request.DataCrc32C = checksum(request.Data)
	}
	op := calling{
		verb: "sign with", name: v.name, grant: useToSign, missing: "KeyPath", sent: signingString,
	}
	var sig []byte
	err := op.do(ctx, retry.Sign, func(ctx context.Context) error {
		response, err := client.AsymmetricSign(ctx, request, once)
		switch {
		case err != nil:
			return err
		case response.Name != v.name:
			return op.corrupt("it comes from %s", errs.Quote(response.Name))
		case request.DigestCrc32C != nil && !response.VerifiedDigestCrc32C,
			request.DataCrc32C != nil && !response.VerifiedDataCrc32C:
			return op.corrupt("the request arrived unverified")
		case !intact(response.Signature, response.SignatureCrc32C):
			return op.corrupt("the signature's checksum is wrong")
		}
		sig = response.Signature
		if m.algorithm.Order != nil {
			if sig, err = m.algorithm.FromDER(sig); err != nil {
				return op.corrupt("%w", err)
			}
		}
		return nil
	})
	return sig, err
}

// digestOf returns the digest of data as Cloud KMS takes it, and its checksum.
func digestOf(hash crypto.Hash, data []byte) (*kmspb.Digest, *wrapperspb.Int64Value) {
	switch hash {
	case crypto.SHA256:
		sum := sha256.Sum256(data)
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha256{Sha256: sum[:]}}, checksum(sum[:])
	case crypto.SHA384:
		sum := sha512.Sum384(data)
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha384{Sha384: sum[:]}}, checksum(sum[:])
	default:
		sum := sha512.Sum512(data)
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha512{Sha512: sum[:]}}, checksum(sum[:])
	}
}

// muSize is the length of ML-DSA's digest, and of that of the public key in it.
const muSize = 64

// muPrefix returns what ML-DSA puts in front of a text, with an empty context string (FIPS
// 204, algorithm 2, line 10, and algorithm 7, line 6). A version makes it once: hashing the
// public key takes longer than all else that is done for a signature.
func muPrefix(key *mldsa.PublicKey) []byte {
	const wholeMessage, contextLength = 0, 0
	return append(sha3.SumSHAKE256(key.Bytes(), muSize), wholeMessage, contextLength)
}

// muOf returns the message representative that ML-DSA signs.
func muOf(prefix []byte, signingString string) (*kmspb.Digest, *wrapperspb.Int64Value) {
	hash := sha3.NewSHAKE256()
	hash.Write(prefix)
	hash.Write([]byte(signingString))
	mu := make([]byte, muSize)
	hash.Read(mu)
	return &kmspb.Digest{Digest: &kmspb.Digest_ExternalMu{ExternalMu: mu}}, checksum(mu)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the CRC32C that Cloud KMS sends and expects.
func checksum(data []byte) *wrapperspb.Int64Value {
	return wrapperspb.Int64(int64(crc32.Checksum(data, castagnoli)))
}

// intact reports whether a response's checksum is there and right.
func intact(data []byte, sum *wrapperspb.Int64Value) bool {
	return sum != nil && sum.Value == int64(crc32.Checksum(data, castagnoli))
}
