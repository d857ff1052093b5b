package store

import (
	"slices"

	"tidemark/timestamp"
)

// StreamRequest describes what a DCP consumer has: everything up to Start of branch VBUUID, received in the snapshot
// [SnapStart, SnapEnd].
type StreamRequest struct {
	Start, End, VBUUID, SnapStart, SnapEnd uint64
	// Strict refuses an unknown VBUUID even at Start 0.
	Strict bool
	// IgnorePurged accepts a Start below the purge seqno: the consumer does not need deletions that it has never seen.
	IgnorePurged bool
	// ClientPurge is the purge seqno that the consumer has; if it equals the vbucket's, nothing was missed.
	ClientPurge uint64
	// PurgeByWindow compares the purge seqno with SnapStart in place of Start.
	PurgeByWindow bool
}

// Outcome is the kind of answer to a stream request.
type Outcome int

// Outcomes of a stream request.
const (
	// Accept: the stream begins after Start.
	Accept Outcome = iota
	// OutOfRange: the numbers contradict each other or reach beyond the history.
	OutOfRange
	// Rollback: the consumer must first roll back to a seqno.
	Rollback
)

// History is the part of a vbucket's state that decides about stream requests. Failover is newest first and never
// empty.
type History struct {
	High, Purge uint64
	Failover    timestamp.FailoverLog
	Life        uint64 // as VBucket.Life
}

// Decide answers a stream request from the vbucket's history; seqno is used with Rollback only. It follows the rules
// for producers: a consumer may continue exactly if what it has is a prefix of this branch.
func (h History) Decide(r StreamRequest) (outcome Outcome, seqno uint64) {
	if r.Start > r.End || r.SnapStart > r.Start || r.Start > r.SnapEnd {
		return OutOfRange, 0
	}
	if r.Start == 0 && (!r.Strict || r.VBUUID == 0) {
		return Accept, 0
	}
	if r.missedPurge(h.Purge) {
		return Rollback, 0
	}
	at := slices.IndexFunc(h.Failover, func(e timestamp.LogEntry) bool { return e.VBUUID == r.VBUUID })
	if at < 0 {
		return Rollback, 0
	}
	upper := h.High
	if at > 0 {
		upper = h.Failover[at-1].Seqno
	}
	snapStart, snapEnd := r.snapshot()
	if snapEnd > upper {
		return Rollback, min(upper, snapStart)
	}
	if r.Start > h.High {
		return OutOfRange, 0
	}
	return Accept, 0
}

// missedPurge reports whether the consumer may lack deletions that were purged, those at or below purge.
func (r *StreamRequest) missedPurge(purge uint64) bool {
	from := r.Start
	if r.PurgeByWindow {
		from = r.SnapStart
	}
	return r.Start != 0 && from < purge && !r.IgnorePurged && r.ClientPurge != purge
}

// snapshot returns the snapshot that the consumer has received in part; a snapshot only begun, or complete, counts as
// none.
func (r *StreamRequest) snapshot() (start, end uint64) {
	start, end = r.SnapStart, r.SnapEnd
	if r.Start == start {
		end = r.Start
	}
	if r.Start == end {
		start = r.Start
	}
	return start, end
}

// Snapshot is a fixed set of versions of one vbucket: for every document changed after the start, the newest version
// at End. It does not change, whatever happens to the vbucket.
type Snapshot struct {
	// First is the seqno of its first version, End the seqno at which the vbucket had exactly this state.
	First, End uint64

	vb        *VBucket
	bound     uint64 // versions superseded at or below it are left out
	list      []*Doc // a view of the vbucket's list when it was fixed; ascending seqnos
	fixed     int64  // openSnapshots.superseded when it was fixed
	overtaken bool   // its versions were released before its end
}

// SnapshotAfter fixes the snapshot of what was durably written after seqno from, up to seqno limit. It returns nil if
// there is nothing, and the seqno up to which there is nothing (the lower of limit and the highest written seqno).
func (v *VBucket) SnapshotAfter(from, limit uint64) (*Snapshot, uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	end := min(v.written, limit)
	if end <= from {
		return nil, end
	}
	lo, hi := v.searchLocked(from+1), v.searchLocked(end+1)
	s := &Snapshot{End: end, vb: v, bound: v.written, list: v.list[lo:hi:hi]}
	for len(s.list) > 0 && s.stale(s.list[0]) {
		s.list = s.list[1:]
	}
	if len(s.list) == 0 {
		return nil, end
	}
	s.First = s.list[0].Seqno
	v.open.add(s)
	return s, end
}

func (s *Snapshot) stale(d *Doc) bool { return d.next != 0 && d.next <= s.bound }

// Next appends up to n further versions to dst. It appends none at the end, where it closes the snapshot, and if the
// snapshot is Overtaken.
func (s *Snapshot) Next(dst []*Doc, n int) []*Doc {
	if s.vb == nil {
		return dst
	}
	s.vb.mu.Lock()
	defer s.vb.mu.Unlock()
	if s.overtaken {
		return dst
	}
	i := 0
	for ; i < len(s.list) && n > 0; i++ {
		if d := s.list[i]; !s.stale(d) {
			dst = append(dst, d)
			n--
		}
	}
	s.list = s.list[i:]
	if len(s.list) == 0 {
		s.closeLocked()
	}
	return dst
}

// EndFor returns the end of the snapshot for a consumer that sees only wanted versions: its end, or the last wanted
// version if unwanted ones follow it; 0 if none is wanted. It must be called before Next.
func (s *Snapshot) EndFor(want func(d *Doc) bool) uint64 {
	s.vb.mu.Lock()
	defer s.vb.mu.Unlock()
	if s.overtaken {
		return s.End
	}
	others := false
	for i := len(s.list) - 1; i >= 0; i-- {
		switch d := s.list[i]; {
		case s.stale(d):
		case !want(d):
			others = true
		case others:
			return d.Seqno
		default:
			return s.End
		}
	}
	return 0
}

// Overtaken reports whether the versions superseded since the snapshot was fixed exceed the vbucket's share of
// memory: the consumer is too slow to be served from memory, and the snapshot has released its versions.
func (s *Snapshot) Overtaken() bool {
	if s.vb == nil {
		return false
	}
	s.vb.mu.Lock()
	defer s.vb.mu.Unlock()
	return s.overtaken
}

// Close releases the snapshot; it may be called more than once.
func (s *Snapshot) Close() {
	if s.vb == nil {
		return
	}
	s.vb.mu.Lock()
	defer s.vb.mu.Unlock()
	s.closeLocked()
}

func (s *Snapshot) closeLocked() {
	s.vb.open.remove(s)
	s.vb = nil
}

// openSnapshots tracks the snapshots of a vbucket that hold versions; guarded by its lock.
type openSnapshots struct {
	all        []*Snapshot // in the order in which they were fixed
	superseded int64       // total memory of all versions ever superseded
}

func (o *openSnapshots) add(s *Snapshot) {
	s.fixed = o.superseded
	o.all = append(o.all, s)
}

// remove releases what a snapshot holds.
func (o *openSnapshots) remove(s *Snapshot) {
	if i := slices.Index(o.all, s); i >= 0 {
		o.all = slices.Delete(o.all, i, i+1)
	}
	s.list = nil
}

// supersede counts a superseded version, and overtakes the snapshots, the oldest ones, for which more than limit
// bytes were superseded since they were fixed: their readers may be stuck. Other snapshots are not affected.
func (o *openSnapshots) supersede(memory, limit int64) {
	o.superseded += memory
	for len(o.all) > 0 && o.superseded-o.all[0].fixed > limit {
		o.all[0].overtaken = true
		o.remove(o.all[0])
	}
}
