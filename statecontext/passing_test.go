package statecontext

import (
	"errors"
	"testing"
	"tidemark/errcode"
)

// TestTransientRejectionsAreForgotten: a request that was rejected only for the moment succeeds when it is sent again
// later.
func TestTransientRejectionsAreForgotten(t *testing.T) {
	ask := func(n *node, b Body) Result {
		return n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: "k", BodyHash: [32]byte{1}}, Body: b})[0]
	}
	for _, tc := range []struct {
		name  string
		begin func(t testing.TB) *node
		want  errcode.Code
		end   func(n *node)
		body  Body
	}{
		{"no id yet", func(t testing.TB) *node { return newNode(t) }, errcode.NotBootstrapped, func(n *node) {
			n.must(&BootstrapCluster{ClusterID: "c1", Epoch: 7})
		}, &SetLimits{Limits: Limits{Buckets: 7}}},
		{"a restore", func(t testing.TB) *node {
			n := cluster(t)
			n.must(&BeginRestore{ID: "r1", Mode: RestoreInPlace, Bytes: 1})
			return n
		}, errcode.Restoring, func(n *node) { n.must(&AbortRestore{}) }, create("x", 0, 0)},
		{"a restore that its leader did not end", func(t testing.TB) *node {
			n := cluster(t)
			n.must(&BeginRestore{ID: "r1", Mode: RestoreInPlace, Bytes: 1})
			return n
		}, errcode.Restoring, func(n *node) { n.must(&LeaderStarted{Term: 2, Manager: Manager{ID: "m2-bb"}}) },
			&PutUser{Mode: PutFirst, Name: "a", Role: UserAdmin, Hash: "h"}},
		{"another restore", func(t testing.TB) *node {
			n := cluster(t)
			n.must(&BeginRestore{ID: "r1", Mode: RestoreInPlace, Bytes: 1})
			return n
		}, errcode.Restoring, func(n *node) {
			n.must(&AbortRestore{})
		}, &BeginRestore{ID: "r2", Mode: RestoreInPlace, Bytes: 1}},
		{"an older format", func(t testing.TB) *node { return cluster(t) }, errcode.FormatNotAllowed, func(n *node) {
			n.raise()
		}, &Reserved{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := tc.begin(t)
			for range 2 {
				if r := ask(n, tc.body); !errors.Is(r.Err(), tc.want) || r.Replayed || n.state.LedgerLen() != 0 {
					t.Fatalf("%+v, %d remembered; want %s and nothing remembered", r, n.state.LedgerLen(), tc.want)
				}
			}
			tc.end(n)
			if r := ask(n, tc.body); r.Rejection != nil || r.Replayed || !r.Changed || n.state.LedgerLen() != 1 {
				t.Fatalf("the same request, later: %+v, %v", r, r.Rejection)
			}
			if r := ask(n, tc.body); r.Rejection != nil || !r.Replayed {
				t.Fatalf("and once more: %+v", r)
			}
		})
	}
}

// A CREATE INDEX is placed on an indexer whose removal is applied first: the same request succeeds with another
// placement.
func TestPlacedBeforeARemoval(t *testing.T) {
	n := cluster(t)
	ask := func(b Body) Result {
		return n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: "k"}, Body: b})[0]
	}
	n.must(&EvictIndexer{Node: 1, UUID: n.state.Indexer(1).UUID, Revision: n.state.DefinitionsRevision()})
	if r := ask(create("x", 0, 0, 1)); !errors.Is(r.Err(), errcode.IndexChanged) || n.state.LedgerLen() != 0 {
		t.Fatalf("%+v, %d remembered", r, n.state.LedgerLen())
	}
	if r := ask(create("x", 0, 0, 0)); r.Rejection != nil || r.Replayed {
		t.Fatalf("placed elsewhere: %+v, %v", r, r.Rejection)
	}
}
