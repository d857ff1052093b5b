package store

import (
	"slices"

	"tidemark/timestamp"
)

// StreamRequest is what a DCP consumer says it has: everything up to Start of branch VBUUID, received in the snapshot
// [SnapStart, SnapEnd].
type StreamRequest struct {
	Start, End, VBUUID, SnapStart, SnapEnd uint64
	// Strict refuses an unknown VBUUID also at Start 0.
	Strict bool
	// IgnorePurged accepts a Start below the purge seqno: the consumer does not care about deletions it never saw.
	IgnorePurged bool
	// ClientPurge is the purge seqno the consumer knows; equal to the vbucket's it proves that nothing was missed.
	ClientPurge uint64
	// PurgeByWindow asks for SnapStart, not Start, to be no lower than the purge seqno.
	PurgeByWindow bool
}

// Outcome is the kind of answer a stream request gets.
type Outcome int

// Outcomes of a stream request.
const (
	// Accept: the stream begins after Start.
	Accept Outcome = iota
	// OutOfRange: the numbers contradict each other or reach beyond the history.
	OutOfRange
	// Rollback: the consumer must go back to a seqno first.
	Rollback
)

// History is the part of a vbucket that decides about a stream request. Failover is newest first and never empty.
type History struct {
	High, Purge uint64
	Failover    timestamp.FailoverLog
	Life        uint64 // as VBucket.Life
}

// Decide answers a stream request from the vbucket's history; seqno is meant with Rollback only. It follows the
// producer's list of rules: a consumer may continue exactly when what it has is a prefix of this branch.
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

// missedPurge reports whether the consumer may lack deletions that are forgotten, those at or below purge.
func (r *StreamRequest) missedPurge(purge uint64) bool {
	from := r.Start
	if r.PurgeByWindow {
		from = r.SnapStart
	}
	return r.Start != 0 && from < purge && !r.IgnorePurged && r.ClientPurge != purge
}

// snapshot returns the snapshot that the consumer is in the middle of; one that is only begun or complete is none.
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

// Snapshot is a fixed set of versions of one vbucket: for every document changed after Start the newest version at End.
// It stays the same however the vbucket changes meanwhile.
type Snapshot struct {
	// First is the seqno of the first version in it, End the seqno at which the vbucket had exactly this state.
	First, End uint64

	vb        *VBucket
	bound     uint64 // versions superseded at or below it are left out
	list      []*Doc // a view of the vbucket's list at the time; ascending seqnos
	fixed     int64  // openSnapshots.superseded when it was fixed
	overtaken bool   // its versions were given up before it was at its end
}

// SnapshotAfter fixes the snapshot of what was written (durably) after seqno from, up to seqno limit. It returns nil
// when there is nothing, and the seqno up to which nothing is (the smaller of limit and the highest written seqno).
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

// Next appends up to n further versions to dst; none are appended at the end, where the snapshot is closed, and when it
// is Overtaken.
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

// EndFor is where the snapshot ends for one who is shown only what is wanted: at its end, or at the last version that
// is wanted when others follow that one; 0 when none is. It is asked before Next.
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

// Overtaken reports whether what was superseded since the snapshot was fixed has grown beyond the vbucket's share: the
// consumer is too slow to be served from memory, and the snapshot holds nothing any more.
func (s *Snapshot) Overtaken() bool {
	if s.vb == nil {
		return false
	}
	s.vb.mu.Lock()
	defer s.vb.mu.Unlock()
	return s.overtaken
}

// Close gives the snapshot up; it may be called more than once.
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

// openSnapshots are those of a vbucket that hold versions; guarded by its lock.
type openSnapshots struct {
	all        []*Snapshot // in the order in which they were fixed
	superseded int64       // memory of all versions that were ever superseded
}

func (o *openSnapshots) add(s *Snapshot) {
	s.fixed = o.superseded
	o.all = append(o.all, s)
}

// remove gives back what a snapshot holds.
func (o *openSnapshots) remove(s *Snapshot) {
	if i := slices.Index(o.all, s); i >= 0 {
		o.all = slices.Delete(o.all, i, i+1)
	}
	s.list = nil
}

// supersede counts a version that was superseded, and takes what they hold from those for which that is more than limit
// since they were fixed, which are the oldest: whoever reads them may stand still. Others are not affected.
func (o *openSnapshots) supersede(memory, limit int64) {
	o.superseded += memory
	for len(o.all) > 0 && o.superseded-o.all[0].fixed > limit {
		o.all[0].overtaken = true
		o.remove(o.all[0])
	}
}
