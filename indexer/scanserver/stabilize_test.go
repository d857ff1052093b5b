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

// heard is what a node has heard of timestamps.
type heard struct {
	mu      sync.Mutex
	newest  map[string]wire.BucketStability
	changed chan struct{}
}

func newHeard() *heard {
	return &heard{newest: map[string]wire.BucketStability{}, changed: make(chan struct{})}
}

func (h *heard) Newest(bucket string) (wire.BucketStability, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.newest[bucket]
	return s, ok
}

func (h *heard) Changed(string) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *heard) Published(s *wire.BucketStability) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.newest[s.Bucket]; !ok || s.Compare(old.Ref) > 0 {
		h.newest[s.Bucket] = *s
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// vector has a position for each vbucket, all of one branch.
func vector(branch uint64, seqnos ...uint64) timestamp.Vector {
	v := timestamp.New(len(seqnos))
	for vb, s := range seqnos {
		v.Set(vb, timestamp.Position{VBUUID: branch, Seqno: s})
	}
	return v
}

// leader is one that a test answers for.
type leader struct {
	*heard
	truth *Truth

	made  wire.BucketStability // the newest
	polls []wire.StabilizeRequest
	goOn  []chan error // by poll: the answer, nil for the newest timestamp
	ended []bool       // by poll, before its answer
}

func newLeader() *leader {
	l := &leader{heard: newHeard()}
	l.truth = NewTruth(Sources{Leader: l, Stabilities: l.heard})
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

// reach makes a timestamp that the node has not heard of.
func (l *leader) reach(number uint64, v timestamp.Vector) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made = wire.BucketStability{Bucket: "b",
		Stability: timestamp.Stability{Ref: timestamp.Ref{Number: number}, Vector: v}}
}

// promote makes a timestamp and publishes it.
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

// scan waits for a timestamp in the background; the channel has its number, or why there is none.
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

// needs are what the leader was asked for, poll by poll.
func (l *leader) needs() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, p := range l.polls {
		all = append(all, fmt.Sprint(p.Need.Seqnos))
	}
	return strings.Join(all, ", ")
}

func said(came <-chan string) string {
	select {
	case s := <-came:
		return s
	default:
		return "waits"
	}
}

// TestScansWaitTogether: scans that come while one waits at the leader wait there together, as soon as that one is
// answered, for all that any of them needs.
func TestScansWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader()
		l.promote(1, vector(7, 10, 10))
		if s := said(l.scan(t.Context(), vector(7, 10, 9), time.Second)); s != "1" || l.needs() != "" {
			t.Errorf("what is known already: %s, the leader was asked for %s", s, l.needs())
		}
		first := l.scan(t.Context(), vector(7, 11, 10), time.Second)
		second := l.scan(t.Context(), vector(7, 12, 10), 2*time.Second)
		third := l.scan(t.Context(), vector(7, 11, 13), time.Second)
		l.reach(2, vector(7, 11, 10))
		l.answer(0, nil)
		if s := said(first) + said(second) + said(third); s != "2waitswaits" || l.needs() != "[11 10], [12 13]" {
			t.Errorf("%s, the leader was asked for %s", s, l.needs())
		}
		l.mu.Lock()
		wait := l.polls[1].WaitMS
		l.mu.Unlock()
		if wait != 2000 {
			t.Errorf("the leader is to wait %d ms, want as long as the most patient one", wait)
		}
		l.promote(3, vector(7, 12, 12)) // it is heard of before the leader answers
		if s := said(second) + said(third); s != "3waits" {
			t.Error(s)
		}
		l.promote(4, vector(7, 12, 13))
		if s := said(third); s != "4" {
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

// TestBranchesAreNotWaitedForTogether: a need of before a failover and one of after it are asked for apart, and what is
// heard of on another branch answers neither.
func TestBranchesAreNotWaitedForTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader()
		l.promote(1, vector(7, 10))
		ctx, cancel := context.WithCancel(t.Context())
		old := l.scan(ctx, vector(7, 12), time.Second)
		others := []<-chan string{l.scan(ctx, vector(7, 13), time.Second), l.scan(ctx, vector(8, 11), time.Second)}
		l.promote(2, vector(8, 20))
		if s := said(old) + said(others[0]) + said(others[1]); s != "waitswaits2" {
			t.Error(s)
		}
		l.answer(0, rpc.Refuse(errcode.TokenLost, "it is lost"))
		l.answer(1, rpc.Refuse(errcode.TokenLost, "it is lost"))
		if s := said(old) + said(others[0]); s != "TOKEN_LOSTTOKEN_LOST" || l.needs() != "[12], [13]" {
			t.Errorf("%s, the leader was asked for %s", s, l.needs())
		}
		cancel()
	})
}

// TestWhoseTokenIsLost: when the leader refuses what several need together, each is asked for apart, and who needs
// nothing that is lost gets his timestamp.
func TestWhoseTokenIsLost(t *testing.T) {
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
		if s := said(good) + said(lost); s != "2TOKEN_LOST" {
			t.Error(s)
		}
	})
}

// TestEachWaitsForItsOwnTime: a scan's time is over when it is, and its end ends nobody else's wait; a bucket of which
// nothing is promoted keeps two requests at the leader, however many wait, and who needs nothing of what stands still
// gets what is heard of meanwhile.
func TestEachWaitsForItsOwnTime(t *testing.T) {
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
		if s := said(gone); s != "CANCELLED" {
			t.Error(s)
		}
		other := l.scan(t.Context(), vector(7, 12, 0), 10*time.Second)
		if strings.Count(l.needs(), "[") != roundsAtOnce {
			t.Errorf("the leader was asked for %s", l.needs())
		}
		l.promote(2, vector(7, 12, 10))
		if s := said(other); s != "2" {
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

// TestStabilizeRefusals: why a scan that waits for a stability timestamp gets none is told by name where the reason is
// the scan's own; any other one is worth another try.
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
		truth := NewTruth(Sources{Leader: leader, Stabilities: newHeard()})
		_, err := truth.Stabilize(t.Context(), "b", timestamp.New(1), time.Minute)
		if got := scan.CodeOf(err); got != want {
			t.Errorf("%s: %v, want %s", code, err, want)
		}
		leader.Close()
		manager.Close()
	}
}
