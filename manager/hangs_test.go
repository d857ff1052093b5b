package manager

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestStopWithAHungDisk: a manager that is stopped does not wait for its disk, whether it leads or not. The
// other managers continue.
func TestStopWithAHungDisk(t *testing.T) {
	c := newTrio(t)
	const at = 0
	for i, name := range []string{"a follower", "the leader"} {
		c.stop(at)
		c.cfgs[at].stopPatience = 50 * time.Millisecond // the others keep theirs
		c.start(at)
		c.until("it is "+name, func() bool {
			l := c.leader()
			if (l == at) != (name == "the leader") {
				_ = c.nodes[l].m.raft.TransferLeadership(context.Background()) // it is retried
			}
			return (c.leader() == at) == (name == "the leader")
		})
		n, gate := c.nodes[at], make(chan struct{})
		n.gate.Store(&gate)
		// A write that all of them get.
		c.call(c.nodes[(at+1)%len(c.nodes)], "PATCH", "/v1/limits", fmt.Sprintf(`{"indexes_per_bucket":%d}`, 500+i), nil)
		c.until("a write waits for the disk", func() bool { return n.held.Load() > 0 })
		c.nodes[at] = nil
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
		c.cfgs[at].stopPatience = patience
		c.start(at)
		c.leader()
	}
}
