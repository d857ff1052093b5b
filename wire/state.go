package wire

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// ErrColumns is wrapped if the columns of a table differ in length.
var ErrColumns = errors.New("columns of different length")

// ProjectorState is the complete observable state of a projector (PR-2). GET /v1/state. Reading it never waits for
// data, KV or an indexer.
type ProjectorState struct {
	ID       index.ProjectorID `json:"id"`
	BootID   string            `json:"boot_id"`
	Version  string            `json:"version"`
	Admin    string            `json:"admin"`           // advertised base URL
	KV       []string          `json:"kv"`              // host:port of the KV nodes that it streams from
	Share    string            `json:"share,omitempty"` // vbuckets that it may stream, as "0-511"; "" for all
	Cluster  string            `json:"cluster_id"`      // "" before it has registered
	Fence    Fence             `json:"fence"`           // highest fence received
	Revision uint64            `json:"revision"`        // definitions revision that all workers have in force
	// Definitions are the indexes that it evaluates, as of the newest revision it received.
	Definitions []DefinitionState `json:"definitions"`
	Buckets     []BucketState     `json:"buckets"` // ascending by name
	Topics      []TopicState      `json:"topics"`  // ascending by topic and bucket
	Counters    ProjectorCounters `json:"counters"`
	// Faults are those of the indexes with the most faults. FaultsOmitted counts the indexes left out.
	Faults        []IndexFaults `json:"faults,omitempty"`
	FaultsOmitted int           `json:"faults_omitted,omitempty"`
	// KVTroubles lists the buckets for which the KV node does not answer, ascending.
	KVTroubles []KVTrouble `json:"kv_troubles,omitempty"`
}

// DefinitionState names an index that the projector evaluates.
type DefinitionState struct {
	Index  index.ID    `json:"index"`
	Name   string      `json:"name"`
	Bucket string      `json:"bucket"`
	State  index.State `json:"state"`
}

// BucketState is the state of one bucket's maintenance streams: {vbno, seqno, vbuuid} of each vbucket, in parallel
// columns.
type BucketState struct {
	Bucket        string                  `json:"bucket"`
	BucketUUID    string                  `json:"bucket_uuid"`
	Connected     bool                    `json:"connected"` // to KV; false between a loss and the next start
	Revision      uint64                  `json:"revision"`  // definitions revision that its workers have in force
	VBuckets      []uint16                `json:"vbuckets"`
	VBUUIDs       []uint64                `json:"vbuuids"`
	Seqnos        []uint64                `json:"seqnos"`   // last seqno evaluated and routed
	Complete      []uint64                `json:"complete"` // newest seqno that ends a DCP snapshot
	Incarnations  []index.Incarnation     `json:"incarnations"`
	Ended         []bool                  `json:"ended"`
	Revisions     []timestamp.MapRevision `json:"revisions"`
	Activations   []Activation            `json:"activations"` // newest last
	HeldBytes     int64                   `json:"held_bytes"`  // received from KV and not yet acknowledged
	BufferBytes   int64                   `json:"buffer_bytes"`
	Workers       []QueueFill             `json:"workers"`                  // queued blocks of events of each worker
	PurgesUnknown string                  `json:"purges_unknown,omitempty"` // why KV's purge seqnos are unknown
}

// Columns checks that each column has a row for every vbucket. A receiver must call it before it reads the columns in
// parallel. Errors wrap ErrColumns and name the column.
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

// QueueFill is the fill of a queue.
type QueueFill struct {
	Filled int `json:"filled"`
	Limit  int `json:"limit"`
}

// TopicState is the state of an open topic and its endpoints (RT-9).
type TopicState struct {
	Topic     string          `json:"topic"`
	TopicID   uint8           `json:"topic_id"` // PR-14
	Bucket    string          `json:"bucket"`
	Indexes   []index.ID      `json:"indexes"`
	VBuckets  int             `json:"vbuckets"` // number of running streams
	Endpoints []EndpointState `json:"endpoints"`
}

// EndpointState is the state of one connection of a topic to a subscriber.
type EndpointState struct {
	Node       index.NodeID `json:"node"`
	Address    string       `json:"address"`
	Connection int          `json:"connection"`
	State      string       `json:"state"`           // connected, dialing, down
	Queue      QueueFill    `json:"queue"`           // bytes
	Dropping   int          `json:"dropping"`        // vbuckets whose data is being dropped (RT-7)
	Slow       bool         `json:"slow"`            // smart throttling has given it up for a while (RT-8)
	Error      string       `json:"error,omitempty"` // of the last failed attempt to connect
}

// TopicList answers GET /v1/topics.
type TopicList struct {
	Topics []TopicState `json:"topics"`
}

// ProjectorCounters are totals since the start of the process.
type ProjectorCounters struct {
	Mutations uint64 `json:"mutations"` // documents evaluated in all streams
	Deletions uint64 `json:"deletions"`
	Errors    uint64 `json:"errors"` // index entries left out, see IndexFaults
	Begun     uint64 `json:"begun"`  // maintenance streams, one for each vbucket and incarnation
	Ended     uint64 `json:"ended"`
}

// MaxIndexFaults bounds the indexes whose faults are reported, those with the most. The number of the others is
// reported with them.
const MaxIndexFaults = 64

// WorstFaults sorts all by the number of faults, descending, and cuts it to MaxIndexFaults. It returns the number of
// indexes left out.
func WorstFaults(all []IndexFaults) (worst []IndexFaults, omitted int) {
	slices.SortFunc(all, func(a, b IndexFaults) int {
		return cmp.Or(cmp.Compare(b.Expression+b.TooLong, a.Expression+a.TooLong), cmp.Compare(a.Index, b.Index))
	})
	n := min(len(all), MaxIndexFaults)
	return all[:n], len(all) - n
}

// IndexFaults counts documents that have no entry in an index because of an error, since the start of the process and
// in all streams. A document that is streamed again is counted again.
type IndexFaults struct {
	Index index.ID `json:"index"`
	// Expression counts entries left out because an expression failed or the value could not be decoded, TooLong those
	// left out because a key was too long.
	Expression uint64 `json:"expression"`
	TooLong    uint64 `json:"too_long"`
	// Sample is a recent one of these documents.
	Sample FaultSample `json:"sample"`
}

// FaultSample is a document for which there is no entry.
type FaultSample struct {
	DocID   string `json:"doc_id"`
	VBucket uint16 `json:"vbucket"`
	Seqno   uint64 `json:"seqno"`
	Error   string `json:"error"`
}
