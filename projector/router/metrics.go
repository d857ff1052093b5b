package router

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
)

// Stats counts what was sent to one endpoint on the topics of one class and bucket. All but the last three only rise.
type Stats struct {
	Events          uint64  `json:"events"`           // data events queued
	UpsertDeletions uint64  `json:"upsert_deletions"` // of Events: a document's keys are elsewhere, nothing more
	Syncs           uint64  `json:"syncs"`
	Batches         uint64  `json:"batches"`
	Bytes           uint64  `json:"bytes"`
	Resent          uint64  `json:"resent"`   // batches sent again after a connection ended
	Connects        uint64  `json:"connects"` // connections made
	Failures        uint64  `json:"failures"` // attempts that failed
	Stalls          uint64  `json:"stalls"`   // waits for room in a full queue
	Held            float64 `json:"held"`     // seconds spent in these waits, summed over all workers
	Slow            uint64  `json:"slow"`     // times that smart throttling began to drop the endpoint's data
	Drops           uint64  `json:"drops"`    // times that a vbucket's data began to be dropped
	DroppedEvents   uint64  `json:"dropped_events"`
	Parts           uint64  `json:"parts"` // parts queued for documents that did not fit into a frame
	// Documents left out of an index because no frame could hold their keys there.
	Oversized uint64 `json:"oversized"`

	QueueBytes int `json:"queue_bytes"` // memory of unacknowledged batches
	QueueLimit int `json:"queue_limit"` // at which data waits or is dropped, summed over all connections
	Connected  int `json:"connected"`   // connections open now
}

func (s *Stats) add(o Stats) {
	s.Events += o.Events
	s.UpsertDeletions += o.UpsertDeletions
	s.Syncs += o.Syncs
	s.Batches += o.Batches
	s.Bytes += o.Bytes
	s.Resent += o.Resent
	s.Connects += o.Connects
	s.Failures += o.Failures
	s.Stalls += o.Stalls
	s.Held += o.Held
	s.Slow += o.Slow
	s.Drops += o.Drops
	s.DroppedEvents += o.DroppedEvents
	s.Parts += o.Parts
	s.Oversized += o.Oversized
	s.QueueBytes += o.QueueBytes
	s.QueueLimit += o.QueueLimit
	s.Connected += o.Connected
}

// EndpointStats is the Stats of an endpoint with its class, bucket and node.
type EndpointStats struct {
	Class  string       `json:"class"`
	Bucket string       `json:"bucket"`
	Node   index.NodeID `json:"node"`
	Stats
}

type endpointKey struct {
	class  string
	bucket string
	node   index.NodeID
}

// addTotal adds the counters of a lane that has ended to the router's totals.
func (r *Router) addTotal(cfg TopicConfig, node index.NodeID, s Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := endpointKey{cfg.Class.String(), cfg.Bucket, node}
	sum := r.total[key]
	sum.add(s)
	r.total[key] = sum
}

// Stats returns the counters of all endpoints since the start, in no particular order.
func (r *Router) Stats() []EndpointStats {
	r.mu.Lock()
	sums := make(map[endpointKey]Stats, len(r.total))
	for k, s := range r.total {
		sums[k] = s
	}
	topics := make([]*Topic, 0, len(r.open))
	for _, t := range r.open {
		topics = append(topics, t)
	}
	r.mu.Unlock()
	for _, t := range topics {
		for _, l := range t.allLanes() {
			key := endpointKey{t.cfg.Class.String(), t.cfg.Bucket, l.key.node}
			sum := sums[key]
			sum.add(l.snapshot())
			sums[key] = sum
		}
	}
	all := make([]EndpointStats, 0, len(sums))
	for k, s := range sums {
		all = append(all, EndpointStats{Class: k.class, Bucket: k.bucket, Node: k.node, Stats: s})
	}
	return all
}

// snapshot returns the lane's counters. Those of a lane that has ended are in the totals.
func (l *lane) snapshot() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.link.state == gone {
		return Stats{}
	}
	s := l.stats
	s.QueueBytes, s.QueueLimit = l.out.memory(), l.bound()
	if l.link.state == connected {
		s.Connected = 1
	}
	return s
}

// LaneState is the observable state of one connection to an endpoint.
type LaneState struct {
	Node       index.NodeID
	Address    string
	Connection int
	State      string // connected, dialing, down, gone
	QueueBytes int    // of unacknowledged batches and the open one
	LimitBytes int    // above it data waits or is dropped
	Dropping   int    // vbuckets whose data is dropped
	Slow       bool   // smart throttling drops its data
	Error      string // why it is down
}

// Lanes returns the state of the topic's connections, ascending by node and connection. It does not block.
func (t *Topic) Lanes() []LaneState {
	lanes := t.allLanes()
	all := make([]LaneState, len(lanes))
	for i, l := range lanes {
		all[i] = l.show()
	}
	slices.SortFunc(all, func(a, b LaneState) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Connection, b.Connection))
	})
	return all
}

// Dropping returns the endpoints for which data of some vbucket is dropped, ascending.
func (t *Topic) Dropping() (nodes []index.NodeID) {
	for _, l := range t.allLanes() {
		if l.drops() && !slices.Contains(nodes, l.key.node) {
			nodes = append(nodes, l.key.node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func (l *lane) drops() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.dropped) > 0
}

func (l *lane) show() LaneState {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := [...]string{dialing: "dialing", connected: "connected", down: "down", gone: "gone"}
	return LaneState{Node: l.key.node, Address: l.link.addr, Connection: l.key.connection, State: names[l.link.state],
		QueueBytes: l.out.bytes + l.out.open.enc.Len(), LimitBytes: l.bound(),
		Dropping: len(l.dropped), Slow: l.slow.slow, Error: l.link.failed}
}

// collector exports Stats to Prometheus.
type collector struct{ r *Router }

type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*Stats) float64
}

func metrics() []metric {
	m := func(name, help string, kind prometheus.ValueType, value func(*Stats) float64) metric {
		return metric{prometheus.NewDesc("tidemark_router_"+name, help, []string{"class", "bucket", "node"}, nil), kind,
			value}
	}
	const count, gauge = prometheus.CounterValue, prometheus.GaugeValue
	return []metric{
		m("events_total", "Data events queued.", count, func(s *Stats) float64 { return float64(s.Events) }),
		m("upsert_deletions_total", "Data events that only state that a document's keys are elsewhere: indexes partitioned "+
			"by key.", count, func(s *Stats) float64 { return float64(s.UpsertDeletions) }),
		m("syncs_total", "Sync events queued.", count, func(s *Stats) float64 { return float64(s.Syncs) }),
		m("batches_total", "Batches closed.", count, func(s *Stats) float64 { return float64(s.Batches) }),
		m("bytes_total", "Bytes of batches closed.", count, func(s *Stats) float64 { return float64(s.Bytes) }),
		m("resent_batches_total", "Batches sent again after a connection ended.", count,
			func(s *Stats) float64 { return float64(s.Resent) }),
		m("connects_total", "Connections made.", count, func(s *Stats) float64 { return float64(s.Connects) }),
		m("connect_failures_total", "Attempts to connect that failed.", count,
			func(s *Stats) float64 { return float64(s.Failures) }),
		m("stalls_total", "Waits for room in a full queue.", count, func(s *Stats) float64 { return float64(s.Stalls) }),
		m("held_seconds_total", "Time that workers waited for room in a full queue.", count,
			func(s *Stats) float64 { return s.Held }),
		m("slow_total", "How often smart throttling began to drop a slow endpoint's data.", count,
			func(s *Stats) float64 { return float64(s.Slow) }),
		m("drops_total", "How often a vbucket's data began to be dropped.", count,
			func(s *Stats) float64 { return float64(s.Drops) }),
		m("dropped_events_total", "Data events dropped.", count, func(s *Stats) float64 { return float64(s.DroppedEvents) }),
		m("parts_total", "Parts of documents whose keys exceed a frame.", count,
			func(s *Stats) float64 { return float64(s.Parts) }),
		m("oversized_total", "Documents left out of an index because their keys in it exceed a frame.", count,
			func(s *Stats) float64 { return float64(s.Oversized) }),
		m("queue_bytes", "Memory of unacknowledged batches.", gauge,
			func(s *Stats) float64 { return float64(s.QueueBytes) }),
		m("queue_limit_bytes", "Limit of queue_bytes, at which data waits or is dropped.", gauge,
			func(s *Stats) float64 { return float64(s.QueueLimit) }),
		m("connections", "Connections open.", gauge, func(s *Stats) float64 { return float64(s.Connected) }),
	}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metrics() {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	all := c.r.Stats()
	for _, m := range metrics() {
		for i := range all {
			s := &all[i]
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s.Stats), s.Class, s.Bucket, strconv.Itoa(int(s.Node)))
		}
	}
}
