package indexer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/wire"
)

func docs(from, to, value int) []testDoc {
	var all []testDoc
	for i := from; i < to; i++ {
		all = append(all, testDoc{id: fmt.Sprintf("doc-%04d", i), value: value + i})
	}
	return all
}

// TestBuildThenMaintain checks that an index of a bucket with documents is built by a side stream, becomes ready at a
// stability timestamp, and then follows changes.
func TestBuildThenMaintain(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 200, 1)...)
	w.start()
	w.state = index.Backfill
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10)
	w.until("the report of how far the build is", func() bool {
		b := w.buckets[testBucket].Backfill
		return b.Len() == testVBs && b.Total() == w.report[10].Total && b.Total() > 0
	})
	w.state = index.Maintenance
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	w.until("a report without a build", func() bool { return w.buckets[testBucket].Backfill.Len() == 0 })
	w.check(1)
	w.write(docs(100, 300, 1000)...)
	w.write(testDoc{id: "doc-0000"}, testDoc{id: "doc-0150"})
	w.check(1)
	if got := w.copyReport(10); !got.Ready || got.Total == 0 || got.Done != got.Total {
		t.Errorf("report %+v", got)
	}
	// A second index is added to the running bucket.
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
	w.check(2)
}

// TestResume checks that after an orderly stop the same rows are there without any side stream.
func TestResume(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 100, 1)...)
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
	w.stopIndexer()
	calls := len(w.calls())
	w.locked(func() { clear(w.report) })
	w.start()
	w.promote(t.Context())
	w.held(10, 20)
	// The copies are served as the last leader left them.
	if rows, err := w.scan(1, `{}`); err != nil || len(rows) != 100 {
		t.Errorf("a scan before the definitions of a leader gave %d rows, %v", len(rows), err)
	}
	w.mu.Lock()
	d := w.definitionsLocked()
	w.mu.Unlock()
	if _, err := w.admin.Definitions(t.Context(), w.endpoint.Admin, d); err != nil {
		t.Fatal(err)
	}
	w.check(1)
	w.begin(nil)
	w.write(docs(50, 150, 500)...)
	w.check(2)
	if now := len(w.calls()); now != calls {
		t.Errorf("%d side streams after an orderly restart", now-calls)
	}
}

// TestGap checks that a stream that begins above the held seqnos leaves a gap, and that a catchup fills it, deletions
// included.
func TestGap(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 100, 1)...)
	w.serve(10)
	w.mu.Lock()
	w.stream.conn.Close()
	w.stream = nil
	w.mu.Unlock()
	w.write(docs(50, 120, 700)...)
	w.write(testDoc{id: "doc-0001"})
	w.begin(nil)
	w.write(docs(110, 130, 900)...)
	w.check(1)
	all := w.calls()
	last := all[len(all)-1]
	if last.Topic[:8] != "/catchup" || last.Side.Endpoint != w.endpoint.Catchup || last.Buckets[0].Restart.Seqnos[0] == 0 {
		t.Errorf("the gap was filled by %+v", last)
	}
}

// TestSideRefused checks that if a projector does not own a vbucket the next one is asked, and that after KV's
// ROLLBACK the vbucket starts again from nothing.
func TestSideRefused(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 50, 1)...)
	n := 0
	w.refuse = func(q *wire.StreamRequest) wire.StartOutcome {
		w.mu.Lock()
		defer w.mu.Unlock()
		n++
		switch {
		case n <= 2:
			return wire.StartNotMine
		case q.Buckets[0].Restart.Seqnos[0] > 0:
			return wire.StartRollback
		}
		return wire.StartBegun
	}
	w.serve(10)
	// Now a gap below the purge seqno.
	w.mu.Lock()
	w.stream.conn.Close()
	w.stream = nil
	w.mu.Unlock()
	w.write(testDoc{id: "doc-0003"})
	w.mu.Lock()
	for vb := range testVBs {
		w.purge[vb] = w.high(vb)
	}
	w.mu.Unlock()
	w.begin(nil)
	w.check(1)
}

// TestFull sends far more events than the queue may contain, without a stability timestamp. All of them are applied
// ahead, memory stays within its limit, and the next timestamp is exact.
func TestFull(t *testing.T) {
	w := newWorld(t)
	const limit = 64 << 10
	w.tweak = func(c *Config) { c.QueueBytes = limit }
	w.start()
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	over := 0
	for i := range 40 {
		w.write(docs(i*50, i*50+100, i)...)
		if k := w.x.bucketNamed(testBucket); k.QueueBytes() > 2*limit {
			over++
		}
	}
	w.check(1)
	if over > 0 {
		t.Errorf("the queue was %d times above twice its bound", over)
	}
}

// TestFence checks that messages from another cluster, of a deposed leader or with an older list change nothing.
func TestFence(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.locked(func() { w.term = 5 })
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	old := wire.Fence{ClusterID: testCluster, Epoch: 1, Term: 4, Counter: 1 << 30}
	foreign := wire.Fence{ClusterID: "other", Epoch: 9, Term: 9, Counter: 1}
	another := wire.Fence{ClusterID: testCluster, Epoch: 1, Term: 6, Counter: 1, Boot: "of another process"}
	for name, f := range map[string]struct {
		fence wire.Fence
		code  errcode.Code
	}{"deposed": {old, errcode.Fenced}, "foreign": {foreign, errcode.ForeignCluster},
		"another": {another, errcode.AnotherProcess}} {
		_, e1 := w.admin.Poll(ctx, w.endpoint.Admin, &wire.PollRequest{Fence: f.fence, Bucket: testBucket,
			VBuckets: []uint16{0}})
		_, e2 := w.admin.Definitions(ctx, w.endpoint.Admin, &wire.Definitions{Fence: f.fence, Revision: 99})
		_, e3 := w.admin.Hello(ctx, w.endpoint.Admin, &wire.HelloRequest{Fence: f.fence})
		e4 := w.admin.Stability(ctx, w.endpoint.Admin, &wire.StabilityRequest{Fence: f.fence})
		_, e5 := w.admin.Rollback(ctx, w.endpoint.Admin, &wire.RollbackRequest{Fence: f.fence, Bucket: testBucket,
			Step: "rollback"})
		_, e6 := w.admin.DropOrphans(ctx, w.endpoint.Admin, &wire.DropOrphans{Fence: f.fence})
		_, e7 := w.admin.Change(ctx, w.endpoint.Admin, &wire.DefinitionsChange{Fence: f.fence, Revision: 99})
		for i, err := range []error{e1, e2, e3, e4, e5, e6, e7} {
			var p *rpc.Problem
			if !errors.As(err, &p) || p.Code != f.code {
				t.Errorf("%s, command %d: %v, want code %s", name, i, err, f.code)
			}
		}
	}
	if err := w.define(10); err != nil {
		t.Errorf("a newer leader's commands to another process are obeyed: %v", err)
	}
	w.mu.Lock()
	d := w.definitionsLocked()
	w.mu.Unlock()
	d.Revision, d.Topologies = 1, nil
	if _, err := w.admin.Definitions(ctx, w.endpoint.Admin, d); err == nil {
		t.Error("an older list was accepted")
	}
	if _, ok := w.x.store.Slice(10); !ok {
		t.Error("a copy was dropped by a list that was refused")
	}
	// The fence survives a restart.
	w.stopIndexer()
	w.start()
	if _, err := w.admin.Hello(ctx, w.endpoint.Admin, &wire.HelloRequest{Fence: old}); err == nil {
		t.Error("after a restart a deposed leader was obeyed")
	}
}

// TestSameList checks that a list with the same content under a newer revision is taken without being written, and
// that one with other content is written.
func TestSameList(t *testing.T) {
	w := newWorld(t)
	w.start()
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.x.cfg.Dir, definitionsFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) || w.x.present().Revision != w.revision {
		t.Errorf("the same list: %v, revision %d of %d", err, w.x.present().Revision, w.revision)
	}
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil || w.x.present().Revision != w.revision {
		t.Errorf("another list: %v, revision %d of %d", err, w.x.present().Revision, w.revision)
	}
}

// TestDrop checks that a copy that is not in the list is removed along with its folder, and that the others stay.
func TestDrop(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 20, 1)...)
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
	if err := w.define(20); err != nil {
		t.Fatal(err)
	}
	w.until("the folder of a dropped copy goes with its last snapshot", func() bool {
		_, err := os.Stat(filepath.Join(w.dir, copiesDir, "10"))
		return os.IsNotExist(err)
	})
	w.write(docs(10, 30, 50)...)
	w.check(2)
	if _, err := w.scan(1, `{}`); rpc.AsProblem(err).Code != "INDEX_NOT_HOSTED" {
		t.Errorf("scan of a dropped index: %v", err)
	}
}

// TestHello checks that connections that do not belong here are refused with a reason.
func TestHello(t *testing.T) {
	w := newWorld(t)
	w.start()
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	good := keyversion.Hello{ClusterID: testCluster, Projector: "p1", Topic: "/maintenance", Bucket: testBucket,
		BucketUUID: testUUID, Node: 3, Connections: 1}
	for name, change := range map[string]func(*keyversion.Hello){
		"cluster": func(h *keyversion.Hello) { h.ClusterID = "x" },
		"node":    func(h *keyversion.Hello) { h.Node = 4 },
		"topic":   func(h *keyversion.Hello) { h.Topic = "/backfill/1/2" },
		"bucket":  func(h *keyversion.Hello) { h.Bucket = "other" },
		"uuid":    func(h *keyversion.Hello) { h.BucketUUID = "other" },
	} {
		h := good
		change(&h)
		if c, err := transport.Dial(t.Context(), w.endpoint.Maintenance, h, transport.Options{}); !errors.Is(err,
			transport.ErrRefused) {
			t.Errorf("%s: %v, want a refusal", name, err)
			if err == nil {
				c.Close()
			}
		}
	}
	// A vbucket on the wrong connection ends the connection.
	h := good
	h.Connections = 2
	c, err := transport.Dial(t.Context(), w.endpoint.Maintenance, h, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var enc keyversion.Encoder
	if err := enc.Append(&keyversion.Event{Kind: keyversion.Sync, VBucket: 1, Seqno: 1}); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(enc.Finish(1)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
		if !errors.Is(c.Err(), transport.ErrRefused) {
			t.Errorf("ended with %v", c.Err())
		}
	case <-time.After(testTimeout):
		t.Error("a batch of a foreign vbucket was taken")
	}
}

// TestRegisterAgain checks that the indexer registers again with a leader that does not know it.
func TestRegisterAgain(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.mu.Lock()
	w.known, w.endpoint = false, wire.Endpoint{}
	w.mu.Unlock()
	w.until("second registration", func() bool { return w.known && w.endpoint.Admin != "" })
}

// TestPoll checks that positions include the queue, and fence older incarnations.
func TestPoll(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 40, 1)...)
	w.serve(10)
	w.write(docs(0, 40, 60)...) // stays in the queue, since nothing is promoted
	inc := w.stream.inc
	poll := func() []wire.PollPosition {
		w.mu.Lock()
		f := w.fence()
		w.mu.Unlock()
		req := &wire.PollRequest{Fence: f, Bucket: testBucket, VBuckets: []uint16{0, 1, 2, 3}, Incarnation: inc}
		r, err := w.admin.Poll(context.Background(), w.endpoint.Admin, req)
		if err != nil {
			t.Fatal(err)
		}
		all, err := r.Positions()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		all := poll()
		good := len(all) == 4
		for _, p := range all {
			good = good && p.Participant && p.HW == w.high(int(p.VBucket)) && p.Log.Newest() == 77
		}
		if good {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("positions %+v", poll())
		}
	}
	inc.Counter++
	poll()
	w.write(testDoc{id: "late", value: 3}) // from the incarnation that is now refused
	for range 20 {
		for _, p := range poll() {
			if h := w.high(int(p.VBucket)); p.HW >= h && p.VBucket == uint16(('l'+'a'+'t'+'e')%testVBs) {
				t.Fatalf("an event of a fenced incarnation was taken: %+v", p)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestPages checks health, status, metrics, and the problem JSON for what does not exist.
func TestPages(t *testing.T) {
	w := newWorld(t)
	w.serve(10)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/v1/status": 200, "/metrics": 200,
		"/nothing": 404} {
		resp, err := http.Get(w.endpoint.Admin + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	for _, body := range []string{`{"limit":-1}`, `{"unknown":1}`, `{`, `{"equal":[1,2]}`} {
		if _, err := w.scan(1, body); rpc.AsProblem(err).Code != errcode.BadRequest {
			t.Errorf("scan with %s: %v", body, err)
		}
	}
}

// TestResumedDefinitionsNeverReplaceNewer checks that the definitions of the last run never replace those that the
// leader has sent. The leader's list was acknowledged, so it would not come again: nothing would be requested from
// projectors, and copies that lack something would lack it forever.
func TestResumedDefinitionsNeverReplaceNewer(t *testing.T) {
	w := newWorld(t)
	build(t, w)
	have := w.x.present().Revision
	if err := w.x.resume(); err != nil {
		t.Fatal(err)
	}
	if now := w.x.present().Revision; now != have || have == 0 {
		t.Errorf("after it the indexer works with revision %d, it had %d", now, have)
	}
}
