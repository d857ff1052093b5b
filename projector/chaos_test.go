package projector

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"tidemark/collate"
	"tidemark/index"
	"tidemark/internal/testing/draws"
	"tidemark/keyversion"
	"tidemark/kv/kvclient"
	"tidemark/wire"
)

// proxy is placed between the projector and KV, so that a test can cut all connections.
type proxy struct {
	l     net.Listener
	to    string
	mu    sync.Mutex
	conns map[net.Conn]bool
	done  sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to, conns: map[net.Conn]bool{}}
	p.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			p.mu.Lock()
			p.conns[c], p.conns[up] = true, true
			p.mu.Unlock()
			for _, way := range [][2]net.Conn{{c, up}, {up, c}} {
				p.done.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_ = c.Close()
					_ = up.Close()
				})
			}
		}
	})
	t.Cleanup(func() { _ = l.Close(); p.cut(); p.done.Wait() })
	return p
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// replica applies what an endpoint received as an indexer would, and reports violations.
type replica struct {
	inc  [vbuckets]index.Incarnation
	open [vbuckets]bool
	at   [vbuckets]uint64 // everything up to here has been seen
	in   [vbuckets]uint64 // last seqno of the present stream
	rows map[string]uint64
	read int
	docs map[string]string
}

// catchUp takes the events that are new.
func (r *replica) catchUp(t *testing.T, e *endpoint) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for ; r.read < len(e.events); r.read++ {
		ev := &e.events[r.read]
		v := ev.VBucket
		name := fmt.Sprintf("vbucket %d, %v %s@%d", v, ev.Incarnation, ev.Kind, ev.Seqno)
		switch {
		case ev.Kind == keyversion.StreamBegin:
			if ev.Incarnation.Compare(r.inc[v]) < 0 {
				t.Fatalf("%s after a BEGIN of %v", name, r.inc[v])
			}
			if ev.Begin.Start > r.at[v] {
				t.Fatalf("%s leaves a gap: %d is here", name, r.at[v])
			}
			r.inc[v], r.open[v], r.in[v] = ev.Incarnation, true, ev.Begin.Start
			continue
		case !r.open[v] || ev.Incarnation != r.inc[v]:
			t.Fatalf("%s does not belong to the stream that is open (%v) %v", name, r.open[v], r.inc[v])
		case ev.Kind == keyversion.StreamEnd:
			r.open[v] = false
		case ev.Kind == keyversion.Activate || ev.Kind == keyversion.Deactivate:
			if ev.Seqno != r.in[v] {
				t.Fatalf("%s, but the stream stands at %d", name, r.in[v])
			}
		case ev.Kind == keyversion.Sync:
			if ev.Seqno > r.in[v] {
				t.Fatalf("%s, but the stream stands at %d", name, r.in[v])
			}
		case ev.Kind.Data():
			if ev.Seqno <= r.in[v] || ev.Seqno > ev.Window.End || ev.Window.Start > r.in[v] {
				t.Fatalf("%s window %+v, but the stream stands at %d", name, ev.Window, r.in[v])
			}
			r.check(t, name, ev)
			r.in[v], r.at[v] = ev.Seqno, max(r.at[v], ev.Seqno)
			if id := string(ev.DocID); ev.Seqno > r.rows[id] {
				r.rows[id] = ev.Seqno
				delete(r.docs, id)
				if len(ev.Statements[0].Keys) > 0 {
					r.docs[id] = string(ev.Statements[0].Keys[0])
				}
			}
		}
	}
}

// check verifies that a document's statements are those of its indexes: field i holds the document's number plus
// 1000 i.
func (r *replica) check(t *testing.T, name string, ev *keyversion.Event) {
	t.Helper()
	number := ""
	for i, s := range ev.Statements {
		if i == 0 && s.Index != 1 || len(s.Keys) != len(ev.Statements[0].Keys) {
			t.Fatalf("%s names %v", name, ev.Statements)
		}
		if len(s.Keys) == 0 {
			continue
		}
		text, err := collate.DecodeComposite(nil, s.Keys[0], []bool{false})
		if want := fmt.Sprint("[", s.Index); err != nil || string(text[:2]) != want || i > 0 && string(text[2:]) != number {
			t.Fatalf("%s has %s in index %v: %v", name, text, s.Index, err)
		}
		number = string(text[2:])
	}
}

// TestChaos runs starts, stops, changes of definitions and cut connections concurrently while documents change: no
// event of an older stream follows a newer BEGIN, no stream leaves a gap, activation timestamps are exact, and in the
// end the replica equals the bucket.
func TestChaos(t *testing.T) {
	t.Parallel()
	addr, _ := startKV(t, t.TempDir(), "127.0.0.1:0")
	chaos(t, addr, FeedNative)
}

func chaos(t *testing.T, addr string, kind FeedKind) {
	seed := draws.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	cuts := newProxy(t, addr)
	w := newWorldWith(t, cuts.l.Addr().String(), kind)
	w.connect(addr)
	var uuids [vbuckets]uint64
	truth := map[string]int{}
	write := func() {
		key := fmt.Sprint("k", r.IntN(100))
		if r.IntN(4) == 0 && truth[key] > 0 {
			if _, err := w.kv.Delete(context.Background(), key, 0); err != nil {
				t.Fatal(err)
			}
			delete(truth, key)
			return
		}
		n := 1 + r.IntN(999)
		body := fmt.Appendf(nil, `{"f1":%d,"f2":%d,"f3":%d,"f4":%d}`, 1000+n, 2000+n, 3000+n, 4000+n)
		m, err := w.kv.Set(context.Background(), key, body, kvclient.StoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		truth[key], uuids[m.VBucket] = n, m.VBUUID
	}
	rep := &replica{rows: map[string]uint64{}, docs: map[string]string{}}
	inc, revision := uint64(0), uint64(1)
	start := func(wg *sync.WaitGroup, from, to uint16, outcomes func(wire.StartResult)) {
		inc++
		req := w.request(inc)
		for v := from; v < to; v++ {
			req.Buckets[0].Restart.Add(wire.StreamStart{VBucket: v, VBUUID: uuids[v], Seqno: rep.at[v]})
		}
		wg.Go(func() {
			reply, err := w.client.Streams(context.Background(), w.url, req)
			if err != nil {
				return // KV's connection was cut
			}
			for _, result := range reply.Buckets[0].Results {
				outcomes(result)
			}
		})
	}
	w.define(revision, 1)
	var calls sync.WaitGroup
	for range 150 {
		for range r.IntN(20) {
			write()
		}
		rep.catchUp(t, w.data)
		v := uint16(r.IntN(vbuckets))
		switch r.IntN(8) {
		case 0, 1:
			start(&calls, 0, vbuckets, func(wire.StartResult) {})
		case 2, 3:
			start(&calls, v, v+1, func(wire.StartResult) {})
		case 4:
			req := &wire.StreamStop{Fence: w.fence(), Topic: wire.MaintenanceTopic, Bucket: testBucket, VBuckets: []uint16{v},
				Incarnation: incarnation(inc)}
			calls.Go(func() { _ = w.client.Stop(context.Background(), w.url, req) })
		case 5:
			revision++
			w.defineBeside(&calls, revision, []index.ID{1, 2, 3, 4}[:1+r.IntN(4)]...)
		case 6:
			cuts.cut()
		case 7:
			calls.Wait()
		}
	}
	calls.Wait()
	rep.catchUp(t, w.data)
	w.eventually("all streams begin", func() bool {
		begun := 0
		start(&calls, 0, vbuckets, func(r wire.StartResult) {
			if r.Outcome == wire.StartBegun {
				begun++
			}
		})
		calls.Wait()
		rep.catchUp(t, w.data)
		return begun == vbuckets
	})
	w.eventually("the replica is the bucket", func() bool {
		rep.catchUp(t, w.data)
		if len(rep.docs) != len(truth) {
			return false
		}
		rows := w.data.rows(1)
		for k, n := range truth {
			if rows[k] != fmt.Sprintf("[%d]", 1000+n) {
				return false
			}
		}
		return true
	})
}
