package wire

import "tidemark/index"

// IndexerStats are the statistics of an indexer (GET /v1/stats of its admin port). The names are those that users of
// Couchbase indexes are used to. Sizes are in bytes, durations in nanoseconds, points in time in nanoseconds of Unix
// time.
type IndexerStats struct {
	Node     index.NodeID `json:"node"`
	Name     string       `json:"name"`
	BootID   string       `json:"boot_id"`
	State    string       `json:"indexer_state"`    // active or paused; health has the reason
	Health   string       `json:"health,omitempty"` // the current problem
	UptimeMS int64        `json:"uptime_ms"`

	MemoryQuota uint64 `json:"memory_quota"` // queues, cache and unwritten data together
	MemoryUsed  uint64 `json:"memory_used"`  // part of the quota that is in use
	// resident memory of the process; 0 if the system does not report it
	MemoryRSS          uint64 `json:"memory_rss"`
	MemoryNearQuota    bool   `json:"memory_near_quota"`    // the quota is nearly exhausted
	MemoryUsedQueue    uint64 `json:"memory_used_queue"`    // events not yet applied
	MemoryUsedStorage  uint64 `json:"memory_used_storage"`  // cache, and data that is applied and not yet written
	MemoryQueueLimit   uint64 `json:"memory_queue_limit"`   // share of the quota for queues
	MemoryStorageLimit uint64 `json:"memory_storage_limit"` // share of the quota for storage

	// ExportBytes are files linked for sending to another indexer: what compactions replace of them meanwhile stays on
	// the disk. IncomingBytes were received from other indexers and are not installed.
	ExportBytes   uint64 `json:"export_bytes"`
	IncomingBytes uint64 `json:"incoming_bytes"`

	NumConnections uint64 `json:"num_connections"` // on the data ports, since the process began

	Copies []CopyStats `json:"copies"` // ascending by id
	Scans  []ScanStats `json:"scans"`  // ascending by index
	// Unknown has, by bucket, why KV's seqnos are unknown here: num_docs_pending of its copies is too low then.
	Unknown map[string]string `json:"pending_unknown,omitempty"`
}

// CopyStats are the statistics of one copy of a slice.
type CopyStats struct {
	Copy       index.CopyID  `json:"copy"`
	Index      index.ID      `json:"index"`
	Slice      index.SliceID `json:"slice"`
	Ready      bool          `json:"ready"`
	ItemsCount uint64        `json:"items_count"`
	// NumDocsPending and NumDocsQueued are seqnos: the number of documents, minus those overwritten meanwhile.
	NumDocsPending uint64 `json:"num_docs_pending"` // in KV and not yet received
	NumDocsQueued  uint64 `json:"num_docs_queued"`  // received and not yet applied
	DataSize       uint64 `json:"data_size"`        // live data in memory and on disk; estimated
	DiskSize       uint64 `json:"disk_size"`
	DiskLive       uint64 `json:"disk_live"` // live part of disk_size; estimated
	// IncomingBytes were received for it from another indexer and are not installed. disk_size does not include them.
	IncomingBytes uint64 `json:"incoming_bytes,omitempty"`
	MemoryUsed    uint64 `json:"memory_used"`
	Snapshots     int    `json:"snapshots"`  // timestamps held for scans
	WriteRate     uint64 `json:"write_rate"` // as in CopyReport
	ReadRate      uint64 `json:"read_rate"`
	Done          uint64 `json:"done"`
	Total         uint64 `json:"total"`
	LastError     string `json:"last_error,omitempty"` // why it cannot be written at the moment
}

// ScanStats count the scans of an index that an indexer has coordinated since its process began.
type ScanStats struct {
	Index             index.ID `json:"index"`
	NumRequests       uint64   `json:"num_requests"` // scans and counts that have ended, including failed ones
	NumRowsReturned   uint64   `json:"num_rows_returned"`
	NumScanErrors     uint64   `json:"num_scan_errors"` // including timeouts
	NumScanTimeouts   uint64   `json:"num_scan_timeouts"`
	TotalScanDuration uint64   `json:"total_scan_duration"`
	LastKnownScanTime int64    `json:"last_known_scan_time"`      // when the last one ended; 0: none has
	LastScanError     string   `json:"last_scan_error,omitempty"` // of the last one that failed
}
