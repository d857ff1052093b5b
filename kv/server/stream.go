package server

import (
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"

	"github.com/golang/snappy"

	"tidemark/kv/access"
	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

var errNoNoop = errors.New("the consumer does not answer NOOP")

// stream is one vbucket's stream on a connection: its grant, its position, and the state of its moods.
type stream struct {
	p      *producer
	vb     *store.VBucket
	id     uint16
	opaque uint32
	queued atomic.Bool    // in the producer's ready list
	judged *access.Rights // rights of the last check; owned by the cursor's owner
	grant
	cursor
	habits
}

// grant holds the parameters of a stream and the vbucket's state when it was granted. It does not change.
type grant struct {
	start, end uint64
	purged     uint64 // the vbucket's purge seqno
	life       uint64 // the vbucket's life
	backfill   bool   // there were versions to send
	noValue    bool
	activeOnly bool
	filter     *filter // nil: everything is shown
	asked      request // from which the filter was made
}

// cursor is the position of a stream in its vbucket. It is owned by the sending goroutine, or by a goroutine that
// holds the connection's wmu and has removed the stream.
type cursor struct {
	last   uint64 // everything up to it has been sent
	shown  uint64 // seqno of the last item sent
	marked bool   // a first marker has been sent
	snap   *store.Snapshot
	upTo   uint64       // end of snap
	docs   []*store.Doc // taken from snap; those from next on are not sent yet
	next   int
}

// taken reports whether items taken from the snapshot have not been sent yet.
func (c *cursor) taken() bool { return c.next < len(c.docs) }

// take takes the snapshot's next items. It returns false if there are none: the snapshot is finished, unless it is
// overtaken.
func (c *cursor) take() bool {
	if c.docs, c.next = c.snap.Next(c.docs[:0], stepItems), 0; len(c.docs) > 0 {
		return true
	}
	if c.snap.Overtaken() {
		return false
	}
	c.snap, c.last = nil, c.upTo
	return false
}

// open continues with a snapshot.
func (c *cursor) open(snap *store.Snapshot) { c.snap, c.upTo, c.marked = snap, snap.End, true }

// leave releases the snapshot before its end; what was sent of it counts as sent.
func (c *cursor) leave() {
	c.snap.Close()
	c.snap, c.last = nil, max(c.last, c.shown)
}

// close releases what the cursor holds.
func (c *cursor) close() {
	if c.snap != nil {
		c.snap.Close()
		c.snap = nil
	}
	c.docs, c.next = nil, 0
}

// Notify implements store.Listener: the vbucket has something new.
func (st *stream) Notify() {
	if !st.queued.CompareAndSwap(false, true) {
		return
	}
	st.p.mu.Lock()
	st.p.ready = append(st.p.ready, st)
	st.p.mu.Unlock()
	st.p.kick()
}

// release releases what the stream holds. The stream must not be in the producer's map any more.
func (st *stream) release() {
	st.vb.Unsubscribe(st)
	st.close()
}

// step appends messages until buf has limit bytes or there are no more. The stream is processed again if more is true
// or the vbucket notifies. A Notify after queued was cleared and before the check cannot be lost, because the check
// comes later.
func (st *stream) step(buf []byte, limit int) (out []byte, messages int, more bool) {
	if buf, messages, ends := st.endsEarly(buf); ends || st.held.Load() {
		return buf, messages, false
	}
	var n int
	for len(buf) < limit {
		if st.taken() {
			buf, n = st.appendTaken(buf, limit)
			messages += n
			if st.filter.ended() {
				return st.finish(buf, mcbp.EndFilterEmpty, messages)
			}
			continue
		}
		if st.dropped {
			st.leave()
			st.resumeFromDisk()
		}
		if st.snap != nil {
			if st.snap.Overtaken() {
				return st.finish(buf, mcbp.EndTooSlow, messages)
			}
			buf, n = st.takeItems(buf)
			messages += n
			continue
		}
		if st.last >= st.end {
			return st.finish(buf, mcbp.EndOK, messages)
		}
		sent := st.last
		marked, began := st.beginSnapshot(buf)
		switch {
		case st.lacks(sent), began && st.tooSlow():
			return st.finish(buf, mcbp.EndTooSlow, messages) // without the marker
		case began:
			buf = marked
			messages++
		case st.last < st.end:
			return buf, messages, false
		}
	}
	return buf, messages, true
}

// endsEarly ends a stream whose vbucket is gone or whose user has lost the right to it, and reports whether it did.
func (st *stream) endsEarly(buf []byte) (out []byte, messages int, ends bool) {
	switch {
	case st.gone():
		if st.p.c.srv.opts.Moods.Has(SilentTakeover) {
			st.drop()
			return buf, 0, true
		}
		out, messages, _ = st.finish(buf, mcbp.EndStateChanged, 0)
		return out, messages, true
	case st.lost():
		out, messages, _ = st.finish(buf, mcbp.EndPrivilegeLost, 0)
		return out, messages, true
	}
	return buf, 0, false
}

// gone reports whether the vbucket was taken over, removed or emptied since the stream began.
func (st *stream) gone() bool {
	state, high := st.vb.Status()
	return state != store.Active && st.activeOnly || state == store.Dead || high < st.last || st.vb.Life() != st.life
}

// appendTaken appends items taken from the snapshot, up to the limit.
func (st *stream) appendTaken(buf []byte, limit int) (out []byte, messages int) {
	n := st.next
	for n < len(st.docs) && len(buf) < limit {
		if d := st.docs[n]; st.filter.shows(d) {
			buf = st.appendDoc(buf, d)
			st.shown = d.Seqno
			messages++
			st.p.items.Add(1)
		}
		n++
	}
	clear(st.docs[st.next:n])
	st.next = n
	return buf, messages
}

// takeItems takes the snapshot's next items, or closes a snapshot that has none left.
func (st *stream) takeItems(buf []byte) (out []byte, messages int) {
	if !st.take() {
		if st.snap != nil { // overtaken meanwhile, which is handled next
			return buf, 0
		}
		if st.p.c.features.collections && st.shown < st.upTo { // there is no item at the end of the window
			buf = st.appendAdvanced(buf)
			messages++
		}
		st.p.filled(st)
	}
	st.docs = st.dropCursor(st.docs)
	return buf, messages
}

// lacks reports whether a tombstone that the stream has not sent was purged; the stream has sent everything up to
// sent. It is called when the next snapshot is fixed, or when there was nothing to show: while a snapshot is open,
// nothing is purged. A stream from the beginning of a vbucket that has sent nothing lacks nothing.
func (st *stream) lacks(sent uint64) bool {
	return sent > 0 && st.vb.Purged() > max(sent, st.purged)
}

// beginSnapshot fixes the next snapshot and appends its marker; it returns false if there is nothing to send.
func (st *stream) beginSnapshot(buf []byte) ([]byte, bool) {
	moods := st.p.c.moods()
	if st.postponed(moods) {
		return buf, false
	}
	// A snapshot that was begun is sent to its end: as in real engines, a finite stream ends with the snapshot that
	// contains its end.
	limit := uint64(math.MaxUint64)
	if moods.Has(ExactEnd) && st.id%2 == 1 {
		limit = st.end
	}
	st.purgeLate(moods)
	snap, upTo := st.vb.SnapshotAfter(st.last, limit)
	if snap == nil {
		if upTo >= st.end {
			st.last = st.end
		}
		return buf, false
	}
	marker := mcbp.SnapshotMarker{Start: snap.First, End: snap.End, Flags: mcbp.SnapshotMemory}
	if st.filter != nil && st.filter.legacy { // it gets no message that moves it to a seqno of another collection
		if marker.End = snap.EndFor(st.filter.shows); marker.End == 0 {
			snap.Close()
			st.last = upTo
			return buf, false
		}
		marker.Start = min(marker.Start, marker.End)
	}
	if !st.marked {
		marker.Start = st.start
		if st.backfill {
			marker.Flags = mcbp.SnapshotDisk
		}
	}
	st.open(snap)
	st.window(moods, &marker, snap.First, st.last)
	st.cut(marker.Flags)
	st.p.c.srv.counters.Snapshots.Add(1)
	if form := markerForm(st.p.marker.Load()); form != markerV1 {
		marker.V2, marker.MaxVisible = true, marker.End
		if form == markerV22 {
			_, history := st.vb.History()
			marker.HasPurge, marker.Purge = true, history.Purge
		}
	}
	st.p.extras = marker.AppendExtras(st.p.extras[:0])
	return st.appendMessage(buf, mcbp.Frame{
		Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, st.id, st.opaque), Extras: st.p.extras, Value: marker.AppendValue(nil),
	}), true
}

// purgeLate purges the vbucket's tombstones before the first snapshot of every fourth stream from 0, with the mood
// Purges: real engines compact at any time.
func (st *stream) purgeLate(moods Moods) {
	if !moods.Has(Purges) || st.marked || st.start > 0 || st.p.betweenNodes() ||
		st.p.c.srv.fromZero.Add(1)%4 != 1 {
		return
	}
	if err := st.vb.ForgetTombstones(); err != nil {
		st.p.c.srv.opts.Logger.Debug("tombstones could not be purged", "vbucket", st.id, "error", err)
	}
}

// appendAdvanced appends a message that the stream has reached the end of its window, where there is no item.
func (st *stream) appendAdvanced(buf []byte) []byte {
	st.p.extras = mcbp.AppendSeqnoAdvanced(st.p.extras[:0], st.upTo)
	return st.appendMessage(buf, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSeqnoAdvanced, st.id, st.opaque),
		Extras: st.p.extras})
}

// finish ends the stream with STREAM_END.
func (st *stream) finish(buf []byte, reason mcbp.EndReason, messages int) ([]byte, int, bool) {
	st.drop()
	out, err := appendStreamEnd(buf, st, reason)
	if err != nil {
		return buf, messages, false
	}
	return out, messages + 1, false
}

// drop removes the stream from its connection without a message.
func (st *stream) drop() {
	st.p.mu.Lock()
	if st.p.streams[st.id] == st {
		st.p.left(st)
	}
	st.p.mu.Unlock()
	st.release()
}

func appendStreamEnd(buf []byte, st *stream, reason mcbp.EndReason) ([]byte, error) {
	return mcbp.Append(buf, mcbp.Frame{
		Header: mcbp.Request(mcbp.OpDCPStreamEnd, st.id, st.opaque), Extras: mcbp.AppendStreamEnd(nil, reason),
	})
}

// appendDoc appends one version as MUTATION, DELETION, EXPIRATION or SYSTEM_EVENT.
func (st *stream) appendDoc(buf []byte, d *store.Doc) []byte {
	if d.Collection == store.SystemCollection {
		return st.appendEvent(buf, d)
	}
	p := st.p
	p.key = p.key[:0]
	if p.c.features.collections {
		p.key = binary.AppendUvarint(p.key, uint64(d.Collection))
	}
	p.key = append(p.key, d.Key...)
	f := mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPMutation, st.id, st.opaque), Key: p.key}
	f.CAS = d.Cas
	if d.Deleted {
		expiryOpcode := p.expiryOpcode.Load()
		deletion := mcbp.Deletion{Seqno: d.Seqno, RevSeqno: d.Rev, DeleteTime: d.DeleteTime}
		if d.Expired && expiryOpcode && !p.c.moods().Has(ExpiryAsDeletion) {
			f.Op = mcbp.OpDCPExpiration
			p.extras = deletion.AppendExpirationExtras(p.extras[:0])
		} else {
			f.Op = mcbp.OpDCPDeletion
			deletion.WithTime = p.flags&mcbp.OpenDeleteTimes != 0 || expiryOpcode
			p.extras = deletion.AppendExtras(p.extras[:0])
		}
		f.Value, f.Datatype = p.buried(d)
	} else {
		mutation := mcbp.Mutation{Seqno: d.Seqno, RevSeqno: d.Rev, Flags: d.Flags, Expiry: d.Expiry}
		p.extras = mutation.AppendExtras(p.extras[:0])
		f.Value, f.Datatype = p.c.shown(d, p.flags&mcbp.OpenXattrs != 0)
	}
	if st.noValue || p.flags&mcbp.OpenNoValue != 0 {
		f.Value, f.Datatype = nil, 0
	}
	f.Value, f.Datatype = p.pack(f.Value, f.Datatype)
	f.Extras = p.extras
	return st.appendMessage(buf, f)
}

// buried returns the value of a tombstone: its body and, for consumers of extended attributes, the system attributes;
// user attributes only if they were requested at OPEN. Other nodes of the cluster get everything.
func (p *producer) buried(d *store.Doc) ([]byte, mcbp.Datatype) {
	if len(d.Value) == 0 {
		return nil, 0
	}
	all := p.betweenNodes()
	value, datatype := p.c.shown(d, all || p.flags&mcbp.OpenXattrs != 0)
	if all || p.flags&mcbp.OpenDeletedUserXattrs != 0 || !datatype.Has(mcbp.DatatypeXattr) {
		return value, datatype
	}
	section, body, err := mcbp.SplitXattrs(value)
	if err != nil {
		return nil, 0
	}
	if section = mcbp.SystemXattrs(section); len(section) == 0 {
		return body, datatype &^ mcbp.DatatypeXattr
	}
	return append(mcbp.AppendXattrs(nil, section), body...), datatype
}

// pack compresses a value if that was negotiated and requested. The result is valid until the next call.
func (p *producer) pack(value []byte, datatype mcbp.Datatype) ([]byte, mcbp.Datatype) {
	if len(value) == 0 || !p.c.features.snappy || !p.compress.Load() && !p.c.moods().Has(Compressed) {
		return value, datatype
	}
	if cap(p.packed) > keepBytes {
		p.packed = nil
	}
	p.packed = snappy.Encode(p.packed[:cap(p.packed)], value)
	return p.packed, datatype | mcbp.DatatypeSnappy
}

// appendMessage appends a message of the stream. Its lengths are within the codec's limits, which the store's limits
// ensure; otherwise the connection ends, so that the stream does not lack a message.
func (st *stream) appendMessage(buf []byte, f mcbp.Frame) []byte {
	out, err := mcbp.Append(buf, f)
	if err != nil {
		st.p.c.srv.opts.Logger.Error("dcp message cannot be encoded", "vbucket", st.id, "error", err)
		st.p.c.close()
		return buf
	}
	return out
}
