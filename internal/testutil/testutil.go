// Package testutil holds servers that speak Google's wire protocols on
// loopback, so that the real Google clients run unmodified against them: Cloud
// KMS over gRPC and REST, IAM Credentials and its certificate endpoint over
// HTTP, and the App Engine API server. They hold real keys, refuse what Google refuses,
// count calls, rotate keys and inject faults. Tests and examples share them.
package testutil

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"sync"
	"time"
)

// An Option changes how a server is started.
type Option func(*options)

type options struct {
	inMemory bool
}

// InMemory connects clients to the server through net.Pipe instead of a TCP
// socket on loopback. A goroutine that waits on such a connection is durably
// blocked, which is what testing/synctest needs to advance its clock.
func InMemory() Option {
	return func(o *options) { o.inMemory = true }
}

// A network is where one server listens and its clients dial.
type network struct {
	net.Listener
	dial func(ctx context.Context) (net.Conn, error)
}

// listen opens a network. addr is the TCP address to reuse after a restart, or
// "" for any free port.
func listen(o options, addr string) (*network, error) {
	if o.inMemory {
		l, dial := ListenInMemory()
		return &network{l, dial}, nil
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &network{l, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}}, nil
}

func newOptions(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// ListenInMemory returns a listener that connects through net.Pipe, as [InMemory] does, and
// what dials it.
func ListenInMemory() (net.Listener, func(ctx context.Context) (net.Conn, error)) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	return l, l.dial
}

type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
}

// rsaPool keeps generated RSA keys for the process: a 4096-bit key takes about
// a second, and what tests need is keys that differ within one server.
var rsaPool struct {
	sync.Mutex
	keys map[int][]*rsa.PrivateKey
}

// rsaKey returns the process's nth RSA key of a size.
func rsaKey(bits, n int) (*rsa.PrivateKey, error) {
	rsaPool.Lock()
	defer rsaPool.Unlock()
	if rsaPool.keys == nil {
		rsaPool.keys = make(map[int][]*rsa.PrivateKey)
	}
	for len(rsaPool.keys[bits]) <= n {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			return nil, err
		}
		rsaPool.keys[bits] = append(rsaPool.keys[bits], key)
	}
	return rsaPool.keys[bits][n], nil
}

// certificate returns a self-signed PEM certificate for a signing key, as
// Google publishes them for service accounts.
func certificate(commonName string, key *rsa.PrivateKey) ([]byte, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(16 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
