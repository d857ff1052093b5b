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

// Input is something that comes in for a Leader: one of the types of this file. take.go says which part takes it over;
// the duties that follow every input (Leader.Step) act on it.
type Input interface{ input() }

// Now is what the world is like at a step.
type Now struct {
	MS     int64 // of a clock that never jumps
	WallMS int64 // unix milliseconds
	// StateMS is the state's time of now, as a command would be stamped: ages that outlive a leader go by it.
	StateMS int64
	State   *statecontext.State
}

// Time, and the replicated state.
type (
	// Tick lets time alone move what it moves. Left are requests whose callers no longer wait.
	Tick struct{ Left []*Stabilize }
	// Woken follows Wake.
	Woken struct{}
	// Changed says that the replicated state has changed.
	Changed struct{}
	// Committed says the same of a change that somebody waits for: it is looked at at once.
	Committed struct{}
)

// What components say of themselves. What is asked for at Reply, a channel with room for it, is answered in the step.
type (
	// ProjectorReported is a projector's level state.
	ProjectorReported struct {
		Report *wire.ProjectorReport
		Reply  chan *wire.ReportReply
	}
	// IndexerReported is an indexer's level state.
	IndexerReported struct {
		Report *wire.IndexerReport
		Reply  chan *wire.ReportReply
	}
	// Registering asks whether a former process of this identity was heard lately and is still alive. One that listens at
	// the former's address is its successor, however soon: two processes cannot listen there at once.
	Registering struct {
		UUID       string            // of an indexer, or
		Projector  index.ProjectorID // a projector
		Boot, Addr string
		Reply      chan error
	}
	// Registered asks for what was registered to be taken over, and for the answer.
	Registered struct {
		IsNode    bool
		Node      index.NodeID
		Projector index.ProjectorID
		Boot      string
		Reply     chan *wire.RegisterReply
	}
)

// Answers of components: what came of a Tell. Err is nil where there is an answer.
type (
	// ProjectorGreeted answers Greet.
	ProjectorGreeted struct {
		Greet
		From   Receiver
		Answer *wire.ProjectorHello
		Err    error
	}
	// IndexerGreeted answers Greet.
	IndexerGreeted struct {
		Greet
		From   Receiver
		Answer *wire.IndexerHello
		Err    error
	}
	// Handed answers Push: the revision that was handed over, and the one that the component works with.
	Handed struct {
		From          Receiver
		Addr          string
		Handed, Acked uint64
		Unasked       bool // with Err: it was not asked, as this leader could not make sure that it leads
		Err           error
	}
	// Probed answers Probe. Refused: nobody listens at the address.
	Probed struct {
		Probe
		From    Receiver
		Refused bool
	}
	// LogsTold answers AskLogs.
	LogsTold struct {
		AskLogs
		Logs []streams.Log
		Err  error
	}
	// StreamsStarted answers StartStreams.
	StreamsStarted struct {
		StartStreams
		Results []streams.Started
	}
	// BucketChecked answers CheckBucket. Unknown: the KV node says that it has no such bucket.
	BucketChecked struct {
		CheckBucket
		Found   *wire.BucketReply // nil with an error
		Unknown bool
		Err     error
	}
	// Synced answers AskSync. Only complete seqnos count: it stands outside the order of reports.
	Synced struct {
		AskSync
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

// SplitTried answers BeginSplit: Err is nil when it has begun.
type SplitTried struct {
	Index index.ID
	Err   error
}

// RepairPlanned answers PlanRepair.
type RepairPlanned struct {
	Plan *rebalance.Plan
	Err  error
}

// Requests of whoever serves users. Reply has room for the answer, which may come in a later step for Stabilize only.
type (
	// Stabilize is a scan that waits for a stability timestamp at or above Need.
	Stabilize struct {
		Bucket string
		Need   timestamp.Vector
		Reply  chan Stabilized
		judged timestamp.Ref // for which it was looked whether something is lost
		cameMS int64
		left   bool // nobody waits any more
		// unknown: it needs branches that neither the newest stability timestamp nor the streams that run know.
		unknown bool
	}
	// ViewQuery asks for a bucket's view; nil where there is no such bucket.
	ViewQuery struct {
		Bucket string
		Reply  chan *BucketView
	}
	// CopiesQuery asks what indexers have last reported of copies.
	CopiesQuery struct {
		All   []partition.Copy
		Reply chan map[index.CopyID]wire.CopyReport
	}
	// ClusterQuery asks what a plan is made of.
	ClusterQuery struct {
		State *statecontext.State // a rehearsal's; nil: the newest
		Reply chan *rebalance.Cluster
	}
	// LackingQuery asks for the slices of an index that would have no whole copy without some replicas.
	LackingQuery struct {
		Index *statecontext.Index
		Drop  []partition.Replica
		Reply chan Lacking
	}
	// WholeQuery asks which copies of ready indexes that a node has copies of are not whole for another reason than a
	// move, or maybe not: placed by an ALTER INDEX or a removal, they are allocated before anything is in them.
	WholeQuery struct {
		State *statecontext.State
		Node  index.NodeID
		Reply chan Others
	}
	// Placing asks where the copies of a new index go, or, of a definition that has an id, those of its successor.
	Placing struct {
		Definition *index.Definition
		State      *statecontext.State // a rehearsal's, which has the load itself: nothing is reserved; nil: the newest
		Reply      chan Placed
	}
	// Settled is the outcome of the statement for which places were chosen.
	Settled struct {
		Reservation *Reservation
		CAS         uint64
		Err         error
	}
	// BuildBegun says that a traced statement has begun to build indexes.
	BuildBegun struct {
		Build uint64
		IDs   []index.ID
	}
)

// Lacking answers LackingQuery: slices without a whole copy, and those of which that is not known.
type Lacking struct{ Slices, Unsure []index.SliceID }

// Others answers WholeQuery. It says of copies elsewhere that they do not count: they are not whole, as they are being
// filled, or maybe not.
type Others struct {
	filling, unsure map[index.CopyID]bool
	Offline, Silent bool // the node itself; Silent: a leader that has just begun does not know yet
}

// Stabilized answers Stabilize.
type Stabilized struct {
	Stability wire.BucketStability
	Err       error
}

func (Tick) input()               {}
func (Woken) input()              {}
func (Changed) input()            {}
func (Committed) input()          {}
func (*ProjectorReported) input() {}
func (*IndexerReported) input()   {}
func (*Registering) input()       {}
func (*Registered) input()        {}
func (*ProjectorGreeted) input()  {}
func (*IndexerGreeted) input()    {}
func (*Handed) input()            {}
func (*Probed) input()            {}
func (*LogsTold) input()          {}
func (*StreamsStarted) input()    {}
func (*BucketChecked) input()     {}
func (*Synced) input()            {}
func (*Polled) input()            {}
func (*RolledBack) input()        {}
func (*OrphansDropped) input()    {}
func (*Proposed) input()          {}
func (*SplitTried) input()        {}
func (*RepairPlanned) input()     {}
func (*Stabilize) input()         {}
func (*ViewQuery) input()         {}
func (*CopiesQuery) input()       {}
func (*ClusterQuery) input()      {}
func (*LackingQuery) input()      {}
func (*WholeQuery) input()        {}
func (*Placing) input()           {}
func (*Settled) input()           {}
func (*BuildBegun) input()        {}
