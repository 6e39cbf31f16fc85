package jwks

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"filippo.io/mldsa"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/go-jose/go-jose/v4"
	strictjson "github.com/go-jose/go-jose/v4/json" // no other case of a name, no name twice

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// Marshal returns the JWK Set of the keys (RFC 7517), in their order. Each has kty and
// use "sig", and kid and alg where the Key has them. alg is EdDSA for every Ed25519 key
// that has an Algorithm: few consumers know its other name. ML-DSA keys are of type AKP
// (RFC 9964). The same keys make the same bytes.
//
// The error is [ErrAlgorithmMismatch] for a key whose Algorithm isn't one of its type. It
// is [ErrInvalidConfig] for a KeyID that isn't UTF-8, and for a Public that isn't one that
// Key names, such as a private or a weak key.
func Marshal(keys []Key) ([]byte, error) {
	set := struct {
		Keys []json.RawMessage `json:"keys"`
	}{make([]json.RawMessage, len(keys))}
	for i, key := range keys {
		var err error
		if set.Keys[i], err = marshalKey(key); err != nil {
			sentinel := errs.ErrInvalidConfig
			if errors.As(err, new(misfit)) {
				sentinel = errs.ErrAlgorithmMismatch
			}
			return nil, errs.Errorf("%w: key %q: %w", sentinel, key.KeyID, err)
		}
	}
	return json.Marshal(set)
}

// ownJWK is a JWK of the kinds that go-jose doesn't have, in its order of members.
type ownJWK struct {
	Use string `json:"use"`
	Kty string `json:"kty"`
	Kid string `json:"kid,omitempty"`
	Crv string `json:"crv,omitempty"`
	Alg string `json:"alg,omitempty"`
	X   string `json:"x,omitempty"`
	Y   string `json:"y,omitempty"`
	Pub string `json:"pub,omitempty"`
}

func marshalKey(key Key) ([]byte, error) {
	kind, err := key.check()
	switch {
	case err != nil:
		return nil, err
	case !utf8.ValidString(key.KeyID):
		return nil, errors.New("the KeyID is not UTF-8")
	}
	alg := key.Algorithm
	switch public := key.Public.(type) {
	case *secp256k1.PublicKey:
		x, y := coordinates(public)
		return json.Marshal(ownJWK{Use: "sig", Kty: kind.kty, Kid: key.KeyID, Crv: kind.crv, Alg: alg, X: x, Y: y})
	case *mldsa.PublicKey:
		alg = public.Parameters().String() // which RFC 9964 demands
		return json.Marshal(ownJWK{Use: "sig", Kty: kind.kty, Kid: key.KeyID, Alg: alg, Pub: encode(public.Bytes())})
	}
	if kind == kindEd25519 && alg != "" {
		alg = edDSA
	}
	return jose.JSONWebKey{Key: key.Public, KeyID: key.KeyID, Algorithm: alg, Use: "sig"}.MarshalJSON()
}

// maxSet bounds a JWK Set, in bytes.
const maxSet = 1 << 20

// Parse returns the keys of a JWK Set that verify signatures, in its order. It is
// as strict as a verifier has to be, and leaves out
//
//   - symmetric and private keys: whoever publishes one has lost it
//   - keys with a use other than sig, or with a key_ops other than verify (which may
//     have sign beside it)
//   - RSA keys of less than 2048 or more than 4096 bits, or with an exponent that is
//     even or below 65537
//   - points that aren't on their curve, and Ed25519 keys of low order
//   - keys whose alg isn't one of their type and curve, and AKP keys without alg
//   - keys that name a member twice, whose kid isn't a string, or whose values aren't
//     base64url without padding
//   - kinds that Key doesn't have, such as P-521
//
// None of these spoils the others. A key's certificates (x5c, x5u, x5t) mean nothing
// here. Algorithm is empty for a JWK without alg, and EdDSA for one with Ed25519.
//
// Parse fails, with [ErrKeysUnavailable], only for what is no JWK Set, or one of more
// than 1 MiB. A set may well have no key that is left.
func Parse(data []byte) ([]Key, error) {
	if len(data) > maxSet {
		return nil, errs.Errorf("%w: a JWK Set of more than 1 MiB", errs.ErrKeysUnavailable)
	}
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := strictjson.Unmarshal(data, &set); err != nil {
		return nil, errs.Errorf("%w: no JWK Set: %w", errs.ErrKeysUnavailable, err)
	}
	if set.Keys == nil {
		return nil, errs.Errorf("%w: no JWK Set: it has no keys", errs.ErrKeysUnavailable)
	}
	var keys []Key
	for _, data := range *set.Keys {
		if key, err := parseKey(data); err == nil {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// A jwk is a JWK's members.
type jwk map[string]json.RawMessage

// parseKey reads one JWK.
func parseKey(data []byte) (Key, error) {
	var members jwk
	if err := strictjson.Unmarshal(data, &members); err != nil {
		return Key{}, err
	}
	if err := members.forVerifying(); err != nil {
		return Key{}, err
	}
	var (
		key Key
		err error
	)
	if _, ok := members["kid"]; ok {
		if key.KeyID, err = members.text("kid"); err != nil {
			return Key{}, err
		}
	}
	if key.Algorithm, err = members.optional("alg"); err != nil {
		return Key{}, err
	}
	if err = members.parsePublic(&key); err != nil {
		return Key{}, err
	}
	kind, err := key.check()
	if err != nil {
		return Key{}, err
	}
	if kind == kindEd25519 && key.Algorithm != "" {
		key.Algorithm = edDSA
	}
	return key, nil
}

// text returns a member that has to be a string.
func (m jwk) text(name string) (string, error) {
	raw, ok := m[name]
	if !ok {
		return "", fmt.Errorf("no %s", name)
	}
	var text *string
	if err := strictjson.Unmarshal(raw, &text); err != nil || text == nil {
		return "", fmt.Errorf("%s is not a string", name)
	}
	return *text, nil
}

// optional returns a member that is a string with something in it wherever it is
// there at all.
func (m jwk) optional(name string) (string, error) {
	if _, ok := m[name]; !ok {
		return "", nil
	}
	text, err := m.text(name)
	if err == nil && text == "" {
		err = fmt.Errorf("%s is empty", name)
	}
	return text, err
}

// forVerifying reports, by its error, whether the key isn't a public one, or is for
// something else.
func (m jwk) forVerifying() error {
	for _, secret := range []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv", "seed"} {
		if _, ok := m[secret]; ok {
			return errors.New("a secret key")
		}
	}
	if use, err := m.optional("use"); err != nil || use != "" && use != "sig" {
		return errors.New("a key with another use")
	}
	raw, ok := m["key_ops"]
	if !ok {
		return nil
	}
	var operations []string
	if err := strictjson.Unmarshal(raw, &operations); err != nil {
		return err
	}
	other := func(operation string) bool { return operation != "verify" && operation != "sign" }
	if !slices.Contains(operations, "verify") || slices.ContainsFunc(operations, other) {
		return errors.New("a key for other operations")
	}
	return nil
}

// parsePublic reads the key itself.
func (m jwk) parsePublic(key *Key) error {
	kty, err := m.text("kty")
	if err != nil {
		return err
	}
	var (
		crv   string
		names []string // of the values
	)
	switch kty {
	case "RSA":
		names = []string{"n", "e"}
	case "EC":
		names = []string{"x", "y"}
	case "OKP":
		names = []string{"x"}
	case "AKP":
		names = []string{"pub"}
	default:
		return errors.New("an unknown kty")
	}
	if kty == "EC" || kty == "OKP" {
		if crv, err = m.text("crv"); err != nil {
			return err
		}
	}
	values := make([][]byte, len(names))
	for i, name := range names {
		if values[i], err = m.value(name); err != nil {
			return err
		}
	}
	switch {
	case kty == "AKP":
		key.Public, err = parseMLDSA(key.Algorithm, values[0])
		return err
	case kty == "EC" && crv == kindSecp256k1.crv:
		key.Public, err = parseSecp256k1(values[0], values[1])
		return err
	}
	// Only what makes up the key, since go-jose refuses one for its certificates.
	reduced := map[string]string{"kty": kty, "crv": crv}
	for i, name := range names {
		reduced[name] = encode(values[i])
	}
	text, err := json.Marshal(reduced)
	if err != nil {
		return err
	}
	var parsed jose.JSONWebKey
	if err := parsed.UnmarshalJSON(text); err != nil {
		return err
	}
	key.Public = parsed.Key
	return nil
}

// value returns a member in base64url as RFC 7515 section 2 has it: no padding, no
// line break, no bits to spare. Zeros in front of an RSA number are let through
// (RFC 7518 section 6.3.1.1 speaks of the libraries that put one there).
func (m jwk) value(name string) ([]byte, error) {
	text, err := m.text(name)
	if err != nil {
		return nil, err
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	if encode(data) != text { // the decoder lets line breaks and spare bits through
		return nil, fmt.Errorf("%s is not base64url", name)
	}
	return data, nil
}

func parseMLDSA(algorithm string, data []byte) (*mldsa.PublicKey, error) {
	for _, params := range []mldsa.Parameters{mldsa.MLDSA44(), mldsa.MLDSA65(), mldsa.MLDSA87()} {
		if params.String() == algorithm {
			return mldsa.NewPublicKey(params, data)
		}
	}
	return nil, errors.New("an AKP key of an unknown algorithm")
}

// parseSecp256k1 wants coordinates of full length (RFC 7518 section 6.2.1.2).
func parseSecp256k1(x, y []byte) (*secp256k1.PublicKey, error) {
	if len(x) != 32 || len(y) != 32 {
		return nil, errors.New("coordinates of another length")
	}
	return secp256k1.ParsePubKey(slices.Concat([]byte{secp256k1.PubKeyFormatUncompressed}, x, y))
}
