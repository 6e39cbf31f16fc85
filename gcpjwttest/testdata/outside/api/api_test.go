package api

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
)

func TestAPI(t *testing.T) {
	signer := gcpjwttest.NewSigner(t)
	handler := NewHandler(signer.Keyfunc)
	for _, test := range []struct {
		audience string
		lifetime time.Duration
		status   int
	}{
		{"https://api.example.com", time.Hour, 200},
		{"https://api.example.com", -time.Hour, 401},
		{"https://payroll.example.com", time.Hour, 403},
	} {
		text, err := signer.Sign(t.Context(), jwt.MapClaims{"sub": "alice", "aud": test.audience, "exp": time.Now().Add(test.lifetime).Unix()})
		if err != nil {
			t.Fatal(err)
		}
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("Authorization", "Bearer "+text)
		if handler.ServeHTTP(w, r); w.Code != test.status {
			t.Errorf("audience %s, lifetime %v: status %d, want %d", test.audience, test.lifetime, w.Code, test.status)
		}
	}
}
