package middleware

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/golang-jwt/jwt/v5"
	lru "github.com/hashicorp/golang-lru/v2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// WithTokenCache remembers up to n verified tokens, the least recently seen of
// which make room for others, so that a token seen again costs no signature
// verification. It is off by default.
//
// A token is remembered by the SHA-256 of its text, only after it has passed
// every check, and only if the Keyfunc gave it a single public key. Each time it
// is seen again, the Keyfunc is asked as before, and exp, nbf, iat, iss and aud are
// checked: a token whose key was withdrawn or replaced, or that has expired since,
// is refused as if it had never been remembered. HMAC tokens, and tokens without a
// kid by a signer with several keys, are verified each time. A Keyfunc must not
// alter a key in place.
//
// Handlers get a copy of their own. A remembered token of 500 bytes takes about
// 2 KiB of memory.
func WithTokenCache(n int) Option {
	return func(c *config) {
		if n <= 0 {
			panic("middleware: WithTokenCache: the number of tokens is not positive")
		}
		c.tokens = newTokenCache(n)
	}
}

// digest is the SHA-256 of a token's text.
type digest [sha256.Size]byte

// digests keeps buffers for the texts that are hashed.
var digests = sync.Pool{New: func() any { return new([]byte) }}

func digestOf(text string) digest {
	buffer := digests.Get().(*[]byte)
	defer digests.Put(buffer)
	*buffer = append((*buffer)[:0], text...)
	return sha256.Sum256(*buffer)
}

// tokenCache is an LRU cache in shards, so that cores seldom wait for one
// another. A digest's first byte picks the shard; it is as good as random.
type tokenCache []*lru.Cache[digest, *verifiedToken]

const (
	maxShards = 64
	minShard  = 64 // tokens: in smaller ones chance would drop those in use
)

func newTokenCache(n int) tokenCache {
	shards := make(tokenCache, max(1, min(n/minShard, maxShards)))
	for i := range shards {
		size := n / len(shards)
		if i < n%len(shards) {
			size++
		}
		shards[i], _ = lru.New[digest, *verifiedToken](size) // fails for sizes below 1 only
	}
	return shards
}

func (c tokenCache) shard(d digest) *lru.Cache[digest, *verifiedToken] {
	return c[int(d[0])%len(c)]
}

// publicKey is what the public keys of the standard library have in common.
type publicKey interface {
	Equal(other crypto.PublicKey) bool
}

// verifiedToken is what is remembered of a token. It doesn't change.
type verifiedToken struct {
	parsed    jwt.SigningMethod // under the name in the header
	method    jwt.SigningMethod // that verified it
	key       publicKey
	header    jsonObject
	signature []byte
	claims    jsonObject // empty if they are of another type than jwt.MapClaims,
	payload   []byte     // and made anew from this
}

// checkOnce is check with a memory.
func (v *verifier) checkOnce(raw string, r *http.Request) (*jwt.Token, error) {
	d := digestOf(raw)
	shard := v.tokens.shard(d)
	if known, ok := shard.Get(d); ok {
		token, err := v.recall(raw, known)
		switch {
		case err == nil:
			return v.forUs(token, r)
		case errors.Is(err, gcpjwt.ErrKeysUnavailable):
			return nil, err // the token may be good again
		}
		shard.Remove(d) // the parser will say what is wrong
	}
	var (
		known *verifiedToken
		key   any
	)
	token, err := v.check(raw, r, func(token *jwt.Token) (_ any, err error) {
		known = parsedToken(token) // before the Keyfunc can alter it
		key, err = v.keyfunc(token)
		return key, err
	})
	if err == nil && known.verifiedBy(token.Method, key) {
		shard.Add(d, known)
	}
	return token, err
}

// errForgotten says that a remembered token has to be verified again.
var errForgotten = errors.New("middleware: the token is no longer what was remembered")

// recall returns a copy of a remembered token, if it is still good.
func (v *verifier) recall(raw string, known *verifiedToken) (*jwt.Token, error) {
	token := &jwt.Token{
		Raw:       raw,
		Method:    known.parsed,
		Header:    known.header.copy(),
		Signature: bytes.Clone(known.signature),
	}
	if known.payload == nil {
		token.Claims = jwt.MapClaims(known.claims.copy())
	} else {
		token.Claims = v.newClaims()
		if err := json.Unmarshal(known.payload, &token.Claims); err != nil {
			return nil, err
		}
	}
	key, err := v.keyfunc(token)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", jwt.ErrTokenUnverifiable, err)
	}
	if !sameKey(known.key, key) || token.Method != known.method {
		return nil, errForgotten
	}
	if err := v.validator.Validate(token.Claims); err != nil {
		return nil, err
	}
	token.Valid = true
	return token, nil
}

// parsedToken copies what is to be remembered of a token that has been parsed.
func parsedToken(token *jwt.Token) *verifiedToken {
	known := &verifiedToken{
		parsed:    token.Method,
		header:    newJSONObject(token.Header),
		signature: bytes.Clone(token.Signature),
	}
	if claims, ok := token.Claims.(jwt.MapClaims); ok {
		known.claims = newJSONObject(claims)
	} else {
		known.payload = payloadOf(token.Raw)
	}
	return known
}

// verifiedBy completes what is to be remembered, and reports whether it can be:
// there must be one public key to compare with.
func (t *verifiedToken) verifiedBy(method jwt.SigningMethod, key any) bool {
	public, ok := key.(publicKey)
	t.method, t.key = method, public
	return ok && reflect.TypeOf(method).Comparable()
}

// payloadOf returns the payload of a token that has been parsed.
func payloadOf(raw string) []byte {
	_, rest, _ := strings.Cut(raw, ".")
	encoded, _, _ := strings.Cut(rest, ".")
	payload, _ := base64.RawURLEncoding.DecodeString(encoded) // the parser has done so before
	return payload
}

// sameKey reports whether two keys are the same. A signer's keys may have been
// fetched again since, so that the pointers differ.
func sameKey(known publicKey, key any) bool {
	if _, ok := key.(publicKey); !ok {
		return false
	}
	return reflect.TypeOf(key).Comparable() && any(known) == key || known.Equal(key)
}

// jsonObject is a JSON object as encoding/json decodes it into a map.
type jsonObject struct {
	members map[string]any
	nested  []string // the names of those that are objects or arrays
}

// newJSONObject returns a copy of members.
func newJSONObject(members map[string]any) jsonObject {
	o := jsonObject{members: copyMembers(members)}
	for name, member := range members {
		switch member.(type) {
		case map[string]any, []any:
			o.nested = append(o.nested, name)
		}
	}
	return o
}

func (o jsonObject) copy() map[string]any {
	members := maps.Clone(o.members)
	for _, name := range o.nested {
		members[name] = copyJSON(members[name])
	}
	return members
}

func copyMembers(members map[string]any) map[string]any {
	members = maps.Clone(members)
	for name, member := range members {
		members[name] = copyJSON(member)
	}
	return members
}

func copyJSON(value any) any {
	switch value := value.(type) {
	case map[string]any:
		return copyMembers(value)
	case []any:
		array := make([]any, len(value))
		for i, element := range value {
			array[i] = copyJSON(element)
		}
		return array
	}
	return value
}
