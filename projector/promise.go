package projector

import (
	"fmt"
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
	id       index.ID
	provider partition.TopologyProvider
	slices   []index.SliceID // of the copies that the stream is for
}

// promises gives where the keys of each source are to arrive, at these copies. Errors wrap partition.ErrLayout.
func promises(ids []index.ID, topologies []partition.Topology, only []index.CopyID) ([]promised, error) {
	all := make([]promised, len(ids))
	for i := range all {
		provider, err := topologies[i].Layout.Provider()
		if err != nil {
			return nil, fmt.Errorf("index %d: %w", ids[i], err)
		}
		all[i] = promised{id: ids[i], provider: provider}
		for _, c := range topologies[i].Copies {
			if slices.Contains(only, c.ID) {
				all[i].slices = append(all[i].slices, c.Slice)
			}
		}
	}
	return all, nil
}

// add sums up a document's keys, by source, as its collection's part of the plan has promised them.
func (p *promise) add(places []promised, docID []byte, seqno uint64, keys [][][]byte) {
	for i := range places {
		at := &places[i]
		for _, key := range keys[i] {
			slice := at.provider.Slice(partition.KeyVersion{Key: key, DocID: docID})
			if slices.Contains(at.slices, slice) {
				p.sums.Add(at.id, slice, docID, seqno, key)
			}
		}
	}
}
