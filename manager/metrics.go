package manager

import (
	"fmt"

	gometrics "github.com/armon/go-metrics"
	sink "github.com/armon/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/lifecycle"
	"tidemark/manager/consensus"
	"tidemark/manager/coordinator"
)

// gauges show the state at each scrape.
type gauges struct {
	raft                                                 *consensus.Node
	coord                                                *coordinator.Coordinator
	cas, term, leader, indexes, failed, outdated, ledger *prometheus.Desc
	rebalance, moves, degraded, unavailable, differing   *prometheus.Desc
}

func newGauges(n *consensus.Node, c *coordinator.Coordinator) *gauges {
	d := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("tidemark_manager_"+name, help, nil, nil)
	}
	return &gauges{raft: n, coord: c, cas: d("cas", "Number of updates of the StateContext."),
		term:   d("raft_term", "Raft's term."),
		leader: d("is_leader", "1 while this manager coordinates."), indexes: d("indexes", "Indexes in the StateContext."),
		failed: d("indexes_failed", "Indexes in state error."),
		outdated: d("indexes_outdated", "Indexes whose entries were made by other rules of expressions than projectors "+
			"evaluate by now. 0 where this manager does not lead."),
		degraded: d("indexes_degraded", "Ready indexes with fewer copies than were asked for, of which all slices can be "+
			"scanned. 0 where this manager does not lead."),
		unavailable: d("indexes_unavailable", "Ready indexes of which some slice cannot be scanned. 0 where this manager "+
			"does not lead."),
		differing: d("copies_differing", "Copies that their indexers have found to differ from the KV data and not to agree "+
			"since."),
		ledger: d("request_ledger_entries", "Outcomes kept for retries."),
		rebalance: d("rebalance_progress", "How far the rebalance is that is under way, 0 to 1; 1 without one. 1 where "+
			"this manager does not lead."),
		moves: d("rebalance_steps_left", "Steps of the rebalance that is under way that are not over.")}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.cas, g.term, g.leader, g.indexes, g.failed, g.outdated, g.ledger, g.rebalance,
		g.moves, g.degraded, g.unavailable, g.differing} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	s := g.raft.State()
	lead := 0.0
	if _, ok := g.raft.Serving(); ok {
		lead = 1
	}
	status, _ := g.coord.Status()
	failed, outdated, of := 0, 0, map[lifecycle.Availability]int{}
	for x := range s.Indexes() {
		if x.Definition.State == index.Error {
			failed++
		}
		of[status.Progress[x.Definition.ID].Availability]++
		if status.ExprRules.Outdated(&x.Definition) != "" {
			outdated++
		}
	}
	progress, left := 1.0, 0
	if status.Rebalance.ID != 0 {
		progress = status.Rebalance.Part
	}
	if r := s.RebalanceUnderWay(); r != nil {
		left = int(r.Steps - r.Done - r.GivenUp)
	}
	differing := 0
	for range s.Differences() {
		differing++
	}
	for d, v := range map[*prometheus.Desc]float64{g.cas: float64(s.CAS()), g.term: float64(g.raft.Term()), g.leader: lead,
		g.indexes: float64(s.IndexCount()), g.failed: float64(failed), g.outdated: float64(outdated),
		g.ledger:    float64(s.LedgerLen()),
		g.rebalance: progress, g.moves: float64(left), g.degraded: float64(of[lifecycle.Degraded]),
		g.unavailable: float64(of[lifecycle.Unavailable]), g.differing: float64(differing)} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
}

// showLibrary puts what hashicorp/raft and raft-boltdb measure (raft_commitTime, raft_leader_lastContact, …) into a
// registry. The library knows one receiver per process and takes no other: this sets it.
func showLibrary(registry *prometheus.Registry) error {
	to, err := sink.NewPrometheusSinkFrom(sink.PrometheusOpts{Registerer: registry, Name: "raft_library"})
	if err != nil {
		return fmt.Errorf("raft metrics: %w", err)
	}
	cfg := gometrics.DefaultConfig("")
	cfg.EnableHostname, cfg.EnableRuntimeMetrics = false, false
	if _, err := gometrics.NewGlobal(cfg, to); err != nil {
		return fmt.Errorf("raft metrics: %w", err)
	}
	return nil
}
