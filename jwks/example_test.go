package jwks_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/jwks"
)

// service has the keys of the examples. In a program it is a *gcpjwt.KMSConfig, a
// *gcpjwt.IAMConfig or a *gcpjwt.Signer.
type service struct{ keys []jwks.Key }

func (s service) PublicKeys(context.Context) ([]jwks.Key, error) { return s.keys, nil }

// exampleKeys is a JWK Set as others publish it.
const exampleKeys = `{"keys": [
	{"kty": "OKP", "crv": "Ed25519", "kid": "2026-11", "alg": "EdDSA", "use": "sig", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
	{"kty": "OKP", "crv": "X25519", "kid": "mail", "use": "enc", "x": "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"},
	{"kty": "oct", "kid": "oops", "k": "c2VjcmV0"}
]}`

func ExampleParse() {
	keys, err := jwks.Parse([]byte(exampleKeys))
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range keys {
		fmt.Printf("%s %s %T\n", key.KeyID, key.Algorithm, key.Public)
	}
	// Output: 2026-11 EdDSA ed25519.PublicKey
}

func ExampleMarshal() {
	keys, err := jwks.Parse([]byte(exampleKeys))
	if err != nil {
		log.Fatal(err)
	}
	set, err := jwks.Marshal(keys)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(set))
	// Output: {"keys":[{"use":"sig","kty":"OKP","kid":"2026-11","crv":"Ed25519","alg":"EdDSA","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}
}

func ExampleKey_Thumbprint() {
	keys, err := jwks.Parse([]byte(exampleKeys))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(keys[0].Thumbprint())
	// Output: kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k
}

// Snowflake wants the fingerprint in the issuer of a token: ACCOUNT.USER.SHA256:...
func ExampleKey_Fingerprint() {
	keys, err := jwks.Parse([]byte(exampleKeys))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ACCOUNT.USER." + keys[0].Fingerprint())
	// Output: ACCOUNT.USER.SHA256:BuP9j9opu2CrWVV95h7bCuzbIxE0vjDnW0Vfjht5L6k=
}

func ExampleNewHandler() {
	keys, err := jwks.Parse([]byte(exampleKeys))
	if err != nil {
		log.Fatal(err)
	}
	signer := service{keys}

	mux := http.NewServeMux()
	mux.Handle("/keys", jwks.NewHandler(signer))

	server := httptest.NewServer(mux)
	defer server.Close()
	response, err := http.Get(server.URL + "/keys")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Println(response.Status)
	fmt.Println(response.Header.Get("Content-Type"))
	fmt.Println(response.Header.Get("Cache-Control"))
	// Output:
	// 200 OK
	// application/jwk-set+json
	// public, max-age=300
}

func ExampleNewDiscoveryHandler() {
	keys, err := jwks.Parse([]byte(exampleKeys))
	if err != nil {
		log.Fatal(err)
	}
	signer := service{keys}

	// The tokens have "iss": "https://auth.example.com/tenant".
	server := httptest.NewServer(jwks.NewDiscoveryHandler("https://auth.example.com/tenant", signer))
	defer server.Close()

	response, err := http.Get(server.URL + "/tenant/.well-known/openid-configuration")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	document, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(document))
	// Output: {"issuer":"https://auth.example.com/tenant","jwks_uri":"https://auth.example.com/tenant/.well-known/jwks.json","response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["EdDSA","Ed25519"]}
}

// Consumers that know no post-quantum keys get a set of their own, and so do those
// that do. Several keys, of one service or of many, share a set by Join.
func ExampleJoin() {
	keys, err := jwks.Parse([]byte(exampleKeys))
	if err != nil {
		log.Fatal(err)
	}
	invoices, reports := service{keys}, service{nil}

	all := jwks.Join(invoices, reports)
	http.Handle("/jwks/classic", jwks.NewHandler(all, jwks.WithAlgorithms("RS256", "PS256", "ES256", "ES384", "EdDSA")))
	http.Handle("/jwks/ml-dsa", jwks.NewHandler(all, jwks.WithAlgorithms("ML-DSA-44", "ML-DSA-65", "ML-DSA-87")))

	joined, err := all.PublicKeys(context.Background())
	fmt.Println(len(joined), err)
	// Output: 1 <nil>
}

func ExampleNewKeyfunc() {
	// In place of Google, this server publishes the keys of accounts.example.
	server := httptest.NewServer(nil)
	defer server.Close()
	signer := edSigner("2026-11")
	server.Config.Handler = jwks.NewDiscoveryHandler(server.URL, service{[]jwks.Key{signer.key}})
	token := signer.token("EdDSA", "2026-11")

	keyfunc, err := jwks.NewKeyfunc(context.Background(), &jwks.Config{
		Issuer:          server.URL, // such as https://accounts.google.com
		CacheExpiration: 5 * time.Minute,
	})
	if err != nil {
		log.Fatal(err)
	}
	parsed, err := jwt.Parse(token, keyfunc) // in a program also jwt.WithIssuer and jwt.WithAudience
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(parsed.Valid, parsed.Header["kid"])
	// Output: true 2026-11
}
