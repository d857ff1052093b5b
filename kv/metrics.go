package kv

import "github.com/prometheus/client_golang/prometheus"

// collector exports the node's counters at each scrape. No metric has a label per vbucket.
type collector struct{ n *Node }

// Describe implements prometheus.Collector. It sends nothing: the set of metrics varies, so the collector is
// unchecked.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	emit := func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		names := []string{"bucket"}[:len(labels)]
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("tidemark_kv_"+name, help, names, nil), kind, value,
			labels...)
	}
	count := func(name, help string, value int64, labels ...string) {
		emit(prometheus.CounterValue, name, help, float64(value), labels...)
	}
	gauge := func(name, help string, value float64, labels ...string) {
		emit(prometheus.GaugeValue, name, help, value, labels...)
	}
	s := c.n.server.Counters()
	gauge("connections", "Open client connections.", float64(s.Connections.Load()))
	gauge("dcp_connections", "Open DCP connections.", float64(s.DCPConnections.Load()))
	gauge("dcp_streams", "Open DCP streams.", float64(s.Streams.Load()))
	count("connections_total", "Client connections accepted or refused.", s.ConnectionsTotal.Load())
	count("connections_refused_total", "Client connections refused because there were too many.",
		s.ConnectionsRefused.Load())
	count("requests_total", "Requests from clients.", s.Requests.Load())
	count("mutations_total", "Changes of documents by clients.", s.Mutations.Load())
	count("gets_total", "Documents requested.", s.Gets.Load())
	count("auth_failures_total", "Failed authentications.", s.AuthFailures.Load())
	count("protocol_errors_total", "Connections closed for violating the protocol.", s.ProtocolErrors.Load())
	count("not_my_vbucket_total", "Requests for vbuckets of other nodes.", s.NotMyVBucket.Load())
	count("temporary_failures_total", "Requests refused because the log could not be written.", s.TemporaryFailures.Load())
	count("no_memory_total", "Requests refused because the quota is used up.", s.NoMemory.Load())
	count("dcp_opens_total", "DCP_OPEN requests.", s.DCPOpens.Load())
	count("dcp_stream_requests_total", "DCP_STREAM_REQ requests.", s.StreamRequests.Load())
	count("dcp_streams_accepted_total", "Stream requests that were accepted.", s.StreamsAccepted.Load())
	count("dcp_rollbacks_total", "Stream requests answered by a rollback.", s.Rollbacks.Load())
	count("dcp_snapshots_total", "Snapshot markers sent.", s.Snapshots.Load())
	count("dcp_items_total", "Versions of documents sent.", s.DCPItems.Load())
	count("dcp_bytes_total", "Bytes of DCP messages sent.", s.DCPBytes.Load())
	gauge("memory_used_bytes", "Memory of documents.", float64(c.n.quota.Used()))
	gauge("memory_quota_bytes", "Memory that documents may use.", float64(c.n.quota.Limit()))
	m := c.n.cluster.current()
	gauge("map_rev_epoch", "Epoch of the cluster map.", float64(m.RevEpoch))
	gauge("map_rev", "Revision of the cluster map in its epoch.", float64(m.Rev))
	gauge("rebalance_left_vbuckets", "Vbuckets that a running rebalance has still to move.", float64(m.Left()))
	for _, b := range c.n.loadedBuckets() {
		st, totals := c.n.bucketStatus(b), b.store.Counters()
		gauge("bucket_replica_vbuckets", "Replica vbuckets.", float64(st.ReplicaVBuckets), st.Name)
		gauge("bucket_replica_lag", "Seqnos of active copies that the replicas here lack.",
			float64(st.ReplicaLag), st.Name)
		gauge("bucket_replica_unjoined", "Replicas that are not yet connected to their active copy.",
			float64(st.ReplicaUnjoined), st.Name)
		count("bucket_replicated_total", "Versions replicated from active copies.", totals.Replicated.Load(), st.Name)
		count("bucket_resets_total", "Vbuckets that were emptied.", totals.Resets.Load(), st.Name)
		gauge("bucket_items", "Documents in active vbuckets.", float64(st.Items), st.Name)
		gauge("bucket_tombstones", "Tombstones in active vbuckets.", float64(st.Tombstones), st.Name)
		gauge("bucket_active_vbuckets", "Active vbuckets.", float64(st.ActiveVBuckets), st.Name)
		gauge("bucket_high_seqnos", "Sum of the high seqnos of active vbuckets.", float64(st.HighSeqnoSum), st.Name)
		gauge("bucket_disk_bytes", "Size of the log.", float64(st.DiskBytes), st.Name)
		gauge("bucket_live_bytes", "Part of the log that is still needed.", float64(st.LiveBytes), st.Name)
		count("bucket_writes_total", "Writes to the log.", totals.Writes.Load(), st.Name)
		count("bucket_write_bytes_total", "Bytes written to the log.", totals.WriteBytes.Load(), st.Name)
		count("bucket_write_errors_total", "Writes to the log that failed.", totals.WriteErrors.Load(), st.Name)
		count("bucket_expired_total", "Documents expired.", totals.Expired.Load(), st.Name)
		count("bucket_purged_total", "Tombstones purged.", totals.Purged.Load(), st.Name)
		count("bucket_segments_dropped_total", "Log segments removed by compaction.", totals.SegmentsDropped.Load(), st.Name)
	}
}
