package coordinator

import (
	"testing"
	"testing/synctest"
	"time"

	"tidemark/index"
)

// work counts what the leader has done.
type work struct{ commands, bytes, published, requests int }

func (w *world) work() work {
	synctest.Wait()
	w.log.mu.Lock()
	d := work{commands: int(w.log.index), bytes: w.log.bytes}
	w.log.mu.Unlock()
	for _, n := range w.indexers {
		n.mu.Lock()
		d.published += n.published
		n.mu.Unlock()
	}
	for _, p := range w.projectors {
		starts, stops := p.counts()
		d.requests += starts + stops
	}
	return d
}

// TestWorkDoesNotFollowTheMutationRate checks that, from a thousand to ten million mutations a second, the leader
// commits as many commands, sends as many messages and opens no stream, and that log entries grow only by the digits
// of the seqnos.
func TestWorkDoesNotFollowTheMutationRate(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		o := w.create("by_name", "", 4, 1)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		const seconds, every = 10, 8 * time.Millisecond
		var least work // at the lowest rate
		for i, perWrite := range []uint64{1, 100, 10_000} {
			before := w.work()
			for end := time.Now().Add(seconds * time.Second); time.Now().Before(end); time.Sleep(every) {
				w.write("world", perWrite)
			}
			now := w.work()
			did := work{now.commands - before.commands, now.bytes - before.bytes, now.published - before.published,
				now.requests - before.requests}
			t.Logf("%8d mutations/s: %+v", perWrite*vbuckets*uint64(time.Second/every), did)
			if i == 0 {
				least = did
			}
			// Five promotions a second, each sent to three indexers.
			if did.commands > 5*seconds+1 || did.commands < 4*seconds || did.published > 3*(did.commands+1) ||
				did.requests != 0 {
				t.Errorf("in %d s: %+v, want %d commands at most, each sent to three indexers, and no streams", seconds, did,
					5*seconds+1)
			}
			// Two vectors of varints per entry: 100 times the rate adds at most one byte per seqno.
			if most := least.bytes*(5*seconds+1)/least.commands + i*2*vbuckets*did.commands; did.bytes > most {
				t.Errorf("%d bytes, want %d at most", did.bytes, most)
			}
		}
	})
}
