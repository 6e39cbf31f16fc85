package oauth2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// secretParam matches the names of parameters whose values no error may show.
var secretParam = regexp.MustCompile(`(?i)secret|password|token|assertion|code`)

// maxKeptBody is how much of a body an error keeps, in bytes.
const maxKeptBody = 4 << 10

// A concealer keeps an assertion and other secrets out of errors: a server may send
// them back.
type concealer struct {
	secrets []string // the assertion among them
}

// line makes a text of the server's fit for one line of an error.
func (c concealer) line(text string) string {
	return errs.Foreign(errors.New(c.literal(text)), c.secrets...).Error()
}

// body makes a body fit for an error.
func (c concealer) body(body []byte) []byte {
	text := c.literal(string(body[:min(len(body), 2*maxKeptBody)]))
	text = errs.Mask(text, c.secrets...)
	return []byte(text[:min(len(text), maxKeptBody)])
}

// literal leaves out secrets that are too short for [errs.Mask].
func (c concealer) literal(text string) string {
	for _, secret := range c.secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[...]")
		}
	}
	return text
}

// header returns what an error may show of a header.
func (c concealer) header(header http.Header) http.Header {
	shown := make(http.Header)
	for name, values := range header {
		for _, value := range values {
			if name != "Set-Cookie" {
				shown.Add(name, c.line(value))
			}
		}
	}
	return shown
}

// error returns err if its text is fit for an error, and else another with a text
// that is.
func (c concealer) error(err error) error {
	text := c.line(err.Error())
	if text == err.Error() {
		return err
	}
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, end) {
			return fmt.Errorf("%w: %s", end, text)
		}
	}
	return errors.New(text)
}
