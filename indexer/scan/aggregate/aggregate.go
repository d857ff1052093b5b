// Package aggregate computes COUNT, SUM, AVG, MIN and MAX over components of index keys, in parts: what was computed of
// some rows can be put into bytes and joined with what was computed of others.
//
// It promises that the result depends on the rows alone, and not on the order in which they came or on how they were
// spread over parts: sums are exact until they are written, and then rounded once, if at all. NULL and MISSING count
// nowhere but where rows are counted; SUM and AVG are of numbers only.
package aggregate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"tidemark/collate"
)

// Op is what is computed.
type Op string

// The ops.
const (
	Rows  Op = "rows"  // how many rows there are, whatever they have
	Count Op = "count" // of values that are neither NULL nor MISSING
	Sum   Op = "sum"   // of the numbers; NULL when there is none
	Avg   Op = "avg"   // of the numbers; NULL when there is none
	Min   Op = "min"   // the first value in the order of values, neither NULL nor MISSING; NULL when there is none
	Max   Op = "max"   // the last one
)

// Ops are all of them.
var Ops = []Op{Rows, Count, Sum, Avg, Min, Max}

// Valid reports whether there is such an op.
func (o Op) Valid() bool { return slices.Contains(Ops, o) }

// ErrState is wrapped when bytes are no state of an Acc.
var ErrState = errors.New("bad state of an aggregate")

// Acc is what has been computed of some values. It is made by its op: Acc{Op: Sum}.
type Acc struct {
	Op    Op
	count int64
	sum   sum
	best  []byte // of Min and Max; none: there is none yet
}

// Reset forgets all values and keeps the room.
func (a *Acc) Reset() { *a = Acc{Op: a.Op, best: a.best[:0], sum: a.sum.empty()} }

// Bytes is about how much memory it takes beside its own size.
func (a *Acc) Bytes() int { return cap(a.best) + a.sum.bytes() }

// Add takes a value: a component of a key, upright. Rows may be nil.
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

// better keeps a value that comes before (of Max: behind) the one there is.
func (a *Acc) better(v []byte) {
	c := bytes.Compare(v, a.best)
	if len(a.best) == 0 || c < 0 == (a.Op == Min) && c != 0 {
		a.best = append(a.best[:0], v...)
	}
}

// AppendState appends what was computed, for Join.
func (a *Acc) AppendState(dst []byte) []byte {
	switch a.Op {
	case Sum, Avg:
		return a.sum.appendTo(dst)
	case Min, Max:
		return append(binary.AppendUvarint(dst, uint64(len(a.best))), a.best...)
	}
	return binary.AppendUvarint(dst, uint64(a.count))
}

// Join takes what AppendState of the same op wrote at the begin of b, and returns what follows it.
func (a *Acc) Join(b []byte) (rest []byte, err error) {
	switch a.Op {
	case Sum, Avg:
		return a.sum.join(b)
	case Min, Max:
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return nil, fmt.Errorf("%w: a value is cut", ErrState)
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

// mostRows bounds what one part counts.
const mostRows = 1 << 56

// AppendResult appends the result in JSON.
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
