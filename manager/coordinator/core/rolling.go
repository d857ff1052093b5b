package core

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/rollback"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
)

// Timeouts of a rollback step: a component that has not answered by then compares logs when it comes back.
const (
	rollbackWait  = 60_000 // ms
	rollbackAgain = 1_000  // ms until a component that has not answered is sent the request again
	// logsWait is the wait for projectors whose answers are not required; logsAgain is the time until they are queried
	// again.
	logsWait  = 1_000 // ms
	logsAgain = 250   // ms
)

// rollbacks takes buckets through the steps of a rollback.
type rollbacks struct {
	*scene
	promotion *promotion
}

// begin proposes the rollback of a bucket of which KV has lost a part of the history.
func (l *rollbacks) begin(b *bucket, d streams.Divergence) {
	s := l.stateOf(b)
	if s == nil || s.Rollback != nil {
		return
	}
	proposed := l.propose(rollbackPrefix+b.name, &statecontext.SetRollbackStep{Bucket: b.name, Generation: b.generation,
		ID:   s.Stability.RollbackID,
		From: statecontext.NoRollback, To: statecontext.Started}, nil)
	if proposed {
		l.log.Warn("bucket rolled back", "bucket", b.name, "vbucket", d.VBucket, "reason", d.Reason)
	}
}

// step continues from the committed step, as package rollback decides from the answers so far.
func (l *rollbacks) step(b *bucket) {
	s := l.stateOf(b)
	if s == nil || s.Rollback == nil {
		b.rolling = nil
		return
	}
	l.enter(b, s.Rollback)
	r := b.rolling
	l.waitedFor(b)
	d, err := rollback.Next(rollback.Context{ID: r.id, Step: rollback.Step(r.step), Current: s.MutationTimestamp,
		Logs:      s.Rollback.Logs,
		Revisions: s.Rollback.Revisions, Restart: s.Rollback.Restart,
		Stability: published(s).Stability},
		r.answers)
	if err != nil {
		if r.reason != err.Error() {
			l.log.Error("rollback cannot continue", "bucket", b.name, "error", err)
		}
		r.reason = err.Error()
		return
	}
	r.reason, r.waits = d.Reason, l.namesOf(d)
	if d.Advance {
		l.advance(b, s, d)
		return
	}
	l.request(b, s.Rollback, d)
}

// enter begins a step that is new to this leader: waiting scans are refused, and no answer has come in.
func (l *rollbacks) enter(b *bucket, c *statecontext.RollbackContext) {
	if r := b.rolling; r != nil && r.id == c.ID && r.step == c.Step {
		return
	}
	b.rolling = &rolling{id: c.ID, step: c.Step, sinceMS: l.nowMS, sentMS: map[string]int64{}, answers: rollback.Answers{
		Logs: map[index.ProjectorID][]timestamp.VBucketLog{}, Away: map[index.ProjectorID]bool{},
		Prepared: map[index.NodeID]rollback.Reply{}, Done: map[index.NodeID]rollback.Reply{}}}
	l.promotion.fail(b, ErrInRollback)
	l.log.Info("rollback", "bucket", b.name, "id", c.ID, "step", c.Step)
}

// waitedFor determines whose answers the step waits for: live projectors until logsWait, and the bucket's live
// indexers until rollbackWait. A suspect indexer, which has not reported for a while though it should ten times a
// second, is not waited for while another one is active: it compares logs when it comes back.
func (l *rollbacks) waitedFor(b *bucket) {
	r := b.rolling
	r.answers.Projectors, r.answers.Nodes = l.components.alive, nil
	var suspect []index.NodeID
	for _, node := range b.hosts {
		n := l.components.indexers[node]
		if n == nil {
			continue
		}
		switch l.life(&n.component) {
		case liveness.Active:
			r.answers.Nodes = append(r.answers.Nodes, node)
		case liveness.Suspect:
			suspect = append(suspect, node)
		}
	}
	if len(r.answers.Nodes) == 0 {
		r.answers.Nodes = suspect
	}
	waited := l.nowMS - r.sinceMS - r.pausedMS
	r.answers.Late = waited >= rollbackWait
	if waited >= logsWait {
		for _, id := range l.components.alive {
			r.answers.Away[id] = true
		}
	}
}

// namesOf returns the names of the components for which a decision waits, for logs and status.
func (l *rollbacks) namesOf(d rollback.Decision) (names []string) {
	for _, id := range d.AskLogs {
		names = append(names, string(id))
	}
	for _, node := range slices.Concat(d.AskPrepare, d.AskDo) {
		if n := l.components.indexers[node]; n != nil {
			names = append(names, n.name)
		}
	}
	return names
}

// request sends requests to the components whose answers are missing.
func (l *rollbacks) request(b *bucket, c *statecontext.RollbackContext, d rollback.Decision) {
	r := b.rolling
	for _, id := range d.AskLogs {
		if p := l.components.projectors[id]; p != nil && r.due(l.nowMS, "logs/"+string(id), logsAgain) {
			l.send(&p.component, Queries, "rollback/"+b.name, FetchLogs{Projector: id, Bucket: b.ref(),
				For: Purpose{Kind: ForRollback, Rollback: r.id}})
		}
	}
	send := func(nodes []index.NodeID, step string) {
		for _, node := range nodes {
			if n := l.components.indexers[node]; n != nil && r.due(l.nowMS, fmt.Sprint(step, "/", node), rollbackAgain) {
				l.send(&n.component, Commands, "rollback/"+b.name, RollBack{Node: node, Bucket: b.ref(), ID: r.id, Step: step,
					Logs: c.Logs, Incarnation: b.ledger.RollbackIncarnation()})
			}
		}
	}
	send(d.AskPrepare, "prepare")
	send(d.AskDo, "rollback")
}

// advance commits the next step, preceded by commands with the failover logs for which it has no room. When this is
// decided again, by any leader, the committed logs are in the context.
func (l *rollbacks) advance(b *bucket, s *statecontext.Bucket, d rollback.Decision) {
	l.propose(rollbackPrefix+b.name, rollbackCommand(s, d), nil)
}

// rollbackCommand returns the next command for a decision: the step, or a piece of the logs that must be committed
// before it.
func rollbackCommand(s *statecontext.Bucket, d rollback.Decision) statecontext.Body {
	c := &statecontext.SetRollbackStep{Bucket: s.Name, Generation: s.Generation, ID: s.Rollback.ID, From: s.Rollback.Step,
		To: statecontext.RollbackStep(d.To), Failover: d.Failover, Restart: d.Restart, Stability: d.Stability}
	for v, log := range d.Logs {
		if !log.Equal(s.Rollback.Logs[v]) || d.Revisions[v] != s.Rollback.Revisions[v] {
			c.Logs = append(c.Logs, timestamp.VBucketLog{VBucket: uint16(v), Log: log, Revision: d.Revisions[v]})
		}
	}
	piece, rest := statecontext.SplitLogs(c.Logs)
	if len(rest) == 0 {
		return c
	}
	return &statecontext.RollbackLogs{Bucket: c.Bucket, Generation: c.Generation, ID: c.ID, Logs: piece}
}

// rollbackLogs takes a projector's answer.
func (b *bucket) rollbackLogs(a *LogsFetched) {
	r := b.rolling
	if r == nil || r.id != a.For.Rollback || r.step != statecontext.Started {
		return
	}
	if b.due = true; a.Err != nil {
		r.answers.Away[a.Projector] = true
		return
	}
	logs := make([]timestamp.VBucketLog, len(a.Logs))
	for i, g := range a.Logs {
		logs[i] = timestamp.VBucketLog{VBucket: g.VBucket, Log: g.Log, Revision: g.Revision}
	}
	r.answers.Logs[a.Projector] = logs
}

// rolledBack takes an indexer's answer.
func (l *rollbacks) rolledBack(a *RolledBack) {
	b := l.find(a.Bucket)
	if b == nil || b.rolling == nil || b.rolling.id != a.ID {
		return
	}
	if b.due = true; a.Step == "prepare" && b.rolling.step == statecontext.Prepare {
		b.rolling.answers.Prepared[a.Node] = a.Reply
	} else if a.Step == "rollback" && b.rolling.step == statecontext.Restart {
		b.rolling.answers.Done[a.Node] = a.Reply
	}
}
