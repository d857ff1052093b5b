package consensus_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"tidemark/internal/testing/need"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

// endless is a number of refusals or state snapshots that no two logs need to agree.
const endless = 200

// tally counts replication events in a cluster's log output. A loop that takes no time would never end in virtual
// time: at endless it calls stop.
type tally struct {
	refused, sent atomic.Int64
	stop          func()
}

func (c *tally) Write(line []byte) (int, error) {
	counted := int64(0)
	switch {
	case bytes.Contains(line, []byte("appendEntries rejected, sending older logs")):
		counted = c.refused.Add(1)
	case bytes.Contains(line, []byte("Installed remote snapshot")):
		counted = c.sent.Add(1)
	}
	if counted == endless {
		c.stop()
	}
	return len(line), nil
}

// unwanted is the term of entries that only the follower has and that are never committed.
const unwanted = 7

// past is the disk content given to a stopped server: its log from first to last, by term, and a state snapshot.
type past struct {
	log  []raft.Log
	at   uint64 // index of the state snapshot, 0: none
	term uint64 // term of the snapshot
	now  uint64 // the current term
}

// noops returns entries of one term.
func noops(term, first, last uint64) (log []raft.Log) {
	for i := first; i <= last; i++ {
		log = append(log, raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return log
}

// put replaces what a stopped server has stored from index last on.
func (p past) put(t *testing.T, s *server, last uint64, members raft.Configuration, state []byte) {
	t.Helper()
	store, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(s.dir, "raft.db"), MsgpackUseNewTimeFormat: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if p.at > 0 {
		files, err := raft.NewFileSnapshotStoreWithLogger(s.dir, 2, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		_, trans := raft.NewInmemTransport("")
		sink, err := files.Create(raft.SnapshotVersionMax, p.at, p.term, members, 1, trans)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write(state); err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
		if err := store.DeleteRange(0, p.at); err != nil { // as after a state snapshot from a leader
			t.Fatal(err)
		}
	}
	if err := store.DeleteRange(last+1, math.MaxUint64); err != nil {
		t.Fatal(err)
	}
	for _, l := range p.log {
		if err := store.StoreLog(&l); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.SetUint64([]byte("CurrentTerm"), p.now); err != nil {
		t.Fatal(err)
	}
}

// TestDivergedLogsConverge: whatever a follower has before and after the state snapshot of a leader whose log begins
// there, it catches up after one refusal per uncommitted entry and one state snapshot. The library alone repeats some
// of these snapshots and refusals for ever, without a pause (raft#697).
func TestDivergedLogsConverge(t *testing.T) {
	for _, tc := range []struct {
		name             string
		leader, follower func(last uint64) past // last: last index common to all
		refused, sent    int64
	}{
		{"an entry of another term where the snapshot ends",
			func(last uint64) past { return past{at: last + 4, term: 8, now: 8, log: noops(8, last+5, last+6)} },
			func(last uint64) past { return past{now: unwanted, log: noops(unwanted, last+1, last+9)} }, 3, 1},
		{"a log that begins behind the same snapshot, with entries that were never committed",
			func(last uint64) past { return past{at: last + 4, term: 8, now: 9, log: noops(9, last+5, last+6)} },
			func(last uint64) past { return past{at: last + 4, term: 8, now: 8, log: noops(8, last+5, last+9)} }, 2, 0},
		{"entries that were never committed, far before the snapshot",
			func(last uint64) past { return past{at: last + 40, term: 8, now: 8, log: noops(8, last+41, last+42)} },
			func(last uint64) past { return past{now: unwanted, log: noops(unwanted, last+1, last+9)} }, 1, 1},
		{"the log ends where the snapshot does",
			func(last uint64) past { return past{at: last + 4, term: 8, now: 8} },
			func(last uint64) past { return past{now: unwanted, log: noops(unwanted, last+1, last+4)} }, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := need.Memory(t)
			synctest.Test(t, func(t *testing.T) {
				h, c := newHub(), &tally{}
				c.stop = func() { h.isolate("m3", true, "m1", "m2") }
				all := make(servers, 3)
				for i := range all {
					name := fmt.Sprintf("m%d", i+1)
					all[i] = &server{t: t, name: name, dir: filepath.Join(dir, name), addr: name, hub: h,
						tune: func(cfg *consensus.Config) {
							cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: c, Level: hclog.Info})
						}}
					all[i].start()
				}
				all.bootstrap()
				all.propose(projector("p", "1"))
				all.agree()
				last, members, state := all.part(h)
				for _, s := range all[:2] {
					tc.leader(last).put(t, s, last, members, state)
				}
				tc.follower(last).put(t, all[2], last, members, state)
				c.refused.Store(0)
				c.sent.Store(0)
				for _, s := range all {
					s.start()
				}
				done := all[:2].propose(projector("p", "2"))
				eventually(t, "the follower follows", func() bool {
					return all[2].fsm.State().CAS() >= done.CAS || c.refused.Load() >= endless || c.sent.Load() >= endless
				})
				if r, s := c.refused.Load(), c.sent.Load(); r != tc.refused || s != tc.sent {
					t.Errorf("%d refusals and %d state snapshots, want %d and %d", r, s, tc.refused, tc.sent)
				}
				for _, s := range all {
					s.stop()
				}
				agreed := all[0].logged(t)
				for i, term := range all[2].logged(t) {
					if have, ok := agreed[i]; ok && have != term || !ok && term == unwanted {
						t.Errorf("the follower has entry %d of term %d, the leader of term %d", i, term, have)
					}
				}
			})
		})
	}
}

// part stops all servers at once, so that none transfers leadership, and returns what all have: the last index, the
// members, and the state. Entries that not all have are removed.
func (all servers) part(h *hub) (last uint64, members raft.Configuration, state []byte) {
	t := all[0].t
	t.Helper()
	eventually(t, "equal logs", func() bool {
		for _, s := range all {
			if s.node.Stats().LastIndex != all[0].node.Stats().LastIndex {
				return false
			}
		}
		return true
	})
	for _, s := range all {
		members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(s.node.ID()),
			Address: raft.ServerAddress(s.addr)})
		h.isolate(s.name, true, all.names(s)...)
	}
	last = all[0].node.Stats().LastIndex
	var buf bytes.Buffer
	for _, s := range all {
		s.stop()
		last = min(last, s.fsm.State().AppliedIndex())
	}
	if err := statecontext.WriteSnapshot(&buf, all[0].fsm.State()); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		h.isolate(s.name, false, all.names(s)...)
	}
	return last, members, buf.Bytes()
}

// logged returns the terms of the entries in a stopped server's log.
func (s *server) logged(t *testing.T) map[uint64]uint64 {
	t.Helper()
	store, err := raftboltdb.NewBoltStore(filepath.Join(s.dir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	first, err := store.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := store.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	terms := map[uint64]uint64{}
	for i := max(1, first); i <= last; i++ {
		var l raft.Log
		if err := store.GetLog(i, &l); err == nil {
			terms[i] = l.Term
		} else if !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatal(err)
		}
	}
	return terms
}
