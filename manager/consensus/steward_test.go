package consensus_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/fsm"
	"tidemark/internal/testing/need"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

// stewarded runs a Steward on each server in every term that it leads.
type stewarded struct {
	all      servers
	stewards map[*server]*consensus.Steward
}

func (c *stewarded) add(s *server) *server {
	if c.stewards == nil {
		c.stewards = map[*server]*consensus.Steward{}
	}
	s.lead = func(ctx context.Context, _ uint64) error { return c.stewards[s].Run(ctx) }
	c.all = append(c.all, s)
	c.start(s)
	return s
}

func (c *stewarded) start(s *server) {
	s.start()
	c.stewards[s] = consensus.NewSteward(consensus.StewardConfig{Node: s.node})
}

// leader returns the leader and its steward.
func (c *stewarded) leader() (*server, *consensus.Steward) {
	l := c.all.leader()
	return l, c.stewards[l]
}

func joins(s *server) consensus.JoinRequest {
	return consensus.JoinRequest{Manager: statecontext.Manager{ID: s.node.ID(), Name: s.name, REST: "http://" + s.name,
		Raft: s.node.Addr(), FormatLevel: statecontext.FormatLevel}, New: true}
}

// settle calls try on the leader until it succeeds.
func (c *stewarded) settle(t *testing.T, what string, try func(st *consensus.Steward) error) {
	t.Helper()
	var last error
	for end := time.Now().Add(2 * hang); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, st := c.leader()
		if last = try(st); last == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, last)
}

func (c *stewarded) voters(t *testing.T) (voters, others int) {
	t.Helper()
	l, _ := c.leader()
	members, err := l.node.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.Voter {
			voters++
		} else {
			others++
		}
	}
	return voters, others
}

func virtualCluster(t *testing.T, test func(t *testing.T, h *hub, c *stewarded, fresh func(name string) *server)) {
	dir := need.Memory(t)
	synctest.Test(t, func(t *testing.T) {
		h, c := newHub(), &stewarded{}
		fresh := func(name string) *server {
			return c.add(&server{t: t, name: name, dir: filepath.Join(dir, name), addr: name, hub: h})
		}
		fresh("m1")
		c.all.bootstrap()
		test(t, h, c, fresh)
		for _, s := range c.all {
			s.stop()
		}
	})
}

// TestPromotionUnderClockSteps: the leader's wall clock is changed back and forth while a new server catches up. The
// server is promoted when it is due.
func TestPromotionUnderClockSteps(t *testing.T) {
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		var ahead atomic.Int64
		c.all[0].stop()
		c.all[0].tune = func(cfg *consensus.Config) {
			cfg.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		}
		c.start(c.all[0])
		for i, step := range []time.Duration{-time.Hour, time.Hour} {
			s := fresh(fmt.Sprintf("m%d", i+2))
			c.settle(t, "join", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), joins(s)) })
			started := time.Now()
			time.Sleep(consensus.DefaultPromoteAfter / 2)
			ahead.Add(int64(step))
			eventually(t, "the vote", func() bool { v, _ := c.voters(t); return v == i+2 })
			if took := time.Since(started); took < consensus.DefaultPromoteAfter || took > 3*consensus.DefaultPromoteAfter {
				t.Errorf("the clock is set by %s, and a server that has caught up gets its vote after %s", step, took)
			}
		}
	})
}

// TestPromotionBesideASilentMember: a new server that keeps up is promoted even if another member is silent, so that
// each round waits for its answer, while the leader writes more than promoteLag entries.
func TestPromotionBesideASilentMember(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(name string) *server) {
		l, _ := c.leader()
		h.oneWay(l.name, "gone", true)
		if err := l.node.AddNonvoter(deadline(t, hang), consensus.Server{ID: "m9-00000000", Raft: "gone"}, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var writing sync.WaitGroup
		end := func() { cancel(); writing.Wait() }
		defer end()
		writing.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := l.node.Propose(ctx, projector("p", fmt.Sprint(i))); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				time.Sleep(4 * time.Millisecond)
			}
		})
		s := fresh("m2")
		c.settle(t, "join", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), joins(s)) })
		eventually(t, "its vote", func() bool { v, _ := c.voters(t); return v == 2 })
	})
}

// TestGrowAndShrink: servers join as nonvoters, become voters after a while, and leave in order, including the
// leader; no change leaves less than a majority.
func TestGrowAndShrink(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(string) *server) {
		for i := range 2 {
			s := fresh(fmt.Sprintf("m%d", i+2))
			started := time.Now()
			c.settle(t, "join", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), joins(s)) })
			if v, o := c.voters(t); v != i+1 || o != 1 {
				t.Fatalf("right after joining: %d voters, %d others", v, o)
			}
			c.settle(t, "joining again changes nothing", func(st *consensus.Steward) error {
				return st.Join(deadline(t, hang),
					joins(s))
			})
			eventually(t, "its vote", func() bool { v, _ := c.voters(t); return v == i+2 })
			if took := time.Since(started); took < consensus.DefaultPromoteAfter {
				t.Errorf("%s has its vote after %v", s.name, took)
			}
		}
		c.all.propose(projector("three", "x"))
		c.all.agree()

		// Two managers with one name, and non-members with state.
		l, st := c.leader()
		twin := joins(c.all.follower())
		twin.Manager.ID, twin.Manager.Raft = twin.Manager.Name+"-00000000", "elsewhere:1"
		if err := st.Join(deadline(t, hang), twin); !errors.Is(err, consensus.ErrMemberConflict) {
			t.Errorf("a second manager of a living one's name: %v", err)
		}
		twin.New = false
		if err := st.Join(deadline(t, hang), twin); !errors.Is(err, consensus.ErrNotMember) {
			t.Errorf("a server with state that is no member: %v", err)
		}
		older := twin
		older.Manager.Name, older.Manager.FormatLevel, older.New = "m9", 0, true
		if err := st.Join(deadline(t, hang), older); !errors.Is(err, consensus.ErrMemberConflict) ||
			!strings.Contains(err.Error(), "format level") {
			t.Errorf("a manager of an older version: %v", err)
		}
		if _, err := st.Find("nobody"); !errors.Is(err, consensus.ErrUnknownMember) {
			t.Errorf("an unknown name: %v", err)
		}

		// One is cut off: its removal is allowed, that of another one is not.
		dead := c.all.follower()
		h.isolate(dead.name, true, c.all.names(dead)...)
		deadID := dead.node.ID()
		eventually(t, "it is seen as dead", func() bool {
			for _, m := range st.Sightings() {
				if m.ID == deadID {
					return !m.Alive && m.Problem != ""
				}
			}
			return false
		})
		for _, s := range c.all {
			if s != dead && s != l {
				if _, err := st.Remove(deadline(t, hang), s.node.ID(), false, nil); !errors.Is(err, consensus.ErrQuorumAtRisk) ||
					!strings.Contains(err.Error(), "1 answer and 2 are needed") ||
					!strings.Contains(err.Error(), "tidemark cluster remove "+deadID) {
					t.Errorf("removal below a majority: %v", err)
				}
			}
		}
		remove := func(st *consensus.Steward, id string) error {
			also, err := st.Remove(deadline(t, hang), id, false, nil)
			if len(also) > 0 {
				t.Errorf("removed with %s: %v", id, also)
			}
			return err
		}
		c.settle(t, "removal of the dead one", func(st *consensus.Steward) error { return remove(st, deadID) })
		if v, _ := c.voters(t); v != 2 {
			t.Fatalf("%d voters", v)
		}

		// It comes back: it never leads, and learns that it is not a member.
		h.isolate(dead.name, false, c.all.names(dead)...)
		time.Sleep(20 * heartbeat)
		if _, serves := dead.node.Serving(); serves {
			t.Fatal("a removed server leads")
		}
		back := joins(dead)
		back.New = false
		_, st = c.leader()
		if err := st.Join(deadline(t, hang), back); !errors.Is(err, consensus.ErrNotMember) {
			t.Errorf("a removed server comes back: %v", err)
		}
		if err := dead.node.Retire("by hand"); !errors.Is(err, consensus.ErrRemoved) {
			t.Fatal(err)
		}
		dead.stop()
		_, err := consensus.Open(consensus.Config{Name: dead.name, Dir: dead.dir, Listener: h.listen("x")},
			fsm.New(hclog.NewNullLogger(), func(error) {}))
		if !errors.Is(err, consensus.ErrRemoved) || !strings.Contains(err.Error(), dead.dir) {
			t.Errorf("a removed server starts: %v", err)
		}

		// The leader leaves: it transfers leadership, and the next leader removes it.
		l, _ = c.leader()
		gone := l.node.ID()
		c.settle(t, "removal of the leader", func(st *consensus.Steward) error { return remove(st, gone) })
		eventually(t, "one voter", func() bool { v, _ := c.voters(t); return v == 1 })
		last, st := c.leader()
		if last.node.ID() == gone {
			t.Fatal("the removed leader leads")
		}
		if _, err := st.Remove(deadline(t, hang), last.node.ID(), true, nil); !errors.Is(err, consensus.ErrQuorumAtRisk) {
			t.Errorf("removal of the last voter: %v", err)
		}
		if last.fsm.State().Projector("three") == nil {
			t.Error("a write is lost")
		}
		eventually(t, "registrations of those who left are forgotten",
			func() bool { return last.fsm.State().Manager(gone) == nil })
	})
}

// TestForcedRemoval: of five voters two are silent. The removal of a third one is refused. With force the silent ones
// are removed first, only as many as needed, and then the third; everything written is kept, and writes continue. The
// next removal needs the other silent one gone. The leader transfers leadership, and the next leader does the same.
func TestForcedRemoval(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 5)
		all := slices.Clone(c.all)
		all.propose(projector("before", "1"))
		alive := slices.Clone(all)
		dead := map[string]bool{}
		for range 2 {
			f := alive.follower()
			h.isolate(f.name, true, all.names(f)...)
			dead[f.node.ID()] = true
			alive = slices.DeleteFunc(alive, func(s *server) bool { return s == f })
		}
		c.all = alive // servers among which the leader is looked for
		for want := range 2 {
			goes := alive.follower()
			if want == 1 {
				goes = alive.leader()
			}
			id := goes.node.ID()
			_, st := c.leader()
			if _, err := st.Remove(deadline(t, hang), id, false, nil); !errors.Is(err, consensus.ErrQuorumAtRisk) {
				t.Fatalf("without force: %v", err)
			}
			var gone []string
			c.settle(t, "the forced removal", func(st *consensus.Steward) error {
				also, err := st.Remove(deadline(t, time.Minute), id, true, nil)
				gone = append(gone, also...)
				return err
			})
			if len(gone) != 1 || !dead[gone[0]] {
				t.Fatalf("removed before %s: %v, want one of %v", id, gone, dead)
			}
			delete(dead, gone[0])
			alive = slices.DeleteFunc(alive, func(s *server) bool { return s == goes })
			c.all = alive
			if v, _ := c.voters(t); v != 3-2*want {
				t.Fatalf("%d voters after %s", v, id)
			}
			alive.propose(projector("after", fmt.Sprint(want)))
		}
		if s := alive[0].fsm.State(); s.Projector("before") == nil || s.Projector("after").Admin != "1" {
			t.Error("a write is lost")
		}
		c.all = all
	})
}

// TestOnlyTheLeaderSurveys: the steward of a server that does not serve surveys no member. A request in the present
// term would be taken for one of the leader's heartbeats, and the real leader would step down.
func TestOnlyTheLeaderSurveys(t *testing.T) {
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, _ := c.leader()
		term, _ := l.node.Serving()
		f := c.all.follower()
		for range 20 {
			_, err := c.stewards[f].Remove(deadline(t, hang), l.node.ID(), false, nil)
			if !errors.Is(err, consensus.ErrNotLeader) {
				t.Errorf("at a follower: %v", err)
			}
			time.Sleep(heartbeat / 10)
		}
		if now, serves := l.node.Serving(); !serves || now != term {
			t.Errorf("the leader served in term %d, now %v in %d", term, serves, now)
		}
	})
}

// TestWipedVoterTakesItsPlace: a voter that lost its folder comes back under the same name and address: its former
// self is removed first, then it joins and becomes a voter.
func TestWipedVoterTakesItsPlace(t *testing.T) {
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		c.all.propose(projector("kept", "x"))
		b := c.all.follower()
		old := b.node.ID()
		b.stop()
		if err := os.RemoveAll(b.dir); err != nil {
			t.Fatal(err)
		}
		c.start(b)
		c.settle(t, "join of the wiped one", func(st *consensus.Steward) error {
			return st.Join(deadline(t, hang),
				joins(b))
		})
		eventually(t, "three voters again", func() bool { v, _ := c.voters(t); return v == 3 })
		l, _ := c.leader()
		members, err := l.node.Servers()
		if err != nil || strings.Contains(fmt.Sprint(members), old) {
			t.Errorf("members %v, %v; %s should be gone", members, err, old)
		}
		if b.fsm.State().Projector("kept") == nil {
			t.Error("the wiped server did not get what was written")
		}
	})
}

// TestJoinBesideFormerSelves: a manager that has lost its folder several times joins within the timeout of its
// request, although its former selves are silent at other addresses, and the one at its own address has to be removed
// first.
func TestJoinBesideFormerSelves(t *testing.T) {
	for _, elsewhere := range []int{1, 3} {
		for _, here := range []int{0, 1} {
			t.Run(fmt.Sprintf("%d elsewhere, %d here", elsewhere, here), func(t *testing.T) {
				virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(name string) *server) {
					l, st := c.leader()
					add := func(k int, addr string) string {
						id := fmt.Sprintf("m2-%08d", k)
						if err := l.node.AddNonvoter(deadline(t, hang), consensus.Server{ID: id, Raft: addr}, nil); err != nil {
							t.Fatal(err)
						}
						return id
					}
					for k := range elsewhere {
						addr := fmt.Sprint("gone", k)
						h.oneWay(l.name, addr, true)
						add(k, addr)
					}
					s, former := fresh("m2"), ""
					if here > 0 {
						former = add(elsewhere, s.addr)
					}
					if err := st.Join(deadline(t, s.node.JoinTimeout()), joins(s)); err != nil {
						t.Fatal(err)
					}
					members, err := l.node.Servers()
					text := fmt.Sprint(members)
					if err != nil || len(members) != 2+elsewhere || !strings.Contains(text, s.node.ID()) ||
						former != "" && strings.Contains(text, former) {
						t.Errorf("members %v, %v; want %s, without %q", members, err, s.node.ID(), former)
					}
				})
			})
		}
	}
}

// TestJoinBesideASlowDisk: with slow heartbeats the leader surveys a silent former self three times before it removes
// another one, because a third member has not stored what is written yet. The new server joins within the timeout of
// its request.
func TestJoinBesideASlowDisk(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(name string) *server) {
		slowly := func(s *server) *server {
			s.stop()
			s.tune = func(cfg *consensus.Config) { cfg.Heartbeat = 2 * time.Second }
			c.start(s)
			return s
		}
		slowly(c.all[0])
		l, _ := c.leader()
		s, slow := slowly(fresh("m2")), slowly(fresh("m3"))
		c.settle(t, "join", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), joins(slow)) })
		h.oneWay(l.name, "gone", true)
		for k, addr := range []string{"gone", s.addr} {
			former := consensus.Server{ID: fmt.Sprintf("m2-%08d", k), Raft: addr}
			if err := l.node.AddNonvoter(deadline(t, hang), former, nil); err != nil {
				t.Fatal(err)
			}
		}
		slow.disk(func() error { time.Sleep(time.Second); return nil })
		_, st := c.leader()
		began := time.Now()
		if err := st.Join(deadline(t, s.node.JoinTimeout()), joins(s)); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < time.Minute {
			t.Errorf("it took %s: the silent one was not asked three times", took)
		}
		slow.disk(nil)
	})
}

// TestNewAddressBesideASilentOne: a voter moves to another address, and packets to the old one are lost. The new
// address is recorded within the timeout of its request.
func TestNewAddressBesideASilentOne(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, st := c.leader()
		s := c.all.follower()
		moved := joins(s)
		s.stop()
		// Wait until Raft uses single requests: hashicorp/raft 1.7.3 reads the address without a lock when a pipeline
		// fails, which may coincide with the change of the address.
		time.Sleep(time.Second)
		h.oneWay(l.name, s.addr, true)
		moved.New, moved.Manager.Raft = false, "elsewhere"
		if err := st.Join(deadline(t, l.node.JoinTimeout()), moved); err != nil {
			t.Fatal(err)
		}
		members, err := l.node.Servers()
		if err != nil || !slices.Contains(members, consensus.Server{ID: moved.Manager.ID, Raft: "elsewhere", Voter: true}) {
			t.Errorf("members %v, %v; want %s elsewhere", members, err, moved.Manager.ID)
		}
	})
}

// TestCopyOfTheLeadersFolderIsRefused: a second process with a copy of the leader's folder requests to join at its
// own address. It is refused: the leader, which is alive, keeps its address.
func TestCopyOfTheLeadersFolderIsRefused(t *testing.T) {
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, st := c.leader()
		copied := joins(l)
		copied.New, copied.Manager.Raft, copied.Manager.REST = false, "elsewhere", "http://elsewhere"
		err := st.Join(deadline(t, hang), copied)
		if !errors.Is(err, consensus.ErrMemberConflict) || !strings.Contains(err.Error(), "two processes") {
			t.Errorf("a copy of the leader: %v", err)
		}
		members, err := l.node.Servers()
		if err != nil || !slices.Contains(members, consensus.Server{ID: l.node.ID(), Raft: l.addr, Voter: true}) {
			t.Errorf("members %v, %v; want %s at %s", members, err, l.node.ID(), l.addr)
		}
		if m := l.fsm.State().Manager(l.node.ID()); m != nil && m.Raft == "elsewhere" {
			t.Errorf("it is noted at %s", m.Raft)
		}
		c.all.propose(projector("p", "x"))
		c.all.agree()
	})
}

// asks returns the join request of a server.
func asks(s *server) consensus.JoinRequest {
	own, err := s.node.Describe(0)
	if err != nil {
		s.t.Fatal(err)
	}
	req := joins(s)
	req.New, req.Epoch = own.New, own.Epoch
	return req
}

// TestAdditionLostWithItsLeader: a leader that adds a new server is lost before other servers store that; the new
// server has the log of a cluster of which it is not a member. It requests again and is added, unless the cluster was
// recovered meanwhile to a state that may lack what the server has. If it was a member and was removed, it is
// refused, even after a restart.
func TestAdditionLostWithItsLeader(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, _ := c.leader()
		s := fresh("m4")
		if own := asks(s); !own.New || own.Epoch != 0 {
			t.Fatalf("an empty server says %+v", own)
		}
		var others []string
		for _, o := range c.all {
			if o != l && o != s {
				others = append(others, o.name)
			}
		}
		h.isolate(l.name, true, others...)
		ctx, cancel := context.WithTimeout(t.Context(), heartbeat)
		defer cancel()
		added := l.node.AddNonvoter(ctx, consensus.Server{ID: s.node.ID(), Raft: s.node.Addr()}, nil)
		if !errors.Is(added, consensus.ErrUnknownOutcome) {
			t.Fatalf("it is added without the others: %v", added)
		}
		eventually(t, "it has the cluster's log", func() bool { return s.node.ClusterID() != "" })
		l.stop()
		h.isolate(l.name, false, others...)

		other := asks(s)
		other.Epoch++
		eventually(t, "it is refused after a recovery", func() bool {
			_, st := c.leader()
			return errors.Is(st.Join(deadline(t, hang), other), consensus.ErrNotMember)
		})
		c.settle(t, "it joins", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), asks(s)) })
		eventually(t, "it knows that it is a member", func() bool { return s.fsm.State().Manager(s.node.ID()) != nil })
		if err := s.node.NoteMember(); err != nil {
			t.Fatal(err)
		}
		id := s.node.ID()
		s.stop()
		c.settle(t, "removal", func(st *consensus.Steward) error {
			_, err := st.Remove(deadline(t, hang), id, false, nil)
			return err
		})
		c.start(s)
		c.settle(t, "it is refused", func(st *consensus.Steward) error {
			err := st.Join(deadline(t, hang), asks(s))
			if errors.Is(err, consensus.ErrNotMember) {
				return nil
			}
			return fmt.Errorf("a removed server comes back: %w", cmp.Or(err, errors.New("it joined")))
		})
	})
}

// addInVain makes a leader that cannot reach the others add a server, which gets the leader's log and records its
// epoch.
func addInVain(t *testing.T, leader, s *server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), heartbeat)
	defer cancel()
	if err := leader.node.AddNonvoter(ctx, consensus.Server{ID: s.node.ID(), Raft: s.node.Addr()},
		nil); !errors.Is(err, consensus.ErrUnknownOutcome) {
		t.Fatalf("it is added without the others: %v", err)
	}
	eventually(t, "it has the leader's log", func() bool { return s.fsm.State().Epoch() != 0 })
	if err := s.node.NoteEpoch(); err != nil {
		t.Fatal(err)
	}
}

// TestAdditionLostBeforeARestart: the server has restarted since, and no leader has announced what is committed. It
// has the epoch of its log recorded, counts as new, and joins, unless the cluster was recovered meanwhile.
func TestAdditionLostBeforeARestart(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, _ := c.leader()
		s := fresh("m4")
		others := slices.DeleteFunc(slices.Clone(c.all), func(o *server) bool { return o == l || o == s })
		h.isolate(l.name, true, others[0].name, others[1].name)
		addInVain(t, l, s)
		l.stop()
		s.stop()
		h.isolate(l.name, false, others[0].name, others[1].name)
		c.start(s)
		other := asks(s)
		if other.Epoch++; s.fsm.State().Epoch() != 0 || !other.New || other.Epoch == 1 {
			t.Fatalf("it knows epoch %d of its state, and says %+v", s.fsm.State().Epoch(), other)
		}
		eventually(t, "it is refused after a recovery", func() bool {
			_, st := c.leader()
			return errors.Is(st.Join(deadline(t, hang), other), consensus.ErrNotMember)
		})
		c.settle(t, "it joins", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), asks(s)) })
		eventually(t, "it knows that it is a member", func() bool { return s.fsm.State().Manager(s.node.ID()) != nil })
	})
}

// TestAdditionOfALostHistory: a server whose addition was lost has the log of a term in which the survivor of a
// recovery then leads with another log. It has restarted since and has only the epoch of the committed part recorded:
// it is not admitted.
func TestAdditionOfALostHistory(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		c.all.agree()
		l, _ := c.leader()
		others := slices.DeleteFunc(slices.Clone(c.all), func(s *server) bool { return s == l })
		survivor, lost := others[0], others[1]
		h.isolate(survivor.name, true, l.name, lost.name)
		l.stop()
		c.start(l)
		pair := servers{l, lost}
		if lost = pair.leader(); lost == l {
			l = others[1]
		}
		for i := range 6 {
			if _, err := lost.node.Propose(deadline(t, hang), projector(fmt.Sprint("old", i), "old")); err != nil {
				t.Fatal(err)
			}
		}
		s := fresh("m4")
		h.isolate(survivor.name, true, s.name)
		l.stop()
		addInVain(t, lost, s)
		for _, x := range []*server{lost, s, survivor} {
			x.stop()
		}
		if _, err := consensus.Recover(consensus.Config{Name: "recover", Dir: survivor.dir},
			fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) }), consensus.RecoverOptions{Act: true}); err != nil {
			t.Fatal(err)
		}
		h.isolate(survivor.name, false, l.name, lost.name, s.name)
		all := c.all
		defer func() { c.all = all }()
		c.all = servers{survivor}
		c.start(survivor)
		c.start(s)
		eventually(t, "the survivor refuses it", func() bool {
			_, st := c.leader()
			return errors.Is(st.Join(deadline(t, hang), asks(s)), consensus.ErrNotMember)
		})
	})
}

// TestNewAddresses: all servers restart at new ports. Given the addresses of the others, they elect a leader, which
// records the new addresses.
func TestNewAddresses(t *testing.T) {
	t.Parallel()
	c := &stewarded{}
	for i := range 3 {
		c.add(newServer(t, fmt.Sprintf("m%d", i+1)))
	}
	c.all.bootstrap()
	c.all.propose(projector("p", "x"))
	var old []string
	for _, s := range c.all {
		old = append(old, s.addr)
		s.stop()
	}
	taken := make([]net.Listener, 0, len(old)) // keeps the old ports silent
	for _, addr := range old {
		if l, err := net.Listen("tcp", addr); err == nil { // otherwise another process uses the port, which is as good
			defer l.Close()
			taken = append(taken, l)
		}
	}
	_ = taken
	for _, s := range c.all {
		s.addr = "127.0.0.1:0"
		c.start(s)
	}
	for _, s := range c.all {
		for _, o := range c.all {
			s.node.Moved(o.node.ID(), o.node.Addr())
		}
	}
	for _, s := range c.all {
		req := joins(s)
		req.New = false
		c.settle(t, "registration", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), req) })
	}
	eventually(t, "the configuration has the new addresses", func() bool {
		l, _ := c.leader()
		members, err := l.node.Servers()
		text := fmt.Sprint(members)
		for i, s := range c.all {
			if err != nil || !strings.Contains(text, s.addr) || strings.Contains(text, old[i]) {
				return false
			}
		}
		return true
	})
	c.all.propose(projector("q", "x"))
	c.all.agree()
}

// TestRecoverAlone: the majority is lost; the survivor continues alone with its whole log, in a new epoch, and adds
// new servers. Servers that come back from before cannot affect it.
func TestRecoverAlone(t *testing.T) {
	t.Parallel()
	c := &stewarded{}
	for i := range 3 {
		c.add(newServer(t, fmt.Sprintf("m%d", i+1)))
	}
	c.all.bootstrap()
	c.all.propose(projector("before", "x"))
	c.all.propose(statecontext.Command{Body: &statecontext.SetLimits{Limits: statecontext.Limits{Buckets: 7}}})
	c.all.agree()
	a, zombies := c.all[0], c.all[1:]
	cluster, epoch := a.fsm.State().ClusterID(), a.fsm.State().Epoch()
	recoverIt := func(act bool) (consensus.RecoveryReport, error) {
		return consensus.Recover(consensus.Config{Name: "recover", Dir: a.dir},
			fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) }),
			consensus.RecoverOptions{Act: act, ResetLimits: act})
	}
	if _, err := recoverIt(true); !errors.Is(err, consensus.ErrInUse) {
		t.Fatalf("recovery beside the running process: %v", err)
	}
	for _, s := range c.all {
		s.stop()
	}
	look, err := recoverIt(false)
	if err != nil || len(look.Members) != 3 || len(look.Forgotten) != 2 || look.Epoch != 0 || look.OldEpoch != epoch ||
		look.ClusterID != cluster {
		t.Fatalf("%+v, %v", look, err)
	}
	done, err := recoverIt(true)
	if err != nil || done.Epoch <= epoch || done.CAS != look.CAS {
		t.Fatalf("%+v, %v", done, err)
	}
	c.start(a)
	c.all = servers{a}
	c.all.propose(projector("after", "x"))
	state := a.fsm.State()
	if !done.LimitsReset || state.Limits() != statecontext.DefaultLimits() {
		t.Fatalf("%+v, limits %+v", done, state.Limits())
	}
	if state.Epoch() != done.Epoch || state.ClusterID() != cluster || state.Projector("before") == nil {
		t.Fatalf("epoch %d, cluster %s, before %v", state.Epoch(), state.ClusterID(), state.Projector("before"))
	}
	for _, s := range zombies {
		c.start(s)
	}
	zombies.propose(projector("phantom", "x")) // they are a majority of their own configuration
	eventually(t, "the dead are forgotten", func() bool {
		s := a.fsm.State()
		return s.Manager(zombies[0].node.ID()) == nil && s.Manager(zombies[1].node.ID()) == nil
	})
	c.all.propose(projector("later", "x"))
	if s := a.fsm.State(); s.Projector("phantom") != nil || s.Projector("after") == nil || s.Epoch() != done.Epoch {
		t.Error("servers from before the recovery reached it")
	}
	d := c.add(newServer(t, "m4"))
	c.settle(t, "join", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), joins(d)) })
	eventually(t, "two voters", func() bool { v, _ := c.voters(t); return v == 2 })
	c.all.agree()
	if _, err := consensus.Recover(consensus.Config{Name: "recover", Dir: t.TempDir()},
		fsm.New(hclog.NewNullLogger(), func(error) {}), consensus.RecoverOptions{Act: true}); !errors.Is(err,
		consensus.ErrNothingToRecover) {
		t.Errorf("an empty folder: %v", err)
	}
}
