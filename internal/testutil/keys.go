package testutil

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
)

// An accountKey is one of the RSA keys that Google keeps for a service account.
type accountKey struct {
	id          string
	private     *rsa.PrivateKey
	certificate string // PEM
}

// newAccountKey makes a key for an account; n is its number within the server.
func newAccountKey(account string, n int) (*accountKey, error) {
	private, err := rsaKey(2048, n)
	if err != nil {
		return nil, err
	}
	pem, err := certificate(account, private)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 20)
	rand.Read(id)
	return &accountKey{hex.EncodeToString(id), private, string(pem)}, nil
}

// sign returns the PKCS #1 v1.5 signature of SHA-256 over data.
func (k *accountKey) sign(data []byte) ([]byte, error) {
	digest := sha256.Sum256(data)
	return rsa.SignPKCS1v15(rand.Reader, k.private, crypto.SHA256, digest[:])
}

// accountKeys are the keys of one account. They are guarded by the mutex of
// their server.
type accountKeys struct {
	published []*accountKey // in order of creation
	signing   []*accountKey
}

// find returns the published key of that ID, or nil.
func (k *accountKeys) find(id string) *accountKey {
	for _, key := range k.published {
		if key.id == id {
			return key
		}
	}
	return nil
}

// public returns the public key of that ID, or nil.
func (k *accountKeys) public(id string) *rsa.PublicKey {
	key := k.find(id)
	if key == nil {
		return nil
	}
	return &key.private.PublicKey
}

func (k *accountKeys) ids() []string {
	var ids []string
	for _, key := range k.published {
		ids = append(ids, key.id)
	}
	return ids
}

// setSigning makes those keys, and no others, sign.
func (k *accountKeys) setSigning(ids []string) {
	signing := make([]*accountKey, len(ids))
	for i, id := range ids {
		if signing[i] = k.find(id); signing[i] == nil {
			panic(fmt.Sprintf("testutil: no key %q", id))
		}
	}
	k.signing = signing
}

func (k *accountKeys) remove(id string) {
	is := func(key *accountKey) bool { return key.id == id }
	k.published = slices.DeleteFunc(k.published, is)
	k.signing = slices.DeleteFunc(k.signing, is)
}

// pick chooses the key of the next signature: while Google phases a new key
// in, signatures come from either of two. It is nil if no key signs.
func (k *accountKeys) pick() *accountKey {
	if len(k.signing) == 0 {
		return nil
	}
	return k.signing[mathrand.IntN(len(k.signing))]
}
