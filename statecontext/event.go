package statecontext

import (
	"tidemark/index"
	"tidemark/partition"
)

// EventKind is what an event is about; its text is what ?kinds= of the event stream takes.
type EventKind string

// The kinds of events.
const (
	EventCluster   EventKind = "cluster"   // id, epoch, format level, limits
	EventLeader    EventKind = "leader"    // a term began
	EventManager   EventKind = "manager"   // Name is the id
	EventProjector EventKind = "projector" // Name is the id
	EventIndexer   EventKind = "indexer"   // Name is the uuid, Node the number
	EventBucket    EventKind = "bucket"    // Name is the bucket
	EventIndex     EventKind = "index"     // Index, Name, Bucket, Definition
	EventTopology  EventKind = "topology"  // Index, Name, Bucket, Topology
	EventStability EventKind = "stability" // Bucket, Number
	EventBackfill  EventKind = "backfill"  // Bucket: its backfill timestamp moved
	EventRollback  EventKind = "rollback"  // Bucket, Number is the rollback id, Step
)

// Event tells what an update changed. One update has one cas and may have several events; a lost event loses nothing,
// because whoever acts on one reads the state. Definition and Topology are those of the update, nil for a removal; they
// are shared and must not be changed. Vectors are never held by events: thousands of events may be kept.
type Event struct {
	CAS        uint64              `json:"cas"`
	Kind       EventKind           `json:"kind"`
	Removed    bool                `json:"removed,omitempty"`
	Restored   bool                `json:"restored,omitempty"` // kind cluster: everything may have changed; read the state anew
	Name       string              `json:"name,omitempty"`
	Bucket     string              `json:"bucket,omitempty"`
	Index      index.ID            `json:"index,omitempty"`
	Node       index.NodeID        `json:"node,omitempty"`
	Number     uint64              `json:"number,omitempty"`
	Step       RollbackStep        `json:"step,omitempty"`
	Definition *index.Definition   `json:"definition,omitempty"`
	Topology   *partition.Topology `json:"topology,omitempty"`
}
