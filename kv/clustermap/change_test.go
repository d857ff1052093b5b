package clustermap

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "tidemark/internal/testing/draws"
	"tidemark/timestamp"
)

// TestRebalanceReachesAnEvenSpread checks that a rebalance ends, from any map and after any order of steps, with an
// even spread. In between, every vbucket has one active copy, and every copy that takes over has been filled.
func TestRebalanceReachesAnEvenSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vbuckets := 1 << rapid.IntRange(3, 7).Draw(t, "vbuckets")
		replicas := rapid.IntRange(0, 3).Draw(t, "replicas")
		m := Derive(nodes(rapid.IntRange(1, 5).Draw(t, "nodes")), specs(vbuckets, replicas))
		for range rapid.IntRange(1, 3).Draw(t, "rebalances") {
			all := nodes(7)
			var remove []string
			for _, n := range m.Nodes {
				if len(m.Nodes)-len(remove) > 1 && rapid.Bool().Draw(t, "remove "+n.ID) {
					remove = append(remove, n.ID)
				}
			}
			var add []Node
			for _, n := range all {
				if _, ok := m.Node(n.ID); !ok && rapid.Bool().Draw(t, "add "+n.ID) {
					add = append(add, n)
				}
			}
			m = rebalance(t, m, add, remove, replicas)
		}
	})
}

// rebalance carries out a rebalance as the leader does.
func rebalance(t *rapid.T, m Map, add []Node, remove []string, replicas int) Map {
	before := m
	next, err := m.StartRebalance("op", add, remove)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if again, err := next.StartRebalance("other", add, remove); err != nil || again.Rev != next.Rev {
		t.Fatalf("asking again: %v", err)
	}
	m = carryOut(t, next)
	for _, id := range remove {
		if _, ok := m.Node(id); ok {
			t.Fatalf("%s is still a member", id)
		}
	}
	if slices.Contains(remove, before.Leader) != (m.RevEpoch > before.RevEpoch) {
		t.Fatalf("led by %s in epoch %d, before by %s in %d", m.Leader, m.RevEpoch, before.Leader, before.RevEpoch)
	}
	actives, copies := spread(t, m.Buckets[0].Chains, ids(m.Nodes), replicas)
	if actives > 1 || copies > 2 {
		t.Fatalf("actives are %d apart, replicas %d", actives, copies)
	}
	return m
}

// carryOut carries out an operation as the leader does, and checks the first bucket.
func carryOut(t *rapid.T, m Map) Map {
	var all []Spec
	for _, b := range m.Buckets {
		all = append(all, Spec{Name: b.Name, UUID: b.UUID, VBuckets: len(b.Chains)})
	}
	holders := make([]map[string]bool, len(m.Buckets[0].Chains)) // nodes that have documents
	for v, chain := range m.Buckets[0].Chains {
		holders[v] = map[string]bool{}
		for _, id := range chain {
			holders[v][id] = true
		}
	}
	for steps := 0; ; steps++ {
		if steps > 4*len(holders)+4 {
			t.Fatalf("no end; %d left", m.Left())
		}
		if err := m.Check(all); err != nil {
			t.Fatalf("%v", err)
		}
		moves := m.Moves(rapid.IntRange(1, 20).Draw(t, "limit"))
		if len(moves) == 0 {
			break
		}
		was := m
		if fill := slices.DeleteFunc(slices.Clone(moves), func(v Move) bool {
			return v.Filling ||
				len(v.Missing) == 0
		}); len(fill) > 0 {
			m = m.Fill(fill)
			for _, v := range fill {
				for _, id := range v.Missing {
					holders[v.VBucket][id] = true
				}
			}
		} else {
			m = m.Switch(moves[:rapid.IntRange(1, len(moves)).Draw(t, "switched")])
		}
		if !m.Newer(was) || was.Newer(m) {
			t.Fatalf("revision %d.%d after %d.%d", m.RevEpoch, m.Rev, was.RevEpoch, was.Rev)
		}
		for v, chain := range m.Buckets[0].Chains {
			for _, id := range chain {
				if !holders[v][id] {
					t.Fatalf("vbucket %d: %s is in %v and has nothing", v, id, chain)
				}
			}
		}
	}
	was := m
	m = m.Finish()
	if !m.Newer(was) || m.Operation != nil || m.Left() != 0 || len(m.Buckets[0].Incoming) > 0 {
		t.Fatalf("%+v", m)
	}
	return m
}

// TestReplicasAreChanged changes the number of replicas of one bucket, by the steps of a rebalance: the bucket gets
// them, evenly spread, its active copies stay where they are, and the other bucket is unchanged.
func TestReplicasAreChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vbuckets := 1 << rapid.IntRange(3, 7).Draw(t, "vbuckets")
		m := Derive(nodes(rapid.IntRange(1, 5).Draw(t, "nodes")), append(specs(vbuckets, rapid.IntRange(0, 3).Draw(t, "had")),
			Spec{Name: "other", UUID: "u2", VBuckets: 8, Replicas: 1}))
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			before, want := m, rapid.IntRange(0, 3).Draw(t, "replicas")
			var err error
			if m, err = m.ChangeBuckets(BucketChange{Name: "b",
				Edit: &BucketEdit{Replicas: &want, Operation: "op"}}); err != nil {
				t.Fatal(err)
			}
			same := want == before.Buckets[0].Replicas
			if same == m.Newer(before) {
				t.Fatalf("%d replicas after %d: map %d after %d", want, before.Buckets[0].Replicas, m.Rev, before.Rev)
			}
			if had := len(before.Buckets[0].Chains[0]); (m.Operation != nil) != (had != min(want+1, len(m.Nodes))) {
				t.Fatalf("%d copies, %d replicas wanted: %+v", had, want, m.Operation)
			}
			moved := m.Operation != nil
			if moved {
				m = underWay(t, m, want)
			}
			_, copies := spread(t, m.Buckets[0].Chains, ids(m.Nodes), want)
			if moved && copies > 2 || m.Buckets[0].Replicas != want {
				t.Fatalf("%d replicas, which are %d apart", m.Buckets[0].Replicas, copies)
			}
			for v, chain := range m.Buckets[0].Chains {
				if chain[0] != before.Buckets[0].Chains[v][0] {
					t.Fatalf("vbucket %d: %v after %v", v, chain, before.Buckets[0].Chains[v])
				}
			}
			if !slices.EqualFunc(m.Buckets[1].Chains, before.Buckets[1].Chains, slices.Equal) {
				t.Fatalf("the other bucket has %v", m.Buckets[1].Chains)
			}
		}
	})
}

// underWay carries out a change of the replicas of bucket b, during which no other operation begins.
func underWay(t *rapid.T, m Map, replicas int) Map {
	_, all := m.StartRebalance("other", nil, nil)
	other := (replicas + 1) % 4
	_, again := m.ChangeBuckets(BucketChange{Name: "b", Edit: &BucketEdit{Replicas: &other}})
	if !errors.Is(all, ErrMap) || !strings.Contains(all.Error(), `replicas of bucket "b"`) ||
		!errors.Is(again, ErrRebalancing) {
		t.Fatalf("while they are changed: %v; %v", all, again)
	}
	return carryOut(t, m)
}

// TestRebalanceMovesLittle checks that an even spread stays as it is, and that one more node takes over its share and
// nothing else.
func TestRebalanceMovesLittle(t *testing.T) {
	m := Derive(nodes(3), specs(128, 1))
	same, err := m.StartRebalance("op", nil, nil)
	if err != nil || same.Left() != 0 {
		t.Fatalf("%d vbuckets move for nothing: %v", same.Left(), err)
	}
	m = Derive(nodes(3), specs(128, 0))
	four, err := m.StartRebalance("op", nodes(4)[3:], nil)
	if err != nil || four.Left() != 32 || four.Operation.VBuckets != 32 {
		t.Fatalf("%d vbuckets move: %v", four.Left(), err)
	}
	stopped := four.Fill(four.Moves(4)).Finish()
	if len(stopped.Nodes) != 4 || stopped.Operation != nil || stopped.Buckets[0].Incoming != nil ||
		!slices.EqualFunc(stopped.Buckets[0].Chains, m.Buckets[0].Chains, slices.Equal) {
		t.Fatalf("%+v", stopped)
	}
}

func TestRebalanceRefuses(t *testing.T) {
	m := Derive(nodes(3), specs(16, 1))
	under, err := m.StartRebalance("op", nil, []string{"kv1"})
	if err != nil {
		t.Fatal(err)
	}
	moved := nodes(3)[2:]
	moved[0].Memcached = "127.0.0.1:5"
	for name, f := range map[string]func() (Map, error){
		"a node of nowhere":        func() (Map, error) { return m.StartRebalance("x", nil, []string{"kv9"}) },
		"no node would remain":     func() (Map, error) { return m.StartRebalance("x", nil, []string{"kv1", "kv2", "kv3"}) },
		"another address":          func() (Map, error) { return m.StartRebalance("x", moved, nil) },
		"another one is under way": func() (Map, error) { return under.StartRebalance("x", nil, []string{"kv2"}) },
		"less vbuckets than nodes": func() (Map, error) {
			return Derive(nodes(1), specs(1, 0)).StartRebalance("x", nodes(2)[1:], nil)
		},
	} {
		if got, err := f(); !errors.Is(err, ErrMap) || got.Newer(under) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// copiesOf returns the copies on each node of the chains: by default complete ones.
func copiesOf(m Map, change func(vb uint16, c *Copy)) func(string, uint16) []Copy {
	return func(_ string, vb uint16) (out []Copy) {
		for _, id := range m.Buckets[0].Chains[vb] {
			c := Copy{Node: id, Log: timestamp.FailoverLog{{VBUUID: 7}}, High: 100, Known: 100, Whole: true, Joined: true}
			if change != nil {
				change(vb, &c)
			}
			out = append(out, c)
		}
		return out
	}
}

func TestFailover(t *testing.T) {
	m := Derive(nodes(3), specs(12, 1))
	next, all, err := m.Failover([]string{"kv2"}, copiesOf(m, nil), false)
	if err != nil || len(all) != 4 || next.RevEpoch != 1 || next.Rev != 2 || len(next.Nodes) != 2 {
		t.Fatal(next, all, err)
	}
	if err := next.Check(specs(12, 1)); err != nil {
		t.Fatal(err)
	}
	for v, chain := range next.Buckets[0].Chains {
		if was := m.Buckets[0].Chains[v]; slices.Contains(chain, "kv2") || was[0] == "kv2" && chain[0] != was[1] ||
			was[0] != "kv2" && chain[0] != was[0] {
			t.Fatalf("vbucket %d: %v became %v", v, was, chain)
		}
	}
	led, _, err := m.Failover([]string{"kv1"}, copiesOf(m, nil), false)
	if err != nil || led.Leader != "kv2" || led.RevEpoch != 2 || led.Rev != 1 {
		t.Fatal(led, err)
	}
	under, err := m.StartRebalance("op", nil, []string{"kv3"})
	if err != nil {
		t.Fatal(err)
	}
	if ended, _, err := under.Failover([]string{"kv3"}, copiesOf(m, nil), false); err != nil || ended.Operation != nil {
		t.Fatal(ended, err)
	}
	for name, want := range map[string]string{"lag": "seqno 99 of 100", "part": "middle of a snapshot",
		"apart": "has not connected"} {
		copies := copiesOf(m, func(vb uint16, c *Copy) {
			if vb != 5 || c.Node == "kv2" {
				return
			}
			switch name {
			case "lag":
				c.High = 99
			case "part":
				c.Whole = false
			case "apart":
				c.Joined = false
			}
		})
		got, _, err := m.Failover([]string{"kv2"}, copies, false)
		if !errors.Is(err, ErrMap) || !strings.Contains(fmt.Sprint(err), want) ||
			!strings.Contains(err.Error(), "vbucket 5") || got.Rev != 1 {
			t.Errorf("%s: %v", name, err)
		}
		if _, all, err := m.Failover([]string{"kv2"}, copies, true); err != nil || len(all) != 4 {
			t.Errorf("%s: with loss: %v", name, err)
		}
	}
	bare := Derive(nodes(2), specs(8, 0))
	if _, _, err := bare.Failover([]string{"kv2"}, copiesOf(bare, nil), false); !errors.Is(err, ErrMap) ||
		!strings.Contains(err.Error(), "no replica") {
		t.Error(err)
	}
	empty, all, err := bare.Failover([]string{"kv2"}, func(string, uint16) []Copy { return nil }, true)
	if err != nil || len(all) != 4 || !all[0].Empty || all[0].Node != "kv1" || empty.Check(specs(8, 0)) != nil {
		t.Error(empty, all, err)
	}
	for _, who := range [][]string{{"kv9"}, {"kv1", "kv2", "kv3"}} {
		if _, _, err := m.Failover(who, copiesOf(m, nil), true); !errors.Is(err, ErrMap) {
			t.Errorf("%v: %v", who, err)
		}
	}
}

// TestBestCopy checks that the newer branch wins over the longer one, and on one branch the longer copy.
func TestBestCopy(t *testing.T) {
	old := Copy{Node: "old", Log: timestamp.FailoverLog{{VBUUID: 1}}, High: 900, Joined: true}
	short := Copy{Node: "short", Log: timestamp.FailoverLog{{VBUUID: 2, Seqno: 50}, {VBUUID: 1}}, High: 60, Joined: true}
	long := Copy{Node: "long", Log: timestamp.FailoverLog{{VBUUID: 2, Seqno: 50}, {VBUUID: 1}}, High: 70}
	foreign := Copy{Node: "foreign", Log: timestamp.FailoverLog{{VBUUID: 9}}, High: 2000}
	for _, c := range []struct{ better, worse Copy }{{short, old}, {long, short}, {long, old}, {old, foreign},
		{old, Copy{High: 5}}} {
		if !c.better.better(c.worse) || c.worse.better(c.better) {
			t.Errorf("%s, %s", c.better.Node, c.worse.Node)
		}
	}
}
