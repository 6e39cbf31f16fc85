package middleware

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// decoded returns what a part of a token encodes, which the parser has found to be
// strict base64url.
func decoded(part string) []byte {
	data, _ := base64.RawURLEncoding.DecodeString(part)
	return data
}

// checkHeader looks at what the parser doesn't.
func checkHeader(header []byte) error {
	return members(header, func(name, _ []byte) error {
		if string(name) == "crit" {
			return errs.Errorf("%w: crit names extensions, and none is supported (RFC 7515 section 4.1.11)", jwt.ErrTokenMalformed)
		}
		return nil
	})
}

// statements is what a payload itself says, whatever the claims type makes of it. As
// jwt.Claims they are the dates alone.
type statements struct {
	exp, nbf, iat date
	scope, scp    []byte // in JSON; nil: not there
}

// date is an instant in a payload.
type date struct {
	jwt.NumericDate
	stated bool
}

func (d *date) get() (*jwt.NumericDate, error) {
	if !d.stated {
		return nil, nil
	}
	return &d.NumericDate, nil
}

func (s *statements) GetExpirationTime() (*jwt.NumericDate, error) { return s.exp.get() }
func (s *statements) GetNotBefore() (*jwt.NumericDate, error)      { return s.nbf.get() }
func (s *statements) GetIssuedAt() (*jwt.NumericDate, error)       { return s.iat.get() }
func (s *statements) GetAudience() (jwt.ClaimStrings, error)       { return nil, nil }
func (s *statements) GetIssuer() (string, error)                   { return "", nil }
func (s *statements) GetSubject() (string, error)                  { return "", nil }

// read returns the statements of a payload that the parser has decoded.
func (v *Verifier) read(payload []byte) (*statements, error) {
	s := new(statements)
	err := members(payload, func(name, value []byte) (err error) {
		switch string(name) {
		case "exp":
			s.exp, err = parseDate("exp", value)
		case "nbf":
			s.nbf, err = parseDate("nbf", value)
		case "iat":
			s.iat, err = parseDate("iat", value)
		case "scope":
			s.scope = value
		case "scp":
			s.scp = value
		default:
			if v.fields.misspelt(name) {
				err = errs.Errorf("%w: the name of a claim is in another case", jwt.ErrTokenMalformed)
			}
		}
		return err
	})
	return s, err
}

// lastDate is the end of the year 9999, the last one that RFC 3339 can write.
const lastDate = 253402300799

func parseDate(name string, value []byte) (date, error) {
	seconds, err := strconv.ParseFloat(string(value), 64) // takes no JSON but numbers
	if err != nil || seconds < 0 || seconds > lastDate {
		return date{}, errs.Errorf("%w: %s is not a number from 0 to %d", jwt.ErrTokenMalformed, name, int64(lastDate))
	}
	whole := int64(seconds)
	at := time.Unix(whole, int64((seconds-float64(whole))*1e9))
	return date{*jwt.NewNumericDate(at), true}, nil
}

// fields are the names of members that the fields of a claims type are decoded from.
type fields []string

// registered are the claims of RFC 7519 section 4.1, and those of scopes.
var registered = fields{"iss", "sub", "aud", "exp", "nbf", "iat", "jti", "scope", "scp"}

// fieldsOf returns the fields of a claims type. A jwt.MapClaims has none, as it
// keeps names apart that encoding/json takes for the same in a struct.
func fieldsOf(claims jwt.Claims) fields {
	if _, ok := claims.(jwt.MapClaims); ok {
		return nil
	}
	all := slices.Clone(registered)
	t := reflect.TypeOf(claims)
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return all
	}
	for _, field := range reflect.VisibleFields(t.Elem()) {
		tag := field.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		switch {
		case !field.IsExported() || tag == "-" || name == "" && field.Anonymous:
			continue
		case name == "":
			name = field.Name
		}
		all = append(all, name)
	}
	return all
}

// misspelt reports whether encoding/json takes a name for that of a field, though it
// is another one: claim names are case-sensitive (RFC 7519 section 4).
func (f fields) misspelt(name []byte) bool {
	folds := false
	for _, field := range f {
		if string(name) == field {
			return false
		}
		folds = folds || strings.EqualFold(field, string(name))
	}
	return folds
}

// members calls member for each member at the top of an object in JSON, in order,
// until it fails. Whoever calls has found that data begins with valid JSON; members
// adds that it is an object, that nothing follows it, and that no name stands twice.
func members(data []byte, member func(name, value []byte) error) error {
	var (
		seen names
		rest = skipBlanks(data)
	)
	if len(rest) == 0 || rest[0] != '{' {
		return errs.Errorf("%w: header and claims have to be JSON objects", jwt.ErrTokenMalformed)
	}
	for rest = skipBlanks(rest[1:]); len(rest) > 0 && rest[0] == '"'; {
		end := valueEnd(rest)
		name := unquote(rest[:end])
		if !seen.add(name) {
			return errs.Errorf("%w: a name stands twice in header or claims", jwt.ErrTokenMalformed)
		}
		if rest = skipBlanks(rest[end:]); len(rest) == 0 {
			break
		}
		rest = skipBlanks(rest[1:]) // behind the colon
		if end = valueEnd(rest); end == 0 {
			break
		}
		if err := member(name, rest[:end]); err != nil {
			return err
		}
		if rest = skipBlanks(rest[end:]); len(rest) > 0 && rest[0] == ',' {
			rest = skipBlanks(rest[1:])
		}
	}
	if len(rest) == 0 || rest[0] != '}' || len(skipBlanks(rest[1:])) > 0 {
		return errs.Errorf("%w: something follows the JSON object of header or claims", jwt.ErrTokenMalformed)
	}
	return nil
}

func skipBlanks(data []byte) []byte {
	for len(data) > 0 && (data[0] == ' ' || data[0] == '\t' || data[0] == '\n' || data[0] == '\r') {
		data = data[1:]
	}
	return data
}

// valueEnd returns where the value ends that valid JSON begins with.
func valueEnd(data []byte) int {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return min(i+1, len(data))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 { // that of the object around a number
				return i
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return len(data)
}

// unquote returns the string that a literal stands for.
func unquote(literal []byte) []byte {
	plain := func(c byte) bool { return c != '\\' && c < 0x80 }
	if !slices.ContainsFunc(literal, func(c byte) bool { return !plain(c) }) && len(literal) >= 2 {
		return literal[1 : len(literal)-1]
	}
	var text string
	_ = json.Unmarshal(literal, &text) // the parser has done so before
	return []byte(text)
}

// names are those that were seen in an object, most of which have few.
type names struct {
	few  [16][]byte
	n    int
	many map[string]struct{}
}

// add reports whether a name is new.
func (s *names) add(name []byte) bool {
	if s.many == nil && s.n < len(s.few) {
		for _, other := range s.few[:s.n] {
			if bytes.Equal(name, other) {
				return false
			}
		}
		s.few[s.n] = name
		s.n++
		return true
	}
	if s.many == nil {
		s.many = make(map[string]struct{}, 2*len(s.few))
		for _, other := range s.few {
			s.many[string(other)] = struct{}{}
		}
	}
	if _, ok := s.many[string(name)]; ok {
		return false
	}
	s.many[string(name)] = struct{}{}
	return true
}
