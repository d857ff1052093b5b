package statecontext

import (
	"testing"

	"tidemark/errcode"
)

// removal returns the command of a request to remove m2; id is the manager with that name at the time.
func removal(id string, sent byte) Command {
	return Command{Request: &Request{Principal: "p", Key: "k", BodyHash: [32]byte{sent}}, Body: &BeginRemoval{ID: id}}
}

// goldenRemoval has a removal in progress, recorded in the ledger.
func goldenRemoval(t testing.TB) *node {
	n := cluster(t)
	c := removal("m2-00000001", 1)
	c.TimeMS = n.now
	n.apply(c)
	return n
}

// TestBeginRemoval: the manager that a request first meant is the one that its retries mean, too, even after a state
// snapshot. Nothing else changes, and another request with the same key is rejected.
func TestBeginRemoval(t *testing.T) {
	n := goldenRemoval(t)
	before := n.state.CAS()
	again, err := ReadSnapshot(newReader(snapshot(t, n.state)))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*State{n.state, again} {
		if r, known := s.Outcome(removal("", 1).Request); !known || r.Err() != nil || r.Member != "m2-00000001" || r.Changed {
			t.Errorf("%+v, %v", r, known)
		}
		if r, known := s.Outcome(removal("", 2).Request); !known || r.Rejection.Code != errcode.RequestMismatch {
			t.Errorf("another request: %+v, %v", r, known)
		}
	}
	retry := removal("m2-00000002", 1) // which has the name by then
	retry.TimeMS = n.now
	if r := n.apply(retry)[0]; !r.Replayed || r.Member != "m2-00000001" || n.state.CAS() != before {
		t.Errorf("again: %+v, cas %d after %d", r, n.state.CAS(), before)
	}
	n.refuse(&BeginRemoval{}, errcode.InvalidArgument)
}
