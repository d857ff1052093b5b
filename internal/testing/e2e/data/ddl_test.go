package data

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// createLimit is the longest build of an index of the sample's size, under a light load on a busy machine.
const createLimit = harness.Hang

// kept is a scan that is compared with the oracle once all writes are recorded.
type kept struct {
	what   string
	oracle oracle.Index
	s      harness.Scanned
}

func (k kept) check(h *oracle.History) string {
	want, err := k.oracle.Rows(h.At(k.s.Seqnos))
	if err != nil {
		return err.Error()
	}
	return oracle.Diff(want, k.s.Keys, k.s.IDs)
}

// TestCreateUnderLoad checks that an index created under 2,000 writes/s is exact from READY on, for a session scan
// and for one at any timestamp. A name that is created, built fully or halfway, and dropped repeatedly, each time
// with another definition, always returns the rows of its current definition; and the indexers' disks hold no copy of
// a dropped index.
func TestCreateUnderLoad(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	up := testcluster.Start(t, dir, "--managers", "1", "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(load, 4, 2000) })
	harness.WaitFor(ctx, t, func() error { // the load is running when the first index is created
		if n := w.Writes.Load(); n < int64(len(w.Keys))+200 {
			return fmt.Errorf("%d writes", n)
		}
		return nil
	})

	var scans []kept
	scanAs := func(what, name string, o oracle.Index, consistencies ...string) {
		t.Helper()
		for _, consistency := range consistencies {
			s, err := harness.CollectSoon(ctx, c, bucket, name, v1.ScanRequest{Consistency: consistency}, harness.Hang)
			if err != nil {
				t.Fatalf("%s, %s scan: %v", what, consistency, err)
			}
			scans = append(scans, kept{what + ", " + consistency, o, s})
		}
	}
	for _, h := range handMade {
		began := time.Now()
		harness.Create(ctx, t, c, h.statement)
		t.Logf("%s is ready %s after its CREATE under 2,000 writes/s", h.name, time.Since(began).Round(time.Millisecond))
		scanAs("at once after READY: "+h.name, h.name, h.oracle, "any", "session")
	}
	stop()
	wg.Wait()
	load, stop = context.WithCancel(ctx) // less load from here on: the order of DDL matters now
	defer stop()
	wg.Go(func() { w.Run(load, 6, 300) })
	const rounds = 6
	began := time.Now()
	for n := range rounds {
		h := handMade[n%len(handMade)]
		statement := strings.Replace(h.statement, "INDEX "+h.name+" ", "INDEX again ", 1)
		if n%3 == 1 && n < rounds-1 { // dropped in the middle of its build
			if _, err := c.Statement(ctx, statement); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(n) * 20 * time.Millisecond)
		} else {
			created := time.Now()
			harness.Create(ctx, t, c, statement)
			if took := time.Since(created); took > createLimit {
				t.Errorf("round %d: ready only %s after the CREATE: older builds must cost a new one nothing", n, took)
			}
			scanAs(fmt.Sprintf("round %d, as %s", n, h.name), "again", h.oracle, "any")
		}
		if n < rounds-1 {
			if err := c.Drop(ctx, client.Ref(bucket, "again"), 0); err != nil {
				t.Fatalf("round %d: drop: %v", n, err)
			}
		}
	}
	t.Logf("%d rounds of CREATE and DROP took %s", rounds, time.Since(began).Round(time.Millisecond))
	stop()
	wg.Wait()
	if n := w.Failed.Load(); n > 0 {
		t.Fatalf("%d writes failed although nothing was disturbed", n)
	}
	scanAs("at the end", "again", handMade[(rounds-1)%len(handMade)].oracle, "session")
	for _, k := range scans {
		if d := k.check(w.History); d != "" {
			t.Errorf("%s: %s", k.what, d)
		}
	}
	t.Logf("%d writes; %d scans equal the oracle's", w.Writes.Load(), len(scans))
	if err := c.Drop(ctx, client.Ref(bucket, "mixed"), 0); err != nil {
		t.Fatal(err)
	}
	onlyKnownCopies(ctx, t, c, dir)
}

// onlyKnownCopies waits until the indexers' disks hold the folders of exactly the copies that the listing names.
func onlyKnownCopies(ctx context.Context, t *testing.T, c *client.Client, dir string) {
	t.Helper()
	list, err := c.Indexes(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, i := range list.Indexes {
		if i.State == index.Dropping {
			continue
		}
		for _, p := range i.Copies {
			want[p.ID.String()] = i.Name
		}
	}
	if len(want) == 0 {
		t.Fatal("the listing names no copies")
	}
	for deadline := time.Now().Add(harness.Hang); ; time.Sleep(100 * time.Millisecond) {
		found, err := filepath.Glob(filepath.Join(dir, "i*", "copies", "[0-9]*"))
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]string{}
		for _, path := range found {
			have[filepath.Base(path)] = path
		}
		if slices.Equal(slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want))) {
			return
		}
		if time.Now().After(deadline) {
			for id, path := range have {
				if _, ok := want[id]; !ok {
					entries, _ := os.ReadDir(path) // for the message only
					t.Errorf("long after the drop %s is still there, with %d files; no index has a copy %s", path, len(entries), id)
				}
			}
			for id, name := range want {
				if _, ok := have[id]; !ok {
					t.Errorf("copy %s of index %s has no folder", id, name)
				}
			}
			return
		}
	}
}
