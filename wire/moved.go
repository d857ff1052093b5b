package wire

import (
	"fmt"

	"tidemark/index"
	"tidemark/timestamp"
)

// Move adds a stream of which nothing but its complete seqno is news. Vbuckets come ascending.
func (s *StreamStates) Move(v uint16, inc index.Incarnation, complete uint64) {
	if s.moving == nil {
		s.moving = &rowWriter[index.Incarnation]{put: appendIncarnation}
	}
	s.moving.row(uint64(v), inc, complete)
	s.Moved = s.moving.packed()
}

// Expand makes the streams that moved entries like the others, without a log. Errors wrap ErrRows; what came before the
// fault is there then.
func (s *StreamStates) Expand() error {
	moved := s.Moved
	if s.Moved, s.moving = nil, nil; len(moved) == 0 {
		return nil
	}
	if !s.even() {
		return fmt.Errorf("%w: beside columns of different length", ErrRows)
	}
	t := rowReader[index.Incarnation]{keys: timestamp.MaxVBuckets, values: 1, take: (*unpacker).incarnation}
	return t.read(moved, func(v uint64, inc *index.Incarnation, values [2]uint64) {
		if inc != nil {
			s.VBuckets, s.Incarnations = append(s.VBuckets, uint16(v)), append(s.Incarnations, *inc)
			s.VBUUIDs, s.Complete = append(s.VBUUIDs, 0), append(s.Complete, values[0])
			s.Ended, s.Logs = append(s.Ended, false), append(s.Logs, nil)
			s.Purges, s.Revisions = append(s.Purges, 0), append(s.Revisions, timestamp.MapRevision{})
		}
	})
}

// even reports whether all columns have the same length.
func (s *StreamStates) even() bool {
	n := len(s.VBuckets)
	for _, column := range [...]int{len(s.Incarnations), len(s.VBUUIDs), len(s.Complete), len(s.Ended), len(s.Logs),
		len(s.Purges), len(s.Revisions)} {
		if column != n {
			return false
		}
	}
	return true
}
