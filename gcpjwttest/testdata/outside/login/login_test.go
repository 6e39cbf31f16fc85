package login

import (
	"net/http/httptest"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
)

func TestLogin(t *testing.T) {
	cloud := gcpjwttest.NewKMS(t)
	config := cloud.NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	handler, err := NewHandler(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	keyfunc, err := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // before and after a rotation
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", "/?user=alice", nil))
		token, err := jwt.Parse(w.Body.String(), keyfunc, jwt.WithAudience("https://api.example.com"))
		if err != nil || token.Claims.(jwt.MapClaims)["sub"] != "alice" {
			t.Errorf("got %v, error %v, want a token of alice's", token, err)
		}
		cloud.NewVersion(config)
	}
	cloud.Deny("cloudkms.cryptoKeyVersions.useToSign")
	w := httptest.NewRecorder()
	if handler.ServeHTTP(w, httptest.NewRequest("POST", "/", nil)); w.Code != 503 {
		t.Errorf("without the permission to sign: status %d, want 503", w.Code)
	}
}
