package algorithm_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	secpecdsa "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"

	"github.com/someone1/gcp-jwt-go/v3/internal/algorithm"
)

// needsSeeds fails a fuzz test whose committed seeds have gone astray: without
// them it would go on passing and check next to nothing.
func needsSeeds(f *testing.F) {
	f.Helper()
	seeds, err := os.ReadDir(filepath.Join("testdata", "fuzz", f.Name()))
	if err != nil || len(seeds) == 0 {
		f.Fatalf("testdata/fuzz/%s has no seeds: %v", f.Name(), err)
	}
}

// derOf encodes two positive integers, given in big-endian, as an ECDSA
// signature.
func derOf(r, s []byte) []byte {
	var b cryptobyte.Builder
	b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1BigInt(new(big.Int).SetBytes(r))
		b.AddASN1BigInt(new(big.Int).SetBytes(s))
	})
	return b.BytesOrPanic()
}

func TestFromDER(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ES256", "ES384", "ES256K"} {
		a := algorithm.ByName(name)
		half := a.SignatureSize() / 2
		minus := func(d int64) []byte { return new(big.Int).Sub(a.Order, big.NewInt(d)).Bytes() }
		low := new(big.Int).Rsh(a.Order, 1)
		pad := func(b []byte) []byte { return append(make([]byte, half-len(b)), b...) }
		ff := bytes.Repeat([]byte{0xff}, half)
		tests := []struct {
			name string
			r, s []byte
			good bool
		}{
			{"ones", []byte{1}, []byte{1}, true},
			{"highest bit in one byte", []byte{0x80}, []byte{0xff}, true},
			{"largest r", minus(1), []byte{1}, true},
			{"largest low s", []byte{1}, low.Bytes(), true},
			{"one leading zero in r", ff[1:], []byte{1}, true},
			{"two leading zeros in s", []byte{1}, ff[2:], true},
			{"r is n", a.Order.Bytes(), []byte{1}, false},
			{"s is n", []byte{1}, a.Order.Bytes(), false},
			{"r is n+1", minus(-1), []byte{1}, false},
			{"s is n+1", []byte{1}, minus(-1), false},
			{"r is all ones", ff, []byte{1}, false},
			{"s is all ones", []byte{1}, ff, false},
			{"r a byte too long", append([]byte{1}, ff...), []byte{1}, false},
			{"s a byte too long", []byte{1}, append([]byte{1}, ff...), false},
			{"zero r", nil, []byte{1}, false},
			{"zero s", []byte{1}, nil, false},
		}
		for _, tt := range tests {
			got, err := a.FromDER(derOf(tt.r, tt.s))
			if !tt.good {
				if err == nil {
					t.Errorf("B01, C05/%s/%s: got %x, want an error", name, tt.name, got)
				}
				continue
			}
			want := append(pad(tt.r), pad(tt.s)...)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("B01/%s/%s: got %x, %v, want %x", name, tt.name, got, err, want)
			}
		}
	}
}

// A high s of ES256K becomes the low one. The other curves keep theirs.
func TestLowS(t *testing.T) {
	t.Parallel()
	for name, lowered := range map[string]bool{"ES256": false, "ES384": false, "ES256K": true} {
		a := algorithm.ByName(name)
		high := new(big.Int).Sub(a.Order, big.NewInt(5))
		want := high
		if lowered {
			want = big.NewInt(5)
		}
		sig, err := a.FromDER(derOf([]byte{7}, high.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if got := new(big.Int).SetBytes(sig[len(sig)/2:]); got.Cmp(want) != 0 {
			t.Errorf("%s: s is %x, want %x", name, got, want)
		}
	}
}

// Both forms of an ES256K signature verify, and nothing that is altered.
func TestVerifyES256K(t *testing.T) {
	t.Parallel()
	a := algorithm.ByName("ES256K")
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte("header.payload"))
	low, err := a.FromDER(secpecdsa.Sign(key, digest[:]).Serialize())
	if err != nil {
		t.Fatal(err)
	}
	high := bytes.Clone(low)
	new(big.Int).Sub(a.Order, new(big.Int).SetBytes(low[32:])).FillBytes(high[32:])
	overflowing := bytes.Clone(low)
	copy(overflowing[32:], a.Order.Bytes())
	for name, tt := range map[string]struct {
		text string
		sig  []byte
		key  any
		want error
	}{
		"low s":         {"header.payload", low, key.PubKey(), nil},
		"high s":        {"header.payload", high, key.PubKey(), nil},
		"another text":  {"header.payloae", low, key.PubKey(), jwt.ErrTokenSignatureInvalid},
		"s is n":        {"header.payload", overflowing, key.PubKey(), jwt.ErrTokenSignatureInvalid},
		"zero":          {"header.payload", make([]byte, 64), key.PubKey(), jwt.ErrTokenSignatureInvalid},
		"short":         {"header.payload", low[:63], key.PubKey(), jwt.ErrTokenSignatureInvalid},
		"long":          {"header.payload", append(bytes.Clone(low), 0), key.PubKey(), jwt.ErrTokenSignatureInvalid},
		"empty":         {"header.payload", nil, key.PubKey(), jwt.ErrTokenSignatureInvalid},
		"no key":        {"header.payload", low, nil, jwt.ErrInvalidKeyType},
		"a nil key":     {"header.payload", low, (*secp256k1.PublicKey)(nil), jwt.ErrInvalidKeyType},
		"a private key": {"header.payload", low, key, jwt.ErrInvalidKeyType},
	} {
		if err := a.Method.Verify(tt.text, tt.sig, tt.key); !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", name, err, tt.want)
		}
	}
}

// PSS signatures have a salt as long as the hash (RFC 7518 section 3.5, C06).
func TestPSSSalt(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, hash := range map[string]crypto.Hash{"PS256": crypto.SHA256, "PS384": crypto.SHA384, "PS512": crypto.SHA512} {
		for _, salt := range []int{0, 1, 20, 31, 32, 33, 47, 48, 64, 65, 190} {
			h := hash.New()
			h.Write([]byte("header.payload"))
			sig, err := rsa.SignPSS(rand.Reader, key, hash, h.Sum(nil), &rsa.PSSOptions{SaltLength: max(salt, 1)})
			if err != nil {
				t.Fatal(err)
			}
			err = algorithm.ByName(name).Method.Verify("header.payload", sig, &key.PublicKey)
			if good := max(salt, 1) == hash.Size(); (err == nil) != good {
				t.Errorf("%s with a salt of %d bytes: error %v, want good: %v", name, max(salt, 1), err, good)
			}
		}
	}
}

// FuzzFromDER checks that DER is read strictly: what is accepted is the
// one encoding of its integers, and the result has a fixed width.
func FuzzFromDER(f *testing.F) {
	needsSeeds(f)
	for _, seed := range []string{
		"",
		"3006020101020101",       // 1, 1
		"30080202008002020080",   // highest bits set
		"3006020100020101",       // zero
		"3006020181020101",       // negative
		"300702020001020101",     // not minimal
		"300602010102010100",     // trailing byte
		"300702010102010100",     // trailing byte in the sequence
		"308106020101020101",     // length in the long form
		"30800201010201010000",   // indefinite length
		"3009020101020101020101", // three integers
		"3003020101",             // one
		"30050200020101",         // an empty integer
		"3106020101020101",       // a set
		"30060a0101020101",       // an enumerated
		"3046022100" + ff32 + "022100" + ff32,
		"304702220100" + ff32 + "022100" + ff32,
	} {
		der, err := hex.DecodeString(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		for _, name := range []string{"ES256", "ES384"} {
			a := algorithm.ByName(name)
			sig, err := a.FromDER(der)
			if err != nil {
				if sig != nil {
					t.Errorf("%s: FromDER(%x) = %x along with %v", name, der, sig, err)
				}
				continue
			}
			width := len(sig)
			if width != a.SignatureSize() {
				t.Fatalf("%s: FromDER(%x) has %d bytes", name, der, width)
			}
			if got := derOf(sig[:width/2], sig[width/2:]); !bytes.Equal(got, der) {
				t.Errorf("%s: FromDER(%x) = %x, whose DER is %x", name, der, sig, got)
			}
		}
	})
}

// ff32 is the largest integer of 32 bytes, in hexadecimal.
const ff32 = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
