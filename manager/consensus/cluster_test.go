package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"tidemark/fsm"
	"tidemark/index"
	"tidemark/internal/testing/garbage"
	"tidemark/internal/testing/ports"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

func TestMain(m *testing.M) {
	garbage.Rarely()
	goleak.VerifyTestMain(m)
}

const heartbeat = 300 * time.Millisecond // the default: shorter ones lose their leader on a busy machine

// server is one manager of a test cluster: a node with its state machine, which can be restarted at the same address.
type server struct {
	t    testing.TB
	name string
	dir  string
	addr string
	tune func(*consensus.Config)
	hub  *hub // replaces TCP, if set
	// log, if set, compares what the servers of the cluster apply.
	log *ledger
	// chance is the source of a test's random faults.
	chance *rand.Rand
	// failpoint, if set, is called before each write to the store.
	failpoint atomic.Pointer[func() error]
	// applying, if set, is called before each entry is applied, in a cluster with a log.
	applying atomic.Pointer[func()]
	node     *consensus.Node
	fsm      *fsm.FSM

	live     atomic.Pointer[consensus.Node] // node, for other goroutines of a test
	restores atomic.Int64                   // state snapshots restored, at the start or from a leader
	cancel   context.CancelFunc
	ended    chan error
	lead     func(ctx context.Context, term uint64) error

	mu    sync.Mutex
	terms []uint64 // in which its leader loop ran
	// duties counts the leader loops that run now.
	duties int
}

type servers []*server

func newServer(t testing.TB, name string) *server {
	return &server{t: t, name: name, dir: filepath.Join(t.TempDir(), name), addr: ports.Addr(t)}
}

// newCluster starts n servers and bootstraps them.
func newCluster(t testing.TB, n int) servers {
	all := make(servers, n)
	for i := range all {
		all[i] = newServer(t, fmt.Sprintf("m%d", i+1))
		all[i].start()
	}
	all.bootstrap()
	return all
}

func (all servers) bootstrap() {
	var members []consensus.Server
	for _, s := range all {
		members = append(members, consensus.Server{ID: s.node.ID(), Raft: s.node.Addr(), Voter: true})
	}
	if err := all[0].node.Bootstrap(members); err != nil {
		all[0].t.Fatal(err)
	}
}

func (s *server) start() {
	s.t.Helper()
	logger := hclog.NewNullLogger()
	if testing.Verbose() {
		logger = hclog.New(&hclog.LoggerOptions{Name: s.name, Level: hclog.Debug})
	}
	listener, dial := s.listen()
	s.addr = listener.Addr().String()
	s.fsm = fsm.New(logger, func(err error) { s.t.Error(err) })
	var machine consensus.StateMachine = s.fsm
	if s.log != nil {
		machine = s.log.tap(s)
	}
	cfg := consensus.Config{Failpoint: s.fail, Name: s.name, Dir: s.dir, REST: "http://" + s.name, Listener: listener,
		Dial: dial, Heartbeat: heartbeat, Logger: logger}
	if s.tune != nil {
		s.tune(&cfg)
	}
	node, err := consensus.Open(cfg, machine)
	if err != nil {
		s.t.Fatal(err)
	}
	s.node = node
	s.live.Store(node)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.ended = cancel, make(chan error, 1)
	go func() { s.ended <- node.Run(ctx, s.onLeader) }()
	s.t.Cleanup(func() { s.stop() })
}

// fail runs the failpoint of a write to the store.
func (s *server) fail() error {
	if f := s.failpoint.Load(); f != nil {
		return (*f)()
	}
	return nil
}

// disk sets the failpoint for writes to the store; nil removes it.
func (s *server) disk(f func() error) {
	if f == nil {
		s.failpoint.Store(nil)
		return
	}
	s.failpoint.Store(&f)
}

func (s *server) listen() (net.Listener, func(string, time.Duration) (net.Conn, error)) {
	if s.hub != nil {
		return s.hub.listen(s.name), func(to string, d time.Duration) (net.Conn, error) { return s.hub.dial(s.name, to, d) }
	}
	listener, err := net.Listen("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	return listener, nil
}

func (s *server) onLeader(ctx context.Context, term uint64) error {
	s.mu.Lock()
	s.terms = append(s.terms, term)
	s.duties++
	if s.duties > 1 {
		s.t.Errorf("%s: %d leader loops at once, the newest of term %d", s.name, s.duties, term)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.duties--
		s.mu.Unlock()
	}()
	if s.lead != nil {
		return s.lead(ctx, term)
	}
	<-ctx.Done()
	return ctx.Err()
}

// running returns the node, nil while it is stopped.
func (s *server) running() *consensus.Node { return s.live.Load() }

// stop closes the node in order.
func (s *server) stop() {
	if s.node == nil {
		return
	}
	s.live.Store(nil)
	if err := s.node.Close(); err != nil {
		s.t.Error(err)
	}
	s.cancel()
	if err := <-s.ended; err != nil {
		s.t.Error(err)
	}
	s.node = nil
}

func deadline(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// hang is when a test gives up on something that has no bound of its own: even on a machine that pauses for seconds,
// and in virtual time with bad luck, it should have happened by then.
const hang = time.Minute

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", hang, what)
		}
	}
}

// leader waits for a serving leader.
func (all servers) leader() *server {
	var found *server
	eventually(all[0].t, "a serving leader", func() bool {
		for _, s := range all {
			if s.node == nil {
				continue
			}
			if _, ok := s.node.Serving(); ok {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

func (all servers) follower() *server {
	l := all.leader()
	for _, s := range all {
		if s != l && s.node != nil {
			return s
		}
	}
	return nil
}

// projector is a command with a trace: projector id at admin.
func projector(id, admin string) statecontext.Command {
	p := &statecontext.RegisterProjector{}
	p.Projector.ID, p.Projector.Admin = index.ProjectorID(id), admin
	return statecontext.Command{Body: p}
}

// propose sends a command to the leader until it is accepted.
func (all servers) propose(c statecontext.Command) statecontext.Result {
	t := all[0].t
	t.Helper()
	ctx := deadline(t, hang)
	for {
		r, err := all.leader().node.Propose(ctx, c)
		if err == nil {
			return r
		}
		if ctx.Err() != nil || !errors.Is(err, consensus.ErrNotLeader) && !errors.Is(err, consensus.ErrUnknownOutcome) {
			t.Fatal(err)
		}
	}
}

// agree waits until all running servers have the same state.
func (all servers) agree() {
	t := all[0].t
	t.Helper()
	defer func() {
		if t.Failed() {
			for _, s := range all {
				if s.node != nil {
					members, err := s.node.Servers()
					t.Logf("%s: cas %d, %+v, leader %+v, not ready for %v, members %v %v", s.name, s.fsm.State().CAS(), s.node.Stats(),
						s.node.Leader(), s.node.Reasons(), members, err)
				}
			}
		}
	}()
	eventually(t, "equal states", func() bool {
		hashes := map[uint64]bool{}
		for _, s := range all {
			if s.node != nil {
				hashes[statecontext.Hash(s.fsm.State())] = true
			}
		}
		return len(hashes) == 1
	})
	for _, s := range all {
		if s.node != nil {
			if err := statecontext.Check(s.fsm.State()); err != nil {
				t.Fatal(err)
			}
		}
	}
}
