package server

import (
	"net"
	"sync"
	"testing"
	"time"
)

// slowly is a connection whose Close blocks until all others are being closed.
type slowly struct {
	net.Conn
	begun *sync.WaitGroup
}

func (s slowly) Close() error {
	s.begun.Done()
	s.begun.Wait()
	return nil
}

// TestConnectionsAreClosedInParallel: at the end of a server no connection waits for the closing of another one, nor
// does a caller that lists the server's connections meanwhile.
func TestConnectionsAreClosedInParallel(t *testing.T) {
	t.Parallel()
	const n = 3
	s := &Server{conns: map[*conn]struct{}{}}
	var begun sync.WaitGroup
	begun.Add(n + 1)
	for range n {
		s.conns[&conn{nc: slowly{begun: &begun}}] = struct{}{}
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.closeAll(&s.conns)
	}()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		s.producers("b") // possibly while they are being closed
		begun.Done()
	}()
	for _, done := range []chan struct{}{asked, closed} {
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("it does not come to an end")
		}
	}
}
