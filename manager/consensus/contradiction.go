package consensus

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// ErrContradicted is wrapped when a leader lacks what was committed here: managers have lost what they had stored.
var ErrContradicted = errors.New("the leader's history is not this manager's")

// contradictedKey stores the contradiction until a recovery makes this node's history the cluster's. The node knows
// what it has committed only while it runs: after a restart it would follow the leader, and lose what was acknowledged.
var contradictedKey = []byte("tidemark-contradicted")

// contradictions holds the first call of a leader that this node has refused to follow.
type contradictions struct {
	found atomic.Pointer[error]
	ended chan error // one slot, for Run
}

// contradicts returns why a leader's call is not passed on to Raft: it would replace an entry that was committed here.
// No Raft leader does that unless a server of its majority has lost what it had stored, for example because that was
// started on an older copy of its folder. The library would replace the entry although the state has applied it, and
// the state would silently diverge from that of the other managers.
func (st *storage) contradicts(command any) error {
	if err := st.contradictions.found.Load(); err != nil {
		return *err
	}
	switch c := command.(type) {
	case *raft.AppendEntriesRequest:
		for _, e := range c.Entries {
			if err := st.compare(c.Term, c.ID, e.Index, e.Term); err != nil {
				return err
			}
		}
	case *raft.InstallSnapshotRequest:
		return st.compare(c.Term, c.ID, c.LastLogIndex, c.LastLogTerm)
	}
	return nil
}

// compare compares one entry of a leader with the committed entry at the same index.
func (st *storage) compare(term uint64, leader []byte, index, theirs uint64) error {
	if index > st.raft.CommitIndex() || term < st.raft.CurrentTerm() { // Raft refuses a deposed leader
		return nil
	}
	var own raft.Log
	if err := st.logs.GetLog(index, &own); err != nil || own.Term == theirs { // usually it is only in the state snapshot
		return nil
	}
	err := st.contradictedError(fmt.Sprintf("%s leads in term %d and has an entry of term %d at %d of its log, where one "+
		"of term %d was committed here", leader, term, theirs, index, own.Term))
	if stored := st.store.Set(contradictedKey, []byte(err.Error())); stored != nil {
		err = fmt.Errorf("%w (that could not be noted in %s: keep it stopped: %w)", err, st.cfg.Dir, stored)
	}
	st.contradictions.found.Store(&err)
	st.contradictions.ended <- err
	return err
}

func (st *storage) contradictedError(what string) error {
	return fmt.Errorf("%w: %s: managers that had stored it have lost it, as one does that is started on an older copy of "+
		"its folder. What was written before is whole in %s and nowhere else: see \"A manager on an older copy of its "+
		"folder\" in docs/operations.md; to give that up, delete the folder, and this manager joins as a new one",
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
