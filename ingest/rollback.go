package ingest

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// RollbackOutcome is the outcome of a command of the rollback machine (IM-23).
type RollbackOutcome uint8

// The outcomes.
const (
	RollbackDone    RollbackOutcome = iota // acknowledge: carried out, or checked already by the BEGIN of a newer stream
	RollbackStale                          // a newer failover log is known here: the leader has to fetch the logs again
	RollbackStarted                        // fenced; acknowledge when Restoring is 0
	RollbackIgnored                        // of an older rollback id: no answer
)

// Rollback carries out the step "rollback": it fences, discards queues and waiting stability timestamps, and restores
// what is not on the branch of the logs (one per vbucket).
func (b *Bucket) Rollback(id uint64, logs []timestamp.FailoverLog, inc index.Incarnation) RollbackOutcome {
	switch {
	case id < b.rollbackDone || len(logs) != len(b.vbs):
		return RollbackIgnored
	case id == b.rollbackDone && id > 0:
		if b.Restoring() > 0 {
			return RollbackStarted
		}
		return RollbackDone
	case b.overtaken(inc):
		return RollbackDone
	case b.staleLogs(logs):
		return RollbackStale
	}
	b.fence(id, inc)
	for vb := range b.vbs {
		b.dropSide(vb)
		for _, c := range b.copies {
			p := b.part(c, vb)
			if p.restoring {
				continue
			}
			if len(logs[vb]) == 0 {
				b.reset(c, vb)
				continue
			}
			if b.checkBranch(c, vb, logs[vb], 0); !p.restoring {
				b.reset(c, vb)
			}
		}
		b.trim(vb)
	}
	b.rollbackDone = id
	return RollbackStarted
}

// RollbackAsk answers the step "prepare" with the timestamp that would be restored: per vbucket the seqno,
// timestamp.Infinity if no copy here participates. states returns, newest first, the states to which a copy could be
// restored in a vbucket.
func (b *Bucket) RollbackAsk(id uint64, logs []timestamp.FailoverLog, inc index.Incarnation,
	states func(index.CopyID, int) []Held) ([]uint64, RollbackOutcome) {
	switch {
	case id < b.rollbackID || len(logs) != len(b.vbs) || b.overtaken(inc):
		return nil, RollbackIgnored
	case b.staleLogs(logs):
		return nil, RollbackStale
	}
	b.fence(id, inc)
	restart := make([]uint64, len(b.vbs))
	for vb := range b.vbs {
		restart[vb] = timestamp.Infinity
		for _, c := range b.copies {
			p := &c.parts[vb]
			if !p.sub && !c.ready {
				continue // a copy that never joined
			}
			h := Held{Position: p.pos, Log: p.log}
			h.Position.WindowEnd = p.reach() // the unsure part of a side stream is read again
			if len(logs[vb]) > 0 {
				h = newest(h, logs[vb], func() []Held { return states(c.id, vb) })
			}
			restart[vb] = min(restart[vb], max(h.Position.Main, h.Position.A))
		}
	}
	return restart, RollbackDone
}

// newest returns the newest state that lies entirely on the branch of log: the current one, an older one, or the
// empty state.
func newest(present Held, log timestamp.FailoverLog, older func() []Held) Held {
	if present.Position.Content() <= present.Log.Common(log) {
		return present
	}
	states := older()
	if i := Choose(states, log); i >= 0 {
		return states[i]
	}
	return Held{}
}

// fence refuses everything of an older incarnation, and discards all stability timestamps, from now on.
func (b *Bucket) fence(id uint64, inc index.Incarnation) {
	for vb := range b.vbs {
		v := &b.vbs[vb]
		v.cur.open = false
		if inc.Compare(v.min) > 0 {
			v.min = inc
		}
	}
	b.stability = stability{}
	b.rollbackID = max(b.rollbackID, id)
	for _, c := range b.copies {
		c.exact, c.at, c.has = false, timestamp.Ref{}, false
	}
}

// overtaken reports whether a stream of a newer incarnation has begun here. Its BEGIN has checked the branch.
func (b *Bucket) overtaken(inc index.Incarnation) bool {
	for vb := range b.vbs {
		if b.vbs[vb].cur.inc.Compare(inc) > 0 {
			return true
		}
	}
	return false
}

// staleLogs reports whether a newer log than one of these is known here.
func (b *Bucket) staleLogs(logs []timestamp.FailoverLog) bool {
	for vb := range b.vbs {
		if b.vbs[vb].begun && left(b.vbs[vb].log, logs[vb]) {
			return true
		}
		for _, c := range b.distinct() {
			if left(c.parts[vb].log, logs[vb]) {
				return true
			}
		}
	}
	return false
}
