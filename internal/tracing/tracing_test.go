package tracing

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/rpc"
	"tidemark/internal/testing/tracingtest"
)

// TestLostSpansAreReported checks that spans wait, up to the limit, while a collector hangs, and that those beyond the
// limit, and those that it refuses, are counted in the log.
func TestLostSpansAreReported(t *testing.T) {
	for name, status := range map[string]int{"it takes them late": http.StatusOK,
		"it refuses them": http.StatusBadRequest} {
		t.Run(name, func(t *testing.T) {
			collector, hangs := tracingtest.New(t), make(chan struct{})
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if <-hangs; status == http.StatusOK {
					collector.ServeHTTP(w, r)
				} else {
					w.WriteHeader(status)
				}
			}))
			defer s.Close()
			var out bytes.Buffer
			log := hclog.New(&hclog.LoggerOptions{Output: &out, Mutex: &sync.Mutex{}})
			p, err := Open(t.Context(), "manager", "m1", s.URL, log)
			if err != nil {
				t.Fatal(err)
			}
			const more = 100
			ctx, root := p.Tracer().Start(t.Context(), "root")
			for range maxQueue + more - 1 {
				_, span := p.Tracer().Start(ctx, "s")
				span.End()
			}
			root.End()
			close(hangs)
			if err := p.spans.ForceFlush(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.Close()
			lost := 0
			for line := range strings.Lines(out.String()) {
				var n int
				if _, at, found := strings.Cut(line, "lost="); found {
					_, _ = fmt.Sscan(at, &n)
				}
				lost += n
			}
			want := more
			if status != http.StatusOK {
				want += maxQueue
			}
			if got := len(collector.Trace(root.SpanContext().TraceID().String())); lost < want || got+lost != maxQueue+more {
				t.Errorf("%d came and %d are logged as lost, want %d at least\n%s", got, lost, want, out.String())
			}
		})
	}
}

// TestOffCostsNothing checks that without an endpoint there is no tracer, and that looking for one in a context
// allocates nothing.
func TestOffCostsNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	p, err := Open(t.Context(), "manager", "m1", "", hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Tracer() != nil {
		t.Error("there is a tracer")
	}
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		below, span := rpc.StartSpan(ctx, "x")
		rpc.EndSpan(ctx, span, below.Err())
	}); n != 0 {
		t.Errorf("%v allocations for a span that is not recorded", n)
	}
	for _, bad := range []string{"127.0.0.1:4318", "ftp://x", "http://", "::"} {
		if _, err := Open(t.Context(), "manager", "m1", bad, hclog.NewNullLogger()); err == nil {
			t.Errorf("endpoint %q was taken", bad)
		}
	}
}
