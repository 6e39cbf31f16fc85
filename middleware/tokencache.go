package middleware

import (
	"bytes"
	"crypto"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// WithTokenCache remembers up to n verified tokens, the least recently seen of
// which make room for others, so that a token seen again costs no signature
// verification. It is off by default.
//
// A token is remembered by its text, only after it has passed every check, and only
// if the Keyfunc gave it a single public key. Each time it is seen again, the Keyfunc
// is asked as before, and dates, issuer and audience are checked, as is what a Validate
// method of the claims says: a token whose key was withdrawn or replaced, or that has
// expired since, is refused as if it had never been remembered. HMAC tokens, and
// tokens without a kid by a signer with several keys, are verified each time. A Keyfunc
// must not alter a key in place.
//
// Handlers get a copy of their own. A remembered token of 500 bytes takes about 1.5 KB
// of memory, and none takes more than 16 times its text: one with many small numbers,
// objects or members in its claims isn't remembered. It panics unless n is positive.
func WithTokenCache(n int) Option {
	return func(c *config) {
		if n <= 0 {
			panic("middleware: WithTokenCache: the number of tokens is not positive")
		}
		c.tokens = newTokenCache(n)
	}
}

// tokenCache is an LRU cache in shards, so that cores seldom wait for one another.
// Comparing with the text itself, found by Go's own hash of it, takes a tenth of the
// time of a SHA-256.
type tokenCache []*lru.Cache[string, *verifiedToken]

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
		shards[i], _ = lru.New[string, *verifiedToken](size) // fails for sizes below 1 only
	}
	return shards
}

// shard picks one by the end of the text: that of a signature, which is as good as
// random.
func (c tokenCache) shard(text string) *lru.Cache[string, *verifiedToken] {
	var sum uint
	for _, char := range []byte(text[max(0, len(text)-8):]) {
		sum = sum*31 + uint(char)
	}
	return c[sum%uint(len(c))]
}

// publicKey is what the public keys of the standard library have in common.
type publicKey interface {
	Equal(other crypto.PublicKey) bool
}

// verifiedToken is what is remembered of a token. It doesn't change.
type verifiedToken struct {
	token       jwt.Token         // as it was parsed: the Keyfunc hasn't seen it
	method      jwt.SigningMethod // that verified it
	key         publicKey
	nested      nested
	from, until time.Time // when it is valid, with the leeway
}

// checkOnce is check with a memory.
func (v *Verifier) checkOnce(text, host string) (*jwt.Token, error) {
	shard := v.tokens.shard(text)
	if known, ok := shard.Get(text); ok {
		token, err := v.recall(known, host)
		if err == nil || errors.Is(err, ErrKeysUnavailable) { // then the token may be good again
			return token, err
		}
		shard.Remove(text) // verifying says what is wrong
	}
	token, stated, err := v.parse(text)
	if err != nil {
		return nil, err
	}
	key, err := v.checkSignature(token, stated, host)
	if err != nil {
		return nil, err
	}
	method := token.Method
	if token, err = v.checkClaims(token, stated, host); err != nil {
		return nil, err
	}
	if known := v.toRemember(text, stated, method, key); known != nil {
		shard.Add(known.token.Raw, known)
	}
	return token, nil
}

// errForgotten says that a remembered token has to be verified again.
var errForgotten = errs.New("the token is no longer what was remembered")

// recall returns a copy of a remembered token, if it is still good.
func (v *Verifier) recall(known *verifiedToken, host string) (*jwt.Token, error) {
	token := &jwt.Token{
		Raw:       known.token.Raw,
		Method:    known.token.Method,
		Header:    copyMembers(known.token.Header, known.nested.header),
		Signature: bytes.Clone(known.token.Signature),
	}
	claims, isMap := known.token.Claims.(jwt.MapClaims)
	if isMap {
		token.Claims = jwt.MapClaims(copyMembers(claims, known.nested.claims))
	} else {
		token.Claims = v.newClaims()
		if err := v.decode(payloadOf(token.Raw), token.Claims); err != nil {
			return nil, err
		}
	}
	key, err := v.keyfunc(token)
	if err != nil {
		return nil, errs.Errorf("%w: %w", jwt.ErrTokenUnverifiable, err)
	}
	now := time.Now()
	switch {
	case !sameKey(known.key, key), token.Method != known.method, now.Before(known.from), !now.Before(known.until):
		return nil, errForgotten
	case !isMap:
		if err := v.validator.Validate(token.Claims); err != nil {
			return nil, err
		}
	}
	if err := v.checkIssuer(token.Claims); err != nil {
		return nil, err
	}
	if err := v.checkAudience(token.Claims, host); err != nil {
		return nil, err
	}
	token.Valid = true
	return token, nil
}

// toRemember returns what to remember of a token that has passed every check, or nil:
// there must be one public key to compare with, and what is kept must be small. The
// text is parsed anew, as the Keyfunc may have altered what it saw.
func (v *Verifier) toRemember(text string, stated *statements, method jwt.SigningMethod, key any) *verifiedToken {
	public, ok := key.(publicKey)
	if !ok || !reflect.TypeOf(method).Comparable() {
		return nil
	}
	// A text of its own, as this one may be a part of something larger.
	token, _, err := v.parser.ParseUnverified(strings.Clone(text), v.newClaims())
	if err != nil {
		return nil
	}
	known := &verifiedToken{token: *token, method: method, key: public}
	known.from, known.until = stated.valid(v.leeway)
	known.nested.header = nestedIn(token.Header)
	size := sizeOfMembers(token.Header)
	if claims, ok := token.Claims.(jwt.MapClaims); ok {
		known.nested.claims = nestedIn(claims)
		size += sizeOfMembers(claims)
	} else {
		known.token.Claims = nil // they are decoded each time
	}
	if entrySize+len(text)+len(token.Signature)+size > maxGrowth*len(text) {
		return nil
	}
	return known
}

// payloadOf returns the payload of a token that has been parsed.
func payloadOf(text string) []byte {
	_, rest, _ := strings.Cut(text, ".")
	encoded, _, _ := strings.Cut(rest, ".")
	return decoded(encoded)
}

// decode does what the parser does with a payload.
func (v *Verifier) decode(payload []byte, claims jwt.Claims) error {
	if !v.jsonNumber {
		return json.Unmarshal(payload, &claims)
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	return decoder.Decode(&claims)
}

// sameKey reports whether two keys are the same. A signer's keys may have been
// fetched again since, so that the pointers differ.
func sameKey(known publicKey, key any) bool {
	if _, ok := key.(publicKey); !ok {
		return false
	}
	return reflect.TypeOf(key).Comparable() && any(known) == key || known.Equal(key)
}
