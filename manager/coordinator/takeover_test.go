package coordinator

import (
	"fmt"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
)

// TestLateAnswerKeepsStreams checks that a projector that answers a new leader's hello after the start sequence
// is unknown, not absent: none of its streams is opened anew, and the other projector's continue meanwhile.
func TestLateAnswerKeepsStreams(t *testing.T) {
	for _, c := range []struct {
		name    string
		slow    time.Duration
		reports bool
	}{
		{"just after the start sequence", 3100 * time.Millisecond, false},
		{"when silence would be an absence", 4990 * time.Millisecond, false},
		{"later than that, on its way all the time", 9 * time.Second, false},
		{"never, but it reports", time.Hour, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.components(2)
				o := w.create("a", "", 2, 1)
				w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
				late := w.projectors["http://p2"]
				if !c.reports {
					late.kill() // the loop of its reports
					time.Sleep(200 * time.Millisecond)
				}
				w.depose()
				starts := map[string]int{}
				for addr, p := range w.projectors {
					starts[addr], _ = p.counts()
				}
				late.mu.Lock()
				late.slow = c.slow
				late.mu.Unlock()
				w.lead()
				if !c.reports {
					w.until("active", 5*time.Second, func() bool { s, _ := w.leader().Status(); return s.Step == "active" })
					w.write("world", 100)
					at := func(v int) uint64 { return w.log.State().Bucket("world").Stability.Vector.Seqnos[v] }
					w.until("what is known goes on", time.Second, func() bool { return at(0) == w.kv["world"].high[0] })
					s, _ := w.leader().Status()
					if sum := s.Buckets[0].Streams; sum.Begun != vbuckets/2 || sum.Unknown != vbuckets/2 {
						t.Errorf("before the answer %+v, want half of the streams begun and half unknown", sum)
					}
				}
				w.until("all streams known", 10*time.Second, func() bool {
					s, ok := w.leader().Status()
					return ok && len(s.Buckets) == 1 && s.Buckets[0].Streams.Begun == vbuckets
				})
				time.Sleep(2 * time.Second)
				for addr, p := range w.projectors {
					if n, _ := p.counts(); n != starts[addr] {
						t.Errorf("%s opened %d streams anew", addr, n-starts[addr])
					}
				}
			})
		})
	}
}

// TestProjectorLostBeforeTheTerm checks that a projector that is gone when a leader begins is waited for until
// OfflineAfter, as at any other time, and no longer.
func TestProjectorLostBeforeTheTerm(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 1)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.depose()
		gone := w.projectors["http://p2"]
		gone.kill()
		gone.mu.Lock()
		gone.down = true
		gone.mu.Unlock()
		w.mu.Lock()
		for v := range w.kv["world"].owner {
			w.kv["world"].owner[v] = "p1"
		}
		w.mu.Unlock()
		before, _ := w.projectors["http://p1"].counts()
		began := time.Now()
		w.lead()
		w.until("the other one has them", 10*time.Second, func() bool {
			s, ok := w.leader().Status()
			return ok && len(s.Buckets) == 1 && s.Buckets[0].Streams.Begun == vbuckets
		})
		if took, limit := time.Since(began), core.DefaultSettings().OfflineAfter; took < limit ||
			took > limit+time.Second {
			t.Errorf("after %v, want a little more than %v", took, limit)
		}
		if n, _ := w.projectors["http://p1"].counts(); n-before != vbuckets/2 {
			t.Errorf("%d streams were opened, want %d", n-before, vbuckets/2)
		}
	})
}

// TestLeaderResumesInItsTerm checks that a leader whose disk hung steps down, and resumes in the same term if no
// other manager could lead meanwhile. Its commands are then newer than all its earlier ones, however many those were.
func TestLeaderResumesInItsTerm(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 1)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		for n := range 500 { // each is a stability timestamp, sent to every indexer
			w.write("world", 1)
			at := func() uint64 { return w.log.State().Bucket("world").Stability.Vector.Seqnos[0] }
			w.until(fmt.Sprint("promotion ", n), 5*time.Second, func() bool { return at() == w.kv["world"].high[0] })
		}
		w.depose()
		w.term--
		w.lead()
		w.until("all streams known", 10*time.Second, func() bool {
			s, ok := w.leader().Status()
			return ok && len(s.Buckets) == 1 && s.Buckets[0].Streams.Begun == vbuckets
		})
		again := w.create("b", "", 2, 1)
		w.until("READY again", 10*time.Second, func() bool { return w.state(again.ID) == index.Maintenance })
	})
}
