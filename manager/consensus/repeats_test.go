package consensus

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestRepeats: a follower hears entries, commits and terms at once, and that there is nothing new twenty times a
// second; it heard that a hundred and thirty times a second, which was half of what an idle follower did.
func TestRepeats(t *testing.T) {
	began := time.Now()
	entries := []*raft.Log{{Index: 7}}
	var l saidLast
	for _, c := range []struct {
		name         string
		after        time.Duration
		term, commit uint64
		entries      []*raft.Log
		want         bool
	}{
		{"the first", 0, 1, 6, nil, false},
		{"nothing new", 5 * time.Millisecond, 1, 6, nil, true},
		{"entries", 6 * time.Millisecond, 1, 6, entries, false},
		{"nothing since the entries", 7 * time.Millisecond, 1, 6, nil, true},
		{"they are committed", 8 * time.Millisecond, 1, 7, nil, false},
		{"nothing since", 57 * time.Millisecond, 1, 7, nil, true},
		{"nothing for long", 58 * time.Millisecond, 1, 7, nil, false},
		{"a new term", 59 * time.Millisecond, 2, 7, nil, false},
		{"nothing new in it", 108 * time.Millisecond, 2, 7, nil, true},
	} {
		args := &raft.AppendEntriesRequest{Term: c.term, LeaderCommitIndex: c.commit, Entries: c.entries}
		if got := l.repeats(args, began.Add(c.after)); got != c.want {
			t.Errorf("%s: repeats %t, want %t", c.name, got, c.want)
		}
	}
}
