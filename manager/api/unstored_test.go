package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/fsm"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/wire"
)

// TestUnstored checks when a majority of the managers certainly stores nothing, and what is said of them.
func TestUnstored(t *testing.T) {
	manager := func(id, role string, alive bool, faults ...string) v1.ManagerStatus {
		m := v1.ManagerStatus{ID: id, REST: "http://" + id, Role: role, Alive: alive}
		for _, f := range faults {
			m.NotReady = append(m.NotReady, wire.Reason{Code: "disk", Detail: f})
		}
		return m
	}
	const full, hangs, low = "disk fails: /m: no space left on device", "disk hangs: a write to /m", "disk low: 9 bytes"
	m1, m2 := manager("m1", "leader", true), manager("m2", "voter", true, low, full)
	unknown := v1.ManagerStatus{ID: "m3", Role: "voter"} // a manager without a state does not know its address
	for _, c := range []struct {
		name string
		all  []v1.ManagerStatus
		upTo fault
		want []string // "": nothing
	}{
		{"one of three is full", []v1.ManagerStatus{m1, m2, manager("m3", "voter", true)}, silent, nil},
		{"two of three are full", []v1.ManagerStatus{m1, m2, manager("m3", "voter", true, full)}, diskFails,
			[]string{"manager m2 cannot write (" + full + "), manager m3 cannot write", "2 of the 3 managers", "make room"}},
		{"one is full, one hangs", []v1.ManagerStatus{m1, m2, manager("m3", "voter", true, hangs)}, silent,
			[]string{"m2", "m3 cannot write (" + hangs}},
		{"the same, when only failures count", []v1.ManagerStatus{m1, m2, manager("m3", "voter", true, hangs)}, diskFails,
			nil},
		{"one is full, one is silent", []v1.ManagerStatus{m1, m2, manager("m3", "voter", false)}, silent,
			[]string{"m2 cannot write", "manager m3 does not answer"}},
		{"the same, when it may only be late", []v1.ManagerStatus{m1, m2, manager("m3", "voter", false)}, diskFails, nil},
		{"the same, when disks that hang count", []v1.ManagerStatus{m1, m2, manager("m3", "voter", false)}, diskHangs, nil},
		{"two are silent: that is no matter of disks", []v1.ManagerStatus{m1, manager("m2", "voter", false),
			manager("m3", "voter", false)}, silent, nil},
		{"one is full, one is not known", []v1.ManagerStatus{m1, m2, unknown}, silent, nil},
		{"one of two is full", []v1.ManagerStatus{m1, m2}, silent, []string{"2 of the 2 managers"}},
		{"one has no vote", []v1.ManagerStatus{m1, m2, manager("m3", roleNonvoter, true, full),
			manager("m4", "voter", true)}, silent, nil},
		{"low is not full", []v1.ManagerStatus{manager("m1", "leader", true, low)}, silent, nil},
	} {
		got := unstored(c.all, c.upTo)
		if (got == "") != (c.want == nil) {
			t.Errorf("%s: %q", c.name, got)
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in %q", c.name, want, got)
			}
		}
	}
	st := v1.Status{Managers: []v1.ManagerStatus{m1, m2, manager("m3", "voter", true, full)}, Coordinator: "active"}
	st.Leader.ID, st.Node.Role = "m1", "leader"
	if judge(&st, false, false); st.Verdict != v1.VerdictNotReady || !strings.HasPrefix(st.Reasons[0], unstoredWord) {
		t.Errorf("a cluster that stores nothing is %s: %q", st.Verdict, st.Reasons)
	}
	st.Managers[2] = manager("m3", "voter", false)
	if judge(&st, false, false); st.Verdict != v1.VerdictDegraded {
		t.Errorf("a cluster in which one manager is full and another late is %s: %q", st.Verdict, st.Reasons)
	}
}

// TestDiskFaultsOfConsensus checks that a manager whose disk fails, or hangs, reports it in the words by which another
// manager recognizes that. They are literals here because managers of other versions send and read them.
func TestDiskFaultsOfConsensus(t *testing.T) {
	t.Parallel()
	healed := make(chan struct{})
	for _, c := range []struct {
		words  string
		kind   fault
		broken func() error
	}{
		{"disk fails: ", diskFails, func() error { return syscall.ENOSPC }},
		{"disk hangs: ", diskHangs, func() error { <-healed; return nil }},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var begun atomic.Bool
		n, err := consensus.Open(consensus.Config{Name: "m1", Dir: t.TempDir(), Listener: l, REST: "http://127.0.0.1:1",
			SlowWrite: 10 * time.Millisecond, Failpoint: func() error {
				select {
				case <-healed:
				default:
					if begun.Load() {
						return c.broken()
					}
				}
				return nil
			}}, fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) }))
		if err != nil {
			t.Fatal(err)
		}
		begun.Store(true)
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			_ = n.Bootstrap([]consensus.Server{{ID: n.ID(), Raft: n.Addr(), Voter: true}}) // as its disk does
		}()
		defer func() {
			<-wrote
			_ = n.Close()
		}()
		a := over(&ground{cfg: Config{Raft: n, Name: "m1"}, now: time.Now})
		var m v1.ManagerStatus
		for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			m.NotReady, _ = health{a.ground, a.currency}.reasons(n.State())
			if strings.HasPrefix(diskFault(&m, c.kind), c.words) {
				break
			}
			if time.Now().After(until) {
				t.Errorf("%q, of kind %d, is not recognized in %v", c.words, c.kind, m.NotReady)
				break
			}
		}
		if got := diskFault(&m, diskFails); got != "" && c.kind != diskFails {
			t.Errorf("%q counts as a disk that fails", got)
		}
	}
	close(healed)
}

// TestUnstorableWriteEndsEarly checks that a write ends, as if its time were over, when disks have failed at two
// looks in a row, and not before.
func TestUnstorableWriteEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, looks := time.Now(), 0
		ends, end := endingUnstored(t.Context(), func(context.Context) string {
			looks++
			return []string{"", "full", "", "full", "still full"}[looks]
		})
		defer end()
		below, stop := context.WithTimeout(ends, time.Hour) // handlers make contexts of theirs
		defer stop()
		<-below.Done()
		if took, want := time.Since(began), unstoredAfter+3*unstoredLook; took != want || looks != 4 {
			t.Errorf("it ends after %v and %d looks, want %v and 4", took, looks, want)
		}
		for _, ctx := range []context.Context{ends, below} {
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("it ends with %v", ctx.Err())
			}
			if why := unstoredError(""); !errors.As(context.Cause(ctx), &why) || why != "still full" {
				t.Errorf("it ends because of %v", context.Cause(ctx))
			}
		}
		for _, after := range []time.Duration{0, unstoredAfter - 1, unstoredAfter + 1} {
			seen := 0
			left, leave := endingUnstored(t.Context(), func(context.Context) string {
				seen++
				return "full"
			})
			if time.Sleep(after); left.Err() != nil {
				t.Errorf("before its end: %v", left.Err())
			}
			leave()
			if <-left.Done(); !errors.Is(left.Err(), context.Canceled) {
				t.Errorf("of a call that is over: %v", left.Err())
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if want := after > unstoredAfter; seen > 1 || (seen == 1) != want {
				t.Errorf("%d looks for a call that was over after %v", seen, after)
			}
		}
	})
}

// TestOneLookForAll checks that calls which fail at the same time ask the managers once, that two looks of one call are
// two answers, and that the managers are asked again as soon as an answer may be outdated.
func TestOneLookForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		s := newManagerStatuses(func(context.Context) []v1.ManagerStatus {
			time.Sleep(aliveTimeout) // one manager does not answer
			return []v1.ManagerStatus{{Lag: uint64(asked.Add(1))}}
		})
		defer s.close()
		look := func() {
			if all := s.present(t.Context()); len(all) != 1 || all[0].Lag != uint64(asked.Load()) {
				t.Errorf("it was told %v after %d questions", all, asked.Load())
			}
		}
		for round := range int64(3) {
			var calls sync.WaitGroup
			for range 100 {
				calls.Go(look)
			}
			calls.Wait()
			time.Sleep(unstoredLook - 1)
			if look(); asked.Load() != round+1 {
				t.Errorf("the managers were asked %d times in round %d", asked.Load(), round+1)
			}
			time.Sleep(time.Nanosecond)
		}
	})
}

// TestLookInTheBackground checks that calls which do not wait get the last answer at once unless it is old, that they
// have the managers asked one time for all of them, and that this ends when the manager stops.
func TestLookInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, cut := 0, 0
		s := newManagerStatuses(func(ctx context.Context) []v1.ManagerStatus {
			asked++
			select {
			case <-time.After(aliveTimeout): // one manager does not answer
			case <-ctx.Done():
				cut++
			}
			return []v1.ManagerStatus{{Lag: uint64(asked)}}
		})
		look := func(want, questions int) { // want 0: no answer
			t.Helper()
			began := time.Now()
			for range 100 {
				all := s.known()
				if got := len(all); got != min(want, 1) || want > 0 && all[0].Lag != uint64(want) {
					t.Fatalf("it was told %v, want answer %d", all, want)
				}
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("it waited for %v", took)
			}
			if synctest.Wait(); asked != questions {
				t.Errorf("the managers were asked %d times, want %d", asked, questions)
			}
		}
		look(0, 1)
		time.Sleep(aliveTimeout)
		synctest.Wait()
		look(1, 1)
		time.Sleep(unstoredLook - time.Millisecond)
		look(1, 1)
		time.Sleep(time.Millisecond)
		look(1, 2)
		time.Sleep(aliveTimeout)
		synctest.Wait()
		look(2, 2)
		time.Sleep(unstoredOld)
		look(0, 3)
		began := time.Now()
		if s.close(); time.Since(began) != 0 || cut != 1 {
			t.Errorf("its end took %v and cut %d questions", time.Since(began), cut)
		}
		look(0, 3)
	})
}

// TestCloseEndsTheLook checks that a question in the background ends with its API.
func TestCloseEndsTheLook(t *testing.T) {
	t.Parallel()
	a := New(Config{})
	ended := make(chan bool, 1)
	a.managers.ask = func(ctx context.Context) []v1.ManagerStatus {
		select {
		case <-ctx.Done():
			ended <- true
		case <-time.After(time.Minute):
			ended <- false
		}
		return nil
	}
	a.managers.known()
	a.Close()
	select {
	case early := <-ended:
		if !early {
			t.Error("it went on for a minute")
		}
	default:
		t.Error("it goes on")
	}
}

// TestReasonWhyNothingCanBeStored checks which calls are told the reason why they fail: neither those whose callers
// have gone nor those that were refused at once, which would wait for the managers' answers.
// One whose caller has asked not to wait is told what they have answered before.
func TestReasonWhyNothingCanBeStored(t *testing.T) {
	t.Parallel()
	node, _ := pair(t, time.Second)
	a := over(&ground{cfg: Config{Raft: node, Name: "m"}, now: time.Now})
	defer a.managers.close()
	var asked atomic.Int64
	a.managers.ask = func(ctx context.Context) []v1.ManagerStatus {
		asked.Add(1)
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Error("a call waits for the managers")
		}
		return nil
	}
	full := []wire.Reason{{Code: "disk", Detail: "disk fails: /m: no space left on device"}}
	answer := &toldStatuses{at: time.Now().Add(time.Hour), all: []v1.ManagerStatus{
		{ID: "m1", Role: "leader", Alive: true}, {ID: "m2", Role: "voter", NotReady: full}}}
	a.succession = newSuccession(node)
	a.succession.places = nil // no call may wait
	gone, leave := context.WithCancel(t.Context())
	leave()
	late, end := context.WithDeadline(t.Context(), time.Now())
	defer end()
	for _, c := range []struct {
		name      string
		ctx       context.Context
		forwarded bool   // it does not wait
		prefer    string // so does "wait=0"
		upload    bool
		code      errcode.Code
		answered  bool // the managers have been asked; otherwise nobody may wait for their answer
		told      bool
	}{
		{"it did not wait", t.Context(), true, "", false, errcode.NoLeader, true, true},
		{"its time is over", late, true, "", false, errcode.OutcomeUnknown, true, true},
		{"an upload", t.Context(), false, "", true, errcode.OutcomeUnknown, true, true},
		{"its caller has gone", gone, true, "", false, errcode.OutcomeUnknown, false, false},
		{"too many others wait", t.Context(), false, "", false, errcode.NoLeader, false, false},
		{"another refusal", t.Context(), true, "", false, errcode.Busy, false, false},
		{"it was not to wait", t.Context(), false, "wait=0", false, errcode.NoLeader, true, true},
		{"it was not to wait, and is the first", t.Context(), false, "wait=0", false, errcode.NoLeader, false, false},
	} {
		a.managers.last.Store(nil)
		if c.answered {
			a.managers.last.Store(answer)
		}
		r := httptest.NewRequestWithContext(c.ctx, http.MethodPost, "/", http.NoBody)
		if c.forwarded {
			r.Header.Set(HeaderForwarded, "m2")
		}
		if c.prefer != "" {
			r.Header.Set(HeaderPrefer, c.prefer)
		}
		rt := route{method: http.MethodPost, role: RoleAdmin, leader: true, upload: c.upload}
		rt.handle = func(_ http.ResponseWriter, r *http.Request) error {
			if c.ctx.Err() != nil { // that is what ends its wait
				<-r.Context().Done()
			}
			return rpc.Refuse(c.code, "no")
		}
		p := &rpc.Problem{}
		for until := time.Now().Add(time.Minute); p.Code != c.code; { // another one: it does not lead for a moment
			_, err := a.attempt(httptest.NewRecorder(), r, &rt)
			if p = rpc.AsProblem(err); time.Now().After(until) {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		if told := strings.Contains(p.Detail, "manager m2 cannot write"); told != c.told || endedUnstored(p) {
			t.Errorf("%s: told %t, want %t: %s %v", c.name, told, c.told, p.Detail, p.Reasons)
		}
	}
	for until := time.Now().Add(time.Minute); asked.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the managers are not asked for the next call")
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the managers were asked %d times", n)
	}
}
