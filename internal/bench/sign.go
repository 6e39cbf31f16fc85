package bench

import (
	"context"
	"crypto"
	"crypto/sha3"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"filippo.io/mldsa"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"
	"google.golang.org/appengine/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
)

// What a signature may cost in calls of the bare client. Those of Cloud KMS are for those who
// don't go through jwt's own SignedString. A token by ML-DSA has thousands of bytes to encode.
const (
	signLimit     = 1.05
	kmsLimit      = 1.02
	muLimit       = 1.03 // ML-DSA with an external mu
	inMemoryLimit = 1.15 // of bare+join, where nobody waits for an answer
)

// Sign compares signing with the bare client's call, which gets what it needs (the
// signing string's digest, or the claims) and leaves the answer as it is: no
// checksum, no conversion, no token. A second one then joins the token, which is what
// remains to be done without the library. All tokens have the same claims, and a
// header with alg, kid and typ.
func (s *Suite) Sign() ([]Comparison, error) {
	var comparisons []Comparison
	for _, k := range s.keys {
		c, err := s.signKMS(k)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		comparisons = append(comparisons, c)
	}
	config := *s.google.iam
	blob, err := gcpjwt.NewIAMSigner(s.ctx, &config)
	if err != nil {
		return nil, err
	}
	config.IAMType = gcpjwt.IAMJwtType
	signJWT, err := gcpjwt.NewIAMSigner(s.ctx, &config)
	if err != nil {
		return nil, err
	}
	app := gcpjwt.NewAppEngineSigner()
	bounded, cancel := context.WithTimeout(s.ctx, time.Hour)
	s.onClose(cancel)
	return append(comparisons,
		s.signBlob(bounded, "iam/signBlob", blob),
		s.signBlob(s.ctx, "iam/signBlob-no-deadline", blob), // the library sets one, the bare call doesn't
		s.signJWT(bounded, signJWT),
		s.signAppEngine(context.Background(), "appengine", app),
		s.signAppEngine(s.ctx, "appengine-cancellable", app), // the bare call can't be cancelled
	), nil
}

// A bareCall has a token signed and returns its two parts.
type bareCall func(token *jwt.Token) (signingString string, sig []byte, err error)

// signing makes a comparison with one bare call. kid is what SignedString finds out
// by itself.
func (s *Suite) signing(
	ctx context.Context, name string, signer *gcpjwt.Signer, method jwt.SigningMethod,
	kid string, call bareCall,
) Comparison {
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
			{"Signer.Sign", func() error {
				_, err := signer.Sign(ctx, s.claims)
				return err
			}},
		},
		Others: []Other{
			{Way: Way{"bare", func() error {
				_, _, err := call(newToken())
				return err
			}}, Limit: signLimit},
			{Way: Way{"bare+join", func() error {
				token := newToken()
				signingString, sig, err := call(token)
				if joined := signingString + "." + token.EncodeSegment(sig); err == nil && len(joined) < 100 {
					err = errors.New("the signature is empty")
				}
				return err
			}}, Limit: signLimit},
		},
	}
}

func (s *Suite) signKMS(k *key) (Comparison, error) {
	signer, err := gcpjwt.NewKMSSigner(s.ctx, k.config())
	if err != nil {
		return Comparison{}, err
	}
	c := s.signing(k.context(s.ctx), "kms/"+k.name, signer, k.method, k.kid, k.bareCall(s.ctx))
	limit := kmsLimit
	if _, mu, ok := k.mldsa(); mu {
		limit = muLimit
	} else if ok {
		limit = signLimit
	}
	c.Others[0].Of = map[string]float64{"SignedString": limit, "Signer.Sign": limit}
	return c, nil
}

// SignInMemory is Sign for one key, without the way to the server and back: Google's client gets
// its answer in memory. It shows what the ways take of a processor that doesn't wait.
func (s *Suite) SignInMemory() (Comparison, error) {
	var answer proto.Message
	conn, err := grpc.NewClient(s.rsa.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, response any,
			conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			switch {
			case path.Base(method) != "AsymmetricSign":
				return invoke(ctx, method, request, response, conn, options...)
			case answer == nil:
				err := invoke(ctx, method, request, response, conn, options...)
				answer = proto.Clone(response.(proto.Message))
				return err
			}
			proto.Merge(response.(proto.Message), answer)
			return nil
		}))
	if err != nil {
		return Comparison{}, err
	}
	s.onClose(func() { conn.Close() })
	k := *s.rsa
	if k.client, err = kms.NewKeyManagementClient(s.ctx, option.WithGRPCConn(conn)); err != nil {
		return Comparison{}, err
	}
	if _, err := sign(k.context(s.ctx), k.method); err != nil {
		return Comparison{}, err
	}
	c, err := s.signKMS(&k)
	if err != nil {
		return Comparison{}, err
	}
	c.Name = "inmemory/" + k.name
	c.Others = c.Others[1:]
	c.Others[0].Limit = inMemoryLimit
	return c, nil
}

// bareCall has Google's client sign with k.
func (k *key) bareCall(ctx context.Context) bareCall {
	message := k.message()
	return func(token *jwt.Token) (string, []byte, error) {
		text, err := token.SigningString()
		if err != nil {
			return "", nil, err
		}
		if k.public == nil {
			response, err := k.client.MacSign(ctx, &kmspb.MacSignRequest{Name: k.version, Data: []byte(text)})
			return text, response.GetMac(), err
		}
		request := &kmspb.AsymmetricSignRequest{Name: k.version}
		if message == nil {
			request.Data = []byte(text)
		} else {
			request.Digest = message([]byte(text))
		}
		response, err := k.client.AsymmetricSign(ctx, request)
		return text, response.GetSignature(), err
	}
}

// mldsa returns the public key if it is one of ML-DSA, and whether mu is external.
func (k *key) mldsa() (public *mldsa.PublicKey, mu, ok bool) {
	public, ok = k.public.(*mldsa.PublicKey)
	return public, ok && strings.HasSuffix(k.name, "-mu"), ok
}

// message returns how a text is made into what Cloud KMS is sent, nil if that is the text.
func (k *key) message() func(text []byte) *kmspb.Digest {
	if public, mu, _ := k.mldsa(); mu {
		prefix := append(sha3.SumSHAKE256(public.Bytes(), 64), 0, 0)
		return func(text []byte) *kmspb.Digest {
			h := sha3.NewSHAKE256()
			_, _ = h.Write(prefix)
			_, _ = h.Write(text)
			mu := make([]byte, 64)
			_, _ = h.Read(mu)
			return &kmspb.Digest{Digest: &kmspb.Digest_ExternalMu{ExternalMu: mu}}
		}
	}
	hash := k.method.Hash()
	if hash == 0 || k.level == kmspb.ProtectionLevel_EXTERNAL {
		return nil
	}
	return func(text []byte) *kmspb.Digest {
		h := hash.New()
		_, _ = h.Write(text)
		return digest(hash, h.Sum(nil))
	}
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

func (s *Suite) signBlob(ctx context.Context, name string, signer *gcpjwt.Signer) Comparison {
	accounts := s.google.iam.IAMService.Projects.ServiceAccounts
	call := func(token *jwt.Token) (string, []byte, error) {
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
	}
	return s.signing(gcpjwt.NewIAMContext(ctx, s.google.iam), name, signer,
		gcpjwt.SigningMethodIAMBlob, s.google.iamKeyID, call)
}

func (s *Suite) signJWT(ctx context.Context, signer *gcpjwt.Signer) Comparison {
	accounts := s.google.iam.IAMService.Projects.ServiceAccounts
	call := func(token *jwt.Token) (string, []byte, error) {
		payload, err := json.Marshal(token.Claims)
		if err != nil {
			return "", nil, err
		}
		_, err = accounts.SignJwt(accountName, &iamcredentials.SignJwtRequest{Payload: string(payload)}).Context(ctx).Do()
		return "", nil, err
	}
	c := s.signing(gcpjwt.NewIAMContext(ctx, s.google.iam), "iam/signJwt", signer,
		gcpjwt.SigningMethodIAMJWT, s.google.iamKeyID, call)
	c.Ours = c.Ours[1:]     // token.SignedString cannot take Google's header
	c.Others = c.Others[:1] // there is nothing to join
	return c
}

// signAppEngine takes no context of testutil's, so that the SDK finds the prepared
// server by the environment.
func (s *Suite) signAppEngine(ctx context.Context, name string, signer *gcpjwt.Signer) Comparison {
	call := func(token *jwt.Token) (string, []byte, error) {
		text, err := token.SigningString()
		if err != nil {
			return "", nil, err
		}
		_, sig, err := appengine.SignBytes(ctx, []byte(text))
		return text, sig, err
	}
	method := gcpjwt.SigningMethodAppEngine
	return s.signing(ctx, name, signer, method, method.KeyID(), call)
}
