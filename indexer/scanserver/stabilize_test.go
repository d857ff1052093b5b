package scanserver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/managerclient"
	"tidemark/timestamp"
	"tidemark/wire"
)

// received holds the timestamps that a node has received.
type received struct {
	mu      sync.Mutex
	newest  map[string]wire.BucketStability
	changed chan struct{}
}

func newReceived() *received {
	return &received{newest: map[string]wire.BucketStability{}, changed: make(chan struct{})}
}

func (h *received) Newest(bucket string) (wire.BucketStability, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.newest[bucket]
	return s, ok
}

func (h *received) Changed(string) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *received) Published(s *wire.BucketStability) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.newest[s.Bucket]; !ok || s.Compare(old.Ref) > 0 {
		h.newest[s.Bucket] = *s
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// vector returns a vector with the given seqnos, one per vbucket, all on one branch.
func vector(branch uint64, seqnos ...uint64) timestamp.Vector {
	v := timestamp.New(len(seqnos))
	for vb, s := range seqnos {
		v.Set(vb, timestamp.Position{VBUUID: branch, Seqno: s})
	}
	return v
}

// leader is a leader whose answers the test decides.
type leader struct {
	*received
	truth *Truth

	made  wire.BucketStability // the newest timestamp
	polls []wire.StabilizeRequest
	goOn  []chan error // by poll: ends the poll with this error, or with the newest timestamp if nil
	ended []bool       // by poll: whether its context ended before the answer
}

func newLeader() *leader {
	l := &leader{received: newReceived()}
	l.truth = NewTruth(Sources{Leader: l, Stabilities: l.received})
	return l
}

// Stabilize implements Leader.
func (l *leader) Stabilize(ctx context.Context, _ string, req *wire.StabilizeRequest) (*wire.BucketStability,
	error) {
	l.mu.Lock()
	n, goOn := len(l.polls), make(chan error, 1)
	l.polls, l.goOn, l.ended = append(l.polls, *req), append(l.goOn, goOn), append(l.ended, false)
	l.mu.Unlock()
	over := time.NewTimer(time.Duration(req.WaitMS) * time.Millisecond)
	defer over.Stop()
	select {
	case err := <-goOn:
		l.mu.Lock()
		defer l.mu.Unlock()
		s := l.made
		return &s, err
	case <-over.C:
		return nil, rpc.Refuse(errcode.Timeout, "KV does not get there")
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended[n] = true
		return nil, ctx.Err()
	}
}

// reach makes a timestamp, but does not send it to the node.
func (l *leader) reach(number uint64, v timestamp.Vector) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made = wire.BucketStability{Bucket: "b",
		Stability: timestamp.Stability{Ref: timestamp.Ref{Number: number}, Vector: v}}
}

// promote makes a timestamp and sends it to the node.
func (l *leader) promote(number uint64, v timestamp.Vector) {
	l.reach(number, v)
	l.Published(&l.made)
	synctest.Wait()
}

// answer ends a poll.
func (l *leader) answer(poll int, err error) {
	l.mu.Lock()
	goOn := l.goOn[poll]
	l.mu.Unlock()
	goOn <- err
	synctest.Wait()
}

// scan waits for a timestamp in the background. The channel receives its number, or the reason for an error.
func (l *leader) scan(ctx context.Context, need timestamp.Vector, wait time.Duration) <-chan string {
	came := make(chan string, 1)
	go func() {
		s, err := l.truth.Stabilize(ctx, "b", need, wait)
		if err != nil {
			came <- string(scan.CodeOf(err))
			return
		}
		came <- fmt.Sprint(s.Number)
	}()
	synctest.Wait()
	return came
}

// needs returns what was requested of the leader, poll by poll.
func (l *leader) needs() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, p := range l.polls {
		all = append(all, fmt.Sprint(p.Need.Seqnos))
	}
	return strings.Join(all, ", ")
}

func outcome(came <-chan string) string {
	select {
	case s := <-came:
		return s
	default:
		return "waits"
	}
}

// TestScansShareAPoll checks that scans that come while another one waits at the leader share one poll after it,
// for the maximum of what they need.
func TestScansShareAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader()
		l.promote(1, vector(7, 10, 10))
		if s := outcome(l.scan(t.Context(), vector(7, 10, 9), time.Second)); s != "1" || l.needs() != "" {
			t.Errorf("what is known already: %s, the leader got requests for %s", s, l.needs())
		}
		first := l.scan(t.Context(), vector(7, 11, 10), time.Second)
		second := l.scan(t.Context(), vector(7, 12, 10), 2*time.Second)
		third := l.scan(t.Context(), vector(7, 11, 13), time.Second)
		l.reach(2, vector(7, 11, 10))
		l.answer(0, nil)
		if s := outcome(first) + outcome(second) + outcome(third); s != "2waitswaits" || l.needs() != "[11 10], [12 13]" {
			t.Errorf("%s, the leader got requests for %s", s, l.needs())
		}
		l.mu.Lock()
		wait := l.polls[1].WaitMS
		l.mu.Unlock()
		if wait != 2000 {
			t.Errorf("the leader is to wait %d ms, want as long as the request with the longest wait", wait)
		}
		l.promote(3, vector(7, 12, 12)) // the node receives it before the leader answers
		if s := outcome(second) + outcome(third); s != "3waits" {
			t.Error(s)
		}
		l.promote(4, vector(7, 12, 13))
		if s := outcome(third); s != "4" {
			t.Error(s)
		}
		l.answer(1, nil)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ended[1] {
			t.Error("a wait that was answered in a moment was broken off")
		}
	})
}

// TestBranchesArePolledSeparately checks that needs from before and after a failover are polled separately, and
// that a timestamp on another branch satisfies neither.
func TestBranchesArePolledSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader()
		l.promote(1, vector(7, 10))
		ctx, cancel := context.WithCancel(t.Context())
		old := l.scan(ctx, vector(7, 12), time.Second)
		others := []<-chan string{l.scan(ctx, vector(7, 13), time.Second), l.scan(ctx, vector(8, 11), time.Second)}
		l.promote(2, vector(8, 20))
		if s := outcome(old) + outcome(others[0]) + outcome(others[1]); s != "waitswaits2" {
			t.Error(s)
		}
		l.answer(0, rpc.Refuse(errcode.TokenLost, "it is lost"))
		l.answer(1, rpc.Refuse(errcode.TokenLost, "it is lost"))
		if s := outcome(old) + outcome(others[0]); s != "TOKEN_LOSTTOKEN_LOST" || l.needs() != "[12], [13]" {
			t.Errorf("%s, the leader got requests for %s", s, l.needs())
		}
		cancel()
	})
}

// TestLostTokenFailsOnlyItsScan checks that after the leader has refused a combined need each scan's need is polled
// separately, and scans whose token is not lost get their timestamp.
func TestLostTokenFailsOnlyItsScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader()
		l.promote(1, vector(7, 10, 10))
		l.scan(t.Context(), vector(7, 11, 0), time.Minute)
		good, lost := l.scan(t.Context(), vector(7, 12, 0), time.Minute), l.scan(t.Context(), vector(7, 0, 99), time.Minute)
		l.answer(0, nil)
		l.answer(1, rpc.Refuse(errcode.TokenLost, "it is lost"))
		for poll, need := range strings.Split(l.needs(), ", ") {
			switch need {
			case "[0 99]":
				l.answer(poll, rpc.Refuse(errcode.TokenLost, "it is lost"))
			case "[12 0]":
				l.reach(2, vector(7, 12, 10))
				l.answer(poll, nil)
			}
		}
		if s := outcome(good) + outcome(lost); s != "2TOKEN_LOST" {
			t.Error(s)
		}
	})
}

// TestScansHaveTheirOwnTimeouts checks that each scan has its own timeout and its end does not end the wait of others.
// In a bucket without promotions at most two requests wait at the leader, however many scans wait, and a scan that
// does not need the vbuckets that are stuck still gets a timestamp that the node receives.
func TestScansHaveTheirOwnTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader()
		l.promote(1, vector(7, 10, 10))
		began := time.Now()
		ends := make(chan time.Duration, 100)
		for i := range 40 {
			go func() {
				wait := 10*time.Second + time.Duration(i)*time.Millisecond
				_, err := l.truth.Stabilize(t.Context(), "b", vector(7, 10, 11), wait)
				if scan.CodeOf(err) != errcode.Timeout || time.Since(began) != wait {
					t.Errorf("%v after %s of %s", err, time.Since(began), wait)
				}
				ends <- wait
			}()
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := l.scan(ctx, vector(7, 10, 11), 10*time.Second)
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		if s := outcome(gone); s != "CANCELLED" {
			t.Error(s)
		}
		other := l.scan(t.Context(), vector(7, 12, 0), 10*time.Second)
		if strings.Count(l.needs(), "[") != roundsAtOnce {
			t.Errorf("the leader got requests for %s", l.needs())
		}
		l.promote(2, vector(7, 12, 10))
		if s := outcome(other); s != "2" {
			t.Error(s)
		}
		for range 40 {
			<-ends
		}
		if n := strings.Count(l.needs(), "["); n > 3*roundsAtOnce {
			t.Errorf("%d requests for 10 s: %s", n, l.needs())
		}
		time.Sleep(pollMost)
	})
}

// TestStabilizeRefusals checks the error of a scan that gets no stability timestamp: if the scan itself is the
// reason, the error has its own code. All other errors can be retried.
func TestStabilizeRefusals(t *testing.T) {
	for code, want := range map[errcode.Code]errcode.Code{
		errcode.Timeout: errcode.Timeout, errcode.TokenLost: errcode.TokenLost,
		errcode.IndexInRollback: errcode.IndexInRollback,
		errcode.NoLeader:        errcode.Unavailable, errcode.Busy: errcode.Unavailable,
		errcode.IndexNotReady: errcode.Unavailable,
	} {
		manager := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			rpc.WriteProblem(w, rpc.Refuse(code, "because of %s", code))
		}))
		leader := managerclient.New([]string{manager.URL}, nil)
		truth := NewTruth(Sources{Leader: leader, Stabilities: newReceived()})
		_, err := truth.Stabilize(t.Context(), "b", timestamp.New(1), time.Minute)
		if got := scan.CodeOf(err); got != want {
			t.Errorf("%s: %v, want %s", code, err, want)
		}
		leader.Close()
		manager.Close()
	}
}
