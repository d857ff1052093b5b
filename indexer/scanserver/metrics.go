package scanserver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/indexer/scan"
)

// metrics are the figures of scans.
type metrics struct {
	scans  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	waited *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		scans: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "scans_total",
			Help: "Scans and counts coordinated here, by outcome."}, []string{"code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "scan_seconds", Help: "Time of scans and counts coordinated here, the clients' slowness included.",
			Buckets: scanBuckets}, []string{"consistency"}),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name:    "scan_wait_seconds",
			Help:    "Part of it until a stability timestamp was known that is new enough; consistency any waits for none.",
			Buckets: scanBuckets}, []string{"consistency"}),
	}
	r.MustRegister(m.scans, m.took, m.waited)
	return m
}

// scanBuckets are of seconds: 0.25 ms to 8 s.
var scanBuckets = prometheus.ExponentialBuckets(0.00025, 2, 16)

func (m *metrics) scan(consistency string, took, waited time.Duration) {
	m.took.WithLabelValues(consistency).Observe(took.Seconds())
	if consistency != string(scan.Any) {
		m.waited.WithLabelValues(consistency).Observe(waited.Seconds())
	}
}
