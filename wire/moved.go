package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tidemark/index"
	"tidemark/timestamp"
)

// ErrMoved is wrapped when bytes are no packed streams that moved.
var ErrMoved = errors.New("packed streams that moved")

// MovedStreams are streams of one incarnation that have gone on since they were told. The incarnation stands here, so
// that nothing has to be known of what was told before: who knows a stream of it as the vbucket's owner takes its
// complete seqno.
type MovedStreams struct {
	Incarnation index.Incarnation `json:"incarnation"`
	// Packed is, per vbucket ascending, the distance to the one before and the complete seqno, as uvarints.
	Packed []byte `json:"packed"`

	last uint16
}

// Move adds a stream of which nothing but its complete seqno is news. Vbuckets come ascending.
func (s *StreamStates) Move(v uint16, inc index.Incarnation, complete uint64) {
	i := len(s.Moved) - 1
	for i >= 0 && s.Moved[i].Incarnation != inc {
		i--
	}
	if i < 0 {
		i = len(s.Moved)
		s.Moved = append(s.Moved, MovedStreams{Incarnation: inc})
	}
	m := &s.Moved[i]
	m.Packed = binary.AppendUvarint(m.Packed, uint64(v-m.last))
	m.Packed = binary.AppendUvarint(m.Packed, complete)
	m.last = v
}

// Expand makes the streams that moved entries like the others, without a log. Errors wrap ErrMoved; what came before
// the fault is there then.
func (s *StreamStates) Expand() error {
	if len(s.Moved) > 0 && !s.even() {
		return fmt.Errorf("%w: beside columns of different length", ErrMoved)
	}
	moved := s.Moved
	s.Moved = nil
	for i := range moved {
		r := unpacker{b: moved[i].Packed}
		v := uint64(0)
		for first := true; len(r.b) > 0; first = false {
			gap, complete := r.uvarint(), r.uvarint()
			v += gap
			if r.bad || gap >= timestamp.MaxVBuckets || v >= timestamp.MaxVBuckets || gap == 0 && !first {
				return fmt.Errorf("%w: vbucket %d of %d bytes", ErrMoved, v, len(moved[i].Packed))
			}
			s.VBuckets, s.Incarnations = append(s.VBuckets, uint16(v)), append(s.Incarnations, moved[i].Incarnation)
			s.VBUUIDs, s.Complete = append(s.VBUUIDs, 0), append(s.Complete, complete)
			s.Ended, s.Logs = append(s.Ended, false), append(s.Logs, nil)
			s.Purges, s.Revisions = append(s.Purges, 0), append(s.Revisions, timestamp.MapRevision{})
		}
	}
	return nil
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
