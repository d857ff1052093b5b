package consensus

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// ErrContradicted is wrapped when a leader lacks what was committed here: managers have lost what they had stored.
var ErrContradicted = errors.New("the leader's log contradicts this manager's")

// contradictedKey stores the contradiction until a recovery makes this node's history the cluster's.
var contradictedKey = []byte("tidemark-contradicted")

// contradictions holds the first call of a leader that this node has refused to follow.
type contradictions struct {
	claimed atomic.Bool // by the goroutine that stores it: calls are checked in several
	found   atomic.Pointer[error]
	ended   chan error // one slot, for Run
}

// contradicts returns why a leader's call is not passed on to Raft: it would replace an entry that was committed here.
// No Raft leader does that unless a server of its majority has lost what it had stored, for example because that was
// started on an older copy of its folder. The library would replace the entry although the state has applied it, and
// the state would silently diverge from that of the other managers.
//
// More may be committed before Raft comes to the call. So Raft is checked again where it would do it, in the goroutine
// that commits: removable, and snapshots.Create. Here it is seen before Raft takes over the leader's term.
func (st *storage) contradicts(command any) error {
	if err := st.contradictions.found.Load(); err != nil {
		return *err
	}
	switch c := command.(type) {
	case *raft.AppendEntriesRequest:
		if at := st.fork(c); at.index > 0 && st.follows(c.Term) {
			return st.refuseFork(string(c.ID), c.Term, at)
		}
		for _, e := range c.Entries {
			if ours := st.instead(position{e.Index, e.Term}); ours.index > 0 && st.follows(c.Term) {
				return st.refuse(string(c.ID), c.Term, position{e.Index, e.Term}, ours)
			}
		}
	case *raft.InstallSnapshotRequest:
		end := position{c.LastLogIndex, c.LastLogTerm}
		if st.forkedAt(end, markInCall(c.Leader)) && st.follows(c.Term) {
			return st.refuseFork(string(c.ID), c.Term, end)
		}
		if ours := st.instead(end); ours.index > 0 && st.follows(c.Term) {
			return st.refuse(string(c.ID), c.Term, end, ours)
		}
	}
	return nil
}

// fork returns an entry that a call says to be in the leader's log, and that follows other entries there, or has other
// contents, than the one of the same index and term in this log; index 0: there is none for certain. Raft takes the two
// for one entry. The logs are different whether or not the entry is committed here: the library cannot replace it.
//
// An entry that an earlier call is about to store is compared when Raft stores it (recorder.stamp).
func (st *storage) fork(c *raft.AppendEntriesRequest) position {
	before := position{c.PrevLogEntry, c.PrevLogTerm}
	if st.forkedAt(before, markInCall(c.Leader)) { //nolint:staticcheck // unused by the library's version 3 (marks.go)
		return before
	}
	last := st.raft.LastIndex()
	for _, e := range c.Entries {
		if at := (position{e.Index, e.Term}); at.index <= last && st.forkedAt(at, decodeMark(e.Extensions)) {
			return at
		}
	}
	return position{}
}

// follows reports whether Raft would follow a leader of this term; it refuses the calls of a deposed one. It has to be
// called after instead: Raft takes over a term before it commits anything of that term, so that what the next leader
// has committed in between is never held against a late call of its predecessor.
func (st *storage) follows(term uint64) bool { return term >= st.raft.CurrentTerm() }

// instead returns an entry that was committed here and cannot be in the log of a leader that has theirs; index 0: there
// is none for certain. Of entries that are only in the state snapshot, or come after all that this server has, only one
// thing is certain: terms do not fall along a log.
func (st *storage) instead(theirs position) position {
	for _, ours := range [...]position{st.store.committed.end(), st.snaps.end()} {
		if !together(ours, theirs) {
			return ours
		}
	}
	var own raft.Log
	if theirs.index > st.known() || st.logs.GetLog(theirs.index, &own) != nil || own.Term == theirs.term {
		return position{}
	}
	return position{own.Index, own.Term}
}

// together reports whether one log may have both entries. An entry with index 0 is none.
func together(a, b position) bool {
	if a.index > b.index {
		a, b = b, a
	}
	return a.index == 0 || a.term == b.term || a.term < b.term && a.index < b.index
}

// known returns the index of the newest entry that this server has seen committed. The log has no other entry up to it.
func (st *storage) known() uint64 {
	index := max(st.store.committed.end().index, st.snaps.end().index)
	if r := st.started.Load(); r != nil {
		index = max(index, r.CommitIndex())
	}
	return index
}

// noteCommitted notes the newest committed entry, also one that Raft does not pass to the state machine: a change of
// members, or the first of a term.
func (st *storage) noteCommitted(by int) {
	var l raft.Log
	if index := st.known(); st.logs.GetLog(index, &l) == nil { // otherwise it is the end of the state snapshot
		st.store.committed.note(by, position{l.Index, l.Term})
	}
}

// removable returns why Raft may not remove log entries: one of them was committed here, and is in no state snapshot.
// The end of the log is what Raft removes to make room for a leader's entries; it does so in the goroutine that
// advances its commit index, so nothing is committed between this check and the removal.
func (st *storage) removable(low, high uint64) error {
	first, err := st.store.FirstIndex()
	if err != nil {
		return err
	}
	if low <= first { // from the first on it may be what a state snapshot has
		low = max(low, st.snaps.placed.Load().index+1)
	}
	if low > min(high, st.known()) {
		return nil
	}
	var own raft.Log
	if err := st.logs.GetLog(low, &own); errors.Is(err, raft.ErrLogNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	return st.refuseLeader(position{low, 0}, position{low, own.Term})
}

// replaced returns why a state snapshot is not taken from a leader: it stands for another history.
func (st *storage) replaced(end position) error {
	if ours := st.instead(end); ours.index > 0 {
		return st.refuseLeader(end, ours)
	}
	return nil
}

// refuseLeader refuses what Raft's present leader wants.
func (st *storage) refuseLeader(theirs, ours position) error {
	leader, term := st.presentLeader()
	return st.refuse(leader, term, theirs, ours)
}

// forked refuses an entry of Raft's present leader that continues another log than this one.
func (st *storage) forked(at position) error {
	leader, term := st.presentLeader()
	return st.refuseFork(leader, term, at)
}

func (st *storage) presentLeader() (id string, term uint64) {
	if r := st.started.Load(); r != nil {
		_, id := r.LeaderWithID()
		return string(id), r.CurrentTerm()
	}
	return "the leader", 0
}

// refuse stores that a leader contradicts what was committed here, and ends Run. theirs has term 0 if the
// call does not have it.
func (st *storage) refuse(leader string, term uint64, theirs, ours position) error {
	what := fmt.Sprintf("%s leads in term %d and has ", leader, term)
	if theirs.term == 0 {
		what += fmt.Sprintf("another entry at %d of its log, ", theirs.index)
	} else {
		what += fmt.Sprintf("an entry of term %d at %d of its log, ", theirs.term, theirs.index)
	}
	if ours.index == theirs.index {
		what += fmt.Sprintf("where one of term %d was committed here", ours.term)
	} else {
		what += fmt.Sprintf("and so not entry %d of term %d, which was committed here", ours.index, ours.term)
	}
	return st.contradicted(what)
}

// refuseFork is refuse for a leader whose log up to an entry is another one than this, though its terms are the same.
func (st *storage) refuseFork(leader string, term uint64, at position) error {
	return st.contradicted(fmt.Sprintf("%s leads in term %d, and up to entry %d of term %d its log has other entries "+
		"than those stored here: two managers have led in one term", leader, term, at.index, at.term))
}

// contradicted stores a contradiction, and ends Run.
func (st *storage) contradicted(what string) error {
	err := st.contradictedError(what)
	if !st.contradictions.claimed.CompareAndSwap(false, true) {
		return err
	}
	if stored := st.store.Set(contradictedKey, []byte(err.Error())); stored != nil {
		err = fmt.Errorf("%w (this could not be recorded in %s: keep this manager stopped: %w)", err, st.cfg.Dir, stored)
	}
	st.contradictions.found.Store(&err)
	st.contradictions.ended <- err
	return err
}

func (st *storage) contradictedError(what string) error {
	return fmt.Errorf("%w: %s: managers that had stored the entry have lost it, for example by a start on an older copy "+
		"of their folder. Only %s has all earlier writes: see \"A manager on an older copy of its folder\" in "+
		"docs/operations.md; to discard them, delete the folder, and this manager joins as a new one",
		ErrContradicted, what, st.cfg.Dir)
}

// checkContradicted returns the contradiction that was stored by an earlier process.
func (st *storage) checkContradicted() error {
	found, err := st.stored(contradictedKey)
	if err == nil && found != "" {
		err = fmt.Errorf("%w%s", ErrContradicted, found[min(len(found), len(ErrContradicted.Error())):])
	}
	return err
}
