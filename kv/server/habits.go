package server

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// Frequencies, counts and durations of the moods. The frequencies are coprime, so that they coincide in many ways.
const (
	temporaryEvery  = 11
	warmupWrites    = 6
	backfillsAtOnce = 4
	backfillPause   = 40 * time.Millisecond
	cursorDropEvery = 5
	slowEndEvery    = 29
	unevenPause     = 250 * time.Millisecond
	evictEvery      = 32
	// IdleCloseAfter is the idle time after which the mood IdleClose closes a connection: more than the NOOP interval
	// that consumers request. Real engines wait for minutes.
	IdleCloseAfter = 6 * time.Second
)

// Some returns about half of the moods, the same for the same seed: campaigns need many combinations, because some
// moods hide others.
func (m Moods) Some(seed uint64) Moods {
	return m & Moods(rand.New(rand.NewPCG(seed, 0)).Uint64())
}

// lacksMemory reports whether a request fails under the mood Temporary, and with which status.
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

// onlyReads reports whether a request comes too early under the mood WarmupReads. Each refused request brings the end
// of the warmup nearer.
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

// ofDocuments reports whether a request is for one document.
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

// ofStreams reports whether a request is for streams, or is one that consumers make before a stream.
func ofStreams(op mcbp.Opcode) bool {
	switch op {
	case mcbp.OpDCPOpen, mcbp.OpDCPStreamReq, mcbp.OpDCPFailoverLog, mcbp.OpGetAllVBSeqnos:
		return true
	}
	return false
}

// lingers reports, once, whether an ended stream of the vbucket still counts under the mood StreamExists.
func (p *producer) lingers(vb uint16) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.over[vb]
	delete(p.over, vb)
	return was
}

// left records that a stream has ended. The caller holds mu.
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

// habits is the state of a stream's moods. Unless noted otherwise, it belongs to the owner of the stream's cursor.
type habits struct {
	held              atomic.Bool // the stream pauses
	filling           bool        // it occupies one of the connection's backfill slots; guarded by the producer's mu
	rested            bool        // it has paused before its next snapshot
	odd               bool        // direction of the next odd window, for the mood OddBoundaries
	dropping, dropped bool        // the rest of its snapshot will be, or was, left out
	fromDisk          bool        // the next snapshot is from disk
	wasDisk           bool        // the last snapshot was from disk and began at diskStart
	diskStart         uint64
}

// pause pauses the stream for d.
func (st *stream) pause(d time.Duration) {
	st.held.Store(true)
	time.AfterFunc(d, func() {
		st.held.Store(false)
		st.Notify()
	})
}

// postponed reports whether the next snapshot has to wait. A backfill that need not wait keeps its slot until its
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

// fills takes one of the backfill slots, if one is free.
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

// filled releases the backfill slot.
func (p *producer) filled(st *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if st.filling {
		st.filling = false
		p.backfills--
	}
}

// tooSlow reports whether a stream about to begin a snapshot from memory is ended as too slow.
func (st *stream) tooSlow() bool {
	return st.p.c.moods().Has(SlowEnd) && st.marked && st.p.c.srv.fromMemory.Add(1)%slowEndEvery == 0
}

// cut marks the second half of a snapshot from memory to be left out if it is due under the mood CursorDrop. The rest
// follows with the next snapshot, from disk.
func (st *stream) cut(flags mcbp.SnapshotFlags) {
	if !st.p.c.moods().Has(CursorDrop) || flags&mcbp.SnapshotDisk != 0 || st.p.c.srv.cuts.Add(1)%cursorDropEvery != 0 {
		return
	}
	st.dropping = true
}

// dropCursor drops the cursor after half of the snapshot's first items, if the snapshot is to be cut.
func (h *habits) dropCursor(docs []*store.Doc) []*store.Doc {
	if h.dropping && len(docs) > 1 {
		half := len(docs) / 2
		clear(docs[half:])
		docs, h.dropped = docs[:half], true
	}
	h.dropping = false
	return docs
}

// resumeFromDisk continues from disk after a snapshot whose rest was left out.
func (h *habits) resumeFromDisk() { h.dropped, h.fromDisk = false, true }

// window sets the beginning of a snapshot whose first item is first, for a stream that has sent everything up to
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

// sideEffects does what a real engine does besides a client's write; it returns the result for the newest version of
// the document.
func (c *conn) sideEffects(v *store.VBucket, r store.Result) store.Result {
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
