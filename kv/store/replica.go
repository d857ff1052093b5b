package store

import (
	"fmt"
	"time"

	"tidemark/timestamp"
)

// SnapshotRange holds the first and the last seqno of a snapshot, as in its marker.
type SnapshotRange struct{ Start, End uint64 }

// windowLocked returns the snapshot that contains seqno high.
func (v *VBucket) windowLocked(high uint64) SnapshotRange {
	if v.state != Replica || v.window.Start > high || v.window.End < high { // its first version was taken back
		return SnapshotRange{high, high}
	}
	return v.window
}

// Position returns where a replica continues: {vbuuid, seqno, snapshot window} for a stream request.
func (v *VBucket) Position() (vbuuid, seqno uint64, w SnapshotRange) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.failover {
		if e.Seqno <= v.high {
			vbuuid = e.VBUUID
			break
		}
	}
	return vbuuid, v.high, v.windowLocked(v.high)
}

// Join takes over the failover log, newest entry first, of the active copy, which has accepted the replica's position.
// A log that the replica has already is not written again: while a disk that is almost full refuses documents, the
// replica joins again and again, and these records would take the room that compaction needs.
func (v *VBucket) Join(log timestamp.FailoverLog) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != Replica {
		return fmt.Errorf("%w: vbucket %d is %s", ErrNotReplica, v.id, v.state)
	}
	if err := v.steadyLocked(); err != nil {
		return err
	}
	if len(log) == 0 {
		return fmt.Errorf("%w: vbucket %d: an empty failover log", ErrOrder, v.id)
	}
	log = log[:min(len(log), maxFailoverEntries)]
	failures := v.bucket.commit.failures.Load() // a log whose write failed and was taken back is written again
	if log.Equal(v.failover) && failures == v.joinedAt {
		return nil
	}
	v.failover = append(timestamp.FailoverLog(nil), log...)
	_, err := v.saveLocked()
	if err == nil {
		v.joinedAt = failures
	}
	return err
}

// Replicate installs a version with all its numbers, in the snapshot window w. The version is durable, and visible to
// streams, once the ticket has been waited for.
func (v *VBucket) Replicate(doc *Doc, w SnapshotRange) (*Ticket, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.state != Replica:
		return nil, fmt.Errorf("%w: vbucket %d is %s", ErrNotReplica, v.id, v.state)
	case v.resetting:
		return nil, v.steadyLocked()
	case doc.Seqno <= v.high || doc.Seqno < w.Start || doc.Seqno > w.End:
		return nil, fmt.Errorf("%w: vbucket %d: seqno %d after %d in the window %d to %d", ErrOrder, v.id, doc.Seqno, v.high,
			w.Start, w.End)
	case !doc.Deleted && doc.Collection != SystemCollection && v.fullLocked(doc.memory()): // others free memory
		return nil, ErrNoMemory
	}
	// A window whose write failed and was taken back is written again.
	if failures := v.bucket.commit.failures.Load(); w != v.window || failures != v.windowAt {
		if _, err := v.bucket.commit.appendCopy(func(dst []byte) []byte { return appendWindow(dst, v.id, w) }); err != nil {
			return nil, err
		}
		v.window, v.windowAt = w, failures
	}
	prev := v.docs[doc.id()]
	t, err := v.bucket.commit.appendDoc(v, doc, prev)
	if err != nil {
		return nil, err
	}
	v.high, v.maxCas = doc.Seqno, max(v.maxCas, doc.Cas)
	v.installLocked(doc, prev)
	v.bucket.stats.Replicated.Add(1)
	return t, nil
}

// Replicating returns a function that waits for all versions passed to Replicate from now on, of any vbucket; last is
// the last ticket. On an error (ErrTemporary) some of them may have been taken back, possibly before others that are
// stored.
func (b *Bucket) Replicating() (stored func(last *Ticket) error) { return b.commit.since() }

// RaisePurge records that the copy from which the replica was filled had purged tombstones up to seqno.
func (v *VBucket) RaisePurge(seqno uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != Replica || seqno <= v.purge {
		return nil
	}
	if err := v.steadyLocked(); err != nil {
		return err
	}
	v.purge = seqno
	_, err := v.saveLocked()
	return err
}

// steadyLocked returns ErrTemporary while Reset is in progress. It protects against another state of the vbucket, and
// against records written after the one that voids everything before.
func (v *VBucket) steadyLocked() error {
	if v.resetting {
		return fmt.Errorf("vbucket %d is being emptied: %w", v.id, ErrTemporary)
	}
	return nil
}

// Reset empties a vbucket that is not active: no documents, no history, seqno 0. Meanwhile new versions and other
// states are refused.
func (v *VBucket) Reset() error {
	v.mu.Lock()
	err := v.steadyLocked()
	switch {
	case v.state == Active:
		err = fmt.Errorf("vbucket %d is active and cannot be emptied", v.id)
	case err == nil && (v.high > 0 || len(v.docs) > 0):
		v.resetting = true
		v.mu.Unlock()
		err = v.voidLog()
		v.mu.Lock()
		if v.resetting = false; err == nil {
			err = v.emptyLocked()
		}
	}
	v.mu.Unlock()
	return err
}

// voidLog voids the vbucket's records in the log.
func (v *VBucket) voidLog() error {
	if err := v.bucket.commit.current().Wait(); err != nil { // records on their way are written before
		return err
	}
	t, err := v.bucket.commit.appendCopy(func(dst []byte) []byte { return appendReset(dst, v.id) })
	if err != nil {
		return err
	}
	return t.Wait()
}

// emptyLocked does the part of Reset in memory.
func (v *VBucket) emptyLocked() error {
	for _, d := range v.docs {
		v.countLocked(d, -1)
	}
	v.docs, v.list, v.stale, v.staleBytes, v.expiries = map[docID]*Doc{}, nil, 0, 0, nil
	v.collections = newCollections()
	v.high, v.written, v.purge, v.maxCas, v.window = 0, 0, 0, 0, SnapshotRange{}
	v.failover = nil
	v.life++
	v.branchLocked(v.bucket.newUUID(), 0)
	v.bucket.stats.Resets.Add(1)
	v.notifyLocked()
	_, err := v.saveLocked()
	return err
}

// forever is a time in unix seconds that no clock reaches.
const forever = 1 << 40

func (v *VBucket) sealedLocked(now time.Time) bool { return now.Before(v.sealed) }

// Seal makes an active vbucket refuse writes for d, after everything written so far is in the log, and returns its
// high seqno. A held seal (HoldSeal) is not changed. Errors wrap ErrNotMyVBucket or ErrTemporary.
func (v *VBucket) Seal(d time.Duration) (uint64, error) {
	v.mu.Lock()
	if v.state != Active {
		v.mu.Unlock()
		return 0, fmt.Errorf("%w: vbucket %d is %s", ErrNotMyVBucket, v.id, v.state)
	}
	if !v.heldLocked() {
		v.sealed = v.bucket.now().Add(d)
	}
	v.mu.Unlock()
	err := v.bucket.commit.current().Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.high, err
}

// HoldSeal makes a seal last until ReleaseSeal or a change of state, if it is intact: nothing was written beyond
// seqno high.
func (v *VBucket) HoldSeal(high uint64) error {
	now := v.bucket.now()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != Active || !v.sealedLocked(now) || v.high != high || v.written != high {
		return fmt.Errorf("%w: vbucket %d is %s at %d, wanted %d", ErrSealBroken, v.id, v.state, v.high, high)
	}
	v.sealed = time.Unix(forever, 0)
	return nil
}

// Unseal makes a vbucket accept writes again, unless its seal is held: then the vbucket is about to be given up,
// although the requester may believe that the takeover has failed.
func (v *VBucket) Unseal() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.heldLocked() {
		v.sealed = time.Time{}
	}
}

// ReleaseSeal makes a vbucket with a held seal accept writes again.
func (v *VBucket) ReleaseSeal() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sealed = time.Time{}
}

func (v *VBucket) heldLocked() bool { return v.sealed.Equal(time.Unix(forever, 0)) }
