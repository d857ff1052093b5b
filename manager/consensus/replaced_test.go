package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestCompatibleEntries checks which two entries one log may have.
func TestCompatibleEntries(t *testing.T) {
	for _, tc := range []struct {
		a, b position
		want bool
	}{
		{position{}, position{7, 3}, true},
		{position{7, 3}, position{7, 3}, true},
		{position{7, 3}, position{7, 4}, false},
		{position{7, 3}, position{9, 3}, true},
		{position{7, 3}, position{9, 4}, true},
		{position{7, 3}, position{9, 2}, false},
	} {
		if got := together(tc.a, tc.b); got != tc.want || together(tc.b, tc.a) != tc.want {
			t.Errorf("%+v and %+v: %v", tc.a, tc.b, got)
		}
	}
}

// call passes a call to Raft as one that was checked before: what it contradicts has been committed since, while the
// process was stopped.
func call(t *testing.T, n *Node, command any, content io.Reader) raft.RPCResponse {
	t.Helper()
	answer := make(chan raft.RPCResponse, 1)
	n.trans.in.calls <- raft.RPC{Command: command, Reader: content, RespChan: answer}
	return <-answer
}

// contradicted checks that Run would end, and that no call is passed on any more.
func contradicted(t *testing.T, n *Node, names string) {
	t.Helper()
	select {
	case err := <-n.contradictions.ended:
		if !errors.Is(err, ErrContradicted) || !strings.Contains(err.Error(), names) ||
			!strings.Contains(err.Error(), n.cfg.Dir) {
			t.Errorf("it ends with %v, want %s", err, names)
		}
	default:
		t.Fatal("it does not end")
	}
	if err := n.contradicts(&raft.RequestVoteRequest{}); !errors.Is(err, ErrContradicted) {
		t.Errorf("calls are still passed on: %v", err)
	}
	if err := n.checkContradicted(); !errors.Is(err, ErrContradicted) {
		t.Errorf("it would start again: %v", err)
	}
}

// begun returns a leader of three entries, which elects itself no more, and the last of them.
func begun(t *testing.T) (*Node, position) {
	t.Helper()
	n := led(t, t.TempDir())
	var last reign
	for range 3 {
		var err error
		if last, err = n.beginTerm(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	never := n.raft.ReloadableConfig() // it must not elect itself between two calls of the test
	never.HeartbeatTimeout, never.ElectionTimeout = time.Hour, time.Hour
	if err := n.raft.ReloadConfig(never); err != nil {
		t.Fatal(err)
	}
	return n, position{last.began, last.term}
}

// TestCallOfAnotherLogIsRefused checks that each kind of call is refused that has another mark than this log has at the
// same index and term, and no other call: one with the mark of this log, one whose mark says nothing, one of a deposed
// leader.
func TestCallOfAnotherLogIsRefused(t *testing.T) {
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("m2-00000000")}
	for _, tc := range []struct {
		name string
		call func(term uint64, end position, m mark) any
	}{
		{"a state snapshot", func(term uint64, end position, m mark) any {
			return &raft.InstallSnapshotRequest{RPCHeader: header, Term: term, LastLogIndex: end.index, LastLogTerm: end.term,
				Leader: m.toCall()}
		}},
		{"the entry before", func(term uint64, end position, m mark) any {
			return &raft.AppendEntriesRequest{RPCHeader: header, Term: term, PrevLogEntry: end.index, PrevLogTerm: end.term,
				Leader: m.toCall()} //nolint:staticcheck // see marks.go
		}},
		{"an entry that is stored", func(term uint64, end position, m mark) any {
			return &raft.AppendEntriesRequest{RPCHeader: header, Term: term, PrevLogEntry: end.index - 1,
				PrevLogTerm: end.term, Entries: []*raft.Log{{Index: end.index, Term: end.term, Extensions: m.encode()}}}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, end := begun(t)
			own, term := n.markAt(end), end.term+1
			if own.lineage == 0 {
				t.Fatalf("the entry at %+v has no mark", end)
			}
			other := mark{own.lineage, own.sum + 1}
			for what, c := range map[string]any{
				"of this log":             tc.call(term, end, own),
				"whose mark says nothing": tc.call(term, end, mark{own.lineage + 2, other.sum}),
				"of a deposed leader":     tc.call(end.term-1, end, other),
			} {
				if err := n.contradicts(c); err != nil {
					t.Errorf("a call %s: %v", what, err)
				}
			}
			if err := n.contradicts(tc.call(term, end, other)); !errors.Is(err, ErrContradicted) {
				t.Errorf("a call of another log: %v", err)
			}
			contradicted(t, n, fmt.Sprintf("m2-00000000 leads in term %d, and up to entry %d of term %d its log has other "+
				"entries", term, end.index, end.term))
		})
	}
}

// TestLateCallReplacesNothingCommitted checks that a leader's call that was checked before what it contradicts was
// committed replaces nothing: no entry in the log, nor the state.
func TestLateCallReplacesNothingCommitted(t *testing.T) {
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("m2-00000000"),
		Addr: []byte("127.0.0.1:1")}
	t.Run("entries", func(t *testing.T) {
		n, end := begun(t)
		term := end.term + 1
		r := call(t, n, &raft.AppendEntriesRequest{RPCHeader: header, Term: term, PrevLogEntry: end.index - 1,
			PrevLogTerm: end.term, LeaderCommitIndex: end.index,
			Entries: []*raft.Log{{Index: end.index, Term: term, Type: raft.LogNoop}}}, nil)
		if a, ok := r.Response.(*raft.AppendEntriesResponse); !ok || a.Success {
			t.Errorf("answered %+v, %v", r.Response, r.Error)
		}
		var l raft.Log
		if err := n.logs.GetLog(end.index, &l); err != nil || l.Term != end.term {
			t.Errorf("the log has %+v, %v at %d", l, err, end.index)
		}
		contradicted(t, n, fmt.Sprintf("m2-00000000 leads in term %d and has another entry at %d of its log, where one of "+
			"term %d was committed here", term, end.index, end.term))
	})
	t.Run("a state snapshot", func(t *testing.T) {
		n, end := begun(t)
		cas := n.State().CAS()
		var state bytes.Buffer
		state.WriteString("never read")
		r := call(t, n, &raft.InstallSnapshotRequest{RPCHeader: header, SnapshotVersion: raft.SnapshotVersionMax,
			Term: end.term + 1, LastLogIndex: end.index + 5, LastLogTerm: end.term - 1, Size: int64(state.Len()),
			Configuration: raft.EncodeConfiguration(raft.Configuration{}), ConfigurationIndex: 1}, &state)
		if r.Error == nil || n.State().CAS() != cas {
			t.Errorf("answered %+v, %v", r.Response, r.Error)
		}
		contradicted(t, n, fmt.Sprintf("and so not entry %d of term %d", end.index, end.term))
	})
	t.Run("uncommitted entries", func(t *testing.T) {
		n, end := begun(t)
		replace := func(term uint64) bool {
			r := call(t, n, &raft.AppendEntriesRequest{RPCHeader: header, Term: term, PrevLogEntry: end.index,
				PrevLogTerm: end.term, Entries: []*raft.Log{{Index: end.index + 1, Term: term, Type: raft.LogNoop}}}, nil)
			a, ok := r.Response.(*raft.AppendEntriesResponse)
			return ok && a.Success
		}
		if !replace(end.term+1) || !replace(end.term+2) {
			t.Error("what was not committed is not replaced")
		}
	})
}

// gatedLog is a log that waits once when an entry is read.
type gatedLog struct {
	raft.LogStore
	at      uint64 // index of the entry; 0: none
	in, out chan struct{}
}

func (g *gatedLog) GetLog(i uint64, l *raft.Log) error {
	if i == g.at {
		g.in <- struct{}{}
		<-g.out
	}
	return g.LogStore.GetLog(i, l)
}

// TestADeposedLeadersLateCall checks that a call of a leader is not refused as a contradiction if its successor has
// replaced that leader's entries, and committed its own, while the call was being checked.
func TestADeposedLeadersLateCall(t *testing.T) {
	n, end := begun(t)
	appends := func(leader string, term, committed uint64, entries ...*raft.Log) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax,
			ID: []byte(leader + "-00000000"), Addr: []byte("127.0.0.1:1")}, Term: term, LeaderCommitIndex: committed,
			PrevLogEntry: entries[0].Index - 1, PrevLogTerm: end.term, Entries: entries}
	}
	first := func(term uint64) *raft.Log { return &raft.Log{Index: end.index + 1, Term: term, Type: raft.LogNoop} }
	old := end.term + 1
	call(t, n, appends("m2", old, 0, first(old)), nil)

	// The call comes again on another connection, with an entry before it, and is checked ...
	g := &gatedLog{n.storage.logs, end.index, make(chan struct{}), make(chan struct{})}
	n.storage.logs = g
	checked := make(chan error, 1)
	go func() {
		checked <- n.contradicts(appends("m2", old, 0, &raft.Log{Index: end.index, Term: end.term}, first(old)))
	}()
	<-g.in
	// ... while Raft processes a call of the next leader, which has committed another entry.
	r := call(t, n, appends("m3", old+1, end.index+1, first(old+1)), nil)
	if a, is := r.Response.(*raft.AppendEntriesResponse); !is || !a.Success || r.Error != nil {
		t.Fatalf("the next leader's call: %+v, %v", r.Response, r.Error)
	}
	close(g.out)
	if err := <-checked; err != nil {
		t.Errorf("the late call of a deposed leader ends the node: %v", err)
	}
	g.at = 0
}
