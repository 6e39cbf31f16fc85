package plain_test

import (
	"bytes"
	"math/big"
	"testing"

	"filippo.io/mldsa"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/plain"
)

// What another implementation signs passes, and nothing that is altered.
func TestMLDSA(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		plain  *plain.MLDSA
		params mldsa.Parameters
	}{
		"ML-DSA-44": {plain.MLDSA44, mldsa.MLDSA44()},
		"ML-DSA-65": {plain.MLDSA65, mldsa.MLDSA65()},
		"ML-DSA-87": {plain.MLDSA87, mldsa.MLDSA87()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, err := mldsa.GenerateKey(tt.params)
			if err != nil {
				t.Fatal(err)
			}
			public := key.PublicKey().Bytes()
			for _, message := range []string{"", "header.payload", string(make([]byte, 1000))} {
				signature, err := key.Sign(nil, []byte(message), nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := tt.plain.Verify(public, []byte(message), signature); err != nil {
					t.Errorf("%q: %v", message, err)
				}
				for _, at := range []int{0, 40, len(signature) / 2, len(signature) - 20, len(signature) - 1} {
					altered := bytes.Clone(signature)
					altered[at] ^= 1
					if tt.plain.Verify(public, []byte(message), altered) == nil {
						t.Errorf("%q: a signature with bit %d flipped passes", message, 8*at)
					}
				}
				if tt.plain.Verify(public, []byte(message+"x"), signature) == nil {
					t.Errorf("%q: another message passes", message)
				}
				if tt.plain.Verify(public, []byte(message), signature[1:]) == nil {
					t.Errorf("%q: a short signature passes", message)
				}
				other := bytes.Clone(public)
				other[100] ^= 1
				if tt.plain.Verify(other, []byte(message), signature) == nil {
					t.Errorf("%q: another key passes", message)
				}
			}
		})
	}
}

func TestSecp256k1(t *testing.T) {
	t.Parallel()
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	public := key.PubKey()
	for i := range 20 {
		digest := bytes.Repeat([]byte{byte(i)}, 32)
		signature := ecdsa.Sign(key, digest)
		rBytes, sBytes := func() (r, s [32]byte) {
			rScalar, sScalar := signature.R(), signature.S()
			return rScalar.Bytes(), sScalar.Bytes()
		}()
		r, s := new(big.Int).SetBytes(rBytes[:]), new(big.Int).SetBytes(sBytes[:])
		high := new(big.Int).Sub(plain.OrderOfSecp256k1(), s)
		for _, s := range []*big.Int{s, high} {
			if !plain.VerifySecp256k1(public.X(), public.Y(), digest, r, s) {
				t.Errorf("a signature of %x doesn't pass", digest)
			}
		}
		one := big.NewInt(1)
		for _, altered := range [][2]*big.Int{
			{new(big.Int).Add(r, one), s}, {r, new(big.Int).Add(s, one)}, {new(big.Int), s}, {r, new(big.Int)},
			{plain.OrderOfSecp256k1(), s}, {r, plain.OrderOfSecp256k1()},
		} {
			if plain.VerifySecp256k1(public.X(), public.Y(), digest, altered[0], altered[1]) {
				t.Errorf("(%x, %x), which is altered, passes", altered[0], altered[1])
			}
		}
	}
}
