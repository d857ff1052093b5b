package consensus

import (
	"sync"

	"github.com/hashicorp/raft"
)

// incoming passes calls of other servers on to Raft. A leader's entries that continue this node's state snapshot are
// not asked for their predecessor: the snapshot stands for it. The library looks for it in the log as soon as that goes
// as far as the snapshot, and a log that begins behind its snapshot lacks it, or ends in an entry of another term that
// nobody wanted. It then refuses, without the pause that other refusals have; the leader goes back to before its own
// log, sends its snapshot once more, and so on without an end and without a pause (raft#697).
//
// And a leader's commit index counts as far as its entries go, as the Raft paper has it (figure 2). The library takes
// it as far as this log goes, whose end may be entries that nobody wanted: a call without entries, made just before
// the leader committed others in their place, would have them applied here.
type incoming struct {
	calls chan raft.RPC
	end   sync.Once
	ended chan struct{}
}

// pass runs until close. covers reports whether the state of this node, with its snapshot, ends in an entry.
func (in *incoming) pass(from <-chan raft.RPC, covers func(position) bool) {
	for {
		select {
		case call := <-from:
			if a, ok := call.Command.(*raft.AppendEntriesRequest); ok {
				amend(a, covers)
			}
			select {
			case in.calls <- call:
			case <-in.ended:
				return
			}
		case <-in.ended:
			return
		}
	}
}

// amend changes a call to what the library takes in the right way.
func amend(a *raft.AppendEntriesRequest, covers func(position) bool) {
	a.LeaderCommitIndex = min(a.LeaderCommitIndex, a.PrevLogEntry+uint64(len(a.Entries)))
	if a.PrevLogEntry > 0 && covers(position{a.PrevLogEntry, a.PrevLogTerm}) {
		a.PrevLogEntry, a.PrevLogTerm = 0, 0 // nothing comes before: the library looks for nothing
	}
}

func (in *incoming) close() { in.end.Do(func() { close(in.ended) }) }
