package manager

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/lifecycle"
	"tidemark/liveness"
	"tidemark/manager/consensus"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
)

// collector exports this manager and, on the leader, the cluster as its coordinator sees it, at each scrape. Managers
// that do not lead export no figures of the cluster, so that sums over all managers are right. No figure has a label
// per index or vbucket. docs/metrics.md lists the names.
type collector struct {
	raft  *consensus.Node
	coord *coordinator.Coordinator
}

// Describe sends nothing: the set of figures depends on whether this manager leads.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.raft.State()
	_, leads := c.raft.Serving()
	g := gauges{ch: ch, prefix: "tidemark_manager_"}
	g.set("cas", "Updates of the StateContext, plus 2^32 for each recovery.", float64(s.CAS()))
	g.set("raft_term", "Raft's term.", float64(c.raft.Term()))
	g.set("is_leader", "1 while this manager coordinates.", flag(leads))
	g.set("request_ledger_entries", "Outcomes kept for retries.", float64(s.LedgerLen()))
	g.set("indexes", "Indexes in the StateContext.", float64(s.IndexCount()))
	if !leads {
		return
	}
	status, _ := c.coord.Status()
	g.prefix = "tidemark_cluster_"
	g.components(&status)
	g.indexes(s, &status)
	for i := range status.Buckets {
		g.bucket(&status.Buckets[i])
	}
	g.rebalance(s, &status)
}

// gauges sends the figures of one scrape.
type gauges struct {
	ch     chan<- prometheus.Metric
	prefix string
}

// set sends a figure without a label.
func (g *gauges) set(name, help string, v float64) { g.of(name, help, "", "", v) }

// of sends the figure of one label value.
func (g *gauges) of(name, help, label, value string, v float64) {
	var names, values []string
	if label != "" {
		names, values = []string{label}, []string{value}
	}
	g.ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(g.prefix+name, help, names, nil), prometheus.GaugeValue, v,
		values...)
}

// counts sends the number for each label value, including those with 0.
func counts[K comparable](g *gauges, name, help, label string, all []K, text func(K) string, n map[K]int) {
	for _, k := range all {
		g.of(name, help, label, text(k), float64(n[k]))
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// components counts projectors, indexers and the problems that they report.
func (g *gauges) components(status *core.Status) {
	projectors, indexers, troubles, unreached := map[liveness.Life]int{}, map[liveness.Life]int{}, 0, 0
	for i := range status.Projectors {
		projectors[status.Projectors[i].Life]++
		troubles += len(status.Projectors[i].KV)
		unreached += len(status.Projectors[i].Unreached)
	}
	for i := range status.Indexers {
		indexers[status.Indexers[i].Seen()]++
	}
	all := []liveness.Life{liveness.Active, liveness.Suspect, liveness.Offline}
	counts(g, "projectors", "Projectors, by the liveness that the leader sees.", "state", all, liveness.Life.String,
		projectors)
	counts(g, "indexers", "Indexers, by the liveness that the leader sees.", "state", all, liveness.Life.String, indexers)
	g.set("kv_troubles", "Buckets about which a projector cannot query its KV node, summed over projectors.",
		float64(troubles))
	g.set("unreached_ports", "Data ports of live indexers that a projector cannot reach, or that refuse it, "+
		"summed over projectors.",
		float64(unreached))
}

// indexes counts indexes by state and availability.
func (g *gauges) indexes(s *statecontext.State, status *core.Status) {
	states, of, outdated, longest := map[index.State]int{}, map[lifecycle.Availability]int{}, 0, int64(0)
	for x := range s.Indexes() {
		states[x.Definition.State]++
		p := status.Progress[x.Definition.ID]
		if p.Availability != 0 {
			of[p.Availability]++
		}
		if p.Availability == lifecycle.Unavailable {
			longest = max(longest, p.ForMS)
		}
		if status.ExprRules.Outdated(&x.Definition) != "" {
			outdated++
		}
	}
	counts(g, "indexes", "Indexes, by state.", "state", []index.State{index.Pending, index.Backfill, index.Maintenance,
		index.Dropping, index.Error}, index.State.String, states)
	counts(g, "ready_indexes", "Ready indexes, by availability for scans.", "availability",
		[]lifecycle.Availability{lifecycle.Available, lifecycle.Degraded, lifecycle.Unavailable},
		lifecycle.Availability.String, of)
	g.set("unavailable_seconds", "For how long some ready index could not be scanned completely; 0 while all can be.",
		float64(longest)/1e3)
	g.set("outdated_indexes", "Indexes built with other rules of expressions than those projectors use "+
		"now.", float64(outdated))
	differing := 0
	for range s.Differences() {
		differing++
	}
	g.set("differing_copies", "Copies that their indexers found to differ from the KV data, and that do not agree since.",
		float64(differing))
	omitted := 0
	for i := range status.Indexers {
		omitted += status.Indexers[i].DifferingOmitted
	}
	g.set("differing_copies_omitted", "Further such copies, of which indexers report only the number.",
		float64(omitted))
}

// bucket sends the progress of a bucket.
func (g *gauges) bucket(b *core.BucketStatus) {
	of := func(name, help string, v float64) { g.of("bucket_"+name, help, "bucket", b.Name, v) }
	if b.AgeMS != nil {
		of("stability_age_seconds",
			"Age of the newest stability timestamp, counting only time with a leader; absent before the first one.",
			(time.Duration(*b.AgeMS) * time.Millisecond).Seconds())
	}
	of("lag_seqnos", "Complete seqnos above the newest stability timestamp, over all vbuckets.", float64(b.Lag))
	of("lagging_indexers", "Indexers that promotions do not wait for.", float64(len(b.Lagging)))
	of("waiting_scans", "Scans that wait for a stability timestamp.", float64(b.Waiting))
	of("rollback_seconds", "Since when the bucket is being rolled back; 0 while it is not.",
		(time.Duration(b.RollbackForMS) * time.Millisecond).Seconds())
}

// rebalance sends the progress of the rebalance in progress.
func (g *gauges) rebalance(s *statecontext.State, status *core.Status) {
	progress, left := 1.0, 0
	if status.Rebalance.ID != 0 {
		progress = status.Rebalance.Part
	}
	if r := s.RebalanceUnderWay(); r != nil {
		left = int(r.Steps - r.Done - r.GivenUp)
	}
	g.set("rebalance_progress_ratio", "Progress of the running rebalance, 0 to 1; 1 without one.", progress)
	g.set("rebalance_steps_left", "Unfinished steps of the running rebalance.", float64(left))
}
