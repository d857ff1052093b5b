package indexer

import (
	"testing"
	"time"
)

// TestSatisfiedWantsForgetFailures: a vbucket whose side streams have all come is asked for at once, and of its owner,
// when something new is wanted; one that still wants or streams keeps its pause, and so does another bucket's.
func TestSatisfiedWantsForgetFailures(t *testing.T) {
	later := time.Unix(1000, 0)
	l := &sideLoop{state: map[sideKey]*sideAttempt{
		{"b", 1}: {tries: 3, waits: 6, after: later}, {"b", 2}: {tries: 1, waits: 4, after: later},
		{"other", 1}: {tries: 2, waits: 5, after: later},
	}}
	l.satisfied("b", map[int]bool{2: true})
	for key, want := range map[sideKey]sideAttempt{
		{"b", 1}: {}, {"b", 2}: {tries: 1, waits: 4, after: later}, {"other", 1}: {tries: 2, waits: 5, after: later},
	} {
		if got := *l.state[key]; got != want {
			t.Errorf("%v: %+v, want %+v", key, got, want)
		}
	}
}
