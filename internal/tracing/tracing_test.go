package tracing

import (
	"context"
	"testing"

	"tidemark/internal/rpc"
)

// TestOffCostsNothing: without an endpoint there is no tracer, and what looks for one in a context allocates nothing.
func TestOffCostsNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	p, err := Open(t.Context(), "manager", "m1", "")
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
		if _, err := Open(t.Context(), "manager", "m1", bad); err == nil {
			t.Errorf("endpoint %q was taken", bad)
		}
	}
}
