package plain

import (
	"bytes"
	"crypto/sha3"
	"errors"
)

// MLDSA holds a parameter set of FIPS 204, table 1.
type MLDSA struct {
	k, l           int // the dimensions of A
	eta, tau       int
	gamma1, gamma2 int64
	lambda, omega  int
}

// The parameter sets.
var (
	MLDSA44 = &MLDSA{k: 4, l: 4, eta: 2, tau: 39, gamma1: 1 << 17, gamma2: (q - 1) / 88, lambda: 128, omega: 80}
	MLDSA65 = &MLDSA{k: 6, l: 5, eta: 4, tau: 49, gamma1: 1 << 19, gamma2: (q - 1) / 32, lambda: 192, omega: 55}
	MLDSA87 = &MLDSA{k: 8, l: 7, eta: 2, tau: 60, gamma1: 1 << 19, gamma2: (q - 1) / 32, lambda: 256, omega: 75}
)

const (
	q = 8380417 // 2^23 - 2^13 + 1
	n = 256
	d = 13
)

// A poly is a polynomial of degree 255, or its values at the roots of X^256 + 1.
type poly [n]int64

var errNoSignature = errors.New("plain: not a signature by the key")

// Verify checks a signature of message with an empty context (FIPS 204, algorithms 3 and 8).
func (p *MLDSA) Verify(key, message, signature []byte) error {
	gammaBits := 18
	if p.gamma1 == 1<<19 {
		gammaBits = 20
	}
	challenge, zBytes := p.lambda/4, 32*gammaBits
	if len(key) != 32+320*p.k || len(signature) != challenge+zBytes*p.l+p.omega+p.k {
		return errors.New("plain: the key or the signature has another length")
	}
	c, rest := signature[:challenge], signature[challenge:]
	z := make([]poly, p.l)
	for i := range z {
		for j, bits := range unpack(rest[:zBytes], gammaBits) {
			z[i][j] = p.gamma1 - bits
			if beta := int64(p.tau * p.eta); z[i][j] >= p.gamma1-beta || z[i][j] <= beta-p.gamma1 {
				return errNoSignature
			}
		}
		rest = rest[zBytes:]
		z[i] = transform(z[i])
	}
	hints, err := p.unpackHints(rest)
	if err != nil {
		return err
	}

	mu := sha3.NewSHAKE256()
	mu.Write(sha3.SumSHAKE256(key, 64))
	mu.Write([]byte{0, 0})
	mu.Write(message)
	hash := sha3.NewSHAKE256()
	hash.Write(read(mu, 64))
	ball := transform(p.sampleInBall(c))
	for r := range p.k {
		var t poly
		for j, bits := range unpack(key[32+320*r:][:320], 10) {
			t[j] = bits << d
		}
		t = transform(t)
		var w poly
		for s := range p.l {
			a := rejectionSample(key[:32], s, r)
			for j := range w {
				w[j] += a[j] * z[s][j] % q
			}
		}
		for j := range w {
			w[j] = mod(w[j] - ball[j]*t[j]%q)
		}
		hash.Write(p.encodeHighBits(inverse(w), hints[r]))
	}
	if !bytes.Equal(c, read(hash, challenge)) {
		return errNoSignature
	}
	return nil
}

// transform returns the values at the roots, in the order of FIPS 204, section 7.5.
func transform(f poly) (values poly) {
	for i := range values {
		root := power(1753, 2*reverse(i)+1)
		x := int64(1)
		for _, coefficient := range f {
			values[i] = mod(values[i] + coefficient*x)
			x = x * root % q
		}
	}
	return values
}

// inverse undoes transform.
func inverse(values poly) (f poly) {
	for i, value := range values {
		root := power(1753, 2*n-(2*reverse(i)+1))
		x := power(n, q-2) // 1/n
		for j := range f {
			f[j] = mod(f[j] + value*x)
			x = x * root % q
		}
	}
	return f
}

// reverse turns around the 8 bits of i.
func reverse(i int) (r int) {
	for range 8 {
		r = r<<1 | i&1
		i >>= 1
	}
	return r
}

func power(base int64, exponent int) int64 {
	result := int64(1)
	for ; exponent > 0; exponent >>= 1 {
		if exponent&1 == 1 {
			result = result * base % q
		}
		base = base * base % q
	}
	return result
}

// mod returns a modulo q, from 0 to q-1.
func mod(a int64) int64 { return (a%q + q) % q }

func read(hash *sha3.SHAKE, size int) []byte {
	out := make([]byte, size)
	hash.Read(out)
	return out
}

// unpack takes numbers of some bits each out of bytes, lowest bits first (algorithm 18).
func unpack(data []byte, bits int) (numbers []int64) {
	var kept uint64
	var have int
	for _, b := range data {
		kept |= uint64(b) << have
		for have += 8; have >= bits; have -= bits {
			numbers = append(numbers, int64(kept&(1<<bits-1)))
			kept >>= bits
		}
	}
	return numbers
}

// unpackHints is algorithm 21.
func (p *MLDSA) unpackHints(y []byte) ([]poly, error) {
	hints := make([]poly, p.k)
	index := 0
	for i := range hints {
		end := int(y[p.omega+i])
		if end < index || end > p.omega {
			return nil, errNoSignature
		}
		for first := index; index < end; index++ {
			if index > first && y[index-1] >= y[index] {
				return nil, errNoSignature
			}
			hints[i][y[index]] = 1
		}
	}
	for _, rest := range y[index:p.omega] {
		if rest != 0 {
			return nil, errNoSignature
		}
	}
	return hints, nil
}

// rejectionSample returns an element of A, which is made as values (algorithm 30).
func rejectionSample(rho []byte, s, r int) (a poly) {
	hash := sha3.NewSHAKE128()
	hash.Write(append(append([]byte(nil), rho...), byte(s), byte(r)))
	for j := 0; j < n; {
		b := read(hash, 3)
		if z := int64(b[0]) | int64(b[1])<<8 | int64(b[2]&0x7f)<<16; z < q {
			a[j] = z
			j++
		}
	}
	return a
}

// sampleInBall is algorithm 29.
func (p *MLDSA) sampleInBall(seed []byte) (c poly) {
	hash := sha3.NewSHAKE256()
	hash.Write(seed)
	signs := unpack(read(hash, 8), 1)
	for i := n - p.tau; i < n; i++ {
		j := int(read(hash, 1)[0])
		for j > i {
			j = int(read(hash, 1)[0])
		}
		c[i] = c[j]
		c[j] = 1 - 2*signs[i+p.tau-n]
	}
	return c
}

// encodeHighBits returns the high bits that the hints lead to (algorithms 28, 36 and 40).
func (p *MLDSA) encodeHighBits(w, hints poly) (encoded []byte) {
	m := (q - 1) / (2 * p.gamma2)
	bits := 4
	if m == 44 {
		bits = 6
	}
	var kept uint64
	var have int
	for j, r := range w {
		low := r % (2 * p.gamma2)
		if low > p.gamma2 {
			low -= 2 * p.gamma2
		}
		high := (r - low) / (2 * p.gamma2)
		if r-low == q-1 {
			high, low = 0, low-1
		}
		switch {
		case hints[j] == 1 && low > 0:
			high = (high + 1) % m
		case hints[j] == 1:
			high = (high - 1 + m) % m
		}
		kept |= uint64(high) << have
		for have += bits; have >= 8; have -= 8 {
			encoded = append(encoded, byte(kept))
			kept >>= 8
		}
	}
	return encoded
}
