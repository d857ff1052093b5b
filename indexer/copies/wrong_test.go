package copies

import (
	"testing"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestRetakeOutlivesReopening: a vbucket that is to be taken anew is, and its copy stays in doubt until then, also
// where the copy has to be opened again before: before that is handed out, or while it is under way.
func TestRetakeOutlivesReopening(t *testing.T) {
	for what, handed := range map[string]bool{"before it is handed out": false, "while it is under way": true} {
		t.Run(what, func(t *testing.T) {
			w := newLaneWorld(t)
			slice := w.k.slices[1]
			w.promote()
			w.ends(1)
			w.ends(2)
			for w.k.work.Under() > 0 {
				w.result()
			}
			w.begins()
			w.begins()
			if err := slice.Persist(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !w.k.retake(1, 0, nil, true) {
				t.Fatal("the vbucket is not taken anew")
			}
			if handed {
				w.k.pump(t.Context(), false)
				w.begins()
			}
			n := w.k.lane(1)
			n.lost.Store(true)
			if err := w.k.reopen(t.Context(), slice); err != nil {
				t.Fatal(err)
			}
			w.k.finish(result{reopened: n})
			if handed {
				w.ends(1)
				w.result()
			}
			if wrong, _ := w.k.wrongUntil(1); !wrong || !w.k.node.Snapshots.InDoubt(1) {
				t.Fatalf("opened again it is wrong: %v, in doubt: %v", wrong, w.k.node.Snapshots.InDoubt(1))
			}
			w.k.pump(t.Context(), false)
			if again := w.begins(); again.of.Batch.Kind != ingest.DeleteRange || again.of.Batch.Copies[0].ID != 1 {
				t.Fatalf("then begun: %v", again.of.Batch.Kind)
			}
			w.ends(1)
			w.result()
			if wrong, _ := w.k.wrongUntil(1); wrong || w.k.node.Snapshots.InDoubt(1) {
				t.Errorf("taken anew it is wrong: %v, in doubt: %v", wrong, w.k.node.Snapshots.InDoubt(1))
			}
			if p := slice.Positions()[0]; p.Side != 0 || p.A == 0 {
				t.Errorf("it stands at %+v", p)
			}
		})
	}
}

// TestWrongIsForgotten: nothing is known of a copy that was let go, and what was under way for it changes nothing of
// another one of its id.
func TestWrongIsForgotten(t *testing.T) {
	w := newWrong()
	w.found(1, 0, nil)
	w.found(2, 0, nil)
	b := &ingest.Batch{Kind: ingest.DeleteRange, Copies: []ingest.CopyBatch{{ID: 1, Parts: []ingest.Part{{}}}}}
	old := w.deleted(b)
	w.forget(1)
	if len(old) != 1 || w.has(1) || !w.has(2) {
		t.Fatalf("%d are deleted, wrong: %v", len(old), w.strays)
	}
	w.found(1, 0, nil)
	if w.gone(old[0]) || !w.has(1) {
		t.Error("what a batch deleted of another copy has gone of this one")
	}
	w.found(1, 1, nil)
	if w.gone(w.deleted(b)[0]) {
		t.Error("a copy is right of which another vbucket is wrong")
	}
	b.Copies[0].Parts[0].VBucket = 1
	if !w.gone(w.deleted(b)[0]) {
		t.Error("a copy is wrong of which all has gone")
	}
}

// TestRollbackIsWoken: who waits for a rollback looks again when the last copy that it waits for was opened again, or
// let go.
func TestRollbackIsWoken(t *testing.T) {
	for what, end := range map[string]func(k *Bucket){
		"opened again": func(k *Bucket) { k.wentBack(k.lane(1)) },
		"let go":       func(k *Bucket) { k.remove(1) },
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
			t.Errorf("%s: nobody is told", what)
		}
	}
}
