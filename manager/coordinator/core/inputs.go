package core

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/rollback"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Input is an event for a Leader: one of the types of this file. take.go routes it to a part of the Leader; the
// duties that follow every input (Leader.Step) act on it.
type Input interface{ input() }

// Now is the time and the replicated state at a step.
type Now struct {
	MS     int64 // of a monotonic clock
	WallMS int64 // unix milliseconds
	// StateMS is the present state time, as stamped on commands; ages that outlive a leader are measured by it.
	StateMS int64
	State   *statecontext.State
}

// Time, and the replicated state.
type (
	// Tick triggers what is due by time. Left holds requests whose callers no longer wait.
	Tick struct{ Left []*Stabilize }
	// Woken follows Wake.
	Woken struct{}
	// Changed reports that the replicated state has changed.
	Changed struct{}
	// Committed reports a change for which a caller waits: it is taken over at once.
	Committed struct{}
)

// Reports and registrations of components. The step answers at Reply, a channel with room for the answer.
type (
	// ProjectorReported carries a projector's full state, or its changes.
	ProjectorReported struct {
		Report *wire.ProjectorReport
		Reply  chan *wire.ReportReply
	}
	// IndexerReported carries an indexer's full state, or its changes.
	IndexerReported struct {
		Report *wire.IndexerReport
		Reply  chan *wire.ReportReply
	}
	// Registering checks whether another process with this identity is still alive. A process at the same address is
	// always accepted as the successor of the old one: two processes cannot listen there at once.
	Registering struct {
		UUID       string            // of an indexer; or
		Projector  index.ProjectorID // a projector
		Boot, Addr string
		Reply      chan error
	}
	// Registered requests that the Leader take over a registration, and the reply to it.
	Registered struct {
		IsNode    bool
		Node      index.NodeID
		Projector index.ProjectorID
		Boot      string
		Reply     chan *wire.RegisterReply
	}
)

// Answers of components: the outcome of a Send. Err is nil if there is an answer.
type (
	// ProjectorHelloAnswered answers Hello.
	ProjectorHelloAnswered struct {
		Hello
		From   Receiver
		Answer *wire.ProjectorHello
		Err    error
	}
	// IndexerHelloAnswered answers Hello.
	IndexerHelloAnswered struct {
		Hello
		From   Receiver
		Answer *wire.IndexerHello
		Err    error
	}
	// Handed answers Push with the revision that was sent and the one that the component works with.
	Handed struct {
		From          Receiver
		Addr          string
		Handed, Acked uint64
		Unasked       bool // with Err: nothing was sent, as this leader could not verify that it leads
		Err           error
	}
	// Probed answers Probe. Refused means that nothing listens at the address.
	Probed struct {
		Probe
		From    Receiver
		Refused bool
	}
	// LogsFetched answers FetchLogs.
	LogsFetched struct {
		FetchLogs
		Logs []streams.Log
		Err  error
	}
	// StreamsStarted answers StartStreams.
	StreamsStarted struct {
		StartStreams
		Results []streams.Started
	}
	// BucketChecked answers CheckBucket. Unknown means that the KV node has no such bucket.
	BucketChecked struct {
		CheckBucket
		Found   *wire.BucketReply // nil with an error
		Unknown bool
		Err     error
	}
	// Synced answers RequestSync. Only its complete seqnos are used, as it is not part of the sequence of reports.
	Synced struct {
		RequestSync
		From   Receiver
		Report *wire.ProjectorReport
		Err    error
	}
	// Polled answers Poll.
	Polled struct {
		Poll
		Positions []streams.Position
	}
	// RolledBack answers RollBack.
	RolledBack struct {
		RollBack
		Reply rollback.Reply
	}
	// OrphansDropped answers DropOrphans.
	OrphansDropped struct {
		From    Receiver
		Name    string
		Dropped []wire.OrphanRef
		Err     error
	}
)

// Proposed is the outcome of a Propose.
type Proposed struct {
	Key    string
	Result statecontext.Result
	Err    error
}

// SplitTried answers BeginSplit: Err is nil if the split has begun.
type SplitTried struct {
	Index index.ID
	Err   error
}

// RepairPlanned answers PlanRepair.
type RepairPlanned struct {
	Plan *rebalance.Plan
	Err  error
}

// Requests on behalf of users. Reply has room for the answer; only that to Stabilize may come in a later step.
type (
	// Stabilize is a scan that waits for a stability timestamp at or above Need.
	Stabilize struct {
		Bucket string
		Need   timestamp.Vector
		Reply  chan Stabilized
		judged timestamp.Ref // the timestamp against which Need was last checked for lost branches
		cameMS int64
		left   bool // the caller no longer waits
		// unknown means that it needs branches that neither the newest stability timestamp nor the running streams contain.
		unknown bool
	}
	// ViewQuery requests a bucket's view; nil if there is no such bucket.
	ViewQuery struct {
		Bucket string
		Reply  chan *BucketView
	}
	// CopiesQuery requests the newest reports of copies.
	CopiesQuery struct {
		All   []partition.Copy
		Reply chan map[index.CopyID]wire.CopyReport
	}
	// ClusterQuery requests the input for planning.
	ClusterQuery struct {
		State *statecontext.State // of a rehearsal; nil: the newest
		Reply chan *rebalance.Cluster
	}
	// LackingQuery requests the slices of an index that would have no whole copy without some replicas.
	LackingQuery struct {
		Index *statecontext.Index
		Drop  []partition.Replica
		Reply chan Lacking
	}
	// WholeQuery queries which copies of ready indexes on a node are not whole, or possibly not, for another reason than a
	// move: copies placed by ALTER INDEX or a removal are allocated before they are filled.
	WholeQuery struct {
		State *statecontext.State
		Node  index.NodeID
		Reply chan Others
	}
	// Placing requests places for the copies of a new index, or, if the definition has an id, for those of its
	// successor.
	Placing struct {
		Definition *index.Definition
		State      *statecontext.State // of a rehearsal, which has the load itself: nothing is reserved; nil: the newest
		Reply      chan Placed
	}
	// Settled reports the outcome of the statement for which places were chosen.
	Settled struct {
		Reservation *Reservation
		CAS         uint64
		Err         error
	}
	// BuildBegun reports that a traced statement has begun to build indexes.
	BuildBegun struct {
		Build uint64
		IDs   []index.ID
	}
)

// Lacking answers LackingQuery: slices without a whole copy, and slices for which that is not known.
type Lacking struct{ Slices, Unsure []index.SliceID }

// Others answers WholeQuery: copies on other nodes that do not count, because they are not whole (filling) or
// possibly not (unsure).
type Others struct {
	filling, unsure map[index.CopyID]bool
	Offline, Silent bool // the node itself; Silent: it has not reported to this leader yet
}

// Stabilized answers Stabilize.
type Stabilized struct {
	Stability wire.BucketStability
	Err       error
}

func (Tick) input()                    {}
func (Woken) input()                   {}
func (Changed) input()                 {}
func (Committed) input()               {}
func (*ProjectorReported) input()      {}
func (*IndexerReported) input()        {}
func (*Registering) input()            {}
func (*Registered) input()             {}
func (*ProjectorHelloAnswered) input() {}
func (*IndexerHelloAnswered) input()   {}
func (*Handed) input()                 {}
func (*Probed) input()                 {}
func (*LogsFetched) input()            {}
func (*StreamsStarted) input()         {}
func (*BucketChecked) input()          {}
func (*Synced) input()                 {}
func (*Polled) input()                 {}
func (*RolledBack) input()             {}
func (*OrphansDropped) input()         {}
func (*Proposed) input()               {}
func (*SplitTried) input()             {}
func (*RepairPlanned) input()          {}
func (*Stabilize) input()              {}
func (*ViewQuery) input()              {}
func (*CopiesQuery) input()            {}
func (*ClusterQuery) input()           {}
func (*LackingQuery) input()           {}
func (*WholeQuery) input()             {}
func (*Placing) input()                {}
func (*Settled) input()                {}
func (*BuildBegun) input()             {}
