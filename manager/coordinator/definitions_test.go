package coordinator

import (
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"time"
	"weak"

	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// each returns all fakes by name.
func (w *world) each() map[string]*fake {
	all := map[string]*fake{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for addr, p := range w.projectors {
		all[addr] = &p.fake
	}
	for addr, n := range w.indexers {
		all[addr] = &n.fake
	}
	return all
}

// agree waits until all components have the list of the present state.
func (w *world) agree() {
	w.t.Helper()
	w.until("the same definitions everywhere", 20*time.Second, func() bool {
		want := define(describe(w.log.State()))
		for _, f := range w.each() {
			f.mu.Lock()
			same := f.defs != nil && f.defs.Revision == want.Revision
			f.mu.Unlock()
			if !same {
				return false
			}
		}
		return true
	})
	want := define(describe(w.log.State()))
	for addr, f := range w.each() {
		f.mu.Lock()
		have := *f.defs
		f.mu.Unlock()
		have.Fence = wire.Fence{}
		if !reflect.DeepEqual(&have, want) {
			w.t.Errorf("%s has %+v, want %+v", addr, have, *want)
		}
	}
}

// TestHeldTimestampIsNotSentAgain checks that a new leader does not send an indexer the timestamp that its hello
// reports to hold, and sends it to an indexer that holds another.
func TestHeldTimestampIsNotSentAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 1)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		time.Sleep(2 * time.Second) // everything is acknowledged, and writes have stopped
		w.depose()
		behind, counts := w.indexers["http://i2"], map[string]int{}
		for addr, n := range w.indexers {
			n.mu.Lock()
			if n == behind {
				clear(n.stable)
			}
			counts[addr] = n.published
			n.mu.Unlock()
		}
		w.lead()
		w.until("active", 5*time.Second, func() bool { s, _ := w.leader().Status(); return s.Step == "active" })
		time.Sleep(3 * time.Second)
		for addr, n := range w.indexers {
			n.mu.Lock()
			if again := n.published - counts[addr]; again > 0 != (n == behind) {
				t.Errorf("%s got it %d times", addr, again)
			}
			if number := w.log.State().Bucket("world").Stability.Number; n.stable["world"].Number != number {
				t.Errorf("%s has number %d, want %d", addr, n.stable["world"].Number, number)
			}
			n.mu.Unlock()
		}
	})
}

// TestDefinitionsAreSentAsChanges checks that a component with a list is sent the changes since, ends with the same
// list as one that is sent the full list, and that a new leader sends nothing to a component that the former one has
// brought up to date.
func TestDefinitionsAreSentAsChanges(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		w.agree()
		lists := func() (whole, changes int) {
			for _, f := range w.each() {
				f.mu.Lock()
				whole, changes = whole+f.lists, changes+f.changes
				f.mu.Unlock()
			}
			return whole, changes
		}
		before, _ := lists()
		var ids []index.ID
		for i := range 4 {
			ids = append(ids, w.create(fmt.Sprint("x", i), "", 3, 1).ID)
		}
		w.until("READY", 20*time.Second, func() bool {
			for _, id := range ids {
				if w.state(id) != index.Maintenance {
					return false
				}
			}
			return true
		})
		if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: ids[1]}); err != nil {
			t.Fatal(err)
		}
		w.until("dropped", 20*time.Second, func() bool { return w.log.State().Index(ids[1]) == nil })
		w.indexer("i4")
		w.until("i4", 5*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 4 })
		w.agree()
		after, changes := lists()
		if after != before+1 { // i4 is sent the full list once
			t.Errorf("%d full lists were sent to components that had one, want none", after-before-1)
		}
		if changes < 10 {
			t.Errorf("%d changes", changes)
		}

		w.depose()
		before, changes = lists()
		w.lead()
		w.until("active", 5*time.Second, func() bool { s, _ := w.leader().Status(); return s.Step == "active" })
		time.Sleep(2 * time.Second)
		if whole, now := lists(); whole != before || now != changes {
			t.Errorf("a new leader sent %d full lists and %d changes to up-to-date ones", whole-before, now-changes)
		}
		ids = append(ids, w.create("late", "", 3, 1).ID)
		w.until("READY", 20*time.Second, func() bool { return w.state(ids[4]) == index.Maintenance })
		w.agree()
		if whole, now := lists(); whole != before || now == changes {
			t.Errorf("then %d whole lists and %d changes", whole-before, now-changes)
		}

		// A component that has lost its list reports so, and is sent the full list.
		lost := w.projectors["http://p1"]
		lost.mu.Lock()
		lost.defs = nil
		lost.mu.Unlock()
		w.create("later", "", 1, 0)
		w.agree()
	})
}

// TestFormerStatesAreReleased checks that the kept former definitions keep nothing else of those states in memory.
func TestFormerStatesAreReleased(t *testing.T) {
	d := &definitions{}
	former := func() weak.Pointer[statecontext.State] {
		s := statecontext.New()
		d.note(s)
		return weak.Make(s)
	}()
	for began := time.Now(); former.Value() != nil; runtime.GC() {
		if time.Since(began) > time.Minute {
			t.Fatal("the state is still there")
		}
	}
	if len(d.former) != 1 {
		t.Errorf("%d are remembered", len(d.former))
	}
}

// TestManagersAreSentAsChanges checks that a new manager, which raises no revision, is sent to components that have an
// earlier list with the next change, also by another leader, which has always known that manager.
func TestManagersAreSentAsChanges(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		w.agree()
		come := func(id string) {
			t.Helper()
			before := w.log.State().DefinitionsRevision()
			res, err := w.log.Propose(w.ctx, statecontext.Command{TimeMS: time.Now().UnixMilli(),
				Body: &statecontext.RegisterManager{
					Manager: statecontext.Manager{ID: id, Name: id, REST: "http://" + id, FormatLevel: w.log.State().FormatLevel()}}})
			if err != nil || res.Err() != nil {
				t.Fatal(err, res.Err())
			}
			if s := w.log.State(); s.Manager(id) == nil || s.DefinitionsRevision() != before {
				t.Fatalf("manager %v at revision %d, before %d", s.Manager(id), s.DefinitionsRevision(), before)
			}
		}
		ready := func(name string) {
			t.Helper()
			o := w.create(name, "", 2, 1)
			w.until(name+" is READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
			w.agree()
		}
		come("m2")
		ready("a")
		come("m3")
		w.depose()
		w.lead()
		w.until("active", 5*time.Second, func() bool { s, _ := w.leader().Status(); return s.Step == "active" })
		ready("b")
		for addr, f := range w.each() {
			f.mu.Lock()
			if f.changes == 0 {
				t.Errorf("%s was sent no change", addr)
			}
			f.mu.Unlock()
		}
	})
}
