package kvclient

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestUnsent checks that bytes that a peer has not acknowledged are counted, until it reads them.
func TestUnsent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	wrote := make(chan error, 1)
	go func() {
		_, err := near.Write(make([]byte, 64<<20)) // exceeds the buffers of both sides
		wrote <- err
	}()
	until := func(what string, ok func(n int) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(unsent(near)); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d bytes are unsent", what, unsent(near))
			}
		}
	}
	until("no process reads", func(n int) bool { return n > 0 })
	go func() { _, _ = io.Copy(io.Discard, far) }()
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	until("all is read", func(n int) bool { return n == 0 })
	_ = near.Close()
	if n := unsent(near); n != 0 {
		t.Errorf("of a closed connection %d bytes are unsent", n)
	}
}
