package managerclient

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/timestamp"
	"tidemark/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// managers is a cluster whose members return prepared answers.
type managers struct {
	mu    sync.Mutex
	asked []int
	hung  int // this one answers no probes; -1: none
	urls  []string
}

func (ms *managers) order() []int {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	asked := ms.asked
	ms.asked = nil
	return asked
}

// start runs one manager per answer.
func start(t *testing.T, answers ...func(w http.ResponseWriter, r *http.Request, ms *managers)) *managers {
	t.Helper()
	ms := &managers{hung: -1}
	for i, answer := range answers {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ms.mu.Lock()
			if r.URL.Path == "/healthz" {
				hangs := ms.hung == i
				ms.mu.Unlock()
				if hangs {
					<-r.Context().Done()
				}
				return
			}
			ms.asked = append(ms.asked, i)
			ms.mu.Unlock()
			answer(w, r, ms)
		}))
		t.Cleanup(s.Close)
		ms.urls = append(ms.urls, s.URL)
	}
	return ms
}

func refuse(status int, code errcode.Code) func(http.ResponseWriter, *http.Request, *managers) {
	return func(w http.ResponseWriter, _ *http.Request, _ *managers) {
		rpc.WriteProblem(w, rpc.NewProblem(status, code, "because"))
	}
}

// leads returns a handler that answers as the leader, which is manager n.
func leads(n int) func(http.ResponseWriter, *http.Request, *managers) {
	return func(w http.ResponseWriter, r *http.Request, ms *managers) {
		l := wire.Leader{ID: "m", REST: ms.urls[n]}
		if r.URL.Path == "/v1/cluster/indexers" {
			rpc.Write(w, r, http.StatusOK, wire.RegisterReply{Leader: l})
			return
		}
		rpc.Write(w, r, http.StatusOK, wire.ReportReply{Leader: l, Revision: 9})
	}
}

func same(a []int, b ...int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestTheLeaderIsFoundAndKept: managers without a leader are skipped, and the leader is tried first from then on.
func TestTheLeaderIsFoundAndKept(t *testing.T) {
	ms := start(t, refuse(503, errcode.NoLeader), refuse(504, errcode.Timeout), leads(2))
	c := New(ms.urls, nil)
	defer c.Close()
	if _, err := c.RegisterIndexer(t.Context(), &wire.RegisterIndexer{}); err != nil {
		t.Fatal(err)
	}
	if got := ms.order(); !same(got, 0, 1, 2) {
		t.Errorf("asked %v", got)
	}
	reply, err := c.ReportIndexer(t.Context(), &wire.IndexerReport{UUID: "a/b"})
	if err != nil || reply.Revision != 9 {
		t.Fatalf("%+v %v", reply, err)
	}
	if got := ms.order(); !same(got, 2) {
		t.Errorf("asked %v", got)
	}
}

// TestALeaderThatIsGoneIsForgotten: the same call tries the next manager.
func TestALeaderThatIsGoneIsForgotten(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + l.Addr().String()
	_ = l.Close()
	ms := start(t, leads(0))
	c := New(append([]string{gone}, ms.urls...), nil)
	defer c.Close()
	c.SetLeader(wire.Leader{REST: gone})
	if _, err := c.ReportProjector(t.Context(), &wire.ProjectorReport{ID: "p"}); err != nil {
		t.Fatal(err)
	}
	if got := c.order()[0]; got != ms.urls[0] {
		t.Errorf("asks %s first", got)
	}
}

// TestASilentLeaderDoesNotHoldAReport: a silent leader is abandoned in time for the next manager.
func TestASilentLeaderDoesNotHoldAReport(t *testing.T) {
	silent := func(_ http.ResponseWriter, r *http.Request, _ *managers) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client is gone
		<-r.Context().Done()
	}
	ms := start(t, silent, leads(1))
	c := New(ms.urls, nil) // tries the silent one first
	defer c.Close()
	// Each call has its own deadline, which the second manager may miss, too.
	for deadline := time.Now().Add(time.Minute); ; ms.order() {
		_, err := c.ReportProjector(t.Context(), &wire.ProjectorReport{ID: "p"})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if got := ms.order(); !same(got, 0, 1) {
		t.Errorf("asked %v", got)
	}
}

func stable(number uint64) wire.BucketStability {
	return wire.BucketStability{Stability: timestamp.Stability{Ref: timestamp.Ref{Number: number}}}
}

// TestHungManagerIsSkipped: a request that may take long goes to the next manager if the first one does not answer
// at all; a manager that answers probes has its whole deadline.
func TestHungManagerIsSkipped(t *testing.T) {
	const wait = time.Minute // of the request
	release := make(chan struct{})
	holds := func(w http.ResponseWriter, r *http.Request, _ *managers) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-release:
			rpc.Write(w, r, http.StatusOK, stable(1))
		}
	}
	second := func(w http.ResponseWriter, r *http.Request, _ *managers) {
		rpc.Write(w, r, http.StatusOK, stable(2))
	}
	for _, tc := range []struct{ hung, want int }{{0, 2}, {-1, 1}} {
		ms := start(t, holds, second)
		ms.mu.Lock()
		ms.hung = tc.hung
		ms.mu.Unlock()
		c := New(ms.urls, nil)
		c.SetLeader(wire.Leader{REST: ms.urls[0]})
		ctx, cancel := context.WithTimeout(t.Context(), wait/2) // hang guard
		if tc.hung < 0 {
			time.AfterFunc(20*detectorLook, func() { close(release) })
		}
		s, err := c.Stabilize(ctx, "b", &wire.StabilizeRequest{WaitMS: wait.Milliseconds()})
		if err != nil || int(s.Number) != tc.want {
			t.Errorf("manager %d hangs: %+v, %v; want the answer of %d", tc.hung, s, err, tc.want)
		}
		cancel()
		c.Close()
	}
}

// detectorLook is about the interval at which a wait is checked.
const detectorLook = 20 * time.Millisecond

// TestWaitsDelayNoOtherCalls: however many scans wait for a timestamp, the leader receives the indexer's reports
// and its clients' tickets as if there were none. Scans beyond the number of connections wait for one.
func TestWaitsDelayNoOtherCalls(t *testing.T) {
	waiting, release := make(chan struct{}, waitsAtOnce+1), make(chan struct{})
	ms := start(t, func(w http.ResponseWriter, r *http.Request, _ *managers) {
		if !strings.HasSuffix(r.URL.Path, ":stabilize") {
			rpc.Write(w, r, http.StatusOK, wire.ReportReply{})
			return
		}
		waiting <- struct{}{}
		<-release
		rpc.Write(w, r, http.StatusOK, stable(1))
	})
	c := New(ms.urls, nil)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // hang guard
	defer cancel()
	var waits sync.WaitGroup
	defer waits.Wait()
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	for range waitsAtOnce + 1 {
		waits.Go(func() {
			if _, err := c.Stabilize(ctx, "b", &wire.StabilizeRequest{WaitMS: time.Hour.Milliseconds()}); err != nil {
				t.Error(err)
			}
		})
	}
	for range waitsAtOnce {
		select {
		case <-waiting:
		case <-ctx.Done():
			t.Fatal("the scans do not come to wait")
		}
	}
	// Each call has its own deadline, which a machine that pauses may miss.
	report := func() error { _, err := c.ReportIndexer(ctx, &wire.IndexerReport{UUID: "u"}); return err }
	ticket := func() error { _, err := c.CheckTicket(ctx, ms.urls[0], "t"); return err }
	for _, try := range []func() error{report, ticket} {
		err := try()
		for err != nil && ctx.Err() == nil {
			err = try()
		}
		if err != nil {
			t.Errorf("beside %d scans that wait: %v", waitsAtOnce, err)
		}
	}
	if len(waiting) > 0 {
		t.Errorf("more than %d wait at the leader", waitsAtOnce)
	}
	free()
}

// TestTimedOutWaitIsAnAnswer: a leader without a timestamp in time is still tried first afterwards, and no other
// manager has to wait as long again.
func TestTimedOutWaitIsAnAnswer(t *testing.T) {
	ms := start(t, refuse(504, errcode.Timeout), leads(0))
	c := New(ms.urls, nil)
	defer c.Close()
	c.SetLeader(wire.Leader{REST: ms.urls[0]})
	var p *rpc.Problem
	if _, err := c.Stabilize(t.Context(), "b", &wire.StabilizeRequest{WaitMS: 1}); !errors.As(err, &p) ||
		p.Code != errcode.Timeout || errors.Is(err, ErrNoManager) {
		t.Error(err)
	}
	if got := ms.order(); !same(got, 0) {
		t.Errorf("asked %v", got)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader != ms.urls[0] {
		t.Errorf("the leader is %q, want the one that answered", c.leader)
	}
}

// TestARefusalIsAnAnswer: a request that the leader refuses is not sent to the others.
func TestARefusalIsAnAnswer(t *testing.T) {
	ms := start(t, refuse(409, errcode.BootConflict), leads(1))
	c := New(ms.urls, nil)
	defer c.Close()
	var p *rpc.Problem
	if _, err := c.RegisterIndexer(t.Context(), &wire.RegisterIndexer{}); !errors.As(err, &p) ||
		p.Code != errcode.BootConflict {
		t.Error(err)
	}
	if got := ms.order(); !same(got, 0) {
		t.Errorf("asked %v", got)
	}
}

func TestNoManagerAnswers(t *testing.T) {
	ms := start(t, refuse(503, errcode.NoLeader), refuse(503, errcode.Unavailable))
	c := New(ms.urls, nil)
	defer c.Close()
	var p *rpc.Problem
	if _, err := c.Stabilize(t.Context(), "b", &wire.StabilizeRequest{WaitMS: 10}); !errors.Is(err, ErrNoManager) ||
		!errors.As(err, &p) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.ReportIndexer(ctx, &wire.IndexerReport{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	none := New(nil, nil)
	defer none.Close()
	if _, err := none.RegisterProjector(t.Context(), &wire.RegisterProjector{}); !errors.Is(err, ErrNoManager) {
		t.Error(err)
	}
	none.SetManagers([]wire.ManagerEndpoint{{REST: ms.urls[0]}})
	none.SetManagers(nil)
	if got := none.order(); len(got) != 1 || got[0] != ms.urls[0] {
		t.Errorf("managers %v", got)
	}
}
