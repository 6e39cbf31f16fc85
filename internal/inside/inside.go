// Package inside is what package oauth2 needs of a Signer that its exported methods don't
// give.
package inside

import (
	"context"
	"log/slog"
	"maps"
)

type headerKey struct{}

// WithHeader returns a copy of ctx that carries further fields of a token's header.
func WithHeader(ctx context.Context, header map[string]any) context.Context {
	if len(header) == 0 {
		return ctx
	}
	return context.WithValue(ctx, headerKey{}, header)
}

// Header returns a copy of the fields that ctx carries, nil if there are none.
func Header(ctx context.Context) map[string]any {
	header, _ := ctx.Value(headerKey{}).(map[string]any)
	return maps.Clone(header)
}

// LoggerOf returns the Logger of a Signer's configuration, nil if there is none. Package
// gcpjwt sets it.
var LoggerOf func(signer any) *slog.Logger
