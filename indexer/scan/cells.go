package scan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/indexer/scan/aggregate"
)

const (
	// tableFree is how many bytes of cells a slice may have in any case, tableMost how many the slices of a node's part of
	// a scan may have together, and tableStep by how much a slice asks for more.
	tableFree = 64 << 10
	tableMost = 64 << 20
	tableStep = 256 << 10
	// MaxTables bounds the bytes of cells that all scans have on a node, beside tableFree for each slice.
	MaxTables = 256 << 20
	// maxPasses is how often rows are read for the sake of cells that did not fit.
	maxPasses = 32
	// cellOverhead is about what a cell takes beside its key and what its accs have elsewhere; accBytes is an acc's size.
	cellOverhead = 128
	accBytes     = 88
)

// tables are the bytes that the cells of all scans of this process have taken beside tableFree.
var tables room

// room is memory of which there is so much.
type room struct{ used atomic.Int64 }

func (r *room) take(n int64) bool {
	if r.used.Add(n) <= MaxTables {
		return true
	}
	r.used.Add(-n)
	return false
}

func (r *room) give(n int64) { r.used.Add(-n) }

// cells are the cells of one slice, in the order of their keys. It implements source.
//
// Cells whose order is that of the rows are given one by one. Where only a beginning of it is, as with groups by a
// component that is not the first, all cells of rows that agree in the lead, a block, are gathered in a table. When
// that is full, only those that come first are kept, and the block is read again for the others when they have been
// given: memory is bounded, and for a scan with a limit one pass may do.
type cells struct {
	rows    sliceSource // that are left
	all     []Range     // of rows of this scan, for another pass
	g       *Grouping
	of      []int // components of cells
	desc    []bool
	reverse bool
	lead    int  // see Grouping.order
	whole   bool // and there
	last    int  // component of stored keys that is looked at
	after   []byte
	skips   bool // cells up to and including those that begin with after are left out

	row     Row // the first one of the next block
	pending bool
	ended   bool // no row is left in this pass
	parts   [][]byte
	key     []byte // of the cell of the present row
	upright []byte
	block   []byte // the lead that the rows of the block have
	some    bool   // there is a block

	table   map[string]*cell
	ready   []*cell // of the block; once it has been read, in order
	given   int     // of ready
	recent  *cell
	bound   []byte // the last cell that was kept; cells behind it are for another pass
	cut     bool   // there are such
	passes  int
	size    int64 // of the table, in bytes
	allowed int64
	most    int64
	taken   int64 // of tables
	refused bool  // more was
	state   []byte
}

type cell struct {
	key  []byte
	accs []aggregate.Acc
}

// newCells makes the cells of a slice. rows are those of the request's ranges, without what stands before its After;
// slices: how many are read beside one another.
func newCells(rows sliceSource, req *NodeRequest, slices int) cells {
	g := req.Groups
	c := cells{rows: rows, all: rows.ranges, g: g, of: g.components(), desc: req.Desc, reverse: req.Reverse,
		allowed: tableFree, most: max(tableFree, tableMost/int64(slices))}
	c.lead, c.whole = g.order(len(req.Desc), len(fixedParts(req.Ranges, req.Desc)))
	c.last = c.lead - 1
	for _, o := range c.of {
		c.last = max(c.last, o)
	}
	for _, p := range g.Of {
		c.last = max(c.last, p.Component)
	}
	if req.After != nil {
		c.after, c.skips = req.After.Key, true
	}
	return c
}

// next implements source: a row whose key is the cell's, and whose document's id is its state.
func (c *cells) next() (Row, error) {
	for c.given == len(c.ready) {
		if c.ended && !c.cut {
			return Row{}, io.EOF
		}
		if err := c.gather(); err != nil {
			return Row{}, err
		}
	}
	cell := c.ready[c.given]
	c.given++
	c.state = c.state[:0]
	for i := range cell.accs {
		c.state = cell.accs[i].AppendState(c.state)
	}
	return Row{Key: cell.key, DocID: c.state}, nil
}

// gather reads the rows of a block.
func (c *cells) gather() error {
	if err := c.begin(); err != nil {
		return err
	}
	for {
		row, err := c.take()
		if errors.Is(err, io.EOF) {
			c.ended = true
			break
		}
		if err != nil {
			return err
		}
		lead, err := c.look(row)
		if err != nil {
			return err
		}
		if c.some && !bytes.Equal(lead, c.block) {
			c.row, c.pending = row, true
			break
		}
		if !c.some {
			c.block, c.some = append(c.block[:0], lead...), true
		}
		if !c.leftOut() {
			c.add()
		}
	}
	c.sort()
	return nil
}

// begin makes room for a block: for what did not fit of the one before, or for the next one.
func (c *cells) begin() error {
	if c.cut {
		if c.passes++; c.passes == maxPasses {
			return c.tooMany()
		}
		c.after, c.skips = bytes.Clone(c.ready[len(c.ready)-1].key), true
		if err := c.rows.close(); err != nil {
			return err
		}
		c.rows.ranges = from(c.all, c.block, true, c.reverse)
		c.pending, c.ended = false, false
	} else {
		c.passes = 0
	}
	c.some, c.cut, c.bound, c.given, c.size = false, false, nil, 0, 0
	if len(c.ready) > 1 {
		c.ready, c.recent, c.table = nil, nil, nil
	}
	if len(c.ready) == 1 { // the next cell takes its room
		c.recent, c.ready = c.ready[0], c.ready[:0]
		clear(c.table)
	}
	return nil
}

func (c *cells) tooMany() error {
	if c.refused {
		return Errorf(errcode.Busy, "the aggregates that are under way on this indexer take %d MiB, the most there are: try "+
			"again", MaxTables>>20)
	}
	return Errorf(errcode.LimitExceeded, "there are more groups than %d passes with %d KiB of them give: group by the "+
		"first components of the key, which takes no memory, or give a limit, or narrower bounds", maxPasses, c.most>>10)
}

// take returns the next row.
func (c *cells) take() (Row, error) {
	if c.pending {
		c.pending = false
		return c.row, nil
	}
	return c.rows.next()
}

// look cuts a row's key into components, makes the key of its cell, and returns its lead.
func (c *cells) look(row Row) (lead []byte, err error) {
	c.parts, lead = c.parts[:0], row.Key[:0]
	for rest := row.Key; len(c.parts) <= c.last; {
		part, behind, err := collate.Next(rest, c.desc[len(c.parts)])
		if err != nil {
			return nil, Errorf(errcode.Damaged, "a stored key of document %q: %w", row.DocID, err)
		}
		c.parts, rest = append(c.parts, part), behind
		if len(c.parts) == c.lead {
			lead = row.Key[:len(row.Key)-len(rest)]
		}
	}
	c.key = c.key[:0]
	for _, o := range c.of {
		if o == EachDocument {
			c.key = collate.AppendString(c.key, row.DocID)
		} else {
			c.key = append(c.key, c.parts[o]...)
		}
	}
	return lead, nil
}

// leftOut reports whether the present row's cell has been given, or is for another pass.
func (c *cells) leftOut() bool {
	if c.recent != nil && len(c.ready) > 0 && bytes.Equal(c.key, c.recent.key) {
		return false
	}
	if c.skips {
		if bytes.HasPrefix(c.key, c.after) {
			return true
		}
		if n := bytes.Compare(c.key, c.after); n < 0 != c.reverse {
			return true
		}
	}
	return c.cut && c.behind(c.key, c.bound)
}

// behind reports whether a cell comes behind another one.
func (c *cells) behind(a, b []byte) bool {
	n := bytes.Compare(a, b)
	return n > 0 && !c.reverse || n < 0 && c.reverse
}

// add adds the present row to its cell.
func (c *cells) add() {
	one := c.cellOf()
	for i := range one.accs {
		a, p := &one.accs[i], c.g.Of[i].Component
		if a.Op == aggregate.Rows {
			a.Add(nil)
			continue
		}
		v := c.parts[p]
		if c.desc[p] {
			c.upright = append(c.upright[:0], v...)
			collate.Complement(c.upright)
			v = c.upright
		}
		if c.whole {
			a.Add(v)
			continue
		}
		before := a.Bytes()
		a.Add(v)
		c.size += int64(a.Bytes() - before)
	}
	if c.size > c.allowed && !c.whole {
		c.limit()
	}
}

// cellOf returns the present row's cell.
func (c *cells) cellOf() *cell {
	if c.recent != nil && len(c.ready) > 0 {
		if bytes.Equal(c.key, c.recent.key) {
			return c.recent
		}
		if one := c.table[string(c.key)]; one != nil {
			c.recent = one
			return one
		}
	}
	one := c.recent
	if one != nil && len(c.ready) == 0 { // of the block before
		one.key = append(one.key[:0], c.key...)
		for i := range one.accs {
			one.accs[i].Reset()
			c.size += int64(one.accs[i].Bytes())
		}
	} else {
		one = &cell{key: bytes.Clone(c.key), accs: c.g.accs()}
	}
	if !c.whole {
		if c.table == nil {
			c.table = map[string]*cell{}
		}
		c.table[string(one.key)] = one
	}
	c.recent, c.ready = one, append(c.ready, one)
	c.size += one.bytes()
	return one
}

// bytes is what a cell takes but for what its accs have elsewhere.
func (o *cell) bytes() int64 { return int64(cellOverhead + 2*len(o.key) + accBytes*len(o.accs)) }

// limit takes more memory, or keeps only the cells that come first.
func (c *cells) limit() {
	for c.size > c.allowed {
		if c.allowed+tableStep <= c.most {
			if tables.take(tableStep) {
				c.taken, c.allowed = c.taken+tableStep, c.allowed+tableStep
				continue
			}
			c.refused = true
		}
		if len(c.ready) == 1 { // one there always is
			return
		}
		c.sort()
		clear(c.ready[(len(c.ready)+1)/2:])
		c.ready = c.ready[:(len(c.ready)+1)/2]
		c.recent = c.ready[len(c.ready)-1]
		c.bound, c.cut = c.recent.key, true
		c.size = 0
		c.table = make(map[string]*cell, len(c.ready))
		for _, one := range c.ready {
			c.table[string(one.key)] = one
			c.size += one.bytes()
			for i := range one.accs {
				c.size += int64(one.accs[i].Bytes())
			}
		}
	}
}

// sort puts the cells of a block into their order.
func (c *cells) sort() {
	slices.SortFunc(c.ready, func(a, b *cell) int {
		if c.reverse {
			a, b = b, a
		}
		return bytes.Compare(a.key, b.key)
	})
}

func (c *cells) close() error {
	tables.give(c.taken)
	c.taken = 0
	return c.rows.close()
}

// joining joins the equal cells of a node's slices, as the merge has them one behind the other, and ends behind so many
// groups.
type joining struct {
	g      *Grouping
	desc   []bool // of cells
	limit  int64  // groups; 0: none
	groups int64  // that have begun
	group  []byte // the present one
	key    []byte
	state  []byte
	accs   []aggregate.Acc
}

// next takes a cell of the merge; false when there is none, or the limit is reached.
func (j *joining) next(m *merger) (Row, bool, error) {
	top, _, ok := m.top()
	if !ok {
		return Row{}, false, nil
	}
	group, err := leadingParts(top.Key, len(j.g.By), j.desc)
	if err != nil {
		return Row{}, false, err
	}
	if j.groups == 0 || !bytes.Equal(group, j.group) {
		if j.groups == j.limit && j.limit > 0 {
			return Row{}, false, nil
		}
		j.groups++
		j.group = append(j.group[:0], group...)
	}
	j.key, j.state = append(j.key[:0], top.Key...), append(j.state[:0], top.DocID...)
	if err := m.advance(); err != nil {
		return Row{}, false, err
	}
	if top, _, ok = m.top(); ok && bytes.Equal(top.Key, j.key) {
		err = j.others(m)
	}
	return Row{Key: j.key, DocID: j.state}, err == nil, err
}

// others joins the cells of other slices with the one that was taken.
func (j *joining) others(m *merger) error {
	j.accs = j.g.accs()
	if err := joinState(j.accs, j.state); err != nil {
		return err
	}
	for top, _, ok := m.top(); ok && bytes.Equal(top.Key, j.key); top, _, ok = m.top() {
		if err := joinState(j.accs, top.DocID); err != nil {
			return err
		}
		if err := m.advance(); err != nil {
			return err
		}
	}
	j.state = j.state[:0]
	for i := range j.accs {
		j.state = j.accs[i].AppendState(j.state)
	}
	return nil
}

// joinState adds a cell's state.
func joinState(accs []aggregate.Acc, state []byte) (err error) {
	for i := range accs {
		if state, err = accs[i].Join(state); err != nil {
			return Errorf(errcode.Internal, "a cell: %w", err)
		}
	}
	if len(state) > 0 {
		return Errorf(errcode.Internal, "a cell: %w", fmt.Errorf("%w: %d bytes follow it", aggregate.ErrState, len(state)))
	}
	return nil
}

// folding makes groups of the cells of all nodes, which the merge has one behind the other.
type folding struct {
	g     *groups
	desc  []bool // of cells
	some  bool   // there is a group that cells may still belong to
	given bool   // a group was there
	key   []byte // of the present group
	cell  []byte // the newest one
	accs  []aggregate.Acc
	each  []aggregate.Acc // of the outcomes of different values
	value []byte
	text  []byte
}

func newFolding(g *groups, desc []bool) *folding {
	f := &folding{g: g, desc: g.desc(desc)}
	for _, o := range g.results {
		f.each = append(f.each, aggregate.Acc{Op: o.op})
	}
	return f
}

// begin begins a group.
func (f *folding) begin(key []byte) {
	f.some, f.given = true, true
	f.key, f.cell = append(f.key[:0], key...), f.cell[:0]
	f.accs = f.g.accs()
	for i := range f.each {
		f.each[i].Reset()
	}
}

// add adds a cell of the present group.
func (f *folding) add(c Row) error {
	if err := joinState(f.accs, c.DocID); err != nil {
		return err
	}
	if f.g.Each == EachNone || bytes.Equal(c.Key, f.cell) {
		return nil
	}
	f.cell = append(f.cell[:0], c.Key...)
	f.value = append(f.value[:0], c.Key[len(f.key):]...)
	if f.desc[len(f.desc)-1] {
		collate.Complement(f.value)
	}
	for i := range f.each {
		if f.g.results[i].partial < 0 {
			f.each[i].Add(f.value)
		}
	}
	return nil
}

// end returns the present group as a row: in the place of a document's id stands a JSON array of the results.
func (f *folding) end() (Row, error) {
	f.some = false
	f.text = append(f.text[:0], '[')
	for i, o := range f.g.results {
		if i > 0 {
			f.text = append(f.text, ',')
		}
		a := &f.each[i]
		if o.partial >= 0 {
			a = &f.accs[o.partial]
		}
		var err error
		if f.text, err = a.AppendResult(f.text); err != nil {
			return Row{}, Errorf(errcode.Damaged, "a stored key: %w", err)
		}
	}
	f.text = append(f.text, ']')
	return Row{Key: f.key, DocID: f.text}, nil
}

// fold adds a cell to its group, and gives the group before, if it is whole.
func (r *run) fold(c Row) error {
	f := r.folding
	group, err := leadingParts(c.Key, len(f.g.By), f.desc)
	if err != nil {
		return err
	}
	if f.some && !bytes.Equal(group, f.key) {
		if err := r.endGroup(); err != nil {
			return err
		}
	}
	if !f.some {
		f.begin(group)
	}
	return f.add(c)
}

// endGroup gives the present group.
func (r *run) endGroup() error {
	row, err := r.folding.end()
	if err != nil {
		return err
	}
	return r.put(row)
}

// endGroups gives the last group, when no cell is left. All rows are one group where nothing tells groups apart, also
// when there is no row.
func (r *run) endGroups() error {
	f := r.folding
	if !f.some && !f.given && len(f.g.By) == 0 && r.after == nil {
		f.begin(nil)
	}
	if !f.some {
		return nil
	}
	return r.endGroup()
}
