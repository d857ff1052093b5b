package coordinator

import (
	"testing"
	"time"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/manager/coordinator/core"
)

// shares returns how many vbuckets each projector streams, according to the ledger.
func (w *world) shares() map[index.ProjectorID]int {
	s, _ := w.leader().Status()
	n := map[index.ProjectorID]int{}
	for _, p := range s.Projectors {
		n[p.ID] = p.Streams
	}
	return n
}

// crash ends a projector's process: connections to its address are refused, and its own are closed.
func (w *world) crash(id index.ProjectorID) {
	p := w.projectors["http://"+string(id)]
	p.mu.Lock()
	p.down = true
	for _, n := range w.indexers {
		p.cut = append(p.cut, n.node)
	}
	p.mu.Unlock()
	p.kill()
}

// TestProjectorCrashes checks that a crashed projector is detected as soon as indexers have lost its connections,
// long before its silence counts, and the other one at its KV node takes over. When it returns, half of the vbuckets
// move back to it, a few at a time, and none moves to and fro.
func TestProjectorCrashes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.kv["world"].one, w.looks = true, true
		w.components(2)
		o := w.create("by_name", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		time.Sleep(3 * time.Second)
		if n := w.shares(); n["p1"] != vbuckets/2 || n["p2"] != vbuckets/2 {
			t.Fatalf("shares at first: %v", n)
		}
		w.crash("p2")
		took := w.until("p1 has all", 20*time.Second, func() bool { return w.shares()["p1"] == vbuckets })
		if took > core.DefaultSettings().OfflineAfter/4 {
			t.Errorf("p1 took over after %v; silence would count after %v", took, core.DefaultSettings().OfflineAfter)
		}
		w.write("world", 3)
		w.until("stability goes on", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[1] == 13 })

		p1 := w.projectors["http://p1"]
		before, _ := p1.counts()
		p2 := w.projector("p2")
		w.until("p2 has its half", time.Minute, func() bool { return w.shares()["p2"] == vbuckets/2 })
		time.Sleep(time.Minute)
		if n := w.shares(); n["p1"] != vbuckets/2 || n["p2"] != vbuckets/2 {
			t.Errorf("shares in the end: %v", n)
		}
		after, stops := p1.counts()
		if starts, _ := p2.counts(); starts != vbuckets/2 || after != before || stops < vbuckets/2 {
			t.Errorf("p2 began %d streams, p1 %d and got %d requests to stop; want %d, 0 and as many", starts, after-before,
				stops, vbuckets/2)
		}
		w.write("world", 3)
		w.until("stability goes on", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[1] == 16 })
	})
}

// TestBrokenLink checks that a live projector does not count as gone when one indexer has lost its connections.
func TestBrokenLink(t *testing.T) {
	inWorld(t, func(w *world) {
		w.kv["world"].one, w.looks = true, true
		w.components(2)
		o := w.create("by_name", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		p2 := w.projectors["http://p2"]
		before, _ := p2.counts()
		p2.mu.Lock()
		p2.cut = append(p2.cut, w.indexers["http://i1"].node)
		p2.mu.Unlock()
		for range 30 {
			time.Sleep(100 * time.Millisecond)
			s, _ := w.leader().Status()
			for _, p := range s.Projectors {
				if p.Life != liveness.Active {
					t.Fatalf("%s counts as %v", p.ID, p.Life)
				}
			}
		}
		p2.mu.Lock()
		p2.cut = nil
		p2.mu.Unlock()
		time.Sleep(3 * time.Second)
		if starts, _ := p2.counts(); starts != before {
			t.Errorf("%d streams were started anew", starts-before)
		}
	})
}
