// Package plain verifies signatures by the book, with math/big and as little else as it
// takes, so that what the servers of testutil sign is checked by other code than signed
// it. It is slow, and not for secrets.
package plain

import "math/big"

// secp256k1's parameters (SEC 2, section 2.4.1): y^2 = x^3 + 7 modulo p.
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

// OrderOfSecp256k1 returns n, the order of the curve.
func OrderOfSecp256k1() *big.Int { return new(big.Int).Set(curveN) }

// VerifySecp256k1 reports whether (r, s) is a signature of digest, of 32 bytes, by the
// private key of the point (x, y) (FIPS 186-5, section 6.4.2).
func VerifySecp256k1(x, y *big.Int, digest []byte, r, s *big.Int) bool {
	if r.Sign() <= 0 || s.Sign() <= 0 || r.Cmp(curveN) >= 0 || s.Cmp(curveN) >= 0 {
		return false
	}
	inverse := new(big.Int).ModInverse(s, curveN)
	u := new(big.Int).SetBytes(digest)
	u.Mul(u, inverse).Mod(u, curveN)
	v := new(big.Int).Mul(r, inverse)
	v.Mod(v, curveN)
	sum := curveG.times(u).add((&point{x, y}).times(v))
	return sum != nil && new(big.Int).Mod(sum.x, curveN).Cmp(r) == 0
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
