package jwks_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// sameKeys compares keys by their values.
var sameKeys = cmp.Comparer(func(a, b jwks.Key) bool {
	return a.KeyID == b.KeyID && a.Algorithm == b.Algorithm && samePublic(a.Public, b.Public)
})

func samePublic(a, b crypto.PublicKey) bool {
	if a, ok := a.(*secp256k1.PublicKey); ok {
		b, ok := b.(*secp256k1.PublicKey)
		return ok && a.IsEqual(b)
	}
	comparable, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && comparable.Equal(b)
}

func TestMarshal(t *testing.T) {
	keys := allKeys(t)
	pub := base64.RawURLEncoding.EncodeToString(mldsaKey(t).Bytes())
	want := string(setOf(
		with(t, rsaJWK, `"use":"sig","kid":"rsa","alg":"PS256"`),
		with(t, p256JWK, `"use":"sig","kid":"p256","alg":"ES256"`),
		with(t, p384JWK, `"use":"sig","kid":"p384","alg":"ES384"`),
		with(t, secp256k1JWK, `"use":"sig","kid":"secp256k1","alg":"ES256K"`),
		with(t, ed25519JWK, `"use":"sig","kid":"ed25519","alg":"EdDSA"`),
		`{"alg":"ML-DSA-44","kid":"mldsa","kty":"AKP","pub":"`+pub+`","use":"sig"}`,
	))
	set, err := jwks.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Keys []map[string]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(set, &got); err != nil {
		t.Fatal(err)
	}
	sorted, err := json.Marshal(got) // names in order, as with has them
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(sorted)); diff != "" {
		t.Errorf("Marshal (-want +got):\n%s", diff)
	}
	again, err := jwks.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(keys, again, sameKeys); diff != "" {
		t.Errorf("Parse of Marshal's set (-want +got):\n%s", diff)
	}
	if twice, err := jwks.Marshal(keys); string(twice) != string(set) || err != nil {
		t.Errorf("the same keys made other bytes, error %v:\n%s\n%s", err, set, twice)
	}
}

func TestMarshalNames(t *testing.T) {
	ed := parseOne(t, ed25519JWK).Public
	for _, test := range []struct {
		name string
		key  jwks.Key
		want string // in the set
	}{
		{"Ed25519 is written EdDSA", jwks.Key{Algorithm: "Ed25519", Public: ed}, `"alg":"EdDSA"`},
		{"no algorithm", jwks.Key{Public: ed}, `{"keys":[{"use":"sig","kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`},
		{"ML-DSA always has one", jwks.Key{Public: mldsaKey(t)}, `"alg":"ML-DSA-44"`},
		{"a kid is a JSON string", jwks.Key{KeyID: "\"\\\n\u2028é", Public: ed}, `"kid":"\"\\\n\u2028é"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			set, err := jwks.Marshal([]jwks.Key{test.key})
			if err != nil || !strings.Contains(string(set), test.want) {
				t.Errorf("Marshal = %s, %v; want %s in it", set, err, test.want)
			}
		})
	}
	for _, none := range [][]jwks.Key{nil, {}} {
		if set, err := jwks.Marshal(none); string(set) != `{"keys":[]}` || err != nil {
			t.Errorf("Marshal(%v) = %s, %v", none, set, err)
		}
	}
}

func TestMarshalErrors(t *testing.T) {
	good := allKeys(t)
	for _, test := range []struct {
		name string
		key  jwks.Key
		want error
	}{
		{"another type's algorithm", jwks.Key{KeyID: "k", Algorithm: "RS256", Public: good[1].Public}, jwks.ErrAlgorithmMismatch},
		{"another curve's algorithm", jwks.Key{KeyID: "k", Algorithm: "ES256", Public: good[2].Public}, jwks.ErrAlgorithmMismatch},
		{"another parameter set", jwks.Key{KeyID: "k", Algorithm: "ML-DSA-65", Public: good[5].Public}, jwks.ErrAlgorithmMismatch},
		{"lower case", jwks.Key{KeyID: "k", Algorithm: "es256", Public: good[1].Public}, jwks.ErrAlgorithmMismatch},
		{"symmetric", jwks.Key{KeyID: "k", Algorithm: "HS256", Public: []byte("secret")}, jwks.ErrInvalidConfig},
		{"a kid that isn't UTF-8", jwks.Key{KeyID: "k\xff", Public: good[1].Public}, jwks.ErrInvalidConfig},
	} {
		t.Run(test.name, func(t *testing.T) {
			set, err := jwks.Marshal([]jwks.Key{good[0], test.key})
			if !errors.Is(err, test.want) || set != nil {
				t.Fatalf("Marshal = %s, %v; want %v", set, err, test.want)
			}
			if got := strings.Count(err.Error(), "gcpjwt: "); got != 1 || !strings.Contains(err.Error(), `"k`) {
				t.Errorf("%q: want the prefix once, and the key's ID", err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q has the key in it", err)
			}
		})
	}
}

// rsaOf returns the JWK of an odd number of so many bits.
func rsaOf(bits int, e *big.Int) string {
	return fmt.Sprintf(`{"kty":"RSA","n":%q,"e":%q}`,
		base64.RawURLEncoding.EncodeToString(rsaNumber(bits, 0).N.Bytes()), base64.RawURLEncoding.EncodeToString(e.Bytes()))
}

// TestParseLeavesOut puts each key between two good ones, which must survive.
func TestParseLeavesOut(t *testing.T) {
	zeros := strings.Repeat("A", 43)
	mldsaPub := base64.RawURLEncoding.EncodeToString(mldsaKey(t).Bytes())
	akp := fmt.Sprintf(`{"kty":"AKP","alg":"ML-DSA-44","pub":%q}`, mldsaPub)
	even := new(big.Int).Lsh(big.NewInt(1), 2047)
	secp256k1Key := parseOne(t, secp256k1JWK).Public.(*secp256k1.PublicKey).SerializeUncompressed()
	moved := with(t, secp256k1JWK, fmt.Sprintf(`"x":%q,"y":%q`,
		base64.RawURLEncoding.EncodeToString(secp256k1Key[1:34]), base64.RawURLEncoding.EncodeToString(secp256k1Key[34:])))
	for _, test := range []struct{ name, jwk string }{
		{"null", `null`},
		{"a number", `1`},
		{"an array", `[]`},
		{"an empty object", `{}`},
		{"no kty", with(t, p256JWK, `"kty":null`)},
		{"unknown kty", with(t, p256JWK, `"kty":"XYZ"`)},
		{"kty in another case", with(t, p256JWK, `"kty":"ec"`)},
		{"a kty that isn't a string", with(t, p256JWK, `"kty":5`)},
		{"a name in another case", strings.Replace(p256JWK, `"kty"`, `"KTY"`, 1)},

		{"symmetric", `{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}`},
		{"a private RSA key", with(t, rsaJWK, `"d":"AQAB"`)},
		{"a prime of an RSA key", with(t, rsaJWK, `"p":"AQAB"`)},
		{"a private EC key", with(t, p256JWK, `"d":"870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE"`)},
		{"a private OKP key", with(t, ed25519JWK, `"d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"`)},
		{"a private AKP key", with(t, akp, `"priv":"`+zeros+`"`)},
		{"a private member of another type", with(t, p256JWK, `"k":"AQAB"`)},

		{"for encryption", with(t, rsaJWK, `"use":"enc"`)},
		{"an empty use", with(t, rsaJWK, `"use":""`)},
		{"a use that isn't a string", with(t, rsaJWK, `"use":["sig"]`)},
		{"key_ops encrypt", with(t, rsaJWK, `"key_ops":["encrypt"]`)},
		{"key_ops sign alone", with(t, rsaJWK, `"key_ops":["sign"]`)},
		{"key_ops verify and wrapKey", with(t, rsaJWK, `"key_ops":["verify","wrapKey"]`)},
		{"no key_ops", with(t, rsaJWK, `"key_ops":[]`)},
		{"key_ops that isn't an array", with(t, rsaJWK, `"key_ops":"verify"`)},

		{"a kid that is a number", with(t, p256JWK, `"kid":7`)},
		{"a kid that is null", strings.Replace(p256JWK, `{`, `{"kid":null,`, 1)},
		{"a kid that is an object", with(t, p256JWK, `"kid":{}`)},
		{"a member twice", strings.Replace(p256JWK, `{`, `{"kty":"EC",`, 1)},
		{"a kid twice", strings.Replace(p256JWK, `{`, `{"kid":"a","kid":"b",`, 1)},
		{"a member twice, once escaped", strings.Replace(p256JWK, `{`, `{"kid":"a","k\u0069d":"b",`, 1)},

		{"RS256 for EC", with(t, p256JWK, `"alg":"RS256"`)},
		{"ES256 for P-384", with(t, p384JWK, `"alg":"ES256"`)},
		{"ES256 for secp256k1", with(t, secp256k1JWK, `"alg":"ES256"`)},
		{"ES256K for P-256", with(t, p256JWK, `"alg":"ES256K"`)},
		{"EdDSA for EC", with(t, p256JWK, `"alg":"EdDSA"`)},
		{"HS256 for RSA", with(t, rsaJWK, `"alg":"HS256"`)},
		{"RSA-OAEP", with(t, rsaJWK, `"alg":"RSA-OAEP"`)},
		{"none", with(t, rsaJWK, `"alg":"none"`)},
		{"an alg in lower case", with(t, rsaJWK, `"alg":"rs256"`)},
		{"an empty alg", with(t, rsaJWK, `"alg":""`)},
		{"an alg that isn't a string", with(t, rsaJWK, `"alg":256`)},

		{"RSA of 1024 bits", rsaOf(1024, big.NewInt(65537))},
		{"RSA of 2047 bits", rsaOf(2047, big.NewInt(65537))},
		{"RSA of 4097 bits", rsaOf(4097, big.NewInt(65537))},
		{"RSA with an even modulus", with(t, rsaJWK, `"n":"`+base64.RawURLEncoding.EncodeToString(even.Bytes())+`"`)},
		{"RSA with e 1", with(t, rsaJWK, `"e":"AQ"`)},
		{"RSA with e 3", with(t, rsaJWK, `"e":"Aw"`)},
		{"RSA with an even e", with(t, rsaJWK, `"e":"AQAC"`)},
		{"RSA with e over 31 bits", rsaOf(2048, big.NewInt(1<<31+1))},
		{"RSA with e of 128 bits", rsaOf(2048, new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), 127), big.NewInt(1)))},
		{"RSA without e", with(t, rsaJWK, `"e":null`)},
		{"RSA with an empty n", with(t, rsaJWK, `"n":""`)},

		{"P-521", `{"kty":"EC","crv":"P-521","x":"AHKZLLOsCOzz5cY97ewNUajB957y-C-U88c3v13nmGZx6sYl_oJXu9A5RkTKqjqvjyekWF-7ytDyRXYgCF5cj0Kt","y":"AdymlHvOiLxXkEhayXQnNCvDX4h9htZaCJN34kfmC6pV5OhQHiraVySsUdaQkAgDPrwQrJmbnX9cwlGfP-HqHZR1"}`},
		{"X25519", with(t, ed25519JWK, `"crv":"X25519"`)},
		{"Ed448", with(t, ed25519JWK, `"crv":"Ed448"`)},
		{"EC without crv", with(t, p256JWK, `"crv":null`)},
		{"a point at infinity", with(t, p256JWK, `"x":"`+zeros+`","y":"`+zeros+`"`)},
		{"a point off its curve", with(t, p256JWK, `"y":"anZVWXCdNnTAjVVXSdZgkacej8nWpMRGJ0Z_Py5ya3M"`)},
		{"a secp256k1 point at infinity", with(t, secp256k1JWK, `"x":"`+zeros+`","y":"`+zeros+`"`)},
		{"a secp256k1 point off its curve", with(t, secp256k1JWK, `"y":"5Myf9hHc-4hLJsDsN4zqISBNNjccj8VwcuSP6cYUQSM"`)},
		{"P-256's point on secp256k1", with(t, p256JWK, `"crv":"secp256k1"`)},
		{"a secp256k1 coordinate of 33 bytes", with(t, secp256k1JWK, `"x":"AJ-xap-e1JMYCAKv9jp2w_ECYylm1Mc_XNcCF0FrgrAa"`)},
		{"secp256k1 coordinates of 33 and 31 bytes", moved},
		{"a coordinate of 33 bytes", with(t, p256JWK, `"x":"AFLDjJxx7VmecpqmPvQgECUw1nw6b02oAcbOUMeeEJwZ"`)},
		{"a coordinate of 31 bytes", with(t, p256JWK, `"x":"w4ycce1ZnnKapj70IBAlMNZ8Om9NqAHGzlDHnhCcGQ"`)},
		{"a point without y", with(t, p256JWK, `"y":null`)},
		{"a y that isn't a string", with(t, p256JWK, `"y":[1]`)},
		{"an Ed25519 key of 31 bytes", with(t, ed25519JWK, `"x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHUQ"`)},
		{"an Ed25519 key of low order", with(t, ed25519JWK, `"x":"`+zeros+`"`)},
		{"AKP without alg", with(t, akp, `"alg":null`)},
		{"AKP of another size", with(t, akp, `"alg":"ML-DSA-65"`)},
		{"AKP with an unknown alg", with(t, akp, `"alg":"FN-DSA-512"`)},
		{"AKP without pub", with(t, akp, `"pub":null`)},

		{"padded base64url", with(t, p256JWK, `"x":"UsOMnHHtWZ5ymqY-9CAQJTDWfDpvTagBxs5Qx54QnBk="`)},
		{"base64 with + and /", with(t, p256JWK, `"x":"UsOMnHHtWZ5ymqY+9CAQJTDWfDpvTagBxs5Qx54QnBk"`)},
		{"base64url with a line break", with(t, p256JWK, `"x":"UsOMnHHtWZ5ymqY-9CAQJTDWfDpv\nTagBxs5Qx54QnBk"`)},
		{"base64url with bits to spare", with(t, p256JWK, `"x":"UsOMnHHtWZ5ymqY-9CAQJTDWfDpvTagBxs5Qx54QnBl"`)},
	} {
		t.Run(test.name, func(t *testing.T) {
			good := with(t, ed25519JWK, `"kid":"good"`)
			got, err := jwks.Parse(setOf(good, test.jwk, good))
			if err != nil {
				t.Fatal(err)
			}
			want := parseOne(t, good)
			if diff := cmp.Diff([]jwks.Key{want, want}, got, sameKeys); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
		})
	}
}

func rsaNumber(bits, e int) *rsa.PublicKey {
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	return &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: e}
}

func TestParseTakes(t *testing.T) {
	rsaKey := parseOne(t, rsaJWK).Public
	n := base64.RawURLEncoding.EncodeToString(append([]byte{0}, rsaKey.(*rsa.PublicKey).N.Bytes()...))
	for _, test := range []struct {
		name, jwk string
		want      jwks.Key
	}{
		{"RSA of 2048 bits", rsaOf(2048, big.NewInt(65537)), jwks.Key{Public: rsaNumber(2048, 65537)}},
		{"RSA of 4096 bits", rsaOf(4096, big.NewInt(1<<31-1)), jwks.Key{Public: rsaNumber(4096, 1<<31-1)}},
		{"no alg, no kid", rsaJWK, jwks.Key{Public: rsaKey}},
		{"all members", with(t, rsaJWK, `"kid":"1","alg":"RS256","use":"sig","key_ops":["verify"]`), jwks.Key{KeyID: "1", Algorithm: "RS256", Public: rsaKey}},
		{"sign beside verify", with(t, rsaJWK, `"key_ops":["sign","verify"]`), jwks.Key{Public: rsaKey}},
		{"RS384", with(t, rsaJWK, `"alg":"RS384"`), jwks.Key{Algorithm: "RS384", Public: rsaKey}},
		{"PS512", with(t, rsaJWK, `"alg":"PS512"`), jwks.Key{Algorithm: "PS512", Public: rsaKey}},
		{"an empty kid", with(t, rsaJWK, `"kid":""`), jwks.Key{Public: rsaKey}},
		{"a zero in front of n and e", with(t, rsaJWK, `"n":"`+n+`","e":"AAEAAQ"`), jwks.Key{Public: rsaKey}},
		{"unknown members", with(t, rsaJWK, `"ext":true,"exp":1,"x":{"d":1}`), jwks.Key{Public: rsaKey}},
		{"certificates, whatever they are", with(t, rsaJWK, `"x5c":["AQAB"],"x5t":"?","x5u":":"`), jwks.Key{Public: rsaKey}},
		{"Ed25519 by its own name", with(t, ed25519JWK, `"alg":"Ed25519"`), jwks.Key{Algorithm: "EdDSA", Public: parseOne(t, ed25519JWK).Public}},
		{"escapes in names and values", strings.Replace(rsaJWK, `"kty":"RSA"`, `"\u006bty":"\u0052SA"`, 1), jwks.Key{Public: rsaKey}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, parseOne(t, test.jwk), sameKeys); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	space := strings.Repeat(" ", 1<<20-len(setOf(rsaJWK)))
	for _, test := range []struct {
		name, data string
		bad        bool
	}{
		{"nothing", "", true},
		{"HTML", "<html>", true},
		{"null", "null", true},
		{"an array", "[]", true},
		{"no keys", "{}", true},
		{"keys in another case", `{"Keys":[]}`, true},
		{"keys null", `{"keys":null}`, true},
		{"keys an object", `{"keys":{}}`, true},
		{"keys twice", `{"keys":[],"keys":[]}`, true},
		{"one JWK", rsaJWK, true},
		{"cut off", `{"keys":[` + rsaJWK, true},
		{"more behind it", string(setOf(rsaJWK)) + "x", true},
		{"nested without end", `{"keys":` + strings.Repeat("[", 1<<19) + `}`, true},
		{"over 1 MiB", string(setOf(rsaJWK)) + space + " ", true},

		{"1 MiB", string(setOf(rsaJWK)) + space, false},
		{"an empty set", `{"keys":[]}`, false},
		{"further members", `{"x":1,"keys":[]}`, false},
		{"no usable key", `{"keys":[null,{}]}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			keys, err := jwks.Parse([]byte(test.data))
			if test.bad != (err != nil) || test.bad != errors.Is(err, jwks.ErrKeysUnavailable) || err != nil && keys != nil {
				t.Errorf("Parse = %v, %v; want an error: %t", keys, err, test.bad)
			}
		})
	}
}

// TestParseNewRSA reads keys of the sizes that Cloud KMS has.
func TestParseNewRSA(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		t.Fatal(err)
	}
	key := jwks.Key{KeyID: "3072", Algorithm: "RS256", Public: &private.PublicKey}
	set, err := jwks.Marshal([]jwks.Key{key})
	if err != nil {
		t.Fatal(err)
	}
	got, err := jwks.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]jwks.Key{key}, got, sameKeys); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
}

// FuzzParse checks that whatever Parse takes can be published again, and is the
// same key then.
func FuzzParse(f *testing.F) {
	f.Add(setOf())
	f.Add(setOf(rsaJWK, with(f, p256JWK, `"kid":"a","alg":"ES256"`)))
	f.Add(setOf(secp256k1JWK, p384JWK, with(f, ed25519JWK, `"alg":"Ed25519"`)))
	f.Add(setOf(with(f, rsaJWK, `"d":"AQAB"`), `{"kty":"oct","k":"AA"}`, `{"kty":5,"kid":{}}`))
	f.Add([]byte(`{"keys":[{"kty":"EC","kty":"RSA","key_ops":["verify"],"use":"sig","x5c":[""]}],"keys":[]}`))
	if all, err := jwks.Marshal(allKeys(f)); err == nil {
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := jwks.Parse(data)
		if err != nil {
			if keys != nil {
				t.Fatalf("%d keys beside the error %v", len(keys), err)
			}
			return
		}
		set, err := jwks.Marshal(keys)
		if err != nil {
			t.Fatalf("Marshal refuses what Parse took: %v", err)
		}
		again, err := jwks.Parse(set)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(keys, again, sameKeys); diff != "" {
			t.Errorf("the second reading (-first +second):\n%s", diff)
		}
		for _, key := range keys {
			if key.Thumbprint() == "" || key.Fingerprint() == "" {
				t.Errorf("no thumbprint or fingerprint of %v", key)
			}
		}
	})
}

// FuzzMarshal checks that what Marshal writes is what Parse reads, whatever the kid
// and the algorithm.
func FuzzMarshal(f *testing.F) {
	f.Add("kid", "RS256", "", "")
	f.Add("a\"b\\\u2028</script>", "EdDSA", "\xff", "Ed25519")
	keys := allKeys(f)
	f.Fuzz(func(t *testing.T, kid1, alg1, kid2, alg2 string) {
		var want []jwks.Key
		for _, key := range keys {
			for _, named := range []jwks.Key{{KeyID: kid1, Algorithm: alg1, Public: key.Public}, {KeyID: kid2, Algorithm: alg2, Public: key.Public}} {
				set, err := jwks.Marshal([]jwks.Key{named})
				if err != nil {
					continue
				}
				if named.Algorithm == "Ed25519" {
					named.Algorithm = "EdDSA"
				}
				if key.KeyID == "mldsa" {
					named.Algorithm = key.Algorithm
				}
				got, err := jwks.Parse(set)
				if diff := cmp.Diff([]jwks.Key{named}, got, sameKeys); err != nil || diff != "" {
					t.Fatalf("Parse of %s, error %v (-want +got):\n%s", set, err, diff)
				}
				want = append(want, named)
			}
		}
		set, err := jwks.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := jwks.Parse(set)
		if err != nil || len(got) != len(want) {
			t.Errorf("Parse returned %d keys and error %v, want %d keys", len(got), err, len(want))
		}
	})
}
