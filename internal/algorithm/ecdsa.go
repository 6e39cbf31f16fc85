package algorithm

import (
	"bytes"
	"errors"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
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
		integers [2][]byte // without leading zeros; as big.Int they would take 1% of a call
	)
	if !input.ReadASN1(&sequence, asn1.SEQUENCE) || !input.Empty() ||
		!sequence.ReadASN1Integer(&integers[0]) || !sequence.ReadASN1Integer(&integers[1]) ||
		!sequence.Empty() {
		return nil, errors.New("the signature isn't ASN.1 DER of two positive integers")
	}
	sig := make([]byte, a.SignatureSize())
	width := len(sig) / 2
	order := a.Order.FillBytes(make([]byte, width))
	for i, integer := range integers {
		half := sig[i*width : (i+1)*width]
		copy(half[max(width-len(integer), 0):], integer)
		if len(integer) > width || integer[0] == 0 || bytes.Compare(half, order) >= 0 {
			return nil, errors.New("the signature has an integer outside of [1, n-1]")
		}
	}
	if a.Name == "ES256K" {
		var s secp256k1.ModNScalar
		s.SetByteSlice(sig[width:])
		if s.IsOverHalfOrder() {
			s.Negate().PutBytesUnchecked(sig[width:])
		}
	}
	return sig, nil
}

// SignatureSize returns the length of an ECDSA signature in a token.
func (a *Algorithm) SignatureSize() int { return 2 * ((a.Order.BitLen() + 7) / 8) }
