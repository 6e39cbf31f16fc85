// Package login is a service that makes tokens.
package login

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/golang-jwt/jwt/v5"
	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// NewHandler returns the service. config names the key that signs.
func NewHandler(ctx context.Context, config *gcpjwt.KMSConfig) (http.Handler, error) {
	signer, err := gcpjwt.NewKMSSigner(ctx, config)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := signer.Sign(r.Context(), jwt.RegisteredClaims{
			Subject:   r.FormValue("user"),
			Audience:  jwt.ClaimStrings{"https://api.example.com"},
			ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
		})
		if err != nil {
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, text)
	}), nil
}
