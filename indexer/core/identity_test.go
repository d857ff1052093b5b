package core

import (
	"errors"
	"testing"

	"tidemark/wire"
)

// TestIdentity: a new leader is stored before it is obeyed, a deposed one and one of another cluster are refused, and
// a node that was registered once belongs to that cluster.
func TestIdentity(t *testing.T) {
	fence := func(cluster string, epoch, term, counter uint64) wire.Fence {
		return wire.Fence{ClusterID: cluster, Epoch: epoch, Term: term, Counter: counter}
	}
	var id Identity
	next, store, err := id.Registered(&wire.RegisterReply{ClusterID: "c", Node: 3})
	if err != nil || !store || next.Node != 3 {
		t.Fatalf("registered: %+v, %v, %v", next, store, err)
	}
	id = next
	if next, store, err = id.Registered(&wire.RegisterReply{ClusterID: "c", Node: 3}); err != nil || store || next != id {
		t.Errorf("registered again: %+v, %v, %v", next, store, err)
	}
	if _, _, err = id.Registered(&wire.RegisterReply{ClusterID: "d", Node: 3}); !errors.Is(err, wire.ErrForeignCluster) {
		t.Errorf("registered by others: %v", err)
	}
	for _, step := range []struct {
		f     wire.Fence
		store bool
		err   error
	}{
		{fence("c", 1, 5, 7), true, nil}, {fence("c", 1, 5, 8), false, nil}, {fence("c", 1, 5, 7), false, wire.ErrFenced},
		{fence("c", 1, 4, 9), false, wire.ErrFenced}, {fence("c", 1, 6, 1), true, nil}, {fence("c", 2, 1, 1), true, nil},
		{fence("d", 2, 1, 2), false, wire.ErrForeignCluster},
	} {
		next, store, err := id.Admit("boot", step.f)
		if !errors.Is(err, step.err) || err == nil && (step.err != nil || store != step.store || next.Fence != step.f) ||
			err != nil && next != id {
			t.Fatalf("%+v: %+v, %v, %v", step.f, next, store, err)
		}
		id = next
	}
	// of another process of the same leader, whose counter starts anew
	if _, store, err := id.Kept().Admit("boot", fence("c", 2, 1, 1)); err != nil || store {
		t.Errorf("after a restart: %v, %v", store, err)
	}
}
