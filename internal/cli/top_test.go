package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/manager/api/v1"
)

// TestTop checks the output for two samples of a cluster.
func TestTop(t *testing.T) {
	at := time.UnixMilli(1_795_240_849_000)
	last := &topSample{at: at, status: v1.Status{CAS: 100, Buckets: []v1.BucketStatus{{Name: "b", Generation: 1,
		StabilityNumber: 4}},
		Projectors: []v1.ProjectorStatus{{ID: "p1", BootID: "x", Mutations: 900, Deletions: 100},
			{ID: "p2", BootID: "x", Mutations: 900}}}}
	next := &topSample{at: at.Add(2 * time.Second)}
	st := &next.status
	st.ClusterID, st.Term, st.CAS, st.Leader.ID = "c", 3, 120, "m1"
	st.Managers = []v1.ManagerStatus{{ID: "m1", Role: "leader", Alive: true, REST: "http://x"},
		{ID: "m2", Role: "voter"}}
	st.Projectors = []v1.ProjectorStatus{{ID: "p1", BootID: "x", State: "active", Streams: 64, Revision: 90,
		Mutations: 4700, Deletions: 300, Errors: 12},
		{ID: "p2", BootID: "y", State: "active", Mutations: 50}}
	st.Indexers = []v1.IndexerStatus{{ID: "i1", State: "suspect", Copies: 3, Revision: 90, Health: "disk full",
		QueueBytes: 5e6, QueueLimit: 20e6}, {ID: "i2", Node: 1, State: "offline"},
		{ID: "i3", Node: 2, State: "active"}}
	st.Coordinator = stateActive
	st.Buckets = []v1.BucketStatus{{Name: "b", Generation: 1, VBuckets: 64, StreamsBegun: 63, StabilityNumber: 14,
		StabilityAgeMS: new(int64(1500)), Lag: 7}}
	for i := range 25 {
		n := v1.IndexInfo{ID: index.ID(i + 1), Bucket: "b", Name: "ready", State: index.Maintenance, Progress: 100}
		if i == 24 {
			n = v1.IndexInfo{ID: 25, Bucket: "b", Name: "building", State: index.Backfill, Progress: 50, Items: 10,
				DiskBytes: 2e6, Faults: &v1.IndexFaults{Expression: 2, TooLong: 3, Incomplete: true}}
		}
		next.indexes.Indexes = append(next.indexes.Indexes, n)
	}
	last.stats = v1.Stats{Indexes: []v1.IndexStats{{ID: 25, NumRequests: 10, TotalScanDuration: 1e9},
		{ID: 1, NumRequests: 7}}}
	next.stats = v1.Stats{Indexers: []v1.IndexerStats{{ID: "i1", MemoryUsed: 30e6, MemoryQuota: 120e6,
		MemoryRSS: 55e6}}, Indexes: []v1.IndexStats{
		{ID: 25, NumRequests: 14, TotalScanDuration: 1e9 + 8e6, ItemsCount: 11, NumDocsPending: 3, NumDocsQueued: 4,
			PendingUnknown: "KV is away"},
		{ID: 1, NumRequests: 2, ItemsCount: 1}, {ID: 24, NumRequests: 2}}} // the indexer of 1 has restarted
	var out bytes.Buffer
	if err := printTop(&out, formatTable, compare(last, next, nil)); err != nil {
		t.Fatal(err)
	}
	got := regexp.MustCompile(` +(\n|$)`).ReplaceAllString(out.String(), "$1")
	want := strings.Join([]string{
		clockOf(next.at.UnixMilli()) + "  cluster c  leader m1  term 3  cas 120  10.0 updates/s", "",
		"MANAGER  ROLE    ALIVE  ADDRESS", "m1       leader  yes    http://x", "m2       voter   no", "",
		"PROJECTOR  STATE   STREAMS  REVISION  DOCUMENTS/s  ERRORS", "p1         active  64       90        2000         12",
		"p2         active  0        0         0            0", "",
		"INDEXER  STATE    COPIES  REVISION  QUEUE         MEMORY         RSS MB  HEALTH",
		"i1       suspect  3       90        5.0 MB (25%)  30.0 MB (25%)  55.0    disk full",
		"i2       offline  0       0         -             -              -       -",
		"i3       active   0       0         -             -              -       ok", "",
		"BUCKET  STREAMS   STABILITY  PROMOTIONS/s  AGE   LAG  SCANS WAITING  ROLLBACK",
		"b       63 of 64  #14        5.0           1.5s  7    0              -", "",
		"INDEX       STATE     PROGRESS  ENTRIES  PENDING  QUEUED  MB ON DISK  SCANS/s  LATENCY  ERRORS",
		"b/building  backfill  50%       11       >=3      4       2.0         2.0      2ms      >=5",
		"b/ready     ready     100%      1        0        0       0.0         0.0      -        0",
		"b/ready     ready     100%      0        -        -       0.0         0.0      -        0", ""}, "\n")
	if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "and 5 more\n\n") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
