package projector

import (
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/internal/rpc/route"
	"tidemark/keyversion"
	"tidemark/wire"
)

// counters holds the projector's own metrics; the router registers its own.
type counters struct {
	mutations, deletions, errors, begun, ended, connections, fenced *counter
	received                                                        map[keyversion.Class]*traffic
}

// traffic counts what KV has sent on the streams of one class.
type traffic struct{ versions, bytes counter }

// counter is a metric that the projector reads itself, too.
type counter struct{ n atomic.Uint64 }

// Inc adds one.
func (c *counter) Inc() { c.n.Add(1) }

// Add adds n.
func (c *counter) Add(n uint64) { c.n.Add(n) }

// all returns the counters that reports and the state contain.
func (c *counters) all() wire.ProjectorCounters {
	return wire.ProjectorCounters{Mutations: c.mutations.n.Load(), Deletions: c.deletions.n.Load(),
		Errors: c.errors.n.Load(), Begun: c.begun.n.Load(), Ended: c.ended.n.Load()}
}

func newCounters(r prometheus.Registerer) counters {
	c := func(name, help string) *counter {
		m := &counter{}
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "projector",
			Name: name, Help: help},
			func() float64 { return float64(m.n.Load()) }))
		return m
	}
	received := map[keyversion.Class]*traffic{}
	for _, class := range []keyversion.Class{keyversion.ClassMaintenance, keyversion.ClassBackfill,
		keyversion.ClassCatchup} {
		t := &traffic{}
		received[class] = t
		labeled := func(name, help string, m *counter) {
			r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "projector",
				Name: name, Help: help,
				ConstLabels: prometheus.Labels{"class": class.String()}}, func() float64 { return float64(m.n.Load()) }))
		}
		labeled("received_versions_total", "Versions of documents received from KV, by class of stream.", &t.versions)
		labeled("received_bytes_total", "Bytes of keys and values of documents received from KV, by class of stream.",
			&t.bytes)
	}
	return counters{
		received:  received,
		mutations: c("mutations_total", "Documents evaluated, all streams."),
		deletions: c("deletions_total", "Deletions and expirations routed, all streams."),
		errors: c("expression_errors_total", "Index entries left out because an expression failed or a key was too "+
			"long."),
		begun:       c("streams_begun_total", "Maintenance streams begun, one for each vbucket and incarnation."),
		ended:       c("streams_ended_total", "Maintenance streams ended, for any reason."),
		connections: c("kv_connections_total", "DCP connections opened."),
		fenced: c("commands_fenced_total", "Commands refused because a newer leader or a newer command had been "+
			"accepted."),
	}
}

// registerGauges registers the gauges of bounded resources: core.MaxBuckets, core.MaxSideStreams, and a DCP buffer
// per bucket.
func (p *Projector) registerGauges(r prometheus.Registerer) {
	g := func(name, help string, f func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tidemark", Subsystem: "projector", Name: name,
			Help: help}, f))
	}
	r.MustRegister(newFaultCollector(&p.faults))
	if p.cfg.Host == nil { // else the host has those of the process
		route.RegisterProcess(r, p.cfg.TLS)
	}
	g("kv_troubles", "Buckets for which the KV node does not answer now.", func() float64 {
		return float64(len(p.troubles.list(p.cfg.KV, time.Now())))
	})
	g("unreached_ports", "Data ports of indexers to which no connection has worked for 5 s, or that refuse "+
		"streams.", func() float64 {
		all := p.router.Unreached()
		p.mu.Lock()
		defer p.mu.Unlock()
		return float64(len(p.portsOf(all)))
	})
	g("buckets", "Buckets with a maintenance topic.", func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return float64(len(p.buckets))
	})
	g("side_streams", "Side streams open or being opened.", func() float64 {
		return float64(p.sides.count())
	})
	// sum registers a gauge that adds up a value over the connections of maintenance streams.
	sum := func(name, help string, of func(c *connection) int64) {
		g(name, help, func() float64 {
			p.mu.Lock()
			all := slices.Collect(maps.Values(p.buckets))
			p.mu.Unlock()
			n := int64(0)
			for _, b := range all {
				b.mu.Lock()
				if b.conn != nil {
					n += of(b.conn)
				}
				b.mu.Unlock()
			}
			return float64(n)
		})
	}
	sum("kv_held_bytes", "Bytes of maintenance streams received from KV and not acknowledged.",
		func(c *connection) int64 { return c.feed.Held() })
	sum("kv_window_bytes", "Limit of kv_held_bytes, the DCP windows: beyond it KV sends nothing.",
		func(c *connection) int64 { return int64(c.window) })
	sum("worker_queue_blocks", "Blocks of events of maintenance streams waiting for a worker.",
		func(c *connection) (n int64) {
			for _, w := range c.workers {
				n += int64(len(w.blocks))
			}
			return n
		})
	sum("worker_queue_limit_blocks", "Limit of blocks waiting for workers: beyond it a connection is not read.",
		func(c *connection) (n int64) {
			for _, w := range c.workers {
				n += int64(cap(w.blocks))
			}
			return n
		})
}

// faultCollector exports the faults of the indexes that have the most.
type faultCollector struct {
	faults        *faults
	desc, omitted *prometheus.Desc
}

func newFaultCollector(f *faults) faultCollector {
	return faultCollector{faults: f,
		desc: prometheus.NewDesc("tidemark_projector_index_faults_total",
			"Entries left out of an index, by kind: an expression failed, or a key was too long. At most 64 indexes, those "+
				"with most.", []string{"index", "kind"}, nil),
		omitted: prometheus.NewDesc("tidemark_projector_index_faults_omitted",
			"Indexes with left-out entries that index_faults_total does not show.", nil, nil)}
}

// Describe implements prometheus.Collector.
func (c faultCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc; out <- c.omitted }

// Collect implements prometheus.Collector.
func (c faultCollector) Collect(out chan<- prometheus.Metric) {
	worst, omitted := c.faults.list()
	out <- prometheus.MustNewConstMetric(c.omitted, prometheus.GaugeValue, float64(omitted))
	for _, x := range worst {
		id := strconv.FormatUint(uint64(x.Index), 10)
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(x.Expression), id, "expression")
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(x.TooLong), id, "too_long")
	}
}
