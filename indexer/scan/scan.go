// Package scan answers scans of an index whose slices are on several nodes (IX-6, IX-7): the meaning of a request,
// the choice of a stability timestamp and of one healthy copy per slice, the merge in index order, and the encoding
// of rows between nodes and to clients.
//
// It guarantees: every row of an answer is from one stability timestamp; no row occurs twice and none is missing; a
// copy that fails in the middle is replaced by another at the same timestamp without a trace; an answer that was cut
// off is never taken for a complete one, because rows count only with the end that follows them; nothing is read
// ahead of a slow client beyond the buffers of the connections.
//
// It never stores anything. How a slice keeps its rows, and how nodes are reached, is behind interfaces.
package scan

import (
	"bytes"
	"context"
	"time"

	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Row is one entry: a collated key and the document it belongs to.
type Row struct {
	Key   []byte
	DocID []byte
}

// Compare orders rows as an index does: by key, then by document id.
func (r Row) Compare(o Row) int {
	if c := bytes.Compare(r.Key, o.Key); c != 0 {
		return c
	}
	return bytes.Compare(r.DocID, o.DocID)
}

// Range selects the rows with Low <= key||docid < High by their bytes; nil is open.
type Range struct {
	Low  []byte `json:"low,omitempty"`
	High []byte `json:"high,omitempty"`
}

// RowStream returns rows in index order (or in reverse). Next returns io.EOF only when all rows were returned; a
// stream that ends early returns another error. A row is valid until the next call.
type RowStream interface {
	Next() (Row, error)
	// Count returns the number of rows: for a counting stream from the start, otherwise after io.EOF.
	Count() int64
	// Vector returns the stability timestamp of the rows, if it was requested.
	Vector() timestamp.Vector
	// Looked returns the entries read for the rows so far, or for the count. For another node it is as of the last
	// frame received. It remains available after Close.
	Looked() Looked
	Close() error
}

// Looked counts the entries that were read for an answer.
type Looked struct {
	Read     int64 // all entries read; entries that the index skips do not count
	Filtered int64 // those of them that failed the conditions
}

// Add adds o to l.
func (l *Looked) Add(o Looked) { l.Read, l.Filtered = l.Read+o.Read, l.Filtered+o.Filtered }

// NodeRequest requests from one node the merged rows of some of its copies.
type NodeRequest struct {
	Index      index.ID          `json:"index"`
	Ref        wire.StabilityRef `json:"ref"`
	Copies     []index.CopyID    `json:"copies"`
	Ranges     []Range           `json:"ranges"` // sorted and disjoint
	Reverse    bool              `json:"reverse,omitempty"`
	Limit      int64             `json:"limit,omitempty"` // 0: none
	CountOnly  bool              `json:"count_only,omitempty"`
	WantVector bool              `json:"want_vector,omitempty"`
	After      *Row              `json:"after,omitempty"` // continue behind this row
	// rows with that many equal leading components are one; 0: none are
	Distinct int       `json:"distinct,omitempty"`
	Where    []Filter  `json:"where,omitempty"`   // sorted by component, each once
	Desc     []bool    `json:"desc,omitempty"`    // of the components; with Distinct, Where and Groups
	Groups   *Grouping `json:"groups,omitempty"`  // request cells instead of rows; Limit then counts groups
	Named    bool      `json:"named,omitempty"`   // Ref comes from outside: its hash must match
	KeepMS   int64     `json:"keep_ms,omitempty"` // how long the node keeps Ref for later scans that name it
	// the answer that the page belongs to, so that Copies are kept for the next one
	Pages   *Pages  `json:"pages,omitempty"`
	Over    []Pages `json:"over,omitempty"`    // answers for which nothing has to be kept any more
	Explain bool    `json:"explain,omitempty"` // Looked is requested
	WaitMS  int64   `json:"wait_ms,omitempty"` // how long the node may wait until it holds Ref
	LastsMS int64   `json:"lasts_ms"`          // how long the scan, and the node's part with it, may still take
}

// Pages identifies an answer that is returned in pages.
type Pages struct {
	ID  uint64 `json:"id"`
	For string `json:"for,omitempty"` // the user; "": unknown
}

// View is the coordinating node's state of an index at one moment.
type View struct {
	Definition index.Definition
	Topology   partition.Topology
	Bucket     wire.Bucket
	Era        Era
	Held       []wire.Held // newest timestamp held by each ready copy

	healthy  [][]candidate              // by slice, see Prepare; nil: not computed yet
	provider partition.TopologyProvider // see Prepare; nil: not computed yet, or of a kind unknown here
}

// Era limits which timestamps of a bucket can be compared: those of one cluster since it was last restored, or
// recovered without a majority.
type Era struct {
	Cluster uint64 // scanport.ClusterKey of the cluster's id
	Epoch   uint64
}

// Catalog is the coordinating node's state, kept current by others.
type Catalog interface {
	// View returns an index, or an error with code INDEX_NOT_HOSTED. The result may be shared and must not be
	// modified.
	View(id index.ID) (View, error)
	// Newest returns the newest stability timestamp of a bucket that this node has received.
	Newest(bucket string) (wire.BucketStability, bool)
	// Arrived returns when this node received a timestamp. known is false if it had it when it started, or received it
	// too long ago.
	Arrived(ref wire.StabilityRef) (at time.Time, known bool)
	// Changed returns a channel that is closed when the result of Newest of the bucket, or of View of one of its
	// indexes, may have changed.
	Changed(bucket string) <-chan struct{}
}

// Truth obtains the present state from KV and the managers.
type Truth interface {
	// CurrentSeqnos returns KV's newest positions. It waits until ctx ends for vbuckets without an owner, and then
	// names them in the error.
	CurrentSeqnos(ctx context.Context, bucket string) (timestamp.Vector, error)
	// Stabilize returns a stability timestamp at or above need, waiting for it at most for wait.
	Stabilize(ctx context.Context, bucket string, need timestamp.Vector, wait time.Duration) (wire.BucketStability, error)
}

// Nodes reaches the nodes, including this one.
type Nodes interface {
	// OpenSlices starts a node's part of a scan. The node waits until its copies hold req.Ref. Errors are *Error if
	// the node reported them; any other error means that the node could not be reached, or that it does not answer
	// while all of others, which could replace it, do.
	OpenSlices(ctx context.Context, node index.NodeID, others []index.NodeID, req NodeRequest) (RowStream, error)
	// KeepSlices requests that a node keep a timestamp for a scan that takes long. Its errors are like those of
	// OpenSlices.
	KeepSlices(ctx context.Context, node index.NodeID, req KeepRequest) error
	// IsHere reports whether a node is the coordinating one, which is read without a request.
	IsHere(node index.NodeID) bool
	// Suspect reports whether a node was recently unreachable or silent, so that another one is preferred.
	Suspect(node index.NodeID) bool
	// Name returns a node's name and address, for people.
	Name(node index.NodeID) string
}

// Sink receives rows. Its argument is valid until it returns. It may block, and the scan then waits.
type Sink interface {
	Row(Row) error
}

// Dated is a Sink that receives the timestamp of the rows that follow: before the first row, again when an attempt
// starts over, and for each page without stability. seen is what a session has seen once it has these rows.
type Dated interface {
	At(ref wire.StabilityRef, seen scanport.Seen)
}
