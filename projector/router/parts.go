package router

import (
	"cmp"
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
)

const (
	// partBytes bounds the encoded statements of one part: a frame less the fields that precede them.
	partBytes = keyversion.MaxFrame - keyversion.MaxDocID - 1<<10
	// statementBytes and keyBytes are the encoding overheads of a statement and of a key.
	statementBytes = 16
	keyBytes       = 4
)

// putParts queues a data event that does not fit into a frame as several events, each about other indexes. The
// statements about one index stay together, so that every part states complete sets. Until the last part the
// vbucket's position stays at before. An index whose keys alone do not fit into a frame, which the limits of
// expressions rule out, is refused: the document then has no keys there, is counted, and reported by name.
//
// The parts are queued at once, whatever room there is: a queue may exceed its limit by one document. Nothing else is
// queued between them, and none is removed before the last one is acknowledged (outbox.acknowledged).
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

// cut divides an event's statements into as few parts as possible, index by index.
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

// oneIndex measures the statements about one index, the first of which is at position at: their end, their encoded
// size at most, and their number of keys.
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

// refuse counts and reports that a document's keys in an index are too large to be sent.
func (l *lane) refuse(ev *keyversion.Event, id index.ID, size int) {
	l.stats.Oversized++
	l.topic.router.cfg.Logger.Error("document has more keys in an index than a message can hold: it is left out of that "+
		"index",
		"bucket", l.topic.cfg.Bucket,
		"index", id, "vbucket", ev.VBucket, "document", string(ev.DocID), "seqno", ev.Seqno, "bytes", size, "most", partBytes)
	if refused := l.topic.router.cfg.Refused; refused != nil {
		refused(id, ev)
	}
}
