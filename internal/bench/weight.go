package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// A Weight is what a program weighs that verifies tokens.
type Weight struct {
	Name     string
	Bytes    int64
	Packages int
}

// The programs whose weight is compared. All are HTTP servers: the first has jwt with a key
// in a variable.
var programs = []struct{ name, module, path string }{
	{"jwt and net/http alone", "../..", "./internal/weight/alone"},
	{"middleware", "../..", "./internal/weight/verifier"},
	{"middleware and jwks", ".", "./weight/jwks"},
	{"keyfunc", ".", "./weight/keyfunc"},
	{"go-oidc", ".", "./weight/oidc"},
	{"jwx", ".", "./weight/jwx"},
	{"gcpjwt with Cloud KMS", ".", "./weight/kms"},
}

// Weights builds the programs as one does for production. dir is that of this package.
func Weights(dir string) ([]Weight, error) {
	out, err := os.MkdirTemp("", "weight")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(out)
	var weights []Weight
	for _, p := range programs {
		module, binary := filepath.Join(dir, p.module), filepath.Join(out, filepath.Base(p.path))
		if _, err := run(module, "build", "-trimpath", "-ldflags=-s -w", "-o", binary, p.path); err != nil {
			return nil, err
		}
		packages, err := run(module, "list", "-deps", p.path)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(binary)
		if err != nil {
			return nil, err
		}
		weights = append(weights, Weight{p.name, info.Size(), bytes.Count(packages, []byte("\n"))})
	}
	return weights, nil
}

func run(dir string, args ...string) ([]byte, error) {
	command := exec.Command("go", args...)
	command.Dir = dir
	var stderr bytes.Buffer
	command.Stderr = &stderr
	data, err := command.Output()
	if err != nil {
		err = fmt.Errorf("go %v: %w: %s", args, err, &stderr)
	}
	return data, err
}
