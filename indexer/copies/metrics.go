package copies

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/indexer/meters"
	"tidemark/ingest"
)

// verdicts is the number of ingest's verdicts.
const verdicts = int(ingest.Malformed) + 1

// counter is incremented by a loop and read by scrapes.
type counter struct{ n atomic.Uint64 }

func (c *counter) add(n uint64) { c.n.Add(n) }

// Metrics holds the metrics of buckets. None has a label per vbucket.
type Metrics struct {
	ahead    prometheus.Counter
	batches  *prometheus.HistogramVec
	catchup  prometheus.Counter
	rolls    prometheus.Histogram
	restores *prometheus.CounterVec
	retaken  prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	return &Metrics{
		ahead: meters.Counter(r, "applied_ahead_total",
			"How often a full queue was written without waiting for a stability timestamp."),
		batches: meters.SecondsBy(r, "batch_seconds",
			"Time from handing out a batch until the last copy of the bucket has written it.", "kind", 0.0005, 16),
		catchup: meters.Counter(r, "catchup_held_seconds_total",
			"Time that connections of catchup streams have waited for --catchup-rate."),
		rolls: meters.Seconds(r, "rollback_seconds",
			"Time to roll a bucket's copies back from a branch that KV has left.", 0.0005, 18),
		restores: meters.Counters(r, "restored_vbuckets_total",
			"Vbuckets of copies that left KV's branch, by the state they were restored to.", "to"),
		retaken: meters.Counter(r, "retaken_vbuckets_total",
			"Vbuckets of copies that were streamed again from KV because of such a difference."),
	}
}

var batchKinds = [...]string{ingest.AtStability: "stability", ingest.FromSide: "side", ingest.Ahead: "ahead",
	ingest.DeleteRange: "delete_range"}

func (m *Metrics) batch(kind ingest.BatchKind, took time.Duration) {
	m.batches.WithLabelValues(batchKinds[kind]).Observe(took.Seconds())
}
