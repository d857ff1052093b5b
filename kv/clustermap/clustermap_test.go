package clustermap

import (
	"errors"
	"fmt"
	"testing"

	"tidemark/mcbp"
)

func nodes(n int) (out []Node) {
	for i := range n {
		out = append(out, Node{ID: fmt.Sprint("kv", i+1), Memcached: fmt.Sprintf("127.0.0.1:%d", 9000+i), Admin: fmt.Sprintf("127.0.0.1:%d", 9100+i)})
	}
	return out
}

// Every node derives the same map, and every node gets its fair share.
func TestDeriveIsFair(t *testing.T) {
	for _, vbuckets := range []int{1, 16, 128, 1024} {
		for n := 1; n <= min(7, vbuckets); n++ {
			m := Derive("b", "u", vbuckets, nodes(n))
			count := map[string]int{}
			for v := range vbuckets {
				count[m.Owner(uint16(v))]++
			}
			for id, c := range count {
				if c < vbuckets/n || c > vbuckets/n+1 {
					t.Errorf("%d vbuckets on %d nodes: %s has %d", vbuckets, n, id, c)
				}
			}
			if len(count) != n || m.Rev != 1 || m.Check("b", "u", vbuckets) != nil {
				t.Errorf("%d vbuckets on %d nodes: %v", vbuckets, n, count)
			}
		}
	}
}

func TestRevisionRisesWithAddresses(t *testing.T) {
	m := Derive("b", "u", 16, nodes(2))
	same, err := m.WithNodes(nodes(2))
	if err != nil || same.Rev != 1 {
		t.Fatal(same.Rev, err)
	}
	moved := nodes(2)
	moved[1].Memcached = "127.0.0.1:1"
	next, err := m.WithNodes(moved)
	if err != nil || next.Rev != 2 || next.Owner(15) != "kv2" || m.Nodes[1].Memcached == "127.0.0.1:1" {
		t.Fatal(next, err)
	}
	grown, err := m.WithNodes(nodes(3)) // a new node has no vbuckets, but clients see it
	if err != nil || grown.Rev != 2 || grown.Owner(15) != "kv2" {
		t.Fatal(grown, err)
	}
	if _, err := m.WithNodes(nodes(1)); !errors.Is(err, ErrMap) {
		t.Fatalf("an owner is missing: %v", err)
	}
}

func TestCheck(t *testing.T) {
	m := Derive("b", "u", 16, nodes(2))
	for name, err := range map[string]error{
		"bucket": m.Check("c", "u", 16), "uuid": m.Check("b", "v", 16), "vbuckets": m.Check("b", "u", 32),
		"format":  func() error { x := m; x.Format = 2; return x.Check("b", "u", 16) }(),
		"a chain": func() error { x := m; x.Chains = append([][]string{{}}, x.Chains[1:]...); return x.Check("b", "u", 16) }(),
	} {
		if !errors.Is(err, ErrMap) {
			t.Errorf("another %s: %v", name, err)
		}
	}
}

func TestConfigIsWhatClientsRoute(t *testing.T) {
	c, err := Derive("b", "u", 16, nodes(2)).Config("kv2")
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
	c, err = Derive("b", "u", 16, open).Config("kv1")
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := c.KVAddr(0, "10.1.1.1", false); addr != "10.1.1.1:9000" || err != nil {
		t.Fatal(addr, err)
	}
	for _, bad := range []string{"nonsense", "host:port", "h:99999", ""} {
		n := nodes(1)
		n[0].Memcached = bad
		if _, err := Derive("b", "u", 16, n).Config("kv1"); !errors.Is(err, ErrMap) {
			t.Errorf("address %q: %v", bad, err)
		}
	}
}
