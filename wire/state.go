package wire

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// ErrColumns is wrapped when the columns of a table have not the same number of rows.
var ErrColumns = errors.New("columns of different length")

// ProjectorState is all there is to see of a projector (PR-2). GET /v1/state. It is a picture of the moment; nothing in
// it waits for data, for KV or for an indexer.
type ProjectorState struct {
	ID       index.ProjectorID `json:"id"`
	BootID   string            `json:"boot_id"`
	Version  string            `json:"version"`
	Admin    string            `json:"admin"`           // base URL that others are told
	KV       []string          `json:"kv"`              // host:port of the KV nodes that it streams from
	Share    string            `json:"share,omitempty"` // vbuckets that it may stream, as "0-511"; "" for all
	Cluster  string            `json:"cluster_id"`      // "" before it has registered
	Fence    Fence             `json:"fence"`           // highest that was heard
	Revision uint64            `json:"revision"`        // of the definitions that every worker works with
	// Definitions are the indexes that it evaluates, as of the newest revision it was told.
	Definitions []DefinitionState `json:"definitions"`
	Buckets     []BucketState     `json:"buckets"` // ascending by name
	Topics      []TopicState      `json:"topics"`  // ascending by topic and bucket
	Counters    ProjectorCounters `json:"counters"`
	// Faults are of the indexes with most of them; FaultsOmitted counts the indexes that they leave out.
	Faults        []IndexFaults `json:"faults,omitempty"`
	FaultsOmitted int           `json:"faults_omitted,omitempty"`
	// KVTroubles are the buckets about which the KV node cannot be asked, ascending.
	KVTroubles []KVTrouble `json:"kv_troubles,omitempty"`
}

// DefinitionState names an index that is evaluated.
type DefinitionState struct {
	Index  index.ID    `json:"index"`
	Name   string      `json:"name"`
	Bucket string      `json:"bucket"`
	State  index.State `json:"state"`
}

// BucketState is the maintenance streams of one bucket: {vbno, seqno, vbuuid} of each vbucket in columns, by entry.
type BucketState struct {
	Bucket       string                  `json:"bucket"`
	BucketUUID   string                  `json:"bucket_uuid"`
	Connected    bool                    `json:"connected"` // to KV; false between a loss and the next start
	Revision     uint64                  `json:"revision"`  // of the definitions that its workers work with
	VBuckets     []uint16                `json:"vbuckets"`
	VBUUIDs      []uint64                `json:"vbuuids"`
	Seqnos       []uint64                `json:"seqnos"`   // last that was evaluated and routed
	Complete     []uint64                `json:"complete"` // newest that ends a DCP snapshot
	Incarnations []index.Incarnation     `json:"incarnations"`
	Ended        []bool                  `json:"ended"`
	Revisions    []timestamp.MapRevision `json:"revisions"`
	Activations  []Activation            `json:"activations"` // newest last
	HeldBytes    int64                   `json:"held_bytes"`  // received from KV and not acknowledged
	BufferBytes  int64                   `json:"buffer_bytes"`
	Workers      []QueueFill             `json:"workers"`                 // blocks of events that wait for each
	PurgesUntold string                  `json:"purges_untold,omitempty"` // why KV's purge seqnos are not known
}

// Columns checks that each column has a row for every vbucket, as a receiver must before it reads them side by side.
// Errors wrap ErrColumns and name the column.
func (b *BucketState) Columns() error {
	for _, c := range []struct {
		name string
		rows int
	}{
		{"vbuuids", len(b.VBUUIDs)}, {"seqnos", len(b.Seqnos)}, {"complete", len(b.Complete)},
		{"incarnations", len(b.Incarnations)}, {"ended", len(b.Ended)},
	} {
		if c.rows != len(b.VBuckets) {
			return fmt.Errorf("%w: bucket %q has %d vbuckets and %d %s", ErrColumns, b.Bucket, len(b.VBuckets), c.rows, c.name)
		}
	}
	return nil
}

// QueueFill is how full a queue is.
type QueueFill struct {
	Filled int `json:"filled"`
	Limit  int `json:"limit"`
}

// TopicState is an open topic and its endpoints (RT-9).
type TopicState struct {
	Topic     string          `json:"topic"`
	TopicID   uint8           `json:"topic_id"` // PR-14
	Bucket    string          `json:"bucket"`
	Indexes   []index.ID      `json:"indexes"`
	VBuckets  int             `json:"vbuckets"` // streams that run
	Endpoints []EndpointState `json:"endpoints"`
}

// EndpointState is one connection of a topic to a subscriber.
type EndpointState struct {
	Node       index.NodeID `json:"node"`
	Address    string       `json:"address"`
	Connection int          `json:"connection"`
	State      string       `json:"state"`           // connected, dialing, down
	Queue      QueueFill    `json:"queue"`           // bytes
	Dropping   int          `json:"dropping"`        // vbuckets whose data is dropped (RT-7)
	Slow       bool         `json:"slow"`            // smart throttling has given it up for a while (RT-8)
	Error      string       `json:"error,omitempty"` // why the last attempt to reach one that is down failed
}

// TopicList answers GET /v1/topics.
type TopicList struct {
	Topics []TopicState `json:"topics"`
}

// ProjectorCounters only rise, from the process's start on.
type ProjectorCounters struct {
	Mutations uint64 `json:"mutations"` // documents evaluated, all streams
	Deletions uint64 `json:"deletions"`
	Errors    uint64 `json:"errors"` // index entries left out, see IndexFaults
	Begun     uint64 `json:"begun"`  // maintenance streams, one for each vbucket and incarnation
	Ended     uint64 `json:"ended"`
}

// MaxIndexFaults bounds the indexes whose faults are told, those with most of them. How many have fewer is told with
// them.
const MaxIndexFaults = 64

// WorstFaults sorts all, the index with most faults first, and cuts them to MaxIndexFaults. It returns how many indexes
// that leaves out.
func WorstFaults(all []IndexFaults) (worst []IndexFaults, omitted int) {
	slices.SortFunc(all, func(a, b IndexFaults) int {
		return cmp.Or(cmp.Compare(b.Expression+b.TooLong, a.Expression+a.TooLong), cmp.Compare(a.Index, b.Index))
	})
	n := min(len(all), MaxIndexFaults)
	return all[:n], len(all) - n
}

// IndexFaults counts documents that have no entry in an index because of an error, from the process's start on and over
// all streams: a document that a stream brings again is counted again.
type IndexFaults struct {
	Index index.ID `json:"index"`
	// Expression counts entries left out because an expression failed or the value does not decode, TooLong those because
	// a key was.
	Expression uint64 `json:"expression"`
	TooLong    uint64 `json:"too_long"`
	// Sample is one of these documents, a recent one.
	Sample FaultSample `json:"sample"`
}

// FaultSample is a document that has no entry.
type FaultSample struct {
	DocID   string `json:"doc_id"`
	VBucket uint16 `json:"vbucket"`
	Seqno   uint64 `json:"seqno"`
	Error   string `json:"error"`
}
