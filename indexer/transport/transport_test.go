package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/keyversion"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 3 * time.Minute // hang guard

// logBuffer is a log that a test can read.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// sinkFuncs is a Sink made of functions. A nil function accepts everything.
type sinkFuncs struct {
	receive func(ctx context.Context, b *keyversion.Batch, release func()) error
	closed  func(err error)
}

func (s sinkFuncs) Receive(ctx context.Context, b *keyversion.Batch, release func()) error {
	if s.receive != nil {
		return s.receive(ctx, b, release)
	}
	release()
	return nil
}

func (s sinkFuncs) Closed(err error) {
	if s.closed != nil {
		s.closed(err)
	}
}

type fixture struct {
	addr string
	log  *logBuffer
	srv  *transport.Server
	stop func()
}

func serve(t testing.TB, cfg transport.ServerConfig, accept transport.Accept) *fixture {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{addr: lis.Addr().String(), log: &logBuffer{}}
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: f.log})
	f.srv = transport.NewServer(cfg, accept)
	served := make(chan error, 1)
	go func() { served <- f.srv.Serve(lis) }()
	f.stop = sync.OnceFunc(func() {
		f.srv.Stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

func acceptAll(s transport.Sink) transport.Accept {
	return func(context.Context, keyversion.Hello) (transport.Sink, error) { return s, nil }
}

func hello() keyversion.Hello {
	return keyversion.Hello{ClusterID: "c", Projector: "p", Topic: "/maintenance", Bucket: "b", Connections: 1}
}

func dial(t testing.TB, addr string, opts transport.Options) *transport.Conn {
	t.Helper()
	return dialAs(t, addr, hello(), opts)
}

// another returns the hello of a connection that can exist along with hello's.
func another() keyversion.Hello {
	h := hello()
	h.Topic = "/other"
	return h
}

func dialAs(t testing.TB, addr string, h keyversion.Hello, opts transport.Options) *transport.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := transport.Dial(ctx, addr, h, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func frameOf(t testing.TB, number uint64, docs int, key []byte) []byte {
	t.Helper()
	b := keyversion.Batch{Number: number}
	for i := range docs {
		b.Events = append(b.Events, keyversion.Event{
			Kind: keyversion.Insert, VBucket: 3, VBUUID: 9, Incarnation: index.Incarnation{Epoch: 1700000000, Term: 2,
				Counter: 4},
			Seqno: number*1000 + uint64(i), DocID: fmt.Appendf(nil, "airport::%016d", i),
			Statements: []keyversion.Statement{{Index: 1 << 33, Keys: [][]byte{key}}},
		})
	}
	frame, err := keyversion.AppendBatch(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// TestBatchesArriveInOrderAndWhole checks that batches of any size up to the limit arrive in order and complete, and
// are acknowledged, also while the sink holds all of them.
func TestBatchesArriveInOrderAndWhole(t *testing.T) {
	type held struct {
		seqno   uint64
		key     []byte
		copied  string
		release func()
	}
	var mu sync.Mutex
	var got []held
	f := serve(t, transport.ServerConfig{}, acceptAll(sinkFuncs{
		receive: func(_ context.Context, b *keyversion.Batch, release func()) error {
			mu.Lock()
			defer mu.Unlock()
			key := b.Events[0].Statements[0].Keys[0]
			got = append(got, held{b.Events[0].Seqno, key, string(key), release})
			return nil
		}}))
	var acked atomic.Uint64
	c := dial(t, f.addr, transport.Options{OnAck: func(n uint64) { acked.Store(n) }})
	sizes := []int{1, 100, 5 << 10, 70 << 10, 15 << 20, 10, 40 << 10, 3 << 20, 1}
	for i, n := range sizes {
		if err := c.Send(frameOf(t, uint64(i+1), 1, bytes.Repeat([]byte{byte(i + 1)}, n))); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "acknowledgement of all", func() bool { return acked.Load() == uint64(len(sizes)) })
	for i, h := range got {
		if h.seqno != uint64(i+1)*1000 || string(h.key) != h.copied || len(h.key) != sizes[i] {
			t.Fatalf("batch %d: seqno %d, key of %d bytes, changed while held: %v", i, h.seqno, len(h.key),
				string(h.key) != h.copied)
		}
		h.release()
	}
}

func TestRefusals(t *testing.T) {
	var closed atomic.Value
	f := serve(t, transport.ServerConfig{}, func(_ context.Context, h keyversion.Hello) (transport.Sink, error) {
		if h.Bucket == "other" {
			return nil, fmt.Errorf("no bucket %q here", h.Bucket)
		}
		return sinkFuncs{
			receive: func(_ context.Context, b *keyversion.Batch, release func()) error {
				if b.Number == 3 {
					return errors.New("stale incarnation")
				}
				release()
				return nil
			},
			closed: func(err error) { closed.Store(err) },
		}, nil
	})
	h := hello()
	h.Bucket = "other"
	if _, err := transport.Dial(t.Context(), f.addr, h, transport.Options{}); !errors.Is(err, transport.ErrRefused) ||
		!strings.Contains(err.Error(), `no bucket "other" here`) {
		t.Fatalf("hello: %v", err)
	}
	var acked atomic.Uint64
	c := dial(t, f.addr, transport.Options{OnAck: func(n uint64) { acked.Store(n) }})
	for n := uint64(1); n <= 3; n++ {
		if err := c.Send(frameOf(t, n, 1, nil)); err != nil {
			t.Fatal(err)
		}
	}
	<-c.Done()
	if err := c.Err(); !errors.Is(err, transport.ErrRefused) || !strings.Contains(err.Error(), "stale incarnation") {
		t.Fatalf("batch: %v", err)
	}
	if acked.Load() != 2 {
		t.Fatalf("acknowledged %d, want 2", acked.Load())
	}
	if err := c.Send(frameOf(t, 4, 1, nil)); !errors.Is(err, transport.ErrRefused) {
		t.Fatalf("send after the end: %v", err)
	}
	await(t, "Closed", func() bool { return closed.Load() != nil })
}

// TestDamageEndsTheConnection checks that damaged data ends only the connection that it came on, with a line in the
// log.
func TestDamageEndsTheConnection(t *testing.T) {
	flip := func(f []byte) []byte { f[len(f)-1] ^= 1; return f }
	for name, frames := range map[string]func(t *testing.T) [][]byte{
		"flipped bit":     func(t *testing.T) [][]byte { return [][]byte{flip(frameOf(t, 1, 1, []byte("key")))} },
		"no frame":        func(*testing.T) [][]byte { return [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")} },
		"empty":           func(*testing.T) [][]byte { return [][]byte{{}} },
		"number missing":  func(t *testing.T) [][]byte { return [][]byte{frameOf(t, 1, 1, nil), frameOf(t, 3, 1, nil)} },
		"number repeated": func(t *testing.T) [][]byte { return [][]byte{frameOf(t, 1, 1, nil), frameOf(t, 1, 1, nil)} },
	} {
		t.Run(name, func(t *testing.T) {
			var damaged atomic.Value
			f := serve(t, transport.ServerConfig{}, acceptAll(sinkFuncs{closed: func(err error) { damaged.Store(err) }}))
			other := dialAs(t, f.addr, another(), transport.Options{})
			c := dial(t, f.addr, transport.Options{})
			for _, frame := range frames(t) {
				if err := c.Send(frame); err != nil {
					break
				}
			}
			<-c.Done()
			await(t, "Closed", func() bool { return damaged.Load() != nil })
			if err := damaged.Load().(error); !errors.Is(err, keyversion.ErrCorrupt) {
				t.Fatalf("closed with %v", err)
			}
			await(t, "log line", func() bool { return strings.Contains(f.log.String(), "damaged frame") })
			if err := other.Send(frameOf(t, 1, 1, nil)); err != nil {
				t.Fatalf("another connection ended as well: %v", err)
			}
		})
	}
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// TestForeignTrafficOnThePort checks that any other traffic on the port ends its own connection only, and leaves a
// line of each level in the log within a minute, however often it comes.
func TestForeignTrafficOnThePort(t *testing.T) {
	at := time.Now()
	now := func() time.Time { return at }
	for _, words := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		strings.Repeat("\xff", 1<<16),
		preface + "\xff\xff\xff\x00\x00\x00\x00\x00\x01garbage",             // a frame that announces 16 MiB
		preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x09zz", // settings, then garbage
	} {
		f := serve(t, transport.ServerConfig{Now: now}, acceptAll(sinkFuncs{}))
		const times = 6
		for i := range times {
			raw, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := raw.Write([]byte(words)); err != nil {
				t.Logf("write: %v", err)
			}
			raw.(*net.TCPConn).CloseWrite()
			raw.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, raw); err != nil && errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("still open: %v", err)
			}
			raw.Close()
			if addr := raw.LocalAddr().String(); i == 0 {
				await(t, "log line for "+addr, func() bool {
					log := f.log.String()
					return strings.Contains(log, "never sent a valid hello") && strings.Contains(log, addr)
				})
			}
		}
		await(t, "all of them gone", func() bool { return f.srv.Connections() == 0 })
		c := dial(t, f.addr, transport.Options{})
		if err := c.Send(frameOf(t, 1, 1, nil)); err != nil {
			t.Fatal(err)
		}
		c.Close()
		await(t, "all connections gone", func() bool { return f.srv.Connections() == 0 })
		if n := strings.Count(f.log.String(), "never sent a valid hello"); n > 2 {
			t.Errorf("%d connections of a host cause %d lines within a minute: %s", times, n, f.log.String())
		}
	}
}

// TestNoWarningForPeersThatStop checks that a router's connection that ends before its hello, because its projector or
// the server stops, is not reported as that of a foreign program.
func TestNoWarningForPeersThatStop(t *testing.T) {
	for name, stop := range map[string]func(*fixture, net.Conn){
		"the router": func(_ *fixture, c net.Conn) { c.Close() },
		"the server": func(f *fixture, _ net.Conn) { f.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, transport.ServerConfig{}, acceptAll(sinkFuncs{}))
			raw, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			if _, err := raw.Write([]byte(preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
				t.Fatal(err)
			}
			raw.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.ReadFull(raw, make([]byte, 9)); err != nil { // the server's settings: it has read ours
				t.Fatal(err)
			}
			stop(f, raw)
			await(t, "the line of its end", func() bool {
				return strings.Contains(f.log.String(), "never sent a valid hello")
			})
			if log := f.log.String(); strings.Contains(log, "[WARN]") {
				t.Error(log)
			}
		})
	}
}

func TestTooManyConnections(t *testing.T) {
	f := serve(t, transport.ServerConfig{MaxConnections: 2}, acceptAll(sinkFuncs{}))
	a := dial(t, f.addr, transport.Options{})
	dialAs(t, f.addr, another(), transport.Options{})
	if _, err := transport.Dial(t.Context(), f.addr, hello(), transport.Options{}); err == nil {
		t.Fatal("a third connection was accepted")
	}
	a.Close()
	await(t, "room", func() bool { return f.srv.Connections() == 1 })
	dial(t, f.addr, transport.Options{})
	f.srv.Allow(3)
	third := another()
	third.Connection, third.Connections = 1, 2
	dialAs(t, f.addr, third, transport.Options{})
}

// TestBackPressure checks that a sink that does not release its batches stops its own sender, long before all data is
// sent, and no other sender. Heartbeats keep the connection alive meanwhile.
func TestBackPressure(t *testing.T) {
	gate := make(chan struct{})
	var slow, fast atomic.Int64
	f := serve(t, transport.ServerConfig{}, func(_ context.Context, h keyversion.Hello) (transport.Sink, error) {
		return sinkFuncs{receive: func(ctx context.Context, _ *keyversion.Batch, release func()) error {
			n := &fast
			if h.Topic == "/slow" {
				n = &slow
				select {
				case <-gate:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			n.Add(1)
			release()
			return nil
		}}, nil
	})
	h := hello()
	h.Topic = "/slow"
	c, err := transport.Dial(t.Context(), f.addr, h, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const batches = 1000
	var sent atomic.Int64
	finished := make(chan error, 1)
	payload := make([]byte, 32<<10)
	go func() {
		for n := uint64(1); n <= batches; n++ {
			if err := c.Send(frameOf(t, n, 1, payload)); err != nil {
				finished <- err
				return
			}
			sent.Add(1)
		}
		finished <- nil
	}()
	other := dial(t, f.addr, transport.Options{})
	start := time.Now()
	for n := uint64(1); time.Since(start) < transport.SilenceLimit+time.Second/2; n++ {
		if err := other.Send(frameOf(t, n, 1, nil)); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
	if n := sent.Load(); n > batches/2 {
		t.Fatalf("%d of %d batches went out although none was taken", n, batches)
	}
	if fast.Load() == 0 || slow.Load() != 0 {
		t.Fatalf("fast %d, slow %d", fast.Load(), slow.Load())
	}
	close(gate)
	if err := <-finished; err != nil {
		t.Fatalf("the held connection ended: %v", err)
	}
	await(t, "the rest", func() bool { return slow.Load() == batches })
}

// freezer is a proxy that, when frozen, passes nothing on but does not close.
type freezer struct {
	lis    net.Listener
	frozen chan struct{}
	wg     sync.WaitGroup
}

func newFreezer(t *testing.T, target string) *freezer {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{lis: lis, frozen: make(chan struct{})}
	f.wg.Go(func() {
		in, err := lis.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		out, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		defer out.Close()
		pass := func(dst, src net.Conn) {
			buf := make([]byte, 4096)
			for {
				n, err := src.Read(buf)
				select {
				case <-f.frozen:
					return
				default:
				}
				if err != nil {
					return
				}
				dst.Write(buf[:n])
			}
		}
		var both sync.WaitGroup
		both.Go(func() { pass(out, in) })
		both.Go(func() { pass(in, out) })
		both.Wait()
		<-t.Context().Done()
	})
	t.Cleanup(func() { lis.Close(); f.wg.Wait() })
	return f
}

// TestFrozenPeerIsNoticed checks that both sides notice a peer that neither answers nor closes.
func TestFrozenPeerIsNoticed(t *testing.T) {
	t.Parallel()
	closed := make(chan error, 1)
	f := serve(t, transport.ServerConfig{}, acceptAll(sinkFuncs{closed: func(err error) { closed <- err }}))
	p := newFreezer(t, f.addr)
	c := dial(t, p.lis.Addr().String(), transport.Options{})
	close(p.frozen)
	start := time.Now()
	sending := make(chan error, 1)
	go func() { // until all buffers are full, and longer
		for n := uint64(1); ; n++ {
			if err := c.Send(frameOf(t, n, 1, make([]byte, 32<<10))); err != nil {
				sending <- err
				return
			}
		}
	}()
	if err := <-sending; !errors.Is(err, transport.ErrSilent) {
		t.Errorf("sender: %v", err)
	}
	<-c.Done()
	if err := c.Err(); !errors.Is(err, transport.ErrSilent) {
		t.Errorf("client: %v", err)
	}
	<-closed
	if d := time.Since(start); d > patience {
		t.Errorf("noticed after %s", d)
	}
}

// TestDialGivesUp checks that Dial returns when its context ends if the other side accepts and sends nothing, and at
// once if nothing listens.
func TestDialGivesUp(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := transport.Dial(ctx, lis.Addr().String(), hello(), transport.Options{}); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Fatalf("mute: %v", err)
	}
	lis.Close()
	start := time.Now()
	if _, err := transport.Dial(t.Context(), lis.Addr().String(), hello(), transport.Options{}); err == nil ||
		time.Since(start) > patience {
		t.Fatalf("nothing listens: %v after %s", err, time.Since(start))
	}
}

// TestAddressWithAZone checks that an address with a zone is dialed as it is, on machines with and without IPv6, and
// not parsed as a URL.
func TestAddressWithAZone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := transport.Dial(ctx, "[::1%nowhere]:1", hello(), transport.Options{})
	if err == nil || !strings.Contains(err.Error(), "dial tcp [::1%nowhere]:1") {
		t.Fatalf("%v, want that it was dialled", err)
	}
}

// TestTheWayToDial checks that the connection is the one that the caller's function opens.
func TestTheWayToDial(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	asked := ""
	_, err := transport.Dial(ctx, "i1.example.org:1", hello(), transport.Options{
		Dial: func(_ context.Context, network, addr string) (net.Conn, error) {
			asked = network + " " + addr
			return nil, errors.New("no way")
		}})
	if err == nil || !strings.Contains(err.Error(), "no way") || asked != "tcp i1.example.org:1" {
		t.Fatalf("%v, asked for %q", err, asked)
	}
}

// TestStopEndsBusySinks checks that Stop ends sinks that are busy, and closes every one.
func TestStopEndsBusySinks(t *testing.T) {
	busy := make(chan struct{}, 1)
	closed := make(chan error, 1)
	f := serve(t, transport.ServerConfig{}, acceptAll(sinkFuncs{
		receive: func(ctx context.Context, _ *keyversion.Batch, _ func()) error {
			busy <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		},
		closed: func(err error) { closed <- err },
	}))
	c := dial(t, f.addr, transport.Options{})
	if err := c.Send(frameOf(t, 1, 1, nil)); err != nil {
		t.Fatal(err)
	}
	<-busy
	f.stop()
	if err := <-closed; err == nil {
		t.Fatal("closed without a reason")
	}
	<-c.Done()
}

// TestNewerConnectionEndsTheOlder checks that a router that connects again ends its older connection: that
// connection's sink is closed, with what it still had, before the new one is accepted.
func TestNewerConnectionEndsTheOlder(t *testing.T) {
	var mu sync.Mutex
	var story []string
	record := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		story = append(story, what)
	}
	connections := 0
	f := serve(t, transport.ServerConfig{}, func(context.Context, keyversion.Hello) (transport.Sink, error) {
		connections++
		n := connections
		record(fmt.Sprint("accept ", n))
		return sinkFuncs{
			receive: func(ctx context.Context, _ *keyversion.Batch, release func()) error {
				if n == 1 {
					<-ctx.Done() // busy until it is cancelled
					return ctx.Err()
				}
				record(fmt.Sprint("batch ", n))
				release()
				return nil
			},
			closed: func(error) { record(fmt.Sprint("closed ", n)) },
		}, nil
	})
	old := dial(t, f.addr, transport.Options{})
	for n := uint64(1); n <= 5; n++ {
		if err := old.Send(frameOf(t, n, 1, nil)); err != nil {
			t.Fatal(err)
		}
	}
	var acked atomic.Uint64
	c := dial(t, f.addr, transport.Options{OnAck: func(n uint64) { acked.Store(n) }})
	if err := c.Send(frameOf(t, 1, 1, nil)); err != nil {
		t.Fatal(err)
	}
	await(t, "acknowledgement", func() bool { return acked.Load() == 1 })
	<-old.Done()
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(story, ", "); got != "accept 1, closed 1, accept 2, batch 2" {
		t.Fatal(got)
	}
}
