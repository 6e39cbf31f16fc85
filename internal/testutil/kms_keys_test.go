package testutil_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

func TestKMSGetCryptoKey(t *testing.T) { overEach(t, testKMSGetCryptoKey) }

func testKMSGetCryptoKey(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	tests := []struct {
		alg     algorithm
		purpose kmspb.CryptoKey_CryptoKeyPurpose
		primary bool
	}{
		{kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, kmspb.CryptoKey_ASYMMETRIC_SIGN, false},
		{kmspb.CryptoKeyVersion_HMAC_SHA512, kmspb.CryptoKey_MAC, false},
		{kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION, kmspb.CryptoKey_ENCRYPT_DECRYPT, true},
	}
	for _, tt := range tests {
		key, version := createKey(t, s, tt.alg.String(), tt.alg)
		got, err := client.GetCryptoKey(t.Context(), &kmspb.GetCryptoKeyRequest{Name: key})
		if err != nil {
			t.Fatalf("GetCryptoKey(%s): %v", key, err)
		}
		if got.Name != key || got.Purpose != tt.purpose || got.VersionTemplate.GetAlgorithm() != tt.alg {
			t.Errorf("got %v, want %s for %v with %v", got, key, tt.purpose, tt.alg)
		}
		if hasPrimary := got.GetPrimary().GetName() == version; hasPrimary != tt.primary {
			t.Errorf("%v: primary = %v, want one: %t", tt.alg, got.GetPrimary(), tt.primary)
		}
	}
}

// versions lists a key's versions, by the last part of their names.
func versions(t *testing.T, client *kms.KeyManagementClient, req *kmspb.ListCryptoKeyVersionsRequest) (ids []string, pages int) {
	t.Helper()
	it := client.ListCryptoKeyVersions(t.Context(), req)
	var last any
	for {
		v, err := it.Next()
		if errors.Is(err, iterator.Done) {
			return ids, pages
		}
		if err != nil {
			t.Fatalf("ListCryptoKeyVersions(%v): %v", req, err)
		}
		if it.Response != last {
			last = it.Response
			pages++
			wantTotal := req.Filter == ""
			if total := it.Response.(*kmspb.ListCryptoKeyVersionsResponse).TotalSize; (total > 0) != wantTotal {
				t.Errorf("total_size = %d, want one: %t", total, wantTotal)
			}
		}
		ids = append(ids, v.Name[strings.LastIndex(v.Name, "/")+1:])
	}
}

func TestKMSListVersions(t *testing.T) { overEach(t, testKMSListVersions) }

func testKMSListVersions(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	key, _ := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)
	for range 11 {
		if _, err := s.CreateVersion(key); err != nil {
			t.Fatal(err)
		}
	}
	s.SetState(key+"/cryptoKeyVersions/2", disabled)
	s.SetState(key+"/cryptoKeyVersions/10", pending)

	all := []string{"1", "10", "11", "12", "2", "3", "4", "5", "6", "7", "8", "9"}
	on := []string{"1", "11", "12", "3", "4", "5", "6", "7", "8", "9"}
	tests := []struct {
		req   *kmspb.ListCryptoKeyVersionsRequest
		want  []string
		pages int
	}{
		{&kmspb.ListCryptoKeyVersionsRequest{Parent: key}, all, 1},
		{&kmspb.ListCryptoKeyVersionsRequest{Parent: key, View: kmspb.CryptoKeyVersion_FULL}, all, 1},
		{&kmspb.ListCryptoKeyVersionsRequest{Parent: key, PageSize: 5}, all, 3},
		{&kmspb.ListCryptoKeyVersionsRequest{Parent: key, PageSize: 4}, all, 3},
		{&kmspb.ListCryptoKeyVersionsRequest{Parent: key, Filter: "state=ENABLED"}, on, 1},
		{&kmspb.ListCryptoKeyVersionsRequest{Parent: key, Filter: " state = ENABLED ", PageSize: 3}, on, 4},
	}
	for _, tt := range tests {
		got, pages := versions(t, client, tt.req)
		if !slices.Equal(got, tt.want) || pages != tt.pages {
			t.Errorf("%v: got %v on %d pages, want %v on %d", tt.req, got, pages, tt.want, tt.pages)
		}
	}

	for range 100 - 11 {
		if _, err := s.CreateVersion(key); err != nil {
			t.Fatal(err)
		}
	}
	if got, pages := versions(t, client, &kmspb.ListCryptoKeyVersionsRequest{Parent: key}); len(got) != 101 || pages != 2 {
		t.Errorf("got %d versions on %d pages, want 101 on 2", len(got), pages)
	}
}

func TestKMSVersionLifecycle(t *testing.T) { overEach(t, testKMSVersionLifecycle) }

func testKMSVersionLifecycle(t *testing.T, over transport) {
	s, client := over.newKMS(t)
	ctx := t.Context()
	key, version := createKey(t, s, "k", kmspb.CryptoKeyVersion_EC_SIGN_ED25519)

	set := func(state kmspb.CryptoKeyVersion_CryptoKeyVersionState) *kmspb.CryptoKeyVersion {
		t.Helper()
		v, err := client.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
			CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: version, State: state},
			UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
		})
		if err != nil {
			t.Fatalf("UpdateCryptoKeyVersion(%v): %v", state, err)
		}
		return v
	}
	if v := set(disabled); v.State != disabled {
		t.Errorf("state = %v, want DISABLED", v.State)
	}
	if v := set(enabled); v.State != enabled || v.GenerateTime == nil {
		t.Errorf("version = %v, want it ENABLED with its generate_time", v)
	}
	v, err := client.DestroyCryptoKeyVersion(ctx, &kmspb.DestroyCryptoKeyVersionRequest{Name: version})
	if err != nil || v.State != destroyScheduled || v.DestroyTime == nil {
		t.Errorf("DestroyCryptoKeyVersion = %v, %v", v, err)
	}
	v, err = client.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: version})
	if err != nil || v.State != disabled || v.DestroyTime != nil {
		t.Errorf("RestoreCryptoKeyVersion = %v, %v", v, err)
	}

	v, err = client.CreateCryptoKeyVersion(ctx, &kmspb.CreateCryptoKeyVersionRequest{Parent: key, CryptoKeyVersion: &kmspb.CryptoKeyVersion{}})
	if err != nil || v.State != pending || v.GenerateTime != nil || v.Name != key+"/cryptoKeyVersions/2" {
		t.Errorf("CreateCryptoKeyVersion = %v, %v", v, err)
	}
	if got, _ := versions(t, client, &kmspb.ListCryptoKeyVersionsRequest{Parent: key, Filter: "state=ENABLED"}); !slices.Equal(got, []string{"2"}) {
		t.Errorf("ENABLED versions = %v, want [2]", got)
	}

	macKey, _ := createKey(t, s, "m", kmspb.CryptoKeyVersion_HMAC_SHA256)
	v, err = client.CreateCryptoKeyVersion(ctx, &kmspb.CreateCryptoKeyVersionRequest{Parent: macKey})
	if err != nil || v.State != enabled || v.Algorithm != kmspb.CryptoKeyVersion_HMAC_SHA256 {
		t.Errorf("CreateCryptoKeyVersion(MAC) = %v, %v", v, err)
	}
}
