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

// RowsAt names what a copy held after one of its batches.
type RowsAt struct{ Generation, Batch uint64 }

// before reports whether r was there earlier. A data folder that is newer begins with what an older batch held, and
// counts on from there.
func (r RowsAt) before(o RowsAt) bool {
	return r.Generation < o.Generation || r.Generation == o.Generation && r.Batch < o.Batch
}

// has reports whether what was held at o is part of it: of another data folder nothing is known.
func (r RowsAt) has(o RowsAt) bool { return r.Generation == o.Generation && r.Batch >= o.Batch }

// NewestRows are those that a copy has now.
func NewestRows(s *storage.Slice) RowsAt {
	st := s.Stats()
	return RowsAt{st.Generation, st.Batch}
}

// Report is what the leader is told of the bucket and its copies; unready are the states of the indexes that are not
// ready.
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

// sizeOf returns a copy's size as it was measured last. Until its index is ready its entries are counted anew for every
// report, so that what the leader knows is true at the moment in which the index becomes ready; a measurement that is
// older than such a look does not take its place, nor one of another slice that was here before.
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

// sizes are what is known of the sizes of copies.
type sizes struct {
	seen     map[index.CopyID]copySize // of copies that are, or have just been, built: see sizeOf
	measured atomic.Pointer[measurement]
}

func newSizes() sizes { return sizes{seen: map[index.CopyID]copySize{}} }

// measurement is what costs too much to look at for every report.
type measurement struct {
	persistent timestamp.Vector
	durable    [][]ingest.Position // of each copy, as persistent is made of them
	copies     map[index.CopyID]copySize
	at         time.Time
}

// ratesOf is how many entries of a copy are written and read in a second; 0 of another slice than was measured.
func (m *measurement) ratesOf(id index.CopyID, s *storage.Slice) (written, read uint64) {
	if z, ok := m.copies[id]; ok && z.of == s {
		return z.written.told(), z.read.told()
	}
	return 0, 0
}

type copySize struct {
	of           *storage.Slice
	rows         RowsAt // that were counted
	items, bytes uint64
	err          string
	// Not of what sizes.seen has.
	written, read rate
	durable       RowsAt // what survives a crash
}

// sizeOf measures a copy, some time after it was measured last; the zero value of that: it was not.
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

// Measure looks at the sizes of copies and at what would survive a crash, for the reports of their buckets.
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

// persist sets what would survive a crash: where the copy stands that has least; false when no copy is of a bucket of
// so many vbuckets. What the copies hold is as before most often.
func (m *measurement) persist(before *measurement, vbuckets int) bool {
	m.durable = slices.DeleteFunc(m.durable, func(p []ingest.Position) bool { return len(p) != vbuckets })
	// they are replaced, not changed
	same := func(a, b []ingest.Position) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
	if before != nil && slices.EqualFunc(m.durable, before.durable, same) {
		m.persistent = before.persistent
		return len(m.durable) > 0
	}
	for i, positions := range m.durable {
		switch {
		case i == 0:
			m.persistent = durableVector(positions)
		case !same(positions, m.durable[i-1]): // copies that stand together have one list
			_ = m.persistent.Min(durableVector(positions)) // of equal length
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
