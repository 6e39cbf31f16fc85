package testutil

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A kmsRPC says what a request must satisfy before its RPC looks at it, and
// which HTTP requests stand for it.
type kmsRPC struct {
	resource   string       // path of the field that names the resource
	kind       resourceKind // of the resource
	permission string       // what the caller needs on the resource
	fields     []string     // paths of the other fields that are implemented
	route      kmsRoute
}

// A resourceKind tells names of its kind from others.
type resourceKind struct {
	name  *regexp.Regexp // a well-formed name
	route *regexp.Regexp // what the front end of the REST API takes for one
}

const kmsIDPattern = `[a-zA-Z0-9_-]{1,63}`

var (
	cryptoKeyKind  = newResourceKind("projects", "locations", "keyRings", "cryptoKeys")
	keyVersionKind = newResourceKind("projects", "locations", "keyRings", "cryptoKeys", "cryptoKeyVersions")
)

func newResourceKind(collections ...string) resourceKind {
	pattern := func(id string) *regexp.Regexp {
		return regexp.MustCompile(`^` + strings.Join(collections, `/`+id+`/`) + `/` + id + `$`)
	}
	return resourceKind{name: pattern(kmsIDPattern), route: pattern(`[^/]+`)}
}

var kmsRPCs = map[string]kmsRPC{
	"GetCryptoKey": {"name", cryptoKeyKind, "cloudkms.cryptoKeys.get", nil,
		kmsRoute{http.MethodGet, "", ""}},
	"ListCryptoKeyVersions": {"parent", cryptoKeyKind, "cloudkms.cryptoKeyVersions.list",
		[]string{"page_size", "page_token", "view", "filter"},
		kmsRoute{http.MethodGet, "/cryptoKeyVersions", ""}},
	"CreateCryptoKeyVersion": {"parent", cryptoKeyKind, "cloudkms.cryptoKeyVersions.create",
		[]string{"crypto_key_version"},
		kmsRoute{http.MethodPost, "/cryptoKeyVersions", "crypto_key_version"}},
	"UpdateCryptoKeyVersion": {"crypto_key_version.name", keyVersionKind, "cloudkms.cryptoKeyVersions.update",
		[]string{"crypto_key_version", "crypto_key_version.state", "update_mask"},
		kmsRoute{http.MethodPatch, "", "crypto_key_version"}},
	"DestroyCryptoKeyVersion": {"name", keyVersionKind, "cloudkms.cryptoKeyVersions.destroy", nil,
		kmsRoute{http.MethodPost, ":destroy", wholeBody}},
	"RestoreCryptoKeyVersion": {"name", keyVersionKind, "cloudkms.cryptoKeyVersions.restore", nil,
		kmsRoute{http.MethodPost, ":restore", wholeBody}},
	"GetPublicKey": {"name", keyVersionKind, "cloudkms.cryptoKeyVersions.viewPublicKey",
		[]string{"public_key_format"},
		kmsRoute{http.MethodGet, "/publicKey", ""}},
	"AsymmetricSign": {"name", keyVersionKind, "cloudkms.cryptoKeyVersions.useToSign",
		[]string{"digest", "digest.sha256", "digest.sha384", "digest.sha512", "digest.external_mu", "digest_crc32c", "data", "data_crc32c"},
		kmsRoute{http.MethodPost, ":asymmetricSign", wholeBody}},
	"MacSign": {"name", keyVersionKind, "cloudkms.cryptoKeyVersions.useToSign",
		[]string{"data", "data_crc32c"},
		kmsRoute{http.MethodPost, ":macSign", wholeBody}},
	"MacVerify": {"name", keyVersionKind, "cloudkms.cryptoKeyVersions.useToVerify",
		[]string{"data", "data_crc32c", "mac", "mac_crc32c"},
		kmsRoute{http.MethodPost, ":macVerify", wholeBody}},
}

// Permissions returns the permissions that RPCs take.
func (s *KMS) Permissions() []string {
	var permissions []string
	for _, rpc := range kmsRPCs {
		permissions = append(permissions, rpc.permission)
	}
	slices.Sort(permissions)
	return slices.Compact(permissions)
}

// serve is what every RPC over gRPC passes through.
func (s *KMS) serve(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	hook, err := s.arrive(ctx, method)
	if err != nil {
		return nil, err
	}
	return s.answer(ctx, method, hook, req.(proto.Message), handler)
}

// arrive counts a call, waits for the latency and returns the hook that the
// call is to pass through.
func (s *KMS) arrive(ctx context.Context, method string) (kmsHook, error) {
	s.mu.Lock()
	s.calls[method]++
	for _, project := range userProjects(ctx) {
		s.projectCalls[project]++
	}
	latency, hook := s.latency, s.hook
	s.mu.Unlock()
	return hook, wait(ctx, latency)
}

// answer passes a request through the hook, the checks and its handler.
func (s *KMS) answer(ctx context.Context, method string, hook kmsHook, req proto.Message, handler grpc.UnaryHandler) (proto.Message, error) {
	next := func(ctx context.Context, req proto.Message) (proto.Message, error) {
		if err := s.fails.take(method); err != nil {
			return nil, err
		}
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
		return next(ctx, req)
	}
	return hook(ctx, method, req, next)
}

func userProjects(ctx context.Context) []string {
	md, _ := metadata.FromIncomingContext(ctx)
	return md.Get("x-goog-user-project")
}

// admit refuses a request for what needs no look at any key: who pays, its
// fields, its routing header, the form of its resource name and the caller's
// permission.
func (s *KMS) admit(ctx context.Context, method string, req proto.Message) error {
	rpc, ok := kmsRPCs[method]
	if !ok {
		return nil // unimplemented, as the handler is about to say
	}
	if err := s.checkUserProject(ctx); err != nil {
		return err
	}
	if err := s.checkFakeKMS(req.ProtoReflect()); err != nil {
		return err
	}
	if err := checkFields(req.ProtoReflect(), "", slices.Concat(rpc.fields, []string{rpc.resource})); err != nil {
		return err
	}
	name := stringAt(req.ProtoReflect(), rpc.resource)
	if err := checkRouting(ctx, rpc.resource, name); err != nil {
		return err
	}
	if !rpc.kind.name.MatchString(name) {
		return status.Errorf(codes.InvalidArgument, "The resource name %q in %s is malformed.", name, rpc.resource)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied[rpc.permission] {
		return status.Errorf(codes.PermissionDenied, "Permission '%s' denied on resource '%s' (or it may not exist).", rpc.permission, name)
	}
	return nil
}

// checkUserProject refuses callers that may not use the project they name.
func (s *KMS) checkUserProject(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, project := range userProjects(ctx) {
		if !s.deniedProjects[project] {
			continue
		}
		denied, err := status.Newf(codes.PermissionDenied, "Caller does not have required permission to use project %s. "+
			"Grant the caller the roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use permission.", project).
			WithDetails(&errdetails.ErrorInfo{
				Reason:   "USER_PROJECT_DENIED",
				Domain:   "googleapis.com",
				Metadata: map[string]string{"consumer": "projects/" + project, "service": "cloudkms.googleapis.com"},
			})
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		return denied.Err()
	}
	return nil
}

// checkFakeKMS refuses what Google's own fake refuses, if it is to be like that.
func (s *KMS) checkFakeKMS(m protoreflect.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.likeFakeKMS {
		return nil
	}
	for _, name := range []string{"public_key_format", "filter", "order_by", "page_size", "page_token", "view"} {
		if fd := field(m, name); fd != nil && m.Has(fd) {
			return status.Errorf(codes.Unimplemented, "field not supported: %s", name)
		}
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

// routingHeader is what Google's front ends route an RPC by.
const routingHeader = "x-goog-request-params"

// checkRouting wants the header by which Google's front ends route a request.
func checkRouting(ctx context.Context, key, want string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	params, err := url.ParseQuery(strings.Join(md.Get(routingHeader), "&"))
	if err != nil || params.Get(key) != want || !params.Has(key) {
		return status.Errorf(codes.InvalidArgument, "The header %s must say %s=%s.", routingHeader, key, url.QueryEscape(want))
	}
	return nil
}

// stringAt returns the string field at a dotted path, "" if it is not set.
func stringAt(m protoreflect.Message, path string) string {
	outer, last, nested := strings.Cut(path, ".")
	if nested {
		return stringAt(m.Get(field(m, outer)).Message(), last)
	}
	return m.Get(field(m, path)).String()
}

// setStringAt sets the string field at a dotted path.
func setStringAt(m protoreflect.Message, path, value string) {
	outer, last, nested := strings.Cut(path, ".")
	if nested {
		setStringAt(m.Mutable(field(m, outer)).Message(), last, value)
		return
	}
	m.Set(field(m, path), protoreflect.ValueOfString(value))
}

func field(m protoreflect.Message, name string) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(protoreflect.Name(name))
}
