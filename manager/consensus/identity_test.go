package consensus_test

import (
	"testing"
	"time"
)

// TestClusterIDWaitsForNoDisk: every connection between managers begins with the cluster id. ClusterID returns it
// even while the disk is slow, and it is stored when the disk has finished.
func TestClusterIDWaitsForNoDisk(t *testing.T) {
	virtual(t, 1, nil, func(t *testing.T, _ *hub, all servers) {
		s := all[0]
		all.propose(projector("p", "x")) // nothing has connected, so the id was not requested yet
		s.disk(func() error { time.Sleep(time.Minute); return nil })
		began := time.Now()
		id := s.node.ClusterID()
		if took := time.Since(began); id == "" || took > 0 {
			t.Errorf("cluster id %q after %v, want it at once", id, took)
		}
		time.Sleep(2 * time.Minute)
		s.disk(nil)
		s.stop()
		s.start()
		if got := s.node.ClusterID(); got != id { // before anything is known to be committed
			t.Errorf("after a restart the cluster id is %q, want %q", got, id)
		}
		all.propose(projector("p", "y"))
	})
}
