package main

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/someone1/gcp-jwt-go/v3/middleware"
)

// invoices is the service. It is described by hand, as this repository has no generated
// code of its own; yours comes from a .proto file.
type invoices struct{}

const (
	getMethod  = "/invoices.v1.Invoices/Get"
	listMethod = "/invoices.v1.Invoices/List"
)

// get knows its caller by the token, which the interceptor has verified.
func (invoices) get(ctx context.Context, name string) (*wrapperspb.StringValue, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	return wrapperspb.String(fmt.Sprintf("invoice %s for %s", name, caller)), nil
}

// list sends three invoices.
func (s invoices) list(ctx context.Context, send func(*wrapperspb.StringValue) error) error {
	for number := range 3 {
		invoice, err := s.get(ctx, fmt.Sprint(number+1))
		if err == nil {
			err = send(invoice)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func callerOf(ctx context.Context) (string, error) {
	token, ok := middleware.TokenFromContext(ctx)
	if !ok { // somebody took the interceptor away
		return "", status.Error(codes.Internal, codes.Internal.String())
	}
	return token.Claims.GetSubject()
}

var invoicesService = grpc.ServiceDesc{
	ServiceName: "invoices.v1.Invoices",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Get",
		Handler: func(server any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			request := new(wrapperspb.StringValue)
			if err := decode(request); err != nil {
				return nil, err
			}
			info := &grpc.UnaryServerInfo{Server: server, FullMethod: getMethod}
			return interceptor(ctx, request, info, func(ctx context.Context, _ any) (any, error) {
				return server.(invoices).get(ctx, request.Value)
			})
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName:    "List",
		ServerStreams: true,
		Handler: func(server any, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != nil {
				return err
			}
			return server.(invoices).list(stream.Context(), func(invoice *wrapperspb.StringValue) error {
				return stream.SendMsg(invoice)
			})
		},
	}},
}
