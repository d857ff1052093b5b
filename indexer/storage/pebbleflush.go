package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"tidemark/timestamp"
)

const (
	// maxScratch bounds the memory of one flush that is kept for reuse.
	maxScratch = 8 << 20
	// keptScratches bounds how many are kept for all copies together: about as many as write concurrently.
	keptScratches = 4
)

// scratch is the memory of one flush, reused by later flushes of any copy: a node has many more copies than writers.
type scratch struct {
	arena []byte
	ops   []op // of forward rows
	backs []op // of back entries
	old   [][]byte
	now   [][]byte
	key   []byte
	index int64 // additional cost of long keys, which are also in a table's index
	kept  int64 // bytes of backs, which are kept a second time, see recent

	touched int // entries written, changed or removed
}

// longKey is the size from which on a key counts in a table's index: a few such keys fill a block.
const longKey = 1 << 10

// scratches holds the unused scratches.
type scratches struct {
	mu   sync.Mutex
	free []*scratch
}

// take returns an empty scratch. The caller returns it with put.
func (p *scratches) take() *scratch {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		return &scratch{}
	}
	s := p.free[n-1]
	p.free = p.free[:n-1]
	return s
}

// put keeps a scratch for reuse, without anything that it refers to.
func (p *scratches) put(s *scratch) {
	s.reset()
	clear(s.old[:cap(s.old)])
	clear(s.now[:cap(s.now)])
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < keptScratches {
		p.free = append(p.free, s)
	}
}

// begin takes the memory for one write. The writer returns it with end.
func (e *pebbleEngine) begin() {
	e.writing.Lock()
	e.scratch = e.res.scratches.take()
}

func (e *pebbleEngine) end() {
	e.res.scratches.put(e.scratch)
	e.scratch = nil
	e.writing.Unlock()
}

// settle releases memory of recent for batches that are in tables by now. Otherwise the next write would do that.
func (e *pebbleEngine) settle() {
	e.reap()
	if !e.writing.TryLock() {
		return // the writer does it
	}
	defer e.writing.Unlock()
	e.forgetWritten()
}

// cost returns the size of the collected changes in memory and on disk.
func (s *scratch) cost() int64 {
	return int64(len(s.arena)) + entryOverhead*int64(len(s.ops)+len(s.backs)) + s.index + s.kept
}

func (s *scratch) weigh(key []byte) {
	if len(key) > longKey {
		s.index += int64(len(key))
	}
}

// op is a change of one record, whose bytes are in the arena. MaxBatchBytes keeps all offsets below 4 GiB.
type op struct {
	set              bool
	from, value, end uint32
}

func (s *scratch) reset() {
	if cap(s.arena)+(cap(s.ops)+cap(s.backs))*16 > maxScratch {
		*s = scratch{}
	}
	s.arena, s.ops, s.backs, s.index, s.kept = s.arena[:0], s.ops[:0], s.backs[:0], 0, 0
	s.touched = 0
}

func (s *scratch) putFwd(key, docID []byte) {
	s.weigh(key)
	from := uint32(len(s.arena))
	s.arena = appendFwdKey(s.arena, key, docID)
	mid := uint32(len(s.arena))
	s.arena = binary.AppendUvarint(s.arena, uint64(len(docID)))
	s.ops = append(s.ops, op{true, from, mid, uint32(len(s.arena))})
}

func (s *scratch) removeFwd(key, docID []byte) {
	s.weigh(key)
	from := uint32(len(s.arena))
	s.arena = appendFwdKey(s.arena, key, docID)
	end := uint32(len(s.arena))
	s.ops = append(s.ops, op{false, from, end, end})
}

func (s *scratch) putBack(vb uint16, docID []byte, seqno uint64, keys [][]byte) {
	from := uint32(len(s.arena))
	s.arena = appendBackKey(s.arena, vb, docID)
	mid := uint32(len(s.arena))
	s.arena = appendBackValue(s.arena, seqno, keys)
	s.addBack(op{true, from, mid, uint32(len(s.arena))})
}

func (s *scratch) removeBack(vb uint16, docID []byte) {
	from := uint32(len(s.arena))
	s.arena = appendBackKey(s.arena, vb, docID)
	end := uint32(len(s.arena))
	s.addBack(op{false, from, end, end})
}

func (s *scratch) addBack(o op) {
	s.backs = append(s.backs, o)
	s.kept += int64(o.end-o.from) + recentWeight
}

// order sorts the changes by key. Those of back entries are usually created in order.
func (s *scratch) order() {
	byKey := func(x, y op) int { return bytes.Compare(s.arena[x.from:x.value], s.arena[y.from:y.value]) }
	slices.SortFunc(s.ops, byKey)
	if !slices.IsSortedFunc(s.backs, byKey) {
		slices.SortFunc(s.backs, byKey)
	}
}

// flush implements engine.
func (e *pebbleEngine) flush(ctx context.Context, updates []*Update, keep func(uint16) bool, next *state, idle,
	yields bool) (touched int, err error) {
	if err := e.broken(); err != nil {
		return 0, err
	}
	idle = idle || len(updates) == 0 && e.full()
	if idle && next.items == 0 {
		updates = stating(updates, keep)
	}
	if idle && len(updates) == 0 {
		next.number--
		return 0, nil
	}
	e.begin()
	defer e.end()
	items, err := e.collect(updates, keep)
	if err != nil {
		return 0, classify(e.id, e.dir, err)
	}
	if idle && len(e.scratch.ops)+len(e.scratch.backs) == 0 {
		next.number--
		return 0, nil
	}
	next.items += items
	return e.scratch.touched, e.commit(ctx, next, yields)
}

// full reports whether there is no space for a batch. A batch that changes positions only is then applied in memory,
// like one with Batch.Common: its position is ahead of what is stored, and after a crash the copy advances to it
// again. So a copy that starts on a full disk reaches the present timestamp, and can be read, if it lacks no rows.
func (e *pebbleEngine) full() bool {
	return errors.Is(e.failing(), ErrDiskFull) || errors.Is(e.res.space.room(minMemTable), ErrDiskFull)
}

// stating removes updates that change nothing in a slice without rows: documents without keys. It works in place.
func stating(updates []*Update, keep func(uint16) bool) []*Update {
	return slices.DeleteFunc(updates, func(u *Update) bool {
		return len(u.Keys) == 0 &&
			(keep == nil || !keep(u.VBucket))
	})
}

// collect collects the changes of the updates, and returns by how much the number of rows changes. The updates must
// be in the order of their back entries.
func (e *pebbleEngine) collect(updates []*Update, keep func(uint16) bool) (items int64, err error) {
	if len(updates) == 0 {
		return 0, nil
	}
	l := e.lookup()
	defer func() { err = errors.Join(err, l.close()) }()
	for _, u := range updates {
		n, err := e.change(&l, u, keep != nil && keep(u.VBucket))
		if err != nil {
			return 0, err
		}
		items += int64(n)
	}
	return items, nil
}

// change collects the changes of one update, and returns by how much the number of rows changes.
func (e *pebbleEngine) change(l *lookup, u *Update, keep bool) (int, error) {
	s := e.scratch
	s.key = appendBackKey(s.key[:0], u.VBucket, u.DocID)
	v, found, err := l.find(s.key)
	if err != nil {
		return 0, err
	}
	s.old = s.old[:0]
	if found {
		var seqno uint64
		if seqno, s.old, err = decodeBackValue(s.old, v); err != nil {
			return 0, &CorruptError{Copy: e.id, File: e.dir, Err: err}
		}
		if seqno >= u.Seqno {
			return 0, nil
		}
	}
	s.now = sortedSet(s.now, u.Keys)
	diff(s, u.DocID)
	s.touched += max(len(s.old), len(s.now))
	switch {
	case len(s.now) > 0 || keep:
		s.putBack(u.VBucket, u.DocID, u.Seqno, s.now)
	case found:
		s.removeBack(u.VBucket, u.DocID)
	}
	return len(s.now) - len(s.old), nil
}

// diff removes the forward rows of old keys that are not among the new ones, and adds those of the other new ones.
// Both lists must be sorted.
func diff(s *scratch, docID []byte) {
	i, j := 0, 0
	for i < len(s.old) || j < len(s.now) {
		c := 0
		switch {
		case i == len(s.old):
			c = 1
		case j == len(s.now):
			c = -1
		default:
			c = bytes.Compare(s.old[i], s.now[j])
		}
		switch {
		case c < 0:
			s.removeFwd(s.old[i], docID)
			i++
		case c > 0:
			s.putFwd(s.now[j], docID)
			j++
		default:
			i, j = i+1, j+1
		}
	}
}

// commit writes the collected changes and the state after them as one batch.
func (e *pebbleEngine) commit(ctx context.Context, next *state, yields bool) error {
	s := e.scratch
	s.order()
	size := s.cost()
	if err := e.admit(ctx, size, yields); err != nil {
		return err
	}
	b := e.db.NewBatchWithSize(len(s.arena) + 8*(len(s.ops)+len(s.backs)) + 4096)
	defer func() { _ = b.Close() }()
	if err := s.fill(b); err != nil {
		return classify(e.id, e.dir, err)
	}
	full := e.fresh || next.number%stateSlots == 0
	n, err := putState(b, &e.opened, next, full)
	if err != nil {
		return classify(e.id, e.dir, err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		e.recent.forget(e.rotations())
		return classify(e.id, e.dir, err)
	}
	e.fresh = false
	e.opened = *next
	e.remember()
	return e.applied(size + int64(n))
}

// remember keeps the back entries of a committed batch in recent.
func (e *pebbleEngine) remember() {
	rotation := e.rotations()
	for _, o := range e.scratch.backs {
		e.recent.note(rotation, e.scratch.arena[o.from:o.value], e.scratch.arena[o.value:o.end], !o.set)
	}
}

// fill adds the changes to the batch, in the order of their keys.
func (s *scratch) fill(b *pebble.Batch) error {
	if err := s.fillOps(b, s.backs); err != nil {
		return err
	}
	return s.fillOps(b, s.ops)
}

func (s *scratch) fillOps(b *pebble.Batch, ops []op) error {
	for _, o := range ops {
		if !o.set {
			d := b.DeleteDeferred(int(o.value - o.from))
			copy(d.Key, s.arena[o.from:o.value])
			if err := d.Finish(); err != nil {
				return err
			}
			continue
		}
		d := b.SetDeferred(int(o.value-o.from), int(o.end-o.value))
		copy(d.Key, s.arena[o.from:o.value])
		copy(d.Value, s.arena[o.value:o.end])
		if err := d.Finish(); err != nil {
			return err
		}
	}
	return nil
}

// putState adds the state record and the failover logs that have changed since they were last written, and returns
// their size.
func putState(b *pebble.Batch, prev, next *state, full bool) (int, error) {
	var vbs []uint16
	size := 0
	for vb := range next.positions {
		if next.positions[vb] != prev.positions[vb] {
			vbs = append(vbs, uint16(vb))
		}
		if sameLog(next.logs[vb], prev.logs[vb]) {
			continue
		}
		v := timestamp.AppendLog(nil, next.logs[vb])
		if err := b.Set(logKey(uint16(vb)), v, nil); err != nil {
			return 0, err
		}
		size += len(v) + entryOverhead
	}
	record, err := appendStateRecord(nil, prev, next, vbs, full)
	if err != nil {
		return 0, err
	}
	return size + len(record), b.Set([]byte{tagState, stateSlot(next.number, full)}, record, nil)
}

// sameLog is Equal, but fast for identical slices.
func sameLog(a, b timestamp.FailoverLog) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || a.Equal(b))
}

// collectState reads logs and then state records, in key order.
func collectState(s *state, it *pebble.Iterator) error {
	var full stateRecord
	var later []stateRecord
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if k := it.Key(); k[0] == tagLog {
			if err := s.takeLog(k, v); err != nil {
				return err
			}
			continue
		}
		r, err := parseStateRecord(slices.Clone(v))
		if err != nil {
			return err
		}
		if r.flags&flagFull != 0 {
			full = r
		} else {
			later = append(later, r)
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	if full.rest == nil {
		if len(later) > 0 {
			return fmt.Errorf("%w: changes of state without a full record", errRecord)
		}
		return nil // nothing has been written yet
	}
	if err := s.apply(full); err != nil {
		return err
	}
	slices.SortFunc(later, func(x, y stateRecord) int { return int(int64(x.number - y.number)) })
	for _, r := range later {
		if r.number <= full.number {
			continue
		}
		if r.number != s.number+1 {
			return fmt.Errorf("%w: state %d comes after %d", errRecord, r.number, s.number)
		}
		if err := s.apply(r); err != nil {
			return err
		}
	}
	return nil
}

func (s *state) takeLog(k, v []byte) error {
	if len(k) != 3 || int(binary.BigEndian.Uint16(k[1:])) >= len(s.logs) {
		return fmt.Errorf("failover log: %w", errRecord)
	}
	log, rest, err := timestamp.DecodeLog(v)
	if err != nil || len(rest) > 0 {
		return errors.Join(fmt.Errorf("failover log: %w", errRecord), err)
	}
	s.logs[binary.BigEndian.Uint16(k[1:])] = log
	return nil
}
