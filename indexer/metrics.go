package indexer

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/ingest"
)

// scrapesAtOnce bounds how many readers of the metrics wait for a bucket that stands still.
const scrapesAtOnce = 4

// verdicts is the number of ingest's verdicts.
const verdicts = int(ingest.Malformed) + 1

// counter is a count that a loop raises and the metrics read.
type counter struct{ n atomic.Uint64 }

func (c *counter) add(n uint64) { c.n.Add(n) }

// metrics are the indexer's own figures; none has a label per vbucket.
type metrics struct {
	registry *prometheus.Registry
	ahead    prometheus.Counter
	refused  prometheus.Counter
	fenced   prometheus.Counter
	batches  *prometheus.HistogramVec
	sides    *prometheus.CounterVec
	catchup  prometheus.Counter
	reports  *prometheus.CounterVec
	rolls    prometheus.Histogram
	restores *prometheus.CounterVec
	fills    *prometheus.CounterVec
	filled   *prometheus.CounterVec
	retaken  prometheus.Counter
}

func newMetrics() *metrics {
	r := prometheus.NewRegistry()
	m := &metrics{
		registry: r,
		ahead: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "applied_ahead_total",
			Help: "Times a full queue was written without waiting for a stability timestamp."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "connections_refused_total",
			Help: "Connections to the data ports that were refused by their hello."}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "commands_fenced_total",
			Help: "Commands refused because a newer leader or a newer command had been heard."}),
		batches: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name:    "batch_seconds",
			Help:    "Time from handing out a batch until the last copy of the bucket has written it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"kind"}),
		sides: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "side_streams_total",
			Help: "Side streams asked for, by vbucket, by what the projector answered."}, []string{"outcome"}),
		catchup: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "catchup_held_seconds_total",
			Help: "Time that connections of catchup streams have waited for --catchup-rate."}),
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "reports_total",
			Help: "Reports to the leader, by outcome."}, []string{"outcome"}),
		rolls: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name:    "rollback_seconds",
			Help:    "Time to take a bucket's copies back to the branch that KV has left.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18)}),
		restores: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "restored_vbuckets_total",
			Help: "Vbuckets of copies that left KV's branch, by what they were put back to."}, []string{"to"}),
	}
	m.fills = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
		Name: "fills_total",
		Help: "New copies that were to be filled with another indexer's files, by outcome."}, []string{"outcome"})
	m.filled = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
		Name: "fill_bytes_total",
		Help: "Bytes of copies' files that were sent to other indexers and received from them."}, []string{"direction"})
	m.retaken = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
		Name: "retaken_vbuckets_total",
		Help: "Vbuckets of copies that were taken anew from KV because of such a difference."})
	r.MustRegister(m.fills, m.filled, m.retaken, m.ahead, m.refused, m.fenced,
		m.batches, m.sides, m.catchup, m.reports, m.rolls, m.restores)
	return m
}

var batchKinds = [...]string{ingest.AtStability: "stability", ingest.FromSide: "side", ingest.Ahead: "ahead",
	ingest.DeleteRange: "delete_range"}

func (m *metrics) batch(kind ingest.BatchKind, took time.Duration) {
	m.batches.WithLabelValues(batchKinds[kind]).Observe(took.Seconds())
}

// collector reads the figures that live in buckets and copies when somebody asks.
type collector struct{ x *Indexer }

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tidemark_indexer_"+name, help, labels, nil)
}

// Describe sends nothing: what there is changes with the copies.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	events := gauge("events_total", "Events taken from routers, by what became of them.", "bucket", "verdict")
	queue := gauge("queue_bytes", "Memory held by events that are not written.", "bucket")
	limit := gauge("queue_limit_bytes", "Bound of queue_bytes, per bucket.")
	for _, k := range c.x.allBuckets() {
		for v := range verdicts {
			if n := k.events[v].n.Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(events, prometheus.CounterValue, float64(n), k.name, ingest.Verdict(v).String())
			}
		}
		ch <- prometheus.MustNewConstMetric(queue, prometheus.GaugeValue, float64(k.queueBytes.Load()), k.name)
	}
	ch <- prometheus.MustNewConstMetric(limit, prometheus.GaugeValue, float64(c.x.queueShare()))
	_, count, size := c.x.toldOrphans()
	ch <- prometheus.MustNewConstMetric(gauge("orphans", "Copies in the folder that no definitions name."),
		prometheus.GaugeValue, float64(count))
	ch <- prometheus.MustNewConstMetric(gauge("orphan_disk_bytes", "Size of the orphans' files."), prometheus.GaugeValue,
		float64(size))
	exported, incoming := c.x.transferBytes()
	ch <- prometheus.MustNewConstMetric(gauge("export_disk_bytes",
		"Files linked for another indexer, which is sent them."), prometheus.GaugeValue, float64(exported))
	ch <- prometheus.MustNewConstMetric(gauge("incoming_disk_bytes",
		"Files received from other indexers and not installed."), prometheus.GaugeValue, float64(incoming))
	verifying := 0
	if c.x.verify.Verifying() {
		verifying = 1
	}
	ch <- prometheus.MustNewConstMetric(gauge("verifying", "1 while copies here are being compared with the KV data."),
		prometheus.GaugeValue, float64(verifying))
	c.x.collectStats(ch)
	items := gauge("copy_items", "Entries of a copy.", "bucket", "index", "copy")
	bytes := gauge("copy_disk_bytes", "Size of a copy's files.", "bucket", "index", "copy")
	held := gauge("copy_snapshots", "Snapshots of a copy held for scans.", "bucket", "index", "copy")
	for _, s := range c.x.store.Slices() {
		m, st := s.Meta(), s.Stats()
		if c.x.isOrphan(m.Copy) {
			continue
		}
		labels := []string{m.Bucket, m.Index.String(), m.Copy.String()}
		ch <- prometheus.MustNewConstMetric(items, prometheus.GaugeValue, float64(st.Items), labels...)
		ch <- prometheus.MustNewConstMetric(bytes, prometheus.GaugeValue, float64(st.DiskBytes), labels...)
		ch <- prometheus.MustNewConstMetric(held, prometheus.GaugeValue, float64(len(c.x.snapshots.Refs(m.Copy))), labels...)
	}
}
