package middleware

import (
	"bytes"
	"cmp"
	"crypto"
	"encoding/json"
	"errors"
	"hash/maphash"
	"reflect"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// WithTokenCache remembers up to n verified tokens. A token that is seen again costs no
// verification of its signature. The least recently seen tokens make room for others. It
// is off by default.
//
// A token is remembered by its text, after it has passed every check, if the Keyfunc gave
// it a single public key. Each time that it is seen again the Keyfunc is asked as before,
// exp is checked, and so is what the methods of your claims type say. So a token is
// refused once its key was withdrawn or replaced, or it has expired. Issuer, audience and
// scopes of the same text are the same. Tokens whose check is a call (HMAC) are verified
// each time, and so are tokens without a kid by a signer with several keys. A Keyfunc must
// not alter a key in place.
//
// It protects from nothing. It saves 97% of what an RS256 token costs. Each handler gets a
// copy of header and claims of its own. A remembered token of 500 bytes takes 1.4 KB of
// memory. None takes more than 16 times its text: a token with many small numbers, objects
// or members in its claims isn't remembered. Claims of a type of your own (see
// [WithClaims]) are decoded each time. It panics unless n is positive.
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
type tokenCache struct {
	shards []*lru.Cache[string, *verifiedToken]

	// signers are those of remembered tokens, by the text of the header: the tokens of a key
	// have the same. It saves a quarter of what a token takes.
	signers *lru.Cache[string, *tokenSigner]
}

// tokenSigner is what the tokens of a key have in common. It doesn't change.
type tokenSigner struct {
	parsed jwt.SigningMethod // under the name in the header
	method jwt.SigningMethod // that verified them
	key    publicKey
	header []member
}

const (
	maxShards  = 64
	minShard   = 64 // tokens: in smaller ones chance would drop those in use
	maxSigners = 64
)

func newTokenCache(n int) *tokenCache {
	c := &tokenCache{shards: make([]*lru.Cache[string, *verifiedToken], max(1, min(n/minShard, maxShards)))}
	for i := range c.shards {
		size := n / len(c.shards)
		if i < n%len(c.shards) {
			size++
		}
		c.shards[i], _ = lru.New[string, *verifiedToken](size) // fails for sizes below 1 only
	}
	c.signers, _ = lru.New[string, *tokenSigner](maxSigners)
	return c
}

var shardSeed = maphash.MakeSeed()

// shard picks one by the end of the text, a part of the signature that differs from
// token to token.
func (c *tokenCache) shard(text string) *lru.Cache[string, *verifiedToken] {
	sum := maphash.String(shardSeed, text[max(0, len(text)-16):])
	return c.shards[sum%uint64(len(c.shards))]
}

// signer returns that of a token with a header, the known one if it is the same.
func (c *tokenCache) signer(
	header string, parsed, method jwt.SigningMethod, key publicKey,
) *tokenSigner {
	known, ok := c.signers.Get(header)
	if ok && known.parsed == parsed && known.method == method && sameKey(known.key, key) {
		return known
	}
	var object map[string]any
	_ = json.Unmarshal(decoded(header), &object) // the parser has done so before
	made := &tokenSigner{parsed, method, key, membersOf(object)}
	c.signers.Add(strings.Clone(header), made)
	return made
}

// publicKey is what the public keys of the standard library have in common.
type publicKey interface {
	Equal(other crypto.PublicKey) bool
}

// verifiedToken is what is remembered of a token. It doesn't change.
type verifiedToken struct {
	signer    *tokenSigner
	claims    []member // nil: they are of another type, and decoded each time
	signature []byte
	until     int64 // its exp with the leeway, in microseconds since 1970
}

// checkOnce is check with a memory.
func (v *Verifier) checkOnce(text, host string) (*jwt.Token, error) {
	shard := v.tokens.shard(text)
	if known, ok := shard.Get(text); ok {
		token, err := v.recall(text, known, host)
		if err == nil || errors.Is(err, ErrKeysUnavailable) { // then the token may be good again
			return token, err
		}
		shard.Remove(text) // verifying says what is wrong
	}
	token, stated, err := v.parse(text)
	if err != nil {
		return nil, err
	}
	parsed := token.Method // before the Keyfunc can change it
	key, err := v.checkSignature(token, stated, host)
	if err != nil {
		return nil, err
	}
	method := token.Method
	if token, err = v.checkClaims(token, stated, host); err != nil {
		return nil, err
	}
	if known := v.remember(text, parsed, method, key, token.Claims); known != nil {
		known.until = stated.exp.Add(v.leeway).UnixMicro()
		shard.Add(strings.Clone(text), known) // which may have been a part of something larger
	}
	return token, nil
}

// errForgotten says that a remembered token has to be verified again.
var errForgotten = errs.New("the token is no longer what was remembered")

// recall returns a copy of a remembered token, if it is still good.
func (v *Verifier) recall(text string, known *verifiedToken, host string) (*jwt.Token, error) {
	token := newToken(known.signature)
	token.Raw, token.Method = text, known.signer.parsed
	token.Header = objectOf(known.signer.header)
	if known.claims != nil {
		token.Claims = jwt.MapClaims(objectOf(known.claims))
	} else {
		token.Claims = v.newClaims()
		if err := v.decode(payloadOf(text), &token.Claims); err != nil {
			return nil, err
		}
	}
	key, err := v.keyfunc(token)
	if err != nil {
		return nil, errs.Errorf("%w: %w", jwt.ErrTokenUnverifiable, err)
	}
	if !sameKey(known.signer.key, key) || token.Method != known.signer.method || time.Now().UnixMicro() >= known.until {
		return nil, errForgotten
	}
	switch {
	case known.claims == nil: // whose methods may have changed their mind
		err = cmp.Or(v.validator.Validate(token.Claims), v.checkIssuer(token.Claims), v.checkAudience(token.Claims, host))
	case v.hostAudience:
		err = v.checkAudience(token.Claims, host)
	}
	if err != nil {
		return nil, err
	}
	token.Valid = true
	return token, nil
}

// newToken returns a token with a copy of a signature. One of RSA with 2048 bits, which
// most tokens have, lies beside it, which saves 4% of the time that a remembered token
// takes.
func newToken(signature []byte) *jwt.Token {
	const usual = 256
	if len(signature) != usual {
		return &jwt.Token{Signature: bytes.Clone(signature)}
	}
	both := new(struct {
		jwt.Token
		signature [usual]byte
	})
	both.Signature = both.signature[:copy(both.signature[:], signature)]
	return &both.Token
}

// remember returns what is known of a token that has passed every check, nil if it isn't to
// be kept: there must be one public key to compare with, and not much to keep. The text is
// decoded anew, as the Keyfunc may have altered what it saw.
func (v *Verifier) remember(
	text string, parsed, method jwt.SigningMethod, key any, claims jwt.Claims,
) *verifiedToken {
	public, ok := key.(publicKey)
	if !ok || !reflect.TypeOf(parsed).Comparable() || !reflect.TypeOf(method).Comparable() {
		return nil
	}
	parts := strings.Split(text, ".")
	known := &verifiedToken{
		signer:    v.tokens.signer(parts[0], parsed, method, public),
		signature: decoded(parts[2]),
	}
	size := entrySize + len(text) + len(known.signature) + sizeOfMembers(known.signer.header)
	if _, ok := claims.(jwt.MapClaims); ok {
		var object map[string]any
		if v.decode(decoded(parts[1]), &object) != nil {
			return nil
		}
		known.claims = membersOf(object)
		size += sizeOfMembers(known.claims)
	}
	if size > maxGrowth*len(text) {
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
func (v *Verifier) decode(payload []byte, claims any) error {
	if !v.jsonNumber {
		return json.Unmarshal(payload, claims)
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	return decoder.Decode(claims)
}

// sameKey reports whether two keys are the same. A signer's keys may have been
// fetched again since, so that the pointers differ.
func sameKey(known publicKey, key any) bool {
	if _, ok := key.(publicKey); !ok {
		return false
	}
	return reflect.TypeOf(key).Comparable() && any(known) == key || known.Equal(key)
}
