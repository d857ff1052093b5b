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

// StepActive is the step of a coordinator that has taken over.
const StepActive = "active"

// Status is the coordinator's picture of the cluster (for /v1/status, /v1/indexes and metrics). It is at most
// showEvery old, with many copies at most judgedEvery of them.
type Status struct {
	Step       string // of the start sequence: "hello", then StepActive
	Term       uint64
	Projectors []ProjectorStatus // ascending by id
	Indexers   []IndexerStatus   // ascending by node
	Buckets    []BucketStatus    // ascending by name
	Progress   map[index.ID]Progress
	Proposals  int // of the coordinator's own, in flight
	ExprRules  ExprRules
	Rebalance  RebalanceProgress
}

// RebalanceProgress is the progress of the running rebalance.
type RebalanceProgress struct {
	ID   uint64  // 0: none
	Part float64 // 0 to 1, by bytes
	// BytesDone is the part of RebalanceJob.Bytes that has arrived; Moving holds the same for each step that is being
	// filled, by number.
	BytesDone uint64
	Moving    map[uint32]uint64
	// Left is the remaining time as a multiple of the elapsed time, valid if LeftKnown is set (rebalance.Left).
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
	Streams     int   // vbuckets that it streams, over all buckets
	Streamed    bool  // it streams a vbucket, or was the last that did
	Here        bool  // its KV node has vbuckets of a bucket that the state knows
	Revision    uint64
	Hello       bool
	Unreachable string                 // why it does not answer the leader, once that has lasted
	Counters    wire.ProjectorCounters // since its process began
	KV          []wire.KVTrouble       // buckets about which its KV node cannot be queried
	Unreached   []UnreachedPort        // data ports of live indexers that it cannot reach
}

// UnreachedPort is a data port of a live indexer that a projector cannot reach.
type UnreachedPort struct {
	wire.Unreached
	Indexer string // its name
	Port    string // what it serves: maintenance, backfill or catchup
}

// IndexerStatus is an indexer as the coordinator sees it.
type IndexerStatus struct {
	Node   index.NodeID
	UUID   string
	Name   string
	Zone   string
	Going  bool   // it is to give up all its copies
	Bytes  uint64 // on disk, of its copies
	Weight uint32 // its capacity, at least 1
	Admin  string
	Scan   string
	BootID string
	Life   liveness.Life
	AgeMS  int64
	// OfflineSinceMS is when it was recorded as offline, by the wall clock of the leader at that time, in unix
	// milliseconds; 0 if it is not. OfflineForMS is for how long, over all terms. RepairInMS is the time until its
	// copies are made anew elsewhere; 0: now; nil: never.
	OfflineSinceMS int64
	OfflineForMS   int64
	RepairInMS     *int64
	Copies         int // on the indexer
	// QueueBytes and QueueLimit are summed over the mutation queues of all buckets.
	QueueBytes, QueueLimit uint64
	Health                 string
	Revision               uint64
	Hello                  bool
	Unreachable            string // why it does not answer the leader, once that has lasted
	// Orphans holds the oldest of its OrphanCount copies that the state does not place on it.
	Orphans     []wire.Orphan
	OrphanCount int
	// Differing counts its copies that differ from the KV data; DifferingOmitted counts those of them that its report
	// does not list.
	Differing, DifferingOmitted int
	// Evicting is set while it is being removed; Placed is then the number of copies still placed on it, and Waits the
	// reason why the removal is stuck.
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
	Lagging    []index.NodeID // indexers for which promotion does not wait
	Waiting    int            // scans that wait for a stability timestamp
	AgeMS      *int64         // of the newest stability timestamp; nil: there is none
	Lag        uint64         // complete seqnos above the newest timestamp, over all vbuckets
	Rollback   string         // the step, or why a rollback is needed; empty: none
	// RollbackSinceMS is when this leader saw the rollback's step begin, in unix milliseconds, 0 if there is
	// none; RollbackWaits names the projectors and indexers whose answers the step waits for.
	RollbackSinceMS int64
	RollbackForMS   int64 // how long ago that was
	RollbackWaits   []string
}

// Progress describes the build of an index and the contents of its copies.
type Progress struct {
	Done, Total uint64 // seqnos of side streams, over all copies
	Items       uint64 // entries, of one copy per slice
	Slices      int    // slices with a reported copy, counted in Items
	Bytes       uint64 // on disk, of all copies
	Ready       int    // exact copies
	Copies      int
	Errors      []string // of its copies, at most maxErrors, then the number of others
	// Availability is how much of a ready index can be scanned, since SinceMS (unix milliseconds, by this leader's clock)
	// and for ForMS, which no change of the wall clock affects. Why is the reason if not all of it can. In other states
	// it is none.
	Availability lifecycle.Availability
	Why          string
	SinceMS      int64
	ForMS        int64
	// SplitWaits is why the index is not split automatically although a slice exceeds a limit; "" if none does.
	SplitWaits string
	// MergeWaits is why its slices are not merged automatically although they have been small and cold for long.
	MergeWaits string
	// Faults sums up the reports of documents that have no entry because of an error; its sample is from one of them.
	Faults wire.IndexFaults
	// FaultsIncomplete is set if a component counts faults of more indexes than it lists, and does not list this one.
	FaultsIncomplete bool
}

const (
	showEvery = 100 // ms
	maxErrors = 4
)

// Percent returns the progress of the build, 0 to 100. It is 100 only for a ready index.
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

// Offline reports whether an indexer is offline; one that is not in the picture yet counts as alive.
func (s *Status) Offline(node index.NodeID) bool {
	if s == nil {
		return false
	}
	i := slices.IndexFunc(s.Indexers, func(n IndexerStatus) bool { return n.Node == node })
	return i >= 0 && s.Indexers[i].Life == liveness.Offline
}

// Seen returns the life to show to users: an indexer that was offline for the previous leader stays offline until it
// has answered this one.
func (i *IndexerStatus) Seen() liveness.Life {
	if i.OfflineSinceMS != 0 && !i.Hello {
		return liveness.Offline
	}
	return i.Life
}

// Away reports whether no copies may be placed on an indexer, like scene.away.
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

// EvictionWaits returns why the removal of an indexer is stuck, "" if it is not.
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

// BucketView is the leader's view of a bucket: its streams, and what its next stability timestamp waits for.
type BucketView struct {
	Name       string
	Generation uint64
	Wanted     bool            // it has an index that needs its streams
	Entries    []streams.Entry // by vbucket
	Summary    streams.Summary
	// Current holds the newest complete seqnos of the streams, 0 if unknown.
	Current      timestamp.Vector
	AgeMS        *int64 // see BucketStatus
	Participants []stability.Participant
	Source       stability.Source
	Waiting      int    // scans that wait for a stability timestamp
	Diverged     string // why the bucket must be rolled back, "" if it need not be
}
