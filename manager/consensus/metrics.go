package consensus

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// figure is one gauge that is computed at each scrape.
type figure struct {
	desc  *prometheus.Desc
	value func(*scrape) float64
}

// scrape holds the values from which the figures of one scrape are computed.
type scrape struct {
	stats    Stats
	disk     Disk
	leads    bool
	known    bool // a leader is known
	inflight int
	newest   *raft.SnapshotMeta
	age      time.Duration
	bytes    int64
}

// collector exports a node's metrics to Prometheus. docs/metrics.md lists the names.
type collector struct {
	node    *Node
	figures []figure
	state   *prometheus.Desc
	peers   *prometheus.Desc
	reads   *prometheus.Desc
	checks  *prometheus.Desc
}

// Collector returns the node's metrics for a registry: the state of Raft and of the disk under its log at each
// scrape.
func (n *Node) Collector() prometheus.Collector {
	const prefix = "tidemark_raft_"
	f := func(name, help string, value func(*scrape) float64) figure {
		return figure{prometheus.NewDesc(prefix+name, help, nil, nil), value}
	}
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	return &collector{
		node:  n,
		state: prometheus.NewDesc(prefix+"state", "1 for the present state of this server.", []string{"state"}, nil),
		peers: prometheus.NewDesc(prefix+"members", "Servers of the cluster, including this one.", []string{"suffrage"}, nil),
		reads: prometheus.NewDesc(prefix+"reads_total", "Linearizable reads served after a check of leadership.", nil,
			nil),
		checks: prometheus.NewDesc(prefix+"read_checks_total", "Checks of leadership for linearizable reads: one serves "+
			"all waiting reads.", nil, nil),
		figures: []figure{
			f("term", "Raft's term.", func(s *scrape) float64 { return float64(s.stats.Term) }),
			f("leader_known", "1 while this server knows a leader.", func(s *scrape) float64 { return flag(s.known) }),
			f("leads", "1 while this server leads and has started its term.", func(s *scrape) float64 { return flag(s.leads) }),
			f("last_index", "Index of the newest log entry here.",
				func(s *scrape) float64 { return float64(s.stats.LastIndex) }),
			f("commit_index", "Index up to which a majority has the log, as far as this server knows.",
				func(s *scrape) float64 { return float64(s.stats.CommitIndex) }),
			f("applied_index", "Index of the newest entry in the state.",
				func(s *scrape) float64 { return float64(s.stats.AppliedIndex) }),
			f("fsm_lag_entries", "Committed entries that are not yet applied; entries without a command count until the "+
				"next entry with one.",
				func(s *scrape) float64 {
					return float64(s.stats.CommitIndex) - float64(min(s.stats.AppliedIndex, s.stats.CommitIndex))
				}),
			f("last_contact_seconds", "Time since the last message of the leader; 0 on the leader, -1 before the "+
				"first.", func(s *scrape) float64 {
				if s.stats.LastContact < 0 {
					return -1
				}
				return s.stats.LastContact.Seconds()
			}),
			f("proposals_queued", "Proposals in the queue.",
				func(s *scrape) float64 { return float64(s.stats.Queued) }),
			f("entries_in_flight", "Log entries given to Raft and not yet answered.",
				func(s *scrape) float64 { return float64(s.inflight) }),
			f("snapshot_index", "Index of the newest state snapshot on disk; 0 without one.", func(s *scrape) float64 {
				if s.newest == nil {
					return 0
				}
				return float64(s.newest.Index)
			}),
			f("snapshot_bytes", "Bytes of all state snapshots on disk.", func(s *scrape) float64 { return float64(s.bytes) }),
			f("snapshot_age_seconds", "Age of the newest state snapshot; -1 without one.", func(s *scrape) float64 {
				if s.newest == nil {
					return -1
				}
				return s.age.Seconds()
			}),
			f("disk_free_bytes", "Free bytes on the file system of the Raft log; 0 where the system does not report them.",
				func(s *scrape) float64 { return float64(s.disk.FreeBytes) }),
			f("disk_total_bytes", "Bytes of that file system.", func(s *scrape) float64 { return float64(s.disk.TotalBytes) }),
			f("disk_faults", "Disk problems for which this server should not lead; 0 if there are none.",
				func(s *scrape) float64 { return float64(len(s.disk.Faults)) }),
		},
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.figures {
		ch <- f.desc
	}
	ch <- c.state
	ch <- c.peers
	ch <- c.reads
	ch <- c.checks
	c.node.disk.seconds.Describe(ch)
	c.node.disk.errors.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	n := c.node
	s := &scrape{stats: n.Stats(), disk: n.Disk(), known: n.Leader().Known, inflight: len(n.slots)}
	_, s.leads = n.Serving()
	var at time.Time
	if s.newest, at, s.bytes = n.snapshotFiles(); s.newest != nil {
		s.age = time.Since(at)
	}
	for _, f := range c.figures {
		ch <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, f.value(s))
	}
	for _, state := range [...]raft.RaftState{raft.Follower, raft.Candidate, raft.Leader, raft.Shutdown} {
		is := 0.0
		if s.stats.State == state.String() {
			is = 1
		}
		ch <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, is, state.String())
	}
	if members, err := n.Servers(); err == nil {
		voters := len(slices.DeleteFunc(slices.Clone(members), func(m Server) bool { return !m.Voter }))
		ch <- prometheus.MustNewConstMetric(c.peers, prometheus.GaugeValue, float64(voters), "voter")
		ch <- prometheus.MustNewConstMetric(c.peers, prometheus.GaugeValue, float64(len(members)-voters), "nonvoter")
	}
	ch <- prometheus.MustNewConstMetric(c.reads, prometheus.CounterValue, float64(n.answered.Load()))
	ch <- prometheus.MustNewConstMetric(c.checks, prometheus.CounterValue, float64(n.checks.Load()))
	n.disk.seconds.Collect(ch)
	n.disk.errors.Collect(ch)
}
