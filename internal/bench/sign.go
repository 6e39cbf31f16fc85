package bench

import (
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/appengine/v2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// signLimit is what a signature may cost in calls of the bare client.
const signLimit = 1.05

// Sign compares signing with the bare client's call, which gets what it needs (the
// signing string's digest, or the claims) and leaves the answer as it is: no
// checksum, no conversion, no token. A second one then joins the token, which is what
// remains to be done without the library. All tokens have the same claims, and a
// header with alg, kid and typ.
func (s *Suite) Sign() []Comparison {
	var comparisons []Comparison
	for _, k := range s.keys {
		comparisons = append(comparisons, s.signKMS(k))
	}
	bounded, cancel := context.WithTimeout(s.ctx, time.Hour)
	s.onClose(cancel)
	return append(comparisons,
		s.signBlob(bounded, "iam/signBlob"),
		s.signBlob(s.ctx, "iam/signBlob-no-deadline"), // the library sets one, the bare call doesn't
		s.signJWT(bounded),
		s.signAppEngine(context.Background(), "appengine"),
		s.signAppEngine(s.ctx, "appengine-cancellable"), // the bare call can't be cancelled
	)
}

// A bareCall has a token signed and returns its two parts.
type bareCall func(token *jwt.Token) (signingString string, sig []byte, err error)

// signing makes a comparison with one bare call. kid is what SignedString finds out
// by itself.
func (s *Suite) signing(ctx context.Context, name string, method jwt.SigningMethod, kid string, call bareCall) Comparison {
	newToken := func() *jwt.Token {
		token := jwt.NewWithClaims(method, s.claims)
		token.Header["kid"] = kid
		return token
	}
	return Comparison{
		Name: "sign/" + name,
		Ours: []Way{
			{"token.SignedString", func() error {
				_, err := newToken().SignedString(ctx)
				return err
			}},
			{"SignedString", func() error {
				_, err := gcpjwt.SignedString(ctx, jwt.NewWithClaims(method, s.claims))
				return err
			}},
		},
		Others: []Other{
			{Way{"bare", func() error {
				_, _, err := call(newToken())
				return err
			}}, signLimit},
			{Way{"bare+join", func() error {
				token := newToken()
				signingString, sig, err := call(token)
				if joined := signingString + "." + token.EncodeSegment(sig); err == nil && len(joined) < 100 {
					err = errors.New("the signature is empty")
				}
				return err
			}}, signLimit},
		},
	}
}

func (s *Suite) signKMS(k *key) Comparison {
	hash := k.method.Hash()
	return s.signing(k.context(s.ctx), "kms/"+k.name, k.method, k.kid, func(token *jwt.Token) (string, []byte, error) {
		text, err := token.SigningString()
		if err != nil {
			return "", nil, err
		}
		if k.public == nil {
			response, err := k.client.MacSign(s.ctx, &kmspb.MacSignRequest{Name: k.version, Data: []byte(text)})
			return text, response.GetMac(), err
		}
		request := &kmspb.AsymmetricSignRequest{Name: k.version}
		if hash == 0 {
			request.Data = []byte(text)
		} else {
			h := hash.New()
			h.Write([]byte(text))
			request.Digest = digest(hash, h.Sum(nil))
		}
		response, err := k.client.AsymmetricSign(s.ctx, request)
		return text, response.GetSignature(), err
	})
}

func digest(hash crypto.Hash, sum []byte) *kmspb.Digest {
	switch hash {
	case crypto.SHA256:
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha256{Sha256: sum}}
	case crypto.SHA384:
		return &kmspb.Digest{Digest: &kmspb.Digest_Sha384{Sha384: sum}}
	}
	return &kmspb.Digest{Digest: &kmspb.Digest_Sha512{Sha512: sum}}
}

const accountName = "projects/-/serviceAccounts/" + account

func (s *Suite) signBlob(ctx context.Context, name string) Comparison {
	accounts := s.google.iam.IAMService.Projects.ServiceAccounts
	return s.signing(gcpjwt.NewIAMContext(ctx, s.google.iam), name, gcpjwt.SigningMethodIAMBlob, s.google.iamKeyID, func(token *jwt.Token) (string, []byte, error) {
		text, err := token.SigningString()
		if err != nil {
			return "", nil, err
		}
		request := &iamcredentials.SignBlobRequest{Payload: base64.StdEncoding.EncodeToString([]byte(text))}
		response, err := accounts.SignBlob(accountName, request).Context(ctx).Do()
		if err != nil {
			return "", nil, err
		}
		sig, err := base64.StdEncoding.DecodeString(response.SignedBlob)
		return text, sig, err
	})
}

func (s *Suite) signJWT(ctx context.Context) Comparison {
	accounts := s.google.iam.IAMService.Projects.ServiceAccounts
	c := s.signing(gcpjwt.NewIAMContext(ctx, s.google.iam), "iam/signJwt", gcpjwt.SigningMethodIAMJWT, s.google.iamKeyID, func(token *jwt.Token) (string, []byte, error) {
		payload, err := json.Marshal(token.Claims)
		if err != nil {
			return "", nil, err
		}
		_, err = accounts.SignJwt(accountName, &iamcredentials.SignJwtRequest{Payload: string(payload)}).Context(ctx).Do()
		return "", nil, err
	})
	c.Ours = c.Ours[1:]     // token.SignedString cannot take Google's header
	c.Others = c.Others[:1] // there is nothing to join
	return c
}

// signAppEngine takes no context of testutil's, so that the SDK finds the prepared
// server by the environment.
func (s *Suite) signAppEngine(ctx context.Context, name string) Comparison {
	return s.signing(ctx, name, gcpjwt.SigningMethodAppEngine, gcpjwt.SigningMethodAppEngine.KeyID(), func(token *jwt.Token) (string, []byte, error) {
		text, err := token.SigningString()
		if err != nil {
			return "", nil, err
		}
		_, sig, err := appengine.SignBytes(ctx, []byte(text))
		return text, sig, err
	})
}
