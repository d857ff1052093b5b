package copies

import (
	"context"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/wire"
)

// Stats returns the statistics of the copies. kv holds KV's seqnos, requested before, so that events that have
// arrived since do not count as pending.
func (k *Bucket) Stats(ctx context.Context, kv []uint64) (copies []wire.CopyStats) {
	_ = k.do(ctx, func() { // a bucket that is being removed has no statistics
		stored := func(id index.CopyID) []ingest.Position {
			if s := k.slices[id]; s != nil {
				return s.Positions()
			}
			return nil
		}
		for _, g := range k.st.Backlogs(kv, stored) {
			copies = append(copies, wire.CopyStats{Copy: g.Copy, NumDocsPending: g.Pending, NumDocsQueued: g.Queued})
		}
		for i, c := range k.st.States() { // in the same order
			copies[i].Index, copies[i].Slice, copies[i].Ready, copies[i].Done, copies[i].Total = c.Index, c.Slice, c.Ready,
				c.Done, c.Total
		}
	})
	m := k.sizes.measured.Load()
	for i := range copies {
		c := &copies[i]
		s, ok := k.node.Store.Slice(c.Copy)
		if !ok {
			continue
		}
		st := s.Stats()
		c.ItemsCount, c.MemoryUsed = uint64(max(st.Items, 0)), uint64(max(st.MemoryBytes, 0))
		c.DiskSize, c.DiskLive = uint64(max(st.DiskBytes, 0)), uint64(max(st.LiveBytes, 0))
		c.IncomingBytes = uint64(max(s.Incoming(), 0))
		c.DataSize, c.Snapshots = c.DiskLive+c.MemoryUsed, len(k.node.Snapshots.Refs(c.Copy))
		if m != nil {
			c.WriteRate, c.ReadRate = m.ratesOf(c.Copy, s)
		}
		if st.Failing != nil {
			c.LastError = st.Failing.Error()
		}
	}
	return copies
}
