package scan

import (
	"bytes"
	"slices"
	"sync/atomic"

	"tidemark/errcode"
	"tidemark/indexer/scan/aggregate"
)

const (
	// tableFree is the number of bytes of cells that every slice may have, tableMost the limit for the slices of a
	// node's part of a scan together, and tableStep the increment by which a slice reserves more.
	tableFree = 64 << 10
	tableMost = 64 << 20
	tableStep = 256 << 10
	// MaxTables bounds the bytes of cells of all scans on a node, in addition to tableFree for each slice.
	MaxTables = 256 << 20
	// cellOverhead is the approximate size of a cell without its key and what its accs have allocated; accBytes is
	// the size of an acc.
	cellOverhead = 128
	accBytes     = 88
)

// tables counts the bytes reserved for cells by all scans of this process, beyond tableFree.
var tables room

// room is a memory budget of MaxTables bytes.
type room struct{ used atomic.Int64 }

func (r *room) take(n int64) bool {
	if r.used.Add(n) <= MaxTables {
		return true
	}
	r.used.Add(-n)
	return false
}

func (r *room) give(n int64) { r.used.Add(-n) }

// table holds the cells of a block in bounded memory: when it is full, it keeps only the cells that come first.
type table struct {
	reverse bool
	single  bool // a block has only one cell: all of its rows have the cell's key

	byKey  map[string]*cell // nil if single
	cells  []*cell          // sorted after sort
	given  int              // number of cells returned
	recent *cell            // the cell found last; while cells is empty: a cell whose memory is reused
	bound  []byte           // the last cell kept; cells after it are for another pass
	cut    bool             // there are such cells

	size    int64 // in bytes
	allowed int64
	most    int64
	taken   int64 // of tables
	refused bool  // a further reservation was refused
}

type cell struct {
	key  []byte
	accs []aggregate.Acc
}

// next returns the next cell of a block that was read; nil when all were returned.
func (t *table) next() *cell {
	if t.given == len(t.cells) {
		return nil
	}
	t.given++
	return t.cells[t.given-1]
}

// last returns the key of the last cell.
func (t *table) last() []byte { return t.cells[len(t.cells)-1].key }

// reset empties the table for a block.
func (t *table) reset() {
	t.cut, t.bound, t.given, t.size = false, nil, 0, 0
	switch len(t.cells) {
	case 0:
	case 1: // the next cell reuses its memory
		t.recent, t.cells = t.cells[0], t.cells[:0]
		clear(t.byKey)
	default:
		t.cells, t.recent, t.byKey = nil, nil, nil
	}
}

// tooMany returns the error for cells that did not fit after all passes.
func (t *table) tooMany() error {
	if t.refused {
		return Errorf(errcode.Busy, "running aggregates on this indexer use %d MiB, its limit: try again", MaxTables>>20)
	}
	return Errorf(errcode.LimitExceeded, "there are more groups than %d passes of %d KiB can return: group by the "+
		"first components of the key, which needs no memory, or set a limit or narrower bounds", maxPasses, t.most>>10)
}

// isRecent reports whether a key is that of the cell found last.
func (t *table) isRecent(key []byte) bool {
	return t.recent != nil && len(t.cells) > 0 && bytes.Equal(key, t.recent.key)
}

// tooLate reports whether a key's cell is for another pass.
func (t *table) tooLate(key []byte) bool {
	if !t.cut {
		return false
	}
	n := bytes.Compare(key, t.bound)
	return n > 0 && !t.reverse || n < 0 && t.reverse
}

// cell returns the cell of a key, which it creates if needed.
func (t *table) cell(key []byte, g *Grouping) *cell {
	if t.isRecent(key) {
		return t.recent
	}
	if len(t.cells) > 0 {
		if one := t.byKey[string(key)]; one != nil {
			t.recent = one
			return one
		}
	}
	one := t.recent
	if one != nil && len(t.cells) == 0 { // of the previous block
		one.key = append(one.key[:0], key...)
		for i := range one.accs {
			one.accs[i].Reset()
			t.size += int64(one.accs[i].Bytes())
		}
	} else {
		one = &cell{key: bytes.Clone(key), accs: g.accs()}
	}
	if !t.single {
		if t.byKey == nil {
			t.byKey = map[string]*cell{}
		}
		t.byKey[string(one.key)] = one
	}
	t.recent, t.cells = one, append(t.cells, one)
	t.size += one.bytes()
	return one
}

// bytes returns the size of a cell without what its accs have allocated.
func (o *cell) bytes() int64 { return int64(cellOverhead + 2*len(o.key) + accBytes*len(o.accs)) }

// limit reserves more memory if the cells need it, or drops the cells that come last.
func (t *table) limit() {
	for t.size > t.allowed && !t.single {
		if t.allowed+tableStep <= t.most {
			if tables.take(tableStep) {
				t.taken, t.allowed = t.taken+tableStep, t.allowed+tableStep
				continue
			}
			t.refused = true
		}
		if len(t.cells) == 1 { // one cell must remain
			return
		}
		t.halve()
	}
}

// halve drops the half of the cells that come last.
func (t *table) halve() {
	t.sort()
	clear(t.cells[(len(t.cells)+1)/2:])
	t.cells = t.cells[:(len(t.cells)+1)/2]
	t.recent = t.cells[len(t.cells)-1]
	t.bound, t.cut = t.recent.key, true
	t.size = 0
	t.byKey = make(map[string]*cell, len(t.cells))
	for _, one := range t.cells {
		t.byKey[string(one.key)] = one
		t.size += one.bytes()
		for i := range one.accs {
			t.size += int64(one.accs[i].Bytes())
		}
	}
}

// sort sorts the cells.
func (t *table) sort() {
	slices.SortFunc(t.cells, func(a, b *cell) int {
		if t.reverse {
			a, b = b, a
		}
		return bytes.Compare(a.key, b.key)
	})
}

// close releases the reserved memory.
func (t *table) close() {
	tables.give(t.taken)
	t.taken = 0
}
