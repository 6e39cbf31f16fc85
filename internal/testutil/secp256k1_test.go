package testutil_test

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/plain"
)

func parseSecp256k1(der []byte) (*secp256k1.PublicKey, error) {
	var spki struct {
		Algorithm pkix.AlgorithmIdentifier
		Point     asn1.BitString
	}
	if rest, err := asn1.Unmarshal(der, &spki); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes follow, %w", len(rest), err)
	}
	var curve asn1.ObjectIdentifier
	if rest, err := asn1.Unmarshal(spki.Algorithm.Parameters.FullBytes, &curve); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes follow the curve, %w", len(rest), err)
	}
	if spki.Algorithm.Algorithm.String() != "1.2.840.10045.2.1" || curve.String() != "1.3.132.0.10" {
		return nil, fmt.Errorf("the key is of %v on %v", spki.Algorithm.Algorithm, curve)
	}
	if len(spki.Point.Bytes) != 65 || spki.Point.BitLength != 65*8 {
		return nil, fmt.Errorf("the point has %d bits, want it uncompressed", spki.Point.BitLength)
	}
	return secp256k1.ParsePubKey(spki.Point.Bytes)
}

// verifySecp256k1 verifies with code that shares nothing with the signer in the server.
func verifySecp256k1(key *secp256k1.PublicKey, digest, der []byte) bool {
	var signature struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(der, &signature); err != nil || len(rest) > 0 {
		return false
	}
	return plain.VerifySecp256k1(key.X(), key.Y(), digest, signature.R, signature.S)
}

// An HSM gives values of s from both halves of their range.
func TestKMSSecp256k1HighAndLowS(t *testing.T) {
	s, client := newKMS(t)
	_, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256)
	half := new(big.Int).Rsh(plain.OrderOfSecp256k1(), 1)
	seen := make(map[bool]bool) // by whether s is high
	for i := 0; len(seen) < 2; i++ {
		if i == 200 {
			t.Fatalf("after %d signatures s was high: %v", i, seen)
		}
		resp, err := client.AsymmetricSign(t.Context(), &kmspb.AsymmetricSignRequest{Name: version, Data: []byte{byte(i)}})
		if err != nil {
			t.Fatal(err)
		}
		var signature struct{ R, S *big.Int }
		if _, err := asn1.Unmarshal(resp.Signature, &signature); err != nil {
			t.Fatal(err)
		}
		seen[signature.S.Cmp(half) > 0] = true
	}
}
