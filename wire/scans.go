package wire

import "tidemark/index"

// IndexerScans lists the scans that an indexer coordinates, and those that were slow (GET /v1/scans of its admin
// port). Each list is limited to the requested length; Running and SlowKept are the totals.
type IndexerScans struct {
	Node      index.NodeID  `json:"node"`
	Name      string        `json:"name"`
	SlowMS    float64       `json:"slow_ms"` // a scan is slow from this duration on; below 0: none is
	Scans     []RunningScan `json:"scans,omitempty"`
	Running   int           `json:"running"`
	Slow      []SlowScan    `json:"slow,omitempty"`
	SlowKept  int           `json:"slow_kept"`
	SlowTotal uint64        `json:"slow_total"` // since the process began, including those not kept any more
}

// SlowFrom sets from which duration on scans of an indexer count as slow (POST /v1/scans:slow of its admin port).
type SlowFrom struct {
	FromMS int64  `json:"from_ms"` // below 0: none is slow; 0: the setting at the start of the process
	By     string `json:"by"`
}

// ScanInfo identifies a scan or a count, and describes its request.
type ScanInfo struct {
	ID          string   `json:"id"`
	Index       index.ID `json:"index"`
	Op          string   `json:"op"` // scan, count
	User        string   `json:"user"`
	RequestID   string   `json:"request_id,omitempty"`
	SinceMS     int64    `json:"since_ms"` // unix milliseconds, of the indexer's clock
	Consistency string   `json:"consistency"`
	Stability   string   `json:"stability"`
	Bounds      string   `json:"bounds"` // abbreviated
}

// ScanTimes is how long a scan has spent in each of its phases, in milliseconds.
type ScanTimes struct {
	OpeningMS float64 `json:"opening_ms"` // until a copy of each slice had the timestamp and delivered its first rows
	WaitingMS float64 `json:"waiting_ms"` // for a recent enough stability timestamp
	ReadingMS float64 `json:"reading_ms"`
	SendingMS float64 `json:"sending_ms"` // blocked by the client or the network
}

// RunningScan is a scan in progress.
type RunningScan struct {
	ScanInfo
	ForMS float64 `json:"for_ms"`
	State string  `json:"state"` // opening, waiting, reading, sending
	Rows  int64   `json:"rows"`
	ScanTimes
	Cancelled bool `json:"cancelled,omitempty"` // it ends as soon as its client takes something
}

// SlowScan is a slow scan that has ended.
type SlowScan struct {
	ScanInfo
	TookMS float64 `json:"took_ms"`
	Rows   int64   `json:"rows"`
	ScanTimes
	Code   string `json:"code"` // OK, or the error code
	Detail string `json:"detail,omitempty"`
}

// CancelScan cancels a scan. POST /v1/scans:cancel of an indexer's admin port. The error is UNKNOWN_SCAN if it is not
// running.
type CancelScan struct {
	ID string `json:"id"`
	By string `json:"by"` // who cancels it, as reported to the scan's client
}
