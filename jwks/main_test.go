package jwks_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"filippo.io/mldsa"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Keys that others made, as JWKs without kid and alg.
const (
	rsaJWK       = `{"kty":"RSA","e":"AQAB","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"}` // RFC 7638 section 3.1
	p256JWK      = `{"kty":"EC","crv":"P-256","x":"UsOMnHHtWZ5ymqY-9CAQJTDWfDpvTagBxs5Qx54QnBk","y":"anZVWXCdNnTAjVVXSdZgkacej8nWpMRGJ0Z_Py5ya3I"}`
	p384JWK      = `{"kty":"EC","crv":"P-384","x":"fYOhSP_IleTdnIo2EwYyeheYisHN4yXjuN_9k94H1eJCKlwrN4b60h5CmqRAIRfb","y":"rZDOrSrsrB_TTirMkqbSYcgdjzrMO-7KvSasOUr8Gq8rV5kzQ0CZmUDE9ocseF9I"}`
	secp256k1JWK = `{"kty":"EC","crv":"secp256k1","x":"n7Fqn57UkxgIAq_2OnbD8QJjKWbUxz9c1wIXQWuCsBo","y":"5Myf9hHc-4hLJsDsN4zqISBNNjccj8VwcuSP6cYUQSI"}`
	ed25519JWK   = `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}` // RFC 8037 appendix A.2
)

// mldsaKey returns the ML-DSA-44 key of RFC 9964's examples, whose seed is zero.
func mldsaKey(t testing.TB) *mldsa.PublicKey {
	t.Helper()
	private, err := mldsa.NewPrivateKey(mldsa.MLDSA44(), make([]byte, mldsa.PrivateKeySize))
	if err != nil {
		t.Fatal(err)
	}
	return private.PublicKey()
}

// with returns a JWK with further members, or others for those that it has; a
// member that is null is taken out.
func with(t testing.TB, jwk string, members string) string {
	t.Helper()
	var all map[string]json.RawMessage
	for _, text := range []string{jwk, "{" + members + "}"} {
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	for name, value := range all {
		if string(value) == "null" {
			delete(all, name)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func setOf(keys ...string) []byte {
	return []byte(`{"keys":[` + strings.Join(keys, ",") + `]}`)
}

// parseOne returns the one key of a JWK.
func parseOne(t testing.TB, jwk string) jwks.Key {
	t.Helper()
	keys, err := jwks.Parse(setOf(jwk))
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 1 {
		t.Fatalf("%d keys of %s, want 1", len(keys), jwk)
	}
	return keys[0]
}

// allKeys returns a key of each type.
func allKeys(t testing.TB) []jwks.Key {
	t.Helper()
	keys := []jwks.Key{
		parseOne(t, with(t, rsaJWK, `"kid":"rsa","alg":"PS256"`)),
		parseOne(t, with(t, p256JWK, `"kid":"p256","alg":"ES256"`)),
		parseOne(t, with(t, p384JWK, `"kid":"p384","alg":"ES384"`)),
		parseOne(t, with(t, secp256k1JWK, `"kid":"secp256k1","alg":"ES256K"`)),
		parseOne(t, with(t, ed25519JWK, `"kid":"ed25519","alg":"EdDSA"`)),
		{KeyID: "mldsa", Algorithm: "ML-DSA-44", Public: mldsaKey(t)},
	}
	return keys
}

// sourceFunc is a Source of a function.
type sourceFunc func(ctx context.Context) ([]jwks.Key, error)

func (f sourceFunc) PublicKeys(ctx context.Context) ([]jwks.Key, error) { return f(ctx) }

// constant is a Source of keys that stay.
func constant(keys ...jwks.Key) jwks.Source {
	return sourceFunc(func(context.Context) ([]jwks.Key, error) { return keys, nil })
}
