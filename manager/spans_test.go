package manager

import (
	"slices"
	"testing"

	"tidemark/internal/testing/tracingtest"
	"tidemark/internal/tracing"
)

// TestSpansFromClientToRaft: a write that a follower forwards is one trace: the client's span, the follower, the
// forwarding, the leader, Raft.
func TestSpansFromClientToRaft(t *testing.T) {
	r := tracingtest.New(t)
	var providers []*tracing.Provider
	c := newTrio(t, func(cfg *Config) {
		p, err := tracing.Open(t.Context(), "manager", cfg.Name, r.URL, cfg.Logger)
		if err != nil {
			t.Fatal(err)
		}
		providers = append(providers, p)
		cfg.Tracer = p.Tracer()
	})
	l, f := c.leader(), c.follower()
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	if status, _, body := c.call(f, "POST", "/v1/statements", statement("DROP INDEX IF EXISTS n ON b"),
		map[string]string{"traceparent": "00-" + trace + "-" + span + "-01"}); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	for _, p := range providers {
		p.Close()
	}
	spans := map[string]tracingtest.Span{}
	for _, s := range r.Trace(trace) {
		spans[s.ID] = s
	}
	type step struct{ service, name string }
	for _, s := range spans {
		if s.Name != "raft propose" {
			continue
		}
		var way []step
		for at := s; ; at = spans[at.Parent] {
			if way = append(way, step{at.Service, at.Name}); at.Parent == span || at.Parent == "" {
				if at.Parent != span {
					t.Errorf("the trace does not begin at the client's span: %v", way)
				}
				break
			}
		}
		want := []step{{c.cfgs[l].Name, "raft propose"}, {c.cfgs[l].Name, "POST /v1/statements"}, {f.m.cfg.Name, "forward"},
			{f.m.cfg.Name, "POST /v1/statements"}}
		if !slices.Equal(way, want) {
			t.Errorf("the way is %v, want %v", way, want)
		}
		return
	}
	t.Errorf("no span of the proposal came: %v", spans)
}
