package coordinator

import (
	"testing"
	"time"

	"tidemark/index"
	"tidemark/wire"
)

// TestFaultsAreShown checks that reports of documents without an entry are summed up by index, and that each stays
// valid until the component reports otherwise.
func TestFaultsAreShown(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o := w.create("by_name", "", 1, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.mu.Lock()
		all := make([]*fakeProjector, 0, len(w.projectors))
		for _, p := range w.projectors {
			all = append(all, p)
		}
		w.mu.Unlock()
		once := func(p *fakeProjector, faults ...wire.IndexFaults) {
			p.mu.Lock()
			defer p.mu.Unlock()
			done := false
			p.amend = func(r *wire.ProjectorReport) {
				r.Counters.Mutations = 50
				if !done {
					r.FaultsToo, r.Faults, done = true, faults, true
				}
			}
		}
		for i, p := range all {
			once(p, wire.IndexFaults{Index: o.ID, Expression: uint64(i + 1), TooLong: 10,
				Sample: wire.FaultSample{DocID: "k", Error: "no"}})
		}
		n := uint64(len(all))
		shown := func(expression, tooLong uint64) func() bool {
			return func() bool {
				s, ok := w.leader().Status()
				f := s.Progress[o.ID].Faults
				return ok && f.Expression == expression && f.TooLong == tooLong && s.Projectors[0].Counters.Mutations == 50 &&
					(f.Sample.DocID == "k") == (tooLong > 0)
			}
		}
		w.until("the sum of all", 10*time.Second, shown(n*(n+1)/2, 10*n))
		time.Sleep(time.Second) // reports without faults change nothing
		if !shown(n*(n+1)/2, 10*n)() {
			t.Error("faults are dropped")
		}
		w.mu.Lock()
		var i *fakeIndexer
		for _, i = range w.indexers {
		}
		w.mu.Unlock()
		keys := func(faults ...wire.IndexFaults) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.faults = faults
		}
		keys(wire.IndexFaults{Index: o.ID, TooLong: 3, Sample: wire.FaultSample{DocID: "k"}},
			wire.IndexFaults{Index: o.ID + 1, TooLong: 100})
		w.until("an indexer's, too", 10*time.Second, shown(n*(n+1)/2, 10*n+3))
		if s, _ := w.leader().Status(); s.Progress[o.ID].FaultsIncomplete {
			t.Error("everything is counted, and the sum is marked as incomplete")
		}
		// An indexer that counts faults of more indexes than it lists may have counted some of an index that it does not
		// list.
		omits := func(n int, of ...wire.IndexFaults) {
			keys(of...)
			i.mu.Lock()
			defer i.mu.Unlock()
			i.faultsOmitted = n
		}
		incomplete := func(want bool) func() bool {
			return func() bool {
				s, ok := w.leader().Status()
				return ok && s.Progress[o.ID].FaultsIncomplete == want
			}
		}
		omits(7, wire.IndexFaults{Index: o.ID + 1, TooLong: 100})
		w.until("an indexer omits it", 10*time.Second, incomplete(true))
		omits(7, wire.IndexFaults{Index: o.ID, TooLong: 3, Sample: wire.FaultSample{DocID: "k"}})
		w.until("an indexer omits others", 10*time.Second, incomplete(false))
		other := w.indexer("other") // it has no copy of the index, and so counts nothing of it
		other.mu.Lock()
		other.faultsOmitted = 7
		other.mu.Unlock()
		w.until("another one is there", 10*time.Second, func() bool {
			s, ok := w.leader().Status()
			return ok && len(s.Indexers) == 2
		})
		time.Sleep(5 * time.Second)
		if !incomplete(false)() {
			t.Error("what an indexer omits that has no copy of an index counts for it")
		}
		omits(0)
		for _, p := range all {
			once(p)
		}
		w.until("none left", 10*time.Second, shown(0, 0))
	})
}
