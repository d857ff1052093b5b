package timestamp

// LogEntry is the start of a branch: the history after Seqno belongs to VBUUID.
type LogEntry struct {
	VBUUID uint64 `json:"vbuuid,string"`
	Seqno  uint64 `json:"seqno"`
}

// FailoverLog is a vbucket's branch history, newest entry first, as in DCP. Example: (C,500) (B,300) (A,0) means that
// branch C began at 500, B covers 300 to 500 and A 0 to 300.
type FailoverLog []LogEntry

// VBucketLog is a vbucket's failover log, with the revision of the vbucket map under which it was read.
type VBucketLog struct {
	VBucket  uint16
	Log      FailoverLog // newest branch first
	Revision MapRevision
}

// Newest returns the vbuuid of the current branch, 0 for an empty log.
func (l FailoverLog) Newest() uint64 {
	if len(l) == 0 {
		return 0
	}
	return l[0].VBUUID
}

// ValidUpTo returns the highest sequence number up to which a holder on branch vbuuid shares this log's history: the
// start of the next newer branch, Infinity for the newest branch, 0 if vbuuid is not in the log.
func (l FailoverLog) ValidUpTo(vbuuid uint64) uint64 {
	for i, e := range l {
		if e.VBUUID == vbuuid {
			if i == 0 {
				return Infinity
			}
			return l[i-1].Seqno
		}
	}
	return 0
}

// Valid reports whether a single position satisfies the branch rule: it reflects nothing beyond the common history.
// reach is max(seqno, end of the window it lies in, floor). Example: holding 4 of a window (0,10] after a failover at
// 6 is not valid, because a lost 9 may have hidden something at 2.
func (l FailoverLog) Valid(vbuuid, reach uint64) bool {
	return reach == 0 || reach <= l.ValidUpTo(vbuuid)
}

// Common returns the highest sequence number up to which a holder with log l shares history with a producer with log
// p: on the newest branch in both logs, up to where the first of them left it. It is 0 if they share no branch, and
// Infinity if both are on the same newest branch.
func (l FailoverLog) Common(p FailoverLog) uint64 {
	for i, e := range l {
		for j, f := range p {
			if e.VBUUID != f.VBUUID {
				continue
			}
			up := uint64(Infinity)
			if i > 0 {
				up = min(up, l[i-1].Seqno)
			}
			if j > 0 {
				up = min(up, p[j-1].Seqno)
			}
			return up
		}
	}
	return 0
}

// Covering returns the vbuuid of the branch on which seqno lies, 0 if it lies before the oldest entry. A seqno at
// which a branch begins lies on both; Covering returns the newer one.
func (l FailoverLog) Covering(seqno uint64) uint64 {
	for _, e := range l {
		if e.Seqno <= seqno {
			return e.VBUUID
		}
	}
	return 0
}

// Previous returns the branch before the one that covers seqno if that one began exactly at seqno: a producer that
// lost its newest entry may have only this one. ok is false if there is none.
func (l FailoverLog) Previous(seqno uint64) (vbuuid uint64, ok bool) {
	for i, e := range l {
		if e.Seqno <= seqno {
			if e.Seqno == seqno && i+1 < len(l) {
				return l[i+1].VBUUID, true
			}
			return 0, false
		}
	}
	return 0, false
}

// Equal reports whether both logs have the same entries.
func (l FailoverLog) Equal(o FailoverLog) bool {
	if len(l) != len(o) {
		return false
	}
	for i := range l {
		if l[i] != o[i] {
			return false
		}
	}
	return true
}

// Clone returns an independent copy.
func (l FailoverLog) Clone() FailoverLog { return append(FailoverLog(nil), l...) }
