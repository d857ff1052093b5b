package verify

import "github.com/prometheus/client_golang/prometheus"

// metrics are the figures of verifications and audits.
type metrics struct {
	verifies  *prometheus.CounterVec
	verified  prometheus.Counter
	different *prometheus.CounterVec
	audits    prometheus.Counter
	audited   *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		verifies: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "verifications_total",
			Help: "Verifications coordinated here, by outcome."}, []string{"code"}),
		verified: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "verified_rows_total",
			Help: "Rows, entries and documents of copies here that verifications have looked at."}),
		different: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "verify_differences_total",
			Help: "Documents of which a copy here did not hold what it should, by kind."}, []string{"kind"}),
		audits: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "audit_rounds_total",
			Help: "Times that all copies here have been compared with the KV data by themselves."}),
		audited: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "indexer",
			Name: "audit_differences_total",
			Help: "Documents of which a copy here was found, twice, not to hold what it should, by kind."}, []string{"kind"}),
	}
	r.MustRegister(m.verifies, m.verified, m.different, m.audits, m.audited)
	return m
}
