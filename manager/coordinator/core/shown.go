package core

import (
	"slices"

	"tidemark/index"
	"tidemark/lifecycle"
	"tidemark/liveness"
	"tidemark/stability"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Status is the coordinator's picture of the cluster (for /v1/status, /v1/indexes and metrics), at most showEvery old,
// with many copies judgedEvery of them.
type Status struct {
	Step       string // of the start sequence: "hello", then "active"
	Term       uint64
	Projectors []ProjectorStatus // ascending by id
	Indexers   []IndexerStatus   // ascending by node
	Buckets    []BucketStatus    // ascending by name
	Progress   map[index.ID]Progress
	Proposals  int // of the coordinator's own, in flight
	ExprRules  ExprRules
	Rebalance  RebalanceProgress
}

// RebalanceProgress is how far the rebalance is that is under way.
type RebalanceProgress struct {
	ID   uint64  // 0: none
	Part float64 // 0 to 1, by bytes
	// BytesDone is what has arrived of RebalanceJob.Bytes, Moving the same of each step that is filled now, by its number.
	BytesDone uint64
	Moving    map[uint32]uint64
	// Left is how long it still takes, as a multiple of what it has taken, once LeftKnown (rebalance.Left).
	Left      float64
	LeftKnown bool
}

// ProjectorStatus is a projector as the coordinator sees it.
type ProjectorStatus struct {
	ID          index.ProjectorID
	Admin       string
	BootID      string
	Life        liveness.Life
	AgeMS       int64 // since its last sign of life
	Streams     int   // vbuckets that it owns, over all buckets
	Streamed    bool  // it owns one, or was the last that did
	Here        bool  // its KV node has vbuckets of a bucket that the state knows
	Revision    uint64
	Hello       bool
	Unreachable string                 // why it does not answer the leader, which has lasted
	Counters    wire.ProjectorCounters // since its process began
	KV          []wire.KVTrouble       // buckets about which it cannot ask its KV node
}

// IndexerStatus is an indexer as the coordinator sees it.
type IndexerStatus struct {
	Node   index.NodeID
	UUID   string
	Name   string
	Zone   string
	Going  bool   // it is to hold nothing in the end
	Bytes  uint64 // on disk, of its copies
	Weight uint32 // its capacity, at least 1
	Admin  string
	Scan   string
	BootID string
	Life   liveness.Life
	AgeMS  int64
	// OfflineSinceMS is since when it is noted as offline, by the wall clock of the leader then, unix milliseconds, 0 when
	// it is not; OfflineForMS is for how long, whoever led, and RepairInMS after how long what it has is made anew
	// elsewhere, 0: it is time; nil: it is not to be.
	OfflineSinceMS int64
	OfflineForMS   int64
	RepairInMS     *int64
	Copies         int // that it has
	// QueueBytes and QueueLimit are of its mutation queues, summed over the buckets.
	QueueBytes, QueueLimit uint64
	Health                 string
	Revision               uint64
	Hello                  bool
	Unreachable            string // why it does not answer the leader, which has lasted
	// Orphans are copies that it has and that the state does not place on it: the oldest of OrphanCount.
	Orphans     []wire.Orphan
	OrphanCount int
	// Differing counts its copies that differ from the KV data, DifferingOmitted those of them of which it tells nothing
	// more.
	Differing, DifferingOmitted int
	// Evicting says that it is being removed; Placed is how many copies have still their place on it, and Waits why it
	// does not go on.
	Evicting bool
	Placed   int
	Waits    string
}

// BucketStatus is a bucket as the coordinator sees it.
type BucketStatus struct {
	Name       string
	UUID       string
	VBuckets   int
	Generation uint64
	Wanted     bool
	Number     uint64 // of the newest stability timestamp
	Hash       uint64
	Streams    streams.Summary
	Lagging    []index.NodeID // indexers that promotion does not wait for
	Waiting    int            // scans that wait for a stability timestamp
	AgeMS      *int64         // of the newest stability timestamp; nil: there is none
	Lag        uint64         // complete seqnos above it, over all vbuckets
	Rollback   string         // step, or why the bucket has to be rolled back; empty: all is well
	// RollbackSinceMS is when this leader saw the rollback's step begin, unix milliseconds, 0 without one; RollbackWaits
	// names the projectors and indexers whose answers the step waits for.
	RollbackSinceMS int64
	RollbackForMS   int64 // how long that is ago
	RollbackWaits   []string
}

// Progress of an index: of its build, and what its copies hold.
type Progress struct {
	Done, Total uint64 // seqnos of side streams, over all copies
	Items       uint64 // entries, of one copy of each slice
	Slices      int    // of which a copy is told of, and so counts in Items
	Bytes       uint64 // on disk, of all copies
	Ready       int    // copies that are exact
	Copies      int
	Errors      []string // of its copies, at most maxErrors, and how many more there are
	// Availability says how much of it can be scanned, since SinceMS (unix milliseconds, of this leader's clock) and Why
	// not all; none unless it is ready.
	Availability lifecycle.Availability
	Why          string
	SinceMS      int64
	// SplitWaits is why it is not split by itself, though a slice of it is above its bounds; "" when none is.
	SplitWaits string
	// MergeWaits is why slices of it are not merged by themselves, though they have been small and cold for long.
	MergeWaits string
	// Faults sums up what projectors and indexers tell of documents that have no entry because of an error; its sample is
	// one's.
	Faults wire.IndexFaults
	// FaultsIncomplete: a component counts faults of more indexes than it tells, and of this one it tells none.
	FaultsIncomplete bool
}

const (
	showEvery = 100 // ms
	maxErrors = 4
)

// Percent of the build, 0 to 100; READY is 100, and nothing else is.
func (p Progress) Percent(state index.State) float64 {
	switch {
	case state == index.Maintenance:
		return 100
	case state != index.Backfill || p.Copies == 0:
		return 0
	case p.Total > 0:
		return 99 * float64(min(p.Done, p.Total)) / float64(p.Total)
	}
	return 99 * float64(p.Ready) / float64(p.Copies)
}

// Offline reports what a picture says of an indexer; one that is not in it yet counts as alive.
func (s *Status) Offline(node index.NodeID) bool {
	if s == nil {
		return false
	}
	i := slices.IndexFunc(s.Indexers, func(n IndexerStatus) bool { return n.Node == node })
	return i >= 0 && s.Indexers[i].Life == liveness.Offline
}

// Seen is the indexer's life as users are to see it: one that was offline for the leader before stays so until it has
// answered this one.
func (i *IndexerStatus) Seen() liveness.Life {
	if i.OfflineSinceMS != 0 && !i.Hello {
		return liveness.Offline
	}
	return i.Life
}

// Away reports whether a picture says of an indexer that nothing is to be placed on it, as scene.away does.
func (s *Status) Away(node index.NodeID) bool {
	if s == nil {
		return false
	}
	i := slices.IndexFunc(s.Indexers, func(n IndexerStatus) bool { return n.Node == node })
	if i < 0 {
		return false
	}
	n := &s.Indexers[i]
	return n.Seen() == liveness.Offline || !n.Hello && n.Life == liveness.Suspect
}

// EvictionWaits returns why the removal of an indexer does not go on, as a picture has it.
func (s *Status) EvictionWaits(node index.NodeID) string {
	if s != nil {
		for i := range s.Indexers {
			if s.Indexers[i].Node == node {
				return s.Indexers[i].Waits
			}
		}
	}
	return ""
}

// BucketView is what only the leader knows of a bucket: its streams, and what its next stability timestamp waits for.
type BucketView struct {
	Name       string
	Generation uint64
	Wanted     bool            // it has an index that needs its streams
	Entries    []streams.Entry // by vbucket
	Summary    streams.Summary
	// Current are the newest complete seqnos of the streams, 0 where none is known.
	Current      timestamp.Vector
	AgeMS        *int64 // see BucketStatus
	Participants []stability.Participant
	Source       stability.Source
	Waiting      int    // scans that wait for a stability timestamp
	Diverged     string // why the bucket has to be rolled back, "" when it has not
}
