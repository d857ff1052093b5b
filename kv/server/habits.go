package server

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// How often, how many and how long, in moods. Numbers that have no divisor in common meet in many ways.
const (
	temporaryEvery  = 11
	warmupWrites    = 6
	backfillsAtOnce = 4
	backfillPause   = 40 * time.Millisecond
	cursorDropEvery = 5
	slowEndEvery    = 29
	unevenPause     = 250 * time.Millisecond
	evictEvery      = 32
	// IdleCloseAfter is the idle time of a connection in the mood IdleClose: more than the interval of noops that
	// consumers ask for. Engines take minutes.
	IdleCloseAfter = 6 * time.Second
)

// Some draws about half of the moods, the same for the same seed: for campaigns, where moods that hide each other
// have to be met in many combinations.
func (m Moods) Some(seed uint64) Moods {
	return m & Moods(rand.New(rand.NewPCG(seed, 0)).Uint64())
}

// lacksMemory says whether a request is one of those that fail in the mood Temporary, and how.
func (c *conn) lacksMemory(op mcbp.Opcode) (mcbp.Status, bool) {
	if !c.moods().Has(Temporary) || !ofDocuments(op) && !ofStreams(op) {
		return 0, false
	}
	n := c.srv.hard.Add(1)
	switch {
	case n%temporaryEvery != 0:
		return 0, false
	case n%(2*temporaryEvery) == 0 && isWrite(op):
		return mcbp.StatusNoMemory, true
	}
	return mcbp.StatusTemporary, true
}

// onlyReads says whether a request comes too early in the mood WarmupReads. Each one that does brings the node nearer
// to the end of its warmup.
func (s *Server) onlyReads(op mcbp.Opcode) bool {
	return s.opts.Moods.Has(WarmupReads) && (isWrite(op) || op == mcbp.OpDCPStreamReq) && s.early.Add(1) <= warmupWrites
}

func isWrite(op mcbp.Opcode) bool {
	switch op {
	case mcbp.OpGet, mcbp.OpGetQ, mcbp.OpGetK, mcbp.OpGetKQ:
		return false
	}
	return ofDocuments(op)
}

// ofDocuments says whether a request is for one document.
func ofDocuments(op mcbp.Opcode) bool {
	switch op {
	case mcbp.OpGet, mcbp.OpGetQ, mcbp.OpGetK, mcbp.OpGetKQ, mcbp.OpSet, mcbp.OpSetQ, mcbp.OpAdd, mcbp.OpAddQ,
		mcbp.OpReplace, mcbp.OpReplaceQ, mcbp.OpDelete, mcbp.OpDeleteQ, mcbp.OpDeleteWithMeta, mcbp.OpTouch, mcbp.OpGAT,
		mcbp.OpGATQ, mcbp.OpAppend, mcbp.OpAppendQ, mcbp.OpPrepend, mcbp.OpPrependQ, mcbp.OpIncrement, mcbp.OpIncrementQ,
		mcbp.OpDecrement, mcbp.OpDecrementQ:
		return true
	}
	return false
}

// ofStreams says whether a request is for streams, or what is asked before one.
func ofStreams(op mcbp.Opcode) bool {
	switch op {
	case mcbp.OpDCPOpen, mcbp.OpDCPStreamReq, mcbp.OpDCPFailoverLog, mcbp.OpGetAllVBSeqnos:
		return true
	}
	return false
}

// lingers says, once, whether a stream of the vbucket that has ended still counts, in the mood StreamExists.
func (p *producer) lingers(vb uint16) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.over[vb]
	delete(p.over, vb)
	return was
}

// left notes, with mu held, that a vbucket's stream is over.
func (p *producer) left(st *stream) {
	delete(p.streams, st.id)
	p.c.srv.counters.Streams.Add(-1)
	if st.filling {
		st.filling = false
		p.backfills--
	}
	if p.c.moods().Has(StreamExists) {
		p.over[st.id] = true
	}
}

// habits are what moods make of a stream. They belong to whom its cursor belongs, but for what is said.
type habits struct {
	held              atomic.Bool // it waits
	filling           bool        // it has one of the connection's places for backfills; guarded by the producer's lock
	rested            bool        // it has waited for its next snapshot
	odd               bool        // which way the next window is odd, in the mood OddBoundaries
	dropping, dropped bool        // the rest of its snapshot is to be left out, or was
	fromDisk          bool        // the next snapshot is
	wasDisk           bool        // the last one was, and began at diskStart
	diskStart         uint64
}

// pause holds the stream back; it is looked at again when the time is over.
func (st *stream) pause(d time.Duration) {
	st.held.Store(true)
	time.AfterFunc(d, func() {
		st.held.Store(false)
		st.Notify()
	})
}

// postponed says whether the next snapshot has to wait. A backfill that need not wait has its place until its
// snapshot is over.
func (st *stream) postponed(moods Moods) bool {
	if _, high := st.vb.Status(); high <= st.last {
		return false
	}
	late := time.Duration(0)
	switch {
	case moods.Has(Pauses) && !st.marked && st.backfill:
		if st.rested && st.p.fills(st) {
			return false
		}
		late = backfillPause
	case moods.Has(Uneven) && st.id%4 == 3 && !st.rested:
		late = unevenPause
	}
	st.rested = late > 0
	if late > 0 {
		st.pause(late)
	}
	return late > 0
}

// fills takes one of the places for backfills, if there is one.
func (p *producer) fills(st *stream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.backfills >= backfillsAtOnce {
		return false
	}
	p.backfills++
	st.filling = true
	return true
}

// filled gives the place back.
func (p *producer) filled(st *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if st.filling {
		st.filling = false
		p.backfills--
	}
}

// tooSlow says whether a stream that is about to begin a snapshot from memory is ended as too slow.
func (st *stream) tooSlow() bool {
	return st.p.c.moods().Has(SlowEnd) && st.marked && st.p.c.srv.fromMemory.Add(1)%slowEndEvery == 0
}

// cut leaves out the second half of a snapshot from memory, when it is its turn in the mood CursorDrop. What is left
// out comes with the next snapshot, from disk.
func (st *stream) cut(flags mcbp.SnapshotFlags) {
	if !st.p.c.moods().Has(CursorDrop) || flags&mcbp.SnapshotDisk != 0 || st.p.c.srv.cuts.Add(1)%cursorDropEvery != 0 {
		return
	}
	st.dropping = true
}

// dropBehind takes the cursor away behind half of the snapshot's first items, if they are to be the last.
func (h *habits) dropBehind(docs []*store.Doc) []*store.Doc {
	if h.dropping && len(docs) > 1 {
		half := len(docs) / 2
		clear(docs[half:])
		docs, h.dropped = docs[:half], true
	}
	h.dropping = false
	return docs
}

// goOnFromDisk is after a snapshot whose rest was left out.
func (h *habits) goOnFromDisk() { h.dropped, h.fromDisk = false, true }

// window is where a snapshot whose first item is first is said to begin, of a stream that has sent everything up to
// last.
func (h *habits) window(moods Moods, marker *mcbp.SnapshotMarker, first, last uint64) {
	if moods.Has(DiskSnapshots) {
		marker.Flags = mcbp.SnapshotDisk
	}
	if h.fromDisk {
		marker.Flags, marker.Start = mcbp.SnapshotDisk, last
	}
	h.fromDisk = false
	if moods.Has(OddBoundaries) {
		if marker.Start = last; h.odd {
			marker.Start = first
		}
		h.odd = !h.odd
	}
	switch disk := marker.Flags&mcbp.SnapshotDisk != 0; {
	case disk:
		h.diskStart, h.wasDisk = marker.Start, true
	case moods.Has(InsideWindows) && h.wasDisk:
		marker.Start, h.wasDisk = h.diskStart+(last-h.diskStart)/2, false
	}
}

// aside does what an engine does beside a client's write: the result is that of the newest version of the document.
func (c *conn) aside(v *store.VBucket, r store.Result) store.Result {
	moods := c.srv.opts.Moods
	if moods&(Eviction|Xattrs) == 0 {
		return r
	}
	n := c.srv.written.Add(1)
	if moods.Has(Eviction) && r.Doc.Seqno%evictEvery == 0 {
		v.Evict(r.Doc)
	}
	if !moods.Has(Xattrs) || n%3 != 0 || r.Doc.Deleted || mcbp.Datatype(r.Doc.Datatype).Has(mcbp.DatatypeXattr) ||
		len(r.Doc.Value) > store.MaxValueBytes/2 {
		return r
	}
	section := mcbp.AppendXattrs(nil, mcbp.AppendXattr(nil, "_sync", []byte(`{"seen":true}`)))
	after, err := v.Apply(store.Change{Kind: store.Edit, Collection: r.Doc.Collection, Key: []byte(r.Doc.Key),
		Cas: r.Doc.Cas,
		Edit: func(prev *store.Doc) ([]byte, byte, error) {
			return slices.Concat(section, prev.Value), prev.Datatype | byte(mcbp.DatatypeXattr), nil
		}})
	if err != nil {
		return r
	}
	return after
}
