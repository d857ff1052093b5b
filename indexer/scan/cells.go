package scan

import (
	"bytes"
	"errors"
	"io"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/indexer/scan/aggregate"
)

// maxPasses bounds how often rows are read again for cells that did not fit in memory.
const maxPasses = 32

// cells is the source of the cells of one slice, in the order of their keys.
//
// Cells whose order is that of the rows are returned one by one. If only a prefix of their order is, as with groups
// by a component that is not the first, all cells of rows with the same prefix (the lead), a block, are gathered in a
// table. When the table is full, it keeps the cells that come first, and the block is read again for the others after
// these have been returned. So memory is bounded, and for a scan with a limit one pass may suffice.
type cells struct {
	rows    sliceSource // the remaining rows of this pass
	all     []Range     // ranges of the scan's rows, for another pass
	g       *Grouping
	keys    cellKeys
	reverse bool
	after   []byte
	skips   bool // leave out cells up to and including those with prefix after

	row     Row // first row of the next block
	pending bool
	ended   bool   // this pass has no further row
	block   []byte // lead of the block's rows
	some    bool   // block is set
	passes  int
	table   table
	state   []byte
}

// newCells returns the cells of a slice. rows has the rows of the request's ranges, without what precedes its After;
// slices is the number of slices that are read concurrently.
func newCells(rows sliceSource, req *NodeRequest, slices int) cells {
	g := req.Groups
	c := cells{rows: rows, all: rows.ranges, g: g, keys: cellKeys{of: g.components(), desc: req.Desc},
		reverse: req.Reverse, table: table{reverse: req.Reverse, allowed: tableFree,
			most: max(tableFree, tableMost/int64(slices))}}
	c.keys.lead, c.table.single = g.order(len(req.Desc), len(fixedParts(req.Ranges, req.Desc)))
	c.keys.last = c.keys.lead - 1
	for _, o := range c.keys.of {
		c.keys.last = max(c.keys.last, o)
	}
	for _, p := range g.Of {
		c.keys.last = max(c.keys.last, p.Component)
	}
	if req.After != nil {
		c.after, c.skips = req.After.Key, true
	}
	return c
}

// next implements source. In the row that it returns, the key is the cell's and the document id holds its state.
func (c *cells) next() (Row, error) {
	for {
		if one := c.table.next(); one != nil {
			c.state = c.state[:0]
			for i := range one.accs {
				c.state = one.accs[i].AppendState(c.state)
			}
			return Row{Key: one.key, DocID: c.state}, nil
		}
		if c.ended && !c.table.cut {
			return Row{}, io.EOF
		}
		if err := c.gather(); err != nil {
			return Row{}, err
		}
	}
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
		lead, err := c.keys.look(row)
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
	c.table.sort()
	return nil
}

// begin starts a block: another pass for the cells that did not fit, or the next block.
func (c *cells) begin() error {
	if c.table.cut {
		if c.passes++; c.passes == maxPasses {
			return c.table.tooMany()
		}
		c.after, c.skips = bytes.Clone(c.table.last()), true
		if err := c.rows.close(); err != nil {
			return err
		}
		c.rows.ranges = from(c.all, c.block, true, c.reverse)
		c.pending, c.ended = false, false
	} else {
		c.passes = 0
	}
	c.some = false
	c.table.reset()
	return nil
}

// take returns the next row.
func (c *cells) take() (Row, error) {
	if c.pending {
		c.pending = false
		return c.row, nil
	}
	return c.rows.next()
}

// leftOut reports whether the current row's cell has been returned already, or belongs to another pass.
func (c *cells) leftOut() bool {
	key := c.keys.key
	if c.table.isRecent(key) {
		return false
	}
	if c.skips {
		if bytes.HasPrefix(key, c.after) {
			return true
		}
		if n := bytes.Compare(key, c.after); n < 0 != c.reverse {
			return true
		}
	}
	return c.table.tooLate(key)
}

// add adds the current row to its cell.
func (c *cells) add() {
	one := c.table.cell(c.keys.key, c.g)
	for i := range one.accs {
		a := &one.accs[i]
		if a.Op == aggregate.Rows {
			a.Add(nil)
			continue
		}
		if c.table.single { // its memory is not counted
			a.Add(c.keys.value(c.g.Of[i].Component))
			continue
		}
		before := a.Bytes()
		a.Add(c.keys.value(c.g.Of[i].Component))
		c.table.size += int64(a.Bytes() - before)
	}
	c.table.limit()
}

func (c *cells) close() error {
	c.table.close()
	return c.rows.close()
}

// cellKeys computes the keys of cells from rows.
type cellKeys struct {
	of   []int  // components of the cells
	desc []bool // of the rows
	lead int    // see Grouping.order
	last int    // last component of stored keys that is needed

	parts   [][]byte // of the current row
	key     []byte   // of the current row's cell
	upright []byte
}

// look splits a row's key into components, sets the key of its cell, and returns its lead.
func (k *cellKeys) look(row Row) (lead []byte, err error) {
	k.parts, lead = k.parts[:0], row.Key[:0]
	for rest := row.Key; len(k.parts) <= k.last; {
		part, behind, err := collate.Next(rest, k.desc[len(k.parts)])
		if err != nil {
			return nil, Errorf(errcode.Damaged, "a stored key of document %q: %w", row.DocID, err)
		}
		k.parts, rest = append(k.parts, part), behind
		if len(k.parts) == k.lead {
			lead = row.Key[:len(row.Key)-len(rest)]
		}
	}
	k.key = k.key[:0]
	for _, o := range k.of {
		if o == EachDocument {
			k.key = collate.AppendString(k.key, row.DocID)
		} else {
			k.key = append(k.key, k.parts[o]...)
		}
	}
	return lead, nil
}

// value returns a component of the current row in ascending encoding.
func (k *cellKeys) value(component int) []byte {
	v := k.parts[component]
	if !k.desc[component] {
		return v
	}
	k.upright = append(k.upright[:0], v...)
	collate.Complement(k.upright)
	return k.upright
}
