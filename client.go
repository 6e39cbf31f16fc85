package gcpjwt

import (
	"context"
	"sync/atomic"

	kms "cloud.google.com/go/kms/apiv1"
	"golang.org/x/sync/singleflight"
	"google.golang.org/api/iamcredentials/v1"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
)

// The clients that configurations without one of their own share. They are
// made on first use and live as long as the process.
var (
	defaultKMSClient = defaultClient[kms.KeyManagementClient]{
		name: "Cloud KMS",
		make: func(ctx context.Context) (*kms.KeyManagementClient, error) { return kms.NewKeyManagementClient(ctx) },
	}
	defaultIAMService = defaultClient[iamcredentials.Service]{
		name: "IAM Credentials",
		make: func(ctx context.Context) (*iamcredentials.Service, error) { return iamcredentials.NewService(ctx) },
	}
)

// defaultClient makes a client once. A failure, such as credentials that
// aren't there yet, isn't kept: the next call tries again.
type defaultClient[T any] struct {
	name  string
	make  func(ctx context.Context) (*T, error)
	made  atomic.Pointer[T]
	group singleflight.Group
}

// get returns own, the client of a configuration, or else the default one.
func (d *defaultClient[T]) get(ctx context.Context, own *T) (*T, error) {
	if own != nil {
		return own, nil
	}
	if client := d.made.Load(); client != nil {
		return client, nil
	}
	// Clients keep the context they are made with for fetching credentials, so it must
	// neither end with the call that happens to come first nor carry its values.
	results := d.group.DoChan("", func() (any, error) {
		if client := d.made.Load(); client != nil {
			return client, nil
		}
		client, err := d.make(context.Background())
		if err == nil {
			d.made.Store(client)
		}
		return client, err
	})
	select {
	case result := <-results:
		if result.Err != nil {
			return nil, errs.Errorf("make the default %s client: %w", d.name, result.Err)
		}
		return result.Val.(*T), nil
	case <-ctx.Done():
		return nil, errs.Errorf("make the default %s client: %w", d.name, ctx.Err())
	}
}
