package coordinator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestBuild: from CREATE to READY, with a replica, on three indexers.
func TestBuild(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		o := w.create("by_name", "", 6, 1)
		if o.Definition.State != index.Pending || o.Definition.BucketUUID != "uuid-1" || o.ID == 0 {
			t.Fatalf("created %+v", o)
		}
		took := w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		t.Logf("ready after %v", took)
		topology := w.log.State().Topology(o.ID)
		perNode := map[index.NodeID]int{}
		for _, c := range topology.Copies {
			if c.State != partition.Allocated {
				t.Errorf("copy %d is %s", c.ID, c.State)
			}
			perNode[c.Node]++
		}
		if len(topology.Copies) != 12 || len(perNode) != 3 || perNode[0] != 4 || perNode[1] != 4 {
			t.Errorf("%d copies on %v", len(topology.Copies), perNode)
		}
		s := w.log.State().Bucket("world").Stability
		if s.Number == 0 || s.Vector.Seqnos[3] != 10 || s.Vector.VBUUIDs[3] != 1003 {
			t.Errorf("stability %d %v", s.Number, s.Vector)
		}
		w.until("picture", time.Second, func() bool {
			st, ok := w.leader().Status()
			return ok && len(st.Buckets) == 1 && st.Buckets[0].Streams.Begun == vbuckets &&
				st.Progress[o.ID].Percent(index.Maintenance) == 100 &&
				st.Progress[o.ID].Items == 6*7 && st.Projectors[0].Streams == 4
		})
	})
}

// TestBackfillTimestamp checks that the progress of a bucket's builds is replicated, as the minimum over all hosts,
// at most once a second. It is removed with the last build, and stays as it was while a host does not report its
// progress.
func TestBackfillTimestamp(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		var hosts []*fakeIndexer
		for _, n := range w.indexers {
			n.mu.Lock()
			n.never, n.side = true, uint64(3+len(hosts)) // the build does not end by itself
			n.mu.Unlock()
			hosts = append(hosts, n)
		}
		o := w.create("by_name", "", 4, 0)
		backfill := func() timestamp.Vector { return w.log.State().Bucket("world").BackfillTimestamp }
		at := func(seqno uint64) func() bool {
			return func() bool {
				v := backfill()
				return v.Len() == vbuckets && v.Total() == vbuckets*seqno && v.VBUUIDs[5] == 1005
			}
		}
		w.until("the least of both", 10*time.Second, at(3))
		before := w.log.counted("*statecontext.SetBackfillTimestamp")
		for i := range 40 { // 4 s
			for _, n := range hosts {
				n.mu.Lock()
				n.side = uint64(5 + i)
				n.mu.Unlock()
			}
			time.Sleep(100 * time.Millisecond)
		}
		w.until("the last", 5*time.Second, at(44))
		if n := w.log.counted("*statecontext.SetBackfillTimestamp") - before; n < 3 || n > 6 {
			t.Errorf("%d backfill timestamps in 4 s, want one a second", n)
		}
		w.depose()
		hosts[0].mu.Lock()
		hosts[0].down = true
		hosts[0].mu.Unlock()
		hosts[1].mu.Lock()
		hosts[1].side = 60
		hosts[1].mu.Unlock()
		w.lead()
		time.Sleep(4 * time.Second)
		if !at(44)() {
			t.Errorf("%v, but one host has not reported its progress to the new leader", backfill())
		}
		for _, n := range hosts {
			n.mu.Lock()
			n.down, n.never = false, false
			n.mu.Unlock()
		}
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.until("no backfill", 5*time.Second, func() bool { return backfill().Len() == 0 })
	})
}

// TestDeferred checks that nothing is allocated and nothing is streamed until BUILD.
func TestDeferred(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "later", Bucket: "world",
			Deferred: true,
			Keys:     []index.KeyExpr{{Expr: "name"}}, Partitions: 1}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		starts, _ := w.projectors["http://p1"].counts()
		if w.state(o.ID) != index.Pending || starts != 0 || w.log.State().Topology(o.ID).Copies[0].State != partition.Placed {
			t.Fatalf("state %s, %d streams, copy %s", w.state(o.ID), starts, w.log.State().Topology(o.ID).Copies[0].State)
		}
		if _, err := w.leader().BuildIndexes(w.ctx, BuildRequest{IDs: []index.ID{o.ID}}); err != nil {
			t.Fatal(err)
		}
		w.until("READY", 5*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
	})
}

// TestNewLeaderAdopts checks, ten times, that a new leader takes over the streams as they are, promotion continues,
// and nothing is rebuilt.
func TestNewLeaderAdopts(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		o := w.create("by_name", "", 3, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		p1, p2 := w.projectors["http://p1"], w.projectors["http://p2"]
		for round := range 10 {
			w.depose()
			number := w.log.State().Bucket("world").Stability.Number
			time.Sleep(700 * time.Millisecond)
			w.lead()
			w.write("world", 1)
			w.until("DDL", 100*time.Millisecond, func() bool {
				_, err := w.leader().CreateIndex(w.ctx, CreateRequest{IfNotExists: true,
					Definition: index.Definition{Name: "x", Bucket: "world",
						Deferred: true, Keys: []index.KeyExpr{{Expr: "x"}}}})
				return err == nil
			})
			w.until("stability goes on", 2*time.Second,
				func() bool { return w.log.State().Bucket("world").Stability.Number > number })
			for _, p := range []*fakeProjector{p1, p2} {
				if starts, stops := p.counts(); starts != vbuckets/2 || stops != 0 {
					t.Fatalf("round %d: %s got requests for %d streams and %d stops", round, p.id, starts, stops)
				}
			}
		}
		if w.state(o.ID) != index.Maintenance {
			t.Errorf("the index is %s", w.state(o.ID))
		}
	})
}

func (w *world) write(bucket string, n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.kv[bucket].high {
		w.kv[bucket].high[v] += n
	}
}

// TestProjectorRestarts checks that only its vbuckets are started again, from the indexers' positions.
func TestProjectorRestarts(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("by_name", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		p2 := w.projectors["http://p2"]
		w.projectors["http://p1"].kill()
		time.Sleep(1100 * time.Millisecond)
		p1 := w.projector("p1")
		w.until("streams are back", 6*time.Second, func() bool { starts, _ := p1.counts(); return starts == vbuckets/2 })
		if starts, _ := p2.counts(); starts != vbuckets/2 {
			t.Errorf("p2 got requests for %d streams, it had %d all the time", starts, vbuckets/2)
		}
		p1.mu.Lock()
		for v, s := range p1.streams["world"] {
			if s.inc.Term != 1 || s.inc.Counter < 2 {
				t.Errorf("vbucket %d runs under %v", v, s.inc)
			}
		}
		p1.mu.Unlock()
		w.write("world", 5)
		w.until("stability goes on", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[0] == 15 })
	})
}

// TestSlowIndexer checks that an indexer that does not answer delays neither other indexers nor DDL; its own index
// waits for it.
func TestSlowIndexer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		slow := w.indexers["http://i1"]
		slow.mu.Lock()
		slow.hang = true
		slow.mu.Unlock()
		mk := func(name string, nodes ...string) index.ID {
			o, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: name, Bucket: "world",
				Nodes: nodes,
				Keys:  []index.KeyExpr{{Expr: "name"}}, Partitions: 1}})
			if err != nil {
				t.Fatal(err)
			}
			return o.ID
		}
		slowly, quickly := mk("slowly", "i1"), mk("quickly", "i2")
		w.until("the other one's index", 3*time.Second, func() bool { return w.state(quickly) == index.Maintenance })
		if w.state(slowly) != index.Pending {
			t.Errorf("the slow one's index is %s", w.state(slowly))
		}
		slow.mu.Lock()
		slow.hang = false
		slow.mu.Unlock()
		w.until("the slow one's index", 20*time.Second, func() bool { return w.state(slowly) == index.Maintenance })
	})
}

// TestDrop checks that hosts are notified of a drop. An absent host does not keep the index, and is notified when it
// is back.
func TestDrop(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		a, b := w.create("a", "", 2, 0), w.create("b", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool {
			return w.state(a.ID) == index.Maintenance && w.state(b.ID) == index.Maintenance
		})
		if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: a.ID, IfMatch: 3}); !errors.Is(err,
			errcode.CASMismatch) {
			t.Fatalf("IfMatch 3: %v", err)
		}
		o, err := w.leader().DropIndex(w.ctx, DropRequest{ID: a.ID})
		if err != nil || o.Definition.State != index.Dropping || o.Definition.Name != "a" {
			t.Fatalf("%+v, %v", o, err)
		}
		w.create("a", "", 1, 0) // the name is free at once
		w.until("gone", 2*time.Second, func() bool { return w.log.State().Index(a.ID) == nil })
		i2 := w.indexers["http://i2"]
		i2.mu.Lock()
		i2.down = true
		i2.mu.Unlock()
		i2.kill()
		time.Sleep(6 * time.Second)
		if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: b.ID}); err != nil {
			t.Fatal(err)
		}
		w.until("gone although a host is away", 2*time.Second, func() bool { return w.log.State().Index(b.ID) == nil })
		back := w.indexer("i2")
		w.until("without the definition", 5*time.Second, func() bool {
			back.mu.Lock()
			defer back.mu.Unlock()
			return back.defs != nil && !slices.ContainsFunc(back.defs.Indexes,
				func(d index.Definition) bool { return d.ID == b.ID })
		})
	})
}

// TestLastIndexDropped checks that streams that are no longer needed are stopped.
func TestLastIndexDropped(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o := w.create("a", "", 1, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: o.ID}); err != nil {
			t.Fatal(err)
		}
		p1 := w.projectors["http://p1"]
		w.until("streams stopped", 2*time.Second, func() bool {
			p1.mu.Lock()
			defer p1.mu.Unlock()
			return len(p1.streams["world"]) == 0
		})
		o = w.create("a", "", 1, 0)
		w.until("READY again", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
	})
}

// TestStatementBeforeTheFirstProjector checks that a statement before the first projector waits for it.
func TestStatementBeforeTheFirstProjector(t *testing.T) {
	inWorld(t, func(w *world) {
		w.indexer("i1")
		answer := make(chan error, 1)
		go func() {
			_, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "a", Bucket: "world",
				Keys: []index.KeyExpr{{Expr: "name"}}, Partitions: 1}})
			answer <- err
		}()
		time.Sleep(core.DefaultSettings().ProjectorWait / 2)
		select {
		case err := <-answer:
			t.Fatalf("answered before there was a projector: %v", err)
		default:
		}
		w.projector("p1")
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}

func TestDDLErrors(t *testing.T) {
	inWorld(t, func(w *world) {
		def := func(name, bucket, expr string) index.Definition {
			return index.Definition{Name: name, Bucket: bucket, Keys: []index.KeyExpr{{Expr: expr}}, Partitions: 1}
		}
		create := func(d index.Definition) error {
			_, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: d})
			return err
		}
		began := time.Now()
		if err := create(def("a", "world", "name")); !errors.Is(err, ErrNoProjector) ||
			time.Since(began) < core.DefaultSettings().ProjectorWait {
			t.Errorf("no projector, after %v: %v", time.Since(began), err)
		}
		w.projector("p1")
		time.Sleep(time.Second)
		if err := create(def("a", "nowhere", "name")); !errors.Is(err, core.ErrUnknownBucket) ||
			!strings.Contains(err.Error(), `"nowhere"`) {
			t.Errorf("unknown bucket: %v", err)
		}
		if err := create(def("a", "wide", "name")); !errors.Is(err, ErrVBuckets) || !strings.Contains(err.Error(), "8192") {
			t.Errorf("a bucket of more vbuckets than there can be: %v", err)
		}
		if err := create(def("a", "world", "name")); !errors.Is(err, rebalance.ErrTooFewNodes) {
			t.Errorf("no indexer: %v", err)
		}
		w.indexer("i1")
		time.Sleep(time.Second)
		d := def("a", "world", "name")
		d.Replicas = 1
		if err := create(d); !errors.Is(err, rebalance.ErrTooFewNodes) {
			t.Errorf("too many replicas: %v", err)
		}
		d = def("a", "world", "name")
		d.Nodes = []string{"i7"}
		if err := create(d); !errors.Is(err, rebalance.ErrUnknownNode) {
			t.Errorf("unknown node: %v", err)
		}
		if err := create(def("a", "world", "name +")); !errors.Is(err, expression.ErrSyntax) {
			t.Errorf("syntax: %v", err)
		}
		if err := create(def("a", "world", "name")); err != nil {
			t.Fatal(err)
		}
		if err := create(def("a", "world", "name")); !errors.Is(err, errcode.NameExists) {
			t.Errorf("twice: %v", err)
		}
		o, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: def("a", "world", "name"), IfNotExists: true})
		if err != nil || !o.Existed || o.ID == 0 {
			t.Errorf("if not exists: %+v, %v", o, err)
		}
		req := &statecontext.Request{Principal: "u", Key: "k1"}
		first, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: def("b", "world", "name"), Request: req})
		if err != nil {
			t.Fatal(err)
		}
		second, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: def("b", "world", "name"), Request: req})
		if err != nil || second.ID != first.ID || !second.Replayed || second.CAS != first.CAS {
			t.Errorf("the same request again: %+v and %+v, %v", first, second, err)
		}
		w.depose()
		if err := create(def("c", "world", "name")); !errors.Is(err, ErrNotLeading) {
			t.Errorf("not leading: %v", err)
		}
		w.lead()
	})
}

func TestRegistration(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		_, err := w.leader().RegisterIndexer(w.ctx, &wire.RegisterIndexer{Endpoint: wire.Endpoint{UUID: "uuid-i1",
			BootID: "other", Admin: "http://x", Maintenance: "x:1"}})
		if !errors.Is(err, core.ErrBootConflict) {
			t.Errorf("a second live process: %v", err)
		}
		restarted := wire.ProjectorEndpoint{ID: "p1", BootID: "other", Admin: "http://p1"}
		if _, err = w.leader().RegisterProjector(w.ctx, &wire.RegisterProjector{Endpoint: restarted}); err != nil {
			t.Errorf("the same one, started again at once: %v", err)
		}
		_, err = w.leader().RegisterProjector(w.ctx, &wire.RegisterProjector{ClusterID: "foreign",
			Endpoint: wire.ProjectorEndpoint{ID: "p9", BootID: "b", Admin: "http://x"}})
		if !errors.Is(err, wire.ErrForeignCluster) {
			t.Errorf("a foreign projector: %v", err)
		}
		if _, err = w.leader().RegisterProjector(w.ctx,
			&wire.RegisterProjector{Endpoint: wire.ProjectorEndpoint{ID: "p9"}}); !errors.Is(err, ErrRegistration) {
			t.Errorf("no boot id: %v", err)
		}
		reply, err := w.leader().HandleIndexerReport(w.ctx, &wire.IndexerReport{Node: 77, UUID: "u", BootID: "b"})
		if err != nil || reply.Known {
			t.Errorf("an unknown indexer: %+v, %v", reply, err)
		}
		if _, err = w.leader().HandleProjectorReport(w.ctx, &wire.ProjectorReport{ID: "p1",
			ClusterID: "foreign"}); !errors.Is(err, wire.ErrForeignCluster) {
			t.Errorf("a foreign report: %v", err)
		}
		// Once the former process is silent, the new one gets its node number, and the leader contacts it.
		old := w.indexers["http://i1"]
		old.kill()
		time.Sleep(2 * time.Second)
		n := w.indexer("i1")
		w.until("taken over", 2*time.Second, func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.hellos == 1 && n.revision > 0 && n.node == old.node
		})
	})
}

// TestStabilize checks that a waiting scan hastens the promotion, and that each failure has its own error.
func TestStabilize(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		need := func(seqno uint64) timestamp.Vector {
			v := timestamp.New(vbuckets)
			for i := range vbuckets {
				v.Seqnos[i] = seqno
			}
			return v
		}
		if _, err := w.leader().Stabilize(w.ctx, "world", need(1)); !errors.Is(err, core.ErrUnknownBucket) {
			t.Errorf("unknown bucket: %v", err)
		}
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		var worst time.Duration
		for range 20 {
			w.write("world", 1)
			want := w.kv["world"].high[0]
			began := time.Now()
			s, err := w.leader().Stabilize(w.ctx, "world", need(want))
			if err != nil || s.Vector.Seqnos[7] < want || s.Number == 0 || s.Hash != s.Vector.Hash() {
				t.Fatalf("%+v, %v", s, err)
			}
			worst = max(worst, time.Since(began))
		}
		t.Logf("the slowest took %v", worst)
		if worst > 60*time.Millisecond {
			t.Errorf("a hurried promotion took %v", worst)
		}
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		if _, err := w.leader().Stabilize(ctx, "world", need(1<<40)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("never reached: %v", err)
		}
		lost := need(1)
		lost.VBUUIDs[2] = 4711
		if _, err := w.leader().Stabilize(w.ctx, "world", lost); !errors.Is(err, core.ErrTokenLost) {
			t.Errorf("a token of a lost branch: %v", err)
		}
		if _, err := w.leader().Stabilize(w.ctx, "world", timestamp.New(3)); !errors.Is(err, timestamp.ErrLength) {
			t.Errorf("a vector of another length: %v", err)
		}
		done := make(chan error, 1)
		leader := w.leader()
		go func() { _, err := leader.Stabilize(w.ctx, "world", need(1<<40)); done <- err }()
		time.Sleep(100 * time.Millisecond)
		w.depose()
		if err := <-done; !errors.Is(err, ErrNotLeading) {
			t.Errorf("the term ended: %v", err)
		}
		w.lead()
	})
}

// TestPromotionsForScansAreNotDelayed checks that promotions that scans wait for are delayed neither by writes of
// another bucket's indexers nor by writes to copies that are being built, and that a bucket without waiting scans is
// not promoted more often than usual.
func TestPromotionsForScansAreNotDelayed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		w.bucket("other", "uuid-other")
		a := w.create("a", "", 1, 0)
		b, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "b", Bucket: "other",
			Keys: []index.KeyExpr{{Expr: "name"}}, Partitions: 1}})
		if err != nil {
			t.Fatal(err)
		}
		w.until("READY", 10*time.Second, func() bool {
			return w.state(a.ID) == index.Maintenance && w.state(b.ID) == index.Maintenance
		})
		for _, n := range w.indexers {
			n.mu.Lock()
			n.prompt = true
			n.mu.Unlock()
		}
		scans := func() time.Duration {
			began := time.Now()
			for range 400 {
				w.write("world", 1)
				w.write("other", 1)
				need := timestamp.New(vbuckets)
				for i := range vbuckets {
					need.Seqnos[i] = w.kv["world"].high[0]
				}
				if _, err := w.leader().Stabilize(w.ctx, "world", need); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		number := func() uint64 { return w.log.State().Bucket("other").Stability.Number }
		was := number()
		usual := scans()
		if n := number() - was; n > uint64(usual/core.DefaultSettings().Pacer.Normal)+1 {
			t.Errorf("%d promotions in %v of a bucket for which no scan waits", n, usual)
		}
		set := func(host index.ID, set func(*fakeIndexer)) {
			node := w.log.State().Index(host).Topology.Copies[0].Node
			for _, n := range w.indexers {
				if n.node == node {
					n.mu.Lock()
					set(n)
					n.mu.Unlock()
				}
			}
		}
		set(b.ID, func(n *fakeIndexer) { n.withholds = true })
		if took := scans(); took > 2*usual {
			t.Errorf("scans took %v while an indexer of another bucket withholds acknowledgements, %v before", took, usual)
		}
		set(b.ID, func(n *fakeIndexer) { n.withholds = false })
		set(a.ID, func(n *fakeIndexer) { n.builds = true })
		if took := scans(); took > 2*usual {
			t.Errorf("scans took %v while copies are being built, %v before", took, usual)
		}
		set(a.ID, func(n *fakeIndexer) { n.builds, n.withholds = false, true })
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
		defer cancel()
		began := time.Now()
		for n := range 3 { // fewer than may be unacknowledged
			need := timestamp.New(vbuckets)
			w.write("world", 1)
			need.Seqnos[0] = w.kv["world"].high[0]
			if _, err := w.leader().Stabilize(ctx, "world", need); err != nil {
				t.Fatalf("%d: %v", n, err)
			}
		}
		if took := time.Since(began); took < core.DefaultSettings().Pacer.Hurried {
			t.Errorf("three promotions took %v, though an indexer withholds them: they are not paced", took)
		}
	})
}

// TestSyncOfAProjectorThatRestarts restarts a projector while a SYNC is in flight, whose answer is lost with the
// process. Its successor must be queried all the same, in the same term.
func TestSyncOfAProjectorThatRestarts(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		asked := func(p *fakeProjector) func() bool {
			return func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.syncs > 0
			}
		}
		p := w.projectors["http://p2"]
		stick := func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.stuck, p.syncs = true, 0
		}
		ctx, cancel := context.WithCancel(w.ctx)
		leader := w.leader()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			need := timestamp.New(vbuckets)
			need.Set(3, timestamp.Position{Seqno: 1 << 40})
			_, _ = leader.Stabilize(ctx, "world", need) // need is never reached, and SYNC is requested as long
		}()
		for range 10 { // an answer that arrives while the process ends may or may not be taken
			stick()
			w.until("a SYNC is on its way", 20*time.Second, asked(p))
			p.kill()
			p = w.projector("p2")
			w.until("the new process is queried", 20*time.Second, asked(p))
		}
		cancel()
		<-ended
	})
}

// TestPace checks that there are at most five promotions a second while writes go on.
func TestPace(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o := w.create("a", "", 1, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		before := w.log.State().Bucket("world").Stability.Number
		for range 100 {
			w.write("world", 1)
			time.Sleep(100 * time.Millisecond)
		}
		if n := w.log.State().Bucket("world").Stability.Number - before; n < 40 || n > 51 {
			t.Errorf("%d promotions in 10 s, want about 50", n)
		}
	})
}

// TestStabilizeAcrossFailover checks that, after a failover without loss, a scan that needs KV's present gets it
// although the committed timestamp is of the previous branch. A scan that waits for a write that a failover has lost
// gets an error, and does not wait until another write reaches that seqno.
func TestStabilizeAcrossFailover(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.write("world", 5)
		stable := func() timestamp.Position { return w.log.State().Bucket("world").Stability.Vector.At(3) }
		w.until("15 is stable", 2*time.Second, func() bool { return stable().Seqno == 15 })
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		at := func(vbuuid, seqno uint64) timestamp.Vector {
			v := timestamp.New(vbuckets)
			v.Set(3, timestamp.Position{VBUUID: vbuuid, Seqno: seqno})
			return v
		}
		lost := make(chan error, 1)
		leader := w.leader()
		go func() { _, err := leader.Stabilize(ctx, "world", at(1003, 16)); lost <- err }()

		p := w.projectors["http://p2"]
		w.mu.Lock()
		kv := w.kv["world"]
		kv.logs[3] = timestamp.FailoverLog{{VBUUID: 2003, Seqno: 15}, {VBUUID: 1003}}
		kv.rev++
		w.mu.Unlock()
		p.mu.Lock()
		delete(p.streams["world"], 3)
		p.mu.Unlock()
		w.until("streamed on the new branch", 5*time.Second, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			s := p.streams["world"][3]
			return s != nil && s.log.Newest() == 2003
		})
		before := stable()
		if s, err := leader.Stabilize(ctx, "world", at(2003, 15)); err != nil || s.Vector.Seqnos[3] != 15 {
			t.Errorf("KV's present after a failover: %+v, %v", s.Vector, err)
		}
		if before.VBUUID != 1003 {
			t.Errorf("the query came too late to show anything: %v was stable", before)
		}
		if err := <-lost; !errors.Is(err, core.ErrTokenLost) {
			t.Errorf("a write that was lost: %v", err)
		}
		if high := stable().Seqno; high != 15 {
			t.Errorf("the answer came with seqno %d", high)
		}
	})
}

// TestStabilizeBeforeAFailoverIsNoticed lets KV fail over and lose writes while the previous stream still seems to
// run. A scan that needs KV's present must not get the lost branch, and makes the leader notice the failover at once.
func TestStabilizeBeforeAFailoverIsNoticed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.write("world", 5)
		w.until("15 is stable", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 15 })
		time.Sleep(time.Second)
		w.mu.Lock() // 13 to 15 are lost, and two other writes take their place
		kv := w.kv["world"]
		kv.rev++
		kv.high[3], kv.logs[3] = 14, timestamp.FailoverLog{{VBUUID: 2003, Seqno: 12}, {VBUUID: 1003}}
		w.mu.Unlock()
		need := timestamp.New(vbuckets)
		need.Set(3, timestamp.Position{VBUUID: 2003, Seqno: 14})
		began := time.Now()
		s, err := w.leader().Stabilize(w.ctx, "world", need)
		if !errors.Is(err, core.ErrInRollback) {
			t.Errorf("%v, %v: that is of the branch which was lost", s.Vector, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("noticed after %v", took)
		}
		w.until("rolled back", 20*time.Second, func() bool { return w.log.State().Bucket("world").Rollback == nil })
		time.Sleep(time.Second) // the leader has seen it, too
		s, err = w.leader().Stabilize(w.ctx, "world", need)
		if err != nil || s.Vector.At(3) != need.At(3) {
			t.Errorf("%v, %v", s.Vector, err)
		}
	})
}

// TestStabilizeOfAnEmptiedVBucket lets KV create a vbucket anew, at 0 on a new branch, while the previous stream
// still seems to run. The timestamp of the old vbucket must not satisfy a scan that needs KV's present.
func TestStabilizeOfAnEmptiedVBucket(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.write("world", 5)
		w.until("15 is stable", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 15 })
		time.Sleep(time.Second)
		w.mu.Lock()
		kv := w.kv["world"]
		kv.rev++
		kv.high[3], kv.logs[3] = 0, timestamp.FailoverLog{{VBUUID: 2003}}
		w.mu.Unlock()
		need := timestamp.New(vbuckets)
		need.Set(3, timestamp.Position{VBUUID: 2003})
		if s, err := w.leader().Stabilize(w.ctx, "world", need); !errors.Is(err, core.ErrInRollback) {
			t.Errorf("%v, %v: that is what the vbucket had before", s.Vector, err)
		}
		w.until("rolled back", 20*time.Second, func() bool { return w.log.State().Bucket("world").Rollback == nil })
		time.Sleep(time.Second) // the leader has seen it, too
		if s, err := w.leader().Stabilize(w.ctx, "world", need); err != nil || s.Vector.Seqnos[3] != 0 {
			t.Errorf("%v, %v", s.Vector, err)
		}
		// It was created anew once more after the scan queried KV: the scan's branch is unknown everywhere, and cannot come
		// back.
		need.Set(3, timestamp.Position{VBUUID: 3003})
		w.mu.Lock()
		kv.rev++
		kv.high[3], kv.logs[3] = 4, timestamp.FailoverLog{{VBUUID: 4003}}
		w.mu.Unlock()
		p := w.projectors["http://p2"]
		p.mu.Lock()
		delete(p.streams["world"], 3)
		p.mu.Unlock()
		w.until("streamed again", 20*time.Second, func() bool {
			b := w.log.State().Bucket("world")
			return b.Rollback == nil && b.Stability.Vector.At(3) == timestamp.Position{VBUUID: 4003, Seqno: 4}
		})
		if s, err := w.leader().Stabilize(w.ctx, "world", need); !errors.Is(err, core.ErrTokenLost) {
			t.Errorf("a branch that KV does not have any more: %v, %v", s.Vector, err)
		}
	})
}

// TestBucketGone checks that a deleted bucket puts its indexes into error, and that an index on a re-created one is
// built only on BUILD.
func TestBucketGone(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.deleted("world")
		w.until("error", 30*time.Second, func() bool { return w.state(o.ID) == index.Error })
		if r := w.log.State().Definition(o.ID).Reason; !strings.HasPrefix(r, "BUCKET_GONE") {
			t.Errorf("reason %q", r)
		}
		w.bucket("world", "uuid-2")
		time.Sleep(10 * time.Second)
		if w.state(o.ID) != index.Error {
			t.Errorf("the index is %s", w.state(o.ID))
		}
		b := w.create("b", "", 1, 0) // registers the new bucket
		w.until("READY", 10*time.Second, func() bool { return w.state(b.ID) == index.Maintenance })
		if _, err := w.leader().BuildIndexes(w.ctx, BuildRequest{IDs: []index.ID{o.ID}}); err != nil {
			t.Fatal(err)
		}
		w.until("built anew", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
	})
}

// TestBuildFindsTheBucketAgain checks that BUILD INDEX, by id and by name, works on a bucket that was re-created
// after its indexes went to error, without a CREATE INDEX that registers it. Until it is re-created BUILD is refused.
func TestBuildFindsTheBucketAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		a, b := w.create("a", "", 2, 0), w.create("b", "", 1, 0)
		ready := func() bool { return w.state(a.ID) == index.Maintenance && w.state(b.ID) == index.Maintenance }
		w.until("READY", 10*time.Second, ready)
		w.deleted("world")
		w.until("gone", 30*time.Second, func() bool { return w.log.State().Bucket("world").Gone })
		request := &statecontext.Request{Principal: "p", Key: "k"}
		build := func() error {
			_, err := w.leader().BuildNamed(w.ctx, index.InBucket("world"), []string{"b"}, request)
			return err
		}
		if err := build(); !errors.Is(err, errcode.BucketGone) {
			t.Errorf("on a bucket that is not there: %v", err)
		}
		w.bucket("world", "uuid-2")
		if err := build(); !errors.Is(err, errcode.BucketGone) || w.log.State().Bucket("world").UUID == "uuid-2" {
			t.Errorf("the same request has another outcome: %v", err)
		}
		request = &statecontext.Request{Principal: "p", Key: "k2"}
		if err := build(); err != nil {
			t.Fatal(err)
		}
		if r := w.log.State().Definition(a.ID).Reason; !strings.Contains(r, "re-created") {
			t.Errorf("the other index says %q", r)
		}
		if _, err := w.leader().BuildIndexes(w.ctx, BuildRequest{IDs: []index.ID{a.ID}}); err != nil {
			t.Fatal(err)
		}
		w.until("built anew", 10*time.Second, ready)
	})
}

// TestBuildOfAVersionFindsTheBucketAgain checks that a build with IfMatch of an index whose bucket was gone is
// accepted, though registering the bucket changes the index. A build of another version registers nothing.
func TestBuildOfAVersionFindsTheBucketAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		a := w.create("a", "", 2, 0)
		ready := func() bool { return w.state(a.ID) == index.Maintenance }
		w.until("READY", 10*time.Second, ready)
		w.deleted("world")
		w.until("gone", 30*time.Second, func() bool { return w.state(a.ID) == index.Error })
		w.bucket("world", "uuid-2")
		was := w.log.State().Definition(a.ID).ModifiedCAS
		build := func(version uint64) error {
			_, err := w.leader().BuildIndexes(w.ctx, BuildRequest{IDs: []index.ID{a.ID}, IfMatch: version})
			return err
		}
		if err := build(was - 1); !errors.Is(err, errcode.CASMismatch) || !w.log.State().Bucket("world").Gone {
			t.Errorf("another version: %v; the bucket is known: %v", err, !w.log.State().Bucket("world").Gone)
		}
		if err := build(was); err != nil {
			t.Fatal(err)
		}
		w.until("built anew", 10*time.Second, ready)
	})
}

// TestStreamedBucketIsNotRemoved checks that a bucket that is being streamed is not removed because of a projector
// whose KV node lacks it or has another one of its name.
func TestStreamedBucketIsNotRemoved(t *testing.T) {
	for _, foreign := range []string{"none", "uuid-of-another-cluster"} {
		inWorld(t, func(w *world) {
			w.components(2)
			o := w.create("a", "", 2, 0)
			w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
			for _, p := range w.projectors {
				p.mu.Lock()
				p.foreign = foreign
				p.mu.Unlock()
			}
			time.Sleep(time.Minute)
			if s := w.state(o.ID); s != index.Maintenance {
				t.Errorf("%s: the index is %s", foreign, s)
			}
			w.write("world", 1)
			w.until("11 is stable", 5*time.Second,
				func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 11 })
		})
	}
}

// TestBuildWithoutItsHostFails checks that a build whose host stays away, and that no other can take over, goes to
// error with advice.
func TestBuildWithoutItsHostFails(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		for _, n := range w.indexers {
			n.mu.Lock()
			n.never = true // the build does not end by itself
			n.mu.Unlock()
		}
		o := w.create("a", "", 2, 1)
		w.until("building", 5*time.Second, func() bool { return w.state(o.ID) == index.Backfill })
		w.hostAway(t, o.ID)
		if r := w.log.State().Definition(o.ID).Reason; !strings.HasPrefix(r, "HOST_AWAY: indexer i1") ||
			!strings.Contains(r, "BUILD INDEX") {
			t.Errorf("reason %q", r)
		}
	})
}

// hostAway kills indexer i1 in the middle of a build, which must go to error after ten minutes and not before.
func (w *world) hostAway(t *testing.T, id index.ID) {
	t.Helper()
	n := w.indexers["http://i1"]
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	n.kill()
	time.Sleep(9 * time.Minute)
	if w.state(id) != index.Backfill {
		t.Fatalf("the index is %s", w.state(id))
	}
	w.until("error", 2*time.Minute, func() bool { return w.state(id) == index.Error })
}

// TestRefusedBuildWithoutItsHostFails checks the same for a build that is complete everywhere, but whose last step is
// refused again and again.
func TestRefusedBuildWithoutItsHostFails(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		refused := 0
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if s, ok := c.Body.(*statecontext.SetIndexState); ok && s.To == index.Maintenance {
				refused++
				return errors.New("not now")
			}
			return nil
		}
		w.log.mu.Unlock()
		o := w.create("a", "", 2, 1)
		w.until("refused", 30*time.Second, func() bool {
			w.log.mu.Lock()
			defer w.log.mu.Unlock()
			return refused > 3
		})
		w.hostAway(t, o.ID)
	})
}

// TestRollback lets KV lose data that an indexer holds and that is committed. The bucket goes back through each step,
// also when the leader changes in the middle, and continues.
func TestRollback(t *testing.T) {
	for _, change := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.components(2)
			o := w.create("a", "", 2, 0)
			w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
			w.write("world", 5)
			w.until("15 is stable", 2*time.Second,
				func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 15 })
			time.Sleep(time.Second)

			late := w.indexers["http://i2"]
			late.mu.Lock()
			late.down = true
			late.mu.Unlock()
			w.loses(3, 12) // 13 to 15

			w.until("rollback", 5*time.Second, func() bool { return w.log.State().Bucket("world").Rollback != nil })
			if _, err := w.leader().Stabilize(w.ctx, "world", timestamp.New(vbuckets)); err != nil &&
				!errors.Is(err, core.ErrInRollback) {
				t.Errorf("a scan meanwhile: %v", err)
			}
			w.until("the awaited component is shown", 4*time.Second, func() bool {
				s, _ := w.leader().Status()
				b := &s.Buckets[0]
				return slices.Equal(b.RollbackWaits, []string{"i2"}) && b.RollbackSinceMS > 0 &&
					strings.HasSuffix(b.Rollback, "waiting for indexers: i2")
			})
			late.mu.Lock()
			late.down = false
			late.mu.Unlock()
			if change {
				w.depose()
				w.lead()
			}
			w.until("cleared", 20*time.Second, func() bool { return w.log.State().Bucket("world").Rollback == nil })
			s := w.log.State().Bucket("world").Stability
			if s.RollbackID != 1 || s.Vector.At(3) != (timestamp.Position{VBUUID: 4711, Seqno: 12}) || s.Vector.Seqnos[2] != 15 {
				t.Errorf("rolled back to %d: %v", s.RollbackID, s.Vector)
			}
			for _, n := range w.indexers {
				n.mu.Lock()
				if !slices.Contains(n.rollbacks, "prepare") || !slices.Contains(n.rollbacks, "rollback") {
					t.Errorf("%s got %v", n.name, n.rollbacks)
				}
				n.mu.Unlock()
			}
			w.write("world", 5)
			w.until("stability goes on", 5*time.Second, func() bool {
				v := w.log.State().Bucket("world").Stability.Vector
				return v.Seqnos[3] == 17 && v.Seqnos[2] == 20
			})
			if w.state(o.ID) != index.Maintenance {
				t.Errorf("the index is %s", w.state(o.ID))
			}
		})
	}
}

// TestRollbackWithoutANode lets a KV node hang and be failed over. Its projector is alive, reports that its streams
// run, and cannot query the node; it reports that, or waits for the node. The rollback must begin although no stream
// has ended and no scan waits, and must not wait for it.
func TestRollbackWithoutANode(t *testing.T) {
	for _, tc := range []struct {
		name         string
		looks, hangs bool
		limit        time.Duration
	}{
		{"the projector says that its node is silent", true, false, time.Second},
		{"the projector waits for its node", true, true, 2 * time.Second},
		{"no watcher, a scan needs it", false, true, 4 * time.Second},
	} {
		inWorld(t, func(w *world) {
			w.looks = tc.looks
			w.components(2)
			o := w.create("a", "", 2, 0)
			w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
			w.write("world", 5)
			w.until("15 is stable", 2*time.Second,
				func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[0] == 15 })

			p1 := w.projectors["http://p1"]
			p1.mu.Lock()
			p1.away, p1.hangs = !tc.hangs, tc.hangs
			p1.mu.Unlock()
			w.mu.Lock() // vbucket 0 loses 13 to 15
			kv := w.kv["world"]
			kv.rev++
			for v := range kv.owner {
				if kv.owner[v] == "p1" {
					kv.owner[v] = "p2"
					kv.logs[v] = append(timestamp.FailoverLog{{VBUUID: 4711, Seqno: kv.high[v]}}, kv.logs[v]...)
				}
			}
			kv.high[0], kv.logs[0][0].Seqno = 12, 12
			need := timestamp.New(vbuckets)
			need.Set(0, timestamp.Position{VBUUID: 4711, Seqno: 12})
			w.mu.Unlock()
			began := time.Now()
			scan := func() bool { // like a client's scan, it retries when it is refused
				ctx, cancel := context.WithTimeout(w.ctx, 500*time.Millisecond)
				defer cancel()
				_, err := w.leader().Stabilize(ctx, "world", need)
				return err == nil
			}
			if tc.looks {
				w.until("rollback", time.Minute, func() bool { return w.log.State().Bucket("world").Rollback != nil })
				w.until("cleared", time.Minute, func() bool { return w.log.State().Bucket("world").Rollback == nil })
			}
			w.until("a scan", time.Minute, scan)
			if took := time.Since(began); took > tc.limit {
				t.Errorf("%s: a scan after %v, want %v", tc.name, took, tc.limit)
			} else {
				t.Logf("%s: a scan after %v", tc.name, took)
			}
			if s := w.log.State().Bucket("world").Stability; s.RollbackID != 1 {
				t.Errorf("%s: rolled back to %d", tc.name, s.RollbackID)
			}
			w.write("world", 5)
			w.until("stability goes on", 10*time.Second,
				func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[0] == 17 })
			if starts, _ := p1.counts(); starts != vbuckets/2 {
				t.Errorf("%s: the projector of the node that hangs has begun %d streams", tc.name, starts)
			}
		})
	}
}

// TestRollbackBesideAHungIndexer lets one of two indexers hang when a rollback begins. All steps together wait for it
// only until it is suspect, and the streams that start again do not wait for it either. When it continues it is
// rolled back.
func TestRollbackBesideAHungIndexer(t *testing.T) {
	const limit = 3 * time.Second
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.write("world", 5)
		w.until("15 is stable", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[0] == 15 })
		w.mu.Lock()
		hung := w.indexers["http://i2"]
		w.mu.Unlock()
		stop := func(on bool) {
			hung.mu.Lock()
			hung.stopped = on
			hung.mu.Unlock()
		}
		stop(true)
		began := time.Now()
		w.mu.Lock() // vbucket 0 fails over and loses 13 to 15
		kv := w.kv["world"]
		kv.rev++
		kv.high[0], kv.logs[0] = 12, append(timestamp.FailoverLog{{VBUUID: 4711, Seqno: 12}}, kv.logs[0]...)
		w.mu.Unlock()
		for _, id := range []string{"p1", "p2"} {
			p := w.projectors["http://"+id]
			p.mu.Lock()
			delete(p.streams["world"], 0)
			p.mu.Unlock()
		}
		w.until("rollback", time.Minute, func() bool { return w.log.State().Bucket("world").Rollback != nil })
		w.until("cleared", time.Minute, func() bool { return w.log.State().Bucket("world").Rollback == nil })
		cleared := time.Since(began)
		w.write("world", 5)
		w.until("stability goes on", time.Minute,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[0] == 17 })
		if took := time.Since(began); took > limit {
			t.Errorf("stability goes on after %v, the rollback took %v; want %v", took, cleared, limit)
		}
		stop(false)
		w.until("the other gets it", time.Minute, func() bool {
			hung.mu.Lock()
			defer hung.mu.Unlock()
			return hung.stable["world"].RollbackID == 1
		})
	})
}

// TestIdleBucketAfterARecovery checks a recovery, which skips numbers of stability timestamps and of rollbacks.
// Indexers hold the vector of an idle bucket under its old numbers, and must be sent the new ones although nothing is
// written, as scans request them. Later writes are promoted.
func TestIdleBucketAfterARecovery(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.write("world", 5)
		w.until("15 is stable", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 15 })
		time.Sleep(time.Second)
		w.depose()
		s := w.log.State()
		if _, err := w.log.Propose(w.ctx, statecontext.Command{TimeMS: time.Now().UnixMilli(),
			Body: &statecontext.RaiseEpoch{Epoch: s.Epoch() + 1, SkipNumbers: true}}); err != nil {
			t.Fatal(err)
		}
		w.lead()
		w.until("the new number is published", 20*time.Second, func() bool {
			for _, n := range w.indexers {
				n.mu.Lock()
				got := n.stable["world"]
				n.mu.Unlock()
				was, now := s.Bucket("world").Stability, w.log.State().Bucket("world").Stability
				if got.Number <= was.Number || got.RollbackID <= was.RollbackID || got.Number != now.Number ||
					got.RollbackID != now.RollbackID {
					return false
				}
			}
			return true
		})
		w.write("world", 1)
		w.until("16 is stable", 20*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 16 })
	})
}

// TestStabilityAge checks that the next leader knows the age of the newest stability timestamp, too, and that it
// grows while nothing is written.
func TestStabilityAge(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.write("world", 5)
		w.until("15 is stable", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 15 })
		began := time.Now()
		grown := func(least time.Duration) {
			t.Helper()
			w.until("its age", 10*time.Second, func() bool {
				s, ok := w.leader().Status()
				if !ok || len(s.Buckets) != 1 || s.Buckets[0].AgeMS == nil {
					return false // no picture yet
				}
				// the state's time may lack the time without a leader
				age, real := time.Duration(*s.Buckets[0].AgeMS)*time.Millisecond, time.Since(began)
				return age >= least && age <= real+time.Second
			})
		}
		grown(3 * time.Second)
		w.depose()
		w.lead()
		grown(3 * time.Second)
		time.Sleep(5 * time.Second)
		grown(8 * time.Second)
		if n := w.log.State().Bucket("world").Stability.Vector.Seqnos[3]; n != 15 {
			t.Errorf("%d is stable, nothing was written", n)
		}
	})
}

// TestSilentTakeover moves a vbucket to the other node, while the old producer never reports that its stream has
// ended.
func TestSilentTakeover(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.mu.Lock()
		kv := w.kv["world"]
		kv.rev, kv.owner[0] = kv.rev+1, "p2"
		kv.logs[0] = append(timestamp.FailoverLog{{VBUUID: 4711, Seqno: kv.high[0]}}, kv.logs[0]...)
		w.mu.Unlock()
		w.write("world", 5)
		took := w.until("stability goes on", time.Minute,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[0] == 15 })
		t.Logf("noticed and repaired after %v", took)
		if starts, _ := w.projectors["http://p2"].counts(); starts != vbuckets/2+1 {
			t.Errorf("p2 got requests for %d streams", starts)
		}
	})
}
