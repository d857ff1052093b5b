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
	// verifyRows is how many rows, or KiB of them, are looked at with one snapshot: it pins what compactions could free.
	verifyRows = 1 << 16
	// verifySuspects bounds the rows, and their bytes, that are held together to be looked up, each document once.
	verifySuspects      = 1 << 12
	verifySuspectsBytes = 8 << 20
	// verifyExtras bounds the rows without an entry that are remembered until their documents are looked at.
	verifyExtras = 10_000
	// verifyCells is into how many sums the rows of a copy are divided.
	verifyCells = 1 << 16
	// verifyUnit is how many bytes count as one row at the rate.
	verifyUnit = 1 << 10
	// paceStep is after how many rows the rate is looked at.
	paceStep = 64
)

// rowSums compares the rows of a copy with what its back index lists, without looking anything up: each row adds to the
// sum of its document's cell, in whatever order they come, and each key of an entry takes off. What is left in a cell
// is of rows that differ, or of documents that changed between the two walks.
type rowSums struct {
	seed  maphash.Seed
	cells []uint64
}

func newRowSums() *rowSums {
	return &rowSums{seed: maphash.MakeSeed(), cells: make([]uint64, verifyCells)}
}

// row is the cell of a row's document, and what the row adds to it.
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

// differs reports whether something is left in the document's cell.
func (s *rowSums) differs(docID []byte) bool {
	return s.cells[maphash.Bytes(s.seed, docID)%verifyCells] != 0
}

func (s *rowSums) equal() bool {
	return !slices.ContainsFunc(s.cells, func(sum uint64) bool { return sum != 0 })
}

// size is how many bytes keys have.
func size(keys [][]byte) (n int) {
	for _, k := range keys {
		n += len(k)
	}
	return n
}

// rows notes the rows of a copy that their document's entry does not list. That takes no look at KV: at any timestamp
// each row has an entry that lists it. Two walks, over the rows and over the entries, leave sums; only where these
// differ are rows looked up.
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
		return v.tell(50 * (float64(i) + share(snap)/2) / float64(len(v.copies)))
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

// entries takes what the back index lists off the sums.
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
			err = v.owe(ctx, 1) // for the vbucket, which may be empty
		}
		if err := errors.Join(err, f.release()); err != nil {
			return snapshots.Coded(err)
		}
	}
	return nil
}

// walk returns all rows of a copy to a function, some with each snapshot, of which done is told that it goes.
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

// someRows walks over what is looked at with one snapshot, and says where to go on; nil at the end.
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

// pay keeps to the rate: it lets a row or document of so many bytes have its time.
func (v *verification) pay(ctx context.Context, bytes int) error {
	v.metrics.verified.Inc()
	return v.owe(ctx, 1+bytes/verifyUnit)
}

// owe lets so many things have their time, together with what is owed already.
func (v *verification) owe(ctx context.Context, n int) error {
	v.owed += n
	if v.owed < paceStep {
		return nil
	}
	return v.settle(ctx)
}

// settle waits until everything that is owed has had its time.
func (v *verification) settle(ctx context.Context) error {
	v.pace.Worked(v.now().Sub(v.resumed))
	err := v.pace.Wait(ctx, v.owed)
	v.owed, v.resumed = 0, v.now()
	return err
}

// suspects are rows that may have no entry which lists them. They are looked up document by document, so that a
// document's entry, which may have thousands of keys, is read once for all of them.
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

// lookUp remembers those that no entry lists.
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

// listed returns the keys that the back index lists for a document, in order. A document is in the vbucket that its id
// hashes to; where it is not, the others are looked at, too: an engine may hash otherwise.
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

// remember keeps a document's rows until it is looked at. Where there are too many, the document is counted now, unless
// some of its rows are kept.
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
