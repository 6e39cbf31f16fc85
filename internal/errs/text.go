package errs

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Quote makes foreign text fit for an error message: on one line, and not longer than what
// helps to recognise it.
func Quote(s string) string {
	const limit = 100
	if len(s) > limit {
		return fmt.Sprintf("%q... (%d bytes)", s[:limit], len(s))
	}
	return strconv.Quote(s)
}

// foreign is an error of a client with a text fit for a log: such errors hold whatever came
// from the network, whole pages of it, and some repeat the request.
type foreign struct {
	error
	text string
}

func (e foreign) Error() string { return e.text }

func (e foreign) Unwrap() error { return e.error }

// Foreign makes an error that a client returned fit for callers. sent is what was sent and
// must not appear in its text.
func Foreign(err error, sent ...string) error {
	const limit = 1000
	text := err.Error()
	cut := len(text) > 4*limit
	if cut {
		text = text[:4*limit] // before it is searched for what was sent
	}
	text = Mask(text, sent...)
	if cut = cut || len(text) > limit; cut {
		text = text[:min(limit, len(text))] + "..."
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	return foreign{err, text}
}
