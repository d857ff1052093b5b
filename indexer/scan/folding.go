package scan

import (
	"bytes"
	"fmt"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/indexer/scan/aggregate"
)

// joining joins the equal cells of a node's slices, which the merge returns one after the other. It ends after limit
// groups.
type joining struct {
	g      *Grouping
	desc   []bool // of the cells
	limit  int64  // in groups; 0: none
	groups int64  // groups that have begun
	group  []byte // key of the current group
	key    []byte
	state  []byte
	accs   []aggregate.Acc
}

// next returns the next joined cell. ok is false if there is none, or the limit is reached.
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

// others joins the cells of other slices with the current one.
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

// joinState adds a cell's state to accs.
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

// folding combines the cells of all nodes, which the merge returns in order, into groups.
type folding struct {
	g     *groups
	desc  []bool // of the cells
	some  bool   // there is a current group
	given bool   // there has been a group
	key   []byte // of the current group
	cell  []byte // newest cell
	accs  []aggregate.Acc
	each  []aggregate.Acc // aggregates over distinct values
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

// begin starts a group.
func (f *folding) begin(key []byte) {
	f.some, f.given = true, true
	f.key, f.cell = append(f.key[:0], key...), f.cell[:0]
	f.accs = f.g.accs()
	for i := range f.each {
		f.each[i].Reset()
	}
}

// add adds a cell to the current group.
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

// end returns the current group as a row, with a JSON array of the results as document id.
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

// fold adds a cell to its group, and passes on the previous group if that is complete.
func (o *output) fold(c Row) error {
	f := o.folding
	group, err := leadingParts(c.Key, len(f.g.By), f.desc)
	if err != nil {
		return err
	}
	if f.some && !bytes.Equal(group, f.key) {
		if err := o.endGroup(); err != nil {
			return err
		}
	}
	if !f.some {
		f.begin(group)
	}
	return f.add(c)
}

// endGroup passes on the current group.
func (o *output) endGroup() error {
	row, err := o.folding.end()
	if err != nil {
		return err
	}
	return o.put(row)
}

// endGroups passes on the last group after all cells. Without group keys all rows form one group, which exists even
// if there is no row.
func (o *output) endGroups() error {
	f := o.folding
	if !f.some && !f.given && len(f.g.By) == 0 && o.after == nil {
		f.begin(nil)
	}
	if !f.some {
		return nil
	}
	return o.endGroup()
}
