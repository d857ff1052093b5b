package wire

import "tidemark/index"

// IndexerScans are scans that an indexer coordinates, and those that took long (GET /v1/scans of its admin port). Each
// list has as many as were asked for; Running and SlowKept say how many there are.
type IndexerScans struct {
	Node      index.NodeID  `json:"node"`
	Name      string        `json:"name"`
	SlowMS    float64       `json:"slow_ms"` // from when on a scan counts as slow; below 0: none does
	Scans     []RunningScan `json:"scans,omitempty"`
	Running   int           `json:"running"`
	Slow      []SlowScan    `json:"slow,omitempty"`
	SlowKept  int           `json:"slow_kept"`
	SlowTotal uint64        `json:"slow_total"` // since the process began; those not kept any more included
}

// SlowFrom says from when on scans of an indexer are slow (POST /v1/scans:slow of its admin port).
type SlowFrom struct {
	FromMS int64  `json:"from_ms"` // below 0: none is; 0: as the process began
	By     string `json:"by"`
}

// ScanAsked is what was asked for by a scan or a count.
type ScanAsked struct {
	ID          string   `json:"id"`
	Index       index.ID `json:"index"`
	Op          string   `json:"op"` // scan, count
	User        string   `json:"user"`
	RequestID   string   `json:"request_id,omitempty"`
	SinceMS     int64    `json:"since_ms"` // unix milliseconds, of the indexer's clock
	Consistency string   `json:"consistency"`
	Stability   string   `json:"stability"`
	Bounds      string   `json:"bounds"` // in short
}

// ScanTimes are how long a scan has been in each of its phases, in milliseconds.
type ScanTimes struct {
	OpeningMS float64 `json:"opening_ms"` // until a copy of each slice had the timestamp, and its first rows
	WaitingMS float64 `json:"waiting_ms"` // for a stability timestamp that is new enough
	ReadingMS float64 `json:"reading_ms"`
	SendingMS float64 `json:"sending_ms"` // the client, or the way to it, took no more
}

// RunningScan is one that is under way.
type RunningScan struct {
	ScanAsked
	ForMS float64 `json:"for_ms"`
	State string  `json:"state"` // opening, waiting, reading, sending
	Rows  int64   `json:"rows"`
	ScanTimes
	Cancelled bool `json:"cancelled,omitempty"` // it ends as soon as its client takes something
}

// SlowScan is one that took long, and has ended.
type SlowScan struct {
	ScanAsked
	TookMS float64 `json:"took_ms"`
	Rows   int64   `json:"rows"`
	ScanTimes
	Code   string `json:"code"` // OK, or what it ended with
	Detail string `json:"detail,omitempty"`
}

// CancelScan ends a scan. POST /v1/scans:cancel of an indexer's admin port; one that is not there is UNKNOWN_SCAN.
type CancelScan struct {
	ID string `json:"id"`
	By string `json:"by"` // for its client
}
