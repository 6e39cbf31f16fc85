package gcpjwt

import (
	"context"

	"github.com/golang-jwt/jwt/v5"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// Until the errors and Keyfuncs of this package are those of internal/.
func init() {
	ErrKeysUnavailable = errs.ErrKeysUnavailable
	ErrUnknownKeyID = errs.ErrUnknownKeyID
	ErrInvalidConfig = errs.ErrInvalidConfig
	ErrMissingConfig = errs.ErrMissingConfig
}

// Issuer returns the ServiceAccount.
func (c *IAMConfig) Issuer() string { return c.ServiceAccount }

// VerifyKeyfunc is [IAMVerifyKeyfunc] that reports a bad configuration at once.
func (c *IAMConfig) VerifyKeyfunc(ctx context.Context) (jwt.Keyfunc, error) {
	if _, err := c.certificates(); err != nil {
		return nil, err
	}
	return IAMVerifyKeyfunc(context.WithoutCancel(ctx), c), nil
}

// VerifiedByCall says that each verification with the key is a call.
func (*macKey) VerifiedByCall() {}
