// Package ingest is an indexer's side of the data way for one bucket. It decides which events to accept, tracks what
// each copy of a slice holds of each vbucket, what it lacks and where that can be obtained, which stability timestamp
// can be made, and what the store has to do for it (docs/architecture.md, "The data way"; docs/timestamps.md).
//
// It is a state machine without clock, I/O or goroutine. Inputs are the events of streams, polls, definitions,
// stability timestamps and the answers of the store; outputs are verdicts, Work for the store, and reports. Its
// positions are those that hold once all Work handed out has been done, for each copy in order. After a crash that
// loses the tail of it, the copies are added again with the positions in the store.
//
// Guarantees: an exact batch holds what KV held at that stability timestamp, no more and no less, whatever was
// delivered twice, late, by a deposed owner or not at all. An event is skipped only because of a copy's own position.
// Each rule behind this has a name, which is quoted where the rule is applied; the simulation's tests list them
// (DESIGN.md).
//
// An event is queued once per node. A copy selects its statements from it when a batch is written.
package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

var (
	// ErrCopy is wrapped if a copy is added twice or is unknown.
	ErrCopy = errors.New("unknown or repeated copy")
	// ErrVBucket is wrapped if a vbucket number is out of range.
	ErrVBucket = errors.New("vbucket out of range")
)

// Options of a Bucket.
type Options struct {
	VBuckets   int
	Generation uint64 // of the bucket
	RollbackID uint64
	// Pack returns the bytes in which an accepted data event is queued. The Bucket owns them from then on. Their length
	// counts against the memory limit.
	Pack func(*keyversion.Event) []byte
}

// Bucket is the state of one bucket on one node. It is not safe for concurrent use.
type Bucket struct {
	opt    Options
	vbs    []vbucket
	copies []*slice // ascending by id
	work   []Work

	sharing int      // number of copies that share one list of parts
	lists   []*slice // cache of distinct; nil: invalid
	lack    []bool   // buffer of lacking

	rollbackID   uint64
	rollbackDone uint64 // newest rollback id that was carried out
	stability    stability

	queued    int       // bytes in the queues of all vbuckets
	sideHeld  int       // bytes buffered by side streams
	nextSide  int       // vbucket at which the next batch of side streams starts
	turn      BatchKind // the kind that Next tries first
	inFlight  inFlight
	abandoned []uint64
	blocked   blockedAt
	gains     gains // of flush and takeAhead
}

// blockedAt records what the oldest stability timestamp waits for, so that most attempts check one place only.
type blockedAt struct {
	list, vb int // see distinct
	ok       bool
}

// Entry is one queued data event.
type Entry struct {
	Seqno  uint64
	Window timestamp.Window
	Data   []byte // result of Options.Pack
	Rest   *keyversion.Places
	epoch  uint32
	empty  bool // some copy may learn from it that the document has no keys, and keeps a tombstone if it keeps any
}

// newEntry packs an event.
func (b *Bucket) newEntry(e *keyversion.Event, epoch uint32) Entry {
	en := Entry{Seqno: e.Seqno, Window: e.Window, Data: b.opt.Pack(e), Rest: e.Rest, epoch: epoch,
		empty: e.Kind != keyversion.Insert || e.Rest != nil}
	for i := range e.Statements {
		en.empty = en.empty || len(e.Statements[i].Keys) == 0
	}
	return en
}

const entryOverhead = 72 // size of an Entry without its Data

func (e *Entry) size() int { return len(e.Data) + entryOverhead }

// owner is the stream whose events are accepted for a vbucket: that of the current BEGIN.
type owner struct {
	inc       index.Incarnation
	projector index.ProjectorID
	conn      uint64
	open      bool // events are accepted
	dropping  bool // between DropData and the next BEGIN
}

// vbucket is the state of one vbucket's maintenance stream on this node.
type vbucket struct {
	cur   owner
	min   index.Incarnation // lower incarnations are refused
	log   timestamp.FailoverLog
	rev   timestamp.MapRevision // highest revision seen in this run
	begun bool                  // log is from a BEGIN of this run
	purge uint64                // from the newest BEGIN
	recv  uint64                // the current stream has delivered everything up to here
	// activated is the highest A of the current stream. It does not count as received: it may lie inside a window of
	// which nothing has arrived here, and a copy may have everything up to there from a stream with other windows.
	activated uint64
	epoch     uint32 // rises whenever the queue starts anew for some copy
	queue     []Entry
	holds     int   // index into distinct: trim checks this copy first, which needs the queue's first event
	parts     parts // of an event of which some parts have arrived
	bytes     int
	side      *sideStream
	// awaited lists the copies that the current stream feeds and that were not on this node when it listed them.
	awaited []index.CopyID
}

// part is the state of one copy in one vbucket.
type part struct {
	pos   Position
	log   timestamp.FailoverLog // of what the copy holds
	kept  timestamp.FailoverLog // as stored
	base  uint64                // received on earlier streams; if sub is set, what the current stream delivers is added
	solid uint64                // of side: up to here the effect of de-duplication is known
	taken uint64                // how much of side is in a batch that is not written yet
	// what the current side stream delivered up to here is in batches of this copy, none of which was lost
	lent      uint64
	from      uint32 // epoch at which the queue starts for this copy, noQueue if no stream feeds it
	sub       bool   // the current stream feeds it
	tombs     bool   // tombstones may be stored
	restoring bool   // waiting for Restored
	rejoin    bool   // join the stream after Restored
	rejoinLow uint64 // purge seqno for that join
}

const noQueue = ^uint32(0)

// slice is the state of one copy.
type slice struct {
	id        index.CopyID
	index     index.ID
	no        index.SliceID
	parts     []part // shared with other copies if shares is set: see own
	shares    bool
	ready     bool // has been exact
	confirmed bool // ready, and the snapshot was taken
	out       bool // a router has deactivated it
	at        timestamp.Ref
	exact     bool // at is a timestamp at which it is exact
	held      timestamp.Ref
	has       bool // held is valid: its batch is done
	later     bool // no side stream is wanted for it, see Defer
	// restoring is the number of its vbuckets that wait for Restored; 0 while it shares
	restoring int
}

// New returns the state of a bucket without copies.
func New(o Options) (*Bucket, error) {
	if o.VBuckets <= 0 || o.VBuckets > timestamp.MaxVBuckets {
		return nil, fmt.Errorf("%w: a bucket of %d vbuckets, want 1 to %d", ErrVBucket, o.VBuckets, timestamp.MaxVBuckets)
	}
	if o.Pack == nil {
		return nil, errors.New("ingest: Options.Pack is missing")
	}
	return &Bucket{opt: o, vbs: make([]vbucket, o.VBuckets), rollbackID: o.RollbackID}, nil
}

// Copy describes a copy to be added. Positions and Logs are what its store holds, one entry per vbucket, or nil for a
// new copy.
type Copy struct {
	ID        index.CopyID
	Index     index.ID
	Slice     index.SliceID
	Ready     bool // it has been exact before
	Positions []Position
	Logs      []timestamp.FailoverLog
}

// Add adds a copy: allocated, reopened after a crash, or received from another node. It receives nothing before a
// BEGIN or ACTIVATE lists it.
func (b *Bucket) Add(c Copy) error {
	if b.find(c.ID) != nil {
		return fmt.Errorf("%w: copy %v already exists", ErrCopy, c.ID)
	}
	if err := b.checkStored(c.ID, c.Positions, c.Logs); err != nil {
		return err
	}
	sl := &slice{id: c.ID, index: c.Index, no: c.Slice, ready: c.Ready, confirmed: c.Ready,
		parts: make([]part, len(b.vbs))}
	for v := range c.Positions {
		p := &sl.parts[v]
		p.load(c.Positions[v], c.Logs[v])
	}
	at := 0
	for at < len(b.copies) && b.copies[at].id < c.ID {
		at++
	}
	b.copies = append(b.copies, nil)
	copy(b.copies[at+1:], b.copies[at:])
	b.copies[at], b.lists = sl, nil
	for v := range b.vbs {
		b.reset(sl, v)
		if b.fed(v, c.ID) {
			b.goOn(sl, v)
		}
	}
	b.blocked.ok = false
	return nil
}

// Remove removes a copy. It discards what is queued for this copy alone, and what side streams would deliver: if the
// copy is added again, it wants then what it lacks.
func (b *Bucket) Remove(id index.CopyID) {
	for i, c := range b.copies {
		if c.id == id {
			b.copies, b.lists = append(b.copies[:i:i], b.copies[i+1:]...), nil
			b.leave(c)
			b.await(c)
			break
		}
	}
	for v := range b.vbs {
		b.trim(v)
		b.leaveSide(v, id)
	}
	b.blocked.ok = false
}

// Reopened records that a copy's store has lost its newest batches (a failed disk, a torn file) and holds the given
// positions now. The copy joins the running streams by the gap rule; the others are not affected. Side streams that
// have begun deliver nothing for it any more, because their BEGIN was judged against another state of the copy.
func (b *Bucket) Reopened(id index.CopyID, positions []Position, logs []timestamp.FailoverLog) error {
	sl := b.find(id)
	if sl == nil {
		return fmt.Errorf("%w: %v", ErrCopy, id)
	}
	if err := b.checkStored(id, positions, logs); err != nil {
		return err
	}
	sl.exact, sl.has, sl.at = false, false, timestamp.Ref{}
	b.own(sl)
	for v := range b.vbs {
		p := &sl.parts[v]
		sub := p.sub || p.restoring && p.rejoin
		p.pos, p.log, p.kept, p.solid, p.lent = Position{}, nil, nil, 0, 0
		if positions != nil {
			p.load(positions[v], logs[v])
		}
		sl.restored(p)
		p.rejoin = false
		b.leaveSide(v, id)
		b.reset(sl, v)
		if !b.vbs[v].begun {
			continue
		}
		if sub {
			b.goOn(sl, v)
		} else {
			b.checkBranch(sl, v, b.vbs[v].log, 0)
		}
	}
	b.blocked.ok = false
	return nil
}

// load sets the state to what the store holds.
func (p *part) load(pos Position, log timestamp.FailoverLog) {
	p.pos, p.log, p.lent = pos, History(pos.VBUUID, log), 0
	if p.solid = pos.Side; pos.WindowEnd == unsure {
		p.solid = 0
	}
	p.tombs = !(pos.Side == pos.A && pos.A == pos.Main)
}

func (b *Bucket) checkStored(id index.CopyID, positions []Position, logs []timestamp.FailoverLog) error {
	if positions == nil && logs == nil || len(positions) == len(b.vbs) && len(logs) == len(b.vbs) {
		return nil
	}
	return fmt.Errorf("%w: %d positions and %d logs of copy %v, the bucket has %d vbuckets", ErrVBucket, len(positions),
		len(logs), id, len(b.vbs))
}

// History returns the history of the branch vbuuid: the part of a log that begins with it, or the branch alone if it
// is not in the log. Branch 0 (nothing held) has none.
func History(vbuuid uint64, log timestamp.FailoverLog) timestamp.FailoverLog {
	if vbuuid == 0 {
		return nil
	}
	for i, e := range log {
		if e.VBUUID == vbuuid {
			return log[i:]
		}
	}
	return timestamp.FailoverLog{{VBUUID: vbuuid}}
}

// CopyIDs returns the ids of the copies, ascending.
func (b *Bucket) CopyIDs() []index.CopyID {
	ids := make([]index.CopyID, len(b.copies))
	for i, c := range b.copies {
		ids[i] = c.id
	}
	return ids
}

// Work returns the tasks for the store that were not returned before. For each copy they must be done in this order,
// and before any later batch; a restore, after everything handed out before it is done.
func (b *Bucket) Work() []Work {
	w := b.work
	b.work = nil
	return w
}

// QueueBytes returns the memory held by events: queued, buffered by side streams, and in batches that are not done.
func (b *Bucket) QueueBytes() int { return b.queued + b.sideHeld + b.inFlight.bytes }

// SideBytes returns the part of QueueBytes that side streams have delivered and no batch has taken.
func (b *Bucket) SideBytes() int { return b.sideHeld }

// Queued returns the part of QueueBytes in the queues of the maintenance streams.
func (b *Bucket) Queued() int { return b.queued }

func (b *Bucket) find(id index.CopyID) *slice {
	i, ok := slices.BinarySearchFunc(b.copies, id, func(c *slice, id index.CopyID) int { return cmp.Compare(c.id, id) })
	if !ok {
		return nil
	}
	return b.copies[i]
}

// received returns the highest seqno up to which the copy has received everything, queue included.
func (b *Bucket) received(p *part, vb int) uint64 {
	if p.sub {
		return max(p.base, b.vbs[vb].recv)
	}
	return p.base
}

// receivedLog returns the log of the branch on which a copy receives.
func (b *Bucket) receivedLog(p *part, vb int) timestamp.FailoverLog {
	if v := &b.vbs[vb]; v.begun {
		return v.log
	}
	return p.log
}

// reset sets the copy's reception of a vbucket back to what it holds.
func (b *Bucket) reset(sl *slice, vb int) {
	p, v := b.part(sl, vb), &b.vbs[vb]
	p.sub, p.from = false, noQueue
	p.base = max(p.pos.Main, p.pos.A)
	sl.exact, sl.at = false, timestamp.Ref{}
	if len(v.queue) > 0 {
		b.trim(vb)
	}
	b.blocked.ok = false
}

// clearQueue makes the queue start anew for this copy. The other copies keep their queue.
func (b *Bucket) clearQueue(sl *slice, vb int) {
	v := &b.vbs[vb]
	v.epoch++
	b.part(sl, vb).from = v.epoch
}

// trim removes entries that no copy needs any more.
func (b *Bucket) trim(vb int) {
	v := &b.vbs[vb]
	if len(v.queue) == 0 {
		return
	}
	low, all := v.epoch+1, b.distinct()
	for n := range all {
		i := (v.holds + n) % len(all)
		if low = min(low, all[i].parts[vb].from); low <= v.queue[0].epoch {
			v.holds = i // it needs the first entry: nothing can be removed, whatever the others have
			return
		}
	}
	n := 0
	for n < len(v.queue) && v.queue[n].epoch < low {
		v.bytes -= v.queue[n].size()
		b.queued -= v.queue[n].size()
		n++
	}
	v.queue = behind(v.queue, n)
}

// behind returns the queue without its first n entries. It copies the rest if that is cheap, to release the memory of
// the others.
func behind(q []Entry, n int) []Entry {
	switch rest := q[n:]; {
	case len(rest) == 0:
		return nil
	case n > len(rest):
		return append([]Entry(nil), rest...)
	default:
		return rest
	}
}
