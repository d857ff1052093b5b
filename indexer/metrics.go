package indexer

import (
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/indexer/meters"
	"tidemark/ingest"
)

// metrics holds the indexer's own metrics. None has a label per vbucket.
type metrics struct {
	registry *prometheus.Registry
	refused  prometheus.Counter
	fenced   prometheus.Counter
	reports  *prometheus.CounterVec
}

func newMetrics() *metrics {
	r := prometheus.NewRegistry()
	return &metrics{
		registry: r,
		refused: meters.Counter(r, "connections_refused_total",
			"Connections to the data ports refused because of their hello."),
		fenced: meters.Counter(r, "commands_fenced_total",
			"Commands refused because a newer leader or a newer command had been accepted."),
		reports: meters.Counters(r, "reports_total", "Reports to the leader, by outcome.", "outcome"),
	}
}

// collector reads metrics of buckets and copies at the time of a scrape.
type collector struct{ x *Indexer }

// Describe sends nothing, because the set of metrics changes with the copies.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	events := meters.Desc("events_total", "Events received from routers, by result.", "bucket", "verdict")
	queue := meters.Desc("queue_bytes", "Memory of events that are not yet written.", "bucket")
	limit := meters.Desc("queue_limit_bytes", "Bound of queue_bytes, per bucket.")
	for _, k := range c.x.allBuckets() {
		k.Events(func(v ingest.Verdict, n uint64) {
			ch <- prometheus.MustNewConstMetric(events, prometheus.CounterValue, float64(n), k.Name(), v.String())
		})
		ch <- prometheus.MustNewConstMetric(queue, prometheus.GaugeValue, float64(k.QueueBytes()), k.Name())
	}
	ch <- prometheus.MustNewConstMetric(limit, prometheus.GaugeValue, float64(c.x.queueShare()))
	_, count, size := c.x.orphans.report()
	ch <- prometheus.MustNewConstMetric(meters.Desc("orphans", "Copies in the folder that the definitions do not have."),
		prometheus.GaugeValue, float64(count))
	ch <- prometheus.MustNewConstMetric(meters.Desc("orphan_disk_bytes", "Size of the orphans' files."),
		prometheus.GaugeValue, float64(size))
	exported, incoming := c.x.transferBytes()
	ch <- prometheus.MustNewConstMetric(meters.Desc("export_disk_bytes",
		"Bytes of files linked for sending to another indexer."), prometheus.GaugeValue, float64(exported))
	ch <- prometheus.MustNewConstMetric(meters.Desc("incoming_disk_bytes",
		"Bytes of files received from other indexers and not yet installed."), prometheus.GaugeValue, float64(incoming))
	verifying := 0
	if c.x.verify.Verifying() {
		verifying = 1
	}
	ch <- prometheus.MustNewConstMetric(meters.Desc("verifying",
		"1 while this indexer compares copies with the KV data."), prometheus.GaugeValue, float64(verifying))
	kept, bytesKept := c.x.snapshots.PagesKept()
	ch <- prometheus.MustNewConstMetric(meters.Desc("page_snapshots",
		"Snapshots kept for the next pages of scans."), prometheus.GaugeValue, float64(kept))
	ch <- prometheus.MustNewConstMetric(meters.Desc("page_snapshot_bytes",
		"Memory of these snapshots, of 64 MiB."), prometheus.GaugeValue, float64(bytesKept))
	kept, bytesKept = c.x.snapshots.LongKept()
	ch <- prometheus.MustNewConstMetric(meters.Desc("scan_snapshots",
		"Snapshots kept for long scans."), prometheus.GaugeValue, float64(kept))
	ch <- prometheus.MustNewConstMetric(meters.Desc("scan_snapshot_bytes",
		"Memory of these snapshots, of 64 MiB."), prometheus.GaugeValue, float64(bytesKept))
	c.x.collectStats(ch)
	items := meters.Desc("copy_items", "Entries of a copy.", "bucket", "index", "copy")
	bytes := meters.Desc("copy_disk_bytes", "Size of a copy's files.", "bucket", "index", "copy")
	held := meters.Desc("copy_snapshots", "Snapshots of a copy held for scans.", "bucket", "index", "copy")
	for _, s := range c.x.store.Slices() {
		m, st := s.Meta(), s.Stats()
		if c.x.orphans.has(m.Copy) {
			continue
		}
		labels := []string{m.Bucket, m.Index.String(), m.Copy.String()}
		ch <- prometheus.MustNewConstMetric(items, prometheus.GaugeValue, float64(st.Items), labels...)
		ch <- prometheus.MustNewConstMetric(bytes, prometheus.GaugeValue, float64(st.DiskBytes), labels...)
		ch <- prometheus.MustNewConstMetric(held, prometheus.GaugeValue, float64(len(c.x.snapshots.Refs(m.Copy))), labels...)
	}
}
