package projector

import "github.com/prometheus/client_golang/prometheus"

// counters are the projector's own metrics; the router has its own.
type counters struct {
	mutations, deletions, errors, begun, ended, connections prometheus.Counter
}

func newCounters(r prometheus.Registerer) counters {
	c := func(name, help string) prometheus.Counter {
		m := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "projector", Name: name, Help: help})
		r.MustRegister(m)
		return m
	}
	return counters{
		mutations:   c("mutations_total", "Documents evaluated, all streams."),
		deletions:   c("deletions_total", "Deletions and expirations routed, all streams."),
		errors:      c("expression_errors_total", "Index entries left out because an expression failed or a key was too long."),
		begun:       c("streams_begun_total", "Maintenance streams begun, one for each vbucket and incarnation."),
		ended:       c("streams_ended_total", "Maintenance streams ended, for whatever reason."),
		connections: c("kv_connections_total", "DCP connections opened."),
	}
}
