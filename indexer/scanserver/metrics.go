package scanserver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/indexer/meters"
	"tidemark/indexer/scan"
)

// metrics holds the metrics of scans.
type metrics struct {
	scans  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	waited *prometheus.HistogramVec
	parts  *prometheus.CounterVec
	keeps  *prometheus.CounterVec
}

const scanFirst, scanBounds = 0.00025, 16 // to 8 s

// Values of the label of parts.
const (
	partHere, partOther = "this", "other"
)

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{
		scans: meters.Counters(r, "scans_total", "Scans and counts coordinated here, by outcome.", "code"),
		took: meters.SecondsBy(r, "scan_seconds",
			"Duration of scans and counts coordinated here, including the time that clients take to "+
				"read.", "consistency", scanFirst, scanBounds),
		waited: meters.SecondsBy(r, "scan_wait_seconds",
			"Part of that duration until a new enough stability timestamp was known, or held with consistency any.",
			"consistency", scanFirst, scanBounds),
		parts: meters.Counters(r, "scan_parts_total",
			"Parts of scans coordinated here that were requested, by whether another indexer has them.", "indexer"),
		keeps: meters.Counters(r, "scan_keeps_total",
			"Requests to indexers to keep the timestamp of a long scan coordinated here, by outcome.",
			"code"),
	}
}

func (m *metrics) scan(consistency string, took, waited time.Duration) {
	m.took.WithLabelValues(consistency).Observe(took.Seconds())
	if consistency != string(scan.Any) || waited > 0 { // consistency any waits only for what its session has seen
		m.waited.WithLabelValues(consistency).Observe(waited.Seconds())
	}
}
