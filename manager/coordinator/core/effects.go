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

// This file lists all effects of a step; inputs.go lists all its inputs.

// Effect is an action requested by a step of a Leader: one of the types of this file. The driver carries effects out
// in order; no step waits for one.
type Effect interface{ effect() }

type (
	// Open introduces a receiver: one process of a projector or an indexer, at one address, with a boot id that all
	// messages to it name. Its fences are newer than Fence, than those of Instead, which is closed, and than those of
	// other receivers at the address.
	Open struct {
		To, Instead      Receiver
		Projector        bool
		Name, Addr, Boot string
		Fence            wire.Fence
	}
	// Close closes a receiver: nothing more is sent to it.
	Close struct{ To Receiver }
	// Send sends a message to a receiver through one of its lanes. The answer, or the failure, comes back as an input. A
	// Send replaces a waiting one with the same key. Messages with the key "" are never replaced, but starts of streams
	// that still wait are removed if the same vbuckets are started anew.
	Send struct {
		To      Receiver
		Lane    Lane
		Key     string
		Message Message
	}
	// Propose submits a command of the coordinator's own; Proposed comes back.
	Propose struct {
		Key    string
		Body   statecontext.Body
		Traced bool // it is part of the trace of an index's build
	}
	// BeginSplit begins an automatic split of an index if the index is unchanged; SplitTried comes back.
	BeginSplit struct {
		rebalance.Split
		IfModified uint64
	}
	// PlanRepair plans where lost copies are made anew, which may take long; RepairPlanned comes back.
	PlanRepair struct{ Cluster *rebalance.Cluster }
	// Wake requests the input Woken after a time that is shorter than a tick.
	Wake struct{ After time.Duration }
	// Describe keeps the definitions of a state, so that later states can be sent as changes to it.
	Describe struct{ State *statecontext.State }
	// Show publishes the newest picture.
	Show struct{ Status *Status }
	// Stage reports that a traced build has entered a stage.
	Stage struct {
		Build uint64
		Name  string
	}
	// BuildOver ends a traced build.
	BuildOver struct {
		Build uint64
		Err   error
	}
	// Anew ends this Leader because the state was restored; the driver creates a new one for the same term.
	Anew struct{}
	// Answer delivers the answer to a request to its caller.
	Answer interface {
		Effect
		// Deliver delivers the answer; present returns the newest fence issued for a receiver.
		Deliver(present func(Receiver) wire.Fence)
	}
)

func (Open) effect()       {}
func (Close) effect()      {}
func (Send) effect()       {}
func (Propose) effect()    {}
func (BeginSplit) effect() {}
func (PlanRepair) effect() {}
func (Wake) effect()       {}
func (Describe) effect()   {}
func (Show) effect()       {}
func (Stage) effect()      {}
func (BuildOver) effect()  {}
func (Anew) effect()       {}

// Receiver identifies an Open of this term.
type Receiver uint64

// Lane is one of a receiver's send queues, which are bounded. Messages of one lane never wait for those of another.
type Lane uint8

// The lanes.
const (
	Control Lane = iota // hello, definitions, orphans
	// Commands run in order for one bucket and concurrently for several: KV may not answer for one bucket, or an indexer
	// restore one for a minute.
	Commands
	Syncs // fresh reports for waiting scans
	// Queries are sent to a projector about its KV node. None waits for another, nor for commands to the projector: the
	// node may hang.
	Queries
	Checks  // checks of buckets at a projector's KV node, one per bucket
	Publish // stability timestamps
)

// Lanes returns the lanes that the receiver has.
func (o Open) Lanes() []Lane {
	if o.Projector {
		return []Lane{Control, Commands, Syncs, Queries, Checks}
	}
	return []Lane{Control, Commands, Publish}
}

// Message is the content of a Send: one of the types below. gateway.go sends them.
type Message interface{ message() }

// Messages to both kinds of component.
type (
	// Hello requests the full report of a component; ProjectorHelloAnswered or IndexerHelloAnswered is the answer.
	Hello struct {
		Projector index.ProjectorID
		Node      index.NodeID
	}
	// Push sends the newest definitions, as changes since Base if that revision is known. Handed is the answer.
	Push struct{ Base uint64 }
)

// Messages to projectors.
type (
	// Probe checks whether the process is alive; Probed is the answer.
	Probe struct {
		Projector index.ProjectorID
		Bucket    string
	}
	// FetchLogs requests failover logs, of all vbuckets if VBuckets is empty; LogsFetched is the answer.
	FetchLogs struct {
		Projector index.ProjectorID
		Bucket    BucketRef
		VBuckets  []uint16
		For       Purpose
	}
	// StartStreams starts streams; StreamsStarted is the answer if the outcome is known.
	StartStreams struct {
		Projector   index.ProjectorID
		Bucket      BucketRef
		UUID        string
		Incarnation index.Incarnation
		Starts      []streams.Start
	}
	// StopStreams ends streams. There is no answer: reports show the outcome.
	StopStreams struct {
		Bucket      BucketRef
		VBuckets    []uint16
		Incarnation index.Incarnation
	}
	// CheckBucket checks whether a bucket is still the same; BucketChecked is the answer.
	CheckBucket struct {
		Projector    index.ProjectorID
		Bucket, UUID string
		// Collections requests the bucket's collections, too.
		Collections bool
	}
	// RequestSync requests a fresh report, sent once the projector has what Want contains; Synced is the answer.
	RequestSync struct {
		Projector index.ProjectorID
		Bucket    BucketRef
		Want      []uint64
	}
)

// Messages to indexers.
type (
	// Poll requests positions, and ends the streams of older incarnations; Polled is the answer.
	Poll struct {
		Node        index.NodeID
		Bucket      BucketRef
		VBuckets    []uint16
		Incarnation index.Incarnation
	}
	// PublishStable sends stability timestamps, one per bucket. Base holds, for buckets of which this leader has sent
	// none yet, the one that the previous leader has probably sent. There is no answer: reports show the outcome.
	PublishStable struct{ Newest, Base []wire.BucketStability }
	// RollBack takes an indexer through a step of a rollback; RolledBack is the answer.
	RollBack struct {
		Node        index.NodeID
		Bucket      BucketRef
		ID          uint64
		Step        string
		Logs        []timestamp.FailoverLog
		Incarnation index.Incarnation
	}
	// DropOrphans names copies that may be dropped if the state does not place them; OrphansDropped is the answer.
	DropOrphans struct {
		Node   index.NodeID
		Copies []wire.OrphanRef
	}
)

func (Hello) message()         {}
func (Push) message()          {}
func (Probe) message()         {}
func (FetchLogs) message()     {}
func (StartStreams) message()  {}
func (StopStreams) message()   {}
func (CheckBucket) message()   {}
func (RequestSync) message()   {}
func (Poll) message()          {}
func (PublishStable) message() {}
func (RollBack) message()      {}
func (DropOrphans) message()   {}

// BucketRef identifies a bucket in answers that may arrive after the bucket was re-created.
type BucketRef struct {
	Name       string
	Generation uint64
}

// Purpose is the reason for which failover logs were requested.
type Purpose struct {
	Kind PurposeKind
	// Incarnation is that of the streams to begin, Rollback the id of the rollback, Audit the number of the audit; the
	// fields of other kinds are 0.
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

// String names the purpose in log messages and traces.
func (k PurposeKind) String() string {
	switch k {
	case ForRollback:
		return "requesting failover logs for a rollback"
	case ForAudit:
		return "audit"
	}
	return "failover logs"
}

// answer is an Answer to a caller that waits at a buffered channel.
type answer[T any] struct {
	to chan T
	v  T
	// fence, if not nil, points into v and is set to the newest fence of the receiver of.
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

// Plan makes the plan. It does not block.
func (e PlanRepair) Plan() *RepairPlanned {
	p, err := rebalance.Make(e.Cluster, rebalance.Options{Receives: repairReceives, Sends: repairReceives})
	return &RepairPlanned{Plan: p, Err: err}
}
