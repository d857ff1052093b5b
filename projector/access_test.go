package projector

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/wire"
)

// begins requests vbucket 3 at 0 until it begins.
func (w *world) begins(inc uint64) {
	w.t.Helper()
	w.eventually("vbucket 3 begins", func() bool {
		reply, err := w.client.Streams(context.Background(), w.url, w.request(inc, wire.StreamStart{VBucket: 3, VBUUID: 77}))
		return err == nil && len(reply.Buckets[0].Results) == 1 && reply.Buckets[0].Results[0].Outcome == wire.StartBegun
	})
}

// The password is changed at KV, and then in the file: connections that are lost in between are restored.
func TestPasswordChanged(t *testing.T) {
	e := newEngine(t)
	var password atomic.Value
	password.Store("secret")
	w := newWorldWith(t, e.Addr(), FeedNative, func(c *Config) {
		c.Password, c.ReadPassword = "", func() (string, error) { return password.Load().(string), nil }
	})
	w.define(1, 1)
	w.begins(1)
	password.Store("another") // it comes first here: changing a node's field while it is in use would be a race
	e.DropAll()
	w.expect(3, "1:STREAM_BEGIN@0", "1:STREAM_END@0")
	reply, err := w.client.Streams(context.Background(), w.url, w.request(2, wire.StreamStart{VBucket: 3, VBUUID: 77}))
	if err == nil && reply.Buckets[0].Code == "" || err != nil && !strings.Contains(err.Error(), "--kv-password-file") {
		t.Fatalf("with a password that KV does not know: %+v %v", reply, err)
	}
	password.Store("secret")
	w.begins(3)
}

// A permission is withdrawn and granted again: an engine may cache the permissions of a connection, so the next query
// uses a new one.
func TestRightWithdrawnAndGivenBack(t *testing.T) {
	e := newEngine(t)
	var mu sync.Mutex
	without := map[*kvclienttest.Peer]bool{} // connections for which the engine has cached the missing permission
	withdrawn := false
	e.Before = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op != mcbp.OpGetAllVBSeqnos {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if without[p] = without[p] || withdrawn; without[p] {
			p.Reply(f, mcbp.StatusNoAccess, mcbp.Frame{})
			return true
		}
		return false
	}
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	withdraw := func(now bool) {
		mu.Lock()
		defer mu.Unlock()
		withdrawn = now
	}
	withdraw(true)
	if reply, err := w.client.Streams(context.Background(), w.url,
		w.request(1, wire.StreamStart{VBucket: 3, VBUUID: 77})); err == nil {
		t.Fatalf("%+v", reply)
	}
	withdraw(false)
	w.begins(2)
	w.expect(3, "2:STREAM_BEGIN@0")
}

// One engine closes each connection as soon as it is open (its name is in use, or the engine is shutting down), and
// one is short of memory: requests are repeated, on the same connection if there still is one.
func TestConnectionsClosedAtOnce(t *testing.T) {
	e := newEngine(t)
	var hangups, short atomic.Int64
	var refused sync.Map // connections whose streams were
	hangups.Store(3)
	short.Store(4)
	e.Before = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		switch {
		case f.Op == mcbp.OpDCPOpen && hangups.Add(-1) >= 0:
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
			_ = p.Close()
			return true
		case f.Op == mcbp.OpDCPStreamReq && hangups.Load() < 0 && short.Add(-1) >= 0:
			refused.Store(p, true)
			p.Reply(f, [...]mcbp.Status{mcbp.StatusTemporary, mcbp.StatusNoMemory}[short.Load()%2], mcbp.Frame{})
			return true
		}
		return false
	}
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.begins(1)
	w.expect(3, "1:STREAM_BEGIN@0")
	if hangups.Load() >= 0 || short.Load() >= 0 {
		t.Fatalf("hang-ups left %d, refusals left %d", hangups.Load()+1, short.Load()+1)
	}
	refused.Range(func(p, _ any) bool {
		if p != e.stream(3).peer {
			t.Error("a refusal has cost the connection")
		}
		return true
	})
}

// lines is a log that may be read while it is being written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// Emptying the default collection is not supported, and is logged: once, and not for what precedes everything that
// was seen.
func TestDefaultCollectionEmptied(t *testing.T) {
	e, log := newEngine(t), &lines{}
	w := newWorldWith(t, e.Addr(), FeedNative, func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: log}) })
	w.define(1, 1)
	emptied := func(s opened, seqno uint64) {
		s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSystemEvent, s.vb, s.opaque),
			Extras: mcbp.SystemEvent{Seqno: seqno, Event: 1}.AppendExtras(nil), Value: make([]byte, 16)})
	}
	mark := func(s opened, start, end uint64) {
		s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, s.vb, s.opaque),
			Extras: mcbp.SnapshotMarker{Start: start, End: end}.AppendExtras(nil)})
	}
	w.startAt(3, 1, 0)
	s := e.stream(3)
	mark(s, 0, 2)
	emptied(s, 1)
	s.document(2, 0)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@2")
	const said = "default collection was dropped or emptied"
	if n := log.count(said); n != 0 {
		t.Fatalf("reported %d times of a stream that begins before", n)
	}
	for seqno := uint64(3); seqno <= 5; seqno += 2 {
		mark(s, seqno, seqno+1)
		emptied(s, seqno)
		s.document(seqno+1, 0)
	}
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@2", "1:INSERT@4", "1:INSERT@6")
	if n := log.count(said); n != 1 {
		t.Fatalf("reported %d times, want once", n)
	}
}
