package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// programs are verifiers in other languages. They read issuer, audience and token from
// standard input.
//
//go:embed external
var programs embed.FS

// install copies the programs into the issuer's temporary folder.
func install(at *issuer) (string, error) {
	folder := filepath.Join(at.folder, "programs")
	part, err := fs.Sub(programs, "external")
	if err != nil {
		return "", err
	}
	if err := os.CopyFS(folder, part); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return folder, nil
}

// findJose installs the npm package jose for node.
func findJose(ctx context.Context, at *issuer) (*verifier, error) {
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("jose (npm) was not run: %s isn't here", name)
		}
	}
	folder, err := install(at)
	if err != nil {
		return nil, err
	}
	folder = filepath.Join(folder, "jose")
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if _, err := output(ctx, folder, nil, nil, "npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts"); err != nil {
		return nil, fmt.Errorf("jose (npm) was not run: npm could not install it: %w", err)
	}
	version, err := output(ctx, folder, nil, nil, "node", "-p", "require('./node_modules/jose/package.json').version+' on node '+process.version")
	if err != nil {
		return nil, fmt.Errorf("jose (npm) was not run: %w", err)
	}
	return &verifier{
		name: "jose (npm)", version: version,
		verify: program(folder, "node", "verify.mjs"),
	}, nil
}

// findPyJWT looks for a Python that has PyJWT and the cryptography that it needs.
func findPyJWT(ctx context.Context, at *issuer) (*verifier, error) {
	folder, err := install(at)
	if err != nil {
		return nil, err
	}
	folder = filepath.Join(folder, "pyjwt")
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		version, err := output(ctx, folder, nil, nil, python, "-c",
			"import cryptography, jwt, platform; print(jwt.__version__ + ' on Python ' + platform.python_version())")
		if err == nil {
			return &verifier{name: "PyJWT", version: version, verify: program(folder, python, "verify.py")}, nil
		}
	}
	return nil, errors.New("PyJWT was not run: there is no python3 with jwt and cryptography here")
}

// program returns what verifies with a program.
func program(folder string, command ...string) func(context.Context, *issuer, string) (error, error) {
	return func(ctx context.Context, at *issuer, token string) (refused, err error) {
		question, err := json.Marshal(map[string]string{"issuer": at.url, "audience": audience, "token": token})
		if err != nil {
			return nil, err
		}
		trust := []string{"NODE_EXTRA_CA_CERTS=" + at.caFile, "SSL_CERT_FILE=" + at.caFile}
		text, err := output(ctx, folder, trust, question, command...)
		if err != nil {
			return nil, err
		}
		var answer struct {
			Accepted bool   `json:"accepted"`
			Reason   string `json:"reason"`
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		if !answer.Accepted {
			return errors.New(answer.Reason), nil
		}
		return nil, nil
	}
}

// output runs a command and returns what it prints.
func output(ctx context.Context, folder string, environment []string, input []byte, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdin = bytes.NewReader(input)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	text, err := cmd.Output()
	if err != nil {
		last := strings.Split(strings.TrimSpace(failure.String()), "\n")
		return "", fmt.Errorf("%s: %w: %s", command[0], err, last[len(last)-1])
	}
	return strings.TrimSpace(string(text)), nil
}
