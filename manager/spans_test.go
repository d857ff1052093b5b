package manager

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"tidemark/internal/steady"
	"tidemark/internal/tracing"
)

// receiver is a collector of spans.
type receiver struct {
	mu    sync.Mutex
	spans map[string]received // by span id
}

type received struct{ service, name, trace, parent string }

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	var m collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(b, &m) != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range m.GetResourceSpans() {
		service := ""
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.instance.id" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				r.spans[hex.EncodeToString(s.GetSpanId())] = received{service: service, name: s.GetName(), trace: hex.EncodeToString(s.GetTraceId()),
					parent: hex.EncodeToString(s.GetParentSpanId())}
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// TestSpansFromClientToRaft: a write that a follower passes on is one trace: the client's span, the follower, the way
// to the leader, the leader, Raft.
func TestSpansFromClientToRaft(t *testing.T) { steady.Run(t, still, spansFromClientToRaft) }

func spansFromClientToRaft(t *steady.T) {
	r := &receiver{spans: map[string]received{}}
	s := httptest.NewServer(r)
	defer s.Close()
	var providers []*tracing.Provider
	c := newTrio(t, func(cfg *Config) {
		p, err := tracing.Open(t.Context(), "manager", cfg.Name, s.URL)
		if err != nil {
			t.Fatal(err)
		}
		providers = append(providers, p)
		cfg.Tracer = p.Tracer()
	})
	l, f := c.leader(), c.follower()
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	if status, _, body := c.call(f, "POST", "/v1/statements", statement("DROP INDEX IF EXISTS n ON b"), map[string]string{"traceparent": "00-" + trace + "-" + span + "-01"}); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	for _, p := range providers {
		p.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.trace != trace || s.name != "raft propose" {
			continue
		}
		var way []received
		for at := s; ; at = r.spans[at.parent] {
			if way = append(way, received{service: at.service, name: at.name}); at.parent == span || at.parent == "" {
				if at.parent != span {
					t.Errorf("the trace does not begin at the client's span: %v", way)
				}
				break
			}
		}
		want := []received{{service: c.cfgs[l].Name, name: "raft propose"}, {service: c.cfgs[l].Name, name: "POST /v1/statements"},
			{service: f.m.cfg.Name, name: "forward"}, {service: f.m.cfg.Name, name: "POST /v1/statements"}}
		if len(way) != len(want) {
			t.Fatalf("the way is %v, want %v", way, want)
		}
		for i := range want {
			if way[i] != want[i] {
				t.Errorf("step %d of the way is %v, want %v", i, way[i], want[i])
			}
		}
		return
	}
	t.Errorf("no span of the proposal came: %v", r.spans)
}
