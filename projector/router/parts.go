package router

import (
	"cmp"
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
)

const (
	// partBytes is how large the statements of one part may be, as they travel: a frame less what stands before them.
	partBytes = keyversion.MaxFrame - keyversion.MaxDocID - 1<<10
	// statementBytes and keyBytes are the most that a statement and a key take beside their bytes.
	statementBytes = 16
	keyBytes       = 4
)

// putParts queues a data event that no frame can hold as several, each about other indexes: what is said of one index
// stays together, so that every part states complete sets. The vbucket stands at before until the last one. An index
// whose keys alone are more than a frame holds, which the limits of expressions rule out, is refused: its document has
// no keys there, is counted, and told by name.
//
// The parts are queued at once, whatever room there is: a queue holds one document more than its limit. Between them
// nothing else is queued, and none is taken off the queue before the last was acknowledged (outbox.acknowledged).
func (l *lane) putParts(s *laneVB, ev *keyversion.Event, before uint64) error {
	whole := *ev
	whole.Statements, whole.Rest = ev.Explicit(nil), nil
	slices.SortStableFunc(whole.Statements, func(a, b keyversion.Statement) int { return cmp.Compare(a.Index, b.Index) })
	parts := l.cut(&whole)
	part := whole
	for i, statements := range parts {
		part.Statements, part.Part, part.More = statements, uint16(i), i+1 < len(parts)
		if s.seqno = before; !part.More {
			s.seqno = max(before, ev.Seqno)
		}
		if err := l.put(s, &part); err != nil {
			return err
		}
	}
	l.stats.Parts += uint64(len(parts))
	return nil
}

// cut divides an event's statements among as few parts as there can be, index by index.
func (l *lane) cut(ev *keyversion.Event) (parts [][]keyversion.Statement) {
	all := ev.Statements
	from, size, keys := 0, 0, 0
	for at := 0; at < len(all); {
		end, bytes, n := oneIndex(all, at)
		if bytes > partBytes || n > keyversion.MaxBatchKeys {
			l.refuse(ev, all[at].Index, bytes)
			for i := at; i < end; i++ {
				all[i].Keys = nil
			}
			continue // it is measured again
		}
		if at > from && (size+bytes > partBytes || keys+n > keyversion.MaxBatchKeys || end-from > keyversion.MaxStatements) {
			parts = append(parts, all[from:at])
			from, size, keys = at, 0, 0
		}
		size, keys, at = size+bytes, keys+n, end
	}
	return append(parts, all[from:])
}

// oneIndex measures the statements about one index, of which the first is at: where they end, how many bytes they are
// at most as they travel, and how many keys they have.
func oneIndex(all []keyversion.Statement, at int) (end, bytes, keys int) {
	for end = at; end < len(all) && all[end].Index == all[at].Index; end++ {
		bytes += statementBytes
		for _, k := range all[end].Keys {
			bytes += keyBytes + len(k)
		}
		keys += len(all[end].Keys)
	}
	return end, bytes, keys
}

// refuse counts and tells that a document's keys in an index cannot be carried.
func (l *lane) refuse(ev *keyversion.Event, id index.ID, size int) {
	l.stats.Oversized++
	l.topic.router.cfg.Logger.Error("a document has more keys in an index than can be carried: it is left out there",
		"bucket", l.topic.cfg.Bucket,
		"index", id, "vbucket", ev.VBucket, "document", string(ev.DocID), "seqno", ev.Seqno, "bytes", size, "most", partBytes)
	if refused := l.topic.router.cfg.Refused; refused != nil {
		refused(id, ev)
	}
}
