package consensus_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/manager/consensus"
)

// TestChangesEndInTime: two of three voters answer and store nothing, so that no change of members is committed. Each
// requested change ends at its caller's deadline and reports what is known; a request that changes nothing succeeds
// meanwhile. When the disks are well again, changes reported as unknown have a known outcome, and changes reported as
// not done are not done.
func TestChangesEndInTime(t *testing.T) {
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, st := c.leader()
		term, _ := l.node.Serving()
		others := slices.DeleteFunc(slices.Clone(c.all), func(s *server) bool { return s == l })
		for _, s := range others {
			s.disk(func() error { return errors.New("no space left on device") })
		}
		first, second := others[0].node.ID(), others[1].node.ID()
		const patience = 10 * time.Second
		inTime := func(what string, patience time.Duration, do func(context.Context) error) error {
			t.Helper()
			began := time.Now()
			err := do(deadline(t, patience))
			if took := time.Since(began); took > patience+100*time.Millisecond {
				t.Errorf("%s: its caller waits %v, and it took %v", what, patience, took)
			}
			return err
		}
		remove := func(id string) func(context.Context) error {
			return func(ctx context.Context) error {
				_, err := st.Remove(ctx, id, false, nil)
				return err
			}
		}
		if err := inTime("the first removal", patience, remove(first)); !errors.Is(err, consensus.ErrUnknownOutcome) {
			t.Errorf("a removal that no follower stores: %v", err)
		}
		if err := inTime("another one, with little time", time.Second, remove(second)); !errors.Is(err, consensus.ErrBusy) {
			t.Errorf("a removal for which there was no time: %v", err)
		}
		if err := inTime("another one", patience, remove(second)); !errors.Is(err, consensus.ErrQuorumAtRisk) &&
			!errors.Is(err, consensus.ErrBusy) {
			t.Errorf("a removal while one is under way: %v", err)
		}
		if err := inTime("registration", patience, func(ctx context.Context) error {
			return st.Join(ctx, joins(others[1]))
		}); err != nil {
			t.Errorf("a member that is unchanged: %v", err)
		}
		if gone, err := st.Gone(deadline(t, patience), first); gone || !errors.Is(err, consensus.ErrUnknownOutcome) {
			t.Errorf("whether it is removed: %v, %v", gone, err)
		}
		for _, s := range others {
			s.disk(nil)
		}
		c.settle(t, "the first one is gone", func(st *consensus.Steward) error {
			gone, err := st.Gone(deadline(t, patience), first)
			if now, _ := l.node.Serving(); err == nil && !gone && now == term {
				t.Fatal("Raft had the removal, and it is not done")
			}
			return err
		})
		_, st = c.leader()
		if gone, err := st.Gone(deadline(t, patience), second); gone || err != nil {
			t.Errorf("what was said not to be done is done: %v %v", gone, err)
		}
	})
}

// TestRefusedJoinAddsNoMember: a server whose registration is refused is not a member either.
func TestRefusedJoinAddsNoMember(t *testing.T) {
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		l, st := c.leader()
		req := joins(fresh("m2"))
		req.Manager.REST = "http://" + strings.Repeat("m", 1<<12)
		if err := st.Join(deadline(t, hang), req); !errors.Is(err, errcode.LimitExceeded) {
			t.Errorf("a manager whose address is too long: %v", err)
		}
		if all, err := l.node.Servers(); err != nil || len(all) != 1 {
			t.Errorf("it was refused, and the members are %v, %v", all, err)
		}
	})
}

// TestRemovalIsLoggedBeforeMembersChange: what a removal has to leave in the log is there before the members change;
// if it is refused, they do not change. If only the leader stores anything, it is in the log nevertheless.
func TestRemovalIsLoggedBeforeMembersChange(t *testing.T) {
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, st := c.leader()
		others := slices.DeleteFunc(slices.Clone(c.all), func(s *server) bool { return s == l })
		member := func(id string) bool {
			t.Helper()
			all, err := l.node.Servers()
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(all, func(m consensus.Server) bool { return m.ID == id })
		}
		first, second := others[0].node.ID(), others[1].node.ID()
		refused := errors.New("refused")
		refuses := func(context.Context) error { return refused }
		if _, err := st.Remove(deadline(t, hang), first, false, refuses); !errors.Is(err, refused) || !member(first) {
			t.Errorf("a removal that is refused: %v", err)
		}
		note := func(id string) func(context.Context) error {
			return func(ctx context.Context) error {
				if !member(id) {
					t.Error("the members change first")
				}
				_, err := l.node.Propose(ctx, projector("removes", id))
				return err
			}
		}
		if _, err := st.Remove(deadline(t, hang), first, false, note(first)); err != nil || member(first) {
			t.Errorf("a removal: %v", err)
		}
		others[1].disk(func() error { return errors.New("no space left on device") })
		if _, err := st.Remove(deadline(t, hang), second, false, note(second)); err != nil || member(second) {
			t.Errorf("the removal of the only other one, which stores nothing: %v", err)
		}
		if p := l.fsm.State().Projector("removes"); p == nil || p.Admin != second {
			t.Errorf("of that nothing is noted: %+v", p)
		}
		others[1].disk(nil)
	})
}
