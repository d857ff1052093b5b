package consensus

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestRepeats: a follower gets entries, commits and terms at once, and calls without news four times a second;
// before, it got a hundred and thirty of them a second, half of an idle follower's work.
func TestRepeats(t *testing.T) {
	began := time.Now()
	entries := []*raft.Log{{Index: 7}}
	var l lastCall
	for _, c := range []struct {
		name         string
		after        time.Duration
		term, commit uint64
		entries      []*raft.Log
		want         time.Duration // how long the call may be skipped
	}{
		{"the first", 0, 1, 6, nil, 0},
		{"nothing new", 5 * time.Millisecond, 1, 6, nil, 245 * time.Millisecond},
		{"entries", 6 * time.Millisecond, 1, 6, entries, 0},
		{"nothing since the entries", 7 * time.Millisecond, 1, 6, nil, 249 * time.Millisecond},
		{"they are committed", 8 * time.Millisecond, 1, 7, nil, 0},
		{"nothing since", 257 * time.Millisecond, 1, 7, nil, time.Millisecond},
		{"nothing for long", 258 * time.Millisecond, 1, 7, nil, 0},
		{"a new term", 259 * time.Millisecond, 2, 7, nil, 0},
		{"nothing new in it", 508 * time.Millisecond, 2, 7, nil, time.Millisecond},
	} {
		args := &raft.AppendEntriesRequest{Term: c.term, LeaderCommitIndex: c.commit, Entries: c.entries}
		if got := l.repeats(args, began.Add(c.after)); got != c.want {
			t.Errorf("%s: repeats for %v, want %v", c.name, got, c.want)
		}
	}
}

// TestRestsEnd: a loop without news pauses until a repeat is due or an event occurs; shortly after an event no loop
// pauses.
func TestRestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := newActivity(), time.Now()
		is := func(what string, want time.Duration) {
			t.Helper()
			if at := time.Since(began); at != want {
				t.Errorf("%s at %v, want %v", what, at, want)
			}
		}
		s.pause(repeatPause)
		is("nothing has stirred", repeatPause)
		go func() {
			time.Sleep(10 * time.Millisecond)
			s.signal()
		}()
		s.pause(repeatPause)
		is("something has", repeatPause+10*time.Millisecond)
		s.pause(repeatPause)
		is("and no loop rests", repeatPause+10*time.Millisecond)
		time.Sleep(awakeFor)
		s.pause(repeatPause)
		is("some loop rests again", 2*repeatPause+10*time.Millisecond+awakeFor)
	})
}
