package manager

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestStopWithAHungDisk: a manager that is stopped does not wait for its disk, whether it leads or not. The
// other managers continue.
func TestStopWithAHungDisk(t *testing.T) {
	c := newTrio(t)
	for i, name := range []string{"a follower", "the leader"} {
		at := c.leader()
		if name == "a follower" {
			at = (at + 1) % len(c.nodes)
		}
		n, gate := c.nodes[at], make(chan struct{})
		n.gate.Store(&gate)
		// A write that all of them get.
		c.call(c.nodes[(at+1)%len(c.nodes)], "PATCH", "/v1/limits", fmt.Sprintf(`{"indexes_per_bucket":%d}`, 500+i), nil)
		c.until("a write waits for the disk", func() bool { return n.held.Load() > 0 })
		c.nodes[at] = nil
		n.m.cfg.stopPatience = 50 * time.Millisecond // the others keep the default
		n.stop()
		select {
		case err := <-n.done:
			if !errors.Is(err, ErrHangs) {
				t.Errorf("%s ends with %v", name, err)
			}
		case <-time.After(patience):
			t.Errorf("%s does not stop", name)
		}
		close(gate)
		<-n.m.stopped
		c.start(at)
		c.leader()
	}
}
