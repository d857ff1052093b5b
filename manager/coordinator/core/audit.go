package core

import (
	"tidemark/index"
	"tidemark/streams"
)

const (
	// auditSpacing is the least time between audits of two buckets, so that many buckets do not query KV at once.
	auditSpacing = 1_000 // ms
	// auditWait limits the wait for projectors' answers; suspectWait applies while a scan waits for the result.
	auditWait   = 5_000 // ms
	suspectWait = 1_000 // ms
)

// audits compare the streams of buckets with KV's failover logs.
type audits struct {
	*scene
	promotion *promotion
	atMS      int64 // when the newest audit began
	begun     uint64
}

// step begins an audit if one is due, or if a scan needs a branch that this leader does not know, one bucket at a
// time. It ends audits that have all their answers or have timed out (IM-14).
func (l *audits) step() {
	for _, b := range l.buckets.ordered {
		a := b.audit
		wait := int64(auditWait)
		if b.suspect {
			wait = suspectWait
		}
		if a == nil || a.answers < a.sent && l.nowMS-a.sinceMS-a.pausedMS < wait {
			continue
		}
		b.audit = nil
		if b.wanted && b.rolling == nil {
			b.ledger.Audit(l.nowMS, a.logs, b.stab.CompleteAt)
			l.promotion.endLost(b, a)
			b.due = true
		}
	}
	if l.nowMS-l.atMS < auditSpacing {
		return
	}
	if b := l.next(); b != nil {
		l.atMS = l.nowMS
		l.begin(b)
	}
}

// isDue reports whether an audit of a bucket may begin.
func (l *audits) isDue(b *bucket) bool {
	return b.wanted && b.rolling == nil && b.audit == nil &&
		(b.suspect || l.nowMS-b.auditMS >= l.settings.Audit.Milliseconds())
}

// isAuditedBefore reports whether b is audited before o: buckets that a scan suspects come first, then the one whose
// last audit is oldest.
func (b *bucket) isAuditedBefore(o *bucket) bool {
	if b.suspect != o.suspect {
		return b.suspect
	}
	return b.auditMS < o.auditMS
}

// next returns the bucket to audit next, nil if no audit is due.
func (l *audits) next() (oldest *bucket) {
	for _, b := range l.buckets.ordered {
		if l.isDue(b) && (oldest == nil || b.isAuditedBefore(oldest)) {
			oldest = b
		}
	}
	return oldest
}

func (l *audits) begin(b *bucket) {
	l.begun++
	b.auditMS, b.audit = l.nowMS, &audit{number: l.begun, sinceMS: l.nowMS,
		logs: map[index.ProjectorID][]streams.Log{}}
	for _, id := range l.components.alive {
		p := l.components.projectors[id]
		if p == nil {
			continue
		}
		b.audit.sent++
		l.send(&p.component, Queries, "audit/"+b.name, FetchLogs{Projector: id, Bucket: b.ref(),
			For: Purpose{Kind: ForAudit, Audit: b.audit.number}})
	}
}

// audited records a projector's answer.
func (b *bucket) audited(in *LogsFetched) {
	a := b.audit
	if a == nil || a.number != in.For.Audit {
		return
	}
	if a.answers++; in.Err == nil {
		a.logs[in.Projector] = in.Logs
	}
}
