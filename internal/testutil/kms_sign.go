package testutil

import (
	"context"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"slices"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa/mldsacrypto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func (m keyMaterial) mac(data []byte) []byte {
	h := hmac.New(m.row.opts.HashFunc().New, m.secret)
	h.Write(data)
	return h.Sum(nil)
}

func (k kmsService) GetPublicKey(_ context.Context, req *kmspb.GetPublicKeyRequest) (*kmspb.PublicKey, error) {
	v, err := k.s.usable(req.GetName(), forSigning, forDecryption, forEncapsulation)
	if err != nil {
		return nil, err
	}
	format := req.GetPublicKeyFormat()
	if !slices.Contains(v.row.formats, format) {
		return nil, badFormat(v.keyMaterial, format)
	}
	key, err := encodePublicKey(v.public, format)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	resp := &kmspb.PublicKey{
		Name:            v.name,
		Algorithm:       v.algorithm,
		ProtectionLevel: v.level,
		PublicKeyFormat: format,
	}
	if format == noFormat {
		resp.Pem = string(key)
		resp.PemCrc32C = Checksum(key)
	} else {
		resp.PublicKey = &kmspb.ChecksummedData{Data: key, Crc32CChecksum: Checksum(key)}
	}
	return resp, nil
}

func badFormat(m keyMaterial, format kmspb.PublicKey_PublicKeyFormat) error {
	switch {
	case format == noFormat:
		return status.Errorf(codes.InvalidArgument, "The public_key_format is required for the PQC algorithm %v.", m.algorithm)
	case slices.Equal(m.row.formats, nistOnly):
		return status.Error(codes.InvalidArgument, "Only NIST_PQC format is supported for PQC algorithms.")
	}
	return status.Errorf(codes.InvalidArgument, "The public_key_format %v is not supported for %v.", format, m.algorithm)
}

func (k kmsService) AsymmetricSign(_ context.Context, req *kmspb.AsymmetricSignRequest) (*kmspb.AsymmetricSignResponse, error) {
	if (req.GetDigest() == nil) == (len(req.GetData()) == 0) {
		return nil, status.Error(codes.InvalidArgument, "Exactly one of digest and data is required.")
	}
	if req.GetDigest() == nil && req.DigestCrc32C != nil || req.GetDigest() != nil && req.DataCrc32C != nil {
		return nil, status.Error(codes.InvalidArgument, "digest_crc32c belongs to digest, data_crc32c to data.")
	}
	if err := checkSize("data", req.GetData(), maxData); err != nil {
		return nil, err
	}
	if err := checkCRC("data", req.GetData(), req.DataCrc32C); err != nil {
		return nil, err
	}
	kind, digest := digestOf(req.GetDigest())
	if err := checkCRC("digest", digest, req.DigestCrc32C); err != nil {
		return nil, err
	}
	v, err := k.s.usable(req.GetName(), forSigning)
	if err != nil {
		return nil, err
	}

	input, err := v.signingInput(req.GetData(), req.GetDigest() != nil, kind, digest)
	if err != nil {
		return nil, err
	}
	if v.signer == nil {
		return nil, status.Errorf(codes.Unimplemented, "testutil: the KMS server has no signatures of %v", v.algorithm)
	}
	signature, err := v.signer.Sign(rand.Reader, input, v.row.opts)
	if errors.Is(err, rsa.ErrMessageTooLong) {
		return nil, status.Errorf(codes.InvalidArgument, "The data has %d bytes, too many for %v.", len(input), v.algorithm)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &kmspb.AsymmetricSignResponse{
		Name:                 v.name,
		Signature:            signature,
		SignatureCrc32C:      Checksum(signature),
		VerifiedDigestCrc32C: req.DigestCrc32C != nil,
		VerifiedDataCrc32C:   req.DataCrc32C != nil,
		ProtectionLevel:      v.level,
	}, nil
}

// signingInput returns what is signed of a request that holds either data or a
// digest of a kind.
func (v keyVersion) signingInput(data []byte, digested bool, kind crypto.Hash, digest []byte) ([]byte, error) {
	want := v.row.opts.HashFunc()
	if !digested {
		switch want {
		case 0:
			return data, nil
		case mldsacrypto.MLDSAMu:
			return nil, status.Errorf(codes.InvalidArgument, "The algorithm %v signs a digest.external_mu, not data.", v.algorithm)
		}
		h := want.New()
		h.Write(data)
		return h.Sum(nil), nil
	}
	switch {
	case v.level == kmspb.ProtectionLevel_EXTERNAL || v.level == kmspb.ProtectionLevel_EXTERNAL_VPC:
		return nil, status.Errorf(codes.InvalidArgument, "Keys of protection level %v sign data, not a digest.", v.level)
	case want == 0:
		return nil, status.Errorf(codes.InvalidArgument, "The algorithm %v signs data, not a digest.", v.algorithm)
	case kind != want:
		return nil, status.Errorf(codes.InvalidArgument, "The algorithm %v needs a digest of %s.", v.algorithm, digestName(want))
	case len(digest) != digestSize(want):
		return nil, status.Errorf(codes.InvalidArgument, "The digest has %d bytes, %s has %d.", len(digest), digestName(want), digestSize(want))
	}
	return digest, nil
}

// digestOf returns the kind and the bytes of a digest, no kind if it is empty.
func digestOf(d *kmspb.Digest) (crypto.Hash, []byte) {
	switch d := d.GetDigest().(type) {
	case *kmspb.Digest_Sha256:
		return crypto.SHA256, d.Sha256
	case *kmspb.Digest_Sha384:
		return crypto.SHA384, d.Sha384
	case *kmspb.Digest_Sha512:
		return crypto.SHA512, d.Sha512
	case *kmspb.Digest_ExternalMu:
		return mldsacrypto.MLDSAMu, d.ExternalMu
	}
	return 0, nil
}

// Before Go 1.27 package crypto knows neither size nor name of MLDSAMu.

func digestSize(h crypto.Hash) int {
	if h == mldsacrypto.MLDSAMu {
		return 64
	}
	return h.Size()
}

func digestName(h crypto.Hash) string {
	if h == mldsacrypto.MLDSAMu {
		return "external_mu"
	}
	return h.String()
}

func (k kmsService) MacSign(_ context.Context, req *kmspb.MacSignRequest) (*kmspb.MacSignResponse, error) {
	if err := checkInput("data", req.GetData(), maxData, req.DataCrc32C); err != nil {
		return nil, err
	}
	v, err := k.s.usable(req.GetName(), forMAC)
	if err != nil {
		return nil, err
	}
	tag := v.mac(req.GetData())
	return &kmspb.MacSignResponse{
		Name:               v.name,
		Mac:                tag,
		MacCrc32C:          Checksum(tag),
		VerifiedDataCrc32C: req.DataCrc32C != nil,
		ProtectionLevel:    v.level,
	}, nil
}

func (k kmsService) MacVerify(_ context.Context, req *kmspb.MacVerifyRequest) (*kmspb.MacVerifyResponse, error) {
	if err := checkInput("data", req.GetData(), maxData, req.DataCrc32C); err != nil {
		return nil, err
	}
	if err := checkInput("mac", req.GetMac(), maxMAC, req.MacCrc32C); err != nil {
		return nil, err
	}
	v, err := k.s.usable(req.GetName(), forMAC)
	if err != nil {
		return nil, err
	}
	if size := v.row.opts.HashFunc().Size(); len(req.GetMac()) != size {
		// As in Google's own fake (fakekms); the service's answer isn't documented.
		return nil, status.Errorf(codes.InvalidArgument, "The field mac has %d bytes, a MAC of %v has %d.", len(req.GetMac()), v.algorithm, size)
	}
	success := hmac.Equal(req.GetMac(), v.mac(req.GetData()))
	return &kmspb.MacVerifyResponse{
		Name:                     v.name,
		Success:                  success,
		VerifiedDataCrc32C:       req.DataCrc32C != nil,
		VerifiedMacCrc32C:        req.MacCrc32C != nil,
		VerifiedSuccessIntegrity: success,
		ProtectionLevel:          v.level,
	}, nil
}

const (
	maxData = 64 << 10
	maxMAC  = 64
)

// checkInput refuses a required field that is missing, too long or damaged.
func checkInput(field string, b []byte, limit int, crc *wrapperspb.Int64Value) error {
	if len(b) == 0 {
		return status.Errorf(codes.InvalidArgument, "The field %s is required.", field)
	}
	if err := checkSize(field, b, limit); err != nil {
		return err
	}
	return checkCRC(field, b, crc)
}

func checkSize(field string, b []byte, limit int) error {
	if len(b) > limit {
		return status.Errorf(codes.InvalidArgument, "The field %s has %d bytes, at most %d are allowed.", field, len(b), limit)
	}
	return nil
}

// checkCRC compares the checksum that came with a field, if one did.
func checkCRC(field string, b []byte, crc *wrapperspb.Int64Value) error {
	if crc != nil && crc.GetValue() != Checksum(b).GetValue() {
		return status.Errorf(codes.InvalidArgument, "The checksum in %s_crc32c did not match the field %s.", field, field)
	}
	return nil
}
