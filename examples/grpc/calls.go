package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A call is one that a client makes. It returns what the server said.
type call struct {
	method string
	do     func(context.Context, *grpc.ClientConn) (string, error)
}

var (
	getCall        = call{"Get", get}
	listCall       = call{"List", list}
	thousandCalls  = call{"Get, 1,000 at once", getThousand}
	healthCall     = call{"Check", check}
	reflectionCall = call{"ServerReflectionInfo", reflect}
)

func get(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	invoice := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, getMethod, wrapperspb.String("7"), invoice)
	return invoice.Value, err
}

func list(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	stream, err := conn.NewStream(ctx, &invoicesService.Streams[0], listMethod)
	if err != nil {
		return "", err
	}
	// io.EOF: the stream has ended, and RecvMsg says why.
	if err := stream.SendMsg(new(wrapperspb.StringValue)); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	for n := 0; ; n++ {
		invoice := new(wrapperspb.StringValue)
		switch err := stream.RecvMsg(invoice); {
		case errors.Is(err, io.EOF):
			return fmt.Sprintf("%d invoices", n), nil
		case err != nil:
			return "", err
		}
	}
}

func getThousand(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	var (
		calls    sync.WaitGroup
		failures [1000]error
	)
	for i := range failures {
		calls.Go(func() { _, failures[i] = get(ctx, conn) })
	}
	calls.Wait()
	return "1,000 invoices", errors.Join(failures[:]...)
}

func check(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	response, err := healthpb.NewHealthClient(conn).Check(ctx, new(healthpb.HealthCheckRequest))
	return response.GetStatus().String(), err
}

func reflect(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return "", err
	}
	request := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	response, err := stream.Recv()
	if err != nil {
		return "", err
	}
	var names []string
	for _, service := range response.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.Join(names, " "), nil
}
