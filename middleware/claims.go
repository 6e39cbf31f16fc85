package middleware

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// checkClaims returns token, whose signature is good, if its claims are right.
func (v *Verifier) checkClaims(token *jwt.Token, stated *statements, host string) (*jwt.Token, error) {
	err := v.validator.Validate(stated)
	if _, ok := token.Claims.(jwt.MapClaims); !ok && err == nil {
		err = v.validator.Validate(token.Claims) // calls its Validate, if it has one
	}
	if err != nil {
		return nil, errs.Errorf("%w: %w", jwt.ErrTokenInvalidClaims, err)
	}
	if err := v.forUs(token.Claims, stated, host); err != nil {
		return nil, err
	}
	token.Valid = true
	return token, nil
}

// precheck looks at the claims of a token before its signature, so it calls no
// Validate of the claims type: that one expects to see good tokens.
func (v *Verifier) precheck(token *jwt.Token, stated *statements, host string) error {
	if err := v.validator.Validate(stated); err != nil {
		return err
	}
	return v.forUs(token.Claims, stated, host)
}

// forUs checks issuer, audience and scopes. The parser could check the first two,
// but wouldn't tell a token that is for others from one that has expired as well.
func (v *Verifier) forUs(claims jwt.Claims, stated *statements, host string) error {
	if err := v.checkIssuer(claims); err != nil {
		return err
	}
	if err := v.checkAudience(claims, host); err != nil {
		return err
	}
	return v.checkScopes(stated)
}

func (v *Verifier) checkIssuer(claims jwt.Claims) error {
	if v.issuers == nil {
		return nil
	}
	issuer, err := claims.GetIssuer()
	if err != nil {
		return errs.Errorf("%w: %w", jwt.ErrTokenInvalidClaims, err)
	}
	if !slices.Contains(v.issuers, issuer) {
		return errIssuer
	}
	return nil
}

func (v *Verifier) checkAudience(claims jwt.Claims, host string) error {
	wanted := v.audiences
	if v.hostAudience && host != "" {
		wanted = []string{"https://" + host}
	}
	if wanted == nil && !v.hostAudience {
		return nil
	}
	audiences, err := audiencesOf(claims)
	if err != nil {
		return errs.Errorf("%w: %w", jwt.ErrTokenInvalidClaims, err)
	}
	for _, audience := range audiences {
		if slices.Contains(wanted, audience) {
			return nil
		}
	}
	return errAudience
}

// audiencesOf returns the aud claim, which is a string or an array of strings.
func audiencesOf(claims jwt.Claims) (jwt.ClaimStrings, error) {
	// MapClaims takes an aud of any other type for an absent one.
	if claims, ok := claims.(jwt.MapClaims); ok {
		switch claims["aud"].(type) {
		case nil, string, []any:
		default:
			return nil, errs.Errorf("aud is invalid: %w", jwt.ErrInvalidType)
		}
	}
	return claims.GetAudience()
}

// checkScopes looks for the scopes in the claims scope (RFC 8693 section 4.2) and
// scp together.
func (v *Verifier) checkScopes(stated *statements) error {
	if v.scopes == nil {
		return nil
	}
	var granted []string
	for _, value := range [][]byte{stated.scope, stated.scp} {
		scopes, err := scopesOf(value)
		if err != nil {
			return errs.Errorf("%w: %w", jwt.ErrTokenInvalidClaims, err)
		}
		granted = append(granted, scopes...)
	}
	for _, scope := range v.scopes {
		if !slices.Contains(granted, scope) {
			return errScope
		}
	}
	return nil
}

// scopesOf returns the scopes of a claim, which is a string of words or an array of
// strings.
func scopesOf(value []byte) (scopes []string, err error) {
	if len(value) == 0 {
		return nil, nil
	}
	if value[0] == '"' {
		var words string
		err = json.Unmarshal(value, &words)
		return strings.Split(words, " "), err
	}
	// null is decoded as no array, and an element null as no string: "".
	if json.Unmarshal(value, &scopes) != nil {
		return nil, errs.Errorf("the scopes are invalid: %w", jwt.ErrInvalidType)
	}
	return scopes, nil
}
