package main

import (
	"context"
	"path"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// embedded is a Cloud KMS server with a CryptoKey.
type embedded struct {
	server *testutil.KMS
	client *kms.KeyManagementClient
	name   string // of the CryptoKey
}

func startEmbedded(ctx context.Context) (*embedded, error) {
	server, err := testutil.NewKMS()
	if err != nil {
		return nil, err
	}
	version, err := server.CreateKey("tokens", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		server.Close()
		return nil, err
	}
	client, err := server.Client(ctx)
	if err != nil {
		server.Close()
		return nil, err
	}
	return &embedded{server, client, path.Dir(path.Dir(version))}, nil
}

func (e *embedded) close() {
	e.client.Close()
	e.server.Close()
}
