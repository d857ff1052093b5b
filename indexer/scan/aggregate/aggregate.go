// Package aggregate computes COUNT, SUM, AVG, MIN and MAX over components of index keys, in parts: the state computed
// from some rows can be encoded and joined with the state of others.
//
// It guarantees that the result depends on the rows alone, and neither on their order nor on their distribution over
// parts: sums are exact until they are written, and then rounded at most once. NULL and MISSING count only where rows
// are counted; SUM and AVG cover numbers only.
package aggregate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"tidemark/collate"
)

// Op is an aggregate function.
type Op string

// The aggregate functions.
const (
	Rows  Op = "rows"  // number of rows, whatever their values
	Count Op = "count" // number of values that are neither NULL nor MISSING
	Sum   Op = "sum"   // sum of the numbers; NULL when there is none
	Avg   Op = "avg"   // mean of the numbers; NULL when there is none
	Min   Op = "min"   // first value in collation order that is neither NULL nor MISSING; NULL when there is none
	Max   Op = "max"   // last such value
)

// Ops lists all functions.
var Ops = []Op{Rows, Count, Sum, Avg, Min, Max}

// Valid reports whether o is one of Ops.
func (o Op) Valid() bool { return slices.Contains(Ops, o) }

// ErrState is wrapped when bytes are not the state of an Acc.
var ErrState = errors.New("bad state of an aggregate")

// Acc accumulates values. It is created with its function: Acc{Op: Sum}.
type Acc struct {
	Op    Op
	count int64
	sum   sum
	best  []byte // of Min and Max; empty: none yet
}

// Reset drops all values and keeps the allocated memory.
func (a *Acc) Reset() { *a = Acc{Op: a.Op, best: a.best[:0], sum: a.sum.empty()} }

// Bytes returns the approximate memory of a, without the size of the struct itself.
func (a *Acc) Bytes() int { return cap(a.best) + a.sum.bytes() }

// Add adds a value: a component of a key in ascending encoding. For Rows it may be nil.
func (a *Acc) Add(component []byte) {
	if a.Op == Rows {
		a.count++
		return
	}
	if k := collate.Kind(component[0]); k == collate.Missing || k == collate.Null {
		return
	}
	switch a.Op {
	case Count:
		a.count++
	case Sum, Avg:
		a.sum.add(component)
	case Min, Max:
		a.better(component)
	}
}

// better replaces best by v if v comes before it (for Max: after it).
func (a *Acc) better(v []byte) {
	c := bytes.Compare(v, a.best)
	if len(a.best) == 0 || c < 0 == (a.Op == Min) && c != 0 {
		a.best = append(a.best[:0], v...)
	}
}

// AppendState appends the state, for Join.
func (a *Acc) AppendState(dst []byte) []byte {
	switch a.Op {
	case Sum, Avg:
		return a.sum.appendTo(dst)
	case Min, Max:
		return append(binary.AppendUvarint(dst, uint64(len(a.best))), a.best...)
	}
	return binary.AppendUvarint(dst, uint64(a.count))
}

// Join adds the state at the beginning of b, which AppendState of the same function wrote, and returns the rest of b.
func (a *Acc) Join(b []byte) (rest []byte, err error) {
	switch a.Op {
	case Sum, Avg:
		return a.sum.join(b)
	case Min, Max:
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return nil, fmt.Errorf("%w: a value is truncated", ErrState)
		}
		if v := b[size : size+int(n)]; n > 0 {
			a.better(v)
		}
		return b[size+int(n):], nil
	}
	n, size := binary.Uvarint(b)
	if size <= 0 || n > mostRows {
		return nil, fmt.Errorf("%w: a count", ErrState)
	}
	a.count += int64(n)
	return b[size:], nil
}

// mostRows bounds the count of one state.
const mostRows = 1 << 56

// AppendResult appends the result as JSON.
func (a *Acc) AppendResult(dst []byte) ([]byte, error) {
	switch {
	case a.Op == Sum:
		return a.sum.appendTotal(dst), nil
	case a.Op == Avg:
		return a.sum.appendMean(dst), nil
	case a.Op != Min && a.Op != Max:
		return fmt.Appendf(dst, "%d", a.count), nil
	case len(a.best) == 0:
		return append(dst, null...), nil
	}
	return collate.Decode(dst, a.best)
}

const null = "null"
