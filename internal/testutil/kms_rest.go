package testutil

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// RESTClient returns Google's REST client, without credentials. It has
// connections of its own, which end with the server. Of opts,
// option.WithHTTPClient may put another client in the place of HTTPClient.
func (s *KMS) RESTClient(ctx context.Context, opts ...option.ClientOption) (*kms.KeyManagementClient, error) {
	return kms.NewKeyManagementRESTClient(ctx, append([]option.ClientOption{
		option.WithEndpoint(s.RESTURL()),
		option.WithHTTPClient(s.HTTPClient()),
	}, opts...)...)
}

// RESTURL returns the base URL of the REST API, without a slash at the end.
func (s *KMS) RESTURL() string { return s.rest.URL() }

// HTTPClient returns a new HTTP client that reaches RESTURL, with connections
// of its own.
func (s *KMS) HTTPClient() *http.Client {
	if s.options.inMemory {
		return newClient(s.rest.dialPipe)
	}
	return newClient(nil)
}

// CutREST closes the connection of the next n calls of one method over REST, or
// of any method if it is empty, once the request has been read and counted. An
// n of 0 ends that.
func (s *KMS) CutREST(method string, n int) { s.rest.Cut(method, n) }

// InterceptREST lets f answer every HTTP request, after it has been counted and
// has waited for the latency: on its own, or by calling next, for which it must
// put back a body that it reads. What Intercept has installed comes after it.
// While f waits it must watch the request's context: Stop and Close wait for
// it. A nil f ends that.
func (s *KMS) InterceptREST(f func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interceptREST = f
}

// A kmsRoute says which HTTP requests stand for an RPC (google.api.http).
type kmsRoute struct {
	verb   string
	suffix string // of the path, after the resource's name
	body   string // the field that is sent as the body, wholeBody, or "" if there is no body
}

// wholeBody means that the body is the request without what the path says.
const wholeBody = "*"

// A kmsCall is an HTTP request's path, taken apart.
type kmsCall struct {
	method string // the RPC, "" if there is none
	rpc    kmsRPC
	name   string // of the resource
}

// parseKMSPath finds the RPC that an HTTP request is for. Like Google's front
// end it looks at the form of a name only as far as it has to.
func parseKMSPath(r *http.Request) kmsCall {
	path, _ := strings.CutPrefix(r.URL.EscapedPath(), "/v1/")
	for method, rpc := range kmsRPCs {
		escaped, ok := strings.CutSuffix(path, rpc.route.suffix)
		if !ok || r.Method != rpc.route.verb || !rpc.kind.route.MatchString(escaped) {
			continue
		}
		if name, err := url.PathUnescape(escaped); err == nil {
			return kmsCall{method, rpc, name}
		}
	}
	return kmsCall{}
}

// serveREST translates an HTTP request for the code that answers RPCs.
func (s *KMS) serveREST(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	call := parseKMSPath(r)
	ctx := metadata.NewIncomingContext(r.Context(), call.metadata(r.Header))
	hook, err := s.arrive(ctx, call.method)
	if err != nil {
		return // the client has gone
	}
	s.rest.cutOff(call.method)

	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if call.method == "" {
			notFoundPage(w)
			return
		}
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			writeStatus(w, invalidJSON("%v", err))
			return
		}
		marshal, err := takeSystemParameters(query)
		if err != nil {
			writeStatus(w, err)
			return
		}
		response, err := s.call(ctx, call, hook, func(request proto.Message) error {
			return call.parse(request, query, r)
		})
		if err != nil {
			writeStatus(w, err)
			return
		}
		answer, err := marshal.Marshal(response)
		if err != nil {
			writeStatus(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		_, _ = w.Write(answer)
	})

	r.Body = io.NopCloser(bytes.NewReader(body))
	s.mu.Lock()
	intercept := s.interceptREST
	s.mu.Unlock()
	if intercept != nil {
		intercept(w, r, next)
		return
	}
	next(w, r)
}

// call invokes an RPC in process, as the gRPC server would.
func (s *KMS) call(ctx context.Context, call kmsCall, hook kmsHook, decode func(proto.Message) error) (proto.Message, error) {
	for _, method := range kmspb.KeyManagementService_ServiceDesc.Methods {
		if method.MethodName != call.method {
			continue
		}
		response, err := method.Handler(kmsService{s: s}, ctx,
			func(request any) error { return decode(request.(proto.Message)) },
			func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				return s.answer(ctx, call.method, hook, request.(proto.Message), handler)
			})
		if err != nil {
			return nil, err
		}
		return response.(proto.Message), nil
	}
	return nil, status.Errorf(codes.Unimplemented, "method %s not implemented", call.method)
}

// metadata returns what the headers would be over gRPC. HTTP requests are
// routed by their paths, so that they may do without the header for it.
func (c kmsCall) metadata(header http.Header) metadata.MD {
	md := metadata.MD{}
	for name, values := range header {
		md.Append(name, values...)
	}
	if len(md.Get(routingHeader)) == 0 {
		md.Set(routingHeader, c.rpc.resource+"="+url.QueryEscape(c.name))
	}
	return md
}

// takeSystemParameters removes the parameters that say how to answer.
func takeSystemParameters(query url.Values) (protojson.MarshalOptions, error) {
	options := protojson.MarshalOptions{Multiline: true}
	for name, values := range query {
		switch strings.TrimPrefix(name, "$") {
		case "alt":
			media, enums, _ := strings.Cut(values[0], ";")
			if media != "json" || enums != "" && enums != "enum-encoding=int" {
				return options, status.Errorf(codes.InvalidArgument, "Invalid value %q of the query parameter %s.", values[0], name)
			}
			options.UseEnumNumbers = enums != ""
		case "prettyPrint":
			options.Multiline = values[0] != "false"
		default:
			continue
		}
		delete(query, name)
	}
	return options, nil
}

// parse makes the RPC's request out of the HTTP request's path, query and body.
func (c kmsCall) parse(request proto.Message, query url.Values, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	m := request.ProtoReflect()
	target := request
	switch c.rpc.route.body {
	case "":
		if len(body) > 0 {
			return invalidJSON("A %s request has no body.", r.Method)
		}
	case wholeBody:
	default:
		target = m.Mutable(field(m, c.rpc.route.body)).Message().Interface()
	}
	if len(body) > 0 {
		if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
			return status.Errorf(codes.InvalidArgument, "Unsupported content type %q.", r.Header.Get("Content-Type"))
		}
		if err := protojson.Unmarshal(body, target); err != nil {
			return invalidJSON("%v", err)
		}
	}
	if name := stringAt(m, c.rpc.resource); name != "" && name != c.name {
		return status.Errorf(codes.InvalidArgument, "The body names %q, the path %q.", name, c.name)
	}
	setStringAt(m, c.rpc.resource, c.name)

	for name, values := range query {
		if err := c.bind(m, name, values); err != nil {
			return err
		}
	}
	return nil
}

// bind sets a field that is given as a query parameter.
func (c kmsCall) bind(m protoreflect.Message, name string, values []string) error {
	fields := m.Descriptor().Fields()
	fd := fields.ByJSONName(name)
	if fd == nil {
		fd = fields.ByTextName(name)
	}
	unbound := c.rpc.route.body == wholeBody ||
		fd == nil || string(fd.Name()) == c.rpc.route.body || string(fd.Name()) == c.rpc.resource
	if unbound || len(values) != 1 {
		return invalidJSON("Unknown name %q: Cannot bind query parameter.", name)
	}
	// A parameter's text is what the string of a JSON value would be.
	var value any = values[0]
	if number, err := strconv.Atoi(values[0]); err == nil && fd.Kind() == protoreflect.EnumKind {
		value = number
	}
	text, err := json.Marshal(map[string]any{fd.JSONName(): value})
	if err != nil {
		return invalidJSON("%v", err)
	}
	part := m.New().Interface()
	if err := protojson.Unmarshal(text, part); err != nil {
		return invalidJSON("Invalid value at '%s': %v", name, err)
	}
	proto.Merge(m.Interface(), part)
	return nil
}

func invalidJSON(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, "Invalid JSON payload received. "+fmt.Sprintf(format, args...))
}

// restStatus is how Google's REST APIs spell the codes of gRPC.
var restStatus = map[codes.Code]struct {
	code int
	name string
}{
	codes.Canceled:           {499, "CANCELLED"},
	codes.Unknown:            {http.StatusInternalServerError, "UNKNOWN"},
	codes.InvalidArgument:    {http.StatusBadRequest, "INVALID_ARGUMENT"},
	codes.DeadlineExceeded:   {http.StatusGatewayTimeout, "DEADLINE_EXCEEDED"},
	codes.NotFound:           {http.StatusNotFound, "NOT_FOUND"},
	codes.AlreadyExists:      {http.StatusConflict, "ALREADY_EXISTS"},
	codes.PermissionDenied:   {http.StatusForbidden, "PERMISSION_DENIED"},
	codes.ResourceExhausted:  {http.StatusTooManyRequests, "RESOURCE_EXHAUSTED"},
	codes.FailedPrecondition: {http.StatusBadRequest, "FAILED_PRECONDITION"},
	codes.Aborted:            {http.StatusConflict, "ABORTED"},
	codes.OutOfRange:         {http.StatusBadRequest, "OUT_OF_RANGE"},
	codes.Unimplemented:      {http.StatusNotImplemented, "UNIMPLEMENTED"},
	codes.Internal:           {http.StatusInternalServerError, "INTERNAL"},
	codes.Unavailable:        {http.StatusServiceUnavailable, "UNAVAILABLE"},
	codes.DataLoss:           {http.StatusInternalServerError, "DATA_LOSS"},
	codes.Unauthenticated:    {http.StatusUnauthorized, "UNAUTHENTICATED"},
}

// writeStatus sends an error of an RPC as Google's REST APIs do.
func writeStatus(w http.ResponseWriter, err error) {
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err) // as the gRPC server does
	}
	spelling, ok := restStatus[st.Code()]
	if !ok {
		spelling = restStatus[codes.Unknown]
	}
	answer := &googleError{Code: spelling.code, Message: st.Message(), Status: spelling.name}
	for _, detail := range st.Proto().GetDetails() {
		text, err := protojson.Marshal(detail)
		if err != nil {
			panic(err) // a detail of a type that the program doesn't have
		}
		answer.Details = append(answer.Details, text)
	}
	writeError(w, answer)
}

// notFoundPage is what Google's front end answers where it finds no API.
func notFoundPage(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html; charset=UTF-8")
	w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(w, "<!DOCTYPE html>\n<title>Error 404 (Not Found)!!1</title>\n<p>The requested URL was not found on this server.\n")
}
