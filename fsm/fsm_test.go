package fsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"tidemark/fsm"
	"tidemark/index"
	"tidemark/statecontext"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine drives a state machine as Raft does.
type machine struct {
	t     testing.TB
	fsm   *fsm.FSM
	index uint64
	fatal []error
}

func newMachine(t testing.TB) *machine {
	m := &machine{t: t}
	m.fsm = fsm.New(hclog.NewNullLogger(), func(err error) { m.fatal = append(m.fatal, err) })
	m.apply(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m"}},
		&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1})
	return m
}

func entry(t testing.TB, bodies ...statecontext.Body) []byte {
	var commands []statecontext.Command
	for _, b := range bodies {
		commands = append(commands, statecontext.Command{Body: b})
	}
	data, err := statecontext.Encode(commands...)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (m *machine) apply(bodies ...statecontext.Body) []statecontext.Result {
	m.t.Helper()
	m.index++
	results, ok := m.fsm.Apply(&raft.Log{Index: m.index, Term: 1, Data: entry(m.t, bodies...)}).([]statecontext.Result)
	if !ok {
		m.t.Fatal("no results")
	}
	return results
}

func projector(id string, n int) statecontext.Body {
	return &statecontext.RegisterProjector{Projector: statecontext.Projector{ID: index.ProjectorID(id),
		Admin: fmt.Sprint(n)}}
}

func TestEventsAreCompleteAndOrdered(t *testing.T) {
	m := newMachine(t)
	sub := m.fsm.Subscribe()
	defer sub.Close()
	const updates = 20_000 // more than the ring holds
	since := m.fsm.State().CAS()
	for i := range updates {
		m.apply(projector("p", i))
		if i%100 != 0 {
			continue
		}
		select {
		case <-sub.C():
		default:
			t.Fatal("no signal after a change")
		}
		feed := m.fsm.Feed(0, since)
		if !feed.Held || feed.State != m.fsm.State() {
			t.Fatalf("events after %d are not held, or not with the newest state", since)
		}
		for _, e := range feed.Events {
			if e.CAS != since+1 {
				t.Fatalf("event of cas %d after %d", e.CAS, since)
			}
			since = e.CAS
		}
		if since != m.fsm.State().CAS() {
			t.Fatalf("seen up to %d, the state is at %d", since, m.fsm.State().CAS())
		}
	}
	if m.fsm.Feed(0, 5).Held {
		t.Fatal("the oldest events are said to be held still")
	}
	if m.fsm.Feed(0, m.fsm.State().CAS()+1).Held {
		t.Fatal("events of the future are said to be held")
	}
}

func TestEventsOfOneUpdateComeTogether(t *testing.T) {
	m := newMachine(t)
	m.apply(&statecontext.RegisterManager{Manager: statecontext.Manager{ID: "m2"}},
		&statecontext.LeaderStarted{Term: 2, Manager: statecontext.Manager{ID: "m3"}})
	cas := m.fsm.State().CAS()
	feed := m.fsm.Feed(0, cas-1)
	if events := feed.Events; !feed.Held || len(events) != 2 || events[0].CAS != cas || events[1].CAS != cas {
		t.Fatalf("%+v", events)
	}
}

func TestWait(t *testing.T) {
	m := newMachine(t)
	if err := m.fsm.Wait(context.Background(), m.index); err != nil {
		t.Fatal(err)
	}
	const waiters = 200
	errs, base := make([]error, waiters), m.index
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			if i%2 == 1 {
				errs[i] = m.fsm.Wait(ctx, 1<<40)
				return
			}
			want := base + uint64(1+i%10)
			errs[i] = m.fsm.Wait(context.Background(), want)
			if got := m.fsm.State().AppliedIndex(); got < want {
				errs[i] = fmt.Errorf("waited for %d, released at %d", want, got)
			}
		})
	}
	time.Sleep(10 * time.Millisecond) // most of them wait by now; the test is valid either way
	for i := range 20 {
		m.apply(projector("p", i))
	}
	cancel()
	wg.Wait()
	for i, err := range errs {
		if i%2 == 0 && err != nil || i%2 == 1 && !errors.Is(err, context.Canceled) {
			t.Errorf("waiter %d: %v", i, err)
		}
	}
}

type sink struct {
	bytes.Buffer
	cancelled, closed bool
	fail              error
}

func (s *sink) Write(b []byte) (int, error) {
	if s.fail != nil {
		return 0, s.fail
	}
	return s.Buffer.Write(b)
}
func (s *sink) ID() string    { return "test" }
func (s *sink) Cancel() error { s.cancelled = true; return nil }
func (s *sink) Close() error  { s.closed = true; return nil }

func TestSnapshotAndRestore(t *testing.T) {
	m := newMachine(t)
	m.apply(projector("p", 1))
	snap, err := m.fsm.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	hash, at := statecontext.Hash(m.fsm.State()), m.index
	m.apply(projector("p", 2)) // the snapshot does not change
	var out sink
	if err := snap.Persist(&out); err != nil || !out.closed {
		t.Fatal(err, out.closed)
	}
	snap.Release()
	full := &sink{fail: errors.New("disk full")}
	if err := snap.Persist(full); !errors.Is(err, full.fail) || !full.cancelled || full.closed {
		t.Fatalf("a failing sink: %v, cancelled %v, closed %v", err, full.cancelled, full.closed)
	}

	other := newMachine(t)
	sub := other.fsm.Subscribe()
	defer sub.Close()
	waited := make(chan error, 1)
	go func() { waited <- other.fsm.Wait(context.Background(), at) }()
	torn := out.Bytes()[:out.Len()-3]
	before := statecontext.Hash(other.fsm.State())
	if err := other.fsm.Restore(io.NopCloser(bytes.NewReader(torn))); !errors.Is(err, statecontext.ErrSnapshotCorrupt) ||
		statecontext.Hash(other.fsm.State()) != before {
		t.Fatalf("a torn snapshot: %v", err)
	}
	if err := other.fsm.Restore(io.NopCloser(bytes.NewReader(out.Bytes()))); err != nil {
		t.Fatal(err)
	}
	if statecontext.Hash(other.fsm.State()) != hash {
		t.Fatal("restored another state")
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	<-sub.C()
	cas := other.fsm.State().CAS()
	if other.fsm.Feed(0, cas).Held {
		t.Fatal("who saw the state before the restore is said to know all")
	}
	if feed := other.fsm.Feed(1, 1); feed.Held || feed.Restores != 1 {
		t.Fatal("events from before the restored state are said to be held")
	}
	if !other.fsm.Feed(1, cas).Held {
		t.Fatal("a subscriber at the restored cas must begin anew")
	}
}

func TestUndecodableEntryStops(t *testing.T) {
	for name, data := range map[string][]byte{
		"newer format": append([]byte{99}, entry(t, projector("p", 1))[1:]...),
		"flipped bit":  func() []byte { d := entry(t, projector("p", 1)); d[8] ^= 1; return d }(),
		"empty":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			cas := m.fsm.State().CAS()
			waited := make(chan error, 1)
			go func() { waited <- m.fsm.Wait(context.Background(), m.index+1) }()
			if err, ok := m.fsm.Apply(&raft.Log{Index: m.index + 1, Data: data}).(error); !ok ||
				!errors.Is(err, statecontext.ErrUndecodable) {
				t.Fatalf("gave %v", err)
			}
			good := m.fsm.Apply(&raft.Log{Index: m.index + 2, Data: entry(t, projector("p", 1))})
			if err, ok := good.(error); !ok || !errors.Is(err, fsm.ErrStopped) || m.fsm.State().CAS() != cas {
				t.Fatalf("went on after what it did not understand: %v", good)
			}
			if len(m.fatal) != 1 {
				t.Fatalf("the process was notified %d times", len(m.fatal))
			}
			if err := <-waited; !errors.Is(err, fsm.ErrStopped) {
				t.Fatalf("the waiting caller got %v", err)
			}
			if _, err := m.fsm.Snapshot(); !errors.Is(err, fsm.ErrStopped) {
				t.Fatalf("a snapshot with a hole: %v", err)
			}
		})
	}
}

func BenchmarkApply(b *testing.B) {
	m := newMachine(b)
	data := [2][]byte{entry(b, projector("p", 1)), entry(b, projector("p", 2))}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.fsm.Apply(&raft.Log{Index: uint64(i + 10), Data: data[i%2]})
	}
}
