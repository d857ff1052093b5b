package projector

import (
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
)

// promise sums up what a side stream's documents have in the slices of its copies. It is made of the evaluation's
// results and the layouts alone, before anything is routed, and told with the stream's end: who compares an index with
// the KV data learns by it what was lost on the way, where a loss would else be no difference.
type promise struct {
	sums keyversion.Sums
}

// promised is where the keys of one source are to arrive.
type promised struct {
	id     index.ID
	layout *partition.Layout
	slices []index.SliceID // of the copies that the stream is for
}

// promises gives where the keys of each source are to arrive, at these copies.
func promises(ids []index.ID, topologies []partition.Topology, only []index.CopyID) []promised {
	all := make([]promised, len(ids))
	for i := range all {
		all[i] = promised{id: ids[i], layout: &topologies[i].Layout}
		for _, c := range topologies[i].Copies {
			if slices.Contains(only, c.ID) {
				all[i].slices = append(all[i].slices, c.Slice)
			}
		}
	}
	return all
}

// add sums up a document's keys, by source, as its collection's part of the plan has promised them.
func (p *promise) add(places []promised, docID []byte, seqno uint64, keys [][][]byte) {
	for i := range places {
		at := &places[i]
		for _, key := range keys[i] {
			slice := at.layout.Slice(partition.KeyVersion{Key: key, DocID: docID})
			if slices.Contains(at.slices, slice) {
				p.sums.Add(at.id, slice, docID, seqno, key)
			}
		}
	}
}
