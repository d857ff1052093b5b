package ingest

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Position is what one slice holds of one vbucket. Every batch that a slice writes carries the positions that it
// changes (docs/timestamps.md, "Positions of a slice"). All fields but VBUUID are sequence numbers.
type Position struct {
	VBUUID uint64 `json:"vbuuid,string"` // branch of Main and Side
	Side   uint64 `json:"side"`          // the side stream is covered up to here
	Main   uint64 `json:"main"`          // maintenance is covered from A up to here; falls only in a rollback
	A      uint64 `json:"a"`             // activation timestamp: everything above comes on the maintenance stream
	Floor  uint64 `json:"floor"`         // lowest stability seqno at which the slice can make an exact snapshot
	// WindowEnd is the end of the newest DCP snapshot of which something was applied. It is timestamp.Infinity while a
	// side stream that has not ended may have left something out because of a newer version that has not arrived.
	WindowEnd uint64 `json:"window_end"`
}

// Whole reports whether nothing is missing below Main.
func (p Position) Whole() bool { return p.Side >= p.A }

// Content returns the highest seqno whose effects, or whose de-duplication, the slice may reflect. The branch rule
// compares it with a failover log.
func (p Position) Content() uint64 { return max(p.Main, p.Side, p.Floor, p.WindowEnd) }

// ErrPosition is wrapped if encoded bytes are not a valid position.
var ErrPosition = errors.New("corrupt slice position")

const positionFormat = 1

// AppendPosition appends the stored form: a format byte, the vbuuid, five varints.
func AppendPosition(dst []byte, p Position) []byte {
	dst = append(dst, positionFormat)
	dst = binary.LittleEndian.AppendUint64(dst, p.VBUUID)
	for _, u := range [...]uint64{p.Side, p.Main, p.A, p.Floor, p.WindowEnd} {
		dst = binary.AppendUvarint(dst, u)
	}
	return dst
}

// DecodePosition decodes what AppendPosition appended and returns the remaining bytes. Errors wrap ErrPosition.
func DecodePosition(src []byte) (p Position, rest []byte, err error) {
	if len(src) < 9 || src[0] != positionFormat {
		return p, nil, fmt.Errorf("%w: %d bytes", ErrPosition, len(src))
	}
	p.VBUUID = binary.LittleEndian.Uint64(src[1:])
	rest = src[9:]
	for _, f := range [...]*uint64{&p.Side, &p.Main, &p.A, &p.Floor, &p.WindowEnd} {
		u, n := binary.Uvarint(rest)
		if n <= 0 {
			return Position{}, nil, fmt.Errorf("%w: truncated", ErrPosition)
		}
		*f, rest = u, rest[n:]
	}
	return p, rest, nil
}
