//go:debug x509usefallbackroots=1
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"

	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
)

// main.go is the README's program, word by word, so it knows of Google Cloud only. Where no
// key is given, this file runs before main and leads it to a Cloud KMS server on loopback: by
// a proxy that is cloudkms.googleapis.com, a certificate authority that says so, and
// credentials of nobody's.

const cloudKMS = "cloudkms.googleapis.com"

func init() {
	if os.Getenv("KMS_KEY") != "" {
		return
	}
	if err := embed(); err != nil {
		log.Fatal(err)
	}
}

func embed() error {
	server, err := testutil.NewKMS()
	if err != nil {
		return err
	}
	version, err := server.CreateKey("readme", kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	if err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	certificate, err := certificateOf(key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	x509.SetFallbackRoots(roots)

	credentials, err := credentialsOf(key)
	if err != nil {
		return err
	}
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go serveProxy(proxy, server, credentials, &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}},
		NextProtos:   []string{"h2"},
	})
	for name, value := range map[string]string{
		"HTTPS_PROXY":                    "http://" + proxy.Addr().String(),
		"NO_PROXY":                       "",
		"GOOGLE_APPLICATION_CREDENTIALS": credentials,
		"KMS_KEY":                        path.Dir(path.Dir(version)), // the CryptoKey
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// certificateOf returns a certificate of Cloud KMS's name, signed by itself.
func certificateOf(key *rsa.PrivateKey) (*x509.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: cloudKMS},
		DNSNames:     []string{cloudKMS},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// credentialsOf writes the key file of a service account that doesn't exist.
func credentialsOf(key *rsa.PrivateKey) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	file, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "test", "private_key_id": "1",
		"private_key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"client_email": "nobody@test.iam.gserviceaccount.com", "token_uri": "https://oauth2.googleapis.com/token",
	})
	if err != nil {
		return "", err
	}
	name := filepath.Join(os.TempDir(), fmt.Sprintf("gcpjwt-readme-%d.json", os.Getpid()))
	return name, os.WriteFile(name, file, 0o600)
}

// serveProxy takes every connection to Cloud KMS to the server. Once there is one, the
// credentials have been read.
func serveProxy(proxy net.Listener, server *testutil.KMS, credentials string, config *tls.Config) {
	for {
		conn, err := proxy.Accept()
		if err != nil {
			return
		}
		os.Remove(credentials)
		go func() {
			defer conn.Close()
			request, err := http.ReadRequest(bufio.NewReader(conn))
			if err != nil || request.Method != http.MethodConnect || request.Host != cloudKMS+":443" {
				fmt.Fprint(conn, "HTTP/1.1 403 Forbidden\r\n\r\n")
				return
			}
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
			var dialer net.Dialer
			backend, err := dialer.DialContext(context.Background(), "tcp", server.Addr())
			if err != nil {
				return
			}
			defer backend.Close()
			client := tls.Server(conn, config)
			go io.Copy(backend, client)
			io.Copy(client, backend)
		}()
	}
}
