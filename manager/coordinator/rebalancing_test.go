package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// rebalanced waits until no rebalance is running and no copy is leaving, and returns the number of copies by node.
func (w *world) rebalanced(limit time.Duration) map[index.NodeID]int {
	w.t.Helper()
	w.until("rebalance is over", limit, func() bool {
		s := w.log.State()
		if s.RebalanceUnderWay() != nil {
			return false
		}
		for x := range s.Indexes() {
			if slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool { return c.State != partition.Allocated }) {
				return false
			}
		}
		return true
	})
	held := map[index.NodeID]int{}
	for x := range w.log.State().Indexes() {
		for _, c := range x.Topology.Copies {
			held[c.Node]++
		}
	}
	return held
}

// moving starts three indexers with two READY indexes.
func (w *world) moving() (lone, pair Outcome) {
	w.t.Helper()
	w.components(3)
	lone, pair = w.create("lone", "", 6, 0), w.create("pair", "", 6, 1)
	w.until("READY", 20*time.Second, func() bool {
		return w.state(lone.ID) == index.Maintenance && w.state(pair.ID) == index.Maintenance
	})
	return lone, pair
}

// repairAfter is RepairAfter in terms begun by repairsSoon.
const repairAfter = 3 * time.Minute

// repairsSoon begins a term with repairAfter, which takes less to simulate than the product's quarter of an hour.
func (w *world) repairsSoon() {
	w.settings.RepairAfter = repairAfter
	w.depose()
	w.lead()
}

// lag waits until promotion waits for all indexers of the bucket but these, as shown by the status and by the
// bucket's page.
func (w *world) lag(nodes ...index.NodeID) {
	w.t.Helper()
	w.until(fmt.Sprintf("indexers %v lag", nodes), 10*time.Second, func() bool {
		s, _ := w.leader().Status()
		v, err := w.leader().View(w.ctx, "world")
		if err != nil {
			w.t.Fatal(err)
		}
		var silent []index.NodeID
		for _, p := range v.Participants {
			if p.Ignored == "silent" {
				silent = append(silent, p.Node)
			}
		}
		return len(s.Buckets) == 1 && slices.Equal(s.Buckets[0].Lagging, nodes) && slices.Equal(silent, nodes)
	})
}

func (w *world) nodeOf(name string) index.NodeID {
	for i := range w.log.State().Indexers() {
		if i.Name == name {
			return i.Node
		}
	}
	w.t.Fatalf("no indexer %s", name)
	return 0
}

// TestPlansExpectWhatIndexersSend checks that a plan's duration is computed from the rate at which indexers may send
// and check, unless the request gives a rate.
func TestPlansExpectWhatIndexersSend(t *testing.T) {
	inWorld(t, func(w *world) {
		w.moving()
		w.indexer("i4")
		w.until("i4 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 4 })
		for _, c := range []struct{ rate, says, want int64 }{
			{0, 0, 64 << 20 * 8 / 10}, {10 << 20, 0, 8 << 20}, {10 << 20, 5000, 5000},
		} {
			if _, err := w.log.Propose(w.ctx, statecontext.Command{Body: &statecontext.SetLimits{
				Limits: statecontext.Limits{TransferRate: c.rate}}}); err != nil {
				t.Fatal(err)
			}
			p, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{DryRun: true,
				Options: rebalance.Options{BytesPerSecond: c.says}})
			if err != nil || len(p.Steps) == 0 || p.Options.BytesPerSecond != c.want {
				t.Errorf("%+v: %+v, %v", c, p, err)
			}
		}
	})
}

// TestRebalanceToANewIndexer checks that a fourth indexer gets its share, one copy after the other; then one is
// emptied and can be removed. The number of whole copies never falls, and no entry is counted twice.
func TestRebalanceToANewIndexer(t *testing.T) {
	inWorld(t, func(w *world) {
		lone, pair := w.moving()
		if _, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test"}); !errors.Is(err, ErrBalanced) {
			t.Fatalf("nothing to do: %v", err)
		}
		w.indexer("i4")
		w.until("i4 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 4 })
		p, id, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", DryRun: true})
		if err != nil || id != 0 || len(p.Steps) != 4 {
			t.Fatalf("a dry run: %+v, %d, %v", p, id, err)
		}
		if _, id, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Plan: p}); err != nil || id == 0 {
			t.Fatal(id, err)
		}
		if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Plan: p}); !errors.Is(err,
			errcode.RebalanceRunning) {
			t.Fatalf("a second one: %v", err)
		}
		most, counted := 0, uint64(0)
		w.until("done", time.Minute, func() bool {
			busy := 0
			for y := range w.log.State().RebalanceSteps() {
				if y.State == partition.RebalancePending || y.State == partition.RebalanceCatchup {
					busy++
				}
			}
			most = max(most, busy)
			s, _ := w.leader().Status()
			for _, of := range []index.ID{lone.ID, pair.ID} {
				counted = max(counted, s.Progress[of].Items)
			}
			w.whole()
			return w.log.State().RebalanceUnderWay() == nil
		})
		if most != 1 {
			t.Errorf("%d copies were received at a time", most)
		}
		if counted != 6*7 {
			t.Errorf("%d entries were counted, there are 7 in each of 6 slices", counted)
		}
		if r := w.log.State().Rebalance(id); r.Phase != statecontext.RebalanceFinished || r.Done != 4 {
			t.Errorf("%+v", r)
		}
		if held := w.rebalanced(time.Minute); held[w.nodeOf("i4")] != 4 {
			t.Errorf("copies %v", held)
		}
		if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Plan: p}); !errors.Is(err, ErrBalanced) {
			t.Errorf("the plan is done: %v", err)
		}

		all := w.log.State().Topology(lone.ID).Copies
		reports, err := w.leader().Copies(w.ctx, append(slices.Clone(all), partition.Copy{ID: 999, Node: 77}))
		if err != nil || len(reports) != len(all) || !reports[all[0].ID].Ready {
			t.Errorf("%+v of %d copies, %v", reports, len(all), err)
		}

		i2 := w.nodeOf("i2")
		if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Remove: []string{"i2"},
			Options: rebalance.Options{Receives: 2, Sends: 4}}); err != nil {
			t.Fatal(err)
		}
		if held := w.rebalanced(time.Minute); held[i2] != 0 || !w.log.State().Going(i2) {
			t.Errorf("copies %v", held)
		}
		o := w.create("later", "", 4, 2)
		for _, c := range w.log.State().Topology(o.ID).Copies {
			if c.Node == i2 {
				t.Error("a new index was placed on an indexer that is to leave")
			}
		}
		if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Keep: []string{"i2"}}); err != nil {
			t.Fatal(err)
		}
		if held := w.rebalanced(time.Minute); held[i2] == 0 || w.log.State().Going(i2) {
			t.Errorf("copies %v", held)
		}
		if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Remove: []string{"nobody"}}); !errors.Is(err,
			ErrUnknownComponent) {
			t.Error(err)
		}
	})
}

// whole fails if a slice has fewer allocated copies than replicas that should serve.
func (w *world) whole() {
	w.t.Helper()
	for x := range w.log.State().Indexes() {
		if x.Definition.State != index.Maintenance {
			continue
		}
		count := map[index.SliceID]int{}
		for _, c := range x.Topology.Copies {
			if c.State == partition.Allocated {
				count[c.Slice]++
			}
		}
		for s := range index.SliceID(x.Topology.Layout.Partitions) {
			if count[s] < int(x.Definition.Replicas)+1 {
				w.t.Fatalf("slice %d of %s has %d copies", s, x.Definition.Name, count[s])
			}
		}
	}
}

// TestRebalanceSurvivesItsLeaders checks that a rebalance continues under new leaders, which know nothing of their
// predecessors.
func TestRebalanceSurvivesItsLeaders(t *testing.T) {
	inWorld(t, func(w *world) {
		w.moving()
		w.indexer("i4")
		w.until("i4 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 4 })
		if _, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test"}); err != nil {
			t.Fatal(err)
		}
		for range 8 {
			time.Sleep(170 * time.Millisecond)
			w.whole()
			w.depose()
			w.lead()
		}
		if held := w.rebalanced(5 * time.Minute); held[w.nodeOf("i4")] != 4 {
			t.Errorf("copies %v", held)
		}
	})
}

// TestRebalanceIsCancelled checks that a cancelled rebalance leaves only whole copies.
func TestRebalanceIsCancelled(t *testing.T) {
	inWorld(t, func(w *world) {
		w.moving()
		n := w.indexer("i4")
		n.mu.Lock()
		n.never = true // its copies never become whole
		n.mu.Unlock()
		w.until("i4 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 4 })
		_, id, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test"})
		if err != nil {
			t.Fatal(err)
		}
		w.until("a copy is fed", time.Minute, func() bool {
			for y := range w.log.State().RebalanceSteps() {
				if y.State == partition.RebalanceCatchup {
					return true
				}
			}
			return false
		})
		time.Sleep(time.Minute)
		w.whole()
		if err := w.leader().CancelRebalance(w.ctx, id+1); !errors.Is(err, ErrUnknownRebalance) {
			t.Error(err)
		}
		if err := w.leader().CancelRebalance(w.ctx, id); err != nil {
			t.Fatal(err)
		}
		if held := w.rebalanced(time.Minute); held[w.nodeOf("i4")] != 0 {
			t.Errorf("copies %v", held)
		}
		if r := w.log.State().Rebalance(id); r.Phase != statecontext.RebalanceCancelled {
			t.Errorf("%+v", r)
		}
	})
}

// TestLostCopiesAreRepaired checks that copies of an indexer that stays away beyond the limit are made anew
// elsewhere. An indexer that comes back before is left alone, and steps whose target dies are given up and repaired
// by the next attempt.
func TestLostCopiesAreRepaired(t *testing.T) {
	inWorld(t, func(w *world) {
		w.repairsSoon()
		_, pair := w.moving()
		i1 := w.nodeOf("i1")
		w.die("i1")
		time.Sleep(repairAfter * 14 / 15)
		if w.log.State().RebalanceUnderWay() != nil || len(w.on(pair.ID, i1)) == 0 {
			t.Fatal("repaired before the limit")
		}
		w.lag(i1)
		time.Sleep(repairAfter * 2 / 15)
		held := w.rebalanced(time.Minute)
		if held[i1] != 0 || held[w.nodeOf("i2")] != 9 || held[w.nodeOf("i3")] != 9 {
			t.Errorf("copies %v", held)
		}
		w.whole()
		w.lag() // the bucket has no copy there any more
		cause := ""
		for r := range w.log.State().Rebalances() {
			cause += fmt.Sprint(r.Cause, " ", r.Phase, ";")
		}
		if cause != "repair done;" {
			t.Error(cause)
		}
		// A second one dies: replicas of pair have no other place, the rest is made anew.
		w.die("i2")
		time.Sleep(2 * repairAfter)
		if n := len(w.on(pair.ID, w.nodeOf("i2"))); n == 0 {
			t.Error("a replica has a place where there is none")
		}
		s, _ := w.leader().Status()
		for _, i := range s.Indexers {
			if i.Name == "i3" && i.Life != liveness.Active {
				t.Errorf("%+v", i)
			}
		}
	})
}

// TestRepairIsCountedOverLeaders checks that a lost indexer is repaired although leaders change every 30 s, and
// although it comes back and crashes before it has reported; once it works again it is back.
func TestRepairIsCountedOverLeaders(t *testing.T) {
	inWorld(t, func(w *world) {
		w.moving()
		i1, began := w.nodeOf("i1"), time.Now()
		w.die("i1")
		repaired := func() bool { return w.log.State().Rebalance(1) != nil }
		w.until("it is noted", 10*time.Second, func() bool { return w.log.State().Indexer(i1).Offline != nil })
		first := *w.log.State().Indexer(i1).Offline
		for !repaired() {
			if time.Since(began) > 20*time.Minute {
				t.Fatal("no repair, though it is away for 20 minutes")
			}
			w.depose()
			w.lead()
			n := w.indexer("i1")
			n.mu.Lock()
			n.stopped = true // it registers, and reports nothing
			n.mu.Unlock()
			for range 30 {
				time.Sleep(time.Second)
				if a := w.log.State().Indexer(i1).Offline; a == nil || *a != first {
					t.Fatalf("after %v it is away since %+v, want %+v", time.Since(began), a, first)
				}
			}
			n.kill()
		}
		if took := time.Since(began); took < 15*time.Minute || took > 16*time.Minute+10*time.Second {
			t.Errorf("repaired after %v", took)
		}
		if held := w.rebalanced(5 * time.Minute); held[i1] != 0 {
			t.Errorf("copies %v", held)
		}
		w.whole()
		w.indexer("i1")
		w.until("it is back", 10*time.Second, func() bool { return w.log.State().Indexer(i1).Offline == nil })
	})
}

// TestRepairPrecedesARebalance checks that a repair does not wait for a rebalance that goes on and on: that is
// cancelled, unless it makes the lost copies anew itself.
func TestRepairPrecedesARebalance(t *testing.T) {
	inWorld(t, func(w *world) {
		w.repairsSoon()
		w.moving()
		i1, i4 := w.nodeOf("i1"), w.indexer("i4")
		never := func(never bool) {
			i4.mu.Lock()
			defer i4.mu.Unlock()
			i4.never = never
		}
		never(true)
		w.until("i4 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 4 })
		_, id, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test"})
		if err != nil {
			t.Fatal(err)
		}
		w.step(partition.RebalanceCatchup)
		w.die("i1")
		time.Sleep(repairAfter * 14 / 15)
		if p := w.log.State().Rebalance(id).Phase; p != statecontext.RebalanceRunning {
			t.Fatalf("before the time is over: %v", p)
		}
		w.until("it gives way", repairAfter/5, func() bool {
			return w.log.State().Rebalance(id).Phase == statecontext.RebalanceCancelled
		})
		never(false)
		w.until("the repair begins", time.Minute, func() bool { return w.log.State().Rebalance(id+1) != nil })
		if held := w.rebalanced(5 * time.Minute); held[i1] != 0 {
			t.Errorf("copies %v", held)
		}
		w.whole()

		w.die("i2")
		w.until("i2 is away", time.Minute, func() bool { s, _ := w.leader().Status(); return !alive(s, "i2") })
		never(true)
		if _, id, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * repairAfter)
		if p := w.log.State().Rebalance(id).Phase; p == statecontext.RebalanceCancelled ||
			p == statecontext.RebalanceCancelling {
			t.Errorf("one that makes anew what was lost: %v", p)
		}
	})
}

func alive(s core.Status, name string) bool {
	i := slices.IndexFunc(s.Indexers, func(i core.IndexerStatus) bool { return i.Name == name })
	return i >= 0 && s.Indexers[i].Life != liveness.Offline
}

// one starts an indexer with a READY index of the given number of slices and no replica, then a second indexer.
func (w *world) one(slices uint16, second func(*fakeIndexer)) Outcome {
	w.t.Helper()
	w.components(1)
	o := w.create("lone", "", slices, 0)
	w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
	n := w.indexer("i2")
	n.mu.Lock()
	second(n)
	n.mu.Unlock()
	w.until("i2 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 2 })
	return o
}

// step waits until some step of the rebalance is in a state.
func (w *world) step(state partition.RebalanceState) {
	w.t.Helper()
	w.until(fmt.Sprint("a step is ", state), time.Minute, func() bool {
		for y := range w.log.State().RebalanceSteps() {
			if y.State == state {
				return true
			}
		}
		return false
	})
}

// TestTheSourceOfAMoveHasTheLastCopy checks that the source of a move has the only whole copy of the slice until the
// new one is whole.
func TestTheSourceOfAMoveHasTheLastCopy(t *testing.T) {
	inWorld(t, func(w *world) {
		o := w.one(1, func(n *fakeIndexer) { n.never = true })
		if _, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Remove: []string{"i1"}}); err != nil {
			t.Fatal(err)
		}
		w.step(partition.RebalanceCatchup)
		w.die("i1")
		r, err := w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i1"})
		if !errors.Is(err, ErrLastCopies) || len(w.on(o.ID, w.nodeOf("i1"))) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err = w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i2", DryRun: true}); err != nil ||
			len(r.Losses) != 0 {
			t.Errorf("what it moves to has nothing to lose: %+v, %v", r, err)
		}
		if r, err = w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i1", Force: true}); err != nil || !r.Done ||
			len(r.Losses) != 1 || r.Losses[0].LastCopies != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestNothingMovesToARemovedIndexer checks that moves to an indexer that is being removed are given up: the old copy
// stays, and proposals do not repeat forever.
func TestNothingMovesToARemovedIndexer(t *testing.T) {
	inWorld(t, func(w *world) {
		o := w.one(6, func(n *fakeIndexer) { n.never = true })
		pair := w.create("pair", "", 2, 1) // it has no other place: the removal is stuck
		_, id, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test"})
		if err != nil {
			t.Fatal(err)
		}
		w.step(partition.RebalanceCatchup)
		i := w.log.State().Indexer(w.nodeOf("i2"))
		if res, err := w.log.Propose(w.ctx, statecontext.Command{Body: &statecontext.EvictIndexer{Node: i.Node,
			UUID: i.UUID, Revision: w.log.State().DefinitionsRevision()}}); err != nil || res.Err() != nil {
			t.Fatal(err, res.Err())
		}
		w.until("it is over", time.Minute, func() bool { return w.log.State().RebalanceUnderWay() == nil })
		if r := w.log.State().Rebalance(id); r.GivenUp != 3 || r.Done != 0 || len(w.on(o.ID, 0)) != 6 {
			t.Errorf("%+v, %v", r, w.log.State().Topology(o.ID).Copies)
		}
		if len(w.on(pair.ID, i.Node)) != 2 {
			t.Errorf("%v", w.log.State().Topology(pair.ID).Copies)
		}
	})
}

// TestNothingMovesOfADeletedBucket checks that moves end when their bucket is deleted, and none of that bucket begins
// then.
func TestNothingMovesOfADeletedBucket(t *testing.T) {
	inWorld(t, func(w *world) {
		o := w.one(6, func(n *fakeIndexer) { n.never = true })
		_, id, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test"})
		if err != nil {
			t.Fatal(err)
		}
		w.step(partition.RebalanceCatchup)
		w.deleted("world")
		w.until("it is over", 5*time.Minute, func() bool { return w.log.State().RebalanceUnderWay() == nil })
		if r := w.log.State().Rebalance(id); r.GivenUp != 3 {
			t.Errorf("%+v", r)
		}
		if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Remove: []string{"i1"}}); !errors.Is(err,
			ErrBalanced) {
			t.Errorf("another one: %v", err)
		}
		one := 1
		if _, err := w.leader().AlterIndex(w.ctx, AlterRequest{ID: o.ID, Replicas: &one}); !errors.Is(err,
			errcode.BucketGone) {
			t.Errorf("ALTER: %v", err)
		}
	})
}

// TestARepairIsCancelled checks that a cancelled repair begins again after another RepairAfter, not at once.
func TestARepairIsCancelled(t *testing.T) {
	inWorld(t, func(w *world) {
		w.repairsSoon()
		w.moving()
		for _, n := range w.indexers {
			n.mu.Lock()
			n.never = true
			n.mu.Unlock()
		}
		w.die("i1")
		repaired := func() bool { return w.log.State().RebalanceUnderWay() != nil }
		w.until("the repair begins", time.Hour, repaired)
		if err := w.leader().CancelRebalance(w.ctx, w.log.State().RebalanceUnderWay().ID); err != nil {
			t.Fatal(err)
		}
		w.until("it is cancelled", time.Minute, func() bool { return !repaired() })
		for range repairAfter * 14 / 15 / time.Second {
			if time.Sleep(time.Second); repaired() {
				t.Fatal("it begins again")
			}
		}
		w.until("the next one begins", repairAfter*2/15, repaired)
	})
}

// TestRefusedRebalanceChangesNothing checks that a request that is refused because another rebalance is running
// marks no indexer, and that a plan with invalid options is refused.
func TestRefusedRebalanceChangesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		w.one(6, func(n *fakeIndexer) { n.never = true })
		p, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []rebalance.Options{{Sends: 257}, {Receives: 65}, {Sends: -1}} {
			q := *p
			q.Options = o
			if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Plan: &q}); !errors.Is(err,
				rebalance.ErrInput) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Plan: p}); err != nil {
			t.Fatal(err)
		}
		if _, _, err = w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Remove: []string{"i1"}}); !errors.Is(err,
			errcode.RebalanceRunning) || w.log.State().Going(w.nodeOf("i1")) {
			t.Errorf("i1 is to leave: %v, %v", w.log.State().Going(w.nodeOf("i1")), err)
		}
	})
}

// TestPlanMarksItsIndexers checks that a plan contains the indexers that it empties or lets serve again, and
// marks them when it is run; it is refused for other indexers.
func TestPlanMarksItsIndexers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.moving()
		i2 := w.nodeOf("i2")
		plan := func(remove, keep []string) *rebalance.Plan {
			p, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Remove: remove, Keep: keep, DryRun: true})
			if err != nil || !slices.Equal(p.Remove, remove) || !slices.Equal(p.Keep, keep) {
				t.Fatalf("a plan to empty %q and keep %q: %+v, %v", remove, keep, p, err)
			}
			return p
		}
		leaves := plan([]string{"i2"}, nil)
		if _, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Plan: leaves,
			Remove: []string{"i1"}}); !errors.Is(err, rebalance.ErrInput) || w.log.State().Going(w.nodeOf("i1")) {
			t.Errorf("another indexer: %v", err)
		}
		if _, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test", Plan: leaves}); err != nil {
			t.Fatal(err)
		}
		if held := w.rebalanced(time.Minute); held[i2] != 0 || !w.log.State().Going(i2) {
			t.Errorf("copies %v, leaving: %v", held, w.log.State().Going(i2))
		}
		if _, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{Cause: "test",
			Plan: plan(nil, []string{"i2"})}); err != nil {
			t.Fatal(err)
		}
		if held := w.rebalanced(time.Minute); held[i2] == 0 || w.log.State().Going(i2) {
			t.Errorf("copies %v, leaving: %v", held, w.log.State().Going(i2))
		}
	})
}

// TestRebalanceBesideASplit checks that a plan leaves out an index that is being split, and reports it, unless the
// index lies on an indexer that is to leave. When the split ends in the middle, the run does the rest and is done.
func TestRebalanceBesideASplit(t *testing.T) {
	inWorld(t, func(w *world) {
		lone, pair := w.moving()
		for _, n := range w.indexers {
			n.mu.Lock()
			n.never = true
			n.mu.Unlock()
		}
		w.indexer("i4")
		w.until("i4 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 4 })
		next, err := w.leader().SplitIndex(w.ctx, SplitRequest{ID: lone.ID})
		if err != nil {
			t.Fatal(err)
		}
		of := func(p *rebalance.Plan) map[index.ID]int {
			n := map[index.ID]int{}
			for i := range p.Steps {
				n[p.Steps[i].Index]++
			}
			return n
		}
		p, _, err := w.leader().Rebalance(w.ctx, RebalanceRequest{DryRun: true})
		if err != nil || of(p)[lone.ID] != 0 || of(p)[pair.ID] == 0 || !slices.Equal(p.Left, []string{"world/lone"}) {
			t.Fatalf("%v, left out %v, %v", of(p), p.Left, err)
		}
		remove := RebalanceRequest{Cause: "test", Remove: []string{"i1"}}
		p, id, err := w.leader().Rebalance(w.ctx, remove)
		if err != nil || of(p)[lone.ID] == 0 || len(p.Left) > 0 {
			t.Fatalf("%v, left out %v, %v", of(p), p.Left, err)
		}
		w.step(partition.RebalanceCatchup)
		for _, n := range w.indexers {
			n.mu.Lock()
			n.never = false
			n.mu.Unlock()
		}
		w.until("the split ends", 5*time.Minute, func() bool {
			return w.log.State().IndexByName("world", "lone").Definition.ID == next.ID
		})
		w.until("rebalance is over", 30*time.Minute, func() bool { return w.log.State().RebalanceUnderWay() == nil })
		if r := w.log.State().Rebalance(id); r.Phase != statecontext.RebalanceFinished || r.GivenUp == 0 ||
			r.Done+r.GivenUp != r.Steps {
			t.Errorf("%+v", r)
		}
	})
}

// TestEmptyRebalanceNamesExcludedIndexers checks that a rebalance that has nothing to move names the indexers that
// get no copies.
func TestEmptyRebalanceNamesExcludedIndexers(t *testing.T) {
	if why := whyBalanced(&rebalance.Plan{}); why != "the copies are balanced over all active indexers" {
		t.Error(why)
	}
	p := &rebalance.Plan{Excluded: []rebalance.Excluded{{Name: "i2", Why: "its disk hangs"}, {Name: "i3", Why: "no room"}}}
	want := "the copies are balanced over all indexers that may get some; i2 gets none: its disk hangs; i3 gets none: " +
		"no room"
	if why := whyBalanced(p); why != want {
		t.Errorf("%q, want %q", why, want)
	}
}
