package scan

import (
	"errors"
	"io"
)

// source is one ordered input of a merge. next gives io.EOF at its end.
type source interface {
	next() (Row, error)
}

// merger takes the smallest row of its sources again and again (in reverse the greatest). It is a heap of the sources'
// present rows. Equal rows of two sources both come.
type merger struct {
	reverse bool
	heap    []merged
}

type merged struct {
	row Row
	src source
}

func (m *merger) less(i, j int) bool {
	c := m.heap[i].row.Compare(m.heap[j].row)
	if m.reverse {
		return c > 0
	}
	return c < 0
}

// add reads a source's first row and puts it in. A source that is empty is left out.
func (m *merger) add(s source) error {
	row, err := s.next()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	m.heap = append(m.heap, merged{row, s})
	for i := len(m.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !m.less(i, parent) {
			break
		}
		m.heap[i], m.heap[parent] = m.heap[parent], m.heap[i]
		i = parent
	}
	return nil
}

// top gives the next row; false when all sources have ended.
func (m *merger) top() (Row, source, bool) {
	if len(m.heap) == 0 {
		return Row{}, nil, false
	}
	return m.heap[0].row, m.heap[0].src, true
}

// advance moves the source whose row was on top. On an error the source is out.
func (m *merger) advance() error {
	row, err := m.heap[0].src.next()
	if err != nil {
		last := len(m.heap) - 1
		m.heap[0] = m.heap[last]
		m.heap = m.heap[:last]
	} else {
		m.heap[0].row = row
	}
	m.down(0)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (m *merger) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(m.heap) {
			return
		}
		if child+1 < len(m.heap) && m.less(child+1, child) {
			child++
		}
		if !m.less(child, i) {
			return
		}
		m.heap[i], m.heap[child] = m.heap[child], m.heap[i]
		i = child
	}
}
