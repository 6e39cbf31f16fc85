package errs

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"
)

// shortest is the number of letters and digits from which on a run that is in a secret too
// is masked.
const shortest = 8

// Mask leaves out of text each run that is in a secret too, however either is escaped: as
// JSON, as a Go string, in a URL, in base64 or as the segments of a token. Only letters and
// digits of ASCII are compared, so that blanks, punctuation and other ways to write the rest
// don't matter.
func Mask(text string, secrets ...string) string {
	var hidden []string
	hide := func(text string) {
		letters, _ := lettersOf(text)
		hidden = append(hidden, string(letters))
	}
	for _, secret := range secrets {
		hide(secret)
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			hide(encoding.EncodeToString([]byte(secret)))
			for segment := range strings.SplitSeq(secret, ".") {
				if decoded, err := encoding.DecodeString(strings.TrimRight(segment, "=")); err == nil {
					hide(string(decoded))
				}
			}
		}
	}
	secret := strings.Join(hidden, " ")
	letters, at := lettersOf(text)
	var out strings.Builder
	kept := 0 // of text
	for i := 0; i+shortest <= len(letters); {
		end := i + shortest
		if !strings.Contains(secret, string(letters[i:end])) {
			i++
			continue
		}
		for end < len(letters) && strings.Contains(secret, string(letters[i:end+1])) {
			end++
		}
		out.WriteString(text[kept:at[i].begin])
		out.WriteString("[...]")
		kept, i = at[end-1].end, end
	}
	out.WriteString(text[kept:])
	return out.String()
}

// span is where a letter stands in a text.
type span struct{ begin, end int }

// lettersOf returns the letters and digits of a text with its escapes undone, as often as
// they were nested, and where each stands.
func lettersOf(text string) (letters []byte, at []span) {
	for i := 0; i < len(text); {
		c, width := unescape(text[i:])
		switch {
		case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
			letters = append(letters, byte(c))
			at = append(at, span{i, i + width})
		}
		i += width
	}
	return letters, at
}

// unescape returns the character that text begins with, and how much of text it takes.
func unescape(text string) (rune, int) {
	switch text[0] {
	case '\\':
		rest := strings.TrimLeft(text, `\`) // each nesting doubles them
		slashes := len(text) - len(rest)
		if len(rest) >= 5 && rest[0] == 'u' {
			if n, err := strconv.ParseUint(rest[1:5], 16, 16); err == nil {
				return rune(n), slashes + 5
			}
		}
		if rest != "" && strings.IndexByte(`nrtbfav"'/`, rest[0]) >= 0 {
			return ' ', slashes + 1
		}
		return ' ', slashes
	case '%':
		rest := text[1:]
		nested := 0
		for strings.HasPrefix(rest, "25") {
			rest = rest[2:]
			nested += 2
		}
		if len(rest) >= 2 {
			if n, err := strconv.ParseUint(rest[:2], 16, 8); err == nil {
				return rune(n), 1 + nested + 2
			}
		}
	}
	c, width := utf8.DecodeRuneInString(text)
	return c, width
}
