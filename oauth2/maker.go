package oauth2

import (
	"context"
	"crypto/rand"
	"log/slog"
	"maps"
	"time"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/inside"
)

// A maker makes the JWTs of a source.
type maker struct {
	signer   *gcpjwt.Signer    // nil: method
	method   jwt.SigningMethod // nil: signer
	header   map[string]any    // beside alg, kid and typ
	claims   jwt.MapClaims     // all but the times and jti
	lifetime time.Duration
	backdate time.Duration
	jwtID    bool
	logger   *slog.Logger // nil: slog.Default
}

const signTimeout = 30 * time.Second

// make makes a token.
func (m *maker) make(ctx context.Context) (text string, expiry time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()

	now := time.Now().Round(0) // JWTs live by the wall clock
	issued := now.Add(-m.backdate).Truncate(time.Second).Unix()
	expiry = now.Truncate(time.Second).Add(m.lifetime)
	claims := maps.Clone(m.claims)
	claims["iat"], claims["nbf"], claims["exp"] = issued, issued, expiry.Unix()
	if m.jwtID {
		claims["jti"] = rand.Text()
	}

	text, err = m.sign(ctx, m.header, claims)
	if err != nil {
		return "", time.Time{}, err
	}
	if !time.Now().Before(expiry) {
		return "", time.Time{}, errs.Errorf("signing took longer than the token's lifetime of %v: %w", m.lifetime, jwt.ErrTokenExpired)
	}
	return text, expiry, nil
}

// sign signs a token with further fields in its header.
func (m *maker) sign(ctx context.Context, header map[string]any, claims jwt.MapClaims) (string, error) {
	if m.signer != nil {
		return m.signer.Sign(inside.WithHeader(ctx, header), claims)
	}
	token := jwt.NewWithClaims(m.method, claims)
	maps.Copy(token.Header, header)
	return gcpjwt.SignedString(ctx, token)
}
