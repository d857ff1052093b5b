package v1

import "tidemark/index"

// RunningScan is a scan or a count that is under way.
type RunningScan struct {
	ScanAsked
	ForMS float64 `json:"for_ms"` // so far
	// State is opening: copies of the slices are asked until they have the timestamp, and their first rows; waiting: for a
	// stability timestamp that is new enough; reading: rows; or sending: the client, or the way to it, takes none.
	State string `json:"state"`
	Rows  int64  `json:"rows"` // so far
	ScanTimes
	// Cancelled: it ends as soon as its client takes something.
	Cancelled bool `json:"cancelled,omitempty"`
}

// SlowScan is a scan or a count that took long, and has ended.
type SlowScan struct {
	ScanAsked
	TookMS float64 `json:"took_ms"`
	Rows   int64   `json:"rows"`
	ScanTimes
	Code   string `json:"code"` // OK, or what it ended with
	Detail string `json:"detail,omitempty"`
}

// ScanAsked is what a scan or a count asks for.
type ScanAsked struct {
	ID      string   `json:"id"`
	Indexer string   `json:"indexer"` // that coordinates it
	Index   index.ID `json:"index"`
	// Name and Bucket of the index; absent when there is none any more.
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
	Bounds      string `json:"bounds"` // in short
}

// Keyspace is where the documents of the index are: bucket, or bucket.scope.collection; "" when it is not known.
func (s *ScanAsked) Keyspace() string {
	return index.KeyspaceOf(s.Bucket, s.Scope, s.Collection).String()
}

// ScanTimes are how long a scan has been in each state, in milliseconds.
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
	// Unheard are indexers that gave no answer in time: what runs there is missing.
	Unheard []UnheardIndexer `json:"unheard,omitempty"`
}

// SlowScans is the answer of GET /v1/slow-scans.
type SlowScans struct {
	Scans   []SlowScan `json:"scans"`             // that ended last first
	Omitted int        `json:"omitted,omitempty"` // beyond the limit
	// Forgotten were slow as well, since the indexers' processes began: each remembers its newest 256.
	Forgotten uint64 `json:"forgotten,omitempty"`
	// From says of each indexer that was heard from when on a scan is slow.
	From    []SlowFrom       `json:"from,omitempty"`
	Unheard []UnheardIndexer `json:"unheard,omitempty"`
}

// SlowFrom is from when on an indexer remembers a scan as slow.
type SlowFrom struct {
	Indexer string  `json:"indexer"`
	FromMS  float64 `json:"from_ms"` // below 0: none is
}

// SlowFromRequest is the body of PUT /v1/slow-scans.
type SlowFromRequest struct {
	// FromMS is from when on a scan is slow, in milliseconds, at most an hour; -1: none is; 0: as the indexers began.
	FromMS int64 `json:"from_ms"`
}

// SlowFromReply says which indexers remember slow scans so.
type SlowFromReply struct {
	Indexers []string         `json:"indexers"`
	Unheard  []UnheardIndexer `json:"unheard,omitempty"` // that go on as before
}

// UnheardIndexer is one that gave no answer in time.
type UnheardIndexer struct {
	Indexer string `json:"indexer"`
	Error   string `json:"error"`
}
