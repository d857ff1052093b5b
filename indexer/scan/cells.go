package scan

import (
	"bytes"
	"errors"
	"io"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/indexer/scan/aggregate"
)

// maxPasses is how often rows are read for the sake of cells that did not fit.
const maxPasses = 32

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
	keys    cellKeys
	reverse bool
	after   []byte
	skips   bool // cells up to and including those that begin with after are left out

	row     Row // the first one of the next block
	pending bool
	ended   bool   // no row is left in this pass
	block   []byte // the lead that the rows of the block have
	some    bool   // there is a block
	passes  int
	table   table
	state   []byte
}

// newCells makes the cells of a slice. rows are those of the request's ranges, without what stands before its After;
// slices: how many are read beside one another.
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

// next implements source: a row whose key is the cell's, and whose document's id is its state.
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

// begin makes room for a block: for what did not fit of the one before, or for the next one.
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

// leftOut reports whether the present row's cell has been given, or is for another pass.
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

// add adds the present row to its cell.
func (c *cells) add() {
	one := c.table.cell(c.keys.key, c.g)
	for i := range one.accs {
		a := &one.accs[i]
		if a.Op == aggregate.Rows {
			a.Add(nil)
			continue
		}
		if c.table.single { // nothing is counted of it
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

// cellKeys makes the keys of cells of rows.
type cellKeys struct {
	of   []int  // components of cells
	desc []bool // of rows
	lead int    // see Grouping.order
	last int    // component of stored keys that is looked at

	parts   [][]byte // of the present row
	key     []byte   // of its cell
	upright []byte
}

// look cuts a row's key into components, makes the key of its cell, and returns its lead.
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

// value returns a component of the present row as it is stored in ascending order.
func (k *cellKeys) value(component int) []byte {
	v := k.parts[component]
	if !k.desc[component] {
		return v
	}
	k.upright = append(k.upright[:0], v...)
	collate.Complement(k.upright)
	return k.upright
}
