package coordinator

import (
	"errors"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/timestamp"
)

// TestStabilizeIsRefusedByALeaderOnly: a manager that was deposed and has not heard of it does not say by what it knew
// that there is no such bucket, or that a token is lost. A timestamp that covers what is asked for it may give: it does
// so whoever leads.
func TestStabilizeIsRefusedByALeaderOnly(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.log.mu.Lock()
		w.log.lost = true
		w.log.mu.Unlock()
		lost := timestamp.New(vbuckets)
		lost.Set(2, timestamp.Position{VBUUID: 4711, Seqno: 1})
		for bucket, need := range map[string]timestamp.Vector{"none": timestamp.New(vbuckets), "world": lost} {
			if _, err := w.leader().Stabilize(w.ctx, bucket, need); !errors.Is(err, ErrNotLeading) {
				t.Errorf("of bucket %s: %v", bucket, err)
			}
		}
		if _, err := w.leader().Stabilize(w.ctx, "world", timestamp.New(vbuckets)); err != nil {
			t.Errorf("of what is there: %v", err)
		}
	})
}
