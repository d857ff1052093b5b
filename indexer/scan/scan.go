// Package scan answers scans of an index whose slices lie on several nodes (IX-6, IX-7): what a request means, which
// stability timestamp it runs at, one healthy replica per slice, the merge in index order, and the form in which rows
// travel between nodes and to clients.
//
// It promises: every row of an answer is from one stability timestamp; no row comes twice and none is missing; a
// replica that fails in the middle is replaced by another at the same timestamp without a trace; an answer that was cut
// off is never taken for a whole one, because rows count only with the end that follows them; nothing is read ahead of
// a slow client beyond the buffers of the connections.
//
// It never stores anything, and knows neither how a slice keeps its rows nor how nodes are reached: it is given
// interfaces for both.
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

// RowStream gives rows in index order (or in reverse). Next gives io.EOF only when everything was there; a stream that
// ends in another way gives another error. A row is valid until the next call.
type RowStream interface {
	Next() (Row, error)
	// Count is how many rows there are: of a stream that only counts from the begin, else after io.EOF.
	Count() int64
	// Vector is the stability timestamp that the rows are at, when it was asked for.
	Vector() timestamp.Vector
	// Looked is what was done for the rows so far, or for the count: on another node up to the last frame that has come.
	// It stays after Close.
	Looked() Looked
	Close() error
}

// Looked counts entries that were looked at for an answer.
type Looked struct {
	Read     int64 // in all; a walk over an index that leaves entries out goes past them without a look
	Filtered int64 // of these, those that do not meet the conditions
}

// Add adds what was done elsewhere.
func (l *Looked) Add(o Looked) { l.Read, l.Filtered = l.Read+o.Read, l.Filtered+o.Filtered }

// NodeRequest asks one node for the rows of some of its copies, merged.
type NodeRequest struct {
	Index      index.ID          `json:"index"`
	Ref        wire.StabilityRef `json:"ref"`
	Copies     []index.CopyID    `json:"copies"`
	Ranges     []Range           `json:"ranges"` // ordered and apart from each other
	Reverse    bool              `json:"reverse,omitempty"`
	Limit      int64             `json:"limit,omitempty"` // 0: none
	CountOnly  bool              `json:"count_only,omitempty"`
	WantVector bool              `json:"want_vector,omitempty"`
	After      *Row              `json:"after,omitempty"` // resume behind this row
	// rows that agree in so many leading components are one; 0: none
	Distinct int       `json:"distinct,omitempty"`
	Where    []Filter  `json:"where,omitempty"`   // by component, each once
	Desc     []bool    `json:"desc,omitempty"`    // of the components; with Distinct, Where and Groups
	Groups   *Grouping `json:"groups,omitempty"`  // cells are asked for instead of rows, Limit is of groups
	Named    bool      `json:"named,omitempty"`   // Ref comes from outside: it has to be the one of that hash
	KeepMS   int64     `json:"keep_ms,omitempty"` // how long the node keeps Ref for later scans that name it
	Pages    *Pages    `json:"pages,omitempty"`   // the answer whose page it is, so that Copies are kept for the next
	Over     []Pages   `json:"over,omitempty"`    // answers for which nothing has to be kept any more
	Explain  bool      `json:"explain,omitempty"` // Looked is wanted
	WaitMS   int64     `json:"wait_ms,omitempty"` // how long the node may wait until it holds Ref
	LastsMS  int64     `json:"lasts_ms"`          // how long the scan may still take, and the node's part with it
}

// Pages names an answer that comes page by page.
type Pages struct {
	ID  uint64 `json:"id"`
	For string `json:"for,omitempty"` // who has asked; "": nobody known
}

// View is what the coordinating node knows of an index at one moment.
type View struct {
	Definition index.Definition
	Topology   partition.Topology
	Bucket     wire.Bucket
	Era        Era
	Held       []wire.Held // newest timestamp held by each ready copy

	healthy  [][]candidate              // by slice, see Prepare; nil: not found out yet
	provider partition.TopologyProvider // see Prepare; nil: not found out yet, or of a kind that is not known here
}

// Era says within what timestamps of a bucket can be compared: of one cluster, since it was restored, or recovered
// without a majority, last.
type Era struct {
	Cluster uint64 // scanport.ClusterKey of its id
	Epoch   uint64
}

// Catalog is the coordinating node's knowledge, kept current by others.
type Catalog interface {
	// View returns an index; an error with code INDEX_NOT_HOSTED when there is none. It may be shared: nobody changes it.
	View(id index.ID) (View, error)
	// Newest returns the newest stability timestamp of a bucket that is known here.
	Newest(bucket string) (wire.BucketStability, bool)
	// Heard returns when a timestamp was told of here; false: nobody knows, as it was there when this node began, or came
	// too long ago.
	Heard(ref wire.StabilityRef) (at time.Time, known bool)
	// Changed is closed when Newest of a bucket, or View of an index of it, may have another answer.
	Changed(bucket string) <-chan struct{}
}

// Truth asks KV and the managers about the present.
type Truth interface {
	// CurrentSeqnos gives KV's newest positions. A vbucket that nobody owns is waited for until ctx ends, and then named.
	CurrentSeqnos(ctx context.Context, bucket string) (timestamp.Vector, error)
	// Stabilize returns a stability timestamp at or above need, waiting for it at most as long as wait.
	Stabilize(ctx context.Context, bucket string, need timestamp.Vector, wait time.Duration) (wire.BucketStability, error)
}

// Nodes reaches the nodes, this one included.
type Nodes interface {
	// OpenSlices starts a node's part of a scan. The node waits until its copies hold req.Ref. Errors are *Error where
	// the node gave a reason; any other error means that it could not be asked, or that it is silent while others, which
	// could be asked in its place, are not.
	OpenSlices(ctx context.Context, node index.NodeID, others []index.NodeID, req NodeRequest) (RowStream, error)
	// KeepSlices asks a node to keep a timestamp for a scan that takes long. Errors are as those of OpenSlices.
	KeepSlices(ctx context.Context, node index.NodeID, req KeepRequest) error
	// Suspect reports whether a node could not be asked, or was silent, a short time ago: another one is asked if there is
	// one.
	Suspect(node index.NodeID) bool
	// Name says which indexer a node is, for people: its name and where it is reached.
	Name(node index.NodeID) string
}

// Sink takes rows. What it is given is valid until it returns; it may block, and the scan waits for it.
type Sink interface {
	Row(Row) error
}

// Dated is a Sink that wants to know of which timestamp the rows are that come next. It is told before the first one,
// again where an attempt had to be begun anew, and of each page without stability. seen is what a session has seen that
// gets these rows.
type Dated interface {
	At(ref wire.StabilityRef, seen scanport.Seen)
}
