package vectors_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/mldsa"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// A wycheproofFile is what the schemas of C2SP/wycheproof's signature
// verification vectors have in common.
type wycheproofFile struct {
	TestGroups []struct {
		PublicKey    json.RawMessage
		PublicKeyDER string
		Tests        []struct {
			ID      int `json:"tcId"`
			Comment string
			Msg     string
			Sig     string
			Ctx     string
			Result  string
		}
	}
}

// secp256k1File came last, so that a folder may lack it.
const secp256k1File = "ecdsa_secp256k1_sha256_p1363_test.json"

// TestWycheproof runs independent vectors through our Verify methods. They are
// read from the folder that WYCHEPROOF_DIR names.
func TestWycheproof(t *testing.T) {
	dir := os.Getenv("WYCHEPROOF_DIR")
	if dir == "" {
		t.Skip("WYCHEPROOF_DIR is not set")
	}
	spki := func(_ json.RawMessage, der string) (any, error) {
		return x509.ParsePKIXPublicKey(unhex(t, der))
	}
	raw := func(params mldsa.Parameters) func(json.RawMessage, string) (any, error) {
		return func(key json.RawMessage, _ string) (any, error) {
			var text string
			if err := json.Unmarshal(key, &text); err != nil {
				t.Fatal(err)
			}
			return mldsa.NewPublicKey(params, unhex(t, text))
		}
	}
	secp256k1Key := func(key json.RawMessage, _ string) (any, error) {
		var point struct{ Uncompressed string }
		if err := json.Unmarshal(key, &point); err != nil {
			t.Fatal(err)
		}
		return secp256k1.ParsePubKey(unhex(t, point.Uncompressed))
	}
	files := []struct {
		name   string
		method *gcpjwt.SigningMethodKMS
		key    func(key json.RawMessage, der string) (any, error)
	}{
		{secp256k1File, gcpjwt.SigningMethodKMSES256K, secp256k1Key},
		{"ecdsa_secp256r1_sha256_p1363_test.json", gcpjwt.SigningMethodKMSES256, spki},
		{"ecdsa_secp384r1_sha384_p1363_test.json", gcpjwt.SigningMethodKMSES384, spki},
		{"rsa_signature_2048_sha256_test.json", gcpjwt.SigningMethodKMSRS256, spki},
		{"rsa_signature_3072_sha256_test.json", gcpjwt.SigningMethodKMSRS256, spki},
		{"rsa_signature_4096_sha256_test.json", gcpjwt.SigningMethodKMSRS256, spki},
		{"rsa_signature_4096_sha512_test.json", gcpjwt.SigningMethodKMSRS512, spki},
		{"rsa_pss_2048_sha256_mgf1_32_test.json", gcpjwt.SigningMethodKMSPS256, spki},
		{"rsa_pss_3072_sha256_mgf1_32_test.json", gcpjwt.SigningMethodKMSPS256, spki},
		{"rsa_pss_4096_sha256_mgf1_32_test.json", gcpjwt.SigningMethodKMSPS256, spki},
		{"rsa_pss_4096_sha512_mgf1_64_test.json", gcpjwt.SigningMethodKMSPS512, spki},
		{"ed25519_test.json", gcpjwt.SigningMethodKMSEdDSA, spki},
		{"ed25519_test.json", gcpjwt.SigningMethodKMSEd25519, spki},
		{"mldsa_44_verify_test.json", gcpjwt.SigningMethodKMSMLDSA44, raw(mldsa.MLDSA44())},
		{"mldsa_65_verify_test.json", gcpjwt.SigningMethodKMSMLDSA65, raw(mldsa.MLDSA65())},
		{"mldsa_87_verify_test.json", gcpjwt.SigningMethodKMSMLDSA87, raw(mldsa.MLDSA87())},
	}
	var run, good, accepted, refused int // in all
	for _, file := range files {
		t.Run(file.name+" "+file.method.Alg(), func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(dir, file.name))
			if errors.Is(err, fs.ErrNotExist) && file.name == secp256k1File {
				return // not every folder has it
			}
			if err != nil {
				t.Fatal(err)
			}
			var vectors wycheproofFile
			if err := json.Unmarshal(data, &vectors); err != nil {
				t.Fatal(err)
			}
			before := run
			for _, group := range vectors.TestGroups {
				key, keyErr := file.key(group.PublicKey, group.PublicKeyDER)
				for _, tc := range group.Tests {
					err := keyErr
					if err == nil {
						err = file.method.Verify(string(unhex(t, tc.Msg)), unhex(t, tc.Sig), key)
					}
					run++
					// A JWS has no context string, so a signature over one isn't valid.
					// Neither is what wycheproof only calls acceptable.
					want := tc.Result == "valid" && tc.Ctx == ""
					if want {
						good++
					}
					switch {
					case err == nil && !want:
						accepted++
						t.Errorf("case %d (%s): accepted, want refused", tc.ID, tc.Comment)
					case err != nil && want:
						refused++
						t.Errorf("case %d (%s): got %v, want accepted", tc.ID, tc.Comment, err)
					}
				}
			}
			t.Logf("%d vectors", run-before)
		})
	}
	t.Logf("%d vectors run, %d of them good; %d wrongly accepted, %d wrongly refused", run, good, accepted, refused)
	if run < 2500 {
		t.Errorf("got %d vectors, want at least 2500", run)
	}
}

// TestRFCVectors checks the published JWS examples, and that none of them
// survives a change.
func TestRFCVectors(t *testing.T) {
	number := func(s string) *big.Int { return new(big.Int).SetBytes(unbase64(t, s)) }
	point := func(x, y string) *ecdsa.PublicKey {
		uncompressed := slices.Concat([]byte{4}, unbase64(t, x), unbase64(t, y))
		key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), uncompressed)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	for _, tc := range []struct {
		source string
		method *gcpjwt.SigningMethodKMS
		key    any
		token  string
	}{
		{
			"RFC 7515 A.2", gcpjwt.SigningMethodKMSRS256,
			&rsa.PublicKey{
				N: number("ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"),
				E: 65537,
			},
			"eyJhbGciOiJSUzI1NiJ9" +
				".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ" +
				".cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
		},
		{
			"RFC 7515 A.3", gcpjwt.SigningMethodKMSES256,
			point("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"),
			"eyJhbGciOiJFUzI1NiJ9" +
				".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ" +
				".DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
		},
		{
			"RFC 8037 A.4", gcpjwt.SigningMethodKMSEdDSA,
			ed25519.PublicKey(unbase64(t, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")),
			"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc" +
				".hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
		},
		{
			// Ed25519 signatures are deterministic: this is what A.4's private key makes of A.4's payload.
			"RFC 8037 A.4 by RFC 9864's name", gcpjwt.SigningMethodKMSEd25519,
			ed25519.PublicKey(unbase64(t, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")),
			"eyJhbGciOiJFZDI1NTE5In0.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc" +
				".UxhIYLHGg39NVCLpQAVD_UcfOmnGSCzLFZoXYkLiIbFccmOb_qObsgjzLKsfJw-4NlccUgvYrEHrRbNV0HcZAQ",
		},
	} {
		t.Run(tc.source, func(t *testing.T) {
			i := strings.LastIndex(tc.token, ".")
			signingString, sig := tc.token[:i], unbase64(t, tc.token[i+1:])
			if err := tc.method.Verify(signingString, sig, tc.key); err != nil {
				t.Errorf("Verify: got %v, want nil", err)
			}
			for bit := range len(sig) * 8 {
				sig[bit/8] ^= 1 << (bit % 8)
				if tc.method.Verify(signingString, sig, tc.key) == nil {
					t.Errorf("Verify with bit %d of the signature flipped: got nil, want an error", bit)
				}
				sig[bit/8] ^= 1 << (bit % 8)
			}
			if tc.method.Verify(signingString+"A", sig, tc.key) == nil {
				t.Error("Verify of a longer signing string: got nil, want an error")
			}
		})
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	data, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func unbase64(t *testing.T, s string) []byte {
	t.Helper()
	data, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
