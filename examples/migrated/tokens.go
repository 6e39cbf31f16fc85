package main

import (
	"context"
	"net/http"
	"time"

	"github.com/golang-jwt/jwt/v5"
	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/middleware"
	gcpoauth2 "github.com/someone1/gcp-jwt-go/v3/oauth2"
	"golang.org/x/oauth2"
)

const api = "https://api.example.com"

// session returns a token for a user, signed by a key in Cloud KMS.
func session(ctx context.Context, config *gcpjwt.KMSConfig, user string) (string, error) {
	token := jwt.NewWithClaims(gcpjwt.SigningMethodKMSES256, &jwt.RegisteredClaims{
		Subject:   user,
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	})
	return gcpjwt.SignedString(gcpjwt.NewKMSContext(ctx, config), token)
}

// userOf returns the user of a session.
func userOf(keyfunc jwt.Keyfunc, text string) (string, error) {
	claims := &jwt.RegisteredClaims{}
	if _, err := jwt.ParseWithClaims(text, claims, keyfunc); err != nil {
		return "", err
	}
	return claims.Subject, nil
}

// invite returns a token for an invitation, signed with signJwt.
func invite(ctx context.Context, config *gcpjwt.IAMConfig, email string) (string, error) {
	token := jwt.NewWithClaims(gcpjwt.SigningMethodIAMJWT, &jwt.RegisteredClaims{
		Subject:   email,
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	})
	return gcpjwt.SignedString(gcpjwt.NewIAMContext(ctx, config), token)
}

// protect lets only requests through that a service signed for this API.
func protect(ctx context.Context, config *gcpjwt.IAMConfig, handler http.Handler) http.Handler {
	return middleware.NewHandler(ctx, config, api)(handler)
}

// newClient returns a client that signs its requests as a service.
func newClient(ctx context.Context, config *gcpjwt.IAMConfig) (*http.Client, error) {
	source, err := gcpoauth2.JWTAccessTokenSource(ctx, config, api)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &oauth2.Transport{Source: source}}, nil
}
