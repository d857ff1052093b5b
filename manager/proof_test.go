package manager

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/manager/consensus"
)

// TestReadsAreProven: a manager that answers a read as the leader first proves that it leads, for one read or for
// several together; believing that it leads is not enough.
func TestReadsAreProven(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.furnish()
	if code, _, body := c.call(c.nodes[0], "POST", "/v1/statements",
		statement("CREATE INDEX n ON b(x) WITH {\"defer_build\":true}"), nil); code != http.StatusAccepted {
		t.Fatalf("%d %s", code, body)
	}
	paths := strings.NewReplacer("{ref:.+}", "b/n", "{bucket}", "b", "{id}", "1")
	for _, rt := range c.nodes[0].m.api.Routes() {
		if rt.Method != http.MethodGet || !rt.Leader {
			continue
		}
		const times = 10 // each manager proves it once a second by itself
		var proven float64
		c.until("ten answers of one leader in one term", func() bool {
			l := c.nodes[c.leader()]
			term, _ := l.m.raft.Serving()
			before := readsOf(t, l.m.raft)
			for range times {
				if code, _, _ := c.once(l, "GET", paths.Replace(rt.Path), "", nil); code == 0 || code >= 500 {
					return false
				}
			}
			proven = readsOf(t, l.m.raft) - before
			now, serves := l.m.raft.Serving()
			return serves && now == term
		})
		if proven < times {
			t.Errorf("GET %s: of %d answers %v were proven", rt.Path, times, proven)
		}
	}
}

// readsOf returns how many reads a manager has answered after a leadership check.
func readsOf(t *testing.T, n *consensus.Node) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(n.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tidemark_raft_reads_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("no metric of reads")
	return 0
}
