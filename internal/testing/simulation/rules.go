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

// rule is a protocol rule that is kept by a model in this package.
type rule uint32

const (
	inOrder rule = 1 << iota // SYNC does not overtake events
	// endpoints of an index by key also get keys that other slices own, to delete their old entries
	upsertDeletion
	dropBegin    // a drop of data ends with a BEGIN
	memtables    // a checkpoint holds what was in memtables
	seqCheck     // an event that is not newer than the stored one is skipped
	freshLead    // commands that cannot be undone are sent after a check of leadership
	committed    // DDL is acknowledged when it is committed, not before
	newestLog    // an elected leader has all committed entries
	caughtUp     // and has applied them when it begins to lead
	bounded      // a node accepts nothing while its queue is full
	pacedTime    // the state's time is independent of wall clocks
	pinned       // files of a transfer are all of one moment
	wholeFirst   // a copy filled with files serves only after it is exact
	dropAfter    // an old copy is dropped when the list drops it, not when its successor exists
	keptRows     // the common file holds positions only of copies whose rows are durable
	mergedSlices // events during a merge go to the slices of the successor
)

var ruleNames = map[string]rule{
	"inOrder": inOrder, "upsertDeletion": upsertDeletion, "dropBegin": dropBegin,
	"memtables": memtables, "seqCheck": seqCheck, "freshLead": freshLead,
	"committed": committed, "newestLog": newestLog, "caughtUp": caughtUp, "bounded": bounded,
	"pacedTime": pacedTime, "pinned": pinned, "wholeFirst": wholeFirst, "dropAfter": dropAfter,
	"keptRows": keptRows, "mergedSlices": mergedSlices,
}

// allRules returns the names of all rules in ascending order: those of the models and those of the product.
func allRules() []string {
	all := slices.AppendSeq(planted.Names(), maps.Keys(ruleNames))
	slices.Sort(all)
	return all
}

// split separates the rules of the models from those of the product.
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
