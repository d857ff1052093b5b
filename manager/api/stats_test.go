package api

import (
	"fmt"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// TestScansAreSummedUp checks that the scans of each index are summed up over all indexers, and that the error is
// that of the indexer with the latest scan among those that have one, in any order.
func TestScansAreSummedUp(t *testing.T) {
	stats := map[index.NodeID]*wire.IndexerStats{
		0: {Scans: []wire.ScanStats{{Index: 1, NumRequests: 2, NumRowsReturned: 10, TotalScanDuration: 8,
			LastKnownScanTime: 9}, {Index: 2, NumRequests: 1, NumScanErrors: 1, NumScanTimeouts: 1, LastScanError: "timeout",
			LastKnownScanTime: 3}}},
		1: {Scans: []wire.ScanStats{{Index: 1, NumRequests: 1, NumScanErrors: 1, LastScanError: "older",
			LastKnownScanTime: 4}}},
		2: {Scans: []wire.ScanStats{{Index: 1, NumRequests: 1, NumScanErrors: 1, TotalScanDuration: 4, LastScanError: "newer",
			LastKnownScanTime: 5}}},
	}
	for range 20 { // of a map
		all := scansOf(stats)
		for id, want := range map[index.ID]v1.IndexStats{
			1: {NumRequests: 4, NumRowsReturned: 10, NumScanErrors: 2, TotalScanDuration: 12, AvgScanLatency: 3,
				LastScanError: "newer", LastKnownScanTime: 9},
			2: {NumRequests: 1, NumScanErrors: 1, NumScanTimeouts: 1, LastScanError: "timeout", LastKnownScanTime: 3},
			3: {},
		} {
			var got v1.IndexStats
			sum := all[id]
			if addScans(&got, &sum); got != want {
				t.Fatalf("index %d: %+v, want %+v", id, got, want)
			}
		}
	}
}

// TestReasonsOfManyCopies checks that the text about many copies is limited, and ends with one mark of the rest.
func TestReasonsOfManyCopies(t *testing.T) {
	said := ""
	for i := range 1000 {
		said = joinReason(said, fmt.Sprintf("copy %d cannot be written", i))
	}
	if !strings.HasPrefix(said, "copy 0 cannot be written; copy 1 ") || !strings.HasSuffix(said, "written; and more") ||
		strings.Count(said, "and more") != 1 || len(said) > 2*maxReason {
		t.Errorf("%d bytes: %q", len(said), said)
	}
	if said := joinReason(joinReason("", "a"), "a"); said != "a" {
		t.Errorf("the same reason twice: %q", said)
	}
}
