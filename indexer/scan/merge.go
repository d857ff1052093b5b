package scan

import (
	"errors"
	"io"
)

// source is an ordered input of a merge. next returns io.EOF at the end.
type source interface {
	next() (Row, error)
}

// merger repeatedly takes the smallest row of its sources (in reverse, the greatest). It is a loser tree over the
// sources' current rows: taking a row costs one comparison for each doubling of the number of sources, and none for a
// single source. Equal rows of two sources are both returned.
type merger struct {
	reverse bool
	inputs  []merged
	// losers is the tree without its root: node n has the children 2n and 2n+1, and input i is at len(inputs)+i. Each
	// node holds the input that lost there. first is the input that never lost.
	losers []int
	first  int
	built  bool // the tree matches the inputs
}

type merged struct {
	row   Row
	src   source
	ended bool
}

// before reports whether the row of input i comes before that of input j. An input that has ended comes last.
func (m *merger) before(i, j int) bool {
	a, b := &m.inputs[i], &m.inputs[j]
	if a.ended || b.ended {
		return !a.ended
	}
	c := a.row.Compare(b.row)
	if m.reverse {
		return c > 0
	}
	return c < 0
}

// add reads a source's first row and adds the source. An empty source is left out.
func (m *merger) add(s source) error {
	row, err := s.next()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	m.inputs = append(m.inputs, merged{row: row, src: s})
	m.built = false
	return nil
}

// build builds the tree.
func (m *merger) build() {
	n := len(m.inputs)
	winners := make([]int, 2*n)
	m.losers, m.first, m.built = make([]int, n), 0, true
	for i := range n {
		winners[n+i] = i
	}
	for at := n - 1; at > 0; at-- {
		a, b := winners[2*at], winners[2*at+1]
		if m.before(b, a) {
			a, b = b, a
		}
		winners[at], m.losers[at] = a, b
	}
	if n > 1 {
		m.first = winners[1]
	}
}

// top returns the next row; false when all sources have ended.
func (m *merger) top() (Row, source, bool) {
	if len(m.inputs) == 0 {
		return Row{}, nil, false
	}
	if !m.built {
		m.build()
	}
	in := &m.inputs[m.first]
	return in.row, in.src, !in.ended
}

// advance moves to the next row of the source whose row was on top, also when sources have been added since. On an
// error that source is removed.
func (m *merger) advance() error {
	in := &m.inputs[m.first]
	row, err := in.src.next()
	if err != nil {
		*in = merged{ended: true}
	} else {
		in.row = row
	}
	for at := (len(m.inputs) + m.first) / 2; at > 0 && m.built; at /= 2 {
		if m.before(m.losers[at], m.first) {
			m.losers[at], m.first = m.first, m.losers[at]
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
