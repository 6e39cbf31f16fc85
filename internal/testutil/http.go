package testutil

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

// An httpServer is what the servers that speak HTTP have in common: a network
// that can fail and come back, clients on it, call counters and latency.
type httpServer struct {
	opts    options
	handler http.HandlerFunc
	client  *http.Client // over the server's network
	piped   *http.Client // over net.Pipe, whatever the network is

	// mu guards the fields below and the state of the server built on this
	// one. It is not held while signing, waiting or calling back.
	mu          sync.Mutex
	addr        string   // what Restart listens on again
	pipe        *network // where piped dials
	server      *http.Server
	closed      bool
	connections int
	calls       map[string]int
	latency     time.Duration
	cuts        map[string]int           // calls still to be cut, by kind
	hangs       map[string]chan struct{} // closed when calls of a kind needn't wait any more
	inFlight    map[string]int           // calls being served, by kind

	serving sync.WaitGroup
	conns   sync.WaitGroup // one for each open connection
}

// start makes the server answer with handler.
func (s *httpServer) start(opts []Option, handler http.HandlerFunc) error {
	s.opts = newOptions(opts)
	s.handler = handler
	s.calls = make(map[string]int)
	s.cuts = make(map[string]int)
	s.hangs = make(map[string]chan struct{})
	s.inFlight = make(map[string]int)
	s.piped = newClient(s.dialPipe)
	s.client = s.piped
	if !s.opts.inMemory {
		s.client = newClient(nil)
	}
	return s.Restart()
}

func newClient(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: dial,
		// Enough that concurrent callers reuse connections.
		MaxIdleConnsPerHost: 100,
	}}
}

func (s *httpServer) dialPipe(ctx context.Context, _, _ string) (net.Conn, error) {
	s.mu.Lock()
	pipe := s.pipe
	s.mu.Unlock()
	return pipe.dial(ctx)
}

// Restart ends an outage: the server listens on its old address again. It does
// nothing if the server is running.
func (s *httpServer) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("testutil: the server is closed")
	}
	if s.server != nil {
		return nil
	}
	pipe, err := listen(options{inMemory: true}, "")
	if err != nil {
		return err
	}
	listeners := []net.Listener{pipe}
	if !s.opts.inMemory {
		tcp, err := listen(s.opts, s.addr)
		if err != nil {
			return err
		}
		s.addr = tcp.Addr().String()
		listeners = append(listeners, tcp)
	}
	server := &http.Server{Handler: s.handler}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.conns.Add(1)
			s.accepted(server, conn)
		case http.StateHijacked, http.StateClosed:
			s.conns.Done()
		}
	}
	for _, listener := range listeners {
		s.serving.Go(func() { _ = server.Serve(listener) })
	}
	s.pipe, s.server = pipe, server
	return nil
}

// accepted counts a connection. One that was accepted while Stop was closing
// the others is closed here, since Stop doesn't know it.
func (s *httpServer) accepted(server *http.Server, conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
	if s.server != server {
		_ = conn.Close()
	}
}

// Stop begins an outage: connections are cut and new ones refused until
// Restart.
func (s *httpServer) Stop() {
	s.mu.Lock()
	server := s.server
	s.server = nil
	s.mu.Unlock()
	if server != nil {
		_ = server.Close()
		s.serving.Wait()
	}
}

// Close stops the server for good and closes its clients' idle connections.
func (s *httpServer) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.Stop()
	s.client.CloseIdleConnections()
	s.piped.CloseIdleConnections()
}

// Client returns an HTTP client that reaches the server over its network.
func (s *httpServer) Client() *http.Client { return s.client }

// URL returns the server's base URL, without a slash at the end.
func (s *httpServer) URL() string {
	if s.opts.inMemory {
		return "http://127.0.0.1"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return "http://" + s.addr
}

// Connections returns how many connections the server has accepted so far.
func (s *httpServer) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

// Calls returns how many calls of one kind have arrived, or of all kinds,
// refused ones included, if what is empty.
func (s *httpServer) Calls(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what != "" {
		return s.calls[what]
	}
	return sum(s.calls)
}

func sum(counts map[string]int) int {
	n := 0
	for count := range maps.Values(counts) {
		n += count
	}
	return n
}

// InFlight returns how many calls of one kind, or of all kinds if what is empty,
// are being served now. A call whose client has gone isn't, once the server has
// noticed.
func (s *httpServer) InFlight(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what != "" {
		return s.inFlight[what]
	}
	return sum(s.inFlight)
}

// Hang makes the calls of one kind, or of all kinds if what is empty, wait for
// as long as their clients do. Turned off, it lets those that wait go on.
func (s *httpServer) Hang(what string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hang := s.hangs[what]
	switch {
	case on && hang == nil:
		s.hangs[what] = make(chan struct{})
	case !on && hang != nil:
		close(hang)
		delete(s.hangs, what)
	}
}

// ResetCalls sets all call counters to zero.
func (s *httpServer) ResetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.calls)
}

// SetLatency makes every call wait that long before it is looked at.
func (s *httpServer) SetLatency(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = d
}

// Cut ends the next n calls of one kind, or of any kind if what is empty,
// without an answer: the connection is closed once the request has been read.
// The calls are counted as usual. An n of 0 ends that.
func (s *httpServer) Cut(what string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts[what] = n
}

// cutOff closes the connection of a call if that is the call's turn. It must be
// called on the goroutine of the call's handler.
func (s *httpServer) cutOff(what string) {
	s.mu.Lock()
	cut := false
	for _, kind := range []string{what, ""} {
		if !cut && s.cuts[kind] > 0 {
			s.cuts[kind]--
			cut = true
		}
	}
	s.mu.Unlock()
	if cut {
		panic(http.ErrAbortHandler) // net/http's way to close a connection
	}
}

// arrive counts a call, waits for the latency and for the end of a hang, and
// cuts the call if it has to. It reports false if the client or the server has
// gone meanwhile. The request's body must have been read: until then net/http
// doesn't notice that a client has gone. Whatever happens, leave must follow.
func (s *httpServer) arrive(ctx context.Context, what string) bool {
	s.mu.Lock()
	s.calls[what]++
	s.inFlight[what]++
	latency, hangs := s.latency, []chan struct{}{s.hangs[what], s.hangs[""]}
	s.mu.Unlock()
	if wait(ctx, latency) != nil {
		return false
	}
	for _, hang := range hangs {
		if hang == nil {
			continue
		}
		select {
		case <-hang:
		case <-ctx.Done():
			return false
		}
	}
	s.cutOff(what)
	return true
}

// leave ends what arrive has begun.
func (s *httpServer) leave(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[what]--
}

// wait returns after d, or with an error when ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
