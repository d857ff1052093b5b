package core

import (
	"errors"
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/streams"
	"tidemark/timestamp"
)

// needing returns a scan that needs these seqnos, all of one branch.
func needing(branch uint64, seqnos ...uint64) *Stabilize {
	w := &Stabilize{Bucket: "b", Need: timestamp.New(len(seqnos)), Reply: make(chan Stabilized, 1)}
	for v, s := range seqnos {
		if s > 0 {
			w.Need.Set(v, timestamp.Position{VBUUID: branch, Seqno: s})
		}
	}
	return w
}

// TestWantedSeqnosFollowWaitingScans checks that projectors are queried for the highest seqnos that the waiting scans
// need, as scans come and go, and that a slice already sent does not change.
func TestWantedSeqnosFollowWaitingScans(t *testing.T) {
	c := newCrowd(t, 0)
	b := c.lead.buckets.byName["b"]
	one, two, three := needing(7, 9, 0, 3, 0), needing(7, 8, 4, 0, 0), needing(7, 0, 0, 6, 0)
	for _, step := range []struct {
		do   func()
		want []uint64
	}{
		{func() {}, []uint64{0, 0, 0, 0}},
		{func() { b.wait(one) }, []uint64{9, 0, 3, 0}},
		{func() { b.wait(two) }, []uint64{9, 4, 3, 0}},
		{func() { b.endWaits(func(w *Stabilize) bool { return w == one }) }, []uint64{8, 4, 0, 0}},
		{func() { b.wait(three) }, []uint64{8, 4, 6, 0}},
		{func() { c.lead.promotion.prune([]*Stabilize{two}) }, []uint64{0, 0, 6, 0}},
		{func() { c.lead.promotion.fail(b, ErrBucketGone) }, []uint64{0, 0, 0, 0}},
	} {
		if step.do(); !slices.Equal(b.wants(), step.want) {
			t.Errorf("%v is wanted, want %v", b.wants(), step.want)
		}
	}
	var wanted []uint64
	for _, e := range c.lead.Step(c.now, needing(7, 9, 9, 9, 9)) {
		if sent, is := e.(Send); is && sent.Lane == Syncs {
			wanted = sent.Message.(RequestSync).Want
		}
	}
	b.wait(needing(7, 20, 20, 20, 20))
	if !slices.Equal(wanted, []uint64{9, 9, 9, 9}) {
		t.Errorf("%v was requested", wanted)
	}
}

// TestLostBranches checks that an audit refuses a scan that needs a branch missing from all logs of the vbucket, if a
// log was collected since the scan arrived.
func TestLostBranches(t *testing.T) {
	log := func(v uint16, branches ...uint64) streams.Log {
		l := streams.Log{VBucket: v}
		for _, b := range branches {
			l.Log = append(l.Log, timestamp.LogEntry{VBUUID: b})
		}
		return l
	}
	for _, tc := range []struct {
		name string
		logs map[index.ProjectorID][]streams.Log
		came int64 // after the audit began
		lost bool
	}{
		{"no log has it", map[index.ProjectorID][]streams.Log{"p1": {log(0, 9, 8), log(1, 9)}}, 0, true},
		{"of two projectors none", map[index.ProjectorID][]streams.Log{"p1": {log(0, 9)}, "p2": {log(0, 8)}}, 0, true},
		{"one has it", map[index.ProjectorID][]streams.Log{"p1": {log(0, 9)}, "p2": {log(0, 9, 55)}}, 0, false},
		{"it is not shown", map[index.ProjectorID][]streams.Log{"p1": {log(1, 9), log(400, 9)}}, 0, false},
		{"it came later", map[index.ProjectorID][]streams.Log{"p1": {log(0, 9)}}, 1, false},
	} {
		c := newCrowd(t, 0)
		b := c.lead.buckets.byName["b"]
		w := needing(55, 3, 0, 0, 0)
		w.unknown, w.cameMS = true, c.now.MS+tc.came
		b.wait(w)
		c.lead.promotion.endLost(b, &audit{sinceMS: c.now.MS, logs: tc.logs})
		var err error
		for _, e := range c.lead.effects {
			if a, is := e.(answer[Stabilized]); is {
				err = a.v.Err
			}
		}
		if errors.Is(err, ErrTokenLost) != tc.lost || (len(b.waiters) == 0) != tc.lost || b.suspect == tc.lost {
			t.Errorf("%s: %v, %d wait", tc.name, err, len(b.waiters))
		}
	}
}
