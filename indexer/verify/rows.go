package verify

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"slices"

	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/kv/mcbp"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

const (
	// verifyRows bounds the rows, or KiB of rows, that are read with one snapshot, because it pins data that
	// compactions could remove.
	verifyRows = 1 << 16
	// verifySuspects bounds the rows, and their bytes, that are collected before they are looked up, each document
	// once.
	verifySuspects      = 1 << 12
	verifySuspectsBytes = 8 << 20
	// verifyExtras bounds the rows without an entry that are remembered until their documents are compared.
	verifyExtras = 10_000
	// verifyCells is the number of sums that the rows of a copy are distributed to.
	verifyCells = 1 << 16
	// verifyUnit is the number of bytes that count as one row for the rate.
	verifyUnit = 1 << 10
	// paceStep is the number of rows after which the rate is applied.
	paceStep = 64
)

// rowSums compares the rows of a copy with the keys in its back index without lookups: each row is added to the sum
// of its document's cell, in any order, and each key of an entry is subtracted. What remains in a cell belongs to
// rows that differ, or to documents that changed between the two passes.
type rowSums struct {
	seed  maphash.Seed
	cells []uint64
}

func newRowSums() *rowSums {
	return &rowSums{seed: maphash.MakeSeed(), cells: make([]uint64, verifyCells)}
}

// row returns the cell of a row's document, and the row's contribution to it.
func (s *rowSums) row(key, docID []byte) (cell, sum uint64) {
	doc := maphash.Bytes(s.seed, docID)
	return doc % verifyCells, (doc | 1) * maphash.Bytes(s.seed, key)
}

func (s *rowSums) add(key, docID []byte) {
	cell, sum := s.row(key, docID)
	s.cells[cell] += sum
}

func (s *rowSums) remove(key, docID []byte) {
	cell, sum := s.row(key, docID)
	s.cells[cell] -= sum
}

// differs reports whether the document's cell is not zero.
func (s *rowSums) differs(docID []byte) bool {
	return s.cells[maphash.Bytes(s.seed, docID)%verifyCells] != 0
}

func (s *rowSums) equal() bool {
	return !slices.ContainsFunc(s.cells, func(sum uint64) bool { return sum != 0 })
}

// size returns the total size of keys in bytes.
func size(keys [][]byte) (n int) {
	for _, k := range keys {
		n += len(k)
	}
	return n
}

// rows finds the rows of a copy that their document's entry does not list. This does not need KV, because at any
// timestamp each row has an entry that lists it. Two passes, over the rows and over the entries, compute sums; rows
// are looked up only in cells that differ.
func (v *verification) rows(ctx context.Context, i int) error {
	c, sums := v.copies[i], newRowSums()
	share := func(snap *storage.Snapshot) float64 {
		return min(1, float64(c.sum.Rows)/float64(max(1, snap.Items())))
	}
	err := v.walk(ctx, i, func(snap *storage.Snapshot, key, docID []byte) error {
		c.sum.Rows++
		sums.add(key, docID)
		if c.sum.Rows%paceStep != 0 {
			return nil
		}
		return v.progress(50 * (float64(i) + share(snap)/2) / float64(len(v.copies)))
	}, nil)
	if err == nil {
		err = v.entries(ctx, i, sums)
	}
	if err != nil || sums.equal() {
		return err
	}
	s := suspects{v: v, c: c, rows: map[string][][]byte{}}
	return v.walk(ctx, i, func(snap *storage.Snapshot, key, docID []byte) error {
		if !sums.differs(docID) {
			return nil
		}
		return s.add(ctx, snap, key, docID)
	}, s.lookUp)
}

// entries subtracts the keys in the back index from the sums.
func (v *verification) entries(ctx context.Context, i int, sums *rowSums) error {
	for vb := range v.k.VBuckets() {
		f, err := v.newest(ctx)
		if err != nil {
			return err
		}
		err = f.snaps[i].Back(ctx, uint16(vb), func(docID []byte, _ uint64, keys [][]byte) error {
			for _, k := range keys {
				sums.remove(k, docID)
			}
			return v.pay(ctx, len(docID)+size(keys))
		})
		if err == nil {
			err = v.owe(ctx, 1) // for the vbucket itself, which may be empty
		}
		if err := errors.Join(err, f.release()); err != nil {
			return snapshots.Coded(err)
		}
	}
	return nil
}

// walk calls row for all rows of a copy. It reads some of them with each snapshot, and calls done before it releases
// a snapshot.
func (v *verification) walk(ctx context.Context, i int, row func(snap *storage.Snapshot, key, docID []byte) error,
	done func(context.Context, *storage.Snapshot) error) error {
	var from []byte
	for first := true; first || from != nil; first = false {
		f, err := v.newest(ctx)
		if err != nil {
			return err
		}
		from, err = v.someRows(ctx, f.snaps[i], from, row)
		if err == nil && done != nil {
			err = done(ctx, f.snaps[i])
		}
		if err := errors.Join(err, f.release()); err != nil {
			return snapshots.Coded(err)
		}
	}
	return nil
}

// someRows reads the rows of one snapshot's share, and returns where to continue; nil at the end.
func (v *verification) someRows(ctx context.Context, snap *storage.Snapshot, from []byte,
	row func(snap *storage.Snapshot, key, docID []byte) error) (next []byte, err error) {
	rows, err := snap.Rows(ctx, storage.Range{Low: from}, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for n := 0; rows.Next(); {
		key, docID := rows.Row()
		if err := errors.Join(row(snap, key, docID), v.pay(ctx, len(key)+len(docID))); err != nil {
			return nil, err
		}
		if n += 1 + (len(key)+len(docID))/verifyUnit; n >= v.atOnce {
			next = append(append(next, key...), docID...)
			return append(next, 0), nil
		}
	}
	return nil, nil
}

// pay applies the rate for a row or document of the given size.
func (v *verification) pay(ctx context.Context, bytes int) error {
	v.metrics.verified.Inc()
	return v.owe(ctx, 1+bytes/verifyUnit)
}

// owe applies the rate for n units, together with those that are pending.
func (v *verification) owe(ctx context.Context, n int) error {
	v.owed += n
	if v.owed < paceStep {
		return nil
	}
	return v.settle(ctx)
}

// settle waits for the pending units.
func (v *verification) settle(ctx context.Context) error {
	v.pace.Worked(v.now().Sub(v.resumed))
	err := v.pace.Wait(ctx, v.owed)
	v.owed, v.resumed = 0, v.now()
	return err
}

// suspects collects rows that may not be listed by an entry. They are looked up by document, so that a document's
// entry, which may have thousands of keys, is read once for all of its rows.
type suspects struct {
	v     *verification
	c     *verifiedCopy
	rows  map[string][][]byte // keys by document
	count int
	bytes int
}

func (s *suspects) add(ctx context.Context, snap *storage.Snapshot, key, docID []byte) error {
	s.rows[string(docID)] = append(s.rows[string(docID)], bytes.Clone(key))
	s.count++
	if s.bytes += len(key) + len(docID); s.count < verifySuspects && s.bytes < verifySuspectsBytes {
		return nil
	}
	return s.lookUp(ctx, snap)
}

// lookUp remembers the rows that no entry lists.
func (s *suspects) lookUp(ctx context.Context, snap *storage.Snapshot) error {
	for id, rows := range s.rows {
		listed, err := s.v.listed(snap, []byte(id))
		if err != nil {
			return err
		}
		extra := slices.DeleteFunc(rows, func(k []byte) bool {
			_, found := slices.BinarySearchFunc(listed, k, bytes.Compare)
			return found
		})
		if err := s.v.remember(s.c, id, extra); err != nil {
			return err
		}
		if err := s.v.pay(ctx, size(listed)); err != nil {
			return err
		}
	}
	clear(s.rows)
	s.count, s.bytes = 0, 0
	return nil
}

// listed returns the sorted keys that the back index lists for a document. Normally a document is in the vbucket of
// its id's hash; if it is not there, the others are searched, because an engine may hash differently.
func (v *verification) listed(snap *storage.Snapshot, docID []byte) ([][]byte, error) {
	home := mcbp.VBucket(docID, v.k.VBuckets())
	for n := range v.k.VBuckets() {
		_, keys, found, err := snap.Entry((home+uint16(n))%uint16(v.k.VBuckets()), docID)
		if err != nil || found {
			return sortedKeys(keys), err
		}
	}
	return nil, nil
}

// remember keeps a document's rows until the document is compared. If there are too many, it counts the document as a
// difference now, unless some of its rows are kept.
func (v *verification) remember(c *verifiedCopy, id string, keys [][]byte) error {
	kept := c.extra[id]
	for i, k := range keys {
		if c.extras++; c.extras > verifyExtras {
			if len(kept) > 0 {
				return nil
			}
			return v.differ(c, v1.Difference{Kind: wire.ExtraRow, ID: id, VBucket: mcbp.VBucket([]byte(id), v.k.VBuckets()),
				Stability: v.sum.LastStability}, nil, keys[i:])
		}
		kept = append(kept, bytes.Clone(k))
		c.extra[id] = kept
	}
	return nil
}
