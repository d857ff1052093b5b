package consensus_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

// slowConn is a connection with a limited number of bytes per second.
type slowConn struct {
	net.Conn
	perSecond int
}

func (c slowConn) Write(b []byte) (int, error) {
	time.Sleep(time.Duration(len(b)) * time.Second / time.Duration(c.perSecond))
	return c.Conn.Write(b)
}

// TestLargeEntriesOverALink: a new server receives 45 MiB of large entries (pieces of a restore) over 100 Mbit/s. As
// many of them as the library puts into one call would take longer than a call may.
func TestLargeEntriesOverALink(t *testing.T) {
	const perSecond = 100_000_000 / 8
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		c.all[0].stop()
		c.all[0].tune = func(cfg *consensus.Config) {
			dial := cfg.Dial
			cfg.Dial = func(to string, d time.Duration) (net.Conn, error) {
				conn, err := dial(to, d)
				if err == nil {
					conn = slowConn{conn, perSecond}
				}
				return conn, err
			}
		}
		c.start(c.all[0])
		for range 180 {
			c.all.propose(statecontext.Command{Body: &statecontext.RestoreChunk{ID: "x", Data: make([]byte, 256<<10)}})
		}
		s := fresh("m2")
		c.settle(t, "join", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), joins(s)) })
		time.Sleep(time.Minute)
		l, _ := c.leader()
		if have, want := s.node.Stats().LastIndex, l.node.Stats().LastIndex; have+10 < want {
			t.Errorf("after a minute the new server has the log up to %d of %d", have, want)
		}
	})
}

// grow grows the cluster to n voters with new servers m2, m3 and so on.
func (c *stewarded) grow(t *testing.T, fresh func(string) *server, n int) {
	t.Helper()
	for i := 2; i <= n; i++ {
		s := fresh(fmt.Sprint("m", i))
		c.settle(t, "join", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), joins(s)) })
	}
	eventually(t, fmt.Sprint(n, " voters"), func() bool { v, _ := c.voters(t); return v == n })
}

// TestRemovalDuringPromotion: a server that is removed while the steward, which waits for a hanging member, is about
// to promote it does not become a member again.
func TestRemovalDuringPromotion(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, _ := c.leader()
		var hung *server // its packets are lost
		for _, s := range c.all {
			if s != l {
				hung = s
			}
		}
		names := []string{"x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9"}
		h.isolate(hung.name, true, append([]string{"m1", "m2", "m3"}, names...)...)
		for i, name := range names { // a second later each
			s := fresh(name)
			c.settle(t, "join", func(st *consensus.Steward) error { return st.Join(deadline(t, hang), joins(s)) })
			id := s.node.ID()
			time.Sleep(time.Duration(i+1) * time.Second)
			c.settle(t, "remove", func(st *consensus.Steward) error {
				_, err := st.Remove(deadline(t, hang), id, false, nil)
				return err
			})
			time.Sleep(15 * time.Second)
			l, _ := c.leader()
			members, err := l.node.Servers()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range members {
				if m.ID == id {
					t.Errorf("it was removed %d s after it joined, and 15 s later it is a member: %+v", i+1, m)
				}
			}
			s.stop()
		}
	})
}

// TestRemovalBesideAFullDisk: of three voters one answers but cannot store anything. Removing another one without
// force is refused, although nothing else is written; the one with the full disk can be removed, and then the other.
func TestRemovalBesideAFullDisk(t *testing.T) {
	virtualCluster(t, func(t *testing.T, _ *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 3)
		l, st := c.leader()
		var others []*server
		for _, s := range c.all {
			if s != l {
				others = append(others, s)
			}
		}
		full, well := others[0], others[1]
		full.disk(func() error { return errors.New("no space left on device") })
		if _, err := st.Remove(deadline(t, hang), well.node.ID(), false, nil); !errors.Is(err, consensus.ErrQuorumAtRisk) {
			t.Errorf("the removal of the one that is well: %v", err)
		}
		for i := range 3 {
			c.all.propose(projector(fmt.Sprint("p", i), "x"))
		}
		if _, err := st.Remove(deadline(t, hang), full.node.ID(), false, nil); err != nil {
			t.Errorf("the removal of the full one: %v", err)
		}
		full.disk(nil)
		if _, err := st.Remove(deadline(t, hang), well.node.ID(), false, nil); err != nil {
			t.Errorf("the removal of the other: %v", err)
		}
	})
}

// TestRemovalBesideASlowDisk: one member is silent, and another one takes a second to store what all others have. It
// counts as storing, although the survey waits for the silent one for longer than storePatience.
func TestRemovalBesideASlowDisk(t *testing.T) {
	virtualCluster(t, func(t *testing.T, h *hub, c *stewarded, fresh func(string) *server) {
		c.grow(t, fresh, 5)
		l, st := c.leader()
		others := slices.DeleteFunc(slices.Clone(c.all), func(s *server) bool { return s == l })
		silent, slow, goes := others[0], others[1], others[2]
		h.isolate(silent.name, true, c.all.names(silent)...)
		slow.disk(func() error { time.Sleep(time.Second); return nil })
		if _, err := st.Remove(deadline(t, hang), goes.node.ID(), false, nil); err != nil {
			t.Error(err)
		}
		slow.disk(nil)
	})
}
