package testutil

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// destroyDelay is how long a version stays in DESTROY_SCHEDULED.
const destroyDelay = 30 * 24 * time.Hour

// A cryptoKey's fields are fixed, but for its level and versions, guarded by
// KMS.mu.
type cryptoKey struct {
	name       string
	purpose    kmspb.CryptoKey_CryptoKeyPurpose
	algorithm  kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm // of the version template
	createTime time.Time
	level      kmspb.ProtectionLevel // of the version template
	versions   []*keyVersion         // by ID: version n is versions[n-1]
}

// A keyVersion's key is fixed; its level, state and times are guarded by KMS.mu.
type keyVersion struct {
	keyMaterial
	name  string
	level kmspb.ProtectionLevel
	state kmspb.CryptoKeyVersion_CryptoKeyVersionState

	createTime       time.Time
	readyTime        time.Time // when generation ends, zero if it doesn't
	generateTime     time.Time
	destroyTime      time.Time
	destroyEventTime time.Time
}

// add gives a version the next ID and the key's protection level.
func (k *cryptoKey) add(v *keyVersion, state kmspb.CryptoKeyVersion_CryptoKeyVersionState) {
	v.name = fmt.Sprintf("%s/cryptoKeyVersions/%d", k.name, len(k.versions)+1)
	v.level = k.level
	v.createTime = time.Now()
	v.become(state, v.createTime)
	k.versions = append(k.versions, v)
}

// become moves the version to a state and sets the times that come with it.
func (v *keyVersion) become(state kmspb.CryptoKeyVersion_CryptoKeyVersionState, now time.Time) {
	v.state = state
	v.readyTime, v.destroyTime, v.destroyEventTime = time.Time{}, time.Time{}, time.Time{}
	switch state {
	case kmspb.CryptoKeyVersion_PENDING_GENERATION:
		v.generateTime = time.Time{}
	case kmspb.CryptoKeyVersion_ENABLED:
		if v.generateTime.IsZero() {
			v.generateTime = now
		}
	case kmspb.CryptoKeyVersion_DESTROY_SCHEDULED:
		v.destroyTime = now.Add(destroyDelay)
	case kmspb.CryptoKeyVersion_DESTROYED:
		v.destroyTime, v.destroyEventTime = now, now
	}
}

// settle makes the changes of state that time has brought.
func (v *keyVersion) settle(now time.Time) {
	switch {
	case v.state == kmspb.CryptoKeyVersion_PENDING_GENERATION && !v.readyTime.IsZero() && !now.Before(v.readyTime):
		v.become(kmspb.CryptoKeyVersion_ENABLED, v.readyTime)
	case v.state == kmspb.CryptoKeyVersion_DESTROY_SCHEDULED && !now.Before(v.destroyTime):
		v.become(kmspb.CryptoKeyVersion_DESTROYED, v.destroyTime)
	}
}

func (v *keyVersion) message() *kmspb.CryptoKeyVersion {
	return &kmspb.CryptoKeyVersion{
		Name:             v.name,
		State:            v.state,
		ProtectionLevel:  v.level,
		Algorithm:        v.algorithm,
		CreateTime:       timestamp(v.createTime),
		GenerateTime:     timestamp(v.generateTime),
		DestroyTime:      timestamp(v.destroyTime),
		DestroyEventTime: timestamp(v.destroyEventTime),
	}
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// version returns a version in its present state, nil if there is none. It is
// called with s.mu held.
func (s *KMS) version(name string) *keyVersion {
	parent, _, _ := strings.Cut(name, "/cryptoKeyVersions/")
	key := s.keys[parent]
	if key == nil {
		return nil
	}
	for _, v := range key.versions {
		if v.name == name {
			v.settle(time.Now())
			return v
		}
	}
	return nil
}

// usable returns a copy of a version that is ENABLED and of one of the purposes.
func (s *KMS) usable(name string, purposes ...kmspb.CryptoKey_CryptoKeyPurpose) (keyVersion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.version(name)
	switch {
	case v == nil:
		return keyVersion{}, notFound("CryptoKeyVersion", name)
	case !slices.Contains(purposes, v.row.purpose):
		return keyVersion{}, status.Errorf(codes.FailedPrecondition, "%s has purpose %v, the operation needs one of %v.", name, v.row.purpose, purposes)
	case v.state != kmspb.CryptoKeyVersion_ENABLED:
		return keyVersion{}, status.Errorf(codes.FailedPrecondition, "%s is not enabled, current state is: %v.", name, v.state)
	}
	return *v, nil
}

func notFound(kind, name string) error {
	return status.Errorf(codes.NotFound, "%s %s not found.", kind, name)
}

// kmsService holds the RPCs; a request that reaches one has passed admit.
type kmsService struct {
	kmspb.UnimplementedKeyManagementServiceServer
	s *KMS
}

func (k kmsService) GetCryptoKey(_ context.Context, req *kmspb.GetCryptoKeyRequest) (*kmspb.CryptoKey, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	key := k.s.keys[req.GetName()]
	if key == nil {
		return nil, notFound("CryptoKey", req.GetName())
	}
	resp := &kmspb.CryptoKey{
		Name:       key.name,
		Purpose:    key.purpose,
		CreateTime: timestamp(key.createTime),
		VersionTemplate: &kmspb.CryptoKeyVersionTemplate{
			ProtectionLevel: key.level,
			Algorithm:       key.algorithm,
		},
		DestroyScheduledDuration: durationpb.New(destroyDelay),
	}
	// Only keys for encryption have a primary version.
	if key.purpose == forEncryption {
		key.versions[0].settle(time.Now())
		resp.Primary = key.versions[0].message()
	}
	return resp, nil
}

var enabledFilter = regexp.MustCompile(`^\s*state\s*=\s*ENABLED\s*$`)

func (k kmsService) ListCryptoKeyVersions(_ context.Context, req *kmspb.ListCryptoKeyVersionsRequest) (*kmspb.ListCryptoKeyVersionsResponse, error) {
	filtered := req.GetFilter() != ""
	if filtered && !enabledFilter.MatchString(req.GetFilter()) {
		return nil, status.Errorf(codes.InvalidArgument, "The filter %q is not supported.", req.GetFilter())
	}
	if kmspb.CryptoKeyVersion_CryptoKeyVersionView_name[int32(req.GetView())] == "" {
		return nil, status.Errorf(codes.InvalidArgument, "The view %d is unknown.", req.GetView())
	}
	if req.GetPageSize() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "The page_size %d is negative.", req.GetPageSize())
	}
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil || len(after) > 0 && !strings.HasPrefix(string(after), req.GetParent()+"/") {
		return nil, status.Errorf(codes.InvalidArgument, "The page_token %q is invalid.", req.GetPageToken())
	}

	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	key := k.s.keys[req.GetParent()]
	if key == nil {
		return nil, notFound("CryptoKey", req.GetParent())
	}
	now := time.Now()
	resp := &kmspb.ListCryptoKeyVersionsResponse{}
	for _, v := range key.versions {
		v.settle(now)
		if !filtered {
			resp.TotalSize++
		} else if v.state != kmspb.CryptoKeyVersion_ENABLED {
			continue
		}
		if v.name > string(after) {
			resp.CryptoKeyVersions = append(resp.CryptoKeyVersions, v.message())
		}
	}
	// Names are ordered as strings: version 10 comes before version 2.
	slices.SortFunc(resp.CryptoKeyVersions, func(a, b *kmspb.CryptoKeyVersion) int {
		return cmp.Compare(a.Name, b.Name)
	})
	if size := int(cmp.Or(req.GetPageSize(), 100)); len(resp.CryptoKeyVersions) > size && !k.s.likeFakeKMS {
		resp.CryptoKeyVersions = resp.CryptoKeyVersions[:size]
		resp.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(resp.CryptoKeyVersions[size-1].Name))
	}
	return resp, nil
}

func (k kmsService) CreateCryptoKeyVersion(_ context.Context, req *kmspb.CreateCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	k.s.mu.Lock()
	key, delay := k.s.keys[req.GetParent()], k.s.generationDelay
	k.s.mu.Unlock()
	if key == nil {
		return nil, notFound("CryptoKey", req.GetParent())
	}
	v, err := k.s.generate(key.algorithm)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if v.public != nil {
		key.add(v, kmspb.CryptoKeyVersion_PENDING_GENERATION)
		v.readyTime = v.createTime.Add(delay)
	} else {
		key.add(v, kmspb.CryptoKeyVersion_ENABLED)
	}
	return v.message(), nil
}

func (k kmsService) UpdateCryptoKeyVersion(_ context.Context, req *kmspb.UpdateCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	if len(req.GetUpdateMask().GetPaths()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "The update_mask is empty.")
	}
	for _, path := range req.GetUpdateMask().GetPaths() {
		if path != "state" {
			return nil, status.Errorf(codes.InvalidArgument, "The field %q in update_mask cannot be updated.", path)
		}
	}
	state := req.GetCryptoKeyVersion().GetState()
	if !switchable(state) {
		return nil, status.Errorf(codes.InvalidArgument, "The state cannot be set to %v, only to ENABLED or DISABLED.", state)
	}
	return k.change(req.GetCryptoKeyVersion().GetName(), state, switchable)
}

func (k kmsService) DestroyCryptoKeyVersion(_ context.Context, req *kmspb.DestroyCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return k.change(req.GetName(), kmspb.CryptoKeyVersion_DESTROY_SCHEDULED, switchable)
}

func (k kmsService) RestoreCryptoKeyVersion(_ context.Context, req *kmspb.RestoreCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return k.change(req.GetName(), kmspb.CryptoKeyVersion_DISABLED, func(from kmspb.CryptoKeyVersion_CryptoKeyVersionState) bool {
		return from == kmspb.CryptoKeyVersion_DESTROY_SCHEDULED
	})
}

// switchable reports whether a state is one that users turn on and off.
func switchable(state kmspb.CryptoKeyVersion_CryptoKeyVersionState) bool {
	return state == kmspb.CryptoKeyVersion_ENABLED || state == kmspb.CryptoKeyVersion_DISABLED
}

// change moves a version to a state, if it is allowed to come from where it is.
func (k kmsService) change(name string, to kmspb.CryptoKeyVersion_CryptoKeyVersionState, from func(kmspb.CryptoKeyVersion_CryptoKeyVersionState) bool) (*kmspb.CryptoKeyVersion, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	v := k.s.version(name)
	if v == nil {
		return nil, notFound("CryptoKeyVersion", name)
	}
	if !from(v.state) {
		return nil, status.Errorf(codes.FailedPrecondition, "%s cannot become %v, current state is: %v.", name, to, v.state)
	}
	v.become(to, time.Now())
	return v.message(), nil
}
