package cli

import (
	"strings"
	"testing"
	"text/tabwriter"

	"tidemark/index"
	"tidemark/manager/api/v1"
)

// TestMovesShowIndexerNames checks that moves are shown with the names of indexers, or the number of an unknown one.
func TestMovesShowIndexerNames(t *testing.T) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 2, 0, 2, ' ', 0)
	m := v1.RebalanceMove{}
	m.Src.Node, m.Dst.Node = 1, 7
	printMoves(w, map[index.NodeID]string{1: "i2"}, []v1.RebalanceMove{m})
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if line := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(line, "FROM TO MiB") ||
		!strings.Contains(line, " i2 node 7 0 0") {
		t.Error(b.String())
	}
}
