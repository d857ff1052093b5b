package clustermap

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemark/kv/mcbp"
)

func nodes(n int) (out []Node) {
	for i := range n {
		out = append(out, Node{ID: fmt.Sprint("kv", i+1), Memcached: fmt.Sprintf("127.0.0.1:%d", 9000+i),
			Admin: fmt.Sprintf("127.0.0.1:%d", 9100+i)})
	}
	return out
}

func specs(vbuckets, replicas int) []Spec {
	return []Spec{{Name: "b", UUID: "u", VBuckets: vbuckets, Replicas: replicas}}
}

func ids(nodes []Node) (out []string) {
	for _, n := range nodes {
		out = append(out, n.ID)
	}
	return out
}

// spread checks that every vbucket has copies on distinct nodes of these, and returns how far the loads differ.
func spread(t interface{ Fatalf(string, ...any) }, chains [][]string, nodes []string, replicas int) (actives,
	copies int) {
	active, all := map[string]int{}, map[string]int{}
	for v, chain := range chains {
		if len(chain) != min(replicas+1, len(nodes)) {
			t.Fatalf("vbucket %d has %v, want %d copies on %v", v, chain, replicas+1, nodes)
		}
		active[chain[0]]++
		for i, id := range chain {
			if slices.Contains(chain[:i], id) || !slices.Contains(nodes, id) {
				t.Fatalf("vbucket %d: %v on %v", v, chain, nodes)
			}
			if i > 0 {
				all[id]++
			}
		}
	}
	between := func(n map[string]int) int {
		low, high := 1<<30, 0
		for _, id := range nodes {
			low, high = min(low, n[id]), max(high, n[id])
		}
		return high - low
	}
	return between(active), between(all)
}

// TestDeriveIsFair checks that every node derives the same map, and gets its fair share.
func TestDeriveIsFair(t *testing.T) {
	for _, vbuckets := range []int{1, 16, 128, 1024} {
		for n := 1; n <= min(7, vbuckets); n++ {
			for replicas := range 4 {
				m := Derive(nodes(n), specs(vbuckets, replicas))
				actives, _ := spread(t, m.Buckets[0].Chains, ids(m.Nodes), replicas)
				if actives > 1 || m.Rev != 1 || m.Leader != "kv1" || m.Check(specs(vbuckets, replicas)) != nil {
					t.Errorf("%d vbuckets on %d nodes: %d apart, %v", vbuckets, n, actives, m.Check(specs(vbuckets, replicas)))
				}
			}
		}
	}
}

func TestRevisionRisesWithAddresses(t *testing.T) {
	m := Derive(nodes(2), specs(16, 0))
	if same, changed := m.WithAddresses(nodes(2)); changed || same.Rev != 1 {
		t.Fatal(same.Rev)
	}
	moved := nodes(3)
	moved[0].Memcached, moved[1].Memcached, moved[1].Admin = "127.0.0.1:0", "127.0.0.1:1", ""
	next, changed := m.WithAddresses(moved)
	if !changed || next.Rev != 2 || len(next.Nodes) != 2 || next.Nodes[0] != m.Nodes[0] ||
		next.Nodes[1].Memcached != "127.0.0.1:1" ||
		next.Nodes[1].Admin != m.Nodes[1].Admin || m.Nodes[1].Memcached == "127.0.0.1:1" {
		t.Fatal(next)
	}
}

func TestCheck(t *testing.T) {
	m := Derive(nodes(2), specs(16, 0))
	change := func(f func(*Map)) error {
		x := m.Clone()
		f(&x)
		return x.Check(specs(16, 0))
	}
	for name, err := range map[string]error{
		"bucket":   m.Check([]Spec{{Name: "c", UUID: "u", VBuckets: 16}}),
		"uuid":     m.Check([]Spec{{Name: "b", UUID: "v", VBuckets: 16}}),
		"vbuckets": m.Check(specs(32, 0)), "buckets": m.Check(nil),
		"format":   change(func(x *Map) { x.Format = 1 }),
		"a chain":  change(func(x *Map) { x.Buckets[0].Chains[0] = nil }),
		"a node":   change(func(x *Map) { x.Buckets[0].Chains[0] = []string{"kv9"} }),
		"a copy":   change(func(x *Map) { x.Buckets[0].Chains[0] = []string{"kv1", "kv1"} }),
		"leader":   change(func(x *Map) { x.Leader = "kv9" }),
		"no nodes": change(func(x *Map) { x.Nodes = nil }),
		"targets":  change(func(x *Map) { x.Operation = &Operation{} }),
	} {
		if !errors.Is(err, ErrMap) {
			t.Errorf("another %s: %v", name, err)
		}
	}
}

// TestNewerFormat checks that a map of a newer version is recognized, whether or not it can be read here, and is
// distinguished from a damaged one. Every revision has the format of its maker; a map of the format before is read.
func TestNewerFormat(t *testing.T) {
	users := `[{"name":"ann","roles":["of_another_time[b:s:c]"]}]`
	for _, x := range []struct {
		text           string
		newer, damaged bool
	}{
		{`{"format":99,"users":` + users + `}`, true, false},
		{`{"format":99,"nodes":7}`, true, false},
		{`{"format":99}`, true, false},
		{`{"format":3,"users":` + users + `}`, false, true},
		{`{"format":3,"nodes":7}`, false, true},
		{`{"format":3}`, false, false},
	} {
		var m Map
		err := json.Unmarshal([]byte(x.text), &m)
		if damaged := err != nil && !errors.Is(err, ErrNewer); damaged != x.damaged {
			t.Errorf("%s: %v", x.text, err)
		}
		if err == nil {
			err = m.Check(nil)
		}
		if newer := errors.Is(err, ErrNewer) && strings.Contains(err.Error(), "format 99"); newer != x.newer {
			t.Errorf("%s: %v", x.text, err)
		}
	}
	m := Derive(nodes(2), specs(16, 0))
	m.Format = oldestFormat
	if err := m.Check(specs(16, 0)); err != nil {
		t.Error(err)
	}
	if n := m.next(); n.Format != Format || n.Check(specs(16, 0)) != nil {
		t.Errorf("the next revision has format %d", n.Format)
	}
}

func TestConfigIsWhatClientsRoute(t *testing.T) {
	c, err := Derive(nodes(2), specs(16, 0)).Config("b", "kv2")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := mcbp.ParseClusterConfig(raw)
	if err != nil || parsed.ThisNode() != 1 || parsed.Owner(0) != 0 || parsed.Owner(15) != 1 {
		t.Fatalf("%s: %v", raw, err)
	}
	if addr, err := parsed.KVAddr(1, "other", false); addr != "127.0.0.1:9001" || err != nil {
		t.Fatal(addr, err)
	}
	open := nodes(1)
	open[0].Memcached, open[0].Admin = mcbp.HostPlaceholder+":9000", mcbp.HostPlaceholder+":9100"
	c, err = Derive(open, specs(16, 0)).Config("b", "kv1")
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := c.KVAddr(0, "10.1.1.1", false); addr != "10.1.1.1:9000" || err != nil {
		t.Fatal(addr, err)
	}
	for _, bad := range []string{"nonsense", "host:port", "h:99999", ""} {
		n := nodes(1)
		n[0].Memcached = bad
		if _, err := Derive(n, specs(16, 0)).Config("b", "kv1"); !errors.Is(err, ErrMap) {
			t.Errorf("address %q: %v", bad, err)
		}
	}
}
