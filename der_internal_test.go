package gcpjwt

import (
	"bytes"
	"encoding/hex"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
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

func TestJOSESignature(t *testing.T) {
	t.Parallel()
	ff := func(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }
	pad := func(b []byte, n int) []byte { return append(make([]byte, n-len(b)), b...) }
	tests := []struct {
		name  string
		r, s  []byte
		width int
		good  bool
	}{
		{"ones", []byte{1}, []byte{1}, 64, true},
		{"highest bit in one byte", []byte{0x80}, []byte{0xff}, 64, true},
		{"full width, highest bit", ff(32), ff(32), 64, true},
		{"full width of P-384", ff(48), ff(48), 96, true},
		{"one leading zero in r", ff(31), ff(32), 64, true},
		{"two leading zeros in s", ff(32), ff(30), 64, true},
		{"r a byte too long", append([]byte{1}, ff(32)...), []byte{1}, 64, false},
		{"s a byte too long", []byte{1}, append([]byte{1}, ff(32)...), 64, false},
		{"s a byte too long for P-384", []byte{1}, append([]byte{1}, ff(48)...), 96, false},
		{"zero r", nil, []byte{1}, 64, false},
		{"zero s", []byte{1}, nil, 64, false},
	}
	for _, tt := range tests {
		got, err := joseSignature(derOf(tt.r, tt.s), tt.width)
		if !tt.good {
			if err == nil {
				t.Errorf("B01/%s: got %x, want an error", tt.name, got)
			}
			continue
		}
		want := append(pad(tt.r, tt.width/2), pad(tt.s, tt.width/2)...)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("B01/%s: got %x, %v, want %x", tt.name, got, err, want)
		}
	}
}

// FuzzJOSESignature checks that DER is read strictly: what is accepted is the
// one encoding of its integers, and the result has a fixed width.
func FuzzJOSESignature(f *testing.F) {
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
		for _, width := range []int{64, 96} {
			sig, err := joseSignature(der, width)
			if err != nil {
				if sig != nil {
					t.Errorf("joseSignature(%x, %d) = %x along with %v", der, width, sig, err)
				}
				continue
			}
			if len(sig) != width {
				t.Fatalf("joseSignature(%x, %d) has %d bytes", der, width, len(sig))
			}
			if got := derOf(sig[:width/2], sig[width/2:]); !bytes.Equal(got, der) {
				t.Errorf("joseSignature(%x, %d) = %x, whose DER is %x", der, width, sig, got)
			}
			if width == 64 {
				wide, err := joseSignature(der, 96)
				if err != nil || !bytes.Equal(wide[16:48], sig[:32]) || !bytes.Equal(wide[64:], sig[32:]) {
					t.Errorf("joseSignature(%x, 96) = %x, %v, which isn't %x", der, wide, err, sig)
				}
			}
		}
	})
}

// ff32 is the largest integer of 32 bytes, in hexadecimal.
const ff32 = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
