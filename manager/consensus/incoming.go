package consensus

import (
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// incoming passes calls of other servers on to Raft, and corrects two defects of the library.
//
// If a leader's entries continue this node's state snapshot, their predecessor is not checked: the snapshot stands
// for it. Once the log reaches as far as the snapshot, the library looks for the predecessor in the log; but a log
// that begins after its snapshot lacks it, or has an uncommitted entry of another term in its place. The library then
// refuses, without the pause of other refusals; the leader goes back to before its own log, sends its snapshot again,
// and so on in an endless loop without a pause (raft#697).
//
// A leader's commit index counts only up to the entries of the call, as in the Raft paper (figure 2). The library
// counts it up to the end of this log, whose last entries may be uncommitted ones of another leader: a call without
// entries, made just before the leader commits others in their place, would apply them here.
type incoming struct {
	calls chan raft.RPC
	end   sync.Once
	ended chan struct{}
}

// pass passes calls on until close, and returns when those that it has refused are answered. covers reports whether
// this node's state, with its snapshot, ends at a position; contradicts returns why a call is refused. That is answered
// in a goroutine of its own: the caller may send a state snapshot slowly, or stop. There is one for each connection at
// the most, which are limited (places.go), and it ends with the connection.
func (in *incoming) pass(from <-chan raft.RPC, covers func(position) bool, contradicts func(command any) error) {
	var refusing sync.WaitGroup
	defer refusing.Wait()
	for {
		select {
		case call := <-from:
			if err := contradicts(call.Command); err != nil {
				refusing.Go(func() { refuse(call, err) })
				continue
			}
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

// refuse answers a call with an error. The content of a state snapshot is read first, as Raft does: the caller reads no
// answer before it has sent everything, and the connection would be closed on what is left of it. It ends with the
// content or, when the caller stops sending, with the connection.
func refuse(call raft.RPC, why error) {
	if call.Reader != nil {
		_, _ = io.Copy(io.Discard, call.Reader) // who has not sent everything reads no answer
	}
	call.Respond(nil, why)
}

// amend corrects a call before the library sees it.
func amend(a *raft.AppendEntriesRequest, covers func(position) bool) {
	a.LeaderCommitIndex = min(a.LeaderCommitIndex, a.PrevLogEntry+uint64(len(a.Entries)))
	if a.PrevLogEntry > 0 && covers(position{a.PrevLogEntry, a.PrevLogTerm}) {
		a.PrevLogEntry, a.PrevLogTerm = 0, 0 // 0: no predecessor, the library checks none
	}
}

func (in *incoming) close() { in.end.Do(func() { close(in.ended) }) }
