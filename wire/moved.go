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

// Expand makes the streams that moved entries like the others, without a log, after a look at what there is: columns of
// one length, of no more vbuckets than there are. Errors wrap ErrRows or ErrColumns; nothing is changed then but that
// what moved is forgotten.
func (s *StreamStates) Expand() error {
	moved := s.Moved
	s.Moved, s.moving = nil, nil
	if n := len(s.VBuckets); n > timestamp.MaxVBuckets {
		return fmt.Errorf("%w: bucket %q has streams of %d vbuckets, want at most %d", ErrColumns, s.Bucket, n,
			timestamp.MaxVBuckets)
	}
	if err := s.even(); err != nil || len(moved) == 0 {
		return err
	}
	t := rowReader[index.Incarnation]{keys: timestamp.MaxVBuckets, values: 1, take: (*unpacker).incarnation}
	before := len(s.VBuckets)
	err := t.read(moved, func(v uint64, inc *index.Incarnation, values [2]uint64) error {
		s.VBuckets, s.Incarnations = append(s.VBuckets, uint16(v)), append(s.Incarnations, *inc)
		s.VBUUIDs, s.Complete = append(s.VBUUIDs, 0), append(s.Complete, values[0])
		s.Ended, s.Logs = append(s.Ended, false), append(s.Logs, nil)
		s.Purges, s.Revisions = append(s.Purges, 0), append(s.Revisions, timestamp.MapRevision{})
		return nil
	})
	if err != nil {
		s.VBuckets, s.Incarnations, s.VBUUIDs = s.VBuckets[:before], s.Incarnations[:before], s.VBUUIDs[:before]
		s.Complete, s.Ended, s.Logs = s.Complete[:before], s.Ended[:before], s.Logs[:before]
		s.Purges, s.Revisions = s.Purges[:before], s.Revisions[:before]
	}
	return err
}

// even returns an error unless all columns have the same length.
func (s *StreamStates) even() error {
	for _, c := range [...]struct {
		name string
		rows int
	}{
		{"incarnations", len(s.Incarnations)}, {"vbuuids", len(s.VBUUIDs)}, {"complete", len(s.Complete)},
		{"ended", len(s.Ended)}, {"logs", len(s.Logs)}, {"purges", len(s.Purges)}, {"revisions", len(s.Revisions)},
	} {
		if c.rows != len(s.VBuckets) {
			return fmt.Errorf("%w: bucket %q has %d vbuckets and %d %s", ErrColumns, s.Bucket, len(s.VBuckets), c.rows, c.name)
		}
	}
	return nil
}
