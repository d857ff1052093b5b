package coordinator

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// backup returns a backup of the present state.
func (w *world) backup() *statecontext.Backup {
	w.t.Helper()
	var file bytes.Buffer
	if err := statecontext.WriteBackup(&file, w.log.State(), w.leader().cfg.Now().UnixMilli(), "test"); err != nil {
		w.t.Fatal(err)
	}
	b, err := statecontext.ReadBackup(file.Bytes())
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// TestRestorePlanAdoptsOrphans checks that orphans that the hosts of a restored index have reported are adopted, and
// that the index is built where there are none.
func TestRestorePlanAdoptsOrphans(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		var held []wire.Orphan
		for _, c := range w.log.State().Index(o.ID).Topology.Copies {
			held = append(held, wire.Orphan{Copy: c.ID, Index: o.ID, LeftMS: -1})
		}
		b := w.backup()
		if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: o.ID}); err != nil {
			t.Fatal(err)
		}
		w.until("dropped", 10*time.Second, func() bool { return w.log.State().Index(o.ID) == nil })
		plan := func() statecontext.RestorePlan {
			r, err := w.leader().Restore(w.ctx, RestoreRequest{ID: "k", Backup: b, Mode: statecontext.RestoreInPlace,
				DryRun: true})
			if err != nil {
				t.Fatal(err)
			}
			return r.Plan
		}
		if p := plan(); p.Rebuilt != 1 || p.Adopted != 0 {
			t.Errorf("nothing is held: %+v", p)
		}
		i := w.indexers["http://i1"]
		i.mu.Lock()
		i.orphans = held
		i.mu.Unlock()
		w.until("taken over", 10*time.Second, func() bool { p := plan(); return p.Adopted == 1 && p.Rebuilt == 0 })
	})
}

// TestRetriedRestoreKeepsItsOutcome checks that a repeated restore has its first outcome, and that another one under
// its key is refused and not reported as done.
func TestRetriedRestoreKeepsItsOutcome(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		first := w.backup()
		if _, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "a", Bucket: "world",
			IsPrimary: true, Deferred: true}}); err != nil {
			t.Fatal(err)
		}
		second := w.backup()
		for i, b := range []*statecontext.Backup{first, first, second} {
			o, err := w.leader().Restore(w.ctx, RestoreRequest{ID: "k", Backup: b, Mode: statecontext.RestoreInPlace})
			switch {
			case b == second && !errors.Is(err, errcode.RequestMismatch):
				t.Errorf("another backup under the key: %+v, %v", o, err)
			case b == first && (err != nil || o.Replayed != (i == 1)):
				t.Errorf("restore %d: %+v, %v", i, o, err)
			}
		}
		if o, err := w.leader().Restore(w.ctx, RestoreRequest{ID: "k2", Backup: second,
			Mode: statecontext.RestoreInPlace}); err != nil || w.log.State().IndexByName("world", "a") == nil {
			t.Errorf("under a key of its own: %+v, %v", o, err)
		}
	})
}
