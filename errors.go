package gcpjwt

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// foreignError is an error of a Google client with a text fit for a log: such
// errors hold whatever came from the network, whole pages of it, and some repeat
// the request.
type foreignError struct {
	error
	text string
}

func (e foreignError) Error() string { return e.text }

func (e foreignError) Unwrap() error { return e.error }

// foreign makes an error that a Google client returned fit for callers: the end of
// ctx, which may be what caused it, becomes visible to errors.Is, and its text fit
// for a log. sent is what was sent and must not appear in it.
func foreign(ctx context.Context, err error, sent ...string) error {
	const limit = 1000
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	text := err.Error()
	cut := len(text) > limit
	if cut {
		text = text[:limit]
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(masked(text, strings.Join(sent, " ")), "?"))
	if cut {
		text += "..."
	}
	return foreignError{err, text}
}

// masked leaves out of text each run of 8 bytes and more that is in secret too.
func masked(text, secret string) string {
	const shortest = 8
	var out strings.Builder
	for i := 0; i < len(text); {
		end := i + shortest
		if end > len(text) || !strings.Contains(secret, text[i:end]) {
			out.WriteByte(text[i])
			i++
			continue
		}
		for end < len(text) && strings.Contains(secret, text[i:end+1]) {
			end++
		}
		out.WriteString("[...]")
		i = end
	}
	return out.String()
}

// quote makes foreign text fit for an error message: on one line, and not
// longer than what helps to recognise it.
func quote(s string) string {
	const limit = 100
	if len(s) > limit {
		return fmt.Sprintf("%q... (%d bytes)", s[:limit], len(s))
	}
	return strconv.Quote(s)
}
