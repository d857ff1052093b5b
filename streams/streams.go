// Package streams is the coordinator's ledger of the maintenance streams of one bucket (IM-20 to IM-22): which
// projector streams which vbucket under which incarnation, and which requests are needed for a vbucket without a
// stream.
//
// Guarantees: there is at most one owner for a vbucket and incarnation; events in any order, late, repeated or lost,
// lead to the same states in the end; a restart never begins above what a healthy indexer holds, and never at a
// position that only the coordinator knows; a healthy stream is never restarted, not even by a new leader.
//
// The package never reads a clock, sends anything, or decides about branches by anything but failover logs. Inputs
// are reports and answers with their time of arrival; Step returns the requests as data.
//
// One goroutine owns a Ledger.
package streams

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/timestamp"
)

// State is the state of a vbucket's maintenance stream.
type State uint8

// The states.
const (
	Idle      State = iota // no stream is wanted
	Requested              // requested, no BEGIN yet
	Begun                  // a projector streams it
	Ended                  // the owner sent END: to be requested again
	Lost                   // no projector is known to stream it: to be requested again
	Unknown                // wanted; a projector that has not answered this leader yet may stream it
)

// String returns the word for status output.
func (s State) String() string {
	switch s {
	case Idle:
		return "idle"
	case Requested:
		return "requested"
	case Begun:
		return "begun"
	case Ended:
		return "ended"
	case Lost:
		return "lost"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("state(%d)", s)
}

// ErrConfig is wrapped if a configuration or a bucket cannot be used.
var ErrConfig = errors.New("bad stream ledger configuration")

// Config holds the timeouts of the ledger.
type Config struct {
	// AnswerWait is the timeout for positions and failover logs; components that have not answered by then do not count.
	AnswerWait time.Duration
	// BeginWait is the timeout for a BEGIN at the first try. It doubles with each, because a new request makes a late
	// BEGIN stale.
	BeginWait time.Duration
	// RetryWait is how long a vbucket that no projector hosts rests after the first try; it doubles.
	RetryWait time.Duration
	// MismatchWait is how long an indexer with room in its queue may not accept the owner's stream; it doubles with each
	// repair.
	MismatchWait time.Duration
	// ReportGrace is the minimum age of a BEGIN at which a full report that does not list it counts: a report may have
	// been made before the BEGIN.
	ReportGrace time.Duration
	// DealEvery is the interval of moves of vbuckets to a projector that streams less; see deal.
	DealEvery time.Duration
	// MaxDoublings bounds all doublings.
	MaxDoublings int
	// StuckAfter is how long a vbucket may be without a stream before it is reported.
	StuckAfter time.Duration
}

// DefaultConfig returns the values of the design.
func DefaultConfig() Config {
	return Config{AnswerWait: time.Second, BeginWait: time.Second, RetryWait: 100 * time.Millisecond,
		MismatchWait: 5 * time.Second, ReportGrace: time.Second, DealEvery: time.Second, MaxDoublings: 5,
		StuckAfter: 10 * time.Second}
}

// Check returns an error wrapping ErrConfig if a value is out of range.
func (c Config) Check() error {
	for name, d := range map[string]time.Duration{"answer wait": c.AnswerWait, "begin wait": c.BeginWait,
		"retry wait":    c.RetryWait,
		"mismatch wait": c.MismatchWait, "stuck after": c.StuckAfter, "report grace": c.ReportGrace,
		"deal every": c.DealEvery} {
		if d < time.Millisecond {
			return fmt.Errorf("%w: %s %v, want at least 1ms", ErrConfig, name, d)
		}
	}
	if c.MaxDoublings < 0 || c.MaxDoublings > 16 {
		return fmt.Errorf("%w: %d doublings, want 0 to 16", ErrConfig, c.MaxDoublings)
	}
	return nil
}

// Entry is the ledger's state of one vbucket.
type Entry struct {
	State       State
	Owner       index.ProjectorID     // of the stream that is or was Begun
	Incarnation index.Incarnation     // newest that was requested or begun
	Log         timestamp.FailoverLog // newest from the owner
	Purge       uint64                // highest from the owner; KV has purged deletions at or below it
	Revision    timestamp.MapRevision // newest vbucket map under which a log of this vbucket was seen
	SinceMS     int64                 // when the state was entered, in the callers' time; see Pause
	Reason      string                // why it is not Begun, for people

	downMS   int64 // since when it is wanted and not Begun
	tries    int   // requests since the last BEGIN
	restMS   int64 // no request before this time
	misTries int   // repairs due to a fault found by an indexer or an audit, since it was last well
	// fence is the highest incarnation required by an indexer, or under which all streams were stopped.
	fence index.Incarnation
	// refused is the highest start that KV answered with ROLLBACK: a holder at it is not a participant.
	refused uint64
	request request // with Incarnation
	audited audited // since the last BEGIN
	move    move
}

// isDown reports whether the vbucket has no stream, and none is requested.
func (e *Entry) isDown() bool { return e.State == Lost || e.State == Ended }

// Ledger is the vbucket ledger of one bucket. State with an invariant of its own is a type. The counts of states and
// the times of the next check are not: they change with an entry, in set and request.
type Ledger struct {
	cfg       Config
	issued    issued
	vbs       []Entry
	wanted    bool
	adopted   bool
	rollback  bool
	committed Committed

	projectors []index.ProjectorID // alive, ascending
	// live projectors that have not reported what they stream: no vbucket is Lost because of them
	unanswered   []index.ProjectorID
	kv           kvNodes
	participants participants
	repair       *repair
	repairs      uint64
	dealMS       int64 // no vbucket moves before this time
	// queued are actions for the next Step.
	queued   []Action
	strays   map[stray]index.Incarnation
	changes  changes
	diverged Divergence
	counts   [Unknown + 1]int // of entries, by state
	repairMS int64            // no vbucket that waits for a request has rested before this time
	expireMS int64            // no request times out before this time
	// rollbackInc is the incarnation under which the streams were stopped for a rollback.
	rollbackInc index.Incarnation
}

// RollbackIncarnation returns the incarnation of the last SetRollback(true): all older streams are stopped, and every
// later stream is newer.
func (l *Ledger) RollbackIncarnation() index.Incarnation { return l.rollbackInc }

// Divergence is the reason for which a bucket must be rolled back. It stays until SetRollback(true).
type Divergence struct {
	VBucket uint16
	Reason  string // empty: none
}

// Diverged returns the divergence, if one was found: the caller starts the bucket's rollback (IM-23).
func (l *Ledger) Diverged() (Divergence, bool) { return l.diverged, l.diverged.Reason != "" }

type stray struct {
	projector index.ProjectorID
	vb        uint16
}

// New returns the ledger of a bucket with n vbuckets for a leader of this epoch and term. It requests nothing before
// SetWanted and Adopt were called.
func New(cfg Config, n int, epoch, term uint64) (*Ledger, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if n <= 0 || n > timestamp.MaxVBuckets {
		return nil, fmt.Errorf("%w: %d vbuckets, want 1 to %d", ErrConfig, n, timestamp.MaxVBuckets)
	}
	return &Ledger{cfg: cfg, issued: issued{Epoch: epoch, Term: term}, vbs: make([]Entry, n),
		counts: [Unknown + 1]int{Idle: n}, committed: Committed{Vector: timestamp.New(n)}, participants: participants{},
		strays: map[stray]index.Incarnation{}, kv: newKVNodes(n),
		changes: changes{listed: make([]bool, n)}, dealMS: cfg.DealEvery.Milliseconds()}, nil
}

// Len returns the number of vbuckets.
func (l *Ledger) Len() int { return len(l.vbs) }

// At returns a copy of vbucket v's entry.
func (l *Ledger) At(v int) Entry { return l.vbs[v] }

// Adopted reports whether Adopt was called.
func (l *Ledger) Adopted() bool { return l.adopted }

// Owns reports whether this projector owns vbucket v under this incarnation. Complete seqnos count only from the
// owner.
func (l *Ledger) Owns(v int, p index.ProjectorID, incarnation index.Incarnation) bool {
	if v < 0 || v >= len(l.vbs) {
		return false
	}
	e := &l.vbs[v]
	return e.State == Begun && e.Owner == p && e.Incarnation == incarnation
}

// Changes returns the number of changes of entries since New; it never falls.
func (l *Ledger) Changes() uint64 { return l.changes.count }

// Changed returns the vbuckets whose entry changed since the last call, ascending. The caller updates what depends on
// ownership.
func (l *Ledger) Changed() []int { return l.changes.take() }

// changes tracks the changes of entries that Changed has not returned yet.
type changes struct {
	count    uint64 // total
	vbuckets []int  // without duplicates
	listed   []bool // by vbucket: it is in vbuckets
}

func (c *changes) add(v int) {
	c.count++
	if !c.listed[v] {
		c.listed[v] = true
		c.vbuckets = append(c.vbuckets, v)
	}
}

func (c *changes) take() []int {
	vs := c.vbuckets
	c.vbuckets = nil
	for _, v := range vs {
		c.listed[v] = false
	}
	slices.Sort(vs)
	return vs
}

// SetCommitted sets the newest committed stability timestamp, which is subject to the branch rule.
func (l *Ledger) SetCommitted(c Committed) {
	if c.Vector.Len() != len(l.vbs) {
		return
	}
	l.committed = c
	for v := range min(len(c.Revisions), len(l.vbs)) {
		if e := &l.vbs[v]; c.Revisions[v].Compare(e.Revision) > 0 {
			e.Revision = c.Revisions[v]
		}
	}
}

// SetProjectors sets the live projectors. The streams of a projector that is not alive are Lost; a new projector ends
// the rest of vbuckets that none hosted.
func (l *Ledger) SetProjectors(nowMS int64, ids []index.ProjectorID) {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	fresh := false
	for _, p := range ids {
		fresh = fresh || !slices.Contains(l.projectors, p)
	}
	l.projectors = slices.Compact(ids)
	for v := range l.vbs {
		if e := &l.vbs[v]; e.State == Begun && !slices.Contains(l.projectors, e.Owner) {
			l.set(v, nowMS, Lost, "its projector is silent")
		}
		if fresh {
			l.taken(v, nowMS)
		}
	}
	if fresh {
		l.Nudge()
	}
	if l.adopted {
		l.unanswered = slices.DeleteFunc(l.unanswered, func(p index.ProjectorID) bool {
			return !slices.Contains(l.projectors, p)
		})
		l.settle(nowMS)
	}
}

// SetIndexers sets the participating indexers: those that host a copy of the bucket and are neither in bootstrap nor
// offline. A repair in progress keeps those with which it began.
func (l *Ledger) SetIndexers(ids []index.NodeID) { l.participants.set(ids) }

// Nudge ends the rest of all vbuckets without a stream, because something changed on the KV side.
func (l *Ledger) Nudge() {
	for v := range l.vbs {
		if e := &l.vbs[v]; e.isDown() {
			e.restMS, e.tries = 0, 0
		}
	}
	l.repairMS = 0
}

// SetWanted sets whether the bucket needs streams at all, which it does if it has an index that projectors evaluate.
// When it is not wanted any more, running streams are stopped.
func (l *Ledger) SetWanted(nowMS int64, wanted bool) {
	if l.wanted == wanted {
		return
	}
	l.wanted = wanted
	if wanted {
		if l.adopted {
			for v := range l.vbs {
				if l.vbs[v].State == Idle {
					l.set(v, nowMS, Lost, "new")
				}
			}
		}
		return
	}
	l.repair = nil
	l.stopAll()
	for v := range l.vbs {
		l.set(v, nowMS, Idle, "")
	}
}

// stopAll queues the end of every stream, under an incarnation above all older ones.
func (l *Ledger) stopAll() index.Incarnation {
	inc := l.issued.next()
	for v := range l.vbs {
		l.raiseFence(v, inc)
	}
	l.queue(Action{Kind: StopStreams, Incarnation: inc, VBuckets: l.all(), Projectors: l.projectors})
	return inc
}

func (l *Ledger) all() []uint16 {
	vs := make([]uint16, len(l.vbs))
	for v := range vs {
		vs[v] = uint16(v)
	}
	return vs
}

// SetRollback sets whether the bucket is in a rollback context. While it is (true), its streams are stopped, nothing
// is repaired and no BEGIN counts; afterwards (false) a repair starts the streams again.
func (l *Ledger) SetRollback(nowMS int64, on bool) {
	if l.rollback == on {
		return
	}
	l.rollback, l.repair = on, nil
	if on {
		l.diverged = Divergence{}
		l.rollbackInc = l.stopAll()
		for v := range l.vbs {
			l.set(v, nowMS, Lost, "the bucket is rolled back")
		}
		return
	}
	l.Nudge()
}

// issued is the newest incarnation of this leader, at or above all that were issued or seen in its term.
type issued index.Incarnation

// next issues a new incarnation.
func (i *issued) next() index.Incarnation {
	i.Counter++
	return index.Incarnation(*i)
}

// seen records an incarnation received from another component.
func (i *issued) seen(inc index.Incarnation) {
	if inc.Epoch == i.Epoch && inc.Term == i.Term {
		i.Counter = max(i.Counter, inc.Counter)
	}
}

func (l *Ledger) set(v int, nowMS int64, s State, reason string) {
	e := &l.vbs[v]
	l.counts[e.State]--
	l.counts[s]++
	if s == Lost || s == Ended {
		l.repairMS = min(l.repairMS, e.restMS)
	}
	if e.State != s {
		e.SinceMS = nowMS
		if e.State == Begun || e.State == Idle {
			e.downMS = nowMS
		}
	}
	e.State, e.Reason = s, reason
	if s != Requested {
		e.request.early = ""
	}
	l.changes.add(v)
}

// waiting is the reason of a requested vbucket as long as no projector has given another one.
const waiting = "waiting for BEGIN"

// request is what was requested under one incarnation.
type request struct {
	start    uint64
	of       index.ProjectorID   // the only projector asked, if several host the vbucket; empty: all were
	refusers []index.ProjectorID // projectors that cannot start it
	early    index.ProjectorID   // projector whose END came before its BEGIN
}

// refuses records that a projector cannot start it, and reports whether no live projector is left that may.
func (r *request) refuses(p index.ProjectorID, alive []index.ProjectorID) bool {
	if !slices.Contains(r.refusers, p) {
		r.refusers = append(r.refusers, p)
	}
	return !slices.ContainsFunc(alive, func(o index.ProjectorID) bool {
		return (r.of == "" || r.of == o) && !slices.Contains(r.refusers, o)
	})
}

// request requests a vbucket from seqno start on, from one projector or, if of is "", from all.
func (l *Ledger) request(v int, nowMS int64, inc index.Incarnation, start uint64, of index.ProjectorID) {
	e := &l.vbs[v]
	e.Incarnation, e.tries, e.request = inc, e.tries+1, request{start: start, of: of}
	l.set(v, nowMS, Requested, waiting)
	e.SinceMS = nowMS
	l.expireMS = min(l.expireMS, nowMS)
}

// valid applies the branch rule to the committed stability timestamp. It counts as a participant, because it may be
// on a lost branch although no indexer has diverged.
func (l *Ledger) valid(v int, log timestamp.FailoverLog) bool {
	at := l.committed.Vector.At(v)
	if at.Seqno == 0 {
		return true
	}
	reach := log.ValidUpTo(at.VBUUID)
	if v < len(l.committed.Logs) {
		reach = max(reach, l.committed.Logs[v].Common(log))
	}
	return at.Seqno <= reach
}

// Pause records, at nowMS, that for ms milliseconds nothing was received because the coordinator itself stood still.
// That time is added to the SinceMS of everything that is waited for, so that it does not count as silence of a
// component. Rests are the coordinator's own, and are not extended.
func (l *Ledger) Pause(nowMS, ms int64) {
	if l.repair != nil {
		l.repair.sinceMS += ms
	}
	for v := range l.vbs {
		e := &l.vbs[v]
		young := e.State == Begun && nowMS-ms-e.SinceMS <= l.cfg.ReportGrace.Milliseconds()
		if young || e.State == Requested {
			e.SinceMS += ms
		}
	}
	l.participants.pause(ms)
}

// patience returns d doubled tries times, at most MaxDoublings, in milliseconds.
func (l *Ledger) patience(d time.Duration, tries int) int64 {
	return d.Milliseconds() << min(max(tries, 0), l.cfg.MaxDoublings)
}

// Summary has the counts of states, for status.
type Summary struct {
	Idle, Requested, Begun, Ended, Lost, Unknown int
	Repairs                                      uint64  // batches since this leader began
	Stuck                                        []Stuck // ascending by vbucket, the first 16
	StuckCount                                   int     // total number of stuck vbuckets
}

// Stuck is a vbucket that has had no stream for longer than Config.StuckAfter.
type Stuck struct {
	VBucket uint16
	State   State
	Reason  string // as in Entry
	ForMS   int64  // how long, milliseconds
}

const maxStuck = 16

// Summary returns the counts of states at nowMS.
func (l *Ledger) Summary(nowMS int64) Summary {
	s := Summary{Repairs: l.repairs, Idle: l.counts[Idle], Requested: l.counts[Requested], Begun: l.counts[Begun],
		Ended: l.counts[Ended],
		Lost:  l.counts[Lost], Unknown: l.counts[Unknown]}
	if s.Idle+s.Begun == len(l.vbs) {
		return s
	}
	for v := range l.vbs {
		e := &l.vbs[v]
		if e.State != Begun && e.State != Idle && nowMS-e.downMS > l.cfg.StuckAfter.Milliseconds() {
			if s.StuckCount++; len(s.Stuck) < maxStuck {
				s.Stuck = append(s.Stuck, Stuck{VBucket: uint16(v), State: e.State, Reason: e.Reason, ForMS: nowMS - e.downMS})
			}
		}
	}
	return s
}
