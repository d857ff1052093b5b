package simulation

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/manager/coordinator"
	"tidemark/partition"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/streams"
)

// rule is one of those that parts of the system keep which are modelled here.
type rule uint32

const (
	snapshotEnds   rule = 1 << iota // SYNC names only sequence numbers that end a DCP snapshot
	inOrder                         // SYNC does not overtake events
	upsertDeletion                  // endpoints of an index by key hear of a key that they do not get
	dropBegin                       // a drop of data ends with a BEGIN
	memtables                       // a checkpoint holds what was in memtables
	seqCheck                        // an event that is not newer than what is stored is skipped
	fence                           // commands of an older leader, or overtaken ones, are refused
	revisions                       // an older list of definitions is refused
	freshLead                       // what cannot be undone is told after a check of leadership
	askFirst                        // a projector that starts asks a manager before it obeys
	projInc                         // a projector refuses older incarnations, and those that were stopped
	sameBranch                      // a stream of another branch than the one asked for is closed again
	committed                       // DDL is acknowledged when it is committed, not before
	newestLog                       // who is elected has all that is committed
	bounded                         // a node takes nothing while its queue is full
	pacedTime                       // the state's time does not follow wall clocks
)

var ruleNames = map[string]rule{"snapshotEnds": snapshotEnds, "inOrder": inOrder, "upsertDeletion": upsertDeletion, "dropBegin": dropBegin,
	"memtables": memtables, "seqCheck": seqCheck, "fence": fence, "revisions": revisions, "freshLead": freshLead, "askFirst": askFirst, "projInc": projInc,
	"sameBranch": sameBranch, "committed": committed, "newestLog": newestLog, "bounded": bounded,
	"pacedTime": pacedTime}

var stateRules = map[string]statecontext.Rules{"apart": statecontext.Apart}

var streamRules = map[string]streams.Rules{"lowestHW": streams.LowestHW, "newestMap": streams.NewestMap, "committedToo": streams.CommittedToo,
	"oneOwner": streams.OneOwner, "fencedAdopted": streams.FencedAdopted}

var stabilityRules = map[string]stability.Rules{"onBranch": stability.OnBranch, "newestMap": stability.NewestMap, "paced": stability.Paced}

var coordinatorRules = map[string]coordinator.Rules{"commitFirst": coordinator.CommitFirst, "republish": coordinator.Republish,
	"allocateFirst": coordinator.AllocateFirst, "newestMap": coordinator.NewestMap, "emptyBranch": coordinator.EmptyBranch}

// allRules lists the names of all rules, ascending.
func allRules() []string {
	all := ingest.RuleNames()
	for _, names := range []iter.Seq[string]{maps.Keys(ruleNames), maps.Keys(stateRules), maps.Keys(streamRules), maps.Keys(stabilityRules), maps.Keys(coordinatorRules)} {
		all = slices.AppendSeq(all, names)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// off is what is switched off in each package.
type off struct {
	own         rule
	ingest      ingest.Rules
	streams     streams.Rules
	stability   stability.Rules
	coordinator coordinator.Rules
	state       statecontext.Rules
}

// parseRules reads names of rules; one that several packages have is switched off in all of them.
func parseRules(names []string) (o off, err error) {
	for _, n := range names {
		was := o
		o.own |= ruleNames[n]
		o.ingest |= ingest.Rule(n)
		o.streams |= streamRules[n]
		o.stability |= stabilityRules[n]
		o.coordinator |= coordinatorRules[n]
		o.state |= stateRules[n]
		if o == was {
			return o, fmt.Errorf("no rule %q, or named twice", n)
		}
	}
	return o, nil
}

func (s *Sim) on(r rule) bool { return s.off.own&r == 0 }

func partitionReplica(r int) partition.Replica { return partition.Replica(r) }

func statecontextProjector(name index.ProjectorID, boot string) statecontext.Body {
	return &statecontext.RegisterProjector{Projector: statecontext.Projector{ID: name, Admin: string(name), BootID: boot}}
}

func statecontextIndexer(num int, boot string) statecontext.Body {
	name := fmt.Sprintf("n%d", num)
	return &statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: fmt.Sprintf("u%d", num), BootID: boot, Name: name, Admin: name, Scan: name,
		Data: statecontext.DataAddrs{Maintenance: name, Backfill: name, Catchup: name}}}
}

// dropOps forgets what was asked of the store for a copy.
func (h *hosted) dropOps(id index.CopyID) {
	for k := range h.ops {
		if b := h.ops[k].Batch; b != nil {
			b.Copies = slices.DeleteFunc(slices.Clone(b.Copies), func(c ingest.CopyBatch) bool { return c.ID == id })
		}
	}
	h.ops = slices.DeleteFunc(h.ops, func(w ingest.Work) bool { return w.Restore != nil && w.Restore.Copy == id })
}
