package core

import (
	"errors"
	"testing"

	"tidemark/errcode"
	"tidemark/wire"
)

func fence(term, counter uint64) wire.Fence {
	return wire.Fence{ClusterID: "c1", Epoch: 1, Term: term, Counter: counter}
}

// TestAuthority: a projector refuses commands before it is registered, then obeys the newest leader, in the order of
// its commands; a read-only request may be overtaken, and changes nothing.
func TestAuthority(t *testing.T) {
	var a Authority
	if _, err := a.Admit("p1", "boot", fence(5, 1), false); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("one that has not registered: %v", err)
	}
	meant := fence(5, 1)
	meant.Boot = "another"
	if _, err := a.Admit("p1", "boot", meant, true); !errors.Is(err, errcode.AnotherProcess) {
		t.Errorf("one that has not registered, and is not meant: %v", err)
	}
	a = a.Register(&wire.RegisterReply{ClusterID: "c1", Fence: fence(5, 10)})
	for _, c := range []struct {
		f     wire.Fence
		reads bool
		want  error
		then  wire.Fence
	}{
		{f: fence(5, 9), want: wire.ErrFenced, then: fence(5, 10)},
		{f: fence(5, 9), reads: true, then: fence(5, 10)},
		{f: fence(4, 99), reads: true, want: wire.ErrFenced, then: fence(5, 10)},
		{f: fence(6, 1), reads: true, then: fence(5, 10)},
		{f: fence(5, 10), then: fence(5, 10)}, // a retry
		{f: fence(6, 1), then: fence(6, 1)},
		{f: fence(5, 99), want: wire.ErrFenced, then: fence(6, 1)},
		{f: wire.Fence{ClusterID: "c2", Epoch: 9}, want: wire.ErrForeignCluster, then: fence(6, 1)},
	} {
		next, err := a.Admit("p1", "boot", c.f, c.reads)
		if !errors.Is(err, c.want) || next.Fence != c.then || !next.Registered {
			t.Errorf("%+v, reads %v: %+v, %v; want %+v, %v", c.f, c.reads, next, err, c.then, c.want)
		}
		a = next
	}
	for _, c := range []struct{ told, then wire.Fence }{
		{fence(5, 3), fence(6, 1)}, // from a manager that does not know the newest leader yet
		{fence(7, 0), fence(7, 0)},
	} {
		if a = a.Register(&wire.RegisterReply{ClusterID: "c1", Fence: c.told}); a.Fence != c.then {
			t.Errorf("registered under %+v: %+v, want %+v", c.told, a.Fence, c.then)
		}
	}
}

// TestDefinitions: older definitions are refused, by epoch first and then by revision; a revision of another epoch
// than the leader's is not reported.
func TestDefinitions(t *testing.T) {
	list := func(epoch, revision uint64) *wire.Definitions {
		return &wire.Definitions{Fence: wire.Fence{Epoch: epoch}, Revision: revision}
	}
	for _, c := range []struct {
		have, d *wire.Definitions
		refused bool
	}{
		{nil, list(1, 1), false},
		{list(1, 5), list(1, 4), true},
		{list(1, 5), list(1, 5), false},
		{list(1, 5), list(2, 1), false},
		{list(2, 1), list(1, 9), true},
	} {
		if err := TakeDefinitions(c.have, c.d); errors.Is(err, errcode.Fenced) != c.refused {
			t.Errorf("%+v after %+v: %v", c.d, c.have, err)
		}
	}
	for _, c := range []struct {
		d     *wire.Definitions
		epoch uint64
		want  uint64
	}{{nil, 1, 0}, {list(1, 5), 1, 5}, {list(1, 5), 2, 0}} {
		if got, known := Revision(c.d, wire.Fence{Epoch: c.epoch}); got != c.want || known != (c.want > 0) {
			t.Errorf("%+v in epoch %d: %d, %v", c.d, c.epoch, got, known)
		}
	}
}
