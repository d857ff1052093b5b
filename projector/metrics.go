package projector

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are the projector's own metrics; the router has its own.
type counters struct {
	mutations, deletions, errors, begun, ended, connections, fenced prometheus.Counter
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
		fenced:      c("commands_fenced_total", "Commands refused because a newer leader or a newer command had been heard."),
	}
}

// registerGauges registers what is bounded: maxBuckets, maxSideStreams, and a DCP buffer for each bucket.
func (p *Projector) registerGauges(r prometheus.Registerer) {
	g := func(name, help string, f func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tidemark", Subsystem: "projector", Name: name, Help: help}, f))
	}
	g("buckets", "Buckets with a maintenance topic.", func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return float64(len(p.buckets))
	})
	g("side_streams", "Side streams open or being opened.", func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return float64(len(p.sides))
	})
	g("kv_held_bytes", "Bytes of maintenance streams received from KV and not acknowledged.", func() float64 {
		p.mu.Lock()
		all := slices.Collect(maps.Values(p.buckets))
		p.mu.Unlock()
		held := int64(0)
		for _, b := range all {
			b.mu.Lock()
			if b.conn != nil {
				held += b.conn.feed.Held()
			}
			b.mu.Unlock()
		}
		return float64(held)
	})
}
