package consensus_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"tidemark/fsm"
	"tidemark/internal/testing/need"
	"tidemark/manager/consensus"
)

// threeServers starts three servers in folders below dir, over a network of their own. All of them have applied that p
// is 1.
func threeServers(t *testing.T, dir string) (h *hub, all servers) {
	h, all = newHub(), make(servers, 3)
	for i := range all {
		name := fmt.Sprintf("m%d", i+1)
		all[i] = &server{t: t, name: name, dir: filepath.Join(dir, name), addr: name, hub: h}
		all[i].start()
	}
	all.bootstrap()
	all.propose(projector("p", "1"))
	all.agree()
	return h, all
}

// TestFollowerWithAnOlderFolder checks three servers of which one continues from an older copy of its folder, and
// elects another one that never had what these two had committed. The third server, which has it in its state, does
// not accept the others' entries in its place: it ends with the reason, and cannot be started again until a recovery
// makes its history the cluster's.
func TestFollowerWithAnOlderFolder(t *testing.T) {
	dir := need.Memory(t)
	synctest.Test(t, func(t *testing.T) {
		h, all := threeServers(t, dir)
		has := all.leader()
		var rest servers
		for _, s := range all {
			if s != has {
				rest = append(rest, s)
			}
		}
		forgets, lacks := rest[0], rest[1]
		h.isolate(lacks.name, true, all.names(lacks)...)
		before := lacks.node.Stats().LastIndex
		servers{has, forgets}.propose(projector("p", "2"))
		term := has.node.Stats().Term
		h.isolate(has.name, true, all.names(has)...)
		forgets.stop()
		past{now: term}.put(t, forgets, before, raft.Configuration{}, nil)
		if err := os.Remove(filepath.Join(forgets.dir, "committed")); err != nil { // it has what was in the log
			t.Fatal(err)
		}
		h.isolate(lacks.name, false, forgets.name)
		forgets.start()
		rest.propose(projector("p", "3"))
		h.isolate(has.name, false, all.names(has)...)

		has.refuses(rest, func(error) {
			if p := has.fsm.State().Projector("p"); p.Admin != "2" {
				t.Errorf("its state has %q in place of what was committed", p.Admin)
			}
		})
	})
}

// TestCommittedEntriesAreKeptAfterARestart checks three servers that all stop after a write that one of them missed.
// Another one continues from an older copy of its folder and elects that one, and what these two commit is not what
// was acknowledged. The server that has it was killed or stopped meanwhile, and still does not accept theirs in its
// place.
func TestCommittedEntriesAreKeptAfterARestart(t *testing.T) {
	for _, killed := range []bool{true, false} {
		t.Run(map[bool]string{true: "killed", false: "stopped"}[killed], func(t *testing.T) {
			dir := need.Memory(t)
			synctest.Test(t, func(t *testing.T) {
				h, all := threeServers(t, dir)
				has, forgets, rest := all[0], all[1], all[1:]
				all[2].stop()
				forgets.stop()
				older := filepath.Join(dir, "older")
				if err := os.CopyFS(older, os.DirFS(forgets.dir)); err != nil {
					t.Fatal(err)
				}
				forgets.start()
				all[:2].propose(projector("p", "2"))
				eventually(t, "it has applied the write", func() bool { return has.fsm.State().Projector("p").Admin == "2" })
				entry := has.fsm.State().AppliedIndex()
				record := filepath.Join(has.dir, "committed")
				atKill, err := os.ReadFile(record)
				if err != nil {
					t.Fatal(err)
				}
				all[:2].part(h)
				if killed { // what an orderly stop notes last is not there
					if err := os.WriteFile(record, atKill, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.RemoveAll(forgets.dir); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(older, forgets.dir); err != nil {
					t.Fatal(err)
				}
				for _, s := range rest {
					s.start()
				}
				rest.propose(projector("p", "3"))
				was := has.logged(t)[entry]
				has.start()
				has.refuses(rest, func(err error) {
					if !strings.Contains(err.Error(), fmt.Sprintf("at %d of its log, where one of term %d was committed here", entry,
						was)) {
						t.Errorf("it does not name entry %d of term %d: %v", entry, was, err)
					}
				})
			})
		})
	}
}

// TestTwoLeadersOfOneTerm checks three servers of which two commit a write in a term, and then one of these two and the
// third elect a leader in the same term, because that one continues from a copy of its folder from before its vote.
// Index and term of the entries are the same in both histories. The server that has the first one does not follow.
func TestTwoLeadersOfOneTerm(t *testing.T) {
	dir := need.Memory(t)
	synctest.Test(t, func(t *testing.T) {
		h, all := threeServers(t, dir)
		has, forgets, rest := all[0], all[1], all[1:]
		all.part(h)
		older := filepath.Join(dir, "older")
		goBack := func(to string) {
			for _, s := range rest {
				if err := errors.Join(os.RemoveAll(s.dir), os.CopyFS(s.dir, os.DirFS(filepath.Join(to, s.name)))); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, s := range rest {
			if err := os.CopyFS(filepath.Join(older, s.name), os.DirFS(s.dir)); err != nil {
				t.Fatal(err)
			}
		}
		has.start()
		forgets.start()
		all[:2].propose(projector("p", "2"))
		eventually(t, "it has applied the write", func() bool {
			p := has.fsm.State().Projector("p")
			return p != nil && p.Admin == "2"
		})
		term := all[:2].leader().node.Stats().Term
		all[:2].part(h)
		for { // a split vote costs a term
			goBack(older)
			for _, s := range rest {
				s.start()
			}
			rest.propose(projector("p", "3"))
			now := rest.leader().node.Stats().Term
			if now == term {
				break
			}
			rest.part(h)
			if now < term {
				t.Fatalf("the other history is in term %d, this one in %d", now, term)
			}
		}
		has.start()
		has.refuses(rest, func(err error) {
			want := fmt.Sprintf("of term %d its log has other entries than those stored here", term)
			if !strings.Contains(err.Error(), want) {
				t.Errorf("it does not say that two managers have led in term %d: %v", term, err)
			}
		})
	})
}

// refuses checks that a server ends because it has in its log, as committed, that p is 2, which the rest lack; that it
// refuses to start again, and that a recovery makes its history the cluster's.
func (s *server) refuses(rest servers, says func(error)) {
	t := s.t
	t.Helper()
	var err error
	select {
	case err = <-s.ended:
	case <-time.After(hang):
		t.Fatal("it follows, with a state of its own")
	}
	if !errors.Is(err, consensus.ErrContradicted) || !strings.Contains(err.Error(), s.dir) {
		t.Fatalf("it ended with %v", err)
	}
	says(err)
	if p := s.fsm.State().Projector("p"); p != nil && p.Admin == "3" {
		t.Errorf("its state has %q in place of what was committed", p.Admin)
	}
	if err := s.node.Close(); err != nil {
		t.Error(err)
	}
	s.cancel()
	s.node = nil
	cfg := consensus.Config{Name: s.name, Dir: s.dir, REST: "http://" + s.name, Heartbeat: heartbeat,
		Logger: hclog.NewNullLogger()}
	cfg.Listener, cfg.Dial = s.listen()
	machine := fsm.New(cfg.Logger, func(err error) { t.Error(err) })
	if n, again := consensus.Open(cfg, machine); again == nil || again.Error() != err.Error() ||
		!errors.Is(again, consensus.ErrContradicted) {
		if again == nil {
			_ = n.Close()
		}
		t.Fatalf("started again: %v, want %v", again, err)
	}
	if _, err := consensus.Recover(cfg, machine, consensus.RecoverOptions{Act: true}); err != nil {
		t.Fatal(err)
	}
	for _, other := range rest {
		other.stop()
	}
	s.start()
	servers{s}.propose(projector("q", "4"))
	if p := s.fsm.State().Projector("p"); p.Admin != "2" {
		t.Errorf("after the recovery its state has %q", p.Admin)
	}
	s.stop()
}
