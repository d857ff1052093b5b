package copies

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/timestamp"
	"tidemark/wire"
)

// RowsAt identifies the contents of a copy after one of its batches.
type RowsAt struct{ Generation, Batch uint64 }

// before reports whether r is older than o. A newer generation of the data folder starts with the contents of an
// older batch and counts on from there.
func (r RowsAt) before(o RowsAt) bool {
	return r.Generation < o.Generation || r.Generation == o.Generation && r.Batch < o.Batch
}

// has reports whether r includes the contents at o; of different generations that is unknown, which counts as no.
func (r RowsAt) has(o RowsAt) bool { return r.Generation == o.Generation && r.Batch >= o.Batch }

// NewestRows returns the current RowsAt of a copy.
func NewestRows(s *storage.Slice) RowsAt {
	st := s.Stats()
	return RowsAt{st.Generation, st.Batch}
}

// Report returns the report on the bucket and its copies; unready holds the states of the indexes that are not ready.
func (k *Bucket) Report(ctx context.Context, unready map[index.ID]index.State, wantsHW bool) (b wire.BucketReport,
	copies []wire.CopyReport, err error) {
	err = k.do(ctx, func() { b, copies = k.report(unready, wantsHW) })
	return b, copies, err
}

// report runs in the loop.
func (k *Bucket) report(unready map[index.ID]index.State, wantsHW bool) (wire.BucketReport, []wire.CopyReport) {
	m := k.sizes.measured.Load()
	asked := core.Asked{HW: wantsHW, QueueLimit: uint64(k.node.Queue()),
		Building: func(id index.ID) bool { return unready[id] == index.Backfill }}
	if m != nil {
		asked.Durable = m.persistent
	}
	b, copies := k.st.Report(asked)
	for i := range copies {
		c := &copies[i]
		_, changes := unready[c.Index]
		z := k.sizeOf(c.Copy, m, changes)
		c.Items, c.Bytes, c.Error = z.items, z.bytes, z.err
		if m != nil {
			c.WriteRate, c.ReadRate = m.ratesOf(c.Copy, k.slices[c.Copy])
		}
	}
	return b, copies
}

// sizeOf returns a copy's size as measured last. Until its index is ready, its entries are counted for every report,
// so that the leader's count is exact at the moment when the index becomes ready. A measurement that is older than
// such a count, or of another slice that was here before, is not used.
func (k *Bucket) sizeOf(id index.CopyID, m *measurement, unready bool) (z copySize) {
	if m != nil {
		z = m.copies[id]
	}
	s := k.slices[id]
	if s == nil {
		return z
	}
	if z.of != s {
		z = copySize{of: s}
	}
	seen, had := k.sizes.seen[id]
	switch {
	case unready || z.rows == (RowsAt{}) && !had:
		items, generation, batch, err := s.Counted()
		if err != nil {
			z.err = err.Error()
		}
		z.items, z.rows = uint64(max(items, 0)), RowsAt{generation, batch}
		k.sizes.seen[id] = z
	case had && z.rows.before(seen.rows):
		return seen
	case had:
		delete(k.sizes.seen, id)
	}
	return z
}

// sizes holds the known sizes of copies.
type sizes struct {
	seen     map[index.CopyID]copySize // of copies that are being built, or just were: see sizeOf
	measured atomic.Pointer[measurement]
}

func newSizes() sizes { return sizes{seen: map[index.CopyID]copySize{}} }

// measurement holds figures that are too expensive to compute for every report.
type measurement struct {
	persistent timestamp.Vector
	durable    [][]ingest.Position // of each copy; persistent is their minimum
	copies     map[index.CopyID]copySize
	at         time.Time
}

// ratesOf returns the entries of a copy that are written and read per second, 0 if another slice was measured.
func (m *measurement) ratesOf(id index.CopyID, s *storage.Slice) (written, read uint64) {
	if z, ok := m.copies[id]; ok && z.of == s {
		return z.written.rounded(), z.read.rounded()
	}
	return 0, 0
}

type copySize struct {
	of           *storage.Slice
	rows         RowsAt // what was counted
	items, bytes uint64
	err          string
	// Not set in sizes.seen.
	written, read rate
	durable       RowsAt // what survives a crash
}

// sizeOf measures a copy. was is the previous measurement, zero if there is none, and later the time since then.
func sizeOf(s *storage.Slice, was copySize, later time.Duration) copySize {
	st := s.Stats()
	z := copySize{of: s, rows: RowsAt{st.Generation, st.Batch}, items: uint64(max(st.Items, 0)),
		bytes:   uint64(max(st.DiskBytes+st.MemoryBytes, 0)),
		written: rate{total: st.Written}, read: rate{total: st.Read}}
	if was.of == s {
		z.written, z.read = was.written.since(st.Written, later), was.read.since(st.Read, later)
	}
	if st.Failing != nil {
		z.err = fmt.Sprint(st.Failing)
	}
	return z
}

// Measure measures the sizes of copies and what would survive a crash, for the reports of their buckets.
func Measure(all []*storage.Slice, of []*Bucket, now time.Time) {
	byBucket, before := map[string]*measurement{}, map[string]*measurement{}
	for _, k := range of {
		if m := k.sizes.measured.Load(); m != nil {
			before[k.name] = m
		}
	}
	for _, s := range all {
		m := s.Meta()
		d, err := s.Durable()
		if err != nil {
			continue
		}
		b := byBucket[m.Bucket]
		if b == nil {
			b = &measurement{copies: map[index.CopyID]copySize{}, at: now}
			byBucket[m.Bucket] = b
		}
		b.durable = append(b.durable, d.Positions)
		var was copySize
		var later time.Duration
		if o := before[m.Bucket]; o != nil {
			was, later = o.copies[m.Copy], now.Sub(o.at)
		}
		z := sizeOf(s, was, later)
		z.durable = RowsAt{d.Generation, d.Batch}
		b.copies[m.Copy] = z
	}
	for _, k := range of {
		m := byBucket[k.name]
		if m != nil && !m.persist(k.sizes.measured.Load(), k.vbuckets) {
			m = nil
		}
		k.sizes.measured.Store(m)
	}
}

// persist sets persistent, the minimum of what survives a crash over all copies. It returns false if no copy belongs
// to a bucket with that number of vbuckets. Most often nothing has changed since before.
func (m *measurement) persist(before *measurement, vbuckets int) bool {
	m.durable = slices.DeleteFunc(m.durable, func(p []ingest.Position) bool { return len(p) != vbuckets })
	// position lists are replaced, never modified
	same := func(a, b []ingest.Position) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
	if before != nil && slices.EqualFunc(m.durable, before.durable, same) {
		m.persistent = before.persistent
		return len(m.durable) > 0
	}
	for i, positions := range m.durable {
		switch {
		case i == 0:
			m.persistent = durableVector(positions)
		case !same(positions, m.durable[i-1]): // copies with equal positions share one list
			_ = m.persistent.Min(durableVector(positions)) // of equal length: no error
		}
	}
	return len(m.durable) > 0
}

func durableVector(positions []ingest.Position) timestamp.Vector {
	v := timestamp.New(len(positions))
	for i, p := range positions {
		if p.Main > 0 {
			v.Set(i, timestamp.Position{VBUUID: p.VBUUID, Seqno: p.Main})
		}
	}
	return v
}
