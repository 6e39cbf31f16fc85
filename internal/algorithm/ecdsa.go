package algorithm

import (
	"errors"
	"math/big"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// FromDER turns an ECDSA signature in ASN.1 DER into r||s of fixed width (RFC 7518 section
// 3.4). It takes exactly what DER allows: two minimal integers in [1, n-1] of the curve, and
// nothing after them. An ES256K signature gets its low s: some verifiers want it, and who
// has one of the two can make the other.
func (a *Algorithm) FromDER(der []byte) ([]byte, error) {
	var (
		input    = cryptobyte.String(der)
		sequence cryptobyte.String
		r, s     big.Int
	)
	if !input.ReadASN1(&sequence, asn1.SEQUENCE) || !input.Empty() ||
		!sequence.ReadASN1Integer(&r) || !sequence.ReadASN1Integer(&s) || !sequence.Empty() {
		return nil, errors.New("the signature isn't ASN.1 DER of two integers")
	}
	for _, n := range []*big.Int{&r, &s} {
		if n.Sign() <= 0 || n.Cmp(a.Order) >= 0 {
			return nil, errors.New("the signature has an integer outside of [1, n-1]")
		}
	}
	if half := new(big.Int).Rsh(a.Order, 1); a.Name == "ES256K" && s.Cmp(half) > 0 {
		s.Sub(a.Order, &s)
	}
	sig := make([]byte, a.SignatureSize())
	r.FillBytes(sig[:len(sig)/2])
	s.FillBytes(sig[len(sig)/2:])
	return sig, nil
}

// SignatureSize returns the length of an ECDSA signature in a token.
func (a *Algorithm) SignatureSize() int { return 2 * ((a.Order.BitLen() + 7) / 8) }
