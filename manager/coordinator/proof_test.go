package coordinator

import (
	"errors"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/timestamp"
)

// TestStabilizeIsRefusedByALeaderOnly checks that a deposed manager that does not know it yet refuses no scan, for a
// missing bucket or a lost token, by what it knew. It may still return a timestamp that covers the request, which is
// valid whoever leads.
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
