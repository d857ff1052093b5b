package coordinator

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/timestamp"
	"tidemark/wire"
)

// on returns the copies that an index has on a node.
func (w *world) on(id index.ID, node index.NodeID) (copies []partition.Copy) {
	for _, c := range w.log.State().Index(id).Topology.Copies {
		if c.Node == node {
			copies = append(copies, c)
		}
	}
	return copies
}

// die ends an indexer and waits until it counts as offline.
func (w *world) die(name string) *fakeIndexer {
	w.t.Helper()
	n := w.indexers["http://"+name]
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	n.kill()
	w.until(name+" is offline", time.Minute, func() bool {
		s, _ := w.leader().Status()
		return slices.ContainsFunc(s.Indexers, func(i core.IndexerStatus) bool {
			return i.Name == name &&
				i.Life == liveness.Offline
		})
	})
	return n
}

// TestRemoveIndexer checks that a dead indexer's copies are placed on live ones and filled there, with force if they
// were the only ones, and that its uuid is refused forever. Nothing happens to a live indexer, in a dry run, or if
// there is no place for the copies.
func TestRemoveIndexer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		lone, pair := w.create("lone", "", 3, 0), w.create("pair", "", 3, 1)
		w.until("READY", 20*time.Second, func() bool {
			return w.state(lone.ID) == index.Maintenance && w.state(pair.ID) == index.Maintenance
		})
		if w.log.counted("*statecontext.EvictCopies") != 0 {
			t.Error("copies were taken off a node that is not being removed")
		}
		remove := func(id string, force, dry bool) (Removal, error) {
			return w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: id, Force: force, DryRun: dry})
		}
		if _, err := remove("nobody", true, false); !errors.Is(err, ErrUnknownComponent) {
			t.Errorf("an unknown one: %v", err)
		}
		if _, err := remove("i2", false, false); !errors.Is(err, ErrAlive) {
			t.Errorf("one that lives: %v", err)
		}
		node := w.indexers["http://i2"].node
		had := len(w.on(lone.ID, node)) + len(w.on(pair.ID, node))
		w.die("i2")
		r, err := remove("i2", false, true)
		if err != nil || r.Alive || len(r.Losses) != 2 {
			t.Fatalf("a dry run: %+v, %v", r, err)
		}
		for _, l := range r.Losses {
			if want := l.Index == lone.ID; (l.LastCopies > 0) != want || l.Rebuilt != want ||
				l.Copies != len(w.on(l.Index, node)) {
				t.Errorf("%+v", l)
			}
		}
		if _, err := remove("i2", false, false); !errors.Is(err, ErrLastCopies) ||
			!strings.Contains(err.Error(), "world/lone (1 slices)") {
			t.Errorf("with the only copies: %v", err)
		}
		if now := len(w.on(lone.ID, node)) + len(w.on(pair.ID, node)); now != had ||
			w.log.count["*statecontext.EvictIndexer"] != 0 {
			t.Fatalf("%d copies of %d are left, %d removals were proposed: nothing should have happened", now, had,
				w.log.count["*statecontext.EvictIndexer"])
		}
		for range 2 { // a repetition gives the same
			if r, err := remove("uuid-i2", true, false); err != nil || !r.Done || r.Waits != "" {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		s := w.log.State()
		if s.Indexer(node) != nil || len(w.on(lone.ID, node))+len(w.on(pair.ID, node)) != 0 {
			t.Fatal("it is still there")
		}
		if n := len(s.Index(lone.ID).Topology.Copies) + len(s.Index(pair.ID).Topology.Copies); n != 3+6 {
			t.Errorf("%d copies, want 9", n)
		}
		w.until("the new copies are filled", 20*time.Second, func() bool {
			for _, id := range []index.ID{lone.ID, pair.ID} {
				x := w.log.State().Index(id)
				if x.Definition.State != index.Maintenance || slices.ContainsFunc(x.Topology.Copies,
					func(c partition.Copy) bool { return c.State != partition.Allocated }) {
					return false
				}
			}
			return true
		})
		_, err = w.leader().RegisterIndexer(w.ctx, &wire.RegisterIndexer{Endpoint: wire.Endpoint{UUID: "uuid-i2",
			BootID: "later", Admin: "http://i2", Maintenance: "i2:2"}})
		if !errors.Is(err, errcode.NodeRemoved) {
			t.Errorf("its folder comes back: %v", err)
		}
		w.die("i1") // two replicas of each slice have no place on one node
		if _, err := remove("i1", true, false); !errors.Is(err, rebalance.ErrTooFewNodes) {
			t.Errorf("without a place for its copies: %v", err)
		}
	})
}

// TestRetriedRemovalKeepsItsOutcome repeats a request whose answer was lost, perhaps to the next leader: the answer
// is that the indexer is gone, and another indexer that has its name by then is left alone. A new request with that
// name is refused.
func TestRetriedRemovalKeepsItsOutcome(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		o := w.create("x", "", 6, 1)
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.die("i2")
		remove := func(key string) (Removal, error) {
			return w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i2", Force: true,
				Request: &statecontext.Request{Principal: "p", Key: key}})
		}
		if r, err := remove("first"); err != nil || !r.Done || r.Indexer.UUID != "uuid-i2" {
			t.Fatalf("%+v, %v", r, err)
		}
		for _, when := range []string{"again", "at the next leader"} {
			if r, err := remove("first"); err != nil || !r.Done || r.Indexer.Name != "i2" {
				t.Errorf("%s: %+v, %v", when, r, err)
			}
			w.depose()
			w.lead()
		}
		if _, err := remove("second"); !errors.Is(err, ErrUnknownComponent) {
			t.Errorf("another request: %v", err)
		}
		if _, err := w.leader().RegisterIndexer(w.ctx, &wire.RegisterIndexer{Endpoint: wire.Endpoint{UUID: "uuid-new",
			Name: "i2", BootID: "new", Admin: "http://new", Maintenance: "new:2"}}); err != nil {
			t.Fatal(err)
		}
		if r, err := remove("first"); err != nil || !r.Done || w.log.State().IndexerByUUID("uuid-new") == nil {
			t.Errorf("beside another one of its name: %+v, %v", r, err)
		}
		if n := w.log.count["*statecontext.EvictIndexer"]; n != 1 {
			t.Errorf("%d removals were proposed", n)
		}
	})
}

// TestRemovalIsReplanned changes definitions between the plan of a removal and its proposal. The removal is
// planned for the new definitions, also under an Idempotency-Key, which still has one outcome.
func TestRemovalIsReplanned(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		o := w.create("x", "", 6, 1)
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.die("i2")
		c, in := w.interrupt()
		in.before = []func(){func() { w.create("y", "", 2, 0) }, func() { w.create("z", "", 2, 0) }}
		for try := range 2 {
			r, err := c.RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i2", Force: true,
				Request: &statecontext.Request{Principal: "p", Key: "k"}})
			if err != nil || !r.Done {
				t.Fatalf("try %d: %+v, %v", try, r, err)
			}
		}
		if len(in.before) > 0 || !w.log.State().Removed("uuid-i2") {
			t.Errorf("%d changes have not come between, removed: %v", len(in.before), w.log.State().Removed("uuid-i2"))
		}
	})
}

// TestRemoveProjector checks that a live projector is not removed without force, and that a dead one is.
func TestRemoveProjector(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		if _, _, err := w.leader().RemoveProjector(w.ctx, "p9", false, nil); !errors.Is(err, ErrUnknownComponent) {
			t.Errorf("an unknown one: %v", err)
		}
		if _, alive, err := w.leader().RemoveProjector(w.ctx, "p2", false, nil); !errors.Is(err, ErrAlive) || !alive {
			t.Errorf("one that lives: %v", err)
		}
		p := w.projectors["http://p2"]
		p.mu.Lock()
		p.down = true
		p.mu.Unlock()
		p.kill()
		w.until("p2 is offline", time.Minute, func() bool {
			s, _ := w.leader().Status()
			return slices.ContainsFunc(s.Projectors, func(p core.ProjectorStatus) bool {
				return p.ID == "p2" &&
					p.Life == liveness.Offline
			})
		})
		if _, alive, err := w.leader().RemoveProjector(w.ctx, "p2", false, nil); err != nil || alive {
			t.Errorf("one that is dead: %v, %v", alive, err)
		}
		if w.log.State().Projector("p2") != nil {
			t.Error("it is still there")
		}
	})
}

// TestProjectorLeaves checks that a projector that has ended for good unregisters, once or repeatedly, and that a
// late request of an earlier process of its id does not unregister the present one.
func TestProjectorLeaves(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		boot := w.log.State().Projector("p2").BootID
		leave := wire.LeaveProjector{ClusterID: w.log.State().ClusterID(), ID: "p2", BootID: "earlier"}
		if err := w.leader().LeaveProjector(w.ctx, &leave); err != nil || w.log.State().Projector("p2") == nil {
			t.Errorf("an earlier process: %v", err)
		}
		foreign := leave
		foreign.ClusterID, foreign.BootID = "another", boot
		if err := w.leader().LeaveProjector(w.ctx, &foreign); !errors.Is(err, wire.ErrForeignCluster) {
			t.Errorf("another cluster's: %v", err)
		}
		if err := w.leader().LeaveProjector(w.ctx, &wire.LeaveProjector{ID: "p2"}); !errors.Is(err, ErrRegistration) {
			t.Errorf("without a boot id: %v", err)
		}
		w.projectors["http://p2"].kill()
		leave.BootID = boot
		for range 2 {
			if err := w.leader().LeaveProjector(w.ctx, &leave); err != nil || w.log.State().Projector("p2") != nil {
				t.Fatalf("it leaves: %v", err)
			}
		}
		w.until("it is in no list", time.Minute, func() bool {
			s, _ := w.leader().Status()
			return len(s.Projectors) == 1 && s.Projectors[0].ID == "p1"
		})
	})
}

// TestRemoveIndexerBesideEmptyCopies checks that a replica that ALTER INDEX has just placed, and that is not filled,
// does not make the indexer with the only whole copies removable.
func TestRemoveIndexerBesideEmptyCopies(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		lone := w.create("lone", "", 2, 0)
		w.until("READY", 20*time.Second, func() bool { return w.state(lone.ID) == index.Maintenance })
		for _, name := range []string{"i2", "i3"} {
			n := w.indexer(name)
			n.mu.Lock()
			n.never = true // its copies never become whole
			n.mu.Unlock()
		}
		w.until("they are there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 3 })
		one := 1
		req := AlterRequest{ID: lone.ID, Replicas: &one}
		if _, err := w.leader().AlterIndex(w.ctx, req); err != nil {
			t.Fatal(err)
		}
		w.until("the new copies are made", 20*time.Second, func() bool {
			made := append(w.on(lone.ID, w.nodeOf("i2")), w.on(lone.ID, w.nodeOf("i3"))...)
			return len(made) == 2 && made[0].State == partition.Allocated && made[1].State == partition.Allocated
		})
		w.die("i1")
		remove := func() error {
			_, err := w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i1"})
			return err
		}
		if err := remove(); !errors.Is(err, ErrLastCopies) || !strings.Contains(err.Error(), "world/lone (2 slices)") {
			t.Fatalf("with the only whole copies: %v", err)
		}
	})
}

// TestRemoveIndexerAtANewLeader checks that a new leader does not report that an indexer is alive, or has the only
// copies, merely because reports are missing: it waits for them.
func TestRemoveIndexerAtANewLeader(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		pair := w.create("pair", "", 3, 1)
		w.until("READY", 20*time.Second, func() bool { return w.state(pair.ID) == index.Maintenance })
		w.die("i1")
		w.depose()
		w.lead()
		if r, err := w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i1"}); err != nil {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// TestRemoveIndexerDuringARollback checks that, during a rollback and until an indexer has reported that it is back,
// the contents of its copies are unknown: removals and dropped replicas are refused with that reason, and not because
// the copies were the only ones.
func TestRemoveIndexerDuringARollback(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		pair := w.create("pair", "", 3, 1)
		w.until("READY", 20*time.Second, func() bool { return w.state(pair.ID) == index.Maintenance })
		w.write("world", 5)
		w.until("15 is stable", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 15 })
		hang := func(yes bool) {
			for _, name := range []string{"i2", "i3"} {
				n := w.indexers["http://"+name]
				n.mu.Lock()
				n.down = yes
				n.mu.Unlock()
			}
		}
		hang(true)
		w.mu.Lock() // vbucket 3 fails over and loses 13 to 15
		kv := w.kv["world"]
		kv.rev++
		kv.high[3], kv.logs[3] = 12, append(timestamp.FailoverLog{{VBUUID: 4711, Seqno: 12}}, kv.logs[3]...)
		w.mu.Unlock()
		p2 := w.projectors["http://p2"]
		p2.mu.Lock()
		delete(p2.streams["world"], 3)
		p2.mu.Unlock()
		w.until("rollback", 5*time.Second, func() bool { return w.log.State().Bucket("world").Rollback != nil })
		remove := func(dry bool) error {
			_, err := w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i1", DryRun: dry})
			return err
		}
		zero := 0
		if _, err := w.leader().AlterIndex(w.ctx, AlterRequest{ID: pair.ID, Replicas: &zero}); !errors.Is(err, ErrNotKnown) {
			t.Errorf("a replica less: %v", err)
		}
		w.die("i1")
		if err := remove(false); !errors.Is(err, ErrNotKnown) {
			t.Errorf("a removal: %v", err)
		}
		if err := remove(true); !errors.Is(err, ErrNotKnown) {
			t.Errorf("a dry run: %v", err)
		}
		hang(false)
		w.until("it is known", time.Minute, func() bool { return remove(false) == nil })
	})
}
