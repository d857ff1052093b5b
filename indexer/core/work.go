package core

import (
	"math"
	"slices"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// MaxStability bounds the stability timestamps in flight. The coordinator leaves as many unacknowledged.
const MaxStability = 4

// Purge removes the tombstones of vbuckets of one copy.
type Purge struct {
	Copy     index.CopyID
	VBuckets []uint16 // ascending
	Last     bool     // the copy has no other tombstones: the removal of all must be durable before Work.Purged
}

// Handed is a batch or purge that was handed out to be written. A batch is in flight until Work.Ended, a purge until
// Work.Purged.
type Handed struct {
	Batch    *ingest.Batch // nil for a purge
	Purge    Purge
	excluded []index.CopyID // copies that were restored or removed since; the batch does not count for them
	failed   []index.CopyID // copies to which it could not be written
	served   bool           // nothing is left to write to copies that serve scans
	shown    bool           // and the bucket's state has recorded it
	done     bool
}

// Limits bounds what is handed out, in bytes.
type Limits struct {
	Queue int  // bytes that the bucket's queue may hold
	Side  int  // bytes of side streams that one batch writes
	Ahead int  // bytes that one batch writes to make room in the queue
	All   bool // also hand out less than a full batch of side streams
}

// Step is the next thing to do. At most one of Handed and Restores is set.
type Step struct {
	Handed   *Handed
	Restores []ingest.Restore // to be carried out; Work hands out nothing else until Work.Restored
	Acks     []ingest.Ack     // acknowledgements of stability timestamps for which nothing has to be written
}

// Completion reports that a batch has been written. Completions of stability timestamps are delivered in the order in
// which the batches were handed out.
type Completion struct {
	Batch *ingest.Batch
	Shown bool // written to the copies that serve scans; otherwise to all copies
	Acked bool // an acknowledgement for the leader has been queued
}

// Work decides what is written next for a bucket and tracks what is in flight. Mandatory work (restores, deletions of
// ranges) comes first; then, by turns, stability timestamps, batches that make room in the queue, and batches of side
// streams; useless tombstones come last.
type Work struct {
	st        *Bucket
	look      bool // something may have become possible since Next last found nothing
	restoring bool
	pending   []ingest.Work
	inFlight  []*Handed                 // batches in flight, in the order in which they were handed out
	purges    map[index.CopyID][]uint16 // vbuckets with useless tombstones, removed when there is nothing else to write
	turns     []index.CopyID            // the copies in purges, in turn
	purging   bool
	unmark    map[index.CopyID]bool // copies that Clean has to check for remaining tombstones
}

// NewWork returns the Work of a bucket that has nothing in flight.
func NewWork(st *Bucket) *Work {
	return &Work{st: st, purges: map[index.CopyID][]uint16{}, unmark: map[index.CopyID]bool{}}
}

// Look records that something may have become possible.
func (w *Work) Look() { w.look = true }

// InFlight returns the number of batches in flight.
func (w *Work) InFlight() int { return len(w.inFlight) }

// Waits reports whether mandatory work is pending or restores are in progress.
func (w *Work) Waits() bool {
	if more := w.st.Work(); len(more) > 0 {
		w.pending = together(append(w.pending, more...))
	}
	return len(w.pending) > 0 || w.restoring
}

// rangesAtOnce bounds how many ranges one batch deletes: the release of a copy, and the check for a hung disk, wait
// for the batch in progress.
const rangesAtOnce = 32

// together merges consecutive deletions of a copy's ranges into batches that keep their order. A rollback can delete
// as many ranges as the bucket has vbuckets, times its copies, and each completion scans all batches in flight.
// Copies are not merged with each other, so that the completion for one waits for no other.
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

// Next returns what to do now. The caller calls it until it returns an empty Step.
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

// first returns the next mandatory work. Consecutive restores are returned together, once nothing else is in flight,
// because a restore chooses among the states that the copies hold.
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
	if len(w.inFlight) > 0 || w.purging {
		return Step{}
	}
	back := make([]ingest.Restore, n)
	for i := range back {
		back[i] = *w.pending[i].Restore
	}
	w.pending, w.restoring = w.pending[n:], true
	return Step{Restores: back}
}

// Hand records that a batch is handed out. If it has no copy that serves scans, the caller calls Served at once.
func (w *Work) Hand(t *ingest.Batch) *Handed {
	h := &Handed{Batch: t}
	w.inFlight = append(w.inFlight, h)
	return h
}

// room returns which batches ingest may produce. At most one batch of side streams and one that makes room are in
// flight at a time, so that little is queued for each copy.
func (w *Work) room(l Limits) ingest.Room {
	var under [ingest.DeleteRange + 1]int
	for _, h := range w.inFlight {
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

// purge returns the next removal of tombstones if nothing else is to be written: those of all vbuckets of a copy that
// are due. Tombstones that a side stream needs again stay until that stream has ended.
func (w *Work) purge() *Handed {
	for len(w.turns) > 0 && len(w.inFlight) == 0 && !w.purging {
		id := w.turns[0]
		due := w.purges[id]
		w.turns = w.turns[1:]
		delete(w.purges, id)
		slices.Sort(due)
		useless, needed := w.sortOut(id, slices.Compact(due))
		for _, vb := range needed {
			w.st.HoldsTombstones(id, int(vb)) // a flush that leaves the vbucket whole schedules their removal again
		}
		if len(useless) > 0 {
			w.purging = true
			return &Handed{Purge: Purge{id, useless, !w.st.Tombstones(id)}}
		}
	}
	return nil
}

// sortOut returns those of a copy's vbuckets in which it does not need tombstones, and those in which it does. A copy
// that is not here has neither.
func (w *Work) sortOut(id index.CopyID, vbuckets []uint16) (useless, needed []uint16) {
	for _, vb := range vbuckets {
		switch pos, here := w.st.Position(id, int(vb)); {
		case !here:
		case pos.Whole():
			useless = append(useless, vb)
		default:
			needed = append(needed, vb)
		}
	}
	return useless, needed
}

// addPurge schedules the removal of vbuckets' tombstones for when there is nothing else to write.
func (w *Work) addPurge(id index.CopyID, vbuckets ...uint16) {
	if len(vbuckets) == 0 {
		return
	}
	if len(w.purges[id]) == 0 {
		w.turns = append(w.turns, id)
	}
	w.purges[id] = append(w.purges[id], vbuckets...)
}

// PurgeAll schedules the removal of the tombstones of all vbuckets of a copy, in place of what is scheduled.
func (w *Work) PurgeAll(id index.CopyID) {
	all := make([]uint16, w.st.vbuckets)
	for vb := range all {
		all[vb] = uint16(vb)
	}
	if len(w.purges[id]) > 0 { // it has its turn
		w.purges[id] = all
		return
	}
	w.addPurge(id, all...)
}

// Stir schedules a write to a copy for when there is nothing else to write, so that the copy's writer meets whatever
// is wrong with its store. It uses a purge of vbucket 0, which needs that vbucket to be whole; if it is not, the copy
// gets batches of its side stream anyway.
func (w *Work) Stir(id index.CopyID) {
	if len(w.purges[id]) == 0 {
		w.addPurge(id, 0)
	}
}

// Served records that a batch at a stability timestamp has been written to the copies that serve scans, except those
// that failed. It returns the completions that are due now.
func (w *Work) Served(h *Handed, failed ...index.CopyID) []Completion {
	h.served, h.failed = true, failed
	return w.complete()
}

// Purged records that the first done vbuckets of a purge have no tombstones any more; the others are due again. If
// done is negative, the copy could not be written to. Such a copy, and one that was removed meanwhile, stays marked: it
// is searched again when it comes back.
func (w *Work) Purged(p Purge, done int) {
	w.purging = false
	if _, here := w.st.Position(p.Copy, 0); done < 0 || !here {
		return
	}
	if p.Last {
		w.unmark[p.Copy] = true
	}
	w.addPurge(p.Copy, p.VBuckets[done:]...)
}

// Ended records that a batch has been written, except to the copies that failed. It returns the completions that are
// due now.
func (w *Work) Ended(h *Handed, failed ...index.CopyID) []Completion {
	h.served, h.done, h.failed = true, true, failed
	return w.complete()
}

// complete passes completed batches to the bucket's state. Stability timestamps complete in order, because
// acknowledging one implies that those before it are written to every copy that a scan may wait for. Copies that are
// still being built hold back none.
func (w *Work) complete() (all []Completion) {
	waits := false
	w.inFlight = slices.DeleteFunc(w.inFlight, func(h *Handed) bool {
		at := h.Batch.Kind == ingest.AtStability
		if at && h.served && !h.shown && !waits {
			h.shown = true
			a, ok := w.st.Shown(h.Batch, h.without()...)
			all = append(all, w.acknowledge(Completion{Batch: h.Batch, Shown: true, Acked: ok}, a))
		}
		if waits = waits || at && !h.shown; !h.done || at && waits {
			return false
		}
		w.schedulePurges(h.Batch)
		a, ok := w.st.Done(h.Batch, h.without()...)
		all = append(all, w.acknowledge(Completion{Batch: h.Batch, Acked: ok}, a))
		return true
	})
	return all
}

func (w *Work) acknowledge(t Completion, a ingest.Ack) Completion {
	if t.Acked {
		w.st.Acknowledge(a)
	}
	return t
}

// without returns the copies for which a batch does not count.
func (h *Handed) without() []index.CopyID { return append(slices.Clone(h.excluded), h.failed...) }

// schedulePurges schedules the removal of the tombstones that a batch has made useless.
func (w *Work) schedulePurges(t *ingest.Batch) {
	for i := range t.Copies {
		c := &t.Copies[i]
		for n := range c.Parts {
			if p := &c.Parts[n]; p.PurgeTombstones {
				w.addPurge(c.ID, uint16(p.VBucket))
			}
		}
	}
}

// Clean returns the copies that have no tombstones left, once each and sorted, if nothing is in flight that may add
// some.
func (w *Work) Clean() (clean []index.CopyID) {
	if len(w.unmark) == 0 || len(w.inFlight) > 0 || w.purging {
		return nil
	}
	for id := range w.unmark {
		if len(w.purges[id]) == 0 && !w.st.Tombstones(id) { // otherwise the next purge marks it again
			clean = append(clean, id)
		}
	}
	slices.Sort(clean)
	clear(w.unmark)
	return clean
}

// Restored ends the restores of Step.Restores.
func (w *Work) Restored() { w.restoring = false }

// Deleting reports whether a batch in flight deletes a range of a copy.
func (w *Work) Deleting(id index.CopyID) bool {
	return slices.ContainsFunc(w.inFlight, func(h *Handed) bool {
		return h.Batch.Kind == ingest.DeleteRange &&
			slices.ContainsFunc(h.Batch.Copies, func(c ingest.CopyBatch) bool { return c.ID == id })
	})
}

// Remove releases a copy. Batches in flight do not count for a later copy of the same id.
func (w *Work) Remove(id index.CopyID) {
	w.st.Remove(id)
	delete(w.unmark, id)
	w.forget(id)
	w.exclude(id)
}

// Reopened records that a copy has lost its newest batches, including those in flight for it.
func (w *Work) Reopened(id index.CopyID, positions []ingest.Position, logs []timestamp.FailoverLog) error {
	w.exclude(id)
	w.forget(id)
	return w.st.Reopened(id, positions, logs)
}

func (w *Work) exclude(id index.CopyID) {
	for _, h := range w.inFlight {
		h.excluded = append(h.excluded, id)
	}
}

// forget drops the pending work of a copy that was reopened or removed.
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
