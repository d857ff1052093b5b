package ingest

import (
	"slices"

	"tidemark/timestamp"
)

// MaxStability is the most stability timestamps that wait to be reached (the coordinator waits for who has not
// acknowledged 4 and keeps up). When there are more they are thinned; the oldest stays, which is reached first.
const MaxStability = 16

// stability is what a bucket knows of its stability timestamps. A rollback, and a new generation, forget all of it.
type stability struct {
	waiting    []timestamp.Stability // ascending
	newest     timestamp.Stability   // highest one published, kept to be judged again at a BEGIN
	last       timestamp.Stability   // newest one flushed
	haveLast   bool
	ack        Ack
	haveAck    bool
	newestAck  Ack // see note
	haveNewest bool
}

// add queues one, and reports whether it was new.
func (q *stability) add(s timestamp.Stability) bool {
	if q.passed(&s) {
		return false
	}
	if s.Compare(q.newest.Ref) > 0 || q.newest.Vector.Len() == 0 {
		q.newest = s
	}
	at := len(q.waiting)
	for at > 0 && q.waiting[at-1].Compare(s.Ref) >= 0 {
		if at--; q.waiting[at].Ref == s.Ref {
			return false
		}
	}
	q.waiting = slices.Insert(q.waiting, at, s)
	if len(q.waiting) > MaxStability {
		q.waiting = thinned(q.waiting)
	}
	return true
}

// thinned leaves out the one whose neighbours are closest, neither the oldest nor the newest: who lags has always one
// that is near, and acknowledges as it catches up. If the oldest gave way, it might never reach any.
func thinned(all []timestamp.Stability) []timestamp.Stability {
	least, gap := 1, ^uint64(0)
	for i := 1; i < len(all)-1; i++ {
		if g := all[i+1].Number - all[i-1].Number; g < gap {
			least, gap = i, g
		}
	}
	return slices.Delete(all, least, least+1)
}

// dropBefore lets none wait that is of an older rollback id.
func (q *stability) dropBefore(rollbackID uint64) {
	q.waiting = slices.DeleteFunc(q.waiting, func(s timestamp.Stability) bool { return s.RollbackID < rollbackID })
}

// passed reports whether one is not newer than the newest that was flushed.
func (q *stability) passed(s *timestamp.Stability) bool {
	return q.haveLast && s.Compare(q.last.Ref) <= 0
}

// leave lets the oldest one wait no more.
func (q *stability) leave() { q.waiting = q.waiting[1:] }

// flush makes the oldest one that waits the newest one flushed.
func (q *stability) flush() *timestamp.Stability {
	q.last, q.haveLast = q.waiting[0], true
	q.leave()
	return &q.last
}

// note keeps the newest acknowledgement. It becomes that of LastAck when it is settled: nothing at an older stability
// timestamp is under way, for copies that are being built either.
func (q *stability) note(a Ack, settled bool) {
	if !q.haveNewest || a.Compare(q.newestAck.Ref) >= 0 {
		q.newestAck, q.haveNewest = a, true
	}
	if settled {
		q.ack, q.haveAck = q.newestAck, true
	}
}
