package testutil_test

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

func TestKMSRefusals(t *testing.T) { overEach(t, testKMSRefusals) }

func testKMSRefusals(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	_, rs256 := createKey(t, s, "rs256", kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256)
	_, es384 := createKey(t, s, "es384", kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384)
	_, eddsa := createKey(t, s, "eddsa", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	_, pqc := createKey(t, s, "mldsa", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44)
	_, hs256 := createKey(t, s, "hs256", kmspb.CryptoKeyVersion_HMAC_SHA256)
	_, aes := createKey(t, s, "aes", kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION)
	_, off := createKey(t, s, "off", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	s.SetState(off, disabled)
	_, hsOff := createKey(t, s, "hs-off", kmspb.CryptoKeyVersion_HMAC_SHA256)
	s.SetState(hsOff, destroyed)
	_, es256k := createKey(t, s, "es256k", kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256)
	_, externalMu := createKey(t, s, "mu", kmspb.CryptoKeyVersion_PQ_SIGN_ML_DSA_44_EXTERNAL_MU)
	_, slhdsa := createKey(t, s, "slhdsa", kmspb.CryptoKeyVersion_PQ_SIGN_SLH_DSA_SHA2_128S)
	_, raw := createKey(t, s, "raw", kmspb.CryptoKeyVersion_RSA_SIGN_RAW_PKCS1_2048)
	_, oaep := createKey(t, s, "oaep", kmspb.CryptoKeyVersion_RSA_DECRYPT_OAEP_2048_SHA256)
	_, kem := createKey(t, s, "kem", kmspb.CryptoKeyVersion_KEM_XWING)
	_, external := createKey(t, s, "external", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, kmspb.ProtectionLevel_EXTERNAL)
	_, vpc := createKey(t, s, "vpc", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, kmspb.ProtectionLevel_EXTERNAL_VPC)
	key := strings.TrimSuffix(rs256, "/cryptoKeyVersions/1")

	data := []byte("header.payload")
	wrong := wrapperspb.Int64(testutil.Checksum(data).Value + 1)
	sha256Digest, sha384Digest := digestOf(crypto.SHA256, data), digestOf(crypto.SHA384, data)
	mu := &kmspb.Digest{Digest: &kmspb.Digest_ExternalMu{ExternalMu: make([]byte, 64)}}
	big := make([]byte, 64<<10+1)
	ctx := t.Context()

	sign := func(req *kmspb.AsymmetricSignRequest) func() error {
		return func() error { _, err := client.AsymmetricSign(ctx, req); return err }
	}
	macSign := func(req *kmspb.MacSignRequest) func() error {
		return func() error { _, err := client.MacSign(ctx, req); return err }
	}
	macVerify := func(req *kmspb.MacVerifyRequest) func() error {
		return func() error { _, err := client.MacVerify(ctx, req); return err }
	}
	public := func(req *kmspb.GetPublicKeyRequest) func() error {
		return func() error { _, err := client.GetPublicKey(ctx, req); return err }
	}
	list := func(req *kmspb.ListCryptoKeyVersionsRequest) func() error {
		return func() error { _, err := client.ListCryptoKeyVersions(ctx, req).Next(); return err }
	}
	create := func(req *kmspb.CreateCryptoKeyVersionRequest) func() error {
		return func() error { _, err := client.CreateCryptoKeyVersion(ctx, req); return err }
	}
	update := func(name string, state kmspb.CryptoKeyVersion_CryptoKeyVersionState, paths ...string) func() error {
		return func() error {
			_, err := client.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
				CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: name, State: state},
				UpdateMask:       &fieldmaskpb.FieldMask{Paths: paths},
			})
			return err
		}
	}
	unknownField := func(m proto.Message) {
		m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	}
	withUnknown := &kmspb.AsymmetricSignRequest{Name: rs256, Digest: sha256Digest}
	unknownField(withUnknown)
	withNestedUnknown := &kmspb.AsymmetricSignRequest{Name: rs256, Digest: digestOf(crypto.SHA256, data)}
	unknownField(withNestedUnknown.Digest)

	tests := []struct {
		name string
		call func() error
		code codes.Code
		text string
	}{
		{"no name", sign(&kmspb.AsymmetricSignRequest{Data: data}), codes.InvalidArgument, "malformed"},
		{"name of a CryptoKey", sign(&kmspb.AsymmetricSignRequest{Name: key, Data: data}), codes.InvalidArgument, "malformed"},
		{"name with a bad character", sign(&kmspb.AsymmetricSignRequest{Name: key + "/cryptoKeyVersions/1?", Data: data}), codes.InvalidArgument, "malformed"},
		{"name with an ID too long", sign(&kmspb.AsymmetricSignRequest{Name: key + "/cryptoKeyVersions/" + strings.Repeat("1", 64), Data: data}), codes.InvalidArgument, "malformed"},
		{"unknown version", sign(&kmspb.AsymmetricSignRequest{Name: key + "/cryptoKeyVersions/2", Data: data}), codes.NotFound, "cryptoKeyVersions/2 not found"},
		{"unknown key", sign(&kmspb.AsymmetricSignRequest{Name: key + "x/cryptoKeyVersions/1", Data: data}), codes.NotFound, "not found"},
		{"neither digest nor data", sign(&kmspb.AsymmetricSignRequest{Name: rs256}), codes.InvalidArgument, "Exactly one"},
		{"digest and data", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Data: data, Digest: sha256Digest}), codes.InvalidArgument, "Exactly one"},
		{"both checksums", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Data: data, DataCrc32C: testutil.Checksum(data), DigestCrc32C: wrong}), codes.InvalidArgument, "digest_crc32c"},
		{"checksum of the other field", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Digest: sha256Digest, DataCrc32C: testutil.Checksum(nil)}), codes.InvalidArgument, "data_crc32c"},
		{"wrong data checksum", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Data: data, DataCrc32C: wrong}), codes.InvalidArgument, "data_crc32c"},
		{"wrong digest checksum", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Digest: sha256Digest, DigestCrc32C: wrong}), codes.InvalidArgument, "digest_crc32c"},
		{"data too long", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Data: big}), codes.InvalidArgument, "65537 bytes"},
		{"another digest", sign(&kmspb.AsymmetricSignRequest{Name: es384, Digest: sha256Digest}), codes.InvalidArgument, "SHA-384"},
		{"another digest for RSA", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Digest: sha384Digest}), codes.InvalidArgument, "SHA-256"},
		{"digest of a wrong length", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Digest: &kmspb.Digest{Digest: &kmspb.Digest_Sha256{Sha256: data}}}), codes.InvalidArgument, "14 bytes"},
		{"empty digest", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Digest: &kmspb.Digest{}}), codes.InvalidArgument, "SHA-256"},
		{"digest for Ed25519", sign(&kmspb.AsymmetricSignRequest{Name: eddsa, Digest: sha256Digest}), codes.InvalidArgument, "signs data"},
		{"digest for ML-DSA", sign(&kmspb.AsymmetricSignRequest{Name: pqc, Digest: sha256Digest}), codes.InvalidArgument, "signs data"},
		{"external mu", sign(&kmspb.AsymmetricSignRequest{Name: pqc, Digest: &kmspb.Digest{Digest: &kmspb.Digest_ExternalMu{ExternalMu: make([]byte, 64)}}}), codes.InvalidArgument, "signs data"},
		{"external mu for RSA", sign(&kmspb.AsymmetricSignRequest{Name: rs256, Digest: mu}), codes.InvalidArgument, "SHA-256"},
		{"data where external mu is due", sign(&kmspb.AsymmetricSignRequest{Name: externalMu, Data: data}), codes.InvalidArgument, "digest.external_mu, not data"},
		{"SHA-512 where external mu is due", sign(&kmspb.AsymmetricSignRequest{Name: externalMu, Digest: digestOf(crypto.SHA512, data)}), codes.InvalidArgument, "needs a digest of external_mu"},
		{"external mu of a wrong length", sign(&kmspb.AsymmetricSignRequest{Name: externalMu, Digest: &kmspb.Digest{Digest: &kmspb.Digest_ExternalMu{ExternalMu: make([]byte, 32)}}}), codes.InvalidArgument, "32 bytes, external_mu has 64"},
		{"external mu with a wrong checksum", sign(&kmspb.AsymmetricSignRequest{Name: externalMu, Digest: mu, DigestCrc32C: wrong}), codes.InvalidArgument, "digest_crc32c"},
		{"SHA-384 for secp256k1", sign(&kmspb.AsymmetricSignRequest{Name: es256k, Digest: sha384Digest}), codes.InvalidArgument, "SHA-256"},
		{"digest for raw RSA", sign(&kmspb.AsymmetricSignRequest{Name: raw, Digest: sha256Digest}), codes.InvalidArgument, "signs data"},
		{"too much for raw RSA", sign(&kmspb.AsymmetricSignRequest{Name: raw, Data: big[:246]}), codes.InvalidArgument, "246 bytes, too many"},
		{"sign with a decryption key", sign(&kmspb.AsymmetricSignRequest{Name: oaep, Data: data}), codes.FailedPrecondition, "purpose ASYMMETRIC_DECRYPT"},
		{"sign with a KEM", sign(&kmspb.AsymmetricSignRequest{Name: kem, Data: data}), codes.FailedPrecondition, "purpose KEY_ENCAPSULATION"},
		{"sign with SLH-DSA", sign(&kmspb.AsymmetricSignRequest{Name: slhdsa, Data: data}), codes.Unimplemented, "SLH_DSA"},
		{"digest for an external key", sign(&kmspb.AsymmetricSignRequest{Name: external, Digest: sha256Digest}), codes.InvalidArgument, "protection level EXTERNAL sign data"},
		{"digest for an external key in a VPC", sign(&kmspb.AsymmetricSignRequest{Name: vpc, Digest: sha256Digest}), codes.InvalidArgument, "protection level EXTERNAL_VPC sign data"},
		{"unknown field", sign(withUnknown), codes.InvalidArgument, "field 999"},
		{"unknown nested field", sign(withNestedUnknown), codes.InvalidArgument, "field digest.999"},
		{"sign with a MAC key", sign(&kmspb.AsymmetricSignRequest{Name: hs256, Data: data}), codes.FailedPrecondition, "purpose MAC"},
		{"sign with an encryption key", sign(&kmspb.AsymmetricSignRequest{Name: aes, Data: data}), codes.FailedPrecondition, "purpose ENCRYPT_DECRYPT"},
		{"sign with a disabled version", sign(&kmspb.AsymmetricSignRequest{Name: off, Data: data}), codes.FailedPrecondition, off + " is not enabled, current state is: DISABLED."},

		{"public key of a MAC key", public(&kmspb.GetPublicKeyRequest{Name: hs256}), codes.FailedPrecondition, "purpose MAC"},
		{"public key of an encryption key", public(&kmspb.GetPublicKeyRequest{Name: aes}), codes.FailedPrecondition, "purpose ENCRYPT_DECRYPT"},
		{"public key of a disabled version", public(&kmspb.GetPublicKeyRequest{Name: off}), codes.FailedPrecondition, "DISABLED"},
		{"public key of a malformed name", public(&kmspb.GetPublicKeyRequest{Name: "k"}), codes.InvalidArgument, "malformed"},
		{"NIST_PQC for RSA", public(&kmspb.GetPublicKeyRequest{Name: rs256, PublicKeyFormat: kmspb.PublicKey_NIST_PQC}), codes.InvalidArgument, "NIST_PQC"},
		{"XWING for RSA", public(&kmspb.GetPublicKeyRequest{Name: rs256, PublicKeyFormat: kmspb.PublicKey_XWING_RAW_BYTES}), codes.InvalidArgument, "XWING"},
		{"format of the future", public(&kmspb.GetPublicKeyRequest{Name: rs256, PublicKeyFormat: 99}), codes.InvalidArgument, "99"},
		{"no format for ML-DSA", public(&kmspb.GetPublicKeyRequest{Name: pqc}), codes.InvalidArgument, "public_key_format is required"},
		{"DER for ML-DSA", public(&kmspb.GetPublicKeyRequest{Name: pqc, PublicKeyFormat: kmspb.PublicKey_DER}), codes.InvalidArgument, "DER"},
		{"no format for ML-DSA with external mu", public(&kmspb.GetPublicKeyRequest{Name: externalMu}), codes.InvalidArgument, "public_key_format is required"},
		{"no format for SLH-DSA", public(&kmspb.GetPublicKeyRequest{Name: slhdsa}), codes.InvalidArgument, "public_key_format is required"},
		{"PEM for SLH-DSA", public(&kmspb.GetPublicKeyRequest{Name: slhdsa, PublicKeyFormat: kmspb.PublicKey_PEM}), codes.InvalidArgument, "Only NIST_PQC format is supported for PQC algorithms."},
		{"PEM for X-Wing", public(&kmspb.GetPublicKeyRequest{Name: kem, PublicKeyFormat: kmspb.PublicKey_PEM}), codes.InvalidArgument, "PEM is not supported for KEM_XWING"},
		{"NIST_PQC for secp256k1", public(&kmspb.GetPublicKeyRequest{Name: es256k, PublicKeyFormat: kmspb.PublicKey_NIST_PQC}), codes.InvalidArgument, "NIST_PQC"},

		{"MAC with a signing key", macSign(&kmspb.MacSignRequest{Name: rs256, Data: data}), codes.FailedPrecondition, "purpose ASYMMETRIC_SIGN"},
		{"MAC with a destroyed version", macSign(&kmspb.MacSignRequest{Name: hsOff, Data: data}), codes.FailedPrecondition, "current state is: DESTROYED."},
		{"MAC of nothing", macSign(&kmspb.MacSignRequest{Name: hs256}), codes.InvalidArgument, "data is required"},
		{"MAC of too much", macSign(&kmspb.MacSignRequest{Name: hs256, Data: big}), codes.InvalidArgument, "65537 bytes"},
		{"MAC with a wrong checksum", macSign(&kmspb.MacSignRequest{Name: hs256, Data: data, DataCrc32C: wrong}), codes.InvalidArgument, "data_crc32c"},
		{"MAC with an unknown version", macSign(&kmspb.MacSignRequest{Name: hs256 + "0", Data: data}), codes.NotFound, "not found"},
		{"verify with a signing key", macVerify(&kmspb.MacVerifyRequest{Name: rs256, Data: data, Mac: data}), codes.FailedPrecondition, "purpose ASYMMETRIC_SIGN"},
		{"verify with a destroyed version", macVerify(&kmspb.MacVerifyRequest{Name: hsOff, Data: data, Mac: data}), codes.FailedPrecondition, "DESTROYED"},
		{"verify nothing", macVerify(&kmspb.MacVerifyRequest{Name: hs256, Mac: data}), codes.InvalidArgument, "data is required"},
		{"verify without MAC", macVerify(&kmspb.MacVerifyRequest{Name: hs256, Data: data}), codes.InvalidArgument, "mac is required"},
		{"verify too much", macVerify(&kmspb.MacVerifyRequest{Name: hs256, Data: big, Mac: data}), codes.InvalidArgument, "65537 bytes"},
		{"verify a short MAC", macVerify(&kmspb.MacVerifyRequest{Name: hs256, Data: data, Mac: big[:31]}), codes.InvalidArgument, "31 bytes, a MAC of HMAC_SHA256 has 32"},
		{"verify a MAC of SHA-384", macVerify(&kmspb.MacVerifyRequest{Name: hs256, Data: data, Mac: big[:48]}), codes.InvalidArgument, "48 bytes, a MAC of HMAC_SHA256 has 32"},
		{"verify a long MAC", macVerify(&kmspb.MacVerifyRequest{Name: hs256, Data: data, Mac: big[:65]}), codes.InvalidArgument, "65 bytes"},
		{"verify with a wrong data checksum", macVerify(&kmspb.MacVerifyRequest{Name: hs256, Data: data, Mac: data, DataCrc32C: wrong}), codes.InvalidArgument, "data_crc32c"},
		{"verify with a wrong MAC checksum", macVerify(&kmspb.MacVerifyRequest{Name: hs256, Data: data, Mac: data, MacCrc32C: wrong}), codes.InvalidArgument, "mac_crc32c"},

		{"get an unknown key", func() error {
			_, err := client.GetCryptoKey(ctx, &kmspb.GetCryptoKeyRequest{Name: key + "x"})
			return err
		}, codes.NotFound, "not found"},
		{"get a version as a key", func() error {
			_, err := client.GetCryptoKey(ctx, &kmspb.GetCryptoKeyRequest{Name: rs256})
			return err
		}, codes.InvalidArgument, "malformed"},
		{"list an unknown key", list(&kmspb.ListCryptoKeyVersionsRequest{Parent: key + "x"}), codes.NotFound, "not found"},
		{"list a malformed parent", list(&kmspb.ListCryptoKeyVersionsRequest{Parent: "projects/test"}), codes.InvalidArgument, "parent is malformed"},
		{"list with another filter", list(&kmspb.ListCryptoKeyVersionsRequest{Parent: key, Filter: "state=DISABLED"}), codes.InvalidArgument, "filter"},
		{"list in another order", list(&kmspb.ListCryptoKeyVersionsRequest{Parent: key, OrderBy: "name desc"}), codes.InvalidArgument, "order_by"},
		{"list an unknown view", list(&kmspb.ListCryptoKeyVersionsRequest{Parent: key, View: 7}), codes.InvalidArgument, "view"},
		{"list a negative page", list(&kmspb.ListCryptoKeyVersionsRequest{Parent: key, PageSize: -1}), codes.InvalidArgument, "page_size"},
		{"list with a made-up token", list(&kmspb.ListCryptoKeyVersionsRequest{Parent: key, PageToken: "abc"}), codes.InvalidArgument, "page_token"},
		{"list with a token not in base64", list(&kmspb.ListCryptoKeyVersionsRequest{Parent: key, PageToken: "!"}), codes.InvalidArgument, "page_token"},
		{"create under an unknown key", create(&kmspb.CreateCryptoKeyVersionRequest{Parent: key + "x"}), codes.NotFound, "not found"},
		{"create with an output field", create(&kmspb.CreateCryptoKeyVersionRequest{Parent: key,
			CryptoKeyVersion: &kmspb.CryptoKeyVersion{CreateTime: timestamppb.Now()}}), codes.InvalidArgument, "crypto_key_version.create_time"},

		{"update without a mask", update(rs256, disabled), codes.InvalidArgument, "update_mask is empty"},
		{"update something else", update(rs256, disabled, "state", "algorithm"), codes.InvalidArgument, "algorithm"},
		{"update to another state", update(rs256, destroyed, "state"), codes.InvalidArgument, "DESTROYED"},
		{"update to no state", update(rs256, 0, "state"), codes.InvalidArgument, "UNSPECIFIED"},
		{"update a destroyed version", update(hsOff, enabled, "state"), codes.FailedPrecondition, "current state is: DESTROYED"},
		{"update an unknown version", update(rs256+"0", enabled, "state"), codes.NotFound, "not found"},
		{"update nothing", func() error {
			_, err := client.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{})
			return err
		}, codes.InvalidArgument, "crypto_key_version.name is malformed"},
		{"destroy a destroyed version", func() error {
			_, err := client.DestroyCryptoKeyVersion(ctx, &kmspb.DestroyCryptoKeyVersionRequest{Name: hsOff})
			return err
		}, codes.FailedPrecondition, "current state is: DESTROYED"},
		{"restore an enabled version", func() error {
			_, err := client.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: rs256})
			return err
		}, codes.FailedPrecondition, "current state is: ENABLED"},
		{"another RPC", func() error {
			_, err := client.GetKeyRing(ctx, &kmspb.GetKeyRingRequest{Name: "projects/test/locations/global/keyRings/test"})
			return err
		}, codes.Unimplemented, "GetKeyRing"},
	}
	// Over REST these requests have paths that Google's front end doesn't know.
	noAPI := []string{"no name", "name of a CryptoKey", "public key of a malformed name", "get a version as a key",
		"list a malformed parent", "update nothing", "another RPC"}
	// JSON has no place for these.
	unsendable := []string{"unknown field", "unknown nested field"}
	for _, tt := range tests {
		if over.name == overREST.name && slices.Contains(unsendable, tt.name) {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			err := tt.call()
			if over.name == overREST.name && slices.Contains(noAPI, tt.name) {
				answer, ok := errors.AsType[*googleapi.Error](err)
				if !ok || answer.Code != http.StatusNotFound || !strings.HasPrefix(answer.Body, "<!DOCTYPE html>") {
					t.Errorf("got %v, want a page of status 404", err)
				}
				return
			}
			if got := codeOf(err); got != tt.code || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.code, tt.text)
			}
		})
	}
}

func TestKMSRoutingHeader(t *testing.T) {
	s, _ := newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	conn, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw := kmspb.NewKeyManagementServiceClient(conn)

	tests := []struct {
		name   string
		header string
		code   codes.Code
	}{
		{"right", "name=" + url.QueryEscape(version), codes.OK},
		{"unescaped", "name=" + version, codes.OK},
		{"missing", "", codes.InvalidArgument},
		{"another name", "name=" + url.QueryEscape(key), codes.InvalidArgument},
		{"another field", "parent=" + url.QueryEscape(version), codes.InvalidArgument},
		{"malformed", "name=%zz", codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			if tt.header != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "x-goog-request-params", tt.header)
			}
			_, err := raw.GetPublicKey(ctx, &kmspb.GetPublicKeyRequest{Name: version})
			if got := status.Code(err); got != tt.code {
				t.Errorf("got %v, want %v", err, tt.code)
			}
		})
	}
}

func TestKMSPermissions(t *testing.T) { overEach(t, testKMSPermissions) }

func testKMSPermissions(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	_, macVersion := createKey(t, s, "m", kmspb.CryptoKeyVersion_HMAC_SHA256)
	ctx, data := t.Context(), []byte("header.payload")

	tests := []struct {
		permission, resource string
		call                 func() error
	}{
		{"cloudkms.cryptoKeys.get", key, func() error {
			_, err := client.GetCryptoKey(ctx, &kmspb.GetCryptoKeyRequest{Name: key})
			return err
		}},
		{"cloudkms.cryptoKeyVersions.list", key, func() error {
			_, err := client.ListCryptoKeyVersions(ctx, &kmspb.ListCryptoKeyVersionsRequest{Parent: key}).Next()
			return err
		}},
		{"cloudkms.cryptoKeyVersions.create", key, func() error {
			_, err := client.CreateCryptoKeyVersion(ctx, &kmspb.CreateCryptoKeyVersionRequest{Parent: key})
			return err
		}},
		{"cloudkms.cryptoKeyVersions.update", version, func() error {
			_, err := client.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
				CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: version, State: enabled},
				UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
			})
			return err
		}},
		{"cloudkms.cryptoKeyVersions.viewPublicKey", version, func() error {
			_, err := client.GetPublicKey(ctx, &kmspb.GetPublicKeyRequest{Name: version})
			return err
		}},
		{"cloudkms.cryptoKeyVersions.useToSign", version, func() error {
			_, err := client.AsymmetricSign(ctx, &kmspb.AsymmetricSignRequest{Name: version, Data: data})
			return err
		}},
		{"cloudkms.cryptoKeyVersions.useToSign", macVersion, func() error {
			_, err := client.MacSign(ctx, &kmspb.MacSignRequest{Name: macVersion, Data: data})
			return err
		}},
		{"cloudkms.cryptoKeyVersions.useToVerify", macVersion, func() error {
			_, err := client.MacVerify(ctx, &kmspb.MacVerifyRequest{Name: macVersion, Data: data, Mac: make([]byte, 32)})
			return err
		}},
		{"cloudkms.cryptoKeyVersions.destroy", version, func() error {
			_, err := client.DestroyCryptoKeyVersion(ctx, &kmspb.DestroyCryptoKeyVersionRequest{Name: version})
			return err
		}},
		{"cloudkms.cryptoKeyVersions.restore", version, func() error {
			_, err := client.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: version})
			return err
		}},
	}
	for _, tt := range tests {
		t.Run(tt.permission, func(t *testing.T) {
			s.Deny(tt.permission, "cloudkms.cryptoKeys.encrypt")
			err := tt.call()
			want := fmt.Sprintf("Permission '%s' denied on resource '%s' (or it may not exist).", tt.permission, tt.resource)
			if codeOf(err) != codes.PermissionDenied || !strings.Contains(err.Error(), want) {
				t.Errorf("denied: got %v, want %q", err, want)
			}
			s.Allow(tt.permission)
			if err := tt.call(); err != nil {
				t.Errorf("allowed: %v", err)
			}
		})
	}
}

func TestKMSUserProject(t *testing.T) { overEach(t, testKMSUserProject) }

func testKMSUserProject(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	billed := metadata.AppendToOutgoingContext(t.Context(), "x-goog-user-project", "tenant")
	calls := map[string]func(context.Context) error{
		"AsymmetricSign": func(ctx context.Context) error {
			_, err := client.AsymmetricSign(ctx, &kmspb.AsymmetricSignRequest{Name: version, Data: []byte("a")})
			return err
		},
		"ListCryptoKeyVersions": func(ctx context.Context) error {
			_, err := client.ListCryptoKeyVersions(ctx, &kmspb.ListCryptoKeyVersionsRequest{Parent: key}).Next()
			return err
		},
	}
	for name, call := range calls {
		if err := call(billed); err != nil {
			t.Errorf("%s, not denied yet: %v", name, err)
		}
		s.DenyUserProject("tenant", "other")
		err := call(billed)
		denied, ok := errors.AsType[*apierror.APIError](err)
		if !ok || codeOf(err) != codes.PermissionDenied || denied.Reason() != "USER_PROJECT_DENIED" || denied.Metadata()["consumer"] != "projects/tenant" {
			t.Errorf("%s, denied: %v, want PERMISSION_DENIED", name, err)
		}
		if err := call(t.Context()); err != nil {
			t.Errorf("%s without a project: %v", name, err)
		}
		s.AllowUserProject("tenant")
		if err := call(billed); err != nil {
			t.Errorf("%s, allowed again: %v", name, err)
		}
	}
	if got := s.UserProjectCalls("tenant"); got != 6 || s.UserProjectCalls("other") != 0 {
		t.Errorf("UserProjectCalls = %d, want 6", got)
	}
	s.ResetCalls()
	if got := s.UserProjectCalls("tenant"); got != 0 {
		t.Errorf("UserProjectCalls after ResetCalls = %d, want 0", got)
	}
}

func TestKMSLikeFakeKMS(t *testing.T) { overEach(t, testKMSLikeFakeKMS) }

func testKMSLikeFakeKMS(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	_, mac := createKey(t, s, "m", kmspb.CryptoKeyVersion_HMAC_SHA256)
	for range 150 {
		if _, err := s.CreateVersion(key); err != nil {
			t.Fatal(err)
		}
	}
	s.LikeFakeKMS(true)
	if got, pages := versions(t, client, &kmspb.ListCryptoKeyVersionsRequest{Parent: key}); len(got) != 151 || pages != 1 {
		t.Errorf("got %d versions on %d pages, want 151 on 1", len(got), pages)
	}
	for name, req := range map[string]*kmspb.ListCryptoKeyVersionsRequest{
		"filter":     {Parent: key, Filter: "state=ENABLED"},
		"order_by":   {Parent: key, OrderBy: "name"},
		"page_size":  {Parent: key, PageSize: 10},
		"page_token": {Parent: key, PageToken: "x"},
		"view":       {Parent: key, View: kmspb.CryptoKeyVersion_FULL},
	} {
		_, err := client.ListCryptoKeyVersions(t.Context(), req).Next()
		if codeOf(err) != codes.Unimplemented || !strings.Contains(err.Error(), "field not supported: "+name) {
			t.Errorf("%s: got %v, want UNIMPLEMENTED", name, err)
		}
	}
	get := func(format kmspb.PublicKey_PublicKeyFormat) error {
		_, err := client.GetPublicKey(t.Context(), &kmspb.GetPublicKeyRequest{Name: version, PublicKeyFormat: format})
		return err
	}
	if err := get(kmspb.PublicKey_PEM); codeOf(err) != codes.Unimplemented || !strings.Contains(err.Error(), "public_key_format") {
		t.Errorf("public_key_format: got %v, want UNIMPLEMENTED", err)
	}
	if err := get(0); err != nil {
		t.Errorf("without public_key_format: %v", err)
	}
	data := []byte("header.payload")
	if _, err := client.AsymmetricSign(t.Context(), &kmspb.AsymmetricSignRequest{Name: version, Data: data, DataCrc32C: testutil.Checksum(data)}); err != nil {
		t.Error(err)
	}
	if _, err := client.MacSign(t.Context(), &kmspb.MacSignRequest{Name: mac, Data: data, DataCrc32C: testutil.Checksum(data)}); err != nil {
		t.Error(err)
	}
	s.LikeFakeKMS(false)
	if err := get(kmspb.PublicKey_PEM); err != nil {
		t.Errorf("once it is like the service again: %v", err)
	}
}
