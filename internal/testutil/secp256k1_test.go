package testutil_test

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
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

// secp256k1's parameters (SEC 2, section 2.4.1), y^2 = x^3 + 7 modulo p, for a
// verifier that shares nothing with the signer in the server.
var (
	curveP = bigHex("FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEFFFFFC2F")
	curveN = bigHex("FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141")
	curveG = &point{
		bigHex("79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798"),
		bigHex("483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8"),
	}
)

func bigHex(text string) *big.Int {
	n, _ := new(big.Int).SetString(text, 16)
	return n
}

// A point is a point of the curve, nil the one at infinity.
type point struct{ x, y *big.Int }

func (a *point) add(b *point) *point {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	slope, divisor := new(big.Int), new(big.Int)
	if a.x.Cmp(b.x) == 0 {
		if a.y.Cmp(b.y) != 0 {
			return nil
		}
		slope.Mul(a.x, a.x).Mul(slope, big.NewInt(3))
		divisor.Lsh(a.y, 1)
	} else {
		slope.Sub(b.y, a.y)
		divisor.Sub(b.x, a.x).Mod(divisor, curveP)
	}
	slope.Mul(slope, divisor.ModInverse(divisor, curveP)).Mod(slope, curveP)
	x := new(big.Int).Mul(slope, slope)
	x.Sub(x, a.x).Sub(x, b.x).Mod(x, curveP)
	y := new(big.Int).Sub(a.x, x)
	y.Mul(y, slope).Sub(y, a.y).Mod(y, curveP)
	return &point{x, y}
}

func (a *point) times(k *big.Int) *point {
	var sum *point
	for i := k.BitLen() - 1; i >= 0; i-- {
		sum = sum.add(sum)
		if k.Bit(i) == 1 {
			sum = sum.add(a)
		}
	}
	return sum
}

// verifySecp256k1 verifies an ECDSA signature (FIPS 186-5, section 6.4.2).
func verifySecp256k1(key *secp256k1.PublicKey, digest, der []byte) bool {
	var signature struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(der, &signature); err != nil || len(rest) > 0 {
		return false
	}
	r, s := signature.R, signature.S
	if r.Sign() <= 0 || s.Sign() <= 0 || r.Cmp(curveN) >= 0 || s.Cmp(curveN) >= 0 {
		return false
	}
	inverse := new(big.Int).ModInverse(s, curveN)
	u := new(big.Int).SetBytes(digest)
	u.Mul(u, inverse).Mod(u, curveN)
	v := new(big.Int).Mul(r, inverse)
	v.Mod(v, curveN)
	q := &point{key.X(), key.Y()}
	sum := curveG.times(u).add(q.times(v))
	return sum != nil && new(big.Int).Mod(sum.x, curveN).Cmp(r) == 0
}

// An HSM gives values of s from both halves of their range.
func TestKMSSecp256k1HighAndLowS(t *testing.T) {
	s, client := newKMS(t)
	_, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256)
	half := new(big.Int).Rsh(curveN, 1)
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
