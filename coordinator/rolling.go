package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/rollback"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// ErrInRollback is wrapped when the bucket is being rolled back.
var ErrInRollback = errors.New("the bucket is being rolled back")

// Patience of a rollback step: who has not answered by then compares logs when it comes back.
const (
	rollbackPatience = 60_000 // ms
	rollbackAgain    = 1_000  // ms until somebody who has not answered is asked again
	// logsPatience is how long projectors are waited for of which no answer is needed, logsAgain until they are asked again.
	logsPatience = 1_000 // ms
	logsAgain    = 250   // ms
)

// rolling is one step of a bucket's rollback (IM-23): what came in since it was entered. A new leader, or a new step,
// begins with nothing; asking again is idempotent.
type rolling struct {
	id      uint64
	step    statecontext.RollbackStep
	sinceMS int64
	answers rollback.Answers
	askedMS map[string]int64
	reason  string
	waits   []string // names of the projectors and indexers whose answers are awaited
}

// beginRollback proposes the rollback of a bucket whose history KV has lost in part.
func (l *leader) beginRollback(b *bucket, d streams.Divergence) {
	s := l.state.Bucket(b.name)
	if s == nil || s.Rollback != nil || s.Generation != b.generation {
		return
	}
	proposed := l.propose("rollback/"+b.name, &statecontext.SetRollbackStep{Bucket: b.name, Generation: b.generation, ID: s.Stability.RollbackID,
		From: statecontext.NoRollback, To: statecontext.Started}, nil)
	if proposed {
		l.log.Warn("the bucket is rolled back", "bucket", b.name, "vbucket", d.VBucket, "reason", d.Reason)
	}
}

// stepRollback goes on from the committed step.
func (l *leader) stepRollback(b *bucket) {
	s := l.state.Bucket(b.name)
	if s == nil || s.Rollback == nil || s.Generation != b.generation {
		b.rolling = nil
		return
	}
	r := b.rolling
	if r == nil || r.id != s.Rollback.ID || r.step != s.Rollback.Step {
		r = &rolling{id: s.Rollback.ID, step: s.Rollback.Step, sinceMS: l.nowMS, askedMS: map[string]int64{}, answers: rollback.Answers{
			Logs: map[index.ProjectorID][]rollback.Log{}, Away: map[index.ProjectorID]bool{}, Prepared: map[index.NodeID]rollback.Reply{}, Done: map[index.NodeID]rollback.Reply{}}}
		b.rolling = r
		b.fail(ErrInRollback)
		l.log.Info("rollback", "bucket", b.name, "id", r.id, "step", r.step)
	}
	r.answers.Projectors, r.answers.Nodes = l.alive, nil
	for _, node := range b.hosts {
		if n := l.indexers[node]; n != nil && l.life(&n.component) != Offline {
			r.answers.Nodes = append(r.answers.Nodes, node)
		}
	}
	r.answers.Late = l.nowMS-r.sinceMS >= rollbackPatience
	if l.nowMS-r.sinceMS >= logsPatience {
		for _, id := range l.alive {
			r.answers.Away[id] = true
		}
	}
	d, err := rollback.Next(rollback.Context{ID: r.id, Step: rollback.Step(r.step), Current: s.MutationTimestamp, Logs: s.Rollback.Logs,
		Revisions: s.Rollback.Revisions, Restart: s.Rollback.Restart,
		Stability: rollback.Stability{Vector: s.Stability.Vector, Logs: s.Stability.Logs}, AnyMap: !l.on(NewestMap)}, r.answers)
	if err != nil {
		if r.reason != err.Error() {
			l.log.Error("rollback cannot go on", "bucket", b.name, "error", err)
		}
		r.reason = err.Error()
		return
	}
	r.reason, r.waits = d.Reason, nil
	for _, id := range d.AskLogs {
		r.waits = append(r.waits, string(id))
	}
	for _, node := range slices.Concat(d.AskPrepare, d.AskDo) {
		if n := l.indexers[node]; n != nil {
			r.waits = append(r.waits, n.name)
		}
	}
	if d.Advance {
		l.advanceRollback(b, s, d)
		return
	}
	for _, id := range d.AskLogs {
		if p := l.projectors[id]; p != nil && r.due(l.nowMS, "logs/"+string(id), logsAgain) {
			l.rollbackLogs(b, r, p)
		}
	}
	for _, node := range d.AskPrepare {
		if n := l.indexers[node]; n != nil && r.due(l.nowMS, fmt.Sprint("prepare/", node), rollbackAgain) {
			l.tellRollback(b, s.Rollback, r, n, "prepare")
		}
	}
	for _, node := range d.AskDo {
		if n := l.indexers[node]; n != nil && r.due(l.nowMS, fmt.Sprint("rollback/", node), rollbackAgain) {
			l.tellRollback(b, s.Rollback, r, n, "rollback")
		}
	}
}

// due tells whether somebody may be asked (again) now, and notes that it is.
func (r *rolling) due(nowMS int64, who string, again int64) bool {
	if at, asked := r.askedMS[who]; asked && nowMS-at < again {
		return false
	}
	r.askedMS[who] = nowMS
	return true
}

// advanceRollback commits the next step.
func (l *leader) advanceRollback(b *bucket, s *statecontext.Bucket, d rollback.Decision) {
	c := &statecontext.SetRollbackStep{Bucket: b.name, Generation: b.generation, ID: s.Rollback.ID, From: s.Rollback.Step,
		To: statecontext.RollbackStep(d.To), Failover: d.Failover, Restart: d.Restart, Stability: d.Stability}
	for v, log := range d.Logs {
		if !log.Equal(s.Rollback.Logs[v]) || d.Revisions[v] != s.Rollback.Revisions[v] {
			c.Logs = append(c.Logs, statecontext.LogChange{VBucket: uint16(v), Log: log, Revision: d.Revisions[v]})
		}
	}
	l.propose("rollback/"+b.name, c, nil)
}

func (l *leader) rollbackLogs(b *bucket, r *rolling, p *projector) {
	ref, id := bucketRef{name: b.name, generation: b.generation}, r.id
	p.questions.put(task{key: "rollback/" + ref.name, do: func(ctx context.Context) {
		reply, err := fenced(ctx, p.fences, func(f wire.Fence) (*wire.FailoverLogsReply, error) {
			return l.cfg.Projectors.FailoverLogs(ctx, p.addr, &wire.FailoverLogsRequest{Fence: f, Bucket: ref.name})
		})
		if err != nil {
			l.log.Debug("failover logs for a rollback", "projector", p.id, "error", err)
			reply = &wire.FailoverLogsReply{}
		}
		away, logs := err != nil, make([]rollback.Log, len(reply.Logs))
		for i, g := range reply.Logs {
			logs[i] = rollback.Log{VBucket: g.VBucket, Log: g.Log, Revision: g.Revision}
		}
		_ = l.post(ctx, answer(func(l *leader) {
			if b := ref.find(l); b != nil && b.rolling != nil && b.rolling.id == id && b.rolling.step == statecontext.Started {
				if b.due = true; away {
					b.rolling.answers.Away[p.id] = true
				} else {
					b.rolling.answers.Logs[p.id] = logs
				}
			}
		}))
	}})
}

// tellRollback takes an indexer through a step. What it restores cannot be undone: leadership is checked first.
func (l *leader) tellRollback(b *bucket, c *statecontext.RollbackContext, r *rolling, n *indexer, step string) {
	ref, id, inc := bucketRef{name: b.name, generation: b.generation}, r.id, b.ledger.RollbackIncarnation()
	n.commands.put(task{key: "rollback/" + ref.name, do: func(ctx context.Context) {
		if err := l.cfg.Consensus.ReadBarrier(ctx); err != nil {
			return
		}
		reply, err := fenced(ctx, n.fences, func(f wire.Fence) (*wire.RollbackReply, error) {
			return l.cfg.Indexers.Rollback(ctx, n.addr, &wire.RollbackRequest{Fence: f, Bucket: ref.name, Generation: ref.generation, RollbackID: id,
				Step: step, Logs: c.Logs, Incarnation: inc, Brief: true})
		})
		if err != nil {
			l.log.Debug("rollback step", "indexer", n.name, "step", step, "error", err)
			return
		}
		a := rollback.Reply{Stale: reply.Stale, Restart: reply.Timestamp(len(c.Logs))}
		_ = l.post(ctx, answer(func(l *leader) {
			b := ref.find(l)
			if b == nil || b.rolling == nil || b.rolling.id != id {
				return
			}
			if b.due = true; step == "prepare" && b.rolling.step == statecontext.Prepare {
				b.rolling.answers.Prepared[n.node] = a
			} else if step == "rollback" && b.rolling.step == statecontext.Restart {
				b.rolling.answers.Done[n.node] = a
			}
		}))
	}})
}
