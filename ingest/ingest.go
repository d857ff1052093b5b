// Package ingest is an indexer's side of the data way for one bucket: which events to accept, what each copy of a slice
// holds of each vbucket, what it lacks and from where it can get it, which stability timestamp can be made, and what
// the store has to do for it (docs/architecture.md, "The data way"; docs/timestamps.md).
//
// It is a state machine without clock, I/O or goroutine. Inputs are the events of streams, polls, definitions,
// stability timestamps and the answers of the store; outputs are verdicts, Work for the store, and reports. The
// positions it keeps are those that hold once all Work handed out has been done, for each copy in order; a crash that
// loses the tail of it is met by adding the copies again with the positions that the store has.
//
// It promises: an exact batch holds what KV held at that stability timestamp, no more and no less, whatever was
// delivered twice, late, by a deposed owner or not at all; nothing is skipped but by a copy's own position. Each rule
// that this rests on has a name, which stands where the rule is applied (rules.go lists them).
//
// An event is queued once per node. A copy picks its statements out of it when a batch is written.
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
	// ErrCopy is wrapped when a copy is added twice or is not known.
	ErrCopy = errors.New("unknown or repeated copy")
	// ErrVBucket is wrapped when a vbucket number is not one of the bucket.
	ErrVBucket = errors.New("vbucket out of range")
)

// Options of a Bucket.
type Options struct {
	VBuckets   int
	Generation uint64 // of the bucket
	RollbackID uint64
	// Pack returns the bytes by which an accepted data event is kept; they belong to the Bucket from then on. The length
	// counts against the memory bound.
	Pack func(*keyversion.Event) []byte
}

// Bucket is the state of one bucket on one node. Its methods may be called by one goroutine at a time.
type Bucket struct {
	opt    Options
	vbs    []vbucket
	copies []*slice // ascending by id
	work   []Work

	sharing int      // copies that share one list of parts
	lists   []*slice // see distinct; nil: to be made anew
	lack    []bool   // of Wants

	rollbackID   uint64
	rollbackDone uint64 // newest rollback id that was carried out
	stability    stability

	queued    int       // bytes in the queues of all vbuckets
	sideHeld  int       // bytes buffered by side streams
	nextSide  int       // vbucket at which the next batch of side streams begins
	turn      BatchKind // that Next looks for first
	underWay  underWay
	abandoned []uint64
	blocked   blockedAt
	gains     gains // of flush and takeAhead
}

// blockedAt remembers what the oldest stability timestamp waits for, so that most attempts look at one place only.
type blockedAt struct {
	list, vb int // see distinct
	ok       bool
}

// Entry is one queued data event.
type Entry struct {
	Seqno  uint64
	Window timestamp.Window
	Data   []byte // what Options.Pack gave
	Rest   *keyversion.Places
	epoch  uint32
	empty  bool // some copy may be told that it has no keys: a tombstone where those are kept
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

const entryOverhead = 72 // bytes of an Entry beside its Data

func (e *Entry) size() int { return len(e.Data) + entryOverhead }

// owner is who may speak for a vbucket: the one whose BEGIN is current.
type owner struct {
	inc       index.Incarnation
	projector index.ProjectorID
	conn      uint64
	open      bool // something of it is accepted
	dropping  bool // between DropData and the next BEGIN
}

// vbucket is what the node knows of one vbucket's maintenance stream.
type vbucket struct {
	cur   owner
	min   index.Incarnation // lower ones are refused
	log   timestamp.FailoverLog
	rev   timestamp.MapRevision // highest one seen in this run
	begun bool                  // log is of a BEGIN in this run
	purge uint64                // as the newest BEGIN said
	recv  uint64                // the present stream has delivered everything up to here
	// activated is the highest A of the present stream. It does not count as received: it may stand in the middle of a
	// window of which nothing has come here, so that who has everything up to there, from a stream with other windows, is
	// not known.
	activated uint64
	epoch     uint32 // rises whenever some copy's queue starts anew
	queue     []Entry
	holds     int   // of distinct: where trim looks first for who holds the queue's first event
	parts     parts // of the event that is arriving in parts
	bytes     int
	side      *sideStream
	// awaited are the copies that the present stream feeds and that are not here: they were away when it said so.
	awaited []index.CopyID
}

// part is one copy's state of one vbucket.
type part struct {
	pos   Position
	log   timestamp.FailoverLog // of what is held
	kept  timestamp.FailoverLog // as the store has it
	base  uint64                // received on earlier streams; while sub is set what the present one brings is added
	solid uint64                // of side: up to here it is known how far de-duplication may have hidden something
	taken uint64                // how much of side is in a batch that is not written yet
	// what the present side stream brought up to here is in batches of this copy, and none of them was lost
	lent      uint64
	from      uint32 // epoch at which the queue starts for this copy, noQueue while no stream feeds it
	sub       bool   // the present stream feeds it
	tombs     bool   // tombstones may be stored
	restoring bool   // waits for Restored
	rejoin    bool   // to be joined then
	rejoinLow uint64 // purge seqno to judge by then
}

const noQueue = ^uint32(0)

// slice is one copy.
type slice struct {
	id     index.CopyID
	index  index.ID
	no     index.SliceID
	parts  []part // shared with other copies when shares is set: see own
	shares bool
	ready  bool // was exact once
	told   bool // and the snapshot was taken
	out    bool // a router said that it sends nothing more
	at     timestamp.Ref
	exact  bool // at is one it has an exact snapshot of
	held   timestamp.Ref
	has    bool // held counts: its batch is done
	later  bool // no side stream is wanted for it, see Defer
	// restoring is how many of its vbuckets wait for Restored, none while it shares
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

// Copy describes a copy to be added. Positions and Logs are what its store holds, one per vbucket, or nil for a new
// one.
type Copy struct {
	ID        index.CopyID
	Index     index.ID
	Slice     index.SliceID
	Ready     bool // it has been exact before
	Positions []Position
	Logs      []timestamp.FailoverLog
}

// Add takes a copy in: allocated, reopened after a crash, or received from another node. It receives nothing before a
// BEGIN or ACTIVATE names it.
func (b *Bucket) Add(c Copy) error {
	if b.find(c.ID) != nil {
		return fmt.Errorf("%w: copy %v is there already", ErrCopy, c.ID)
	}
	if err := b.checkStored(c.ID, c.Positions, c.Logs); err != nil {
		return err
	}
	sl := &slice{id: c.ID, index: c.Index, no: c.Slice, ready: c.Ready, told: c.Ready, parts: make([]part, len(b.vbs))}
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

// Remove forgets a copy. What is queued for it alone goes, and what side streams were to bring: added again, it asks
// for what it lacks then.
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

// Reopened tells that a copy's store has lost its newest batches (a failed disk, a torn file) and holds these
// positions now. The copy joins the running streams by the gap rule; the others are not touched. Side streams that have
// begun bring nothing for it any more: what their BEGIN has judged is not what it holds now.
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

// load takes over what the store holds.
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

// History returns the history of the branch vbuuid: the part of a log that begins with it, or the branch alone when the
// log does not know it. Branch 0 (nothing held) has none.
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

// CopyIDs lists the copies, ascending.
func (b *Bucket) CopyIDs() []index.CopyID {
	ids := make([]index.CopyID, len(b.copies))
	for i, c := range b.copies {
		ids[i] = c.id
	}
	return ids
}

// Work takes what the store has to do and has not been told yet. For each copy it must be done in this order, and
// before any batch that is asked for later; restores when all that was handed out before is done.
func (b *Bucket) Work() []Work {
	w := b.work
	b.work = nil
	return w
}

// QueueBytes is the memory held by events: queued, buffered by side streams, and in batches that are not done.
func (b *Bucket) QueueBytes() int { return b.queued + b.sideHeld + b.underWay.bytes }

// SideBytes is the part of QueueBytes that side streams have brought and no batch has taken.
func (b *Bucket) SideBytes() int { return b.sideHeld }

// Queued is the part of QueueBytes that waits in the queues of the maintenance streams.
func (b *Bucket) Queued() int { return b.queued }

func (b *Bucket) find(id index.CopyID) *slice {
	i, ok := slices.BinarySearchFunc(b.copies, id, func(c *slice, id index.CopyID) int { return cmp.Compare(c.id, id) })
	if !ok {
		return nil
	}
	return b.copies[i]
}

// received is the highest seqno up to which the copy has everything, queue included.
func (b *Bucket) received(p *part, vb int) uint64 {
	if p.sub {
		return max(p.base, b.vbs[vb].recv)
	}
	return p.base
}

// receivedLog is the log of the branch on which a copy receives.
func (b *Bucket) receivedLog(p *part, vb int) timestamp.FailoverLog {
	if v := &b.vbs[vb]; v.begun {
		return v.log
	}
	return p.log
}

// reset puts the copy's reception of a vbucket back to what it holds.
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

// clearQueue makes the queue start anew for this copy; the others keep theirs.
func (b *Bucket) clearQueue(sl *slice, vb int) {
	v := &b.vbs[vb]
	v.epoch++
	b.part(sl, vb).from = v.epoch
}

// trim drops entries that are for no copy any more.
func (b *Bucket) trim(vb int) {
	v := &b.vbs[vb]
	if len(v.queue) == 0 {
		return
	}
	low, all := v.epoch+1, b.distinct()
	for n := range all {
		i := (v.holds + n) % len(all)
		if low = min(low, all[i].parts[vb].from); low <= v.queue[0].epoch {
			v.holds = i // the first is for this one: none goes, whatever the others have
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

// behind returns the queue without its first n entries. The memory of what is left out is let go when that costs
// little.
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
