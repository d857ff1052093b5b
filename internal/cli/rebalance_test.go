package cli

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"tidemark/errcode"
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

// TestPlanOfAPipeIsLimited checks that a plan is limited also if its size is not known before it has been read.
func TestPlanOfAPipeIsLimited(t *testing.T) {
	for size, fits := range map[int]bool{100: true, maxPlanFile + 1: false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan struct{})
		go func() {
			defer close(written)
			defer w.Close()
			_, _ = w.Write(append(bytes.Repeat([]byte(" "), size-2), "{}"...)) // fails if it is not read to its end
		}()
		err = readPlan(fmt.Sprintf("/dev/fd/%d", r.Fd()), new(pflag.FlagSet), &v1.RebalanceRequest{})
		_ = r.Close()
		<-written
		tooLarge := err != nil && exitCode(err) == errcode.ExitUsage && strings.Contains(err.Error(), "more than")
		if fits && err != nil || !fits && !tooLarge {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
