package copies

import (
	"testing"
	"time"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestRetakeOutlivesReopening: a vbucket that is to be retaken is retaken, and its copy stays in doubt until then,
// even if the copy has to be reopened before the deletion is durable: before it is handed out, while it is in flight,
// or after it was written and lost again.
func TestRetakeOutlivesReopening(t *testing.T) {
	const handed, written = 1, 2
	for what, how := range map[string]int{"before it is handed out": 0, "while it is under way": handed,
		"before it is durable": written} {
		t.Run(what, func(t *testing.T) {
			w := newRetakenWorld(t)
			if how > 0 {
				w.k.pump(t.Context())
				w.begins()
			}
			if how == written {
				w.ends(1)
				w.result()
				w.right()
			}
			w.reopen()
			if how == handed {
				w.ends(1)
				w.result()
			}
			if wrong, _ := w.k.wrongUntil(1); !wrong || !w.k.node.Snapshots.InDoubt(1) {
				t.Fatalf("opened again it is wrong: %v, in doubt: %v", wrong, w.k.node.Snapshots.InDoubt(1))
			}
			w.k.pump(t.Context())
			if again := w.begins(); again.of.Batch.Kind != ingest.DeleteRange || again.of.Batch.Copies[0].ID != 1 {
				t.Fatalf("then begun: %v", again.of.Batch.Kind)
			}
			w.ends(1)
			w.result()
			w.right()
			if p := w.slice.Positions()[0]; p.Side != 0 || p.A == 0 {
				t.Errorf("it stands at %+v", p)
			}
		})
	}
}

// TestDurablyDeletedRangesAreNotRetaken: strays whose deletion is durable are forgotten, and nothing is retaken when
// the copy is reopened.
func TestDurablyDeletedRangesAreNotRetaken(t *testing.T) {
	for what, measured := range map[string]bool{"measured": true, "not measured": false} {
		t.Run(what, func(t *testing.T) {
			w := newRetakenWorld(t)
			w.k.pump(t.Context())
			w.begins()
			w.ends(1)
			w.result()
			look := func(strays int) {
				t.Helper()
				Measure([]*storage.Slice{w.slice}, []*Bucket{w.k}, time.Now())
				if w.k.goneForGood(); len(w.k.wrong.strays) != strays {
					t.Errorf("%d vbuckets are remembered, want %d", len(w.k.wrong.strays), strays)
				}
			}
			look(1)
			if err := w.slice.Persist(t.Context()); err != nil {
				t.Fatal(err)
			}
			if measured {
				look(0)
			}
			w.reopen()
			w.right()
			if len(w.k.wrong.strays) > 0 {
				t.Errorf("remembered is %+v", w.k.wrong.strays)
			}
		})
	}
}

// retakenWorld has a vbucket of copy 1 that is to be retaken; what copy 1 held before is durable.
type retakenWorld struct {
	*laneWorld
	slice *storage.Slice
}

func newRetakenWorld(t *testing.T) *retakenWorld {
	t.Helper()
	w := &retakenWorld{laneWorld: newLaneWorld(t)}
	w.slice = w.k.slices[1]
	w.promote()
	w.ends(1)
	w.result() // the shown result: after the end of the batch it would be mistaken for another batch's
	w.ends(2)
	for w.k.work.InFlight() > 0 {
		w.result()
	}
	w.begins()
	w.begins()
	if err := w.slice.Persist(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !w.k.retake(1, 0, nil, true) {
		t.Fatal("the vbucket is not taken anew")
	}
	return w
}

// reopen reopens copy 1 at its last durable batch.
func (w *retakenWorld) reopen() {
	w.t.Helper()
	n := w.k.lane(1)
	n.lost.Store(true)
	if err := w.k.reopen(w.t.Context(), w.slice); err != nil {
		w.t.Fatal(err)
	}
	w.k.finish(result{reopened: n})
}

// right checks that nothing is known to be wrong in copy 1.
func (w *retakenWorld) right() {
	w.t.Helper()
	if wrong, _ := w.k.wrongUntil(1); wrong || w.k.node.Snapshots.InDoubt(1) {
		w.t.Errorf("taken anew it is wrong: %v, in doubt: %v", wrong, w.k.node.Snapshots.InDoubt(1))
	}
}

// TestRemovedCopyLeavesNoState: nothing is remembered of a removed copy, and what was in flight for it does not
// affect a later copy of its id.
func TestRemovedCopyLeavesNoState(t *testing.T) {
	w, now := newWrong(), RowsAt{1, 1}
	w.found(1, 0, nil, false)
	w.found(2, 0, nil, false)
	b := &ingest.Batch{Kind: ingest.DeleteRange, Copies: []ingest.CopyBatch{{ID: 1, Parts: []ingest.Part{{}}}}}
	old := w.deleted(b)
	w.forget(1)
	if len(old) != 1 || w.has(1) || !w.has(2) {
		t.Fatalf("%d are deleted, wrong: %v", len(old), w.strays)
	}
	w.found(1, 0, nil, false)
	if w.gone(old[0], now) || !w.has(1) {
		t.Error("what a batch deleted of another copy has gone of this one")
	}
	w.found(1, 1, nil, false)
	if w.gone(w.deleted(b)[0], now) {
		t.Error("a copy is right of which another vbucket is wrong")
	}
	b.Copies[0].Parts[0].VBucket = 1
	if !w.gone(w.deleted(b)[0], now) {
		t.Error("a copy is wrong of which all has gone")
	}
}

// TestWaitingRollbackIsNotified: a waiting rollback call checks again when the last copy that it waits for was
// reopened or removed.
func TestWaitingRollbackIsNotified(t *testing.T) {
	for what, end := range map[string]func(k *Bucket){
		"opened again": func(k *Bucket) { k.wentBack(k.lane(1)) },
		"removed":      func(k *Bucket) { k.remove(1) },
	} {
		k := newFallen(t, 2, 1).k
		log := timestamp.FailoverLog{{VBUUID: 8, Seqno: 15}, {VBUUID: 7}}
		req := &wire.RollbackRequest{Bucket: "b", RollbackID: 1, Incarnation: index.Incarnation{Counter: 1},
			Logs: []timestamp.FailoverLog{log, log}}
		if back := k.st.CarryOut(req); back != core.BackWaits {
			t.Fatalf("%s: the rollback is at %v", what, back)
		}
		changed := k.restoredSignal()
		end(k)
		if k.st.Restoring() > 0 {
			t.Fatalf("%s: something is still to be put back", what)
		}
		select {
		case <-changed:
		default:
			t.Errorf("%s: no waiting call is notified", what)
		}
	}
}
