package simulation

import (
	"fmt"
	"maps"
	"slices"

	"tidemark/index"
	"tidemark/internal/testing/planted"
	"tidemark/partition"
	"tidemark/statecontext"
)

// rule is one of those that parts of the system keep which are modelled here.
type rule uint32

const (
	inOrder        rule = 1 << iota // SYNC does not overtake events
	upsertDeletion                  // endpoints of an index by key hear of a key that they do not get
	dropBegin                       // a drop of data ends with a BEGIN
	memtables                       // a checkpoint holds what was in memtables
	seqCheck                        // an event that is not newer than what is stored is skipped
	freshLead                       // what cannot be undone is told after a check of leadership
	committed                       // DDL is acknowledged when it is committed, not before
	newestLog                       // who is elected has all that is committed
	caughtUp                        // and has applied it when it begins to lead
	bounded                         // a node takes nothing while its queue is full
	pacedTime                       // the state's time does not follow wall clocks
	pinned                          // files that are sent stay as they were at one moment
	wholeFirst                      // a copy that has got files serves when it is exact here, not before
	dropAfter                       // an old copy is dropped when the list says so, not when its successor is there
	keptRows                        // where copies stand is kept of rows that are durable, and of no others
	mergedSlices                    // what comes during a merge goes to the slices that there are to be
)

var ruleNames = map[string]rule{
	"inOrder": inOrder, "upsertDeletion": upsertDeletion, "dropBegin": dropBegin,
	"memtables": memtables, "seqCheck": seqCheck, "freshLead": freshLead,
	"committed": committed, "newestLog": newestLog, "caughtUp": caughtUp, "bounded": bounded,
	"pacedTime": pacedTime, "pinned": pinned, "wholeFirst": wholeFirst, "dropAfter": dropAfter,
	"keptRows": keptRows, "mergedSlices": mergedSlices,
}

// allRules lists the names of all rules, ascending: of what is modelled here, and of the product.
func allRules() []string {
	all := slices.AppendSeq(planted.Names(), maps.Keys(ruleNames))
	slices.Sort(all)
	return all
}

// split separates the rules of what is modelled here from those of the product.
func split(names []string) (own rule, product []string) {
	for _, n := range names {
		if r := ruleNames[n]; r != 0 {
			own |= r
		} else {
			product = append(product, n)
		}
	}
	return own, product
}

func (s *Sim) on(r rule) bool { return s.off&r == 0 }

func partitionReplica(r int) partition.Replica { return partition.Replica(r) }

func statecontextProjector(name index.ProjectorID, boot string) statecontext.Body {
	return &statecontext.RegisterProjector{Projector: statecontext.Projector{ID: name, Admin: string(name), BootID: boot}}
}

func statecontextIndexer(num int, uuid, boot string) statecontext.Body {
	name := fmt.Sprintf("n%d", num)
	return &statecontext.RegisterIndexer{Indexer: statecontext.Indexer{
		UUID: uuid, BootID: boot, Name: name, Admin: name, Scan: name,
		Data: statecontext.DataAddrs{Maintenance: name, Backfill: name, Catchup: name}}}
}
