// Package errs holds the errors that several packages of this module return, and
// the words that their messages are made of. It imports nothing of this module.
package errs

import (
	"fmt"
	"strings"
)

// prefix begins each message, once.
const prefix = "gcpjwt: "

// The errors that packages export as their own. Package gcpjwt says what they mean.
var (
	ErrMissingConfig        = New("missing configuration")
	ErrInvalidConfig        = New("invalid configuration")
	ErrAlgorithmMismatch    = New("algorithm mismatch")
	ErrIntegrity            = New("response failed an integrity check")
	ErrUnknownKeyID         = New("unknown key ID")
	ErrKeysUnavailable      = New("keys unavailable")
	ErrSigningStringChanged = New("signJwt signed another header or payload")
)

// New returns an error with the text and the prefix.
func New(text string) error { return &message{text: text} }

// Errorf is [fmt.Errorf] with the prefix. What it wraps loses the prefix in its text,
// so that a message has one however often it was wrapped.
func Errorf(format string, args ...any) error {
	for i, arg := range args {
		if err, ok := arg.(error); ok && err != nil {
			args[i] = bare{err}
		}
	}
	wrapped := fmt.Errorf(format, args...)
	return &message{wrapped.Error(), wrapped}
}

// message is an error of this module.
type message struct {
	text    string
	wrapped error // nil: none
}

func (m *message) Error() string { return prefix + m.text }

func (m *message) Unwrap() error { return m.wrapped }

// bare shows an error without the prefix.
type bare struct{ error }

func (b bare) Error() string { return strings.TrimPrefix(b.error.Error(), prefix) }

func (b bare) Unwrap() error { return b.error }
