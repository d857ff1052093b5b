package coordinator

import (
	"context"

	"tidemark/index"
	"tidemark/streams"
	"tidemark/wire"
)

const (
	// auditSpacing is the least time between audits of two buckets, so that many buckets do not ask KV at once.
	auditSpacing = 1_000 // ms
	// auditPatience is how long answers are waited for, suspectPatience while a scan waits for what the audit finds.
	auditPatience   = 5_000 // ms
	suspectPatience = 1_000 // ms
)

// audit is one comparison of a bucket's streams with what KV says.
type audit struct {
	sinceMS int64
	asked   int
	logs    map[index.ProjectorID][]streams.Log
	answers int
}

// lacks reports whether the vbucket was shown and no log of it has the branch.
func (a *audit) lacks(v uint16, branch uint64) (shown bool) {
	for _, logs := range a.logs {
		for i := range logs {
			if logs[i].VBucket == v {
				if knows(logs[i].Log, branch) {
					return false
				}
				shown = true
			}
		}
	}
	return shown
}

// stepAudit begins an audit where one is due, or where a scan needs a branch that is not known here, one bucket at a
// time, and ends one whose answers are there (IM-14).
func (l *leader) stepAudit() {
	for _, b := range l.buckets.ordered {
		a := b.audit
		patience := int64(auditPatience)
		if b.suspect {
			patience = suspectPatience
		}
		if a == nil || a.answers < a.asked && l.nowMS-a.sinceMS < patience {
			continue
		}
		b.audit = nil
		if b.wanted && b.rolling == nil {
			b.ledger.Audit(l.nowMS, a.logs, b.stab.CompleteAt)
			l.endLost(b, a)
			b.due = true
		}
	}
	if l.nowMS-l.periodic.auditMS < auditSpacing {
		return
	}
	if b := l.nextAudited(); b != nil {
		l.periodic.auditMS = l.nowMS
		l.beginAudit(b)
	}
}

// nextAudited returns the bucket whose audit is due: one that a scan has doubts of before others, then the one that
// waits longest; nil for none.
func (l *leader) nextAudited() (oldest *bucket) {
	for _, b := range l.buckets.ordered {
		due := b.wanted && b.rolling == nil && b.audit == nil && (b.suspect ||
			l.nowMS-b.auditMS >= l.cfg.Settings.Audit.Milliseconds())
		if due && (oldest == nil || b.suspect && !oldest.suspect || b.suspect == oldest.suspect &&
			b.auditMS < oldest.auditMS) {
			oldest = b
		}
	}
	return oldest
}

func (l *leader) beginAudit(b *bucket) {
	b.auditMS, b.audit = l.nowMS, &audit{sinceMS: l.nowMS, logs: map[index.ProjectorID][]streams.Log{}}
	ref, mine := bucketRef{name: b.name, generation: b.generation}, b.audit
	for _, id := range l.components.alive {
		p := l.components.projectors[id]
		if p == nil {
			continue
		}
		mine.asked++
		p.questions.put(task{key: "audit/" + ref.name, do: func(ctx context.Context) {
			reply, err := fenced(ctx, p.fences, func(f wire.Fence) (*wire.FailoverLogsReply, error) {
				return l.cfg.Projectors.FailoverLogs(ctx, p.addr, &wire.FailoverLogsRequest{Fence: f, Bucket: ref.name})
			})
			if err != nil {
				l.log.Debug("audit", "projector", p.id, "error", err)
			}
			_ = l.post(ctx, answer(func(l *leader) {
				if b := ref.find(l); b == nil || b.audit != mine {
					return
				}
				if mine.answers++; err == nil {
					mine.logs[p.id] = logsOf(reply)
				}
			}))
		}})
	}
}

func logsOf(reply *wire.FailoverLogsReply) []streams.Log {
	logs := make([]streams.Log, len(reply.Logs))
	for i, g := range reply.Logs {
		logs[i] = streams.Log{VBucket: g.VBucket, Log: g.Log, High: g.High, Purge: g.Purge, Revision: g.Revision}
	}
	return logs
}
