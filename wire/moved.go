package wire

import (
	"fmt"

	"tidemark/index"
	"tidemark/timestamp"
)

// Move adds a stream of which only the complete seqno has changed. Calls must be ascending by vbucket.
func (s *StreamStates) Move(v uint16, inc index.Incarnation, complete uint64) {
	if s.moving == nil {
		s.moving = &rowWriter[index.Incarnation]{put: appendIncarnation}
	}
	s.moving.row(uint64(v), inc, complete)
	s.Moved = s.moving.packed()
}

// Expand turns the packed moved streams into entries of Streams, without a log. There are at most as many as
// vbuckets. Errors wrap ErrRows; then the moved streams are discarded and nothing else is changed.
func (s *StreamStates) Expand() error {
	moved := s.Moved
	s.Moved, s.moving = nil, nil
	if n := len(s.Streams); n > timestamp.MaxVBuckets {
		return fmt.Errorf("%w: bucket %q has streams of %d vbuckets, want at most %d", ErrRows, s.Bucket, n,
			timestamp.MaxVBuckets)
	}
	if len(moved) == 0 {
		return nil
	}
	t := rowReader[index.Incarnation]{keys: timestamp.MaxVBuckets, values: 1, take: (*unpacker).incarnation}
	all := s.Streams
	err := t.read(moved, func(v uint64, inc *index.Incarnation, values [2]uint64) error {
		all = append(all, StreamState{VBucket: uint16(v), Incarnation: *inc, Complete: values[0]})
		return nil
	})
	if err == nil {
		s.Streams = all
	}
	return err
}
