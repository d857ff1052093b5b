package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// purgeStep is how many tombstones one batch removes.
	purgeStep = 4096
	// purgeReads is how many back entries one purge reads, not counting those of its last vbucket: the copy's next write
	// waits meanwhile.
	purgeReads = 16 << 10
)

// replaceStep is how many bytes of changes one batch of a restore holds, not counting its last vbucket.
const replaceStep = 4 << 20

// pebbleView is a view on a Pebble snapshot.
type pebbleView struct {
	e    *pebbleEngine
	snap *pebble.Snapshot
	idle idleIters
}

func (e *pebbleEngine) view() view { return &pebbleView{e: e, snap: e.db.NewSnapshot()} }

// close is called when the view has no readers any more.
func (v *pebbleView) close() error { return errors.Join(v.idle.close(v.e), v.snap.Close()) }

func (v *pebbleView) rows(low, high []byte, reverse bool) (rowIter, error) {
	bounds := make([]byte, 0, len(low)+len(high)+2)
	bounds = append(append(bounds, tagFwd), low...)
	lower := bounds[:len(bounds):len(bounds)]
	if bounds = append(bounds, tagFwd); high == nil {
		bounds[len(lower)]++
	}
	bounds = append(bounds, high...)
	upper := bounds[len(lower):]
	if bytes.Compare(lower, upper) >= 0 {
		return &pebbleRows{}, nil
	}
	if it, ok := v.idle.take(v.e); ok {
		it.SetBounds(lower, upper)
		return &pebbleRows{e: v.e, v: v, it: it.Iterator, born: it.born, reverse: reverse}, nil
	}
	it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, classify(v.e.id, v.e.dir, err)
	}
	return &pebbleRows{e: v.e, v: v, it: it, born: time.Now(), reverse: reverse}, nil
}

// pebbleRows implements rowIter. Without an iterator it is empty.
type pebbleRows struct {
	e          *pebbleEngine
	v          *pebbleView
	it         *pebble.Iterator
	born       time.Time // when the iterator was opened
	reverse    bool
	started    bool
	key, docID []byte
	err        error
}

func (r *pebbleRows) next() bool {
	if r.it == nil || r.err != nil {
		return false
	}
	var ok bool
	switch {
	case !r.started && r.reverse:
		ok = r.it.Last()
	case !r.started:
		ok = r.it.First()
	case r.reverse:
		ok = r.it.Prev()
	default:
		ok = r.it.Next()
	}
	r.started = true
	if !ok {
		return false
	}
	v, err := r.it.ValueAndErr()
	if err == nil {
		r.key, r.docID, err = splitFwd(r.it.Key(), v)
	}
	r.err = err
	return err == nil
}

func (r *pebbleRows) row() (key, docID []byte) { return r.key, r.docID }

func (r *pebbleRows) close() error {
	if r.it == nil {
		return nil
	}
	if r.err == nil && r.it.Error() == nil && r.v.idle.give(r.e, r.it, r.born) {
		return nil
	}
	return r.e.closeIter(r.it, r.err)
}

// closeIter closes an iterator and returns the first error: err, or the iterator's own. An unparsable record is
// damage.
func (e *pebbleEngine) closeIter(it *pebble.Iterator, err error) error {
	if err == nil {
		err = it.Error()
	}
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if errors.Is(err, errRecord) {
		return &CorruptError{Copy: e.id, File: e.dir, Err: err}
	}
	return classify(e.id, e.dir, err)
}

func (v *pebbleView) back(vb uint16) (backIter, error) {
	low, high := backRange(vb)
	it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: high})
	if err != nil {
		return nil, classify(v.e.id, v.e.dir, err)
	}
	return &pebbleBack{e: v.e, it: it}, nil
}

// get reads one record. A missing record is no error.
func (v *pebbleView) get(key []byte, use func(value []byte) error) (found bool, err error) {
	value, closer, err := v.snap.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		err = use(value)
		if cerr := closer.Close(); err == nil {
			err = cerr
		}
	}
	if errors.Is(err, errRecord) {
		return true, &CorruptError{Copy: v.e.id, File: v.e.dir, Err: err}
	}
	return err == nil, classify(v.e.id, v.e.dir, err)
}

func (v *pebbleView) entry(vb uint16, docID []byte) (seqno uint64, keys [][]byte, found bool, err error) {
	found, err = v.get(appendBackKey(nil, vb, docID), func(value []byte) (err error) {
		seqno, keys, err = decodeBackValue(nil, bytes.Clone(value))
		return err
	})
	return seqno, keys, found, err
}

func (v *pebbleView) has(key, docID []byte) (bool, error) {
	return v.get(appendFwdKey(make([]byte, 0, 1+len(key)+len(docID)), key, docID), func([]byte) error { return nil })
}

// pebbleBack implements backIter.
type pebbleBack struct {
	e       *pebbleEngine
	it      *pebble.Iterator
	started bool
	seqno   uint64
	keys    [][]byte
	err     error
}

func (b *pebbleBack) next() bool {
	if b.err != nil {
		return false
	}
	ok := false
	if b.started {
		ok = b.it.Next()
	} else {
		b.started, ok = true, b.it.First()
	}
	if !ok {
		return false
	}
	v, err := b.it.ValueAndErr()
	if err == nil {
		b.seqno, b.keys, err = decodeBackValue(b.keys, v)
	}
	b.err = err
	return err == nil
}

func (b *pebbleBack) entry() (docID []byte, seqno uint64, keys [][]byte) {
	return b.it.Key()[3:], b.seqno, b.keys
}

func (b *pebbleBack) to(vb uint16) {
	if err := b.it.Error(); b.err == nil {
		b.err = err // SetBounds drops it
	}
	b.it.SetBounds(backRange(vb))
	b.started = false
}

func (b *pebbleBack) close() error { return b.e.closeIter(b.it, b.err) }

// replace implements engine.
func (e *pebbleEngine) replace(ctx context.Context, to []VBPosition, from view, cur *state) (next *state, done int,
	err error) {
	e.begin()
	defer e.end()
	here := e.view()
	items, done, err := e.collectDifferences(to, here, from)
	if err = errors.Join(err, here.close()); err != nil {
		return cur, 0, classify(e.id, e.dir, err)
	}
	next = cur.next(to[:done])
	next.items += items
	return next, done, e.commit(ctx, next, false)
}

// collectDifferences collects the changes that make the rows of as many vbuckets as one batch takes equal to those of
// from.
func (e *pebbleEngine) collectDifferences(to []VBPosition, here, from view) (items int64, done int, err error) {
	mine, err := here.back(to[0].VBucket)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, mine.close()) }()
	var theirs backIter = noBack{}
	if from != nil {
		if theirs, err = from.back(to[0].VBucket); err != nil {
			return 0, 0, err
		}
	}
	defer func() { err = errors.Join(err, theirs.close()) }()
	for done < len(to) && len(e.scratch.arena) < replaceStep {
		vb := to[done].VBucket
		mine.to(vb)
		theirs.to(vb)
		n, err := e.differences(vb, mine, theirs)
		if err != nil {
			return 0, 0, err
		}
		items += n
		done++
	}
	return items, done, nil
}

// differences collects the changes that make a vbucket's rows equal to theirs, and returns by how much their number
// changes.
func (e *pebbleEngine) differences(vb uint16, mine, theirs backIter) (items int64, _ error) {
	s := e.scratch
	haveMine, haveTheirs := mine.next(), theirs.next()
	for haveMine || haveTheirs {
		c := 0
		switch {
		case !haveMine:
			c = 1
		case !haveTheirs:
			c = -1
		default:
			a, _, _ := mine.entry()
			b, _, _ := theirs.entry()
			c = bytes.Compare(a, b)
		}
		items += int64(s.exchange(vb, c, mine, theirs))
		if int64(len(s.arena)) > 4*MaxBatchBytes {
			return 0, fmt.Errorf("%w: vbucket %d differs by more than %d bytes", ErrInvalid, vb, int64(4*MaxBatchBytes))
		}
		if c <= 0 {
			haveMine = mine.next()
		}
		if c >= 0 {
			haveTheirs = theirs.next()
		}
	}
	return items, nil
}

// exchange changes one document: if c < 0 only mine has it, if c > 0 only theirs, otherwise both. It returns the
// change in the number of rows.
func (s *scratch) exchange(vb uint16, c int, mine, theirs backIter) int {
	s.old, s.now = s.old[:0], s.now[:0]
	var docID []byte
	var was, is uint64
	if c >= 0 {
		docID, is, s.now = theirs.entry()
	}
	if c <= 0 {
		docID, was, s.old = mine.entry()
	}
	if c == 0 && was == is && slices.EqualFunc(s.old, s.now, bytes.Equal) {
		return 0 // the keys are compared, too, because a seqno may exist on two branches
	}
	diff(s, docID)
	if c < 0 {
		s.removeBack(vb, docID)
	} else {
		s.putBack(vb, docID, is, s.now)
	}
	delta := len(s.now) - len(s.old)
	s.old, s.now = nil, nil // they belong to the iterators
	return delta
}

// noBack is an empty backIter.
type noBack struct{}

func (noBack) next() bool                        { return false }
func (noBack) entry() ([]byte, uint64, [][]byte) { return nil, 0, nil }
func (noBack) to(uint16)                         {}
func (noBack) close() error                      { return nil }

// purge implements engine.
func (e *pebbleEngine) purge(ctx context.Context, vbs []uint16) (done int, removed bool, err error) {
	if err := e.broken(); err != nil || len(vbs) == 0 {
		return 0, false, err
	}
	here := e.view()
	it, err := here.back(vbs[0])
	if err != nil {
		return 0, false, errors.Join(err, here.close())
	}
	e.begin()
	defer e.end()
	write := func(least int) {
		wrote, werr := e.purged(ctx, least)
		removed, err = removed || wrote, werr
	}
	for read := 0; done < len(vbs) && read < purgeReads && err == nil; done++ {
		it.to(vbs[done])
		for err == nil && it.next() {
			read++
			if docID, _, keys := it.entry(); len(keys) == 0 {
				e.scratch.removeBack(vbs[done], docID)
			}
			write(purgeStep)
		}
	}
	if err == nil {
		write(1)
	}
	if err = errors.Join(err, it.close(), here.close()); err != nil {
		return 0, removed, err
	}
	return done, removed, nil
}

// purged writes the collected removals of tombstones if there are at least so many. It reports whether it wrote any.
func (e *pebbleEngine) purged(ctx context.Context, least int) (wrote bool, err error) {
	if len(e.scratch.backs) < least {
		return false, nil
	}
	defer e.scratch.reset()
	err = e.commitOps(ctx)
	return err == nil, err
}

// commitOps writes collected changes that do not change the state.
func (e *pebbleEngine) commitOps(ctx context.Context) error {
	s := e.scratch
	size := s.cost()
	if err := e.admit(ctx, size, true); err != nil {
		return err
	}
	b := e.db.NewBatchWithSize(len(s.arena) + 8*len(s.backs) + 16)
	defer func() { _ = b.Close() }()
	err := s.fill(b)
	if err == nil {
		err = b.Commit(pebble.NoSync)
	}
	if err != nil {
		e.recent.forget(e.rotations())
		return classify(e.id, e.dir, err)
	}
	e.remember()
	return e.applied(size)
}

// verifyTable reads every block of one table and checks its checksum.
func verifyTable(ctx context.Context, fs vfs.FS, path string, o sstable.ReaderOptions, pace Pace) error {
	f, err := openUntil(ctx, fs, path, pace)
	if err != nil {
		return err
	}
	if err := checkFooter(f); err != nil {
		return errors.Join(err, f.Close())
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(ctx, readable, o)
	if err != nil {
		return err // the reader has closed the file
	}
	return errors.Join(r.ValidateBlockChecksums(), r.Close())
}

// Pace waits until n more bytes may be read, or returns the cause of ctx's end. A nil Pace does not wait.
type Pace func(ctx context.Context, n int) error

// untilFile is a file that can be read until ctx ends, at most at the given pace.
type untilFile struct {
	vfs.File
	ctx  context.Context
	pace Pace
}

// openUntil opens a file that can be read until ctx ends.
func openUntil(ctx context.Context, fs vfs.FS, path string, pace Pace) (vfs.File, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	return untilFile{f, ctx, pace}, nil
}

// may waits until n bytes may be read.
func (f untilFile) may(n int) error {
	if f.ctx.Err() != nil {
		return context.Cause(f.ctx)
	}
	if f.pace == nil {
		return nil
	}
	return f.pace(f.ctx, n)
}

// Read implements io.Reader.
func (f untilFile) Read(p []byte) (int, error) {
	if err := f.may(len(p)); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

// ReadAt implements io.ReaderAt.
func (f untilFile) ReadAt(p []byte, at int64) (int, error) {
	if err := f.may(len(p)); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, at)
}
