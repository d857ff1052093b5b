package consensus_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/fsm"
	"tidemark/manager/consensus"
)

// TestWipedVoterHasNoVote is the test of the design: cut off C, write on A and B, wipe B, kill A, heal C. C and the
// new B are two of three addresses; if B voted under its old id, C would lead without the write. It runs in virtual
// time: on a busy machine a leader may lose leadership during a change of members, whose outcome is then rightly
// unknown (TestFaultsKeepHistory covers that).
func TestWipedVoterHasNoVote(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, _ *hub, all servers) {
		a := all.leader()
		var b, c *server
		for _, s := range all {
			switch {
			case s == a:
			case b == nil:
				b = s
			default:
				c = s
			}
		}
		all.propose(projector("early", "x"))
		all.agree()
		c.stop()
		all.propose(projector("acknowledged", "x"))
		oldB := b.node.ID()
		b.stop()
		a.stop()
		if err := os.RemoveAll(b.dir); err != nil {
			t.Fatal(err)
		}
		b.start()
		c.start()
		if b.node.ID() == oldB || !strings.HasPrefix(b.node.ID(), b.name+"-") {
			t.Fatalf("the wiped server came back as %s", b.node.ID())
		}
		for end := time.Now().Add(20 * heartbeat); time.Now().Before(end); time.Sleep(heartbeat / 10) {
			for _, s := range (servers{b, c}) {
				if _, ok := s.node.Serving(); ok || s.node.Leader().Known {
					t.Fatalf("%s sees a leader %+v", s.name, s.node.Leader())
				}
			}
		}
		if has, err := b.node.HasState(); err != nil || has {
			t.Fatalf("the wiped server has state: %v %v", has, err)
		}

		// A comes back: it leads with C, nothing is lost, and B joins under its new id, step by step.
		a.start()
		eventually(t, "a leader", func() bool { _, x := a.node.Serving(); _, y := c.node.Serving(); return x || y })
		l := (servers{a, c}).leader()
		if l.fsm.State().Projector("acknowledged") == nil {
			t.Fatal("an acknowledged write is lost")
		}
		seen, err := l.node.Servers()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.node.RemoveServer(context.Background(), oldB, seen); err != nil {
			t.Fatal(err)
		}
		if err := l.node.RemoveServer(context.Background(), c.node.ID(), seen); !errors.Is(err, consensus.ErrMembersChanged) {
			t.Fatal("a decision on older members was carried out")
		}
		newB := consensus.Server{ID: b.node.ID(), Raft: b.node.Addr()}
		if err := l.node.AddNonvoter(context.Background(), newB, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "B has caught up", func() bool { return b.fsm.State().Projector("acknowledged") != nil })
		if err := l.node.AddVoter(context.Background(), newB, nil); err != nil {
			t.Fatal(err)
		}
		members, err := l.node.Servers()
		if err != nil || len(members) != 3 {
			t.Fatalf("members %+v, %v", members, err)
		}
		for _, m := range members {
			if !m.Voter {
				t.Errorf("%s is no voter", m.ID)
			}
		}
		l.stop() // the new B counts
		(servers{a, b, c}).propose(projector("later", "x"))
	})
}

func TestStoreInUse(t *testing.T) {
	t.Parallel()
	s := newServer(t, "m1")
	s.start()
	_, err := consensus.Open(consensus.Config{Name: "m1", Dir: s.dir, RaftAddr: "127.0.0.1:0"},
		fsm.New(hclog.NewNullLogger(), func(error) {}))
	if !errors.Is(err, consensus.ErrInUse) || !strings.Contains(err.Error(), s.dir) {
		t.Fatalf("a second process on one directory: %v", err)
	}
}

func TestBadConfigs(t *testing.T) {
	machine := fsm.New(hclog.NewNullLogger(), func(error) {})
	dir := t.TempDir()
	file := dir + "/file"
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		cfg  consensus.Config
		want error
	}{
		"no name":        {consensus.Config{Dir: dir, RaftAddr: "127.0.0.1:0"}, consensus.ErrConfig},
		"no address":     {consensus.Config{Name: "m", Dir: dir}, consensus.ErrConfig},
		"fast heartbeat": {consensus.Config{Name: "m", Dir: dir, RaftAddr: "127.0.0.1:0", Heartbeat: 1}, consensus.ErrConfig},
		"port in use":    {consensus.Config{Name: "m", Dir: dir, RaftAddr: taken.Addr().String()}, consensus.ErrConfig},
		"advertise all": {consensus.Config{Name: "m", Dir: dir, RaftAddr: "127.0.0.1:0", Advertise: "0.0.0.0:1"},
			consensus.ErrConfig},
		"dir is a file": {consensus.Config{Name: "m", Dir: file, RaftAddr: "127.0.0.1:0"}, consensus.ErrStore},
	} {
		t.Run(name, func(t *testing.T) {
			if n, err := consensus.Open(c.cfg, machine); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
				if n != nil {
					n.Close()
				}
			}
		})
	}
}

func TestDamagedStore(t *testing.T) {
	s := newServer(t, "m1")
	s.start()
	(servers{s}).bootstrap()
	(servers{s}).propose(projector("p", "x"))
	s.stop()
	path := s.dir + "/raft.db"
	for name, damage := range map[string]func([]byte) []byte{
		"torn":    func(b []byte) []byte { return b[:100] },
		"zeroed":  func(b []byte) []byte { return make([]byte, len(b)) },
		"foreign": func(b []byte) []byte { return []byte(strings.Repeat("not a store ", 4096)) },
	} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.WriteFile(dir+"/raft.db", damage(data), 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := consensus.Open(consensus.Config{Name: "m1", Dir: dir, RaftAddr: "127.0.0.1:0"},
				fsm.New(hclog.NewNullLogger(), func(error) {}))
			if !errors.Is(err, consensus.ErrStore) || !strings.Contains(err.Error(), dir) {
				t.Errorf("a damaged store: %v", err)
			}
			if n != nil {
				n.Close()
			}
		})
	}
}

// TestHandshake: a caller whose handshake is not that of a manager of this cluster is refused, and blocks no other
// caller.
func TestHandshake(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 1)
	all.propose(projector("p", "x"))
	s := all[0]
	cluster, id := s.fsm.State().ClusterID(), s.node.ID()
	now, rest := s.fsm.State().Epoch(), "http://"+s.name
	handshakeOf := func(version byte, cluster, id, from string, epoch uint64) string {
		text := []byte("TMRF" + string(version))
		for _, t := range []string{cluster, id, from} {
			text = append(append(text, byte(len(t))), t...)
		}
		return string(binary.BigEndian.AppendUint64(text, epoch))
	}
	handshake := func(version byte, cluster, id string) string {
		return handshakeOf(version, cluster, id, "m9-00000000", now)
	}
	for name, c := range map[string]struct{ send, want string }{
		"right":              {handshake(1, cluster, id), "\x00" + string(byte(len(rest))) + rest},
		"right, new node":    {handshake(1, "", id), "\x00\x00"},
		"foreign cluster":    {handshake(1, "0123456789abcdef", id), "the caller is m9-00000000 of cluster 0123456789abcdef"},
		"wrong id":           {handshake(1, cluster, "m1-00000000"), "not m1-00000000"},
		"left by a recovery": {handshakeOf(1, cluster, id, "m9-00000000", now-1), "recovered without m9-00000000"},
		"a member, behind":   {handshakeOf(1, cluster, id, id, now-1), "\x00" + string(byte(len(rest))) + rest},
		"newer version":      {handshake(2, cluster, id), ""},
		"http":               {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		"lying length":       {"TMRF\x01\xffabc", ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(c.send)); err != nil {
				t.Fatal(err)
			}
			if name == "lying length" {
				conn.(*net.TCPConn).CloseWrite()
			}
			if err := conn.SetReadDeadline(time.Now().Add(hang)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 300)
			k, err := conn.Read(buf)
			got := string(buf[:k])
			if c.want == "" && err == nil || !strings.Contains(got, c.want) {
				t.Errorf("answer %q, %v; want %q", got, err, c.want)
			}
		})
	}
	idle := make([]net.Conn, 0, 300) // more than are accepted at once
	for range cap(idle) {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	all.propose(projector("p", "y"))
	for _, c := range idle {
		c.Close()
	}
}
