// Package signheader lets package oauth2 hand a Signer further fields of a token's header,
// which Signer's own method has no place for.
package signheader

import (
	"context"
	"maps"
)

type key struct{}

// With returns a copy of ctx that carries header fields.
func With(ctx context.Context, header map[string]any) context.Context {
	if len(header) == 0 {
		return ctx
	}
	return context.WithValue(ctx, key{}, header)
}

// From returns a copy of the fields that ctx carries, nil if there are none.
func From(ctx context.Context) map[string]any {
	header, _ := ctx.Value(key{}).(map[string]any)
	return maps.Clone(header)
}
