package wire

import (
	"time"

	"tidemark/index"
)

// Processes keep a history of their last hour, in slots of their clocks.
const (
	HistorySlot  = 10 * time.Second
	HistorySlots = 360
)

// HistoryQuery selects a part of the history: Points points of Each slots, starting at slot From. Slots are counted
// since 1970.
type HistoryQuery struct {
	From   int64
	Each   int
	Points int
	Bucket string // only this bucket and indexes on it; "": all
}

// History is the history of a process: for an indexer (GET /v1/history of its admin port) the scans that it has
// coordinated, for a manager (GET /v1/history/own) the changes of indexes that it has made, and the buckets while it
// led. At is the number of a point. Points without data are omitted.
type History struct {
	Name    string        `json:"name"`
	SinceMS int64         `json:"since_ms"`          // when the process began to record
	Scans   []LatencyPast `json:"scans,omitempty"`   // Of is a consistency
	Changes []LatencyPast `json:"changes,omitempty"` // of indexes
	Indexes []LoadPast    `json:"indexes,omitempty"` // the most scanned ones, at most MaxLoads
	Omitted int           `json:"omitted,omitempty"` // number of indexes left out of Indexes
	Beyond  uint64        `json:"beyond,omitempty"`  // scans of indexes beyond the limit of recorded ones
	Buckets []BucketPast  `json:"buckets,omitempty"` // by name and At
	Unnoted int           `json:"unnoted,omitempty"` // buckets beyond the limit, in the worst slot
}

// MaxLoads bounds the indexes in a History.
const MaxLoads = 64

// LatencyPast is the distribution of durations of the operations that ended within a point: Counts by the bounds of
// package history, starting at bound First.
type LatencyPast struct {
	Of     string   `json:"of,omitempty"`
	At     int      `json:"at"`
	Nanos  uint64   `json:"nanos"`
	First  int      `json:"first"`
	Counts []uint64 `json:"counts"`
}

// LoadPast is the scan load of an index. Its lists run in parallel.
type LoadPast struct {
	Index  index.ID `json:"index"`
	At     []int    `json:"at"`
	Scans  []uint64 `json:"scans"`
	Rows   []uint64 `json:"rows"`
	Errors []uint64 `json:"errors"`
	Nanos  []uint64 `json:"nanos"`
}

// BucketPast is how current scans of a bucket could be: the maximum lag within a point, and the newest timestamp at
// its end.
type BucketPast struct {
	Name    string `json:"name"`
	At      int    `json:"at"`
	Term    uint64 `json:"term"` // of the leader that recorded it
	Lag     uint64 `json:"lag"`  // seqnos above the newest stability timestamp
	Waiting int    `json:"waiting"`
	Number  uint64 `json:"number"`
}
