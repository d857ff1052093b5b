package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"tidemark/ingest"
	"tidemark/timestamp"
)

// checkEvery is the number of rows after which a scan checks its context.
const checkEvery = 256

// Range selects rows with Low <= key||docid < High in byte order; nil is open. Keys are self-delimiting, so a bound
// of whole components selects by key alone; key||docid followed by a zero byte continues after a row.
type Range struct{ Low, High []byte }

// Snapshot is the state of a slice when the snapshot was taken. It stays readable until the last reference is closed,
// even if the slice is restored, dropped or closed meanwhile.
type Snapshot struct {
	slice *Slice
	gen   *generation
	view  view
	at    *state
	refs  atomic.Int32
}

// Snapshot pins the present state without copying. The caller must close it.
func (s *Slice) Snapshot() (*Snapshot, error) {
	s.write.Lock() // rows and state must be of the same batch
	defer s.write.Unlock()
	g, cur, err := s.hold()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.snapshots++
	s.mu.Unlock()
	snap := &Snapshot{slice: s, gen: g, view: g.eng.view(), at: cur}
	snap.refs.Store(1)
	return snap, nil
}

// Retain adds a reference. It returns false if the snapshot is closed already.
func (s *Snapshot) Retain() bool {
	for {
		n := s.refs.Load()
		if n <= 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Close releases a reference; the last one frees what the snapshot pins.
func (s *Snapshot) Close() error {
	if n := s.refs.Add(-1); n > 0 {
		return nil
	} else if n < 0 {
		s.refs.Store(0)
		return fmt.Errorf("snapshot of copy %s: %w", s.slice.meta.Copy, ErrClosed)
	}
	err := s.view.close()
	s.slice.mu.Lock()
	s.slice.snapshots--
	s.slice.mu.Unlock()
	return errors.Join(err, s.slice.release(s.gen))
}

// Slice returns the slice of the snapshot.
func (s *Snapshot) Slice() *Slice { return s.slice }

// Items returns the number of rows.
func (s *Snapshot) Items() int64 { return s.at.items }

// Batch returns the number of the newest batch in the snapshot.
func (s *Snapshot) Batch() uint64 { return s.at.number }

// Positions returns the slice's positions, one per vbucket.
func (s *Snapshot) Positions() []ingest.Position { return slices.Clone(s.at.positions) }

// At returns the slice's position in one vbucket, and the failover log that goes with it.
func (s *Snapshot) At(vb uint16) (ingest.Position, timestamp.FailoverLog) {
	return s.at.positions[vb], s.at.logs[vb]
}

// Timestamp returns the newest stability timestamp that was flushed. exact reports that the rows are exactly those at
// it.
func (s *Snapshot) Timestamp() (stable timestamp.Vector, exact bool) {
	return s.at.stable.Clone(), s.at.exact
}

// Rows iterates over rows of a snapshot. It must be closed before the snapshot.
type Rows struct {
	ctx     context.Context
	snap    *Snapshot
	it      rowIter
	n       int
	err     error
	done    bool
	scan    bool // rows read count as load of the slice
	counted int  // part of n that has been counted as load
}

// Scan is Rows for a scan: the rows read count as load of the slice.
func (s *Snapshot) Scan(ctx context.Context, r Range, reverse bool) (*Rows, error) {
	rows, err := s.Rows(ctx, r, reverse)
	if err == nil {
		rows.scan = true
	}
	return rows, err
}

// Rows starts an iteration over one range, in index order or in reverse. Close returns errors of the iteration.
func (s *Snapshot) Rows(ctx context.Context, r Range, reverse bool) (*Rows, error) {
	if !s.Retain() {
		return nil, fmt.Errorf("snapshot of copy %s: %w", s.slice.meta.Copy, ErrClosed)
	}
	it, err := s.view.rows(r.Low, r.High, reverse)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Rows{ctx: ctx, snap: s, it: it}, nil
}

// Next moves to the next row. It returns false at the end, on an error, and when the context has ended.
func (r *Rows) Next() bool {
	if r.done {
		return false
	}
	if r.n%checkEvery == 0 {
		if r.err = context.Cause(r.ctx); r.err != nil {
			r.done = true
			return false
		}
		r.count()
	}
	if r.done = !r.it.next(); r.done {
		return false
	}
	r.n++
	if r.scan {
		r.snap.slice.load.reads(r.it)
	}
	return true
}

// count adds the rows read since its last call to the load.
func (r *Rows) count() {
	if r.scan {
		r.snap.slice.load.read.Add(uint64(r.n - r.counted))
		r.counted = r.n
	}
}

// Row returns the collated key and the document id. They are valid until Next.
func (r *Rows) Row() (key, docID []byte) { return r.it.row() }

// Close ends the iteration and returns the first error.
func (r *Rows) Close() error {
	if r.it == nil {
		return nil
	}
	r.count()
	err := errors.Join(r.err, r.it.close(), r.snap.Close())
	r.it, r.done = nil, true
	return err
}

// Iterate calls fn for every row of the range until fn returns an error, which Iterate returns unchanged.
func (s *Snapshot) Iterate(ctx context.Context, r Range, reverse bool, fn func(key, docID []byte) error) error {
	rows, err := s.Rows(ctx, r, reverse)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := fn(rows.Row()); err != nil {
			if cerr := rows.Close(); cerr != nil {
				return errors.Join(err, cerr)
			}
			return err
		}
	}
	return rows.Close()
}

// Count counts the rows of the ranges, which must not overlap.
func (s *Snapshot) Count(ctx context.Context, ranges []Range) (int64, error) {
	var n int64
	for _, r := range ranges {
		if r.Low == nil && r.High == nil {
			n += s.at.items
			continue
		}
		if err := s.Iterate(ctx, r, false, func(_, _ []byte) error { n++; return nil }); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Back calls fn for every back entry of a vbucket, by document id; an entry without keys is a tombstone. The
// arguments of fn are valid until it returns.
func (s *Snapshot) Back(ctx context.Context, vb uint16, fn func(docID []byte, seqno uint64,
	keys [][]byte) error) error {
	if !s.Retain() {
		return fmt.Errorf("snapshot of copy %s: %w", s.slice.meta.Copy, ErrClosed)
	}
	it, err := s.view.back(vb)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	for n := 0; err == nil && it.next(); n++ {
		if n%checkEvery == 0 {
			err = context.Cause(ctx)
		}
		if err == nil {
			err = fn(it.entry())
		}
	}
	if cerr := errors.Join(it.close(), s.Close()); cerr != nil {
		return errors.Join(err, cerr)
	}
	return err
}

// Entry returns a document's back entry: seqno and keys of its newest version here. An entry without keys is a
// tombstone.
func (s *Snapshot) Entry(vb uint16, docID []byte) (seqno uint64, keys [][]byte, found bool, err error) {
	if !s.Retain() {
		return 0, nil, false, fmt.Errorf("snapshot of copy %s: %w", s.slice.meta.Copy, ErrClosed)
	}
	seqno, keys, found, err = s.view.entry(vb, docID)
	return seqno, keys, found, errors.Join(err, s.Close())
}

// HasRow reports whether a row is in the forward index.
func (s *Snapshot) HasRow(key, docID []byte) (bool, error) {
	if !s.Retain() {
		return false, fmt.Errorf("snapshot of copy %s: %w", s.slice.meta.Copy, ErrClosed)
	}
	has, err := s.view.has(key, docID)
	return has, errors.Join(err, s.Close())
}
