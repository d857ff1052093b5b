package data

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// TestHotRangesAreSplit checks that a range with some frequently read leading keys is split automatically, between
// these keys and nowhere else; a single frequently read key is reported, and no range is split for it. The read rates
// are visible.
func TestHotRangesAreSplit(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	const above = 300 // entries per second: one of the scans below
	up := testcluster.StartWith(t, []string{fmt.Sprintf("TIDEMARK_SPLIT_ABOVE_RATE=%d", above),
		"TIDEMARK_SPLIT_AFTER=2s"}, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "2", "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	harness.NewWorkloadOf(ctx, t, up.KV(ctx), 4)
	const byKind, byName = "places_by_kind", "places_by_name"
	harness.Create(ctx, t, c, "CREATE INDEX "+byKind+" ON "+bucket+`(kind, name) PARTITION BY RANGE(kind) VALUES ("b")`)
	harness.Create(ctx, t, c, "CREATE INDEX "+byName+" ON "+bucket+
		`(name) PARTITION BY RANGE(name) VALUES ("M") WITH {"num_replica":1}`)
	index := func(name string) (x v1.IndexInfo) {
		t.Helper()
		x, err := c.Index(ctx, client.Ref(bucket, name))
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	kinds, names := index(byKind), index(byName)
	load, end := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer end()
	for name, r := range map[string]v1.Range{byKind: v1.Prefix("airport"), byName: v1.From("C").Before("D")} {
		readers.Go(func() {
			for load.Err() == nil {
				rows, err := c.Scan(load, client.Ref(bucket, name), v1.ScanRequest{Range: &r})
				if err == nil {
					for rows.Next() {
					}
					err = rows.Close()
				}
				if err != nil && load.Err() == nil {
					t.Errorf("a scan of %s: %v", name, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	harness.Eventually(t, 4*time.Minute, byKind+" has one hot key", func() (bool, string) {
		x := index(byKind)
		return strings.Contains(x.SplitWaits, "of the writes and reads have one leading key"), x.SplitWaits
	})
	var next v1.IndexInfo
	harness.Eventually(t, 4*time.Minute, byName+" is cut where it is read", func() (bool, string) {
		next = index(byName)
		return next.ID != names.ID && next.Replaces == 0, fmt.Sprintf("%+v", next)
	})
	if x := index(byKind); x.ID != kinds.ID {
		t.Errorf("%s is cut all the same: %s", byKind, x.Definition)
	}
	within := 0
	for _, v := range next.PartitionBy.Values {
		var name string
		if err := json.Unmarshal(v, &name); err != nil {
			t.Fatal(err)
		}
		switch {
		case name >= "C" && name < "D":
			within++
		case name != "M":
			t.Errorf("it is cut at %s: %s", v, next.Definition)
		}
	}
	if within == 0 || within+2 != int(next.Partitions) {
		t.Errorf("%s", next.Definition)
	}
	t.Logf("%s", next.Definition)
	harness.Eventually(t, harness.Hang, "it is shown what is read", func() (bool, string) {
		x, sum := index(byKind), uint64(0)
		for _, l := range x.Load {
			sum += l.ReadRate
		}
		_, page := harness.Get(ctx, t, up.Manifest().Servers()[0]+"/v1/topology?bucket="+bucket)
		var list v1.TopologyList
		if err := json.Unmarshal([]byte(page), &list); err != nil {
			return false, page
		}
		places := uint64(0)
		for _, i := range list.Indexes {
			for _, p := range i.Copies {
				places += p.ReadRate
			}
		}
		return sum > above && places > sum/2 && len(x.Load) == 2, fmt.Sprintf("%+v, %d in all", x.Load, places)
	})
}
