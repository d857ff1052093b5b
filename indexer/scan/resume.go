package scan

import (
	"bytes"
	"encoding/binary"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/wire"
)

// Resume is where an answer goes on whose indexer was lost in the middle of it: at the timestamp of the rows that have
// come, behind the last of them. Another indexer then gives those that are missing, and no other.
type Resume struct {
	Ref  wire.StabilityRef
	Rows int64 // that have come
	Last Row
}

// appendTo appends the form that travels with the rows, and comes back from a client, behind what its session has seen;
// nothing when it is too long.
func (r *Resume) appendTo(dst []byte, seen *scanport.Seen) []byte {
	if len(r.Last.Key)+len(r.Last.DocID) > scanport.MaxResume-maxResumeHead {
		return dst
	}
	dst = seen.AppendSeen(dst)
	for _, v := range [...]uint64{r.Ref.Generation, r.Ref.RollbackID, r.Ref.Number, r.Ref.Hash, uint64(r.Rows)} {
		dst = binary.AppendUvarint(dst, v)
	}
	dst = append(binary.AppendUvarint(dst, uint64(len(r.Last.Key))), r.Last.Key...)
	return append(dst, r.Last.DocID...)
}

// maxResumeHead is the most that what stands before the row takes.
const maxResumeHead = 1024

// parseResume reads what appendTo wrote, which a client may have changed: it can ask for no other rows with it than
// with a request.
func parseResume(bucket string, b []byte) (*Resume, error) {
	r := &Resume{Ref: wire.StabilityRef{Bucket: bucket}}
	_, b, err := scanport.CutSeen(b)
	if err != nil {
		return nil, Errorf(errcode.BadRequest, "where the scan is to go on cannot be read: %w", err)
	}
	var rows, key uint64
	for _, v := range [...]*uint64{&r.Ref.Generation, &r.Ref.RollbackID, &r.Ref.Number, &r.Ref.Hash, &rows, &key} {
		n := 0
		if *v, n = binary.Uvarint(b); n <= 0 {
			return nil, Errorf(errcode.BadRequest, "where the scan is to go on cannot be read")
		}
		b = b[n:]
	}
	if rows == 0 || rows > MaxLimit || key > uint64(len(b)) {
		return nil, Errorf(errcode.BadRequest, "the scan is to go on behind %d rows, the last with a key of %d bytes in %d",
			rows, key, len(b))
	}
	r.Rows = int64(rows)
	r.Last = Row{Key: bytes.Clone(b[:key]), DocID: bytes.Clone(b[key:])}
	return r, nil
}

// resume makes the spec one of the rest of an answer.
func (s *Spec) resume(bucket string, token []byte) (err error) {
	if s.Resume, err = parseResume(bucket, token); err != nil {
		return err
	}
	if s.Stability != NoStability { // what is seen was settled before the first row
		s.At, s.Consistency, s.Tokens = &s.Resume.Ref, Any, nil
	}
	return nil
}

// gone makes of any reason why a timestamp cannot be had any more, that the scan has to be of, the one that tells the
// caller what to do.
func (s *Spec) gone(err error) error {
	if s.later() {
		return s.expired(err)
	}
	if s.Resume == nil || s.Stability == QueryStability {
		return tooOld(s.At, err)
	}
	switch CodeOf(err) {
	case errcode.SnapshotSkipped, errcode.SnapshotTooOld, errcode.IndexInRollback:
		return Errorf(errcode.SnapshotTooOld, "the indexer that answered was lost after %d rows, and timestamp %s is not "+
			"held by the others any more: begin the scan anew: %w", s.Resume.Rows, TimestampID(s.Resume.Ref), err)
	}
	return err
}
