// Package stability decides the next stability timestamp of a bucket (IM-15, IM-16).
//
// Guarantees: every vector that Next proposes consists of sequence numbers at which a DCP snapshot of the vbucket's
// current owner ended; it is not below the last committed one in any vbucket; a vbucket that is empty, idle, unowned
// or diverged keeps its position and never delays the others; the slowest live indexer has at most
// Config.MaxOutstanding unacknowledged promotions.
//
// The package never reads a clock (times are arguments), communicates, or publishes: the caller commits a proposal in
// the Raft log, reports it with Committed, and only then publishes it.
//
// One goroutine owns a Bucket.
package stability

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/timestamp"
)

// Source is the source of stability timestamps.
type Source uint8

// The sources of IM-15 and IM-16.
const (
	// Sync takes the newest complete seqno of each vbucket.
	Sync Source = iota + 1
	// Heartbeat takes the mean of the indexers' HW, shifted towards the fast one when its queue fills, rounded down to
	// the newest complete seqno at or below it.
	Heartbeat
)

// String returns the value of the configuration key stability.source.
func (s Source) String() string {
	switch s {
	case Sync:
		return "sync"
	case Heartbeat:
		return "heartbeat"
	}
	return fmt.Sprintf("source(%d)", s)
}

// ParseSource parses the result of String.
func ParseSource(s string) (Source, error) {
	for _, c := range []Source{Sync, Heartbeat} {
		if c.String() == s {
			return c, nil
		}
	}
	return 0, fmt.Errorf("%w: stability.source %q, want sync or heartbeat", ErrConfig, s)
}

var (
	// ErrConfig is wrapped if a configuration is invalid.
	ErrConfig = errors.New("bad stability configuration")
	// ErrTimestamp is wrapped if a committed timestamp does not fit the bucket.
	ErrTimestamp = errors.New("stability timestamp does not match the bucket")
)

// Config has the parameters of a Bucket.
type Config struct {
	Source Source
	// MaxOutstanding is K: the maximum of promotions that the slowest live indexer has not acknowledged.
	MaxOutstanding int
	// RingSize is the number of complete seqnos kept per vbucket (only Heartbeat needs more than the newest).
	RingSize int
	// SilentAfter is the age of an indexer's last report from which on the indexer no longer counts.
	SilentAfter time.Duration
	// StalledAfter is how long an indexer that reports but acknowledges nothing may delay promotion.
	StalledAfter time.Duration
	// LateFor is how long an indexer that missed a stream for a while may take to catch up before it delays promotion
	// like any other.
	LateFor time.Duration
	// QueueLow and QueueHigh are fills of an indexer's mutation queue in thousandths: below QueueLow the target is the
	// mean, at QueueHigh it is the fast indexer's HW, in between it shifts in proportion.
	QueueLow, QueueHigh int
}

// DefaultConfig returns the values of the product: 4 outstanding promotions, rings of 16, silent after 3 s, stalled
// after 10 s, late for a minute, queue from 500 to 900 thousandths.
func DefaultConfig() Config {
	return Config{Source: Sync, MaxOutstanding: 4, RingSize: 16, SilentAfter: 3 * time.Second,
		StalledAfter: 10 * time.Second,
		LateFor:      time.Minute,
		QueueLow:     500, QueueHigh: 900}
}

// Limits on a configuration.
const (
	maxOutstanding = 1024
	maxRing        = 255
	fillFull       = 1000 // thousandths
)

func isOutside(value, least, most int) bool { return value < least || value > most }

// Check returns an error wrapping ErrConfig if a value is out of range.
func (c Config) Check() error {
	switch {
	case c.Source != Sync && c.Source != Heartbeat:
		return fmt.Errorf("%w: source %d", ErrConfig, c.Source)
	case isOutside(c.MaxOutstanding, 1, maxOutstanding):
		return fmt.Errorf("%w: %d outstanding, want 1 to %d", ErrConfig, c.MaxOutstanding, maxOutstanding)
	case isOutside(c.RingSize, 4, maxRing):
		return fmt.Errorf("%w: ring of %d, want 4 to %d", ErrConfig, c.RingSize, maxRing)
	case min(c.SilentAfter, c.StalledAfter, c.LateFor) <= 0:
		return fmt.Errorf("%w: silent after %v, stalled after %v, late for %v: want more than 0", ErrConfig, c.SilentAfter,
			c.StalledAfter, c.LateFor)
	case c.QueueLow < 0 || c.QueueHigh <= c.QueueLow || c.QueueHigh > fillFull:
		return fmt.Errorf("%w: queue marks %d and %d, want 0 <= low < high <= %d", ErrConfig, c.QueueLow, c.QueueHigh,
			fillFull)
	}
	return nil
}

// Stream is the owner of a vbucket according to the ledger (package streams).
type Stream struct {
	Projector   index.ProjectorID
	Incarnation index.Incarnation
	Log         timestamp.FailoverLog // newest branch first
	Revision    timestamp.MapRevision // of the vbucket map under which the stream began
}

// vbucket is the state of a vbucket beside the candidate vectors.
type vbucket struct {
	stream Stream
	live   bool // the stream has begun and not ended
	known  bool // a complete seqno has arrived under this incarnation
	onward bool // the committed position is valid on the stream's log
}

// Bucket holds the state that determines the next stability timestamp of one bucket.
type Bucket struct {
	cfg  Config
	last timestamp.Stability
	vbs  []vbucket
	// cand is, per vbucket, the newest complete position that may be promoted; 0 if there is none.
	cand timestamp.Vector
	// newest is, per vbucket, the newest branch of the live stream: its vbuuid and its start; Infinity if none is
	// usable.
	newest timestamp.Vector
	// freshLog marks the vbuckets whose stream has another failover log than the committed timestamp.
	freshLog []bool
	ring     []uint64 // n * RingSize, ascending per vbucket
	used     []uint8
	top      []uint64 // newest of each ring
	nodes    map[index.NodeID]*participant
	leftOut  map[index.NodeID][]bool // see LeftOut
	mean     []uint64                // scratch of the heartbeat target
}

// New returns a Bucket with last as its last committed stability timestamp, whose vector determines the number of
// vbuckets.
func New(cfg Config, last timestamp.Stability) (*Bucket, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	n := last.Vector.Len()
	if n == 0 || n > timestamp.MaxVBuckets {
		return nil, fmt.Errorf("%w: %d vbuckets, want 1 to %d", ErrTimestamp, n, timestamp.MaxVBuckets)
	}
	if err := last.Vector.Check(n); err != nil {
		return nil, err
	}
	b := &Bucket{cfg: cfg, vbs: make([]vbucket, n), cand: timestamp.New(n), newest: timestamp.New(n),
		freshLog: make([]bool, n),
		nodes:    map[index.NodeID]*participant{}, leftOut: map[index.NodeID][]bool{}}
	for v := range n {
		b.newest.Seqnos[v] = timestamp.Infinity
	}
	b.last = last
	b.cfg.Source = Sync
	b.SetSource(cfg.Source)
	return b, nil
}

// SetSource changes the source of stability timestamps, at any time. On a change to Heartbeat the rings start with
// the newest complete seqno of each vbucket.
func (b *Bucket) SetSource(s Source) {
	if s == b.cfg.Source || s != Sync && s != Heartbeat {
		return
	}
	b.cfg.Source = s
	if s == Sync {
		b.ring, b.used, b.top, b.mean = nil, nil, nil, nil
		return
	}
	n := len(b.vbs)
	b.ring, b.used = make([]uint64, n*b.cfg.RingSize), make([]uint8, n)
	b.top, b.mean = make([]uint64, n), make([]uint64, n)
	for v, seqno := range b.cand.Seqnos {
		b.remember(v, seqno)
	}
}

// Source returns the source of stability timestamps.
func (b *Bucket) Source() Source { return b.cfg.Source }

// Len returns the number of vbuckets.
func (b *Bucket) Len() int { return len(b.vbs) }

// Last returns the newest committed stability timestamp. The caller must not modify it.
func (b *Bucket) Last() timestamp.Stability { return b.last }

// Begin records that a stream owns vbucket v. It returns false, and changes nothing, if the vbucket is out of range,
// the incarnation is older than the known one, or the vbucket map is older than one already seen for this vbucket (a
// stale owner must not return the timestamp to its branch).
func (b *Bucket) Begin(v int, s Stream) bool {
	if v < 0 || v >= len(b.vbs) {
		return false
	}
	x := &b.vbs[v]
	if s.Incarnation.Compare(x.stream.Incarnation) < 0 || s.Revision.Compare(x.stream.Revision) < 0 {
		return false
	}
	if x.live && s.Incarnation == x.stream.Incarnation && s.Projector == x.stream.Projector && s.Log.Equal(x.stream.Log) {
		x.stream.Revision = s.Revision
		return true
	}
	b.truncate(v, x.stream.Log, s.Log)
	s.Log = s.Log.Clone()
	x.stream, x.live, x.known = s, true, false
	b.judge(v)
	b.cand.Set(v, timestamp.Position{})
	return true
}

// End records that the stream of this incarnation has ended or is no longer trusted; older incarnations are ignored.
func (b *Bucket) End(v int, incarnation index.Incarnation) {
	if v < 0 || v >= len(b.vbs) {
		return
	}
	if x := &b.vbs[v]; incarnation.Compare(x.stream.Incarnation) >= 0 {
		x.live, x.known = false, false
		b.cand.Set(v, timestamp.Position{})
		b.judge(v)
	}
}

// Complete records a complete seqno from a stream. It returns false if the stream is not the vbucket's owner.
func (b *Bucket) Complete(v int, projector index.ProjectorID, incarnation index.Incarnation, seqno uint64) bool {
	if v < 0 || v >= len(b.vbs) {
		return false
	}
	x := &b.vbs[v]
	if !x.live || incarnation != x.stream.Incarnation || projector != x.stream.Projector {
		return false
	}
	if x.known && seqno < b.cand.Seqnos[v] {
		return true // late: the newest counts
	}
	x.known = true
	b.remember(v, seqno)
	if x.onward {
		b.cand.Set(v, x.position(seqno))
	}
	return true
}

// position returns a seqno of this stream with its branch. Seqno 0 has no branch, since nothing has happened at it.
func (x *vbucket) position(seqno uint64) timestamp.Position {
	if seqno == 0 {
		return timestamp.Position{}
	}
	log := x.stream.Log
	branch := log.Covering(seqno)
	if branch == 0 && len(log) > 0 { // KV keeps a bounded number of entries: the oldest one extends below its start
		branch = log[len(log)-1].VBUUID
	}
	return timestamp.Position{VBUUID: branch, Seqno: seqno}
}

// judge sets onward: whether this vbucket may advance from the committed position.
func (b *Bucket) judge(v int) {
	x := &b.vbs[v]
	x.onward = Valid(b.last, v, x.stream.Log)
	if !x.onward { // complete seqnos received before are void too
		b.cand.Set(v, timestamp.Position{})
	}
	branch := timestamp.Position{Seqno: timestamp.Infinity}
	if x.live && x.onward && len(x.stream.Log) > 0 {
		branch = timestamp.Position{VBUUID: x.stream.Log[0].VBUUID, Seqno: x.stream.Log[0].Seqno}
	}
	b.newest.Set(v, branch)
	b.freshLog[v] = x.live && (v >= len(b.last.Logs) || !b.last.Logs[v].Equal(x.stream.Log))
}

// Valid applies the branch rule to the committed timestamp: it reports whether a stream with this failover log may
// advance it in vbucket v. The log at its promotion is used if it is known, so that a producer is accepted that lost
// its newest entry, yet shares the history.
func Valid(s timestamp.Stability, v int, log timestamp.FailoverLog) bool {
	at := s.Vector.At(v)
	if at.Seqno == 0 {
		return true
	}
	own := timestamp.FailoverLog{{VBUUID: at.VBUUID}}
	if v < len(s.Logs) && len(s.Logs[v]) > 0 {
		own = s.Logs[v]
	}
	return at.Seqno <= max(own.Common(log), log.ValidUpTo(at.VBUUID))
}

// Diverged returns the vbuckets whose committed position is not on the branch of their owner's stream: the bucket
// must be rolled back.
func (b *Bucket) Diverged() []int {
	var vs []int
	for v := range b.vbs {
		if b.vbs[v].live && !b.vbs[v].onward {
			vs = append(vs, v)
		}
	}
	return vs
}

// Decision is the result of Next.
type Decision struct {
	Promote bool                // there is a newer stability timestamp; otherwise only HeldBy is set
	Next    timestamp.Stability // to be committed, then reported with Committed
	// Logs are the failover logs that differ from those of the last timestamp, with their map revisions.
	Logs []timestamp.VBucketLog
	// Mutation is the newest state: the newest complete seqno of every vbucket, never below Next (mutationTimestamp).
	Mutation timestamp.Vector
	// HeldBy lists the indexers whose missing acknowledgements delay promotion; only if Promote is false.
	HeldBy []index.NodeID
}

// Next decides at time nowMS (unix milliseconds) whether there is a newer stability timestamp, and which. It modifies
// only scratch memory; calling it again has the same result.
func (b *Bucket) Next(nowMS int64) Decision {
	next := b.propose(nowMS)
	first := next.Len() == 0 && b.last.Number == 0 && b.allKnown()
	if first {
		next = b.last.Vector.Clone()
	}
	if next.Len() == 0 {
		return Decision{}
	}
	if held := b.heldBy(nowMS); len(held) > 0 {
		return Decision{HeldBy: held}
	}
	ref := b.last.Ref
	ref.Number++
	d := Decision{Promote: true, Next: timestamp.Stability{Ref: ref, Logs: b.last.Logs}}
	d.Next.Vector = b.withLogs(&d, next, first)
	d.Next.Hash = d.Next.Vector.Hash()
	d.Mutation = b.mutation(d.Next.Vector)
	return d
}

// withLogs adds the failover logs that next needs to d, as far as there is room, and returns next without the
// vbuckets that have to wait for the next promotion.
func (b *Bucket) withLogs(d *Decision, next timestamp.Vector, first bool) timestamp.Vector {
	bytes := 0
	kept := draft{base: next}
	for v, fresh := range b.freshLog {
		if !fresh || !first && next.Seqnos[v] == b.last.Vector.Seqnos[v] && next.VBUUIDs[v] == b.last.Vector.VBUUIDs[v] {
			continue
		}
		if bytes += logBytes(b.vbs[v].stream.Log); bytes > maxLogBytes && len(d.Logs) > 0 {
			kept.set(v, b.last.Vector.VBUUIDs[v], b.last.Vector.Seqnos[v]) // it has to wait for the next promotion
			continue
		}
		if d.Logs == nil {
			d.Next.Logs = make([]timestamp.FailoverLog, len(b.vbs))
			copy(d.Next.Logs, b.last.Logs)
		}
		x := &b.vbs[v].stream
		d.Next.Logs[v] = x.Log
		d.Logs = append(d.Logs, timestamp.VBucketLog{VBucket: uint16(v), Log: x.Log, Revision: x.Revision})
	}
	if kept.vector.Len() > 0 {
		return kept.vector
	}
	return next
}

// maxLogBytes bounds the failover logs of one promotion, since the size of a commit is bounded, and all logs of a
// bucket may be megabytes. A vbucket whose log has no room keeps its position until the next promotion.
const maxLogBytes = 256 << 10

// logBytes returns an upper bound of the size of a committed log.
func logBytes(log timestamp.FailoverLog) int { return 32 + 20*len(log) }

// allKnown reports whether every vbucket has an owner that has reported a complete seqno. The first timestamp of an
// empty bucket states just that: nothing has been written, anywhere. Without it an index on an empty bucket would
// never become ready.
func (b *Bucket) allKnown() bool {
	for v := range b.vbs {
		if x := &b.vbs[v]; !x.live || !x.known || !x.onward {
			return false
		}
	}
	return true
}

// mutation returns the newest state. With Sync that is the promoted vector itself.
func (b *Bucket) mutation(next timestamp.Vector) timestamp.Vector {
	if b.cfg.Source == Sync {
		return next
	}
	m := draft{base: next}
	for v, seqno := range b.top {
		if seqno > next.Seqnos[v] && b.vbs[v].live && b.vbs[v].onward {
			at := b.vbs[v].position(seqno)
			m.set(v, at.VBUUID, at.Seqno)
		}
	}
	if m.vector.Len() == 0 {
		return next
	}
	return m.vector
}

// draft is a vector that starts as base and is copied only as far as it differs: branches rarely do.
type draft struct {
	base, vector timestamp.Vector // vector has length 0 as long as nothing differs
	branches     bool             // vector has its own copy of the branches
}

func (d *draft) set(v int, branch, seqno uint64) {
	if d.vector.Seqnos == nil || branch != d.vector.VBUUIDs[v] {
		d.own(v, branch)
	}
	d.vector.Seqnos[v] = seqno
}

// own copies what is to be modified.
func (d *draft) own(v int, branch uint64) {
	if d.vector.Seqnos == nil {
		d.vector = timestamp.Vector{VBUUIDs: d.base.VBUUIDs, Seqnos: slices.Clone(d.base.Seqnos)}
	}
	if branch == d.vector.VBUUIDs[v] {
		return
	}
	if !d.branches {
		d.branches, d.vector.VBUUIDs = true, slices.Clone(d.base.VBUUIDs)
	}
	d.vector.VBUUIDs[v] = branch
}

// propose returns the next vector, or an empty one if nothing changes.
func (b *Bucket) propose(nowMS int64) timestamp.Vector {
	if b.cfg.Source == Heartbeat {
		return b.proposeHeartbeat(nowMS)
	}
	last := b.last.Vector
	next := draft{base: last}
	n := len(last.Seqnos)
	cand, branches, lastBranches := b.cand.Seqnos[:n], b.cand.VBUUIDs[:n], last.VBUUIDs[:n]
	for v, was := range last.Seqnos {
		seqno := cand[v]
		if seqno < was || seqno == was && branches[v] == lastBranches[v] {
			continue
		}
		if seqno == 0 {
			continue // nothing known; a committed 0 carries no branch either
		}
		next.set(v, branches[v], seqno)
	}
	return next.vector
}

// unsee discards what was received for a vbucket.
func (b *Bucket) unsee(v int) {
	b.vbs[v].live, b.vbs[v].known = false, false
	b.cand.Set(v, timestamp.Position{})
	if b.used != nil {
		b.used[v], b.top[v] = 0, 0
	}
}

// Committed records that the Raft log has s. It returns an error wrapping ErrTimestamp if s belongs to another
// generation, is older, or goes backwards under the same rollback id. A known s changes nothing.
func (b *Bucket) Committed(s timestamp.Stability) error {
	if err := b.follows(s); err != nil {
		return err
	}
	rolledBack := s.RollbackID > b.last.RollbackID
	old := b.last
	b.last = s
	sameLogs := len(s.Logs) > 0 && len(old.Logs) > 0 && &s.Logs[0] == &old.Logs[0]
	for v := range b.vbs {
		if rolledBack {
			b.unsee(v)
		}
		if rolledBack || !sameLogs || old.Vector.At(v) != s.Vector.At(v) && b.doubtful(v) {
			b.judge(v)
		}
	}
	return nil
}

// doubtful reports whether a vbucket whose committed position has changed has to be judged again: the old or the new
// position may not be on the stream's branch, since the stream may have restarted while the promotion was in
// progress.
func (b *Bucket) doubtful(v int) bool {
	x := &b.vbs[v]
	return x.live && (!x.onward || b.last.Vector.VBUUIDs[v] != x.stream.Log.Newest())
}

// follows returns an error if s cannot come after the last timestamp.
func (b *Bucket) follows(s timestamp.Stability) error {
	if err := s.Vector.Check(len(b.vbs)); err != nil {
		return err
	}
	switch {
	case s.Generation != b.last.Generation:
		return fmt.Errorf("%w: generation %d, bucket has %d", ErrTimestamp, s.Generation, b.last.Generation)
	case s.Compare(b.last.Ref) < 0:
		return fmt.Errorf("%w: rollback id %d number %d, bucket has %d and %d", ErrTimestamp, s.RollbackID, s.Number,
			b.last.RollbackID, b.last.Number)
	case s.RollbackID == b.last.RollbackID && !s.Vector.Covers(b.last.Vector):
		return fmt.Errorf("%w: it goes backwards without a rollback", ErrTimestamp)
	}
	return nil
}

// CompleteAt returns the newest complete seqno of the stream that owns vbucket v, 0 if none is known.
func (b *Bucket) CompleteAt(v int) uint64 { return b.cand.Seqnos[v] }
