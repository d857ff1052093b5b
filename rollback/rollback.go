// Package rollback decides what happens when KV has lost history (IM-23): how far each position is still valid, to
// which snapshot a slice is restored, how far the stability timestamp rewinds, and the next step of a bucket's
// rollback.
//
// Guarantees: nothing that is still on KV's branch is given up; a slice is restored to the newest valid state, and to
// zero only if there is none; each step can be computed again from what is committed and from answers, so that a new
// leader continues where the previous one stopped.
//
// The package never sends, stores, or reads a clock. The context is in the StateContext; answers are inputs.
package rollback

import (
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Step is the step of a bucket's rollback context.
type Step uint8

// The steps (docs/timestamps.md, "Rollback"): each is committed, guarded by its predecessor.
const (
	None     Step = iota // no rollback
	Started              // streams are stopped, waiting scans fail
	Prepare              // the failover timestamp and logs are committed; indexers report what they would restore
	Restart              // the restart timestamp is committed; indexers are ordered to restore
	Rollback             // all have restored; streams start at the restart timestamp
)

// ErrStep is wrapped if one step may not follow another.
var ErrStep = errors.New("illegal rollback step")

// String returns the word for status and the StateContext.
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

// CheckNext returns an error wrapping ErrStep unless `to` may follow s: the next step in order, or Started again.
func (s Step) CheckNext(to Step) error {
	if s <= Rollback && (to == (s+1)%(Rollback+1) || to == Started) {
		return nil
	}
	return fmt.Errorf("%w: from %s to %s", ErrStep, s, to)
}

// Failover returns the failover timestamp: per vbucket min(current, the highest seqno that its branch shares with
// KV's). logs has one failover log per vbucket; the error wraps timestamp.ErrLength if the number differs.
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
	Stale bool // the indexer has a newer failover log: start again
	// Restart is the timestamp that it would restore: per vbucket the seqno, timestamp.Infinity where it does not
	// participate. It may be shorter.
	Restart []uint64
}

// Rewind returns the stability timestamp from which the bucket continues: nowhere above s, and on KV's branch
// everywhere. logs are KV's, by vbucket; the error wraps timestamp.ErrLength if the number differs.
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

// on returns the position of a seqno with the branch on which it lies.
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

// Context is the committed state of a bucket's rollback, and its starting point.
type Context struct {
	ID        uint64                  // of this rollback; each restart gets a new one
	Step      Step                    // newest committed step
	Stability timestamp.Stability     // last one before the rollback
	Current   timestamp.Vector        // newest known mutation timestamp
	Logs      []timestamp.FailoverLog // per vbucket: KV's from Prepare on, the known ones before
	Revisions []timestamp.MapRevision // per vbucket, of Logs
	Restart   timestamp.Vector        // from Restart on
}

// Answers has the answers received since the step was entered.
type Answers struct {
	Projectors []index.ProjectorID                          // alive
	Nodes      []index.NodeID                               // live indexers of the bucket
	Logs       map[index.ProjectorID][]timestamp.VBucketLog // of step started, by projector
	// Away has the projectors whose KV node does not answer. They are asked again, but waited for only if the others do
	// not have every vbucket under one map.
	Away     map[index.ProjectorID]bool
	Prepared map[index.NodeID]Reply // of step prepare: what the indexer would restore
	Done     map[index.NodeID]Reply // of step restart: the indexer has restored
	// Late is set if the timeout is over: missing answers do not count. Those components compare logs when they return.
	Late bool
}

// Decision is what to do next.
type Decision struct {
	// AskLogs, AskPrepare and AskDo list the components to be asked (again); requests are idempotent.
	AskLogs    []index.ProjectorID // for failover logs
	AskPrepare []index.NodeID      // for what they would restore
	AskDo      []index.NodeID      // to restore
	// Advance is set if To is to be committed, with the fields that belong to it.
	Advance   bool
	To        Step
	Logs      []timestamp.FailoverLog // with Prepare, by vbucket
	Revisions []timestamp.MapRevision // with Prepare, of Logs
	Failover  timestamp.Vector        // with Prepare
	Restart   timestamp.Vector        // with Restart
	Stability timestamp.Vector        // with None: from where the bucket continues
	// Reason is what a step still waits for, for people; "" if nothing.
	Reason string
}

// Next returns the next action for a context. It is the whole state machine: started → prepare → restart → rollback →
// none. Errors wrap ErrStep or timestamp.ErrLength if the context is invalid.
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
		// Under one map each vbucket has one owner; across two maps the absent projector may own it by now.
		d.Reason = fmt.Sprintf("vbucket %d was reported under an older vbucket map than others, and a projector's KV node "+
			"does not answer", v)
		d.AskLogs = a.Projectors
		return d, nil
	}
	failover, err := Failover(c.Current, logs)
	if err != nil {
		return Decision{}, err
	}
	return Decision{Advance: true, To: Prepare, Logs: logs, Revisions: revisions, Failover: failover}, nil
}

// newestLogs returns the newest log of each vbucket among the answers, by map revision, and a vbucket without an
// answer, -1 if there is none.
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

// older returns the index of the first revision that is not the newest, or -1.
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
		return Decision{Advance: true, To: Started, Reason: "an indexer has a newer failover log"}, nil
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

// lowest returns the smallest of the indexers' answers in a vbucket, 0 if no indexer participates.
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

// restart waits until all indexers have restored.
func (c Context) restart(a Answers) (Decision, error) {
	d, again := wait(a.Nodes, a.Done)
	if again {
		return Decision{Advance: true, To: Started, Reason: "an indexer has a newer failover log"}, nil
	}
	if len(d.AskDo) > 0 && !a.Late {
		return d, nil
	}
	return Decision{Advance: true, To: Rollback}, nil
}

// wait returns the indexers still to be asked. again is set if one of them requires a new start.
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
