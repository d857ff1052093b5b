package feed_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/projector/feed/gocb"
	"tidemark/timestamp"
)

// Both implementations of Feed against a scripted node.

// implementations lists the implementations that every scenario runs with.
var implementations = []struct {
	name string
	dial feed.Dialer
}{{"native", feed.DialFeed}, {"gocbcore", gocb.Dial}}

// either runs a test with each implementation.
func either(t *testing.T, run func(t *testing.T, dial feed.Dialer)) {
	t.Helper()
	for _, i := range implementations {
		t.Run(i.name, func(t *testing.T) { run(t, i.dial) })
	}
}

func dialWith(t testing.TB, dial feed.Dialer, conf feed.Config) feed.Feed {
	t.Helper()
	if conf.RequestTimeout == 0 {
		conf.RequestTimeout = time.Minute // on a busy machine the handshake may take as long as requests usually may
	}
	var c feed.Feed
	err := patiently(t, func() (err error) {
		c, err = dial(within(t, time.Minute), conf)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// until collects events, releasing them, until one satisfies the condition.
func until(t testing.TB, c feed.Feed, what string, last func(e *feed.Event) bool) (seen []string) {
	t.Helper()
	ctx := within(t, 60*time.Second)
	for {
		b, err := c.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %s: %v, after %v", what, err, seen)
		}
		over := false
		for i := range b.Events {
			seen = append(seen, properties(&b.Events[i]))
			over = over || last(&b.Events[i])
		}
		b.Release()
		if over {
			return seen
		}
	}
}

func isEnd(e *feed.Event) bool { return e.Kind == feed.StreamEnd }

// properties returns all properties of an event that consumers may rely on.
func properties(e *feed.Event) string {
	value := string(e.Value)
	if len(value) > 40 {
		value = fmt.Sprintf("%d bytes", len(value))
	}
	return fmt.Sprintf("%v vb=%d seqno=%d rev=%d cas=%d flags=%d exp=%d col=%d window=%d-%d/%d end=%d dt=%d bad=%t "+
		"key=%q value=%q xattrs=%q", e.Kind, e.VBucket, e.Seqno, e.RevSeqno,
		e.CAS, e.Flags, e.Expiry, e.Collection, e.SnapStart, e.SnapEnd, e.SnapFlags, e.EndReason, e.Datatype, e.Undecodable,
		e.Key, value, e.Xattrs)
}

// message returns a document's frame with all fields given.
func message(op mcbp.Opcode, vb uint16, opaque uint32, extras []byte, datatype mcbp.Datatype, cas uint64,
	collection uint32, key, value []byte) mcbp.Frame {
	h := request(op, vb, opaque)
	h.Datatype, h.CAS = datatype, cas
	return mcbp.Frame{Header: h, Extras: extras, Key: mcbp.AppendCollectionKey(nil, collection, key), Value: value}
}

// everything is a stream with everything that an engine may send.
func everything(vb uint16, opaque uint32) []mcbp.Frame {
	json, binary := []byte(`{"a":"`+strings.Repeat("x", 2000)+`"}`), []byte{0, 1, 0xff, 0xfe, 0, 0x80}
	withXattrs := mcbp.AppendXattrs(nil, []byte{0, 0, 0, 9, '_', 's', 'y', 'n', 'c', 0, '{', '}', 0})
	m := func(seqno uint64) []byte {
		return mcbp.Mutation{Seqno: seqno, RevSeqno: 3, Flags: 7, Expiry: 1_900_000_000}.AppendExtras(nil)
	}
	v1 := mcbp.Deletion{Seqno: 6, RevSeqno: 4}.AppendExtras(nil)
	v2 := mcbp.SnapshotMarker{Start: 20, End: 30, Flags: mcbp.SnapshotMemory, V2: true, MaxVisible: 30}
	return []mcbp.Frame{
		{Header: request(mcbp.OpDCPSnapshotMarker, vb, opaque), Extras: mcbp.SnapshotMarker{Start: 0, End: 20,
			Flags: mcbp.SnapshotDisk}.AppendExtras(nil)},
		message(mcbp.OpDCPMutation, vb, opaque, m(1), mcbp.DatatypeJSON, 11, 0, []byte("plain"), json),
		message(mcbp.OpDCPMutation, vb, opaque, m(2), mcbp.DatatypeJSON|mcbp.DatatypeSnappy, 12, 0, []byte("snappy"),
			snappy.Encode(nil, json)),
		message(mcbp.OpDCPMutation, vb, opaque, m(3), mcbp.DatatypeSnappy, 13, 0, []byte("broken snappy"),
			[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 1}),
		message(mcbp.OpDCPMutation, vb, opaque, m(4), mcbp.DatatypeXattr|mcbp.DatatypeSnappy, 14, 0, []byte("xattrs"),
			snappy.Encode(nil, append(slices.Clone(withXattrs), json...))),
		message(mcbp.OpDCPMutation, vb, opaque, m(5), 0, 15, 0, []byte(strings.Repeat("k", 250)), binary),
		message(mcbp.OpDCPDeletion, vb, opaque, v1, 0, 16, 0, []byte("gone"), nil),
		message(mcbp.OpDCPDeletion, vb, opaque, mcbp.Deletion{Seqno: 7, RevSeqno: 5, DeleteTime: 9,
			WithTime: true}.AppendExtras(nil), mcbp.DatatypeXattr, 17, 0, []byte("gone with a body"),
			append(slices.Clone(withXattrs), "left"...)),
		message(mcbp.OpDCPMutation, vb, opaque, m(8), mcbp.DatatypeXattr, 18, 0, []byte("broken xattrs"),
			[]byte{0xff, 0, 0, 0, 1}),
		message(mcbp.OpDCPMutation, vb, opaque, m(9), 0, 19, 0x1234, []byte("of another collection"), []byte("1")),
		message(mcbp.OpDCPMutation, vb, opaque, m(10), 0, 20, 0, []byte("empty"), nil),
		{Header: request(mcbp.OpDCPSeqnoAdvanced, vb, opaque), Extras: mcbp.AppendSeqnoAdvanced(nil, 20)},
		{Header: request(mcbp.OpDCPSnapshotMarker, vb, opaque), Extras: v2.AppendExtras(nil), Value: v2.AppendValue(nil)},
		message(mcbp.OpDCPMutation, vb, opaque, m(25), mcbp.DatatypeJSON, 21, 0, []byte("plain"), []byte(`{}`)),
		streamEnd(vb, opaque, mcbp.EndTooSlow),
	}
}

// Both feeds produce the same from everything that an engine may send, and what the table states where it is not
// obvious.
func TestSameEvents(t *testing.T) {
	described := map[string][]string{}
	either(t, func(t *testing.T, dial feed.Dialer) {
		n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			if f.Op != mcbp.OpDCPStreamReq {
				return false
			}
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil,
				timestamp.FailoverLog{{VBUUID: 77, Seqno: 3}})})
			for _, m := range everything(f.VBucket(), f.Opaque) {
				p.Send(m)
			}
			return true
		})
		conf := config(n)
		conf.Xattrs = true
		c := dialWith(t, dial, conf)
		if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 2, End: mcbp.EndOfTime}); err != nil {
			t.Fatal(err)
		}
		described[t.Name()] = until(t, c, "the end", isEnd)
		if n.flags&mcbp.OpenXattrs == 0 {
			t.Error("xattrs were not requested")
		}
	})
	a, b := described["TestSameEvents/native"], described["TestSameEvents/gocbcore"]
	if len(a) != 16 || len(a) != len(b) {
		t.Fatalf("%d and %d events", len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("native:   %s\ngocbcore: %s", a[i], b[i])
		}
	}
	for i, want := range map[int]string{
		3:  `key="snappy" value="2008 bytes"`,
		4:  `bad=true key="broken snappy" value=""`,
		5:  `key="xattrs" value="2008 bytes" xattrs="\x00\x00\x00\t_sync\x00{}\x00"`,
		8:  `key="gone with a body" value="left" xattrs=`,
		9:  `bad=true key="broken xattrs" value=""`,
		10: `col=4660`,
		15: `end=4`,
	} {
		if !strings.Contains(a[i], want) {
			t.Errorf("event %d is %s, want %s in it", i, a[i], want)
		}
	}
}

// Every reason of an end is passed on, and the connection stays; a stream closed by the consumer ends with one end
// whether or not the node sends it.
func TestEveryEnd(t *testing.T) {
	either(t, func(t *testing.T, dial feed.Dialer) {
		for _, silent := range []bool{false, true} {
			var mu sync.Mutex
			opened := map[uint16]uint32{}
			n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
				mu.Lock()
				defer mu.Unlock()
				switch f.Op {
				case mcbp.OpDCPStreamReq:
					opened[f.VBucket()] = f.Opaque
				case mcbp.OpDCPCloseStream:
					if opened[f.VBucket()] == 0 {
						p.Reply(f, mcbp.StatusKeyNotFound, mcbp.Frame{})
						return true
					}
					p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
					if !silent {
						p.Send(streamEnd(f.VBucket(), opened[f.VBucket()], mcbp.EndClosed))
					}
					delete(opened, f.VBucket())
					return true
				}
				return false
			})
			n.refuse[mcbp.ControlEndOnClose] = silent // like an engine that does not know it
			c := dialWith(t, dial, config(n))
			for reason := mcbp.EndOK; reason <= mcbp.EndPrivilegeLost; reason++ {
				if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
					t.Fatal(reason, err)
				}
				mu.Lock()
				opaque := opened[1]
				mu.Unlock()
				n.to().Send(streamEnd(1, opaque, reason))
				if seen := until(t, c, "the end", isEnd); !strings.Contains(seen[len(seen)-1], fmt.Sprintf("end=%d", reason)) {
					t.Errorf("reason %d gives %v", reason, seen)
				}
			}
			if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
				t.Fatal(err)
			}
			if err := c.CloseStream(within(t, time.Minute), 1); err != nil {
				t.Fatal(err)
			}
			if seen := until(t, c, "our end", isEnd); len(seen) != 2 || !strings.Contains(seen[1], "end=1") {
				t.Errorf("closed by us, silent %t: %v", silent, seen)
			}
			if err := c.CloseStream(within(t, time.Minute), 1); !errors.Is(err, feed.ErrNoStream) {
				t.Errorf("closing it twice: %v", err)
			}
		}
	})
}

// A node that warms up reports that, and requests are repeated until it is ready; refusals keep their meaning.
func TestRefusedStreams(t *testing.T) {
	either(t, func(t *testing.T, dial feed.Dialer) {
		var mu sync.Mutex
		answers := map[uint16][]mcbp.Frame{}
		n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			mu.Lock()
			defer mu.Unlock()
			if list := answers[f.VBucket()]; f.Op == mcbp.OpDCPStreamReq && len(list) > 0 {
				answers[f.VBucket()] = list[1:]
				p.Reply(f, mcbp.Status(list[0].Opaque), list[0])
				return true
			}
			return false
		})
		refuse := func(vb uint16, times int, status mcbp.Status, value []byte) {
			mu.Lock()
			defer mu.Unlock()
			answers[vb] = slices.Repeat([]mcbp.Frame{{Header: mcbp.Header{Opaque: uint32(status)}, Value: value}}, times)
		}
		conf := config(n)
		conf.RequestTimeout = brief
		c := dialWith(t, dial, conf)
		open := func(vb uint16) error {
			_, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: vb, Start: 9, SnapStart: 9, SnapEnd: 9,
				VBUUID: 5, End: mcbp.EndOfTime})
			return err
		}
		refuse(0, 3, mcbp.StatusTemporary, nil)
		for range 3 {
			if err := open(0); !errors.Is(err, feed.ErrTemporary) {
				t.Fatalf("warmup: %v", err)
			}
		}
		if err := open(0); err != nil {
			t.Fatalf("after the warmup: %v", err)
		}
		refuse(1, 1, mcbp.StatusRollback, mcbp.AppendRollback(nil, 4))
		var rollback *feed.RollbackError
		if err := open(1); !errors.As(err, &rollback) || rollback.Seqno != 4 || rollback.VBucket != 1 {
			t.Errorf("rollback: %v", err)
		}
		refuse(1, 1, mcbp.StatusRange, nil)
		if err := open(1); !errors.Is(err, feed.ErrRange) {
			t.Errorf("range: %v", err)
		}
		refuse(1, 1, mcbp.StatusNoMemory, nil)
		if err := open(1); !errors.Is(err, feed.ErrTemporary) {
			t.Errorf("no memory: %v", err)
		}
		refuse(1, 100, mcbp.StatusNotMyVBucket, n.ConfigJSON())
		if err := open(1); !errors.Is(err, feed.ErrNotMyVBucket) {
			t.Errorf("not my vbucket: %v", err)
		}
		// An earlier request may still be repeated by gocbcore: for vbucket 1 it would take the next answer.
		refuse(2, 1, mcbp.StatusKeyExists, nil)
		if err := open(2); !errors.Is(err, feed.ErrStreamExists) {
			t.Errorf("stream exists: %v", err)
		}
		if err := open(2); err != nil {
			t.Errorf("in the end: %v", err)
		}
	})
}

// Only essential controls that a node does not know end the connection; the error names the control.
func TestUnknownControls(t *testing.T) {
	either(t, func(t *testing.T, dial feed.Dialer) {
		for key, essential := range map[string]bool{mcbp.ControlEndOnClose: false, mcbp.ControlEnableNoop: true} {
			n := startNode(t, nil)
			n.refuse[key] = true
			conf := config(n)
			conf.RequestTimeout = brief
			c, err := dial(within(t, time.Minute), conf)
			if err == nil {
				_ = c.Close()
			}
			if essential != errors.Is(err, feed.ErrNotSupported) || !essential && err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
	})
}

// A node's cluster map determines the owner of a vbucket, even while it changes.
func TestMapChanges(t *testing.T) {
	t.Parallel()
	either(t, func(t *testing.T, dial feed.Dialer) {
		var mu sync.Mutex
		rev, owner := int64(1), 0
		n := startNode(t, nil)
		other := startNode(t, nil)
		n.Config = func(*kvclienttest.Server) []byte {
			mu.Lock()
			defer mu.Unlock()
			return kvclienttest.ClusterMap(rev, []*kvclienttest.Server{&n.Server, &other.Server},
				[][]int{{0}, {owner}, {1}, {0}})
		}
		other.Config = n.Config
		n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			mu.Lock()
			mine := f.VBucket() == 0 || f.VBucket() == 1 && owner == 0
			mu.Unlock()
			if f.Op == mcbp.OpDCPStreamReq && !mine {
				p.Reply(f, mcbp.StatusNotMyVBucket, mcbp.Frame{Value: n.ConfigJSON()})
				return true
			}
			return false
		}
		conf := config(n)
		conf.RequestTimeout = brief
		c := dialWith(t, dial, conf)
		open := func(vb uint16) error {
			_, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: vb, End: mcbp.EndOfTime})
			return err
		}
		if err := open(2); !errors.Is(err, feed.ErrNotMyVBucket) {
			t.Fatalf("another node's vbucket: %v", err)
		}
		if err := open(1); err != nil {
			t.Fatal(err)
		}
		until(t, c, "the begin", func(e *feed.Event) bool { return e.Kind == feed.StreamBegin })
		if err := c.CloseStream(within(t, time.Minute), 1); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		rev, owner = 2, 1
		mu.Unlock()
		err := open(1)
		var se *kvclient.StatusError
		if !errors.Is(err, feed.ErrNotMyVBucket) {
			t.Fatalf("a vbucket that has moved: %v", err)
		}
		if errors.As(err, &se) && se.Config != nil && se.Config.Rev != 2 {
			t.Errorf("it carries map %d", se.Config.Rev)
		}
		eventually(t, "the other node keeps no stream", func() bool {
			return other.seen(mcbp.OpDCPStreamReq) <= other.seen(mcbp.OpDCPCloseStream)
		})
		mu.Lock()
		rev, owner = 3, 0
		mu.Unlock()
		eventually(t, "it is back", func() bool { return open(1) == nil })
	})
}

// If gocbcore permanently keeps another map than its node, its connection ends, so that there will be another.
func TestPermanentlyDifferentMapEndsTheConnection(t *testing.T) {
	t.Parallel()
	var rev atomic.Int64
	rev.Store(5)
	n := startNode(t, nil)
	n.Config = func(*kvclienttest.Server) []byte {
		return kvclienttest.ClusterMap(rev.Load(), []*kvclienttest.Server{&n.Server}, [][]int{{0}, {0}})
	}
	conf := config(n)
	conf.NoopInterval, conf.DeadAfter = time.Minute, time.Second
	c := dialWith(t, gocb.Dial, conf)
	open := func(vb uint16) error {
		_, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: vb, End: mcbp.EndOfTime})
		return err
	}
	if err := open(0); err != nil {
		t.Fatal(err)
	}
	rev.Store(3) // gocbcore takes none that is older than its own
	refused := false
	eventually(t, "the connection ends", func() bool {
		err := open(1) // may work while the previous map is young
		refused = refused || errors.Is(err, feed.ErrTemporary)
		return errors.Is(err, feed.ErrClosed) && strings.Contains(err.Error(), "kept map 5")
	})
	if !refused {
		t.Error("it ended before anything was refused")
	}
	<-c.Done()
}

// When a node dies, pending requests and the feed end; queued events are still available.
func TestNodeGone(t *testing.T) {
	either(t, func(t *testing.T, dial feed.Dialer) {
		n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool { return f.Op == mcbp.OpDCPFailoverLog })
		c := dialWith(t, dial, config(n))
		if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() { _, err := c.FailoverLog(context.Background(), 1); failed <- err }()
		eventually(t, "it was queried", func() bool { return n.seen(mcbp.OpDCPFailoverLog) == 1 })
		n.Stop()
		if err := <-failed; !errors.Is(err, feed.ErrClosed) {
			t.Errorf("what waited got %v", err)
		}
		<-c.Done()
		b, err := c.Next(within(t, time.Minute))
		if err != nil || b.Events[0].Kind != feed.StreamBegin {
			t.Fatalf("queued events are lost: %v", err)
		}
		b.Release()
		if _, err := c.Next(within(t, time.Minute)); !errors.Is(err, feed.ErrClosed) {
			t.Errorf("then %v", err)
		}
	})
}
