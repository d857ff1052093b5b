package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"tidemark/fsm"
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

// TestARefusedSnapshotIsAnswered: a leader whose state snapshot is refused learns why, however long the snapshot is.
func TestARefusedSnapshotIsAnswered(t *testing.T) {
	n, other := led(t, t.TempDir()), newSender(t)
	end := other.joins(t, n)
	state := make([]byte, 32<<20) // more than the sockets hold
	err := other.sends(n, end.term+1, position{end.index, end.term + 1}, state)
	if err == nil || !strings.Contains(err.Error(), ErrContradicted.Error()) {
		t.Errorf("its leader gets %v", err)
	}
	contradicted(t, n, fmt.Sprintf("an entry of term %d at %d of its log", end.term+1, end.index))
}

// TestSnapshotOfAnotherLogIsRefused checks that a leader sends the mark of a state snapshot's end, by which a log that
// has other entries of the same terms is told apart.
func TestSnapshotOfAnotherLogIsRefused(t *testing.T) {
	n, other := led(t, t.TempDir()), newSender(t)
	end := other.joins(t, n)
	for i := uint64(1); i <= end.index; i++ { // the two logs begin alike
		var l raft.Log
		if err := n.logs.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		if i > 1 {
			l = raft.Log{Index: i, Term: l.Term, Data: []byte("another")}
		}
		if err := other.logs.StoreLog(&l); err != nil {
			t.Fatal(err)
		}
	}
	err := other.sends(n, end.term+1, end, []byte("never read"))
	if err == nil || !strings.Contains(err.Error(), ErrContradicted.Error()) {
		t.Errorf("its leader gets %v", err)
	}
	contradicted(t, n, fmt.Sprintf("up to entry %d of term %d its log has other entries", end.index, end.term))
}

// sender is a server without a log, which sends calls as if it led.
type sender struct{ *Node }

// newSender opens a sender.
func newSender(t *testing.T) sender {
	t.Helper()
	n, err := Open(Config{Name: "m2", Dir: t.TempDir(), RaftAddr: "127.0.0.1:0"},
		fsm.New(hclog.NewNullLogger(), func(error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return sender{n}
}

// joins makes a server a member of n's cluster, so that n talks to it. It returns the end of n's log.
func (s sender) joins(t *testing.T, n *Node) position {
	t.Helper()
	if err := n.AddNonvoter(t.Context(), Server{ID: s.ID(), Raft: "127.0.0.1:1"}, nil); err != nil {
		t.Fatal(err)
	}
	r, err := n.beginTerm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return position{r.began, r.term}
}

// sends sends a state snapshot that ends at end.
func (s sender) sends(n *Node, term uint64, end position, state []byte) error {
	var answer raft.InstallSnapshotResponse
	return s.trans.InstallSnapshot(raft.ServerID(n.ID()), raft.ServerAddress(n.Addr()), &raft.InstallSnapshotRequest{
		RPCHeader:       raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(s.ID()), Addr: []byte(s.Addr())},
		SnapshotVersion: raft.SnapshotVersionMax, Term: term, LastLogIndex: end.index, LastLogTerm: end.term,
		Size: int64(len(state)), Configuration: raft.EncodeConfiguration(raft.Configuration{}), ConfigurationIndex: 1},
		&answer, bytes.NewReader(state))
}

// TestSlowSenderOfARefusedSnapshot: while the content of a refused state snapshot is still being sent, other calls are
// passed on; its sender gets the reason at the end of it.
func TestSlowSenderOfARefusedSnapshot(t *testing.T) {
	from, in := make(chan raft.RPC), &incoming{calls: make(chan raft.RPC), ended: make(chan struct{})}
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		in.pass(from, func(position) bool { return false }, func(command any) error {
			if _, ok := command.(*raft.InstallSnapshotRequest); ok {
				return ErrContradicted
			}
			return nil
		})
	}()
	content, sender := io.Pipe()
	answer := make(chan raft.RPCResponse, 1)
	from <- raft.RPC{Command: &raft.InstallSnapshotRequest{}, Reader: content, RespChan: answer}
	vote := &raft.RequestVoteRequest{}
	late := time.After(time.Minute)
	select {
	case from <- raft.RPC{Command: vote}:
	case <-late:
		t.Fatal("a vote waits for the sender of a refused snapshot")
	}
	if got := <-in.calls; got.Command != vote {
		t.Errorf("passed on: %+v", got)
	}
	select {
	case a := <-answer:
		t.Errorf("answered before its end: %+v", a)
	default:
	}
	if err := sender.Close(); err != nil {
		t.Fatal(err)
	}
	if a := <-answer; !errors.Is(a.Error, ErrContradicted) {
		t.Errorf("its sender is told %v", a.Error)
	}
	in.close()
	<-passed
}
