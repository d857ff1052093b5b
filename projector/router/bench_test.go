package router_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/collate"
	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/internal/testing/raced"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/projector/router"
)

// sinkConn acknowledges at once and discards everything.
type sinkConn struct {
	done  chan struct{}
	onAck func(uint64)
}

func (c *sinkConn) Send(frame []byte) error {
	number := uint64(0)
	for i := 15; i >= 8; i-- { // the number in the frame's header
		number = number<<8 | uint64(frame[i])
	}
	c.onAck(number)
	return nil
}
func (c *sinkConn) Done() <-chan struct{} { return c.done }
func (c *sinkConn) Err() error            { return context.Canceled }
func (c *sinkConn) Close() error          { return nil }

func sinkDial(_ context.Context, _ string, _ keyversion.Hello, onAck func(uint64)) (router.Conn, error) {
	return &sinkConn{done: make(chan struct{}), onAck: onAck}, nil
}

// benchTopic returns a topic with the given number of indexes of 8 slices with one replica, spread over three nodes,
// and 64 begun vbuckets. byKey: partitioned by a hash of the first component.
func benchTopic(t testing.TB, indexes int, keyed bool) (*router.Topic, *router.Doc) {
	r := newRouter(t, router.Config{Dial: sinkDial})
	topic, err := r.Open(maintenance(64))
	if err != nil {
		t.Fatal(err)
	}
	var nextCopy index.CopyID
	var all []partition.Topology
	d := &router.Doc{VBUUID: 77}
	for i := range indexes {
		top := topology(index.ID(1<<33+i), 8, 1, []index.NodeID{1, 2, 3}, &nextCopy)
		if keyed {
			top = byKey(top, false)
		}
		all = append(all, top)
		key, err := collate.AppendComposite(nil, [][]byte{[]byte(`"US"`), []byte(`"Springfield Field"`)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Keys = append(d.Keys, [][]byte{key})
	}
	v := view(t, 1, all...)
	for vb := range uint16(64) {
		if err := topic.Begin(t.Context(), v, streamAt(vb, inc(1), 0)); err != nil {
			t.Fatal(err)
		}
	}
	return topic, d
}

// BenchmarkMutation measures the router's cost for one mutation: routing, queuing, and, in the lanes' goroutines,
// batches to a connection without cost.
func BenchmarkMutation(b *testing.B) {
	for _, c := range []struct {
		indexes int
		keyed   bool
	}{{1, false}, {5, false}, {20, false}, {1, true}, {5, true}, {20, true}} {
		name := fmt.Sprintf("indexes=%d", c.indexes)
		if c.keyed {
			name = "hash(key)/" + name
		}
		b.Run(name, func(b *testing.B) {
			topic, d := benchTopic(b, c.indexes, c.keyed)
			ids := make([][]byte, 1024)
			for i := range ids {
				ids[i] = fmt.Appendf(nil, "airport::%016d", i)
			}
			ctx := b.Context()
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() {
				n++
				d.Seqno, d.DocID, d.Window = n, ids[n%1024], windowOf(n)
				if err := topic.Mutation(ctx, uint16(n/16%64), d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// In the steady state queuing a mutation allocates nothing (except a batch now and then).
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		t.Run(fmt.Sprint("by key ", keyed), func(t *testing.T) { steadyState(t, keyed) })
	}
}

func steadyState(t *testing.T, keyed bool) {
	topic, d := benchTopic(t, 5, keyed)
	if keyed { // a document with entries in several slices
		for i := range 20 {
			key, err := collate.AppendComposite(nil, [][]byte{fmt.Appendf(nil, `"tag %d"`, i)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			d.Keys[0] = append(d.Keys[0], key)
		}
	}
	ctx := t.Context()
	n := uint64(0)
	ids := make([][]byte, 64)
	for i := range ids {
		ids[i] = fmt.Appendf(nil, "airport::%016d", i)
	}
	run := func() {
		for range 1000 {
			n++
			d.Seqno, d.DocID, d.Window = n, ids[n%64], windowOf(n)
			if err := topic.Mutation(ctx, uint16(n%64), d); err != nil {
				t.Fatal(err)
			}
		}
		// Queues that the connection cannot keep up with are not measured here.
		if err := topic.Drain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	run()
	var each []float64
	for range 20 {
		each = append(each, testing.AllocsPerRun(1, run)/1000)
	}
	if m := slices.Min(each); m > 0.1 && !raced.On {
		t.Fatalf("%.2f allocations per mutation", m)
	}
}

// BenchmarkToIndexer measures a mutation's whole way from the worker's call to a decoded batch at the receiver, over
// gRPC on loopback, with one index on one endpoint. cpu-ns/kv is the CPU time of this whole process.
func BenchmarkToIndexer(b *testing.B) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := transport.NewServer(transport.ServerConfig{Logger: hclog.NewNullLogger()},
		func(context.Context, keyversion.Hello) (transport.Sink, error) { return takeAll{}, nil })
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	defer func() {
		srv.Stop()
		if err := <-served; err != nil {
			b.Error(err)
		}
	}()
	r := newRouter(b, router.Config{})
	topic, err := r.Open(maintenance(64))
	if err != nil {
		b.Fatal(err)
	}
	v, err := router.NewView(router.ViewConfig{Endpoints: map[index.NodeID]string{1: lis.Addr().String()},
		Topologies: []partition.Topology{one(1<<33, 1)}})
	if err != nil {
		b.Fatal(err)
	}
	for vb := range uint16(64) {
		if err := topic.Begin(b.Context(), v, streamAt(vb, inc(1), 0)); err != nil {
			b.Fatal(err)
		}
	}
	d := &router.Doc{VBUUID: 77, DocID: []byte("airport::0000000000000001"),
		Keys: [][][]byte{{[]byte("US\x00Springfield Field\x00")}}}
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := range uint64(b.N) {
		d.Seqno, d.Window = n+1, windowOf(n+1)
		if err := topic.Mutation(b.Context(), uint16(n/16%64), d); err != nil {
			b.Fatal(err)
		}
	}
	if err := topic.Drain(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/kv")
	topic.Close()
}

// takeAll is a sink that discards everything.
type takeAll struct{}

func (takeAll) Receive(_ context.Context, _ *keyversion.Batch, release func()) error {
	release()
	return nil
}

func (takeAll) Closed(error) {}
