package coordinator

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

// loses lets a vbucket of p2 fail over to a branch that begins at a seqno of the previous one.
func (w *world) loses(v int, at uint64) {
	w.mu.Lock()
	kv := w.kv["world"]
	kv.rev++
	kv.high[v], kv.logs[v] = at, append(timestamp.FailoverLog{{VBUUID: 4711, Seqno: at}}, kv.logs[v]...)
	w.mu.Unlock()
	p2 := w.projectors["http://p2"]
	p2.mu.Lock()
	defer p2.mu.Unlock()
	delete(p2.streams["world"], uint16(v))
}

// unfilled sets whether no copy becomes whole on any indexer.
func (w *world) unfilled(on bool) {
	for _, n := range w.indexers {
		n.mu.Lock()
		n.never = on
		n.mu.Unlock()
	}
}

// refusing sets a function that refuses proposals; nil: none.
func (w *world) refusing(refuse func(statecontext.Command) error) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	w.log.refuse = refuse
}

// becomes requests a number of slices for an index.
func (w *world) becomes(id index.ID, n int) Outcome {
	w.t.Helper()
	o, err := w.leader().SplitIndex(w.ctx, SplitRequest{ID: id, Partitions: &n})
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// TestMergeBesideARollback rolls a bucket back while slices are merged: the name stays with the first index until
// that is over, also when the leader changes in the middle, and the index that then takes the name was exact on KV's
// new branch.
func TestMergeBesideARollback(t *testing.T) {
	for _, change := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.components(2)
			o := w.create("x", "", 4, 0)
			w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
			w.write("world", 5)
			w.until("15 is stable", 2*time.Second,
				func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 15 })
			w.unfilled(true)
			next := w.becomes(o.ID, 2)
			w.until("it is being merged", 20*time.Second, func() bool { return w.state(next.ID) == index.Backfill })
			late := w.indexers["http://i2"]
			late.mu.Lock()
			late.down = true // the rollback waits for it
			late.mu.Unlock()
			w.loses(3, 12)
			w.until("rollback", time.Minute, func() bool { return w.log.State().Bucket("world").Rollback != nil })
			var guard statecontext.Guard
			var early atomic.Bool
			w.refusing(func(c statecontext.Command) error {
				if d, ok := c.Body.(*statecontext.SetIndexState); ok && d.ID == next.ID && d.To == index.Maintenance {
					guard = d.Guard
					early.Store(early.Load() || w.log.State().Bucket("world").Rollback != nil)
				}
				return nil
			})
			w.unfilled(false)
			time.Sleep(20 * time.Second)
			if d := w.named("x"); d.ID != o.ID || d.State != index.Maintenance || w.state(next.ID) != index.Backfill {
				t.Fatalf("while the bucket is rolled back the name leads to %+v", d)
			}
			if change {
				w.depose()
				w.lead()
			}
			late.mu.Lock()
			late.down = false
			late.mu.Unlock()
			w.until("cleared", time.Minute, func() bool { return w.log.State().Bucket("world").Rollback == nil })
			w.until("the merged one has the name", time.Minute, func() bool {
				d := w.named("x")
				return d.ID == next.ID && d.Partitions == 2 && d.State == index.Maintenance && w.log.State().Index(o.ID) == nil
			})
			w.refusing(nil)
			if early.Load() || guard.RollbackID != 1 {
				t.Errorf("made ready during the rollback: %v; guarded by %+v", early.Load(), guard)
			}
		})
	}
}

// calmed runs a test with an index that was split automatically into four slices. They are small now, but have not
// been for long enough to be merged.
func calmed(t *testing.T, test func(w *world, id index.ID)) {
	bounded(t, func(w *world, zero *atomic.Uint64) {
		for _, n := range w.indexers {
			n.mu.Lock()
			small := n.size
			n.size = func(id index.ID, c partition.Copy) uint64 { return min(small(id, c), max(zero.Load(), 5)) }
			n.mu.Unlock()
		}
		o := w.create("x", "", 2, 0)
		zero.Store(150)
		w.until("it is split", 10*splitAfter, func() bool { return w.named("x").Partitions == 4 })
		w.until("the first is gone", time.Minute, func() bool { return w.log.State().Index(o.ID) == nil })
		zero.Store(5)
		time.Sleep(4 * splitAfter)
		if n := w.log.counted("*statecontext.SplitIndex"); n != 1 {
			t.Fatalf("%d splits and merges", n)
		}
		test(w, w.named("x").ID)
	})
}

// merged waits until x has two slices again.
func (w *world) merged(limit time.Duration) time.Duration {
	w.t.Helper()
	return w.until("it is merged", limit, func() bool {
		d := w.named("x")
		return d.Partitions == 2 && d.State == index.Maintenance
	})
}

// TestNoAutomaticMergeBesideARollback checks that no automatic merge begins while the bucket is rolled back, as the
// contents of its copies are unknown then. Afterwards slices must be small for the full time again.
func TestNoAutomaticMergeBesideARollback(t *testing.T) {
	calmed(t, func(w *world, _ index.ID) {
		w.refusing(func(c statecontext.Command) error {
			if d, ok := c.Body.(*statecontext.SetRollbackStep); ok && d.From == statecontext.Started {
				return errHeld
			}
			return nil
		})
		w.loses(3, 8)
		w.until("rollback", time.Minute, func() bool { return w.log.State().Bucket("world").Rollback != nil })
		time.Sleep(8 * splitAfter)
		if n := w.log.counted("*statecontext.SplitIndex"); n != 1 {
			t.Fatalf("%d splits and merges", n)
		}
		w.refusing(nil)
		w.until("cleared", time.Minute, func() bool { return w.log.State().Bucket("world").Rollback == nil })
		w.write("world", 5) // copies in this test are whole only above the seqno at which they were loaded
		if took := w.merged(10 * splitAfter); took < 5*splitAfter {
			t.Errorf("merged after %v", took)
		}
	})
}

// TestMergeBesideASplit checks that an index that is being merged cannot be split, nor the reverse, while an index
// beside it can. Both operations complete.
func TestMergeBesideASplit(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		x, y := w.create("x", "", 4, 0), w.create("y", "", 2, 0)
		ready := func() bool { return w.state(x.ID) == index.Maintenance && w.state(y.ID) == index.Maintenance }
		w.until("READY", 20*time.Second, ready)
		w.unfilled(true)
		refused := func(id index.ID, n int) {
			t.Helper()
			if _, err := w.leader().SplitIndex(w.ctx, SplitRequest{ID: id, Partitions: &n}); !errors.Is(err,
				errcode.SplitRunning) {
				t.Errorf("index %d into %d slices meanwhile: %v", id, n, err)
			}
		}
		split := w.becomes(x.ID, 8)
		refused(x.ID, 2)
		refused(split.ID, 2)
		if _, err := w.leader().CancelSplit(w.ctx, SplitRequest{ID: x.ID}); err != nil {
			t.Fatal(err)
		}
		merge, other := w.becomes(x.ID, 2), w.becomes(y.ID, 6) // the cancelled successor may still exist
		refused(x.ID, 8)
		refused(merge.ID, 8)
		w.unfilled(false)
		w.until("both have the names", time.Minute, func() bool {
			dx, dy := w.named("x"), w.named("y")
			return dx.ID == merge.ID && dx.Partitions == 2 && dy.ID == other.ID && dy.Partitions == 6
		})
		w.until("what was before is gone", time.Minute, func() bool { return w.log.State().IndexCount() == 2 })
	})
}

// TestNoAutomaticMergeBesideASplit checks that no automatic merge begins while another index of the bucket is split.
// The reason is shown, and the merge begins afterwards.
func TestNoAutomaticMergeBesideASplit(t *testing.T) {
	calmed(t, func(w *world, id index.ID) {
		y := w.create("y", "", 3, 0)
		w.until("READY", time.Minute, func() bool { return w.state(y.ID) == index.Maintenance })
		w.refusing(func(c statecontext.Command) error {
			if d, ok := c.Body.(*statecontext.SetIndexState); ok && d.To == index.Maintenance {
				return errHeld // no split completes
			}
			return nil
		})
		split := w.becomes(y.ID, 6)
		w.until("the reason for waiting is shown", 10*splitAfter, func() bool {
			return strings.Contains(w.mergeWaits(id), "(y) is being split or merged")
		})
		time.Sleep(10 * splitAfter)
		if n := w.log.counted("*statecontext.SplitIndex"); n != 2 || w.named("x").ID != id {
			t.Fatalf("%d splits and merges", n)
		}
		w.refusing(nil)
		w.until("the other one is split", time.Minute, func() bool { return w.named("y").ID == split.ID })
		w.merged(10 * splitAfter)
	})
}

// TestMergeCancelledByALeaderThatEnds ends the leader right after a merge was cancelled, or right before: a retry
// cancels it once, the next leader drops the successor, and the index is unchanged. It can be merged again then.
func TestMergeCancelledByALeaderThatEnds(t *testing.T) {
	for _, committed := range []bool{true, false} {
		inWorld(t, func(w *world) {
			w.components(2)
			o := w.create("x", "", 4, 1)
			w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
			w.unfilled(true)
			next := w.becomes(o.ID, 2)
			w.until("it is being merged", 20*time.Second, func() bool { return w.state(next.ID) == index.Backfill })
			ended := false
			w.refusing(func(c statecontext.Command) error {
				if ended {
					return ErrNotLeading
				}
				_, ended = c.Body.(*statecontext.CancelSplit)
				if ended && !committed {
					return ErrNotLeading
				}
				return nil
			})
			req := SplitRequest{ID: o.ID, Request: &statecontext.Request{Principal: "p", Key: "cancel"}}
			_, _ = w.leader().CancelSplit(w.ctx, req) // its caller gets no answer
			w.depose()
			if s := w.log.State(); s.Index(next.ID) == nil || (s.Definition(o.ID).SplitFailed != "") != committed {
				t.Fatalf("committed %v: %s", committed, statecontext.Describe(s))
			}
			w.refusing(nil)
			w.lead()
			if got, err := w.leader().CancelSplit(w.ctx, req); err != nil || got.Replayed != committed || got.ID != next.ID {
				t.Errorf("a retry: %+v, %v", got, err)
			}
			w.until("what was built is gone", time.Minute, func() bool { return w.log.State().Index(next.ID) == nil })
			w.unfilled(false)
			time.Sleep(time.Minute)
			if d := w.named("x"); d.ID != o.ID || d.Partitions != 4 || d.State != index.Maintenance ||
				d.SplitFailed != statecontext.SplitCancelled {
				t.Errorf("%+v", d)
			}
			next = w.becomes(o.ID, 2)
			w.until("it is merged", time.Minute, func() bool { return w.named("x").ID == next.ID })
		})
	}
}

// TestCancelledMergeRests cancels an automatic merge and ends the leader: the next one does not begin it again at
// once.
func TestCancelledMergeRests(t *testing.T) {
	calmed(t, func(w *world, id index.ID) {
		w.refusing(func(c statecontext.Command) error {
			if d, ok := c.Body.(*statecontext.SetIndexState); ok && d.To == index.Maintenance {
				return errHeld
			}
			return nil
		})
		w.until("it is being merged", 10*splitAfter, func() bool {
			return w.log.State().Successor(w.log.State().Definition(id)) != nil
		})
		if _, err := w.leader().CancelSplit(w.ctx, SplitRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
		w.depose()
		w.refusing(nil)
		w.lead()
		time.Sleep(5 * splitAfter)
		if n := w.log.counted("*statecontext.SplitIndex"); n != 2 || w.named("x").ID != id {
			t.Fatalf("%d splits and merges, %+v", n, w.named("x"))
		}
		w.merged(10 * splitAfter)
	})
}
