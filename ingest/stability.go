package ingest

import (
	"slices"

	"tidemark/timestamp"
)

// MaxStability bounds the stability timestamps that wait to be reached. (The coordinator waits for an indexer that
// keeps up and has not acknowledged 4.) Beyond the limit they are thinned; the oldest, which is reached first, is
// kept.
const MaxStability = 16

// stability is the state of a bucket's stability timestamps. A rollback, and a new generation, discard it.
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

// add queues a timestamp, and reports whether it was new.
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

// thinned removes the timestamp whose neighbours are closest, except the oldest and the newest: a lagging indexer
// always has a near one, and acknowledges as it catches up. If the oldest were removed, it might never reach any.
func thinned(all []timestamp.Stability) []timestamp.Stability {
	least, gap := 1, ^uint64(0)
	for i := 1; i < len(all)-1; i++ {
		if g := all[i+1].Number - all[i-1].Number; g < gap {
			least, gap = i, g
		}
	}
	return slices.Delete(all, least, least+1)
}

// dropBefore removes the waiting timestamps of older rollback ids.
func (q *stability) dropBefore(rollbackID uint64) {
	q.waiting = slices.DeleteFunc(q.waiting, func(s timestamp.Stability) bool { return s.RollbackID < rollbackID })
}

// passed reports whether s is not newer than the newest flushed timestamp.
func (q *stability) passed(s *timestamp.Stability) bool {
	return q.haveLast && s.Compare(q.last.Ref) <= 0
}

// leave removes the oldest waiting timestamp.
func (q *stability) leave() { q.waiting = q.waiting[1:] }

// flush removes the oldest waiting timestamp and makes it the newest flushed one.
func (q *stability) flush() *timestamp.Stability {
	q.last, q.haveLast = q.waiting[0], true
	q.leave()
	return &q.last
}

// note records the newest acknowledgement. It becomes the result of LastAck when it is settled: no batch at an older
// stability timestamp is in progress, including those of copies that are being built.
func (q *stability) note(a Ack, settled bool) {
	if !q.haveNewest || a.Compare(q.newestAck.Ref) >= 0 {
		q.newestAck, q.haveNewest = a, true
	}
	if settled {
		q.ack, q.haveAck = q.newestAck, true
	}
}
