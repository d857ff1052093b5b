package consensus

import (
	"testing"

	"github.com/hashicorp/raft"
)

// TestAmendedCalls: entries that continue the snapshot have no predecessor for the library, others keep theirs, and
// no call commits more than it has shown to be in the leader's log.
func TestAmendedCalls(t *testing.T) {
	end := position{index: 900, term: 4}
	for _, tc := range []struct {
		name       string
		prev       position
		entries    int
		commit     uint64
		wantPrev   position
		wantCommit uint64
	}{
		{"behind the snapshot", end, 3, 903, position{}, 903},
		{"behind the snapshot, more is committed", end, 3, 950, position{}, 903},
		{"behind the snapshot, none yet", end, 0, 901, position{}, 900},
		{"another term there", position{900, 3}, 1, 900, position{900, 3}, 900},
		{"elsewhere", position{905, 4}, 2, 906, position{905, 4}, 906},
		{"elsewhere, committed meanwhile", position{905, 4}, 0, 909, position{905, 4}, 905},
		{"from the first on", position{}, 2, 9, position{}, 2},
		{"a heartbeat", position{}, 0, 0, position{}, 0},
	} {
		a := &raft.AppendEntriesRequest{PrevLogEntry: tc.prev.index, PrevLogTerm: tc.prev.term,
			LeaderCommitIndex: tc.commit, Entries: make([]*raft.Log, tc.entries)}
		amend(a, func(p position) bool { return p == end })
		if got := (position{a.PrevLogEntry, a.PrevLogTerm}); got != tc.wantPrev || a.LeaderCommitIndex != tc.wantCommit {
			t.Errorf("%s: after %+v, commit index %d; want %+v and %d", tc.name, got, a.LeaderCommitIndex, tc.wantPrev,
				tc.wantCommit)
		}
	}
}
