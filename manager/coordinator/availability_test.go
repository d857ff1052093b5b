package coordinator

import (
	"strings"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/lifecycle"
	"tidemark/manager/coordinator/core"
)

// TestAvailability checks that a ready index is available while all its copies can be scanned. When an indexer goes,
// an index with replicas is degraded and one without is unavailable; each names the missing copies, and its time of
// change stays.
func TestAvailability(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		lone, pair := w.create("lone", "", 3, 0), w.create("pair", "", 3, 1)
		of := func(id index.ID) core.Progress { return w.leader().Progress()[id] }
		w.until("both are available", 20*time.Second, func() bool {
			return of(lone.ID).Availability == lifecycle.Available && of(pair.ID).Availability == lifecycle.Available
		})
		building := w.create("building", "", 3, 0)
		if a := of(building.ID).Availability; a != 0 && w.state(building.ID) != index.Maintenance {
			t.Errorf("an index that is not ready is %v", a)
		}
		w.die("i1")
		w.until("the loss is seen", 20*time.Second, func() bool {
			return of(lone.ID).Availability == lifecycle.Unavailable && of(pair.ID).Availability == lifecycle.Degraded
		})
		for _, p := range []core.Progress{of(lone.ID), of(pair.ID)} {
			if !strings.Contains(p.Why, "i1 is offline") {
				t.Errorf("%v: %q does not say whose copies are missing", p.Availability, p.Why)
			}
		}
		before := of(lone.ID)
		time.Sleep(3 * time.Second) // in virtual time
		now := of(lone.ID)
		if now.SinceMS != before.SinceMS || now.Availability != lifecycle.Unavailable {
			t.Errorf("unavailable since %d, then %v since %d", before.SinceMS, now.Availability, now.SinceMS)
		}
		if longer := now.ForMS - before.ForMS; longer < 2800 || longer > 3200 {
			t.Errorf("unavailable for %d ms, and 3 s later for %d ms", before.ForMS, now.ForMS)
		}
	})
}
