package wire

import (
	"time"

	"tidemark/index"
)

// What processes remember of their last hour, by slots of their clocks.
const (
	HistorySlot  = 10 * time.Second
	HistorySlots = 360
)

// HistoryAsked says which part of it is wanted: Points points of Each slots, the first of which begins at slot From,
// counted since 1970.
type HistoryAsked struct {
	From   int64
	Each   int
	Points int
	Bucket string // only this bucket, and indexes on it; "": all
}

// History is what a process remembers: an indexer (GET /v1/history of its admin port) of the scans that it has
// coordinated, a manager (GET /v1/history/own) of the changes of indexes that it has made, and of buckets while it led.
// At is the number of a point; one of which nothing is known is not there.
type History struct {
	Name    string        `json:"name"`
	SinceMS int64         `json:"since_ms"`          // from when on the process has noted anything
	Scans   []LatencyPast `json:"scans,omitempty"`   // Of is a consistency
	Changes []LatencyPast `json:"changes,omitempty"` // of indexes
	Indexes []LoadPast    `json:"indexes,omitempty"` // scanned most, at most MaxLoads
	Omitted int           `json:"omitted,omitempty"` // indexes beside them
	Beyond  uint64        `json:"beyond,omitempty"`  // scans of indexes that were too many to be noted by name
	Buckets []BucketPast  `json:"buckets,omitempty"` // by name and At
	Unnoted int           `json:"unnoted,omitempty"` // most buckets of one slot that were too many to be noted
}

// MaxLoads is how many indexes a History has.
const MaxLoads = 64

// LatencyPast is how long what ended within a point took: Counts of durations by the bounds of package history, from
// bound First on.
type LatencyPast struct {
	Of     string   `json:"of,omitempty"`
	At     int      `json:"at"`
	Nanos  uint64   `json:"nanos"`
	First  int      `json:"first"`
	Counts []uint64 `json:"counts"`
}

// LoadPast is how much an index was scanned. The lists belong together.
type LoadPast struct {
	Index  index.ID `json:"index"`
	At     []int    `json:"at"`
	Scans  []uint64 `json:"scans"`
	Rows   []uint64 `json:"rows"`
	Errors []uint64 `json:"errors"`
	Nanos  []uint64 `json:"nanos"`
}

// BucketPast is how far scans of a bucket could see: the worst of a point, and the newest timestamp at its end.
type BucketPast struct {
	Name    string `json:"name"`
	At      int    `json:"at"`
	Term    uint64 `json:"term"` // of the leader that saw it
	Lag     uint64 `json:"lag"`  // seqnos above the newest stability timestamp
	Waiting int    `json:"waiting"`
	Number  uint64 `json:"number"`
}
