package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts the calls that this manager has answered; forwarded ones are counted by the leader. Calls are
// labelled by route, of which there are as many as docs/api.md lists, and outcomes by code.
type metrics struct {
	requests *prometheus.CounterVec
	writes   *prometheus.HistogramVec
	// unaudited counts lines of the audit log that could not be written.
	unaudited prometheus.Counter
}

// newMetrics registers the metrics, unless r is nil.
func newMetrics(r *prometheus.Registry) metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "manager",
			Name: "requests_total", Help: "Calls answered by this manager, by route and outcome."},
			[]string{"route", "outcome"}),
		writes: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "tidemark", Subsystem: "manager",
			Name:    "write_seconds",
			Help:    "Duration of changes of indexes and of the cluster made by this manager, from request to answer.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, []string{"route"}),
		unaudited: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "manager",
			Name: "unaudited_total", Help: "Lines of the audit log that could not be written."}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.writes, m.unaudited)
	}
	return m
}

func (m *metrics) request(route, outcome string) { m.requests.WithLabelValues(route, outcome).Inc() }

func (m *metrics) write(route string, took time.Duration) {
	m.writes.WithLabelValues(route).Observe(took.Seconds())
}
