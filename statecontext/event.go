package statecontext

import (
	"tidemark/index"
	"tidemark/partition"
)

// EventKind is the subject of an event; its text is the value that ?kinds= of the event stream takes.
type EventKind string

// The kinds of events.
const (
	EventCluster   EventKind = "cluster"   // id, epoch, format level, limits: Cluster
	EventLeader    EventKind = "leader"    // a term began: Name is the manager's id, Number the term
	EventManager   EventKind = "manager"   // Name is the id; Manager
	EventProjector EventKind = "projector" // Name is the id; Projector
	EventIndexer   EventKind = "indexer"   // Name is the uuid, Node the number; Indexer
	// Name is the bucket, Number the generation; UUID, VBuckets, StabilitySource; Removed: it is gone
	EventBucket    EventKind = "bucket"
	EventIndex     EventKind = "index"     // Index, Name, Bucket; Definition, Was
	EventTopology  EventKind = "topology"  // Index, Name, Bucket; Topology
	EventStability EventKind = "stability" // Bucket; Number of the stability timestamp
	EventBackfill  EventKind = "backfill"  // Bucket: its backfill timestamp moved
	EventRollback  EventKind = "rollback"  // Bucket, Number is the rollback id, Step
	EventRebalance EventKind = "rebalance" // Number is its id; Rebalance, or RebalanceStep
	// Index, Name, Bucket, Node; Difference; Removed: the copy is right again, or is no more
	EventDifference EventKind = "difference"
	// Name is the user of a console session that has begun; Removed: that has ended
	EventSession EventKind = "session"
)

// EventKinds lists all kinds. A new one is added at the end.
func EventKinds() []EventKind {
	return []EventKind{EventCluster, EventLeader, EventManager, EventProjector, EventIndexer, EventBucket, EventIndex,
		EventTopology,
		EventStability, EventBackfill, EventRollback, EventRebalance, EventDifference, EventSession}
}

// Loud reports whether events of the kind may be so frequent that they would displace others: several per second and
// bucket while there are writes, or as often as a user without other rights likes. A watcher receives such a kind
// only if it requests it, loud events do not push others out of the history, and an update has either only loud
// events or none.
func (k EventKind) Loud() bool { return k == EventStability || k == EventBackfill || k == EventSession }

// Event describes what an update changed. One update has one cas and may have several events. Losing an event loses
// no information, because its consumers read the state. The objects are those of the update, nil for a removal; they
// are shared and must not be modified. Events never hold vectors, because thousands of events may be kept.
type Event struct {
	CAS    uint64    `json:"cas"`
	TimeMS int64     `json:"time_ms"` // by the leader's wall clock at that time, unix milliseconds
	Kind   EventKind `json:"kind"`
	// By is the principal that requested the update; "" if the cluster made it by itself.
	By      string `json:"by,omitempty"`
	Removed bool   `json:"removed,omitempty"`
	// Restored is set with EventCluster: everything may have changed, and consumers must read the state again.
	Restored bool         `json:"restored,omitempty"`
	Name     string       `json:"name,omitempty"`
	Bucket   string       `json:"bucket,omitempty"`
	Index    index.ID     `json:"index,omitempty"`
	Node     index.NodeID `json:"node,omitempty"`
	Number   uint64       `json:"number,omitempty"`
	Step     RollbackStep `json:"step,omitempty"`
	// Was is the state before the update, 0 for a new index.
	Was        index.State         `json:"was,omitempty"`
	Definition *index.Definition   `json:"definition,omitempty"`
	Topology   *partition.Topology `json:"topology,omitempty"`
	Manager    *Manager            `json:"manager,omitempty"`
	Projector  *Projector          `json:"projector,omitempty"`
	Indexer    *Indexer            `json:"indexer,omitempty"`
	Going      bool                `json:"going,omitempty"` // with an indexer: it is being emptied
	Rebalance  *RebalanceJob       `json:"rebalance,omitempty"`
	// RebalanceStep is the step that has advanced, if the event is not about the rebalance as a whole.
	RebalanceStep *partition.Rebalance `json:"rebalance_step,omitempty"`
	Difference    *DifferingCopy       `json:"difference,omitempty"`
	UUID          string               `json:"uuid,omitempty"`
	VBuckets      int                  `json:"vbuckets,omitempty"`
	Cluster       *Cluster             `json:"cluster,omitempty"`
	// StabilitySource is the setting of a bucket; empty if the leader's configuration applies.
	StabilitySource string `json:"stability_source,omitempty"`
}

// Cluster holds the settings of the cluster as a whole.
type Cluster struct {
	ID          string `json:"id"`
	Epoch       uint64 `json:"epoch"`
	FormatLevel uint64 `json:"format_level"`
	Limits      Limits `json:"limits"`
}

// Cluster returns the settings of the cluster as a whole. The result is a copy.
func (s *State) Cluster() *Cluster {
	return &Cluster{ID: s.clusterID, Epoch: s.epoch, FormatLevel: s.formatLevel, Limits: s.limits}
}
