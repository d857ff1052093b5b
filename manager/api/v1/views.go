package v1

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// TopologyList is the answer of GET /v1/topology: a page of it, by index id.
type TopologyList struct {
	CAS     uint64          `json:"cas"`
	Indexes []IndexTopology `json:"indexes"`
	Next    string          `json:"next,omitempty"` // the value of ?after= for the next page; absent from the last page
}

// IndexTopology is where an index lives.
type IndexTopology struct {
	ID          index.ID         `json:"id"`
	Name        string           `json:"name"`
	Bucket      string           `json:"bucket"`
	State       index.State      `json:"state"`
	TopologyCAS uint64           `json:"topology_cas"` // of its newest change
	Layout      partition.Layout `json:"layout"`
	Copies      []CopyPlace      `json:"copies"`
	// Rebalances holds its slices that are moving, or are going to; absent if there are none.
	Rebalances []partition.Rebalance `json:"rebalances,omitempty"`
}

// CopyPlace is where a copy is placed, and its indexer's newest report of it; heard is false if there is none.
type CopyPlace struct {
	partition.Copy
	Heard bool   `json:"heard"`
	Exact bool   `json:"exact"` // it has been exact at a stability timestamp: scans may use it
	Items uint64 `json:"items"` // entries
	Bytes uint64 `json:"bytes"` // on disk and in memory
	// WriteRate is the number of entries written, changed or removed per second, ReadRate the number read by scans; both
	// within a sixteenth, averaged over some 15 s.
	WriteRate uint64 `json:"write_rate"`
	ReadRate  uint64 `json:"read_rate"`
	// Received of Expected bytes of the files that another indexer sends for it have arrived; absent if none are sent.
	Received uint64 `json:"received,omitempty"`
	Expected uint64 `json:"expected,omitempty"`
	Error    string `json:"error,omitempty"` // why it cannot be written now
}

// RollbackList is the answer of GET /v1/rollbacks.
type RollbackList struct {
	CAS       uint64         `json:"cas"`
	Rollbacks []RollbackInfo `json:"rollbacks"`
}

// RollbackInfo is a rollback that is running, or that is needed and has not begun (id 0).
type RollbackInfo struct {
	Bucket  string                    `json:"bucket"`
	ID      uint64                    `json:"id"`
	Step    statecontext.RollbackStep `json:"step"`
	Detail  string                    `json:"detail,omitempty"`   // the leader's details
	SinceMS int64                     `json:"since_ms,omitempty"` // when the leader saw the step begin, unix milliseconds
	// projectors and indexers whose answers the step waits for
	Waits    []string    `json:"waits,omitempty"`
	Failover *VectorInfo `json:"failover,omitempty"` // from step prepare on
	Restart  *VectorInfo `json:"restart,omitempty"`  // from step restart on
}

// VectorInfo is a timestamp: its summary, and the positions of a page of vbuckets.
type VectorInfo struct {
	Total  uint64            `json:"total"` // sum of the seqnos
	Hash   string            `json:"hash"`
	Vector []VBucketPosition `json:"vector,omitempty"`
}

// StreamList is the answer of GET /v1/streams: a page of the vbucket ledger, by bucket and vbucket.
type StreamList struct {
	CAS     uint64          `json:"cas"`
	Buckets []BucketStreams `json:"buckets"`
	Streams []StreamInfo    `json:"streams"`
	Next    string          `json:"next,omitempty"` // the value of ?after= for the next page; absent from the last page
}

// BucketStreams counts the streams of a bucket by state.
type BucketStreams struct {
	Bucket    string `json:"bucket"`
	VBuckets  int    `json:"vbuckets"`
	Wanted    bool   `json:"wanted"` // an index needs them
	Idle      int    `json:"idle"`
	Requested int    `json:"requested"`
	Begun     int    `json:"begun"`
	Ended     int    `json:"ended"`
	Lost      int    `json:"lost"`
	Unknown   int    `json:"unknown"` // may be streamed by a projector that has not answered this leader yet
	Repairs   uint64 `json:"repairs"` // batches of requests in this leader's term
	// Stuck lists vbuckets that have had no stream for longer than 10 s although one is wanted, at most 16.
	Stuck []StuckVBucket `json:"stuck,omitempty"`
}

// StuckVBucket is a vbucket that has had no stream for long.
type StuckVBucket struct {
	VBucket uint16 `json:"vbucket"`
	State   string `json:"state"` // requested, ended, lost, unknown
	Reason  string `json:"reason"`
	ForMS   int64  `json:"for_ms"`
}

// StreamInfo is the maintenance stream of one vbucket.
type StreamInfo struct {
	Bucket      string            `json:"bucket"`
	VBucket     int               `json:"vbucket"`
	State       string            `json:"state"` // idle, requested, begun, ended, lost, unknown
	Owner       index.ProjectorID `json:"owner,omitempty"`
	Incarnation string            `json:"incarnation"` // epoch.term.counter
	SinceMS     int64             `json:"since_ms"`    // when the state was entered, unix milliseconds
	Reason      string            `json:"reason,omitempty"`
}

// Timestamps is the answer of GET /v1/buckets/{bucket}/timestamps. Vectors hold the page of vbuckets that begins at
// From.
type Timestamps struct {
	CAS        uint64 `json:"cas"`
	Bucket     string `json:"bucket"`
	UUID       string `json:"uuid"`
	Generation uint64 `json:"generation"`
	VBuckets   int    `json:"vbuckets"`
	From       int    `json:"from"`
	Next       string `json:"next,omitempty"` // the value of ?after= for the next page; absent from the last page
	Number     uint64 `json:"stability_number"`
	RollbackID uint64 `json:"rollback_id"`
	// see BucketStatus; absent also if the leader does not answer
	AgeMS     *int64      `json:"stability_age_ms,omitempty"`
	Stability VectorInfo  `json:"stability"`
	Mutation  VectorInfo  `json:"mutation"`           // the newest seqnos at the time of the promotion
	Current   *VectorInfo `json:"current,omitempty"`  // newest complete seqnos, from the leader
	Backfill  *VectorInfo `json:"backfill,omitempty"` // while builds run
	Restart   *VectorInfo `json:"restart,omitempty"`  // of a running rollback
	Lag       uint64      `json:"lag"`                // of current above stability
	// what drives stability, from the leader: sync or heartbeat
	Source   string        `json:"stability_source,omitempty"`
	Waiting  int           `json:"scans_waiting"`
	Indexers []Participant `json:"indexers,omitempty"`
	// Holding lists vbuckets without a stream, at most 16; HoldingCount is their number. Their positions in the
	// timestamp do not advance.
	Holding      []StreamInfo `json:"holding,omitempty"`
	HoldingCount int          `json:"holding_count"`
	Diverged     string       `json:"diverged,omitempty"` // why the bucket must be rolled back
}

// Participant is an indexer's part in the promotion of stability timestamps.
type Participant struct {
	Node    index.NodeID `json:"node"`
	Name    string       `json:"name"`
	Acked   uint64       `json:"acked"`    // number of the newest one that it has made or skipped
	Behind  uint64       `json:"behind"`   // how many it has not acknowledged
	SinceMS int64        `json:"since_ms"` // when it last moved, unix milliseconds
	Holds   bool         `json:"holds"`    // the next promotion waits for it
	// why promotion does not wait for it: silent, stalled, recovering, dropped, late, rollback
	Ignored string `json:"ignored,omitempty"`
}

// BucketSettings holds the settings of a bucket that operators may change. StabilitySource is "sync", "heartbeat", or
// empty for the leader's --stability-source.
type BucketSettings struct {
	StabilitySource string `json:"stability_source"`
}

// BucketSettingsReply holds a bucket's settings, and the values in force at the leader.
type BucketSettingsReply struct {
	BucketSettings
	CAS     uint64         `json:"cas"`
	Bucket  string         `json:"bucket"`
	InForce BucketSettings `json:"in_force"`
}
