package v1

import "tidemark/index"

// Stats is the answer of GET /v1/stats: figures of indexes and indexers, under the names of Couchbase's index
// service. Sizes are in bytes, durations in nanoseconds, points in time in nanoseconds of Unix time. Counters begin
// at 0 when an indexer's process starts.
type Stats struct {
	AtMS     int64          `json:"at_ms"`    // time of the request, Unix time
	Indexes  []IndexStats   `json:"indexes"`  // by id
	Indexers []IndexerStats `json:"indexers"` // by node
}

// IndexStats holds the figures of an index, over all its copies.
type IndexStats struct {
	ID     index.ID `json:"id"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	// Scope and Collection are absent for the default collection.
	Scope      string      `json:"scope,omitempty"`
	Collection string      `json:"collection,omitempty"`
	State      index.State `json:"index_state"`
	// Availability is how much of a ready index can be scanned; absent if it is not ready.
	Availability *Availability `json:"availability,omitempty"`
	// Reason is what is wrong with the index: of state error, or why a copy cannot be written at the moment.
	Reason        string  `json:"reason,omitempty"`
	BuildProgress float64 `json:"build_progress"` // percent: 0 to 100
	// ItemsCount is its entries, of one copy per slice. While nothing changes it equals the result of :count.
	ItemsCount uint64 `json:"items_count"`
	// NumDocsPending counts changes in KV that have not reached the copy that lacks most; NumDocsQueued counts changes
	// that have arrived and that no scan sees yet. Both count seqnos: a document that changes twice counts twice.
	NumDocsPending uint64 `json:"num_docs_pending"`
	NumDocsQueued  uint64 `json:"num_docs_queued"`
	// PendingUnknown is why NumDocsPending may be too low: KV, or an indexer, could not be asked.
	PendingUnknown string `json:"pending_unknown,omitempty"`
	// DataSize is the live data, in memory and on disk; DiskSize the files; FragPercent the share of garbage in them.
	// They cover all copies; the amount of garbage is an estimate.
	DataSize    uint64  `json:"data_size"`
	DiskSize    uint64  `json:"disk_size"`
	FragPercent float64 `json:"frag_percent"`
	MemoryUsed  uint64  `json:"memory_used"`   // applied and not yet written
	AvgItemSize uint64  `json:"avg_item_size"` // data_size per entry and copy
	// Scans and counts that have ended, wherever they were coordinated.
	NumRequests       uint64 `json:"num_requests"`
	NumRowsReturned   uint64 `json:"num_rows_returned"`
	NumScanErrors     uint64 `json:"num_scan_errors"` // timeouts included
	NumScanTimeouts   uint64 `json:"num_scan_timeouts"`
	TotalScanDuration uint64 `json:"total_scan_duration"`
	AvgScanLatency    uint64 `json:"avg_scan_latency"`
	LastKnownScanTime int64  `json:"last_known_scan_time"`      // 0: there was none
	LastScanError     string `json:"last_scan_error,omitempty"` // of a scan that failed
	// Faults counts documents that have no entry because of an error; absent if there are none, or if no leader was
	// asked.
	Faults *IndexFaults `json:"faults,omitempty"`
	// Copies is the number of copies, CopiesReported the number of those that an indexer has reported.
	Copies         int `json:"copies"`
	CopiesReported int `json:"copies_reported"`
}

// IndexerStats holds the figures of an indexer.
type IndexerStats struct {
	ID     string       `json:"id"` // its name
	Node   index.NodeID `json:"node"`
	BootID string       `json:"boot_id,omitempty"` // of its process: counters begin at 0 with another one
	// State is active, paused (it cannot write: Health is the reason), or unreachable.
	State    string `json:"indexer_state"`
	Health   string `json:"health,omitempty"`
	UptimeMS int64  `json:"uptime_ms"`
	// MemoryQuota is the configured quota of the node; MemoryUsed is the part of it in queues, cache, and unwritten
	// data. MemoryRSS is the process's resident memory. MemoryNearQuota warns that the queue, or the process, is at 90 %
	// of its limit.
	MemoryQuota uint64 `json:"memory_quota"`
	MemoryUsed  uint64 `json:"memory_used"`
	MemoryRSS   uint64 `json:"memory_rss"`

	MemoryNearQuota bool `json:"memory_near_quota"`
	// Over all its copies.
	ItemsCount     uint64  `json:"items_count"`
	NumDocsPending uint64  `json:"num_docs_pending"`
	NumDocsQueued  uint64  `json:"num_docs_queued"`
	DataSize       uint64  `json:"data_size"`
	DiskSize       uint64  `json:"disk_size"`
	FragPercent    float64 `json:"frag_percent"`
	// Of the scans that it has coordinated.
	NumRequests     uint64 `json:"num_requests"`
	NumRowsReturned uint64 `json:"num_rows_returned"`
	NumScanErrors   uint64 `json:"num_scan_errors"`
	AvgScanLatency  uint64 `json:"avg_scan_latency"`
	Copies          int    `json:"copies"`
}

// IndexStatusList is the answer of GET /getIndexStatus.
type IndexStatusList struct {
	Code   string        `json:"code"` // success
	Status []IndexStatus `json:"status"`
}

// IndexStatus is an index in the form that Couchbase's index tools read.
type IndexStatus struct {
	DefnID       index.ID `json:"defnId"`
	Name         string   `json:"name"`
	IndexName    string   `json:"indexName"`
	Bucket       string   `json:"bucket"`
	IsPrimary    bool     `json:"isPrimary"`
	Status       string   `json:"status"` // Created, Building, Ready, Error
	Error        string   `json:"error"`
	Definition   string   `json:"definition"`
	Hosts        []string `json:"hosts"`    // scan addresses
	Progress     float64  `json:"progress"` // percent
	NumReplica   uint8    `json:"numReplica"`
	NumPartition uint16   `json:"numPartition"`
	Partitioned  bool     `json:"partitioned"` // by key
}
