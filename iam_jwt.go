package gcpjwt

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/api/iamcredentials/v1"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

func signJWT(ctx context.Context, config *IAMConfig, signingString string) ([]byte, error) {
	_, encoded, _ := strings.Cut(signingString, ".")
	payload, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errs.Errorf("signJwt needs a signing string of base64url parts: %w",
			jwt.ErrTokenMalformed)
	}
	if err := checkExpiry(nil, payload, time.Now()); err != nil {
		return nil, err
	}
	signed, err := signPayload(ctx, config, payload)
	if err != nil {
		return nil, err
	}
	if signed.signingString != signingString {
		return nil, errs.Errorf("%w than the one given to Sign: "+
			"use SignedString, which returns the token that Google made", ErrSigningStringChanged)
	}
	return signed.signature, nil
}

func signedByJWT(ctx context.Context, config *IAMConfig, d *draft) (string, error) {
	for field, value := range d.header {
		if field != "alg" && field != "kid" && (field != "typ" || value != "JWT") {
			return "", errs.Errorf("%w than asked for: the header is Google's and cannot carry %s: "+
				"remove it, or use SigningMethodIAMBlob", ErrSigningStringChanged, errs.Quote(field))
		}
	}
	if err := checkExpiry(d.claims, d.payload, time.Now()); err != nil {
		return "", err
	}
	signed, err := signPayload(ctx, config, d.payload)
	switch {
	case err != nil:
		return "", err
	case !sameClaims(d.payload, signed.payload):
		return "", errs.Errorf("%w: the claims in Google's token are not those of the caller",
			ErrSigningStringChanged)
	}
	return signed.raw, nil
}

// signedJWT is a token that signJwt made.
type signedJWT struct {
	raw           string
	signingString string
	kid           string
	payload       []byte
	signature     []byte
}

func signPayload(ctx context.Context, config *IAMConfig, payload []byte) (signedJWT, error) {
	text := string(payload)
	var response *iamcredentials.SignJwtResponse
	err := callIAM(ctx, config, "signJwt", text, func(ctx context.Context,
		accounts *iamcredentials.ProjectsServiceAccountsService, account string, delegates []string,
	) (err error) {
		request := &iamcredentials.SignJwtRequest{Delegates: delegates, Payload: text}
		response, err = accounts.SignJwt(account, request).Context(ctx).Do()
		return err
	})
	if err != nil {
		return signedJWT{}, err
	}
	if response == nil { // the server said null
		response = new(iamcredentials.SignJwtResponse)
	}
	last := config.lastKey()
	signed, err := parseSignedJWT(response.SignedJwt, response.KeyId, &last.header)
	if err != nil {
		return signed, errs.Errorf("%w: signJwt as %s: no RS256 token by the key that it names",
			ErrIntegrity, config.ServiceAccount)
	}
	remember(&last.id, response.KeyId)
	return signed, nil
}

// parseSignedJWT reads a token that is said to be by the key of ID kid. plain is that of the
// account.
func parseSignedJWT(raw, kid string, plain *plainHeader) (signed signedJWT, err error) {
	header, rest, _ := strings.Cut(raw, ".")
	payload, signature, ok := strings.Cut(rest, ".")
	if !ok || kid == "" {
		return signed, jwt.ErrTokenMalformed
	}
	signed = signedJWT{raw: raw, kid: kid, signingString: raw[:len(header)+1+len(payload)]}
	if header != plain.segment(certificateAlg, kid) { // which most often it is
		var fields struct{ Alg, Kid string }
		decoded, err := base64.RawURLEncoding.DecodeString(header)
		if err != nil {
			return signed, err
		}
		if json.Unmarshal(decoded, &fields) != nil || fields.Alg != certificateAlg || fields.Kid != kid {
			return signed, jwt.ErrTokenMalformed
		}
	}
	if signed.payload, err = base64.RawURLEncoding.DecodeString(payload); err != nil {
		return signed, err
	}
	signed.signature, err = base64.RawURLEncoding.DecodeString(signature)
	if err == nil && !isRSASignature(signed.signature) {
		err = jwt.ErrTokenMalformed
	}
	return signed, err
}

// signJwt's limit on how far exp may be ahead.
const maxExpiry = 12 * time.Hour

// checkExpiry refuses what signJwt would refuse, with the reason. claims are nil if
// payload is all that is known of them.
func checkExpiry(claims jwt.Claims, payload []byte, now time.Time) error {
	// null would pass otherwise, which a nil map or pointer makes.
	if !bytes.HasPrefix(bytes.TrimSpace(payload), []byte("{")) {
		return errs.Errorf("signJwt needs a JSON object as claims: %w", jwt.ErrTokenInvalidClaims)
	}
	text, err := expiryOf(claims, payload)
	if err != nil {
		return errs.Errorf("signJwt needs a JSON object as claims: %w", err)
	}
	if text == nil {
		return nil
	}
	exp, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil:
		return errs.Errorf("signJwt needs an integer as exp, "+
			"which takes a jwt.TimePrecision of seconds: %w", jwt.ErrInvalidType)
	case exp > now.Add(maxExpiry).Unix():
		return errs.Errorf("signJwt refuses an exp more than 12 hours ahead: %w",
			jwt.ErrTokenInvalidClaims)
	case exp < now.Unix():
		return errs.Errorf("signJwt refuses an exp in the past: %w", jwt.ErrTokenExpired)
	}
	return nil
}

// expiryOf returns exp as it stands in payload, which is what claims are in JSON; nil
// if it doesn't. Of claims of jwt's own types it is known without reading all of
// payload again. Of others GetExpirationTime may say something else.
func expiryOf(claims jwt.Claims, payload []byte) ([]byte, error) {
	switch claims := claims.(type) {
	case jwt.MapClaims:
		if exp, ok := claims["exp"]; ok {
			return json.Marshal(exp)
		}
		return nil, nil
	case jwt.RegisteredClaims:
		if claims.ExpiresAt != nil {
			return claims.ExpiresAt.MarshalJSON()
		}
		return nil, nil
	}
	var fields map[string]json.RawMessage // a struct's field would match EXP too
	err := json.Unmarshal(payload, &fields)
	return fields["exp"], err
}

// sameClaims reports whether got holds the claims of want, and nothing else but
// an exp that Google may add where there is none.
func sameClaims(want, got []byte) bool {
	if bytes.Equal(want, got) {
		return true
	}
	var claims [2]map[string]any
	for i, data := range [][]byte{want, got} {
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.UseNumber()
		if decoder.Decode(&claims[i]) != nil {
			return false
		}
	}
	if _, ok := claims[0]["exp"]; !ok {
		delete(claims[1], "exp")
	}
	return maps.EqualFunc(claims[0], claims[1], func(a, b any) bool { return reflect.DeepEqual(a, b) })
}
