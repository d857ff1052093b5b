package indexer

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/meters"
	"tidemark/wire"
)

// scrapePatience bounds how long a scrape waits for buckets. If one is stuck, the scrape has the figures of the
// others.
const scrapePatience = 5 * time.Second

const (
	// seqnosPatience bounds how long statistics wait for KV's seqnos, all buckets together.
	seqnosPatience = 2 * time.Second
	// seqnosAtOnce bounds how many buckets' seqnos are requested concurrently, which leaves some of the calls to a
	// projector (callsToProjector) to scans.
	seqnosAtOnce = 8
)

// stats returns the current statistics.
func (x *Indexer) stats(ctx context.Context) *wire.IndexerStats {
	defs := x.present()
	id := x.identity.get()
	s := &wire.IndexerStats{Node: id.Node, Name: x.cfg.Name, BootID: x.boot, State: "active", Health: x.health.First(),
		UptimeMS: x.now().Sub(x.began).Milliseconds(), NumConnections: x.ports.conns.Load(), Scans: x.scans.Stats(&defs)}
	if strings.HasPrefix(s.Health, copies.CopySource) {
		s.State = "paused"
	}
	s.Copies, s.Unknown = x.bucketStats(ctx)
	s.ExportBytes, s.IncomingBytes = x.transferBytes()
	slices.SortFunc(s.Copies, func(a, b wire.CopyStats) int { return cmp.Compare(a.Copy, b.Copy) })
	u := x.memoryUse()
	s.MemoryUsedQueue, s.MemoryUsedStorage, s.MemoryUsed = u.queue, u.storage, u.queue+u.storage
	s.MemoryQueueLimit, s.MemoryStorageLimit = uint64(x.cfg.QueueBytes), uint64(x.store.Memory().Limit)
	s.MemoryQuota, s.MemoryRSS, s.MemoryNearQuota = u.quota, u.rss, x.nearQuota.Load()
	return s
}

// bucketStats returns the statistics of the copies and, for each bucket whose seqnos in KV are partly unknown, the
// reason. Buckets are queried in parallel: a hung projector costs seqnosPatience once, not per bucket, and a stuck
// bucket does not hide the figures of the others.
func (x *Indexer) bucketStats(ctx context.Context) (all []wire.CopyStats, unknown map[string]string) {
	asking, cancel := context.WithTimeout(ctx, seqnosPatience)
	defer cancel()
	all = []wire.CopyStats{}
	var mu sync.Mutex // guards the results
	var g errgroup.Group
	g.SetLimit(seqnosAtOnce)
	for _, k := range x.allBuckets() {
		g.Go(func() error {
			// KV's seqnos come first, so that events that arrive meanwhile do not count as pending.
			at, why := x.seqnos(asking, k)
			figures := k.Stats(ctx, at)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, figures...)
			if why != "" {
				if unknown == nil {
					unknown = map[string]string{}
				}
				unknown[k.Name()] = why
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	return all, unknown
}

// transferBytes returns the disk space of files that are being sent to other indexers, and of files that were
// received and are not installed.
func (x *Indexer) transferBytes() (exported, incoming uint64) {
	for _, s := range x.store.Slices() {
		incoming += uint64(max(s.Incoming(), 0))
	}
	return uint64(max(x.store.Exported(), 0)), incoming
}

// seqnos returns KV's current seqnos of a bucket; unknown states for how many vbuckets they are unknown, and why.
func (x *Indexer) seqnos(ctx context.Context, k *copies.Bucket) (at []uint64, unknown string) {
	kv, missing, err := x.truth.Ask(ctx, k.Name(), k.VBuckets())
	if len(missing) > 0 {
		unknown = strconv.Itoa(len(missing)) + " vbuckets have no owner that could be asked"
		if err != nil {
			unknown += ": " + err.Error()
		}
	}
	return kv.Seqnos, unknown
}

// indexSum sums up an index's copies on this node.
type indexSum struct {
	items, pending, queued, data, disk, live, memory, done, total float64
	written, read, hottest                                        float64 // entries per second
	copies, ready                                                 int
}

// collectStats sends the metrics of indexes, with labels bucket and index. They cover this node: sums over its
// copies, and the scans that it coordinated.
func (x *Indexer) collectStats(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	s := x.stats(ctx)
	defs := x.present()
	sums := map[index.ID]*indexSum{}
	for i := range s.Copies {
		c := &s.Copies[i]
		t := sums[c.Index]
		if t == nil {
			t = &indexSum{}
			sums[c.Index] = t
		}
		t.items, t.data, t.disk = t.items+float64(c.ItemsCount), t.data+float64(c.DataSize), t.disk+float64(c.DiskSize)
		t.written, t.read = t.written+float64(c.WriteRate), t.read+float64(c.ReadRate)
		t.hottest = max(t.hottest, float64(c.WriteRate+c.ReadRate))
		t.live, t.memory = t.live+float64(c.DiskLive), t.memory+float64(c.MemoryUsed)
		t.pending, t.queued = max(t.pending, float64(c.NumDocsPending)), max(t.queued, float64(c.NumDocsQueued))
		t.done, t.total = t.done+float64(c.Done), t.total+float64(c.Total)
		if t.copies++; c.Ready {
			t.ready++
		}
	}
	send := func(name, help string, v float64, labels ...string) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("tidemark_index_"+name, help, []string{"bucket", "index"},
			nil), kind, v, labels...)
	}
	seen := map[[2]string]bool{}
	for i := range defs.Indexes {
		d := &defs.Indexes[i]
		name := [2]string{d.Keyspace().String(), d.Name}
		// A registry accepts no name twice: an index that is being dropped may have the same name as a newer one. An
		// index that is to replace another has no name of its own yet.
		if seen[name] || d.Replaces != 0 {
			continue
		}
		if t := sums[d.ID]; t != nil {
			seen[name] = true
			collectCopies(send, d, t)
		}
		if at, ok := slices.BinarySearchFunc(s.Scans, d.ID, func(s wire.ScanStats,
			id index.ID) int {
			return cmp.Compare(s.Index, id)
		}); ok {
			seen[name] = true
			collectScans(send, d, &s.Scans[at])
		}
	}
	near := 0.0
	if s.MemoryNearQuota {
		near = 1
	}
	for _, f := range []struct {
		name, help string
		v          float64
	}{
		{"memory_quota_bytes", "Memory quota of the node: --memory-quota.", float64(s.MemoryQuota)},
		{"memory_used_bytes", "Part of the quota used by queues, cache and unwritten data.", float64(s.MemoryUsed)},
		{"memory_near_quota", "1 while the queue or the process is at 90 % of its bound.", near},
	} {
		ch <- prometheus.MustNewConstMetric(meters.Desc(f.name, f.help), prometheus.GaugeValue, f.v)
	}
}

func collectCopies(send func(name, help string, v float64, labels ...string), d *index.Definition, t *indexSum) {
	labels := []string{d.Keyspace().String(), d.Name}
	send("items", "Entries of the copies here.", t.items, labels...)
	send("docs_pending", "Seqnos of KV that were not yet received, of the copy that lacks most.", t.pending, labels...)
	send("docs_queued", "Seqnos that were received but not yet applied, of the copy that lacks most.", t.queued, labels...)
	send("data_bytes", "Bytes of the copies here without garbage, estimated.", t.data, labels...)
	send("disk_bytes", "Bytes of the files of the copies here.", t.disk, labels...)
	send("fragmentation_ratio", "Share of the files that is garbage, estimated, 0 to 1.", fragPercent(t.live, t.disk)/100,
		labels...)
	send("unwritten_bytes", "Bytes that are applied but not yet written.", t.memory, labels...)
	send("write_rate", "Entries of the copies here written, changed or removed per second.", t.written,
		labels...)
	send("read_rate", "Entries of the copies here read by scans per second.", t.read, labels...)
	send("hottest_slice_rate", "Sum of both, of the copy here with the highest sum.", t.hottest, labels...)
	progress := 1.0
	if d.State != index.Maintenance {
		if progress = 0; t.total > 0 {
			progress = 0.99 * t.done / t.total
		}
	}
	send("build_progress_ratio", "Progress of the build, 0 to 1.", progress, labels...)
	ready := 0.0
	if d.State == index.Maintenance && t.ready == t.copies {
		ready = 1
	}
	send("ready", "1 if the index is ready and every copy here is exact.", ready, labels...)
}

func collectScans(send func(name, help string, v float64, labels ...string), d *index.Definition, s *wire.ScanStats) {
	labels := []string{d.Keyspace().String(), d.Name}
	send("scans_total", "Scans and counts coordinated here that have ended.", float64(s.NumRequests), labels...)
	send("scan_rows_total", "Rows returned by them.", float64(s.NumRowsReturned), labels...)
	send("scan_errors_total", "Scans and counts that failed.", float64(s.NumScanErrors), labels...)
	send("scan_timeouts_total", "Scans and counts that failed because of a timeout.", float64(s.NumScanTimeouts),
		labels...)
	send("scan_seconds_total", "Total duration of scans and counts, including the time that clients take to read.",
		time.Duration(s.TotalScanDuration).Seconds(), labels...)
	send("last_scan_timestamp_seconds", "End of the last scan or count, Unix time.", float64(s.LastKnownScanTime)/1e9,
		labels...)
}

func fragPercent(live, disk float64) float64 {
	if disk <= 0 {
		return 0
	}
	return 100 * (disk - live) / disk
}
