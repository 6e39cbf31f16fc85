package gcpjwt

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// KMSKeyID returns the key ID of a CryptoKeyVersion: the lower-case
// hexadecimal SHA-1 of its resource name
// (projects/*/locations/*/keyRings/*/cryptoKeys/*/cryptoKeyVersions/*).
// gcp-jwt-go v2 made the same kid, so its tokens stay verifiable. The hash only
// shortens a public name; nothing depends on its strength.
func KMSKeyID(name string) string {
	sum := sha1.Sum([]byte(name))
	return hex.EncodeToString(sum[:])
}

// KeyID returns the kid of tokens that are signed with this configuration.
//
// Where KeyPath names a CryptoKeyVersion that is [KMSKeyID] of it. Where it names
// a CryptoKey it is the key ID of the version that signed last in this process, ""
// before the first signature; prefer [SignedString], which picks the
// version and the kid together. It is "" for a KeyPath that is neither.
func (c *KMSConfig) KeyID() string {
	if c == nil {
		return ""
	}
	path, err := parseKeyPath(c.KeyPath)
	switch {
	case err != nil:
		return ""
	case path.version > 0:
		return KMSKeyID(c.KeyPath)
	}
	if key, ok := cryptoKeys.Peek(c.cryptoKeyID()); ok {
		return lastOf(&key.lastKeyID)
	}
	return ""
}

// KeyID returns the ID of the key that Google used for the account's last
// signature in this process, "" before the first one. Google may use another
// key for the next one; [SignedString] takes care of that.
func (c *IAMConfig) KeyID() string {
	if c == nil {
		return ""
	}
	if last, ok := iamKeys.Peek(c.signerID()); ok {
		return lastOf(&last.id)
	}
	return ""
}

// KeyID returns the name of the key that App Engine used for the last signature
// in this process, "" before the first one.
func (m *SigningMethodAppEngineImpl) KeyID() string {
	if m == nil {
		return ""
	}
	return lastOf(&m.last.id)
}

func lastOf(kid *atomic.Pointer[string]) string {
	if last := kid.Load(); last != nil {
		return *last
	}
	return ""
}

// keyPath is a parsed KeyPath.
type keyPath struct {
	cryptoKey string // resource name of the CryptoKey
	version   uint64 // 0: the path names the CryptoKey itself
}

// keyPathForm are the collections of a resource name in Cloud KMS, in order.
var keyPathForm = [...]string{"projects", "locations", "keyRings", "cryptoKeys", "cryptoKeyVersions"}

// parseKeyPath checks a KeyPath as Cloud KMS would, but before any call and
// with a message that says what to change.
func parseKeyPath(name string) (keyPath, error) {
	invalid := func(format string, args ...any) (keyPath, error) {
		return keyPath{}, errs.Errorf("%w: KeyPath %s: %s; "+
			"want projects/*/locations/*/keyRings/*/cryptoKeys/*[/cryptoKeyVersions/*]",
			ErrInvalidConfig, errs.Quote(name), fmt.Sprintf(format, args...))
	}
	switch {
	case name == "":
		return invalid("it is empty")
	case strings.HasPrefix(name, "name="):
		return invalid(`remove the leading "name="`)
	case strings.Contains(name, "://"):
		return invalid("remove the scheme in front of projects/")
	case strings.HasPrefix(name, "/"):
		return invalid("remove the leading slash")
	}
	var buf [2*len(keyPathForm) + 1]string // one more than there may be
	segments := buf[:0]
	for rest, more := name, true; more && len(segments) < len(buf); {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		segments = append(segments, segment)
	}
	for i, collection := range keyPathForm {
		if len(segments) == 2*i && i == len(keyPathForm)-1 {
			return keyPath{cryptoKey: name}, nil
		}
		if len(segments) <= 2*i || segments[2*i] != collection {
			return invalid("%s/ is missing", collection)
		}
		if len(segments) == 2*i+1 || segments[2*i+1] == "" {
			return invalid("the ID after %s/ is missing", collection)
		}
		if id := segments[2*i+1]; !validID(id, collection == "projects") {
			return invalid("%s is not an ID of %s", errs.Quote(id), collection)
		}
	}
	if len(segments) > 2*len(keyPathForm) {
		return invalid("it goes on after the version")
	}
	id := segments[len(segments)-1]
	version, err := strconv.ParseUint(id, 10, 63)
	if err != nil || version == 0 || id[0] == '0' {
		return invalid("%s is not a version number", errs.Quote(id))
	}
	return keyPath{cryptoKey: name[:strings.LastIndex(name, "/cryptoKeyVersions/")], version: version}, nil
}

// validID reports whether id is one of Cloud KMS's: 1 to 63 letters, digits,
// underscores and hyphens. A project ID may also carry a domain
// (example.com:project).
func validID(id string, project bool) bool {
	limit := 63
	if project = project && !strings.HasPrefix(id, "."); project {
		limit = 128
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		case project && (c == '.' || c == ':'):
		default:
			return false
		}
	}
	return id != "" && len(id) <= limit
}
