package scan

import (
	"bytes"
	"encoding/binary"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/wire"
)

// Resume is the place at which an answer continues whose indexer was lost: at the timestamp of the rows that have
// arrived, behind the last of them. Another indexer then returns the missing rows, and no others.
type Resume struct {
	Index index.ID // index of the rows; the name may belong to another index by now
	Ref   wire.StabilityRef
	Rows  int64 // rows that have arrived
	Last  Row

	seen  scanport.Seen // what the session has seen with those rows
	named bool          // the caller has named the timestamp itself
}

// appendTo appends the encoded place, which is sent with the rows and returned by a client, after what its session
// has seen. It appends nothing if that is too long.
func (r *Resume) appendTo(dst []byte, seen *scanport.Seen) []byte {
	if len(r.Last.Key)+len(r.Last.DocID) > scanport.MaxResume-maxResumeHead {
		return dst
	}
	dst = seen.AppendSeen(dst)
	for _, v := range [...]uint64{uint64(r.Index), r.Ref.Generation, r.Ref.RollbackID, r.Ref.Number,
		r.Ref.Hash, uint64(r.Rows)} {
		dst = binary.AppendUvarint(dst, v)
	}
	dst = append(binary.AppendUvarint(dst, uint64(len(r.Last.Key))), r.Last.Key...)
	return append(dst, r.Last.DocID...)
}

// maxResumeHead bounds the bytes before the row.
const maxResumeHead = 1024

// parseResume parses what appendTo wrote. A client may have modified it, but can request no other rows with it than
// with a request.
func parseResume(def *index.Definition, b []byte) (*Resume, error) {
	r := &Resume{Ref: wire.StabilityRef{Bucket: def.Bucket}}
	var err error
	if r.seen, b, err = scanport.CutSeen(b); err != nil {
		return nil, Errorf(errcode.BadRequest, "the position to continue at is unreadable: %w", err)
	}
	var of, rows, key uint64
	for _, v := range [...]*uint64{&of, &r.Ref.Generation, &r.Ref.RollbackID, &r.Ref.Number, &r.Ref.Hash, &rows, &key} {
		n := 0
		if *v, n = binary.Uvarint(b); n <= 0 {
			return nil, Errorf(errcode.BadRequest, "the position to continue at is unreadable")
		}
		b = b[n:]
	}
	if rows == 0 || rows > MaxLimit || key > uint64(len(b)) {
		return nil, Errorf(errcode.BadRequest, "the position to continue at has %d rows, the last with a key of %d bytes "+
			"in %d",
			rows, key, len(b))
	}
	if r.Index = index.ID(of); r.Index != def.ID {
		return nil, Errorf(errcode.SnapshotTooOld, "the previous rows are of index %s, which was dropped or replaced by "+
			"a split meanwhile; %s on %s is index %s now: start the scan again", r.Index, def.Name, def.Keyspace(),
			def.ID)
	}
	if r.seen.Bucket != def.Bucket {
		return nil, Errorf(errcode.BadRequest, "the position to continue at is of bucket %q, but the index is on %q",
			r.seen.Bucket, def.Bucket)
	}
	r.Rows = int64(rows)
	r.Last = Row{Key: bytes.Clone(b[:key]), DocID: bytes.Clone(b[key:])}
	return r, nil
}

// resume makes the spec one of the rest of an answer.
func (s *Spec) resume(def *index.Definition, token []byte) (err error) {
	if s.Resume, err = parseResume(def, token); err != nil {
		return err
	}
	if err := s.checkPlace("the position to continue at", s.Resume.Last.Key); err != nil {
		return err
	}
	if s.Stability == NoStability { // no page has an older timestamp than its predecessors
		s.Seen = append(s.Seen, s.Resume.seen)
		return nil
	}
	s.Resume.named = s.At != nil
	s.At, s.Consistency, s.Tokens = &s.Resume.Ref, Any, nil // the consistency was established before the first row
	return nil
}

// checkPlace refuses a row's key from the client that cannot be a key of the index.
func (s *Spec) checkPlace(what string, key []byte) error {
	parts, desc := s.Distinct, s.Desc
	if g := s.Groups; g != nil {
		parts, desc = len(g.By), g.desc(s.Desc)
	}
	if _, err := leadingParts(key, parts, desc); err != nil {
		return Errorf(errcode.BadRequest, "%s has a key that is not valid in index %s: %w", what, s.Index, err)
	}
	return nil
}

// gone maps errors about a scan's fixed timestamp that is no longer available to an error with advice for the caller.
func (s *Spec) gone(err error) error {
	if s.later() {
		return s.expired(err)
	}
	if s.Resume == nil || s.Stability == QueryStability {
		return tooOld(s.At, err)
	}
	switch CodeOf(err) {
	case errcode.SnapshotSkipped, errcode.SnapshotTooOld, errcode.IndexInRollback:
		return Errorf(errcode.SnapshotTooOld, "the indexer of this scan failed after %d rows, and the others no longer hold "+
			"timestamp %s: start the scan again: %w", s.Resume.Rows, TimestampID(s.Resume.Ref), err)
	}
	return err
}
