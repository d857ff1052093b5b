package scanserver

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/indexer/snapshots"
	"tidemark/internal/rpc/route"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestKeepingOnOtherNodes checks that a node keeps a timestamp on request, whether the node is this one or another.
// An error comes back with its code and is counted under it. A request that ends because the scan ends is not
// counted.
func TestKeepingOnOtherNodes(t *testing.T) {
	const here, there, away = index.NodeID(1), index.NodeID(2), index.NodeID(3)
	var port string
	p := peers.New(nil, func() (index.NodeID, string) { return here, "" }, func() []wire.Endpoint {
		return []wire.Endpoint{{Node: there, Name: "i2", Scan: port}}
	})
	defer p.Close()
	keeps := p.Ask(1)
	defer keeps.Close()
	set := snapshots.New(3, hclog.NewNullLogger(), time.Now)
	s := New(Options{Pins: &snapshots.Pins{Snapshots: set}, Nodes: p.Ask(1), Keeps: keeps,
		Registry: prometheus.NewRegistry(), Log: hclog.NewNullLogger(), Now: time.Now})
	server := httptest.NewServer((&route.Table{Lacks: "no %s", Routes: []route.Route{s.keepRoute()}}).Handler())
	defer server.Close()
	port = strings.TrimPrefix(server.URL, "http://")
	nodes := scanNodes{p.Ask(1), keeps, nil, s.keep, s.metrics}
	for n, node := range []index.NodeID{here, there} {
		req := scan.KeepRequest{Scan: scan.Pages{ID: uint64(n)}, Copies: []index.CopyID{index.CopyID(n + 1)},
			Ref: wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Number: 7}}}
		if err := nodes.KeepSlices(t.Context(), node, req); err != nil {
			t.Errorf("node %d: %v", node, err)
		}
		if held, _ := set.LongKept(); held != n+1 {
			t.Errorf("%d snapshots are kept after node %d was queried", held, node)
		}
		req.Copies = nil
		if err := nodes.KeepSlices(t.Context(), node, req); err == nil || scan.CodeOf(err) != errcode.BadRequest {
			t.Errorf("node %d takes a request for nothing: %v", node, err)
		}
	}
	if err := nodes.KeepSlices(t.Context(), away, scan.KeepRequest{}); err == nil {
		t.Error("an unknown node keeps it")
	}
	over, end := context.WithCancel(t.Context())
	end()
	if err := nodes.KeepSlices(over, there, scan.KeepRequest{Copies: []index.CopyID{1}}); err == nil {
		t.Error("a scan that has ended has its answer")
	}
	for code, want := range map[string]float64{codeOK: 2, string(errcode.BadRequest): 2, string(errcode.Cancelled): 0} {
		if n := testutil.ToFloat64(s.metrics.keeps.WithLabelValues(code)); n != want {
			t.Errorf("%s was counted %v times, want %v", code, n, want)
		}
	}
}
