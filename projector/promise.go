package projector

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
)

// promise sums up the entries that a side stream's documents must have in the slices of its copies. It is computed
// from evaluation results and layouts alone, before anything is routed, and sent with the stream's END. An indexer
// that compares an index with KV's data detects by it what was lost on the way; without it, the loss would affect
// both sides alike and show no difference.
type promise struct {
	sums keyversion.Sums
}

// promised is the destination of the keys of one source.
type promised struct {
	id       index.ID
	provider partition.TopologyProvider
	slices   []index.SliceID // those of the stream's copies
}

// promises returns the destination of each source's keys at these copies. Errors wrap partition.ErrLayout.
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

// add adds a document's keys, by source; places are those of its collection's part of the plan.
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
