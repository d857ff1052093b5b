package v1

import (
	"time"

	"tidemark/index"
)

// History is the answer of GET /v1/history: the last hour, or a part of it, in points of equal length. What its
// processes have forgotten, and what happened before they started, is missing: see Of.
type History struct {
	FromMS int64 `json:"from_ms"` // when the first point begins, Unix time
	ToMS   int64 `json:"to_ms"`   // when the last point ends
	StepMS int64 `json:"step_ms"` // length of a point
	// Scans holds the durations of completed scans and counts, by consistency, including the time that clients took.
	Scans []LatencyHistory `json:"scans"`
	// DDL holds the durations of index changes that were made, from request to answer.
	DDL LatencyHistory `json:"ddl"`
	// Indexes holds the indexes with most scans, the busiest first; IndexesOmitted is how many more there are, at least.
	Indexes        []IndexHistory `json:"indexes"`
	IndexesOmitted int            `json:"indexes_omitted,omitempty"`
	// ScansUnnamed counts scans that could not be recorded by index: an indexer records at most 256 indexes in ten
	// seconds.
	ScansUnnamed uint64 `json:"scans_unnamed,omitempty"`
	// Buckets holds the buckets that a leader has recorded; BucketsOmitted is how many were not recorded: at most 64 are
	// at a time.
	Buckets        []BucketHistory `json:"buckets"`
	BucketsOmitted int             `json:"buckets_omitted,omitempty"`
	// Of lists the processes whose records are included.
	Of []HistoryOf `json:"of"`
	// Unreachable lists the processes that did not answer: their records are missing.
	Unreachable []UnreachableProcess `json:"unreachable,omitempty"`
}

// LatencyHistory holds durations as percentiles over all of them, and by point.
type LatencyHistory struct {
	Consistency string `json:"consistency,omitempty"` // of scans
	Latency
	Points []LatencyPoint `json:"points"` // the points with a completed operation
}

// Latency holds percentiles of durations, with an error of at most 19 %.
type Latency struct {
	Count  uint64  `json:"count"`
	MeanMS float64 `json:"mean_ms"`
	P50MS  float64 `json:"p50_ms"`
	P95MS  float64 `json:"p95_ms"`
	P99MS  float64 `json:"p99_ms"`
}

// LatencyPoint holds the durations of operations that ended within a point.
type LatencyPoint struct {
	AtMS int64 `json:"at_ms"` // when the point begins
	Latency
}

// IndexHistory holds how often an index was scanned.
type IndexHistory struct {
	ID index.ID `json:"id"`
	// Name and Bucket are absent if the index no longer exists; Scope and Collection also for the default collection.
	Name       string `json:"name,omitempty"`
	Bucket     string `json:"bucket,omitempty"`
	Scope      string `json:"scope,omitempty"`
	Collection string `json:"collection,omitempty"`
	IndexLoad
	Points []IndexPoint `json:"points"` // the points in which a scan ended
}

// IndexLoad counts the completed scans and counts of an index.
type IndexLoad struct {
	Scans  uint64  `json:"scans"`
	Rows   uint64  `json:"rows"`
	Errors uint64  `json:"errors"`
	MeanMS float64 `json:"mean_ms"`
}

// IndexPoint counts the scans that ended within a point.
type IndexPoint struct {
	AtMS int64 `json:"at_ms"` // when the point begins
	IndexLoad
}

// BucketHistory holds how much of a bucket scans could not see yet.
type BucketHistory struct {
	Name   string        `json:"name"`
	Points []BucketPoint `json:"points"` // the points that a leader has recorded
}

// BucketPoint holds the maxima of a point, over the leader's samples of one per second.
type BucketPoint struct {
	AtMS         int64  `json:"at_ms"`         // when the point begins
	Lag          uint64 `json:"lag"`           // changes above the newest stability timestamp
	ScansWaiting int    `json:"scans_waiting"` // for a newer one
	// Timestamps is the number of stability timestamps since the previous point; absent if unknown.
	Timestamps *uint64 `json:"timestamps,omitempty"`
}

// HistoryOf is a process whose records are included.
type HistoryOf struct {
	Role    string `json:"role"` // manager, indexer
	Name    string `json:"name"`
	SinceMS int64  `json:"since_ms"` // when its process started: earlier records do not exist
}

// UnreachableProcess is a process that did not answer in time.
type UnreachableProcess struct {
	Role  string `json:"role"`
	Name  string `json:"name"`
	Error string `json:"error"`
}

// HistoryRequest selects a part of the last hour.
type HistoryRequest struct {
	For    time.Duration // up to now, in whole minutes, at most an hour; 0: an hour
	Step   time.Duration // length of a point, a multiple of ten seconds, at most ten minutes; 0: 30 s
	Bucket string        // only this bucket and its indexes; "": all
	Limit  int           // of indexes, at most 64; 0: 12
}
