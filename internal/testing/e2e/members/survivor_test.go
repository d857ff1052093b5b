package members

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"tidemark/internal/testing/testcluster"
)

// TestStaleSurvivor checks a recovery from a survivor that missed the last commits: numbers of stability timestamps,
// indexes and copies that were assigned meanwhile are assigned again. What indexers hold under the old numbers must
// not pass for the new.
func TestStaleSurvivor(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newCluster(t)
	w.everything(2)
	c := w.client(1, 2, 3)
	w.active(ctx, c, 1, 2)
	w.load(ctx)
	w.create(ctx, c, statements...)
	survivor := others([]int{1, 2, 3}, w.leader(ctx, c))[0]
	args := w.procs[fmt.Sprintf("m%d", survivor)].Args
	w.procs[fmt.Sprintf("m%d", survivor)].Kill()

	load, stop := context.WithCancel(ctx) // many stability timestamps, and indexes that will be lost
	var wg sync.WaitGroup
	wg.Go(func() { w.writes(load, 4) })
	w.create(ctx, c, `CREATE INDEX forgotten ON world(name, iso_country) WITH {"num_partition":4}`, `CREATE INDEX forgotten_too ON world(iso_country)`)
	w.until(ctx, "promotions", func() (bool, string) {
		select {
		case <-time.After(2 * time.Second):
			return true, ""
		case <-ctx.Done():
			return false, ""
		}
	})
	stop()
	wg.Wait()
	for _, n := range others([]int{1, 2, 3}, survivor) {
		w.stopAndWipe(n)
	}
	w.spawn(fmt.Sprintf("m%d", survivor), args...)
	w.until(ctx, "the survivor runs", func() (bool, string) {
		return testcluster.GetJSON(ctx, "http://"+w.rest(survivor)+"/v1/bootstrap", &struct{}{}) == nil, ""
	})
	w.recover(ctx, survivor)
	w.afterRecovery(ctx, survivor, nil)
}
