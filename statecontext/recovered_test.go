package statecontext

import "testing"

// rollTo moves a rollback of bucket b, the present one or a new one, to a step; NoRollback ends it.
func rollTo(n *node, to RollbackStep) {
	n.t.Helper()
	v := vector(1, 1, 1, 1)
	for first := true; first || n.state.Bucket("b").step() != to; first = false {
		b := n.state.Bucket("b")
		c := &SetRollbackStep{Bucket: "b", Generation: b.Generation, ID: b.lastRollback(), From: b.step(), To: b.step() + 1}
		switch c.From {
		case Started:
			c.Failover = v
		case Prepare:
			c.Restart = v
		case RollingBack:
			c.To, c.Stability = NoRollback, v
		}
		n.must(c)
	}
}

// Whatever the survivor has missed, it assigns no number of a bucket that indexers have already seen: they would
// refuse it as from before a rollback, take it for one that they have carried out, or hold data under it.
func TestRecoveryReusesNoBucketNumbers(t *testing.T) {
	empty := func(n *node) {}
	promoted := func(n *node) { n.must(n.advance("b", vector(1, 1, 1, 1))) }
	rolled := func(n *node) { promoted(n); rollTo(n, NoRollback) }
	for name, c := range map[string]struct{ known, lost func(*node) }{
		"a rollback": {promoted, func(n *node) { rollTo(n, NoRollback) }},
		"rollbacks":  {rolled, func(n *node) { rollTo(n, NoRollback); rollTo(n, NoRollback) }},
		"a restarted rollback": {func(n *node) { promoted(n); rollTo(n, Restart) }, func(n *node) {
			b := n.state.Bucket("b")
			n.must(&SetRollbackStep{Bucket: "b", Generation: 1, ID: b.lastRollback(), From: b.step(), To: Started})
			rollTo(n, NoRollback)
		}},
		"the first promotion":      {empty, promoted},
		"the first, and rollbacks": {empty, rolled},
		"a bucket": {func(n *node) { n.must(&BucketGone{Name: "b", UUID: "bu1"}) }, func(n *node) {
			n.must(&SetBucket{Name: "b", UUID: "bu2", VBuckets: 4})
			rolled(n)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := cluster(t)
			c.known(n)
			survivor := n.state
			c.lost(n)
			lost := n.state.Bucket("b")
			n.state = survivor
			n.must(&RaiseEpoch{Epoch: survivor.Epoch() + 1, SkipNumbers: true})
			b := n.state.Bucket("b")
			if b == nil || b.Gone {
				n.must(&SetBucket{Name: "b", UUID: "bu2", VBuckets: 4})
				b = n.state.Bucket("b")
			}
			if b.lastRollback() <= lost.lastRollback() || b.Stability.Number <= lost.Stability.Number &&
				b.Generation == lost.Generation {
				t.Errorf("rollback %d and timestamp %d follow; lost were %d and %d", b.lastRollback(), b.Stability.Number,
					lost.lastRollback(), lost.Stability.Number)
			}
			if was := survivor.Bucket("b"); was != nil && was.step() != b.step() {
				t.Errorf("step %s became %s", was.step(), b.step())
			}
			if b.Rollback == nil {
				n.must(n.advance("b", vector(2, 2, 2, 2)))
			}
			rollTo(n, NoRollback)
		})
	}
}
