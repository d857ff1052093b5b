package core

import (
	"math"
	"slices"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// MaxStability is how many stability timestamps may be under way: as many as the coordinator leaves unacknowledged.
const MaxStability = 4

// Purge is the removal of the tombstones of one vbucket of one copy.
type Purge struct {
	Copy    index.CopyID
	VBucket int
}

// Handed is something that was handed out to be written, and is under way until Work.Ended.
type Handed struct {
	Batch  *ingest.Batch // nil: it is a purge
	Purge  Purge
	spoilt []index.CopyID // copies that have gone back, or away, since
	failed []index.CopyID // copies that it was not written to
	served bool           // nothing is left to write to copies that serve
	shown  bool           // and the state has been told
	done   bool
}

// Limits of what is handed out, in bytes.
type Limits struct {
	Queue int  // that the bucket may hold
	Side  int  // that is written of side streams at once
	Ahead int  // that is written at once to make room in the queue
	All   bool // also what is no whole batch of side streams
}

// Step is what is to be done next; at most one of its fields is set but for Acks.
type Step struct {
	Handed   *Handed
	Restores []ingest.Restore // to be put back; nothing else is handed out before Work.Restored
	Acks     []ingest.Ack     // of stability timestamps at which nothing is written, acknowledged
}

// Told is that a batch is written, told of in its turn.
type Told struct {
	Batch *ingest.Batch
	Shown bool // to the copies that serve scans; else to all
	Acked bool // the leader is to be told
}

// Work says what of a bucket is written next, and keeps what is under way: what must be done first, then by turns
// stability timestamps, what makes room ahead of one, and what side streams brought, then tombstones without use.
type Work struct {
	st        *Bucket
	look      bool // something may have become possible
	restoring bool
	pending   []ingest.Work
	under     []*Handed            // batches that are not done, in the order in which they were handed out
	purges    []Purge              // of tombstones that have no use any more, for when nothing else is to be written
	purgesOf  map[index.CopyID]int // how many of them a copy has
	purging   bool
	unmark    map[index.CopyID]bool // copies of which it is to be seen whether they have any tombstones left
}

// NewWork returns that of a bucket of which nothing is under way.
func NewWork(st *Bucket) *Work {
	return &Work{st: st, purgesOf: map[index.CopyID]int{}, unmark: map[index.CopyID]bool{}}
}

// Look notes that something may have become possible.
func (w *Work) Look() { w.look = true }

// Under is how many batches are under way.
func (w *Work) Under() int { return len(w.under) }

// Waits reports whether there is something that must be done before anything else.
func (w *Work) Waits() bool {
	if more := w.st.Work(); len(more) > 0 {
		w.pending = together(append(w.pending, more...))
	}
	return len(w.pending) > 0 || w.restoring
}

// rangesAtOnce bounds the ranges of one batch: a copy that is let go of, and whoever looks whether its disk hangs,
// waits for one batch.
const rangesAtOnce = 32

// together makes the ranges of a copy that are to be deleted one after the other batches, which have them in their
// order: a purge deletes as many as a bucket has vbuckets, times its copies, and who is told of a batch looks at all
// that are under way. Copies stay apart, so that what is told of one waits for no other.
func together(all []ingest.Work) []ingest.Work {
	kept, of := all[:0], map[index.CopyID]*ingest.CopyBatch{}
	for _, p := range all {
		if p.Batch == nil || p.Batch.Kind != ingest.DeleteRange || len(p.Batch.Copies) != 1 {
			clear(of)
		} else if c := &p.Batch.Copies[0]; of[c.ID] == nil || len(of[c.ID].Parts) >= rangesAtOnce {
			of[c.ID] = c
		} else {
			of[c.ID].Parts = append(of[c.ID].Parts, c.Parts...)
			continue
		}
		kept = append(kept, p)
	}
	clear(all[len(kept):])
	return kept
}

// Next says what is to be done now; it is asked until there is nothing.
func (w *Work) Next(l Limits) (s Step) {
	switch {
	case w.restoring:
		return s
	case w.Waits():
		return w.first()
	}
	t, acks := w.st.Next(w.room(l))
	for _, a := range acks {
		w.st.Acknowledge(a)
	}
	if w.look = t != nil; t != nil {
		return Step{Handed: w.Hand(t), Acks: acks}
	}
	return Step{Handed: w.purge(), Acks: acks}
}

// first is what must be done before anything else. Restores go together, and are done when nothing else is under way:
// they choose among what copies hold.
func (w *Work) first() Step {
	n := 0
	for n < len(w.pending) && w.pending[n].Restore != nil {
		n++
	}
	if n == 0 {
		t := w.pending[0].Batch
		w.pending = w.pending[1:]
		return Step{Handed: w.Hand(t)}
	}
	if len(w.under) > 0 || w.purging {
		return Step{}
	}
	back := make([]ingest.Restore, n)
	for i := range back {
		back[i] = *w.pending[i].Restore
	}
	w.pending, w.restoring = w.pending[n:], true
	return Step{Restores: back}
}

// Hand notes that a batch is handed out. One without a copy that serves scans is Served at once.
func (w *Work) Hand(t *ingest.Batch) *Handed {
	h := &Handed{Batch: t}
	w.under = append(w.under, h)
	return h
}

// room says which batches are to be looked for. Of side streams and of what makes room one batch is under way at a
// time, so that what is queued for a copy stays small.
func (w *Work) room(l Limits) ingest.Room {
	var under [ingest.DeleteRange + 1]int
	for _, h := range w.under {
		under[h.Batch.Kind]++
	}
	r := ingest.Room{Stability: w.look && under[ingest.AtStability] < MaxStability, SideLeast: l.Side, SideMost: l.Side,
		AheadFrom: l.Queue / 4 * 3, AheadBytes: min(l.Queue/2, l.Ahead), AheadKeep: l.Queue / 4 / w.st.vbuckets}
	if l.All || w.st.SideBytes() >= l.Side {
		r.SideLeast = 1
	}
	if under[ingest.FromSide] > 0 {
		r.SideMost = 0
	}
	if under[ingest.Ahead] > 0 {
		r.AheadFrom = math.MaxInt
	}
	return r
}

// purge lets the tombstones of one vbucket be removed when nothing else is to be written. Where a side stream needs
// them again, they go when it has come to its end.
func (w *Work) purge() *Handed {
	for len(w.purges) > 0 && len(w.under) == 0 && !w.purging {
		p := w.purges[0]
		w.purges = w.purges[1:]
		if w.purgesOf[p.Copy]--; w.purgesOf[p.Copy] == 0 {
			delete(w.purgesOf, p.Copy)
		}
		switch pos, ok := w.st.Position(p.Copy, p.VBucket); {
		case !ok:
		case pos.Whole():
			w.purging = true
			return &Handed{Purge: p}
		default:
			w.st.HoldsTombstones(p.Copy, p.VBucket)
		}
	}
	return nil
}

// addPurge lets tombstones be removed when nothing else is to be written.
func (w *Work) addPurge(p Purge) {
	w.purges = append(w.purges, p)
	w.purgesOf[p.Copy]++
}

// PurgeAll has the tombstones of all vbuckets of a copy removed.
func (w *Work) PurgeAll(id index.CopyID) {
	for vb := range w.st.vbuckets {
		w.addPurge(Purge{id, vb})
	}
}

// Stir has something written, when nothing else is to be, to a copy of which vbucket 0 is whole, so that its writer
// meets what is wrong with it; one that lacks that gets a batch of its side stream.
func (w *Work) Stir(id index.CopyID) {
	if w.purgesOf[id] == 0 {
		w.addPurge(Purge{Copy: id})
	}
}

// Served takes over that a batch at a stability timestamp is written to the copies that serve scans, but for those that
// failed, and returns what is to be told of now.
func (w *Work) Served(h *Handed, failed ...index.CopyID) []Told {
	h.served, h.failed = true, failed
	return w.tell()
}

// Ended takes over that something is written, but for copies that failed, and returns what is to be told of now.
func (w *Work) Ended(h *Handed, failed ...index.CopyID) []Told {
	if h.Batch == nil {
		w.purging = false
		w.unmark[h.Purge.Copy] = true
		return nil
	}
	h.served, h.done, h.failed = true, true, failed
	return w.tell()
}

// tell tells the state of what is written. Stability timestamps are told of in their order, to acknowledge one says
// that those before it are written to the copies that scans may wait for; what copies that are being built have still
// to write holds back none.
func (w *Work) tell() (all []Told) {
	waits := false
	w.under = slices.DeleteFunc(w.under, func(h *Handed) bool {
		at := h.Batch.Kind == ingest.AtStability
		if at && h.served && !h.shown && !waits {
			h.shown = true
			a, ok := w.st.Shown(h.Batch, h.without()...)
			all = append(all, w.told(Told{Batch: h.Batch, Shown: true, Acked: ok}, a))
		}
		if waits = waits || at && !h.shown; !h.done || at && waits {
			return false
		}
		w.schedulePurges(h.Batch)
		a, ok := w.st.Done(h.Batch, h.without()...)
		all = append(all, w.told(Told{Batch: h.Batch, Acked: ok}, a))
		return true
	})
	return all
}

func (w *Work) told(t Told, a ingest.Ack) Told {
	if t.Acked {
		w.st.Acknowledge(a)
	}
	return t
}

// without lists the copies that a batch does not count for.
func (h *Handed) without() []index.CopyID { return append(slices.Clone(h.spoilt), h.failed...) }

// schedulePurges notes which tombstones a batch has made useless.
func (w *Work) schedulePurges(t *ingest.Batch) {
	for i := range t.Copies {
		c := &t.Copies[i]
		for n := range c.Parts {
			if p := &c.Parts[n]; p.PurgeTombstones {
				w.addPurge(Purge{c.ID, p.VBucket})
			}
		}
	}
}

// Clean returns copies that have no tombstones left, once each, when nothing is under way that may bring some.
func (w *Work) Clean() (clean []index.CopyID) {
	if len(w.unmark) == 0 || len(w.under) > 0 || w.purging {
		return nil
	}
	for id := range w.unmark {
		if w.purgesOf[id] == 0 && !w.st.Tombstones(id) { // else there will be another look
			clean = append(clean, id)
		}
	}
	slices.Sort(clean)
	clear(w.unmark)
	return clean
}

// Restored ends what Step.Restores has begun.
func (w *Work) Restored() { w.restoring = false }

// Deleting reports whether a range of a copy is being deleted.
func (w *Work) Deleting(id index.CopyID) bool {
	return slices.ContainsFunc(w.under, func(h *Handed) bool {
		return h.Batch.Kind == ingest.DeleteRange &&
			slices.ContainsFunc(h.Batch.Copies, func(c ingest.CopyBatch) bool { return c.ID == id })
	})
}

// Remove lets a copy go. What is under way does not count for another one of its id that comes later.
func (w *Work) Remove(id index.CopyID) {
	w.st.Remove(id)
	w.forget(id)
	w.spoil(id)
}

// Reopened takes over that a copy has lost its newest batches, what is under way for it among them.
func (w *Work) Reopened(id index.CopyID, positions []ingest.Position, logs []timestamp.FailoverLog) error {
	w.spoil(id)
	w.forget(id)
	return w.st.Reopened(id, positions, logs)
}

func (w *Work) spoil(id index.CopyID) {
	for _, h := range w.under {
		h.spoilt = append(h.spoilt, id)
	}
}

// forget drops waiting work of a copy that has gone back.
func (w *Work) forget(id index.CopyID) {
	kept := w.pending[:0]
	for _, p := range append(w.pending, w.st.Work()...) {
		if p.Restore != nil && p.Restore.Copy == id {
			continue
		}
		if p.Batch != nil {
			copies := p.Batch.Copies[:0:0]
			for _, c := range p.Batch.Copies {
				if c.ID != id {
					copies = append(copies, c)
				}
			}
			p.Batch.Copies = copies
		}
		kept = append(kept, p)
	}
	w.pending = kept
}
