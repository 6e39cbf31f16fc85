package testutil

import (
	"context"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A kmsRPC says what a request must satisfy before its RPC looks at it.
type kmsRPC struct {
	resource   string         // path of the field that names the resource
	pattern    *regexp.Regexp // what the resource's name must look like
	permission string         // what the caller needs on the resource
	fields     []string       // paths of the other fields that are implemented
}

const kmsIDPattern = `[a-zA-Z0-9_-]{1,63}`

var (
	cryptoKeyName = regexp.MustCompile(`^projects/` + kmsIDPattern + `/locations/` + kmsIDPattern +
		`/keyRings/` + kmsIDPattern + `/cryptoKeys/` + kmsIDPattern + `$`)
	keyVersionName = regexp.MustCompile(strings.TrimSuffix(cryptoKeyName.String(), `$`) +
		`/cryptoKeyVersions/` + kmsIDPattern + `$`)
)

var kmsRPCs = map[string]kmsRPC{
	"GetCryptoKey": {"name", cryptoKeyName, "cloudkms.cryptoKeys.get", nil},
	"ListCryptoKeyVersions": {"parent", cryptoKeyName, "cloudkms.cryptoKeyVersions.list",
		[]string{"page_size", "page_token", "view", "filter"}},
	"CreateCryptoKeyVersion": {"parent", cryptoKeyName, "cloudkms.cryptoKeyVersions.create",
		[]string{"crypto_key_version"}},
	"UpdateCryptoKeyVersion": {"crypto_key_version.name", keyVersionName, "cloudkms.cryptoKeyVersions.update",
		[]string{"crypto_key_version", "crypto_key_version.state", "update_mask"}},
	"DestroyCryptoKeyVersion": {"name", keyVersionName, "cloudkms.cryptoKeyVersions.destroy", nil},
	"RestoreCryptoKeyVersion": {"name", keyVersionName, "cloudkms.cryptoKeyVersions.restore", nil},
	"GetPublicKey": {"name", keyVersionName, "cloudkms.cryptoKeyVersions.viewPublicKey",
		[]string{"public_key_format"}},
	"AsymmetricSign": {"name", keyVersionName, "cloudkms.cryptoKeyVersions.useToSign",
		[]string{"digest", "digest.sha256", "digest.sha384", "digest.sha512", "digest_crc32c", "data", "data_crc32c"}},
	"MacSign": {"name", keyVersionName, "cloudkms.cryptoKeyVersions.useToSign",
		[]string{"data", "data_crc32c"}},
	"MacVerify": {"name", keyVersionName, "cloudkms.cryptoKeyVersions.useToVerify",
		[]string{"data", "data_crc32c", "mac", "mac_crc32c"}},
}

// serve is what every RPC passes through.
func (s *KMS) serve(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	s.mu.Lock()
	s.calls[method]++
	latency, hook := s.latency, s.hook
	s.mu.Unlock()

	if latency > 0 {
		timer := time.NewTimer(latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}

	next := func(ctx context.Context, req proto.Message) (proto.Message, error) {
		if err := s.admit(ctx, method, req); err != nil {
			return nil, err
		}
		resp, err := handler(ctx, req)
		if err != nil {
			return nil, err
		}
		return resp.(proto.Message), nil
	}
	if hook == nil {
		return next(ctx, req.(proto.Message))
	}
	return hook(ctx, method, req.(proto.Message), next)
}

// admit refuses a request for what needs no look at any key: its fields, its
// routing header, the form of its resource name and the caller's permission.
func (s *KMS) admit(ctx context.Context, method string, req proto.Message) error {
	rpc, ok := kmsRPCs[method]
	if !ok {
		return nil // unimplemented, as the handler is about to say
	}
	if err := checkFields(req.ProtoReflect(), "", slices.Concat(rpc.fields, []string{rpc.resource})); err != nil {
		return err
	}
	name := stringAt(req.ProtoReflect(), rpc.resource)
	if err := checkRouting(ctx, rpc.resource, name); err != nil {
		return err
	}
	if !rpc.pattern.MatchString(name) {
		return status.Errorf(codes.InvalidArgument, "The resource name %q in %s is malformed.", name, rpc.resource)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied[rpc.permission] {
		return status.Errorf(codes.PermissionDenied, "Permission '%s' denied on resource '%s' (or it may not exist).", rpc.permission, name)
	}
	return nil
}

// checkFields refuses fields outside of allowed, and those that the server's
// copy of the API doesn't know. A nil allowed permits every known field.
func checkFields(m protoreflect.Message, prefix string, allowed []string) error {
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		number, _, _ := protowire.ConsumeTag(unknown)
		return status.Errorf(codes.InvalidArgument, "The field %s%d is unknown.", prefix, number)
	}
	var err error
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := prefix + string(fd.Name())
		if allowed != nil && !slices.Contains(allowed, name) {
			err = status.Errorf(codes.InvalidArgument, "The field %s is not supported here.", name)
			return false
		}
		if fd.Message() == nil || fd.IsList() || fd.IsMap() {
			return true
		}
		inner := allowed
		if fd.Message().ParentFile().Package() == "google.protobuf" {
			inner = nil // wrappers and masks are values, not structures
		}
		err = checkFields(v.Message(), name+".", inner)
		return err == nil
	})
	return err
}

// checkRouting wants the header by which Google's front ends route a request.
func checkRouting(ctx context.Context, key, want string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	params, err := url.ParseQuery(strings.Join(md.Get("x-goog-request-params"), "&"))
	if err != nil || params.Get(key) != want || !params.Has(key) {
		return status.Errorf(codes.InvalidArgument, "The header x-goog-request-params must say %s=%s.", key, url.QueryEscape(want))
	}
	return nil
}

// stringAt returns the string field at a dotted path, "" if it is not set.
func stringAt(m protoreflect.Message, path string) string {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		m = m.Get(m.Descriptor().Fields().ByName(protoreflect.Name(name))).Message()
	}
	last := names[len(names)-1]
	return m.Get(m.Descriptor().Fields().ByName(protoreflect.Name(last))).String()
}
