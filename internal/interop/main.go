// Interop verifies tokens, signed through an embedded Cloud KMS and published by package
// jwks, with verifiers that others wrote, and prints what each made of them:
//
//	cd internal/interop && go run .
//
// It fails if a good token was refused or another one accepted. It is a module of its own,
// so that the library doesn't depend on what it is compared with.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	result, err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
	fmt.Print(result)
	if wrong := result.wrong(); len(wrong) > 0 {
		for _, cell := range wrong {
			fmt.Fprintln(os.Stderr, "interop:", cell)
		}
		os.Exit(1)
	}
}
