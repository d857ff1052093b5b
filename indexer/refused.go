package indexer

import (
	"fmt"
	"strings"
	"sync"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/storage"
	"tidemark/keyversion"
	"tidemark/wire"
)

// refusedKeys counts, per index, the documents with a key that the store refuses. A projector's limits are lower than
// the store's, so such a projector is of another version or damaged. Reports to the leader contain the counts, and
// the leader shows them with those of the projectors (wire.IndexFaults).
type refusedKeys struct {
	mu  sync.Mutex
	all map[index.ID]*wire.IndexFaults
}

// refuse counts a key that was left out of an event and keeps it as a sample. It logs one whenever the count has
// doubled.
func (x *Indexer) refuse(bucket string, e *keyversion.Event, s *keyversion.Statement, key []byte) {
	defs := x.present()
	if !core.Defines(&defs, s.Index) {
		return
	}
	r := &x.unstorable
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(&defs)
	f := r.all[s.Index]
	if f == nil {
		if r.all == nil {
			r.all = map[index.ID]*wire.IndexFaults{}
		}
		f = &wire.IndexFaults{Index: s.Index}
		r.all[s.Index] = f
	}
	f.TooLong++
	f.Sample = wire.FaultSample{DocID: strings.ToValidUTF8(string(e.DocID), "\ufffd"), VBucket: e.VBucket, Seqno: e.Seqno,
		Error: fmt.Sprintf("indexer %s: a key of %d bytes; an index stores keys of 1 to "+
			"%d", x.cfg.Name, len(key), storage.MaxKey)}
	if f.TooLong&(f.TooLong-1) == 0 {
		x.log.Error("key that cannot be stored was left out", "bucket", bucket, "index", s.Index, "slice", s.Slice,
			"vbucket", e.VBucket, "document", f.Sample.DocID,
			"seqno", e.Seqno, "bytes", len(key), "most", storage.MaxKey, "so_far", f.TooLong)
	}
}

// forget drops indexes that are no longer defined.
func (r *refusedKeys) forget(d *wire.Definitions) {
	for id := range r.all {
		if !core.Defines(d, id) {
			delete(r.all, id)
		}
	}
}

// list returns the indexes with the highest counts, highest first, and how many indexes it leaves out.
func (r *refusedKeys) list(d *wire.Definitions) (worst []wire.IndexFaults, omitted int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(d)
	if len(r.all) == 0 {
		return nil, 0
	}
	all := make([]wire.IndexFaults, 0, len(r.all))
	for _, f := range r.all {
		all = append(all, *f)
	}
	return wire.WorstFaults(all)
}
