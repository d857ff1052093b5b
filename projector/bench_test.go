package projector

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/kv/mcbp"
	"tidemark/partition"
	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/projector/router"
	"tidemark/timestamp"
	"tidemark/wire"
)

// sinkConn acknowledges at once and discards everything: a peer without cost.
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

// benchFields are the indexed fields, from the beginning of the document to its end, one of them nested.
var benchFields = []string{"`name`", "`iso_country`", "`elevation_ft`", "`location`.`municipality`", "`updated`"}

// benchDocument is a document of 1 KiB with members of all kinds around the indexed ones.
func benchDocument(i int) []byte {
	doc := fmt.Sprintf(`{"kind":"airport","ident":"US-%05d","name":"Springfield Field %d","iso_country":"US","elevation_ft":%d,`+
		`"scheduled_service":true,"keywords":["one","two","three"],"location":{"lat":40.07080078125,"lon":-74.93360137939453,`+
		`"region":"US-PA","municipality":"Bensalem"},"runways":[{"length_ft":3100,"surface":"asphalt","lighted":true},`+
		`{"length_ft":2800,"surface":"turf","lighted":false}],"description":"%%s","updated":"2026-03-0%d"}`, i, i%1000, i%9000, i%9+1)
	return fmt.Appendf(nil, doc, strings.Repeat("lorem ipsum ", 86)[:1024-len(doc)+2])
}

// benchPump returns a pump with one begun stream: documents are evaluated for the given number of indexes, and routed
// to three nodes without cost. keyed: each index is partitioned by key instead of by document id.
func benchPump(t testing.TB, indexes int, keyed bool) (*pump, *stream) {
	t.Helper()
	r, err := router.New(router.Config{ClusterID: func() string { return "c1" }, Projector: "p1", BootID: "b1",
		Logger: hclog.NewNullLogger(),
		Dial: func(_ context.Context, _ string, _ keyversion.Hello, onAck func(uint64)) (router.Conn, error) {
			return &sinkConn{done: make(chan struct{}), onAck: onAck}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	topic, err := r.Open(router.TopicConfig{Path: "/maintenance", Class: keyversion.ClassMaintenance, Bucket: testBucket,
		BucketUUID: testUUID, VBuckets: 1})
	if err != nil {
		t.Fatal(err)
	}
	d := &wire.Definitions{Revision: 1}
	for i := range indexes {
		id := index.ID(1<<33 + i)
		d.Indexes = append(d.Indexes, index.Definition{ID: id, Bucket: testBucket, State: index.Maintenance,
			Keys: []index.KeyExpr{{Expr: benchFields[i%len(benchFields)]}}})
		p := partition.Topology{Index: id, Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 8}}
		if keyed {
			p.Layout = partition.Layout{Scheme: partition.HashKey, Partitions: 8, Components: []uint16{0}, Desc: []bool{false}}
		}
		for s := range index.SliceID(8) {
			p.Copies = append(p.Copies, partition.Copy{ID: index.CopyID(8*i+int(s)) + 1, Slice: s, Node: index.NodeID(s%3) + 1,
				State: partition.Allocated})
		}
		d.Topologies = append(d.Topologies, p)
	}
	pl, bad, err := newAssessor().plan(nil, d, testBucket, keyversion.ClassMaintenance,
		map[index.NodeID]string{1: "a:1", 2: "b:1", 3: "c:1"}, nil)
	if err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	c := newCounters(prometheus.NewRegistry())
	p := &pump{topic: topic, counters: &c, received: c.received[keyversion.ClassMaintenance]}
	s := newStream(core.NewStream(index.Incarnation{Epoch: 1, Term: 1, Counter: 1}, &wire.StreamStart{}, core.At{}))
	begin := &feed.Event{Kind: feed.StreamBegin, Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 77}})}
	if err := p.begin(context.Background(), s, begin, pl); err != nil {
		t.Fatal(err)
	}
	return p, s
}

// benchWindow is how many documents a KV snapshot has.
const benchWindow = 50

// benchEvents are the events of documents, without seqnos.
func benchEvents(n int) []feed.Event {
	events := make([]feed.Event, n)
	for i := range events {
		events[i] = feed.Event{Kind: feed.Mutation, Key: fmt.Appendf(nil, "airport::%016d", i), Value: benchDocument(i)}
	}
	return events
}

// pumpOne passes the next document to the pump, preceded by a marker at the beginning of a window.
func pumpOne(ctx context.Context, p *pump, s *stream, e *feed.Event, seqno uint64) error {
	if (seqno-1)%benchWindow == 0 {
		if _, err := p.take(ctx, s, &feed.Event{Kind: feed.SnapshotMarker, SnapStart: seqno - 1, SnapEnd: seqno - 1 +
			benchWindow}); err != nil {
			return err
		}
	}
	e.Seqno = seqno
	_, err := p.take(ctx, s, e)
	return err
}

func benchCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkProjection measures the cost of a document of 1 KiB from the DCP event to the connection: tracking,
// evaluation, and the router with its batches, including all goroutines.
func BenchmarkProjection(b *testing.B) {
	for _, c := range []struct {
		indexes int
		keyed   bool
	}{{1, false}, {5, false}, {20, false}, {1, true}, {5, true}, {20, true}} {
		indexes, name := c.indexes, fmt.Sprintf("indexes=%d", c.indexes)
		if c.keyed {
			name = "hash(key)/" + name
		}
		b.Run(name, func(b *testing.B) {
			p, s := benchPump(b, indexes, c.keyed)
			events := benchEvents(1024)
			b.ReportAllocs()
			b.SetBytes(int64(len(events[0].Value)))
			ctx, n, start := b.Context(), uint64(0), benchCPU()
			for b.Loop() {
				n++
				if err := pumpOne(ctx, p, s, &events[n%1024], n); err != nil {
					b.Fatal(err)
				}
			}
			used := float64(benchCPU()-start) / float64(n)
			b.ReportMetric(used, "cpu-ns/op")
			b.ReportMetric(used/float64(indexes), "cpu-ns/keyversion")
		})
	}
}
