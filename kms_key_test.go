package gcpjwt_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil/start"
)

// What a Keyfunc of an asymmetric key refuses, and at no cost: each alg but the
// key's own (B10).
func TestKMSKeyfuncRefusesOtherAlgorithms(t *testing.T) {
	t.Parallel()
	server, client := start.KMS(t)
	version := systest.Create(t, server, systest.PKCS2048)
	text := systest.Sign(t, systest.KMSContext(t.Context(), client, version), gcpjwt.SigningMethodKMSRS256, nil)
	keyfuncs := map[string]jwt.Keyfunc{
		"version":   systest.KMSKeyfunc(t, t.Context(), client, version),
		"CryptoKey": systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(version)),
	}
	payload := strings.Split(text, ".")[1]
	server.ResetCalls()
	for name, keyfunc := range keyfuncs {
		for _, alg := range []string{
			"none", "rs256", "RS512", "RS384", "PS256", "ES256", "EdDSA", "HS256", "ML-DSA-44",
			"KMSPS256", "KMSRS512", "KMSHS256", "AppEngine2",
		} {
			for _, kid := range []string{"", gcpjwt.KMSKeyID(version)} {
				t.Run(fmt.Sprintf("B10/%s/%s/kid=%t", name, alg, kid != ""), func(t *testing.T) {
					header := map[string]string{"alg": alg, "typ": "JWT"}
					if kid != "" {
						header["kid"] = kid
					}
					raw, err := json.Marshal(header)
					if err != nil {
						t.Fatal(err)
					}
					signingString := base64.RawURLEncoding.EncodeToString(raw) + "." + payload
					sum := sha256.Sum256([]byte(signingString)) // any signature at all
					_, err = jwt.Parse(signingString+"."+base64.RawURLEncoding.EncodeToString(sum[:]), keyfunc)
					if !errors.Is(err, jwt.ErrTokenUnverifiable) {
						t.Errorf("jwt.Parse: %v, want ErrTokenUnverifiable", err)
					}
					if errors.Is(err, gcpjwt.ErrKeysUnavailable) {
						t.Errorf("jwt.Parse: %v, which blames Cloud KMS", err)
					}
				})
			}
		}
	}
	// A method of somebody else's under a name of jwt's, with its own idea of Verify.
	for name, keyfunc := range keyfuncs {
		key, err := keyfunc(&jwt.Token{Method: kmsForeignMethod{}, Header: map[string]any{"alg": "RS256"}})
		if key != nil || !errors.Is(err, gcpjwt.ErrAlgorithmMismatch) {
			t.Errorf("B10/%s: a foreign method gets the key %v, %v, want ErrAlgorithmMismatch", name, key, err)
		}
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("B10: %d calls, want 0", got)
	}
}

// kmsForeignMethod is a signing method of another library.
type kmsForeignMethod struct{}

func (kmsForeignMethod) Alg() string                      { return "RS256" }
func (kmsForeignMethod) Sign(string, any) ([]byte, error) { return nil, nil }
func (kmsForeignMethod) Verify(string, []byte, any) error { return nil }
