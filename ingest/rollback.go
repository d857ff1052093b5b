package ingest

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// RollbackOutcome is what a bucket does with a command of the rollback machine (IM-23).
type RollbackOutcome uint8

// The outcomes.
const (
	RollbackDone    RollbackOutcome = iota // acknowledge: carried out, or a newer stream's BEGIN has done the check
	RollbackStale                          // a newer failover log is known here: the logs have to be fetched again
	RollbackStarted                        // fenced; acknowledge when Restoring is 0
	RollbackIgnored                        // of an older rollback id: no answer
)

// Rollback carries out the step "rollback": fence, forget queues and waiting stability timestamps, and put back what is
// not on the branch of the logs (one per vbucket).
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

// RollbackAsk answers the step "prepare": the timestamp that would be restored, per vbucket the seqno,
// timestamp.Infinity where nothing here takes part. states lists, newest first, what a copy could go back to in a
// vbucket.
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
				continue // a copy that was never told to join
			}
			h := Held{Position: p.pos, Log: p.log}
			h.Position.WindowEnd = p.reach() // what of a side stream is unsure is read again
			if len(logs[vb]) > 0 {
				h = newest(h, logs[vb], func() []Held { return states(c.id, vb) })
			}
			restart[vb] = min(restart[vb], max(h.Position.Main, h.Position.A))
		}
	}
	return restart, RollbackDone
}

// newest returns the newest state that lies wholly on the branch of log: the present one, an older one, or nothing
// held.
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

// fence: nothing of an older incarnation is accepted any more, and no older stability timestamp counts.
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

// overtaken: a stream of a newer incarnation has begun here; its BEGIN has done the check.
func (b *Bucket) overtaken(inc index.Incarnation) bool {
	for vb := range b.vbs {
		if b.vbs[vb].cur.inc.Compare(inc) > 0 {
			return true
		}
	}
	return false
}

// staleLogs: a newer log than one of these is known here.
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
