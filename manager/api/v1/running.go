package v1

import "tidemark/index"

// RunningScan is a scan or a count in progress.
type RunningScan struct {
	ScanInfo
	ForMS float64 `json:"for_ms"` // so far
	// State is opening: the copies of the slices are opened, until they have the timestamp and their first rows;
	// waiting: for a new enough stability timestamp; reading: rows; or sending: the client, or the network to it, does
	// not accept rows.
	State string `json:"state"`
	Rows  int64  `json:"rows"` // so far
	ScanTimes
	// Cancelled is set if the scan was cancelled: it ends as soon as its client accepts something.
	Cancelled bool `json:"cancelled,omitempty"`
}

// SlowScan is a scan or a count that took long, and has ended.
type SlowScan struct {
	ScanInfo
	TookMS float64 `json:"took_ms"`
	Rows   int64   `json:"rows"`
	ScanTimes
	Code   string `json:"code"` // OK, or the error code with which it ended
	Detail string `json:"detail,omitempty"`
}

// ScanInfo identifies a scan or a count, and describes its request.
type ScanInfo struct {
	ID      string   `json:"id"`
	Indexer string   `json:"indexer"` // the indexer that coordinates it
	Index   index.ID `json:"index"`
	// Name and Bucket of the index; absent if it no longer exists.
	Name        string `json:"name,omitempty"`
	Bucket      string `json:"bucket,omitempty"`
	Scope       string `json:"scope,omitempty"` // absent: the default one
	Collection  string `json:"collection,omitempty"`
	Op          string `json:"op"` // scan, count
	User        string `json:"user"`
	RequestID   string `json:"request_id,omitempty"`
	SinceMS     int64  `json:"since_ms"` // unix milliseconds, of the indexer's clock
	Consistency string `json:"consistency"`
	Stability   string `json:"stability"`
	Bounds      string `json:"bounds"` // abbreviated
}

// Keyspace returns the keyspace of the index's documents: bucket, or bucket.scope.collection; "" if it is not known.
func (s *ScanInfo) Keyspace() string {
	return index.KeyspaceOf(s.Bucket, s.Scope, s.Collection).String()
}

// ScanTimes is how long a scan has been in each state, in milliseconds.
type ScanTimes struct {
	OpeningMS float64 `json:"opening_ms"`
	WaitingMS float64 `json:"waiting_ms"`
	ReadingMS float64 `json:"reading_ms"`
	SendingMS float64 `json:"sending_ms"`
}

// RunningScans is the answer of GET /v1/scans.
type RunningScans struct {
	Scans   []RunningScan `json:"scans"`             // the longest first
	Omitted int           `json:"omitted,omitempty"` // beyond the limit
	// Unreachable lists indexers that did not answer in time: their scans are missing.
	Unreachable []UnreachableIndexer `json:"unreachable,omitempty"`
}

// SlowScans is the answer of GET /v1/slow-scans.
type SlowScans struct {
	Scans   []SlowScan `json:"scans"`             // the one that ended last first
	Omitted int        `json:"omitted,omitempty"` // beyond the limit
	// Forgotten counts further slow scans since the indexers' processes started: each indexer keeps its newest 256.
	Forgotten uint64 `json:"forgotten,omitempty"`
	// From holds, for each indexer that answered, the duration from which a scan is slow.
	From        []SlowFrom           `json:"from,omitempty"`
	Unreachable []UnreachableIndexer `json:"unreachable,omitempty"`
}

// SlowFrom is the duration from which an indexer records a scan as slow.
type SlowFrom struct {
	Indexer string  `json:"indexer"`
	FromMS  float64 `json:"from_ms"` // below 0: none is slow
}

// SlowFromRequest is the body of PUT /v1/slow-scans.
type SlowFromRequest struct {
	// FromMS is the duration from which a scan is slow, in milliseconds, at most an hour; -1: none is; 0: the indexers'
	// configuration.
	FromMS int64 `json:"from_ms"`
}

// SlowFromReply lists the indexers that have accepted the new duration.
type SlowFromReply struct {
	Indexers    []string             `json:"indexers"`
	Unreachable []UnreachableIndexer `json:"unreachable,omitempty"` // indexers that keep the old one
}

// UnreachableIndexer is an indexer that did not answer in time.
type UnreachableIndexer struct {
	Indexer string `json:"indexer"`
	Error   string `json:"error"`
}
