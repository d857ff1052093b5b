package coordinator

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
)

// TestEvictionSurvivesLeaders ends leaders in the middle of a removal, and for a while offers no place for the
// remaining copies. The next leader continues; meanwhile the removal is shown, and nothing is placed on the node.
func TestEvictionSurvivesLeaders(t *testing.T) {
	inWorld(t, func(w *world) {
		w.settings = core.DefaultSettings()
		w.settings.EvictBytes = 1 // one index at a time
		w.depose()
		w.lead()
		w.components(3)
		var all []index.ID
		for i := range 6 {
			all = append(all, w.create(fmt.Sprint("x", i), "", 3, 1).ID)
		}
		w.until("READY", time.Minute, func() bool {
			for _, id := range all {
				if w.state(id) != index.Maintenance {
					return false
				}
			}
			return true
		})
		pieces := func() int { return w.log.counted("*statecontext.EvictCopies") }
		stopAt := 2
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if _, piece := c.Body.(*statecontext.EvictCopies); piece && w.log.count["*statecontext.EvictCopies"] >= stopAt {
				return errors.New("Raft is busy")
			}
			return nil
		}
		w.log.mu.Unlock()
		node := w.indexers["http://i2"].node
		w.die("i2")
		remove := func() (Removal, error) {
			return w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i2", Force: true})
		}
		had := w.log.State().Load(node)
		if r, err := remove(); err != nil || r.Done || len(r.Losses) != 6 {
			t.Fatalf("%+v, %v", r, err)
		}
		left := func() (core.IndexerStatus, bool) {
			s, _ := w.leader().Status()
			for _, i := range s.Indexers {
				if i.Node == node {
					return i, true
				}
			}
			return core.IndexerStatus{}, false
		}
		if i, _ := left(); pieces() != 2 || !i.Evicting || i.Placed == 0 || i.Placed >= had {
			t.Fatalf("after %d pieces: %+v, of %d copies", pieces(), i, had)
		}
		if late := w.create("late", "", 3, 0); len(w.on(late.ID, node)) != 0 {
			t.Error("a new index has copies on it")
		}
		w.depose()
		w.log.mu.Lock()
		stopAt = 4
		w.log.mu.Unlock()
		w.lead()
		w.until("the next leader goes on", time.Minute, func() bool { return pieces() == 4 })
		w.die("i3") // the slices have two replicas, and there is one node
		w.log.mu.Lock()
		w.log.refuse = nil
		w.log.mu.Unlock()
		w.until("it is said why it does not go on", time.Minute, func() bool {
			i, there := left()
			return there && i.Evicting && strings.Contains(i.Waits, "no other running indexer")
		})
		if r, err := remove(); err != nil || r.Done || !strings.Contains(r.Waits, "no other running indexer") {
			t.Errorf("%+v, %v", r, err)
		}
		w.indexer("i4")
		w.until("it is removed", time.Minute, func() bool { return w.log.State().Removed("uuid-i2") })
		if w.log.State().Indexer(node) != nil {
			t.Error("it is still there")
		}
		w.until("it is not shown any more", time.Minute, func() bool { _, there := left(); return !there })
		if err := statecontext.Check(w.log.State()); err != nil {
			t.Error(err)
		}
	})
}
