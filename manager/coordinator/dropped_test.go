package coordinator

import (
	"testing"
	"time"

	"tidemark/index"
)

// TestDroppedIndexer checks that a connected indexer that withholds acknowledgements delays promotion, but not while a
// projector reports that it drops the indexer's data, nor afterwards until it has caught up.
func TestDroppedIndexer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		o := w.create("a", "", 2, 2)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		slow, p := w.indexers["http://i3"], w.projectors["http://p1"]
		number := func() uint64 { return w.log.State().Bucket("world").Stability.Number }
		// write lets KV write for a time, and returns the number of promotions in it.
		write := func(d time.Duration) uint64 {
			was := number()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				w.mu.Lock()
				for v := range w.kv["world"].high {
					w.kv["world"].high[v]++
				}
				w.mu.Unlock()
			}
			return number() - was
		}
		ignored := func() (holds bool, why string) {
			v, err := w.leader().View(w.ctx, "world")
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range v.Participants {
				if x.Node == slow.node {
					return x.Holds, x.Ignored
				}
			}
			t.Fatalf("%d is no participant: %+v", slow.node, v.Participants)
			return false, ""
		}
		set := func(withholds bool, drops ...index.NodeID) {
			slow.mu.Lock()
			slow.withholds = withholds
			slow.mu.Unlock()
			p.mu.Lock()
			p.drops = drops
			p.mu.Unlock()
		}
		usual := write(3 * time.Second)
		if usual < 10 {
			t.Fatalf("%d promotions in 3 s", usual)
		}
		set(true)
		write(3 * time.Second)
		if n := write(3 * time.Second); n != 0 {
			t.Fatalf("%d promotions while one withholds more than it may", n)
		}
		if holds, why := ignored(); !holds || why != "" {
			t.Errorf("holds %v, ignored %q; want that it holds", holds, why)
		}
		set(true, slow.node)
		if n := write(3 * time.Second); n < usual-2 {
			t.Errorf("%d promotions in 3 s while its data is dropped, usual are %d", n, usual)
		}
		if holds, why := ignored(); holds || why != "dropped" {
			t.Errorf("holds %v, ignored %q; want dropped", holds, why)
		}
		set(true)
		if n := write(3 * time.Second); n < usual-2 {
			t.Errorf("%d promotions in 3 s while it makes up for what was dropped, usual are %d", n, usual)
		}
		if holds, why := ignored(); holds || why != "late" {
			t.Errorf("holds %v, ignored %q; want late", holds, why)
		}
		set(false)
		write(time.Second)
		if holds, why := ignored(); holds || why != "" {
			t.Errorf("it has caught up: holds %v, ignored %q", holds, why)
		}
		set(true)
		write(3 * time.Second)
		if n := write(3 * time.Second); n != 0 {
			t.Errorf("%d promotions while it withholds more than it may again", n)
		}

		// A projector that is gone drops nothing.
		set(true, slow.node)
		write(time.Second)
		p.mu.Lock()
		p.down = true
		p.mu.Unlock()
		p.kill()
		write(10 * time.Second)
		if _, why := ignored(); why == "dropped" {
			t.Errorf("ignored %q, though who dropped it is gone", why)
		}
	})
}
