package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/kv/mcbp"
)

// upload sends a request with a body of size bytes, the first 64 KiB at once and the rest in pieces, and returns the
// server's end of the connection; over is closed when the client has finished. All time is virtual.
func upload(srv *Server, encrypted *tls.Config, size, piece int, every time.Duration) (c *conn, over chan struct{}) {
	over = make(chan struct{})
	near, far := net.Pipe()
	client := near
	if encrypted != nil {
		client, far = tls.Client(near, &tls.Config{InsecureSkipVerify: true}), tls.Server(far, encrypted)
	}
	go func() {
		defer close(over)
		defer client.Close()
		head, _ := mcbp.Append(nil, mcbp.Frame{Header: mcbp.Request(mcbp.OpSet, 0, 0)})
		binary.BigEndian.PutUint32(head[8:], uint32(size))
		left := size - readBufferBytes
		if _, err := client.Write(append(head, make([]byte, readBufferBytes)...)); err != nil {
			return
		}
		for ; left > 0; left -= piece {
			time.Sleep(every)
			if _, err := client.Write(make([]byte, min(piece, left))); err != nil {
				return
			}
		}
	}()
	c = newConn(srv, far, 1)
	c.authed = true
	return c, over
}

func newTestServer() *Server {
	return New(Options{User: "u", Password: "p", Now: time.Now, Random: func(b []byte) { _, _ = rand.Read(b) }})
}

// selfSigned returns a self-signed certificate.
func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// A large frame may arrive as slowly as the client likes while it progresses: only a stall ends the connection, at
// the end of the window.
func TestSlowFrames(t *testing.T) {
	const kib = 1 << 10
	for _, tt := range []struct {
		name        string
		size, piece int
		every       time.Duration
		want        error
		atMost      time.Duration // after the first 64 KiB
	}{
		{"200 KiB at 2 KiB/s", 200 * kib, 2 * kib, time.Second, nil, 70 * time.Second},
		{"200 KiB, 12 KiB in each window", 200 * kib, 4 * kib, 3 * time.Second, nil, 2 * time.Minute},
		{"3 MiB at 4 KiB/s", 3072 * kib, 12 * kib, 3 * time.Second, nil, 13 * time.Minute},
		{"one byte a second", 200 * kib, 1, time.Second, errStalled, 11 * time.Second},
		{"10 KiB in each window", 200 * kib, 1 * kib, time.Second, errStalled, 11 * time.Second},
		{"nothing for a while", 200 * kib, 100 * kib, 15 * time.Second, errStalled, 11 * time.Second},
	} {
		for _, encrypted := range []*tls.Config{nil, selfSigned(t)} {
			name := tt.name
			if encrypted != nil {
				name += ", TLS"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, over := upload(newTestServer(), encrypted, tt.size, tt.piece, tt.every)
					defer func() { c.close(); <-over }()
					began := time.Now()
					f, _, err := c.read(context.Background())
					if !errors.Is(err, tt.want) || err == nil && f.BodyLen != tt.size {
						t.Fatalf("%d bytes, %v; want %d, %v", f.BodyLen, err, tt.size, tt.want)
					}
					if took := time.Since(began); took > tt.atMost {
						t.Errorf("after %v, want %v at most", took, tt.atMost)
					}
					if free := c.srv.large.TryAcquire(maxLargeBytes); free != (err != nil) {
						t.Errorf("the share of large frames is free: %t, with error %v", free, err)
					}
				})
			})
		}
	}
}

// Slow large frames may use the whole budget while no other frame needs it: then those that would not complete within
// the time for a frame make room.
func TestSlowFramesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newTestServer()
		const slow = maxLargeBytes / mcbp.MaxBody
		var cut atomic.Int64
		var ends []func()
		for range slow {
			c, over := upload(srv, nil, mcbp.MaxBody, 12<<10, 6*time.Second)
			ends = append(ends, func() { c.close(); <-over })
			go func() {
				if _, _, err := c.read(context.Background()); errors.Is(err, errMakeRoom) {
					cut.Add(1)
				}
				c.close()
			}()
		}
		time.Sleep(20 * time.Minute)
		if n := cut.Load(); n > 0 {
			t.Fatalf("%d slow frames were cut off though no frame waits", n)
		}
		for range 3 {
			c, over := upload(srv, nil, mcbp.MaxBody, 64<<10, time.Millisecond)
			ends = append(ends, func() { c.close(); <-over })
			began := time.Now()
			if _, _, err := c.read(context.Background()); err != nil {
				t.Fatal(err)
			}
			srv.large.Release(mcbp.MaxBody)
			if took := time.Since(began); took > 2*srv.opts.FrameTimeout/progressPart {
				t.Errorf("a quick frame took %v", took)
			}
		}
		if n := cut.Load(); n == 0 {
			t.Error("no frame was cut off: there was room for all")
		}
		for _, end := range ends {
			end()
		}
	})
}

// A request that stays half sent ends its connection within the time for a frame, and the log names its user; the end
// of a connection between two requests is not logged.
func TestHalfSentRequestsAreLogged(t *testing.T) {
	whole, err := mcbp.Append(nil, mcbp.Frame{Header: mcbp.Request(mcbp.OpSet, 0, 0), Extras: make([]byte, 8),
		Key: []byte("a"), Value: make([]byte, 100)})
	if err != nil {
		t.Fatal(err)
	}
	large := append([]byte(nil), whole...)
	binary.BigEndian.PutUint32(large[8:], 1<<20)
	tooLarge := append([]byte(nil), whole...)
	binary.BigEndian.PutUint32(tooLarge[8:], mcbp.MaxBody+1)
	for _, tt := range []struct {
		what   string
		sends  []byte
		says   string
		within time.Duration
	}{
		{"a header", whole[:11], "the rest of a header did not arrive within 1m0s", DefaultFrameTimeout},
		{"a body", whole[:60], "the rest of SET did not arrive within 1m0s", DefaultFrameTimeout},
		{"a large body", append(large, make([]byte, readBufferBytes)...), "an unfinished frame", DefaultFrameTimeout},
		{"the beginning of a large body", large, "the rest of SET did not arrive within 1m0s", DefaultFrameTimeout},
		{"a body beyond the limit", tooLarge, "the rest of SET did not arrive within 1m0s", DefaultFrameTimeout},
		{"nothing", nil, "", DefaultIdleTimeout},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said bytes.Buffer
				srv := New(Options{User: "u", Password: "p", Now: time.Now, Random: func(b []byte) { _, _ = rand.Read(b) },
					Logger: hclog.New(&hclog.LoggerOptions{Output: &said, Level: hclog.Info})})
				near, far := net.Pipe()
				defer near.Close()
				go func() { // what is answered is read
					_, _ = io.Copy(io.Discard, near)
				}()
				c := newConn(srv, far, 1)
				c.authed, c.user = true, "jane"
				ended := make(chan time.Duration)
				began := time.Now()
				go func() {
					c.serve(context.Background(), &errgroup.Group{})
					ended <- time.Since(began)
				}()
				if len(tt.sends) > 0 {
					if _, err := near.Write(tt.sends); err != nil {
						t.Fatal(err)
					}
				}
				if took := <-ended; took > tt.within {
					t.Errorf("it ended after %v, want %v", took, tt.within)
				}
				if tt.says == "" && said.Len() > 0 {
					t.Errorf("it is said: %s", said.String())
				}
				for _, want := range []string{"incomplete request", "user=jane", tt.says} {
					if tt.says != "" && !strings.Contains(said.String(), want) {
						t.Errorf("%q lacks %q", said.String(), want)
					}
				}
			})
		})
	}
}

// TestClientsDoNotFillTheLog checks that what a client can do to a node without a permission leaves a line a minute for
// each kind and host, with the number of those left out.
func TestClientsDoNotFillTheLog(t *testing.T) {
	login, err := mcbp.Append(nil, mcbp.Frame{Header: mcbp.Request(mcbp.OpSASLAuth, 0, 0), Key: []byte("PLAIN"),
		Value: []byte("\x00u\x00wrong")})
	if err != nil {
		t.Fatal(err)
	}
	for what, sends := range map[string][]byte{"incomplete request": login[:5], "authentication failed": login,
		"protocol violation": bytes.Repeat([]byte{0xff}, mcbp.HeaderSize)} {
		synctest.Test(t, func(t *testing.T) {
			var said bytes.Buffer
			srv := New(Options{User: "u", Password: "p", AllowPlain: true, Now: time.Now,
				Random: func(b []byte) { _, _ = rand.Read(b) },
				Logger: hclog.New(&hclog.LoggerOptions{Output: &said, Level: hclog.Info})})
			var ended sync.WaitGroup
			connect := func(times int) {
				for range times {
					near, far := net.Pipe()
					ended.Go(func() { newConn(srv, far, 1).serve(context.Background(), &errgroup.Group{}) })
					go func() { // what is answered is read
						_, _ = io.Copy(io.Discard, near)
					}()
					if _, err := near.Write(sends); err != nil {
						t.Fatal(err)
					}
				}
				ended.Wait() // a connection that sends no more ends in time
			}
			const times = 20
			connect(times)
			time.Sleep(time.Minute)
			connect(1)
			var lines []string
			for line := range strings.Lines(said.String()) {
				if strings.Contains(line, what) {
					lines = append(lines, line)
				}
			}
			if len(lines) != 2 || !strings.Contains(lines[0], "left_out=0") ||
				!strings.Contains(lines[1], fmt.Sprintf("left_out=%d", times-1)) {
				t.Errorf("%q: of %d and one more, the log has %q", what, times, lines)
			}
		})
	}
}
