// Package rollback decides what happens when KV lost history (IM-23): how far each position is still valid, which
// snapshot a slice goes back to, how far the stability timestamp rewinds, and which step a bucket's rollback takes
// next.
//
// What it promises: nothing that is still on KV's branch is given up; a slice goes back to the newest state that is
// valid, and to zero only where none is; each step can be computed again from what is committed and from answers, so
// that a new leader goes on where the old one stopped.
//
// What it never does: send, store, or read a clock. The context is in the StateContext; answers are inputs.
package rollback

import (
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Step of a bucket's rollback context.
type Step uint8

// The steps (docs/timestamps.md, "Rollback"): each is committed, guarded by the one before.
const (
	None     Step = iota // no rollback
	Started              // streams are stopped, scans that wait fail
	Prepare              // the failover timestamp and logs are committed; indexers say what they would restore
	Restart              // the restart timestamp is committed; indexers are commanded
	Rollback             // all have gone back; streams start at the restart timestamp
)

// ErrStep is wrapped when one step may not follow another.
var ErrStep = errors.New("illegal rollback step")

// String returns the word used in status and in the StateContext.
func (s Step) String() string {
	switch s {
	case None:
		return "none"
	case Started:
		return "started"
	case Prepare:
		return "prepare"
	case Restart:
		return "restart"
	case Rollback:
		return "rollback"
	}
	return fmt.Sprintf("step(%d)", s)
}

// CheckNext returns an error wrapping ErrStep unless `to` may follow s: the next one in order, or started again.
func (s Step) CheckNext(to Step) error {
	if s <= Rollback && (to == (s+1)%(Rollback+1) || to == Started) {
		return nil
	}
	return fmt.Errorf("%w: from %s to %s", ErrStep, s, to)
}

// Failover returns the failover timestamp: per vbucket min(current, the highest seqno that its branch shares with
// KV's). logs has one failover log per vbucket; the error wraps timestamp.ErrLength when there are not as many.
func Failover(current timestamp.Vector, logs []timestamp.FailoverLog) (timestamp.Vector, error) {
	if err := current.Check(len(logs)); err != nil {
		return timestamp.Vector{}, err
	}
	f := timestamp.New(current.Len())
	for v, log := range logs {
		at := current.At(v)
		f.Set(v, on(log, min(at.Seqno, log.ValidUpTo(at.VBUUID))))
	}
	return f, nil
}

// Reply is an indexer's answer to a step.
type Reply struct {
	Stale bool // it knows a newer failover log: start again
	// Restart is the timestamp that it would restore: per vbucket the seqno, timestamp.Infinity where it takes no part. It
	// may be shorter.
	Restart []uint64
}

// Rewind returns the stability timestamp from which the bucket goes on: nowhere above s, and on KV's branch everywhere.
// logs are KV's, by vbucket; the error wraps timestamp.ErrLength when there are not as many.
func Rewind(s timestamp.Stability, logs []timestamp.FailoverLog) (timestamp.Vector, error) {
	if err := s.Vector.Check(len(logs)); err != nil {
		return timestamp.Vector{}, err
	}
	r := timestamp.New(s.Vector.Len())
	for v, log := range logs {
		at := s.Vector.At(v)
		shared := log.ValidUpTo(at.VBUUID)
		if v < len(s.Logs) {
			shared = max(shared, s.Logs[v].Common(log))
		}
		r.Set(v, on(log, min(at.Seqno, shared)))
	}
	return r, nil
}

// on names a seqno by the branch that it lies on.
func on(log timestamp.FailoverLog, seqno uint64) timestamp.Position {
	if seqno == 0 {
		return timestamp.Position{}
	}
	branch := log.Covering(seqno)
	if branch == 0 && len(log) > 0 {
		branch = log[len(log)-1].VBUUID
	}
	return timestamp.Position{VBUUID: branch, Seqno: seqno}
}

// Context is what is committed of a bucket's rollback, and what it started from.
type Context struct {
	ID        uint64                  // of this rollback; a new one for each time that it starts again
	Step      Step                    // the newest that is committed
	Stability timestamp.Stability     // the last one before
	Current   timestamp.Vector        // the newest mutation timestamp known
	Logs      []timestamp.FailoverLog // per vbucket; KV's from Prepare on, before it what was known
	Revisions []timestamp.MapRevision // per vbucket, of Logs
	Restart   timestamp.Vector        // from Restart on
}

// Answers is what came in since the step was entered.
type Answers struct {
	Projectors []index.ProjectorID                          // that are alive
	Nodes      []index.NodeID                               // indexers of the bucket that are alive
	Logs       map[index.ProjectorID][]timestamp.VBucketLog // of step started, by who answered
	// Away: projectors whose KV node does not answer them. They are asked again, and waited for only where the others do
	// not have every vbucket under one map.
	Away     map[index.ProjectorID]bool
	Prepared map[index.NodeID]Reply // of step prepare: what they would restore
	Done     map[index.NodeID]Reply // of step restart: that they have
	// Late: patience is over, those who have not answered do not count. They compare logs when they come back.
	Late bool
}

// Decision is what to do now.
type Decision struct {
	// AskLogs, AskPrepare and AskDo list who has to be asked (again); asking is idempotent.
	AskLogs    []index.ProjectorID // for failover logs
	AskPrepare []index.NodeID      // what they would restore
	AskDo      []index.NodeID      // to restore it
	// Advance says that To is to be committed, with the fields that belong to it.
	Advance   bool
	To        Step
	Logs      []timestamp.FailoverLog // with Prepare, by vbucket
	Revisions []timestamp.MapRevision // with Prepare, of Logs
	Failover  timestamp.Vector        // with Prepare
	Restart   timestamp.Vector        // with Restart
	Stability timestamp.Vector        // with None: from where the bucket goes on
	// Reason says what a step still waits for, for people; "" when it waits for nothing.
	Reason string
}

// Next returns the next thing to do for a context. It is the whole machine: started → prepare → restart → rollback →
// none. Errors wrap ErrStep or timestamp.ErrLength: the context is no legal one.
func Next(c Context, a Answers) (Decision, error) {
	n := c.Stability.Vector.Len()
	if len(c.Logs) != n || len(c.Revisions) != n {
		return Decision{}, fmt.Errorf("%w: %d logs and %d revisions for %d vbuckets", ErrStep, len(c.Logs), len(c.Revisions),
			n)
	}
	switch c.Step {
	case None:
		return Decision{}, nil
	case Started:
		return c.started(a)
	case Prepare:
		return c.prepare(a)
	case Restart:
		return c.restart(a)
	case Rollback:
		to, err := Rewind(c.Stability, c.Logs)
		return Decision{Advance: true, To: None, Stability: to}, err
	}
	return Decision{}, fmt.Errorf("%w: %s is unknown", ErrStep, c.Step)
}

// started waits for the failover logs of every vbucket, under maps no older than those known.
func (c Context) started(a Answers) (Decision, error) {
	var d Decision
	waiting := false
	for _, p := range a.Projectors {
		if _, ok := a.Logs[p]; !ok {
			d.AskLogs = append(d.AskLogs, p)
			waiting = waiting || !a.Away[p]
		}
	}
	if waiting && !a.Late {
		d.Reason = "waiting for failover logs"
		return d, nil
	}
	logs, revisions, missing := c.newestLogs(a)
	if missing >= 0 {
		d.Reason = fmt.Sprintf("no projector hosts vbucket %d under the newest vbucket map", missing)
		d.AskLogs = a.Projectors
		return d, nil
	}
	if v := older(revisions); len(d.AskLogs) > 0 && !a.Late && v >= 0 {
		// Under one map each vbucket has one owner; across two maps the one that is away may own it by now.
		d.Reason = fmt.Sprintf("vbucket %d is known under an older vbucket map than others, and a projector's KV node does "+
			"not answer", v)
		d.AskLogs = a.Projectors
		return d, nil
	}
	failover, err := Failover(c.Current, logs)
	if err != nil {
		return Decision{}, err
	}
	return Decision{Advance: true, To: Prepare, Logs: logs, Revisions: revisions, Failover: failover}, nil
}

// newestLogs returns the log of each vbucket under the newest map that an answer has it under, and a vbucket that no
// answer has, -1 when there is none.
func (c Context) newestLogs(a Answers) (logs []timestamp.FailoverLog, revisions []timestamp.MapRevision, missing int) {
	logs, revisions = slices.Clone(c.Logs), slices.Clone(c.Revisions)
	found := make([]bool, len(logs))
	for _, p := range a.Projectors {
		for _, g := range a.Logs[p] {
			v := int(g.VBucket)
			if v >= len(logs) || len(g.Log) == 0 {
				continue
			}
			if g.Revision.Compare(revisions[v]) < 0 || found[v] && g.Revision == revisions[v] {
				continue
			}
			logs[v], revisions[v], found[v] = g.Log, g.Revision, true
		}
	}
	return logs, revisions, slices.Index(found, false)
}

// older returns the first of the revisions that is not the newest, or -1.
func older(revisions []timestamp.MapRevision) int {
	for v := range revisions {
		if revisions[v].Compare(revisions[0]) != 0 {
			if revisions[v].Compare(revisions[0]) < 0 {
				return v
			}
			return 0
		}
	}
	return -1
}

// prepare waits for what each indexer would restore; the smallest is the restart timestamp.
func (c Context) prepare(a Answers) (Decision, error) {
	d, again := wait(a.Nodes, a.Prepared)
	d.AskPrepare, d.AskDo = d.AskDo, nil
	if again {
		return Decision{Advance: true, To: Started, Reason: "an indexer knows a newer failover log"}, nil
	}
	if len(d.AskPrepare) > 0 && !a.Late {
		return d, nil
	}
	restart := timestamp.New(len(c.Logs))
	for v, log := range c.Logs {
		restart.Set(v, on(log, lowest(a.Prepared, v)))
	}
	return Decision{Advance: true, To: Restart, Restart: restart}, nil
}

// lowest is where the indexers would go back to in a vbucket: the smallest of their answers, 0 where nobody takes part.
func lowest(answers map[index.NodeID]Reply, v int) uint64 {
	least := uint64(timestamp.Infinity)
	for _, r := range answers {
		if v < len(r.Restart) {
			least = min(least, r.Restart[v])
		}
	}
	if least == timestamp.Infinity {
		return 0
	}
	return least
}

// restart waits until all indexers have gone back.
func (c Context) restart(a Answers) (Decision, error) {
	d, again := wait(a.Nodes, a.Done)
	if again {
		return Decision{Advance: true, To: Started, Reason: "an indexer knows a newer failover log"}, nil
	}
	if len(d.AskDo) > 0 && !a.Late {
		return d, nil
	}
	return Decision{Advance: true, To: Rollback}, nil
}

// wait returns who has to be asked still, and whether somebody wants to start again.
func wait(nodes []index.NodeID, answers map[index.NodeID]Reply) (d Decision, again bool) {
	for _, n := range nodes {
		r, ok := answers[n]
		if !ok {
			d.AskDo = append(d.AskDo, n)
		}
		again = again || ok && r.Stale
	}
	if len(d.AskDo) > 0 {
		d.Reason = "waiting for indexers"
	}
	return d, again
}
