package jwks_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"testing"

	"filippo.io/mldsa"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// The fingerprints are OpenSSL's. The thumbprints are those of RFC 7638 section 3.1,
// RFC 8037 appendix A.3 and RFC 9964's examples, and for the others a SHA-256 of
// Python's over the members as RFC 7638 section 3.3 writes them.
func TestFingerprintThumbprint(t *testing.T) {
	for _, test := range []struct {
		name, jwk, fingerprint, thumbprint string
	}{
		{"RSA", rsaJWK, "SHA256:rTIyDPbFltiEsFOBulc6uo3dV0m03o9KI6efmondrrI=", "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"},
		{"P-256", p256JWK, "SHA256:YqQQ2Ueocnvgiu5tiChrnaaMpNRFrA5MZkxDvQnu2nI=", "GbMchtm98drfyoWlWmtpJOXuQS8RY-raJg8jtTgYd2Q"},
		{"P-384", p384JWK, "SHA256:vu+aoCUloo3ztYmNGdusiAtIRMEjgbVFws2OtPZCi+Y=", "ZgH0YzDbgkA9_hhXfDPhtmx2GxoIkayH3YBV-TEgcG4"},
		{"secp256k1", secp256k1JWK, "SHA256:fQP9A2MaA/fgvljjXjiK9iJOeqxHWPXSk/M9a70WdYU=", "lpiAwT7UHa9eX_HlznA22XIST6wzhj-Pn4QpJG3XFJI"},
		{"Ed25519", ed25519JWK, "SHA256:BuP9j9opu2CrWVV95h7bCuzbIxE0vjDnW0Vfjht5L6k=", "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"},
	} {
		t.Run(test.name, func(t *testing.T) {
			key := parseOne(t, test.jwk)
			if got := key.Fingerprint(); got != test.fingerprint {
				t.Errorf("Fingerprint() = %s, want %s", got, test.fingerprint)
			}
			if got := key.Thumbprint(); got != test.thumbprint {
				t.Errorf("Thumbprint() = %s, want %s", got, test.thumbprint)
			}
		})
	}
	t.Run("ML-DSA-44", func(t *testing.T) {
		key := jwks.Key{Public: mldsaKey(t)}
		// RFC 9881 section 4: a SubjectPublicKeyInfo without parameters.
		head, err := hex.DecodeString("30820532300b060960864801650304031103820521" + "00")
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(append(head, mldsaKey(t).Bytes()...))
		if got, want := key.Fingerprint(), "SHA256:"+base64.StdEncoding.EncodeToString(sum[:]); got != want {
			t.Errorf("Fingerprint() = %s, want %s", got, want)
		}
		if got, want := key.Thumbprint(), "T4xl70S7MT6Zeq6r9V9fPJGVn76wfnXJ21-gyo0Gu6o"; got != want {
			t.Errorf("Thumbprint() = %s, want %s", got, want)
		}
	})
}

// badKeys are values of Public that no token should be verified with.
func badKeys(t testing.TB) map[string]any {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := parseOne(t, rsaJWK).Public.(*rsa.PublicKey)
	return map[string]any{
		"nil":                  nil,
		"a text":               "key",
		"a secret":             []byte("0123456789abcdef0123456789abcdef"),
		"a private key":        private,
		"an RSA key by value":  *good,
		"a nil RSA key":        (*rsa.PublicKey)(nil),
		"an RSA key without N": &rsa.PublicKey{E: 65537},
		"RSA of 4097 bits":     rsaNumber(4097, 65537),
		"RSA with E 3":         &rsa.PublicKey{N: good.N, E: 3},
		"RSA with an even E":   &rsa.PublicKey{N: good.N, E: 65538},
		"a nil EC key":         (*ecdsa.PublicKey)(nil),
		"a zero EC key":        &ecdsa.PublicKey{},
		"an EC key without X":  &ecdsa.PublicKey{Curve: elliptic.P256()},
		//lint:ignore SA1019 no other way makes such a key
		"a point off the curve": &ecdsa.PublicKey{Curve: elliptic.P256(), X: private.X, Y: private.X},
		//lint:ignore SA1019 no other way makes such a key
		"another curve's point":   &ecdsa.PublicKey{Curve: elliptic.P384(), X: private.X, Y: private.Y},
		"P-521":                   &p521.PublicKey,
		"a nil Ed25519 key":       ed25519.PublicKey(nil),
		"a short Ed25519 key":     make(ed25519.PublicKey, 31),
		"a nil secp256k1 key":     (*secp256k1.PublicKey)(nil),
		"a zero secp256k1 key":    new(secp256k1.PublicKey),
		"a nil ML-DSA key":        (*mldsa.PublicKey)(nil),
		"an ML-DSA key of nought": new(mldsa.PublicKey),
	}
}

func TestBadKeys(t *testing.T) {
	for name, public := range badKeys(t) {
		t.Run(name, func(t *testing.T) {
			key := jwks.Key{KeyID: "bad", Public: public}
			if got := key.Fingerprint(); got != "" {
				t.Errorf("Fingerprint() = %q, want none", got)
			}
			if got := key.Thumbprint(); got != "" {
				t.Errorf("Thumbprint() = %q, want none", got)
			}
			if set, err := jwks.Marshal([]jwks.Key{key}); err == nil {
				t.Errorf("Marshal made %s of it", set)
			}
		})
	}
}
