package coordinator

import (
	"fmt"
	"sync"
	"testing"

	"tidemark/index"
)

// TestStatementsAtOnceSpreadTheirCopies checks that concurrent statements do not all choose the node with the least
// load before them, and that failed ones do not count.
func TestStatementsAtOnceSpreadTheirCopies(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(4)
		w.create("first", "", 1, 0)
		var all sync.WaitGroup
		for i := range 11 {
			all.Go(func() {
				_, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: fmt.Sprintf("x%d", i),
					Bucket: "world",
					Keys:   []index.KeyExpr{{Expr: "name"}}, Partitions: 1}})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for i := range w.log.State().Indexers() {
			if n := w.log.State().Load(i.Node); n != 3 {
				t.Errorf("%s has %d copies of 12", i.Name, n)
			}
		}
		if _, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "first", Bucket: "world",
			Keys: []index.KeyExpr{{Expr: "name"}}, Partitions: 1}}); err == nil {
			t.Error("a name was given twice")
		}
	})
}
