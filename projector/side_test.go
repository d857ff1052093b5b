package projector

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/kv/mcbp"
	"tidemark/partition"
	"tidemark/projector/core"
	"tidemark/wire"
)

// backfill returns a request for vbuckets 3 and 4 up to seqno 10.
func (w *world) backfill(id uint64, boot string) *wire.StreamRequest {
	return w.sideRequest(id, boot, 1, []index.CopyID{10}, wire.StreamStart{VBucket: 3, End: 10},
		wire.StreamStart{VBucket: 4, End: 10})
}

// beside opens a side stream concurrently with the test.
func (w *world) beside(req *wire.StreamRequest) <-chan error {
	done := make(chan error, 1)
	go func() {
		reply, err := w.client.Streams(context.Background(), w.url, req)
		for i := 0; err == nil && i < 2; i++ {
			if r := reply.Buckets[0].Results[i]; r.Outcome != wire.StartBegun {
				err = fmt.Errorf("%+v", r)
			}
		}
		done <- err
	}()
	return done
}

func (w *world) sides() []string {
	all := []string{}
	for _, s := range w.p.sides.all(func(core.SideKey) bool { return true }) {
		all = append(all, fmt.Sprint(s.key.Topic, " ", s.inc.Counter))
	}
	return all
}

// A request replaces the one of its topic, whatever its state.
func TestSideStreamsAreReplaced(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	wait := make(chan any)
	e.set(func() { e.answer[3] = wait })
	first := w.beside(w.backfill(1, "boot"))
	w.eventually("KV is queried", func() bool { return e.stream(3).peer != nil && e.stream(4).peer != nil })
	e.set(func() { clear(e.streams) }) // the next request comes over another connection
	second := w.beside(w.backfill(2, "boot"))
	if err := <-first; err == nil {
		t.Error("the one that was replaced reports that it has begun")
	}
	close(wait)
	if err := <-second; err != nil {
		t.Error(err)
	}
	w.eventually("BEGIN of both", func() bool { // one may come more than once
		begun := map[uint16]bool{}
		for _, b := range w.side.kinds(keyversion.StreamBegin) {
			begun[b.VBucket] = true
		}
		return begun[3] && begun[4]
	})
	for _, b := range w.side.kinds(keyversion.StreamBegin) {
		if b.Incarnation.Counter != 2 {
			t.Errorf("BEGIN of request %d", b.Incarnation.Counter)
		}
	}
	// The indexer's next process uses another topic: the side stream of the previous one ends.
	req := w.backfill(3, "boot2")
	req.Topic = "/backfill/1/8"
	e.set(func() { clear(e.streams); clear(e.answer) })
	if err := <-w.beside(req); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(w.sides()); got != "[/backfill/1/8 3]" {
		t.Errorf("open: %s", got)
	}
}

// A request that is based on definitions newer than the projector's waits for them instead of being refused.
func TestSideRequestWaitsForDefinitions(t *testing.T) {
	w := newWorldAt(t, newEngine(t).Addr())
	w.p.defs.timeout = time.Minute
	w.define(1, 1)
	req := w.backfill(1, "boot")
	req.Side.Revision = 2
	asked := w.beside(req)
	w.define(2, 1)
	if err := <-asked; err != nil {
		t.Error(err)
	}
}

// A stop reaches a side stream that is being opened.
func TestSideStreamStoppedWhileItOpens(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	e.set(func() { e.answer[3] = make(chan any) }) // KV never answers
	first := w.beside(w.backfill(1, "boot"))
	w.eventually("KV is queried", func() bool { return e.stream(3).peer != nil })
	if err := w.client.Stop(context.Background(), w.url, &wire.StreamStop{Fence: wire.Fence{ClusterID: "c1"},
		Topic: "/backfill/1/7"}); err != nil {
		t.Error(err)
	}
	if err := <-first; err == nil {
		t.Error("the one that was stopped reports that it has begun")
	}
	if got := w.sides(); len(got) != 0 {
		t.Errorf("open: %v", got)
	}
	e.set(func() { close(e.answer[3]) })
}

// END contains the requested end and how far what was read may reach. If the reach cannot be determined, END is not
// sent.
func TestSideStreamsEnd(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	if err := <-w.beside(w.backfill(1, "boot")); err != nil {
		t.Fatal(err)
	}
	e.stream(3).write(0, 2)
	e.stream(3).end(mcbp.EndOK)
	w.eventually("END", func() bool { return len(w.side.kinds(keyversion.StreamEnd)) == 1 })
	if end := w.side.kinds(keyversion.StreamEnd)[0]; end.VBucket != 3 || end.Seqno != 10 || end.Window.End != 100 {
		t.Errorf("%+v", end)
	}
	e.set(func() { delete(e.active, 4) })
	e.stream(4).end(mcbp.EndOK)
	w.eventually("the side stream is given up", func() bool { return len(w.sides()) == 0 })
	if n := len(w.side.kinds(keyversion.StreamEnd)); n != 1 {
		t.Errorf("%d ENDs", n)
	}
}

// The end of a side stream contains the sums of what was evaluated for each vbucket, if requested; they match what
// arrives.
func TestSideStreamSums(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	req := w.backfill(1, "boot") // up to 10
	req.Side.Sums = true
	if err := <-w.beside(req); err != nil {
		t.Fatal(err)
	}
	for _, vb := range []uint16{3, 4} {
		e.stream(vb).write(0, 12)
		e.stream(vb).end(mcbp.EndOK)
	}
	w.eventually("END", func() bool { return len(w.side.kinds(keyversion.StreamEnd)) == 2 })
	for _, end := range w.side.kinds(keyversion.StreamEnd) {
		var arrived keyversion.Sums
		for _, d := range w.side.kinds(keyversion.Insert) {
			if d.VBucket == end.VBucket {
				arrived.AddEvent(&d)
			}
		}
		if keys := end.Sums.Of(1, 0).Keys; len(end.Sums) != 1 || keys != 10 || !slices.Equal(end.Sums, arrived) {
			t.Errorf("vbucket %d: %+v is promised, %+v arrived", end.VBucket, end.Sums, arrived)
		}
	}
}

// An engine ends a finite stream at the end of the snapshot that contains the requested end. The first document above
// the end ends the stream for the requester, which neither waits for nor receives what the engine sends afterwards.
func TestSideStreamGoesBeyondItsEnd(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	if err := <-w.beside(w.backfill(1, "boot")); err != nil { // up to 10
		t.Fatal(err)
	}
	ends := func() []keyversion.Event { return w.side.kinds(keyversion.StreamEnd) }
	e.stream(3).write(0, 15)
	w.eventually("END", func() bool { return len(ends()) == 1 })
	if end := ends()[0]; end.VBucket != 3 || end.Seqno != 10 || end.Window.End != 100 {
		t.Errorf("%+v", end)
	}
	e.stream(3).write(15, 20)
	e.stream(3).end(mcbp.EndOK)
	e.stream(4).write(0, 15)
	e.stream(4).end(mcbp.EndOK)
	w.eventually("END of the other", func() bool { return len(ends()) == 2 })
	w.eventually("the side stream is over", func() bool { return len(w.sides()) == 0 })
	if n := len(ends()); n != 2 {
		t.Errorf("%d ENDs of two vbuckets", n)
	}
	data := w.side.kinds(keyversion.Insert)
	for _, d := range data {
		if d.Seqno > 10 {
			t.Errorf("seqno %d of vbucket %d was sent", d.Seqno, d.VBucket)
		}
	}
	if len(data) != 20 {
		t.Errorf("%d documents of two vbuckets were sent, want 10 of each", len(data))
	}
}

// TestSideStreamOfASmallCollection: the index has no document in what may be a long window, but the stream's position
// is sent every second: an indexer gives up a side stream that brings nothing for 30 s and requests all of it again,
// endlessly. Documents of the index are sent as usual.
func TestSideStreamOfASmallCollection(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	d := w.definitions(1, 1)
	d.Indexes[0].Member = index.Member{Scope: "s", Collection: "c", ID: 9, Manifest: 2}
	if _, err := w.client.Definitions(context.Background(), w.url, d); err != nil {
		t.Fatal(err)
	}
	if err := <-w.beside(w.backfill(1, "boot")); err != nil { // up to 10
		t.Fatal(err)
	}
	sent := func(want ...string) func() bool {
		return func() bool {
			var got []string
			for _, kind := range []keyversion.Kind{keyversion.Sync, keyversion.Insert, keyversion.StreamEnd} {
				for _, ev := range w.side.kinds(kind) {
					if ev.VBucket == 3 && ev.Seqno > 0 {
						got = append(got, fmt.Sprintf("%v@%d", kind, ev.Seqno))
					}
				}
			}
			return slices.Equal(got, want)
		}
	}
	s := e.stream(3)
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, 3, s.opaque),
		Extras: mcbp.SnapshotMarker{End: 1 << 20, Flags: mcbp.SnapshotDisk}.AppendExtras(nil)})
	s.document(4, 0)
	w.eventually("SYNC without a document", sent("SYNC@4"))
	s.document(5, 9)
	w.eventually("its document", sent("SYNC@4", "INSERT@5"))
	s.document(7, 10)
	w.eventually("SYNC beyond it", sent("SYNC@4", "SYNC@7", "INSERT@5"))
	s.document(1000, 10)
	w.eventually("END", sent("SYNC@4", "SYNC@7", "INSERT@5", "STREAM_END@10"))
}

// As with a maintenance stream: what KV purges between its answer and the first snapshot is stated by a second BEGIN,
// and if KV does not report purge seqnos, it may be anything in the snapshot. Neither ends anything.
func TestAPurgeBeforeASideStreamsFirstSnapshot(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.purged(4, 3, 4)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	if err := <-w.beside(w.backfill(1, "boot")); err != nil { // up to 10
		t.Fatal(err)
	}
	begun := func(vb uint16, want ...uint64) {
		t.Helper()
		w.eventually("BEGIN", func() bool { return slices.Equal(w.side.purges(vb), want) })
	}
	begun(3, 4)
	begun(4, 4)
	e.purged(9, 3, 4)
	e.stream(3).write(0, 12)
	begun(3, 4, 9)
	w.eventually("END of the one", func() bool { return len(w.side.kinds(keyversion.StreamEnd)) == 1 })
	e.set(func() { e.stats = mcbp.StatusBusy })
	e.stream(4).write(0, 12)
	begun(4, 4, 12)
	w.eventually("END of the other, and of the side stream", func() bool { return len(w.sides()) == 0 })
	got := []string{}
	for _, end := range w.side.kinds(keyversion.StreamEnd) {
		got = append(got, fmt.Sprintf("%d@%d", end.VBucket, end.Seqno))
	}
	if want := []string{"3@10", "4@10"}; !slices.Equal(got, want) {
		t.Errorf("ENDs %v, want %v", got, want)
	}
	if n := len(w.side.kinds(keyversion.Insert)); n != 20 {
		t.Errorf("%d documents, want 20", n)
	}
}

// What ends one vbucket ends only that one: KV sends END because the vbucket moved, contradicts itself, or no longer
// has the vbucket when its end is reached. Its indexer is notified in band, and requests it again; the others
// continue to their end.
func TestEndOfOneSideStreamVBucket(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]func(w *world, e *engine, s opened){
		"KV ends it":   func(_ *world, _ *engine, s opened) { s.write(0, 5); s.end(mcbp.EndStateChanged) },
		"it goes back": func(_ *world, _ *engine, s opened) { s.write(0, 5); s.write(0, 3) },
		"it has left": func(_ *world, e *engine, s opened) {
			e.set(func() { delete(e.active, 3) })
			s.write(0, 12)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			w := newWorldAt(t, e.Addr())
			w.define(1, 1)
			if err := <-w.beside(w.backfill(1, "boot")); err != nil { // up to 10
				t.Fatal(err)
			}
			breaks(w, e, e.stream(3))
			w.eventually("it is sent", func() bool { return len(w.side.kinds(keyversion.DropData)) == 1 })
			if got := w.side.kinds(keyversion.DropData)[0]; got.VBucket != 3 || got.Incarnation.Counter != 1 {
				t.Errorf("%+v", got)
			}
			e.stream(4).write(0, 12)
			w.eventually("the side stream is over", func() bool { return len(w.sides()) == 0 })
			ends := w.side.kinds(keyversion.StreamEnd)
			if len(ends) != 1 || ends[0].VBucket != 4 || ends[0].Seqno != 10 {
				t.Errorf("ENDs %+v", ends)
			}
		})
	}
}

// While a KV node is slow to report its high seqnos, the other vbuckets of a side stream continue; those that end
// meanwhile share the next query. If it never answers, only those that wait are broken off.
func TestReachDelaysNoOtherRequests(t *testing.T) {
	t.Parallel()
	for name, patience := range map[string]time.Duration{"slow": time.Hour, "silent": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			w := newWorldWith(t, e.Addr(), FeedNative, func(c *Config) { c.reachTime = patience })
			w.define(1, 1)
			if err := <-w.beside(w.backfill(1, "boot")); err != nil { // up to 10
				t.Fatal(err)
			}
			release := make(chan any)
			e.set(func() { e.release = release })
			releaseOnce := sync.OnceFunc(func() { e.set(func() { e.release = nil }); close(release) })
			t.Cleanup(releaseOnce)
			e.stream(3).write(0, 12)
			e.stream(4).write(0, 5)
			w.eventually("the other one goes on", func() bool { return len(w.side.kinds(keyversion.Insert)) == 15 })
			want := []string{"3@10", "4@10"}
			if name == "silent" {
				want = want[1:]
				w.eventually("the one is over", func() bool { return len(w.side.kinds(keyversion.DropData)) == 1 })
			}
			e.stream(4).write(5, 7)
			w.eventually("the other one goes on still", func() bool { return len(w.side.kinds(keyversion.Insert)) == 17 })
			releaseOnce()
			e.stream(4).write(7, 12)
			w.eventually("the side stream is over", func() bool { return len(w.sides()) == 0 })
			got := []string{}
			for _, end := range w.side.kinds(keyversion.StreamEnd) {
				got = append(got, fmt.Sprintf("%d@%d", end.VBucket, end.Seqno))
			}
			slices.Sort(got) // either may come first
			if !slices.Equal(got, want) {
				t.Errorf("ENDs %v, want %v", got, want)
			}
		})
	}
}

func TestInvalidSideRequests(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	for name, c := range map[string]struct {
		change func(*wire.StreamRequest)
		code   errcode.Code
	}{
		"another cluster": {func(r *wire.StreamRequest) { r.Fence.ClusterID = "c2" },
			rpc.AsProblem(wire.ErrForeignCluster).Code},
		"no class": {func(r *wire.StreamRequest) { r.Topic = "/other/1" }, errcode.BadRequest},
		"no path":  {func(r *wire.StreamRequest) { r.Topic = "backfill" }, errcode.BadRequest},
		"no id":    {func(r *wire.StreamRequest) { r.Topic = "/backfill/" }, errcode.BadRequest},
		"a long topic": {func(r *wire.StreamRequest) { r.Topic += strings.Repeat("x", wire.MaxTopic) },
			errcode.BadRequest},
		"maintenance":       {func(r *wire.StreamRequest) { r.Topic = "/maintenance" }, errcode.BadRequest},
		"another indexer's": {func(r *wire.StreamRequest) { r.Topic = "/catchup/2/7" }, errcode.BadRequest},
		"not an indexer's":  {func(r *wire.StreamRequest) { r.Topic = "/catchup/251" }, errcode.BadRequest},
		"no target":         {func(r *wire.StreamRequest) { r.Side = nil }, errcode.BadRequest},
		"no endpoint":       {func(r *wire.StreamRequest) { r.Side.Endpoint = "" }, errcode.BadRequest},
		"no copies":         {func(r *wire.StreamRequest) { r.Side.Copies = nil }, errcode.BadRequest},
		"copies, indexes":   {func(r *wire.StreamRequest) { r.Side.Indexes = []index.ID{1} }, errcode.BadRequest},
		"no buckets":        {func(r *wire.StreamRequest) { r.Buckets = nil }, errcode.BadRequest},
		"a bucket twice": {func(r *wire.StreamRequest) { r.Buckets = append(r.Buckets, r.Buckets[0]) },
			errcode.BadRequest},
		"no vbuckets": {func(r *wire.StreamRequest) { r.Buckets[0].Restart = wire.RestartTimestamp{} },
			errcode.BadRequest},
		"no end": {func(r *wire.StreamRequest) { r.Buckets[0].Restart.Ends = nil }, errcode.BadRequest},
		"a short column": {func(r *wire.StreamRequest) { r.Buckets[0].Restart.Ends = r.Buckets[0].Restart.Ends[:1] },
			errcode.BadRequest},
		"later revision": {func(r *wire.StreamRequest) { r.Side.Revision = 2 }, errcode.Unavailable},
		"unknown copies": {func(r *wire.StreamRequest) { r.Side.Copies = []index.CopyID{99} }, errcode.Unavailable},
		"recreated bucket": {func(r *wire.StreamRequest) { r.Buckets[0].BucketUUID = "fedcba9876543210fedcba9876543210" },
			errcode.BucketGone},
	} {
		req := w.backfill(1, "boot")
		c.change(req)
		_, err := w.client.Streams(context.Background(), w.url, req)
		if p := rpc.AsProblem(err); err == nil || p.Code != c.code {
			t.Errorf("%s gives %v, want %s", name, err, c.code)
		}
	}
	if got := w.sides(); len(got) != 0 {
		t.Errorf("open: %v", got)
	}
}

// TestASubscriberHasAllIndexesOrNone: if a requested index cannot be streamed, the error names it and the reason;
// with copies, the others are streamed.
func TestASubscriberHasAllIndexesOrNone(t *testing.T) {
	d := &wire.Definitions{Revision: 9}
	one := partition.Layout{Scheme: partition.HashDocID, Partitions: 1}
	for id, expr := range []string{"a", `DATE_PART_STR(a, "decennium")`, "a +", "b"} {
		id := index.ID(id + 1)
		d.Indexes = append(d.Indexes, index.Definition{ID: id, Name: fmt.Sprint("i", id), Bucket: "b",
			State: index.Maintenance, Keys: []index.KeyExpr{{Expr: expr}}})
		d.Topologies = append(d.Topologies, partition.Topology{Index: id, Layout: one, Copies: []partition.Copy{
			{ID: index.CopyID(10 * id), Node: 1, State: partition.Allocated}}})
	}
	d.Indexes[3].State = index.Error
	p := &Projector{runCtx: t.Context(), faults: faults{all: map[index.ID]*fault{}}, assessor: newAssessor(),
		defs: definitions{newest: d, changed: make(chan struct{}), timeout: time.Second}}
	plan := func(target wire.SideTarget) ([]index.ID, error) {
		target.Endpoint = "h:1"
		s, err := p.newSide(t.Context(), &wire.StreamRequest{Topic: "/backfill/audit/1", Side: &target},
			&wire.StreamBucket{Bucket: "b"})
		if err != nil {
			return nil, err
		}
		return s.plan.ids, nil
	}
	if ids, err := plan(wire.SideTarget{Indexes: []index.ID{1, 2}}); err != nil || fmt.Sprint(ids) != "[1 2]" {
		t.Errorf("1 and 2: %v %v", ids, err)
	}
	for _, tc := range []struct {
		ids  []index.ID
		says string
	}{{[]index.ID{1, 3}, "index i3 (3)"}, {[]index.ID{3}, "index i3 (3)"}, {[]index.ID{1, 4}, "[4] are not active"}} {
		ids, err := plan(wire.SideTarget{Indexes: tc.ids})
		if err == nil || rpc.AsProblem(err).Code != errcode.Unavailable || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("a subscriber of %v has %v: %v; want a refusal that says %q", tc.ids, ids, err, tc.says)
		}
	}
	if ids, err := plan(wire.SideTarget{Node: 1, Copies: []index.CopyID{10, 30}}); err != nil || fmt.Sprint(ids) != "[1]" {
		t.Errorf("an indexer of copies of 1 and 3 has %v: %v", ids, err)
	}
}
