package verify

import (
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/indexer/meters"
)

// metrics holds the metrics of verifications and audits.
type metrics struct {
	verifies  *prometheus.CounterVec
	verified  prometheus.Counter
	different *prometheus.CounterVec
	audits    prometheus.Counter
	audited   *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{
		verifies: meters.Counters(r, "verifications_total", "Verifications coordinated here, by outcome.", "code"),
		verified: meters.Counter(r, "verified_rows_total",
			"Rows, entries and documents of copies here examined by verifications."),
		different: meters.Counters(r, "verify_differences_total",
			"Documents whose entries in a copy here were wrong, by kind.", "kind"),
		audits: meters.Counter(r, "audit_rounds_total",
			"How often all copies here were compared with the KV data automatically."),
		audited: meters.Counters(r, "audit_differences_total",
			"Documents whose entries in a copy here were found wrong twice, by kind.", "kind"),
	}
}
