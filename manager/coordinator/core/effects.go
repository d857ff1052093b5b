package core

import (
	"time"

	"tidemark/index"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// This file lists all that a step can want done, and inputs.go all that can come in.

// Effect is something that a step of a Leader wants done: one of the types of this file. Whoever drives the Leader
// carries effects out in their order; none of them is waited for within a step.
type Effect interface{ effect() }

type (
	// Open makes a receiver known: a process of a projector or an indexer, at one address. Its fences go on from those of
	// Instead, which ends, and begin with Fence where Instead is 0.
	Open struct {
		To, Instead Receiver
		Projector   bool
		Name, Addr  string
		Fence       wire.Fence
	}
	// Close ends a receiver: nothing more is told to it.
	Close struct{ To Receiver }
	// Tell has something said to a receiver, by one of its lanes. The answer, or that there is none, comes back as an
	// input. A later Tell with the same key takes the place of one that still waits; "" never does, but of the starts of
	// streams that wait those go that are made anew.
	Tell struct {
		To   Receiver
		Lane Lane
		Key  string
		Say  Message
	}
	// Propose has a command of the coordinator's own proposed; Proposed comes back.
	Propose struct {
		Key    string
		Body   statecontext.Body
		Traced bool // it is part of what is done for an index that is built
	}
	// BeginSplit has a split begun that nobody asked for, of an index that is still as it was; SplitTried comes back.
	BeginSplit struct {
		rebalance.Split
		IfModified uint64
	}
	// PlanRepair has it planned where copies go that were lost, which may take long; RepairPlanned comes back.
	PlanRepair struct{ Cluster *rebalance.Cluster }
	// Wake asks for the input Woken after a time that is shorter than a tick.
	Wake struct{ After time.Duration }
	// Describe has the definitions of a state kept, so that changes since it can be told.
	Describe struct{ State *statecontext.State }
	// Show is the newest picture for those who look.
	Show struct{ Status *Status }
	// Stage says that a traced build has entered a stage.
	Stage struct {
		Build uint64
		Name  string
	}
	// BuildOver ends a traced build.
	BuildOver struct {
		Build uint64
		Err   error
	}
	// Anew ends the term's Leader: the state was restored, and its duties begin anew.
	Anew struct{}
	// Answer hands the answer to a request to who asked.
	Answer interface {
		Effect
		// Deliver does so; present returns the newest fence that was handed out for a receiver.
		Deliver(present func(Receiver) wire.Fence)
	}
)

func (Open) effect()       {}
func (Close) effect()      {}
func (Tell) effect()       {}
func (Propose) effect()    {}
func (BeginSplit) effect() {}
func (PlanRepair) effect() {}
func (Wake) effect()       {}
func (Describe) effect()   {}
func (Show) effect()       {}
func (Stage) effect()      {}
func (BuildOver) effect()  {}
func (Anew) effect()       {}

// Receiver names an Open of this term.
type Receiver uint64

// Lane is one of a receiver's ways: each has a bounded queue, and what is told by one waits for nothing that is told by
// another.
type Lane uint8

// The lanes.
const (
	Control Lane = iota // hello, definitions, orphans
	// Commands are of several buckets at a time, those of one bucket in order: KV may be silent about one, or an indexer
	// restore it for a minute.
	Commands
	Syncs // fresh reports for scans that wait
	// Questions are about what a projector's KV node says. None waits for another, nor for what the projector is to do:
	// the node may hang.
	Questions
	Checks  // of what a projector's KV node says of buckets: as many as there are
	Publish // stability timestamps
)

// Lanes lists those that a receiver has.
func (o Open) Lanes() []Lane {
	if o.Projector {
		return []Lane{Control, Commands, Syncs, Questions, Checks}
	}
	return []Lane{Control, Commands, Publish}
}

// Message is what a Tell says: one of the types below. gateway.go sends them.
type Message interface{ message() }

// To both kinds of component.
type (
	// Greet asks what runs; answered by ProjectorGreeted or IndexerGreeted.
	Greet struct {
		Projector index.ProjectorID
		Node      index.NodeID
	}
	// Push hands over the newest definitions: what has changed since Base, where that is known. Handed answers.
	Push struct{ Base uint64 }
)

// To projectors.
type (
	// Probe asks whether the process lives; Probed answers.
	Probe struct {
		Projector index.ProjectorID
		Bucket    string
	}
	// AskLogs asks for failover logs, of all vbuckets where none is named; LogsTold answers.
	AskLogs struct {
		Projector index.ProjectorID
		Bucket    BucketRef
		VBuckets  []uint16
		For       Purpose
	}
	// StartStreams asks for streams; Started answers where the outcome is known.
	StartStreams struct {
		Projector   index.ProjectorID
		Bucket      BucketRef
		UUID        string
		Incarnation index.Incarnation
		Starts      []streams.Start
	}
	// StopStreams ends streams. Nothing answers: reports tell.
	StopStreams struct {
		Bucket      BucketRef
		VBuckets    []uint16
		Incarnation index.Incarnation
	}
	// CheckBucket asks whether a bucket is what it was; BucketChecked answers.
	CheckBucket struct {
		Projector    index.ProjectorID
		Bucket, UUID string
		// Collections asks for the bucket's collections, too.
		Collections bool
	}
	// AskSync asks for a fresh report, once what is wanted is there; Synced answers.
	AskSync struct {
		Projector index.ProjectorID
		Bucket    BucketRef
		Want      []uint64
	}
)

// To indexers.
type (
	// Poll asks for positions, and ends the streams of older incarnations; Polled answers.
	Poll struct {
		Node        index.NodeID
		Bucket      BucketRef
		VBuckets    []uint16
		Incarnation index.Incarnation
	}
	// PublishStable tells stability timestamps, one of each bucket, and of buckets of which this leader has told none what
	// the leader before has probably told. Nothing answers: reports tell.
	PublishStable struct{ Newest, Base []wire.BucketStability }
	// RollBack takes an indexer through a step of a rollback; RolledBack answers.
	RollBack struct {
		Node        index.NodeID
		Bucket      BucketRef
		ID          uint64
		Step        string
		Logs        []timestamp.FailoverLog
		Incarnation index.Incarnation
	}
	// DropOrphans names copies that may be dropped where the state does not place them; OrphansDropped answers.
	DropOrphans struct {
		Node   index.NodeID
		Copies []wire.OrphanRef
	}
)

func (Greet) message()         {}
func (Push) message()          {}
func (Probe) message()         {}
func (AskLogs) message()       {}
func (StartStreams) message()  {}
func (StopStreams) message()   {}
func (CheckBucket) message()   {}
func (AskSync) message()       {}
func (Poll) message()          {}
func (PublishStable) message() {}
func (RollBack) message()      {}
func (DropOrphans) message()   {}

// BucketRef names a bucket to an answer that may come after it was re-created.
type BucketRef struct {
	Name       string
	Generation uint64
}

// Purpose is what failover logs are asked for.
type Purpose struct {
	Kind PurposeKind
	// Incarnation is of the streams that are to begin, Rollback the id of one, Audit its number; the others are 0.
	Incarnation index.Incarnation
	Rollback    uint64
	Audit       uint64
}

// PurposeKind is one of the constants below.
type PurposeKind uint8

// The purposes.
const (
	ForStreams PurposeKind = iota
	ForRollback
	ForAudit
)

// String says what the logs are asked for.
func (k PurposeKind) String() string {
	switch k {
	case ForRollback:
		return "failover logs for a rollback"
	case ForAudit:
		return "audit"
	}
	return "failover logs"
}

// answer is an Answer to one who waits at a channel with room for it.
type answer[T any] struct {
	to chan T
	v  T
	// fence, where it is not nil, lies in v and becomes the newest one of a receiver.
	fence *wire.Fence
	of    Receiver
}

func (answer[T]) effect() {}

// Deliver implements Answer.
func (a answer[T]) Deliver(present func(Receiver) wire.Fence) {
	if a.fence != nil && a.of != 0 {
		*a.fence = present(a.of)
	}
	a.to <- a.v
}

// Plan makes the plan. It waits for nobody.
func (e PlanRepair) Plan() *RepairPlanned {
	p, err := rebalance.Make(e.Cluster, rebalance.Options{Receives: repairReceives, Sends: repairReceives})
	return &RepairPlanned{Plan: p, Err: err}
}
