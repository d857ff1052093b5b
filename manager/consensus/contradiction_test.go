package consensus_test

import (
	"errors"
	"fmt"
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

// TestAFollowerThatForgot checks three servers of which one continues from an older copy of its folder, and elects
// another one that never had what these two had committed. The third server, which has it in its state, does not
// accept the others' entries in its place: it ends with the reason, and cannot be started again until a recovery makes
// its history the cluster's.
func TestAFollowerThatForgot(t *testing.T) {
	dir := need.Memory(t)
	synctest.Test(t, func(t *testing.T) {
		h, all := newHub(), make(servers, 3)
		for i := range all {
			name := fmt.Sprintf("m%d", i+1)
			all[i] = &server{t: t, name: name, dir: filepath.Join(dir, name), addr: name, hub: h}
			all[i].start()
		}
		all.bootstrap()
		all.propose(projector("p", "1"))
		all.agree()
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
		h.isolate(lacks.name, false, forgets.name)
		forgets.start()
		rest.propose(projector("p", "3"))
		h.isolate(has.name, false, all.names(has)...)

		var err error
		select {
		case err = <-has.ended:
		case <-time.After(hang):
			t.Fatal("it follows, with a state of its own")
		}
		if !errors.Is(err, consensus.ErrContradicted) || !strings.Contains(err.Error(), has.dir) {
			t.Fatalf("it ended with %v", err)
		}
		if p := has.fsm.State().Projector("p"); p.Admin != "2" {
			t.Errorf("its state has %q in place of what was committed", p.Admin)
		}
		if err := has.node.Close(); err != nil {
			t.Error(err)
		}
		has.cancel()
		has.node = nil
		cfg := consensus.Config{Name: has.name, Dir: has.dir, REST: "http://" + has.name, Heartbeat: heartbeat,
			Logger: hclog.NewNullLogger()}
		cfg.Listener, cfg.Dial = has.listen()
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
		for _, s := range rest {
			s.stop()
		}
		has.start()
		servers{has}.propose(projector("q", "4"))
		if p := has.fsm.State().Projector("p"); p.Admin != "2" {
			t.Errorf("after the recovery its state has %q", p.Admin)
		}
		has.stop()
	})
}
