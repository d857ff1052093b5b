package v1

import (
	"time"

	"tidemark/index"
)

// History is the answer of GET /v1/history: the last hour, or a part of it, by points of equal length. What its
// processes have forgotten, and what came before they began, is missing: see Of.
type History struct {
	FromMS int64 `json:"from_ms"` // when the first point begins, Unix time
	ToMS   int64 `json:"to_ms"`   // when the last one ends
	StepMS int64 `json:"step_ms"` // the length of a point
	// Scans are the times of scans and counts that have ended, by consistency, the clients' slowness included.
	Scans []LatencyHistory `json:"scans"`
	// DDL are the times of changes of indexes that were made, from request to answer.
	DDL LatencyHistory `json:"ddl"`
	// Indexes are those that were scanned most, the busiest first; IndexesOmitted is how many more there are, at least.
	Indexes        []IndexHistory `json:"indexes"`
	IndexesOmitted int            `json:"indexes_omitted,omitempty"`
	// ScansUnnamed are scans of indexes that were too many for their indexers to be noted by name: 256 in ten seconds.
	ScansUnnamed uint64 `json:"scans_unnamed,omitempty"`
	// Buckets are those of which a leader has noted something; BucketsOmitted is how many were too many at a time: 64 are
	// noted.
	Buckets        []BucketHistory `json:"buckets"`
	BucketsOmitted int             `json:"buckets_omitted,omitempty"`
	// Of are the processes whose memory this is.
	Of      []HistoryOf      `json:"of"`
	Unheard []UnheardProcess `json:"unheard,omitempty"` // what these know is missing
}

// LatencyHistory is how long something took: percentiles of all of it, and by point.
type LatencyHistory struct {
	Consistency string `json:"consistency,omitempty"` // of scans
	Latency
	Points []LatencyPoint `json:"points"` // those in which there was any
}

// Latency are percentiles of what took some time, at most 19 % off.
type Latency struct {
	Count  uint64  `json:"count"`
	MeanMS float64 `json:"mean_ms"`
	P50MS  float64 `json:"p50_ms"`
	P95MS  float64 `json:"p95_ms"`
	P99MS  float64 `json:"p99_ms"`
}

// LatencyPoint is what ended within a point.
type LatencyPoint struct {
	AtMS int64 `json:"at_ms"` // when the point begins
	Latency
}

// IndexHistory is how much an index was scanned.
type IndexHistory struct {
	ID index.ID `json:"id"`
	// Name and Bucket are absent when there is no such index any more; Scope and Collection for the default one, too.
	Name       string `json:"name,omitempty"`
	Bucket     string `json:"bucket,omitempty"`
	Scope      string `json:"scope,omitempty"`
	Collection string `json:"collection,omitempty"`
	IndexLoad
	Points []IndexPoint `json:"points"` // those in which a scan ended
}

// IndexLoad counts scans and counts of an index that have ended.
type IndexLoad struct {
	Scans  uint64  `json:"scans"`
	Rows   uint64  `json:"rows"`
	Errors uint64  `json:"errors"`
	MeanMS float64 `json:"mean_ms"`
}

// IndexPoint is what ended within a point.
type IndexPoint struct {
	AtMS int64 `json:"at_ms"` // when the point begins
	IndexLoad
}

// BucketHistory is how much scans of a bucket could not see yet.
type BucketHistory struct {
	Name   string        `json:"name"`
	Points []BucketPoint `json:"points"` // those of which a leader has noted something
}

// BucketPoint is the worst of a point, of what its leader looked at once a second.
type BucketPoint struct {
	AtMS         int64  `json:"at_ms"`         // when the point begins
	Lag          uint64 `json:"lag"`           // changes above the newest stability timestamp
	ScansWaiting int    `json:"scans_waiting"` // for a newer one
	// Timestamps is how many stability timestamps were made since the point before; absent when that is not known.
	Timestamps *uint64 `json:"timestamps,omitempty"`
}

// HistoryOf is a process whose memory a History has.
type HistoryOf struct {
	Role    string `json:"role"` // manager, indexer
	Name    string `json:"name"`
	SinceMS int64  `json:"since_ms"` // it knows nothing before: its process began then
}

// UnheardProcess is one that gave no answer in time.
type UnheardProcess struct {
	Role  string `json:"role"`
	Name  string `json:"name"`
	Error string `json:"error"`
}

// HistoryRequest says which part of the last hour is wanted.
type HistoryRequest struct {
	For    time.Duration // to now, whole minutes, at most an hour; 0: an hour
	Step   time.Duration // of a point, a multiple of ten seconds, at most ten minutes; 0: 30 s
	Bucket string        // its indexes, and it; "": all
	Limit  int           // of indexes, at most 64; 0: 12
}
