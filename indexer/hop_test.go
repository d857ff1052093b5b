package indexer

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanserver"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// TestHopCarriesTheTrace checks that a request from a coordinating indexer to another one has the same request id and
// trace, and names the sender.
func TestHopCarriesTheTrace(t *testing.T) {
	w := newWorld(t)
	w.start()
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	const other index.NodeID = 9
	seen := make(chan http.Header, 1)
	node := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }))
	t.Cleanup(node.Close)
	d := w.x.present()
	d.Indexers = append(slices.Clone(d.Indexers),
		wire.Endpoint{Node: other, Scan: node.Listener.Addr().String()})
	w.x.catalog.Take(&d)

	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2},
		TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(rpc.WithRequestID(t.Context(), "r-17"), span)
	body, err := w.x.peers.Ask(1).Post(ctx, other, scanserver.SlicesPath, scan.NodeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	h := <-seen
	if got := h.Get(rpc.HeaderRequestID); got != "r-17" {
		t.Errorf("request id %q", got)
	}
	if got, ok := peers.Asking(&http.Request{Header: h}); !ok || got != w.x.identity.get().Node {
		t.Errorf("indexer %d asks, %v", got, ok)
	}
	if got, want := h.Get("traceparent"), "00-"+span.TraceID().String()+"-"+span.SpanID().String()+"-01"; got != want {
		t.Errorf("traceparent %q, want %q", got, want)
	}
}
