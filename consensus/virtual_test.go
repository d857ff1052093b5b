package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/consensus"
	"tidemark/index"
	"tidemark/statecontext"
)

// virtual runs a cluster of real nodes, on bbolt and joined by pipes, in virtual time.
func virtual(t *testing.T, n int, test func(t *testing.T, h *hub, all servers)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := newHub()
		all := make(servers, n)
		for i := range all {
			name := fmt.Sprintf("m%d", i+1)
			all[i] = &server{t: t, name: name, dir: filepath.Join(dir, name), addr: name, hub: h}
			all[i].start()
		}
		all.bootstrap()
		test(t, h, all)
		for _, s := range all {
			s.stop()
		}
	})
}

func (all servers) names(but *server) (names []string) {
	for _, s := range all {
		if s != but {
			names = append(names, s.name)
		}
	}
	return names
}

// TestLeaderLosses: the leader is cut off again and again; the next write is accepted within three heartbeats, nothing
// acknowledged is lost, and no two leader loops share a term.
func TestLeaderLosses(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	virtual(t, 3, func(t *testing.T, h *hub, all servers) {
		var took []time.Duration
		for round := range rounds {
			all.propose(projector(fmt.Sprint("before-", round), "x"))
			old := all.leader()
			time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
			h.isolate(old.name, true, all.names(old)...)
			start := time.Now()
			rest := slices.DeleteFunc(slices.Clone(all), func(s *server) bool { return s == old })
			rest.propose(projector(fmt.Sprint("after-", round), "x"))
			took = append(took, time.Since(start))
			h.isolate(old.name, false, all.names(old)...)
			eventually(t, "the old leader follows", func() bool {
				_, serves := old.node.Serving()
				return !serves && old.fsm.State().CAS() == all.leader().fsm.State().CAS()
			})
		}
		slices.Sort(took)
		t.Logf("%d leader losses at heartbeat %v: median %v, max %v", rounds, heartbeat, took[rounds/2], took[rounds-1])
		if limit := 4 * heartbeat; took[rounds-1] > limit {
			t.Errorf("the slowest failover took %v, want at most %v", took[rounds-1], limit)
		}
		all.agree()
		for round := range rounds {
			for _, when := range []string{"before-", "after-"} {
				if all[0].fsm.State().Projector(index.ProjectorID(fmt.Sprint(when, round))) == nil {
					t.Errorf("acknowledged write %s%d is lost", when, round)
				}
			}
		}
		if len(allTerms(all)) != countTerms(all) {
			t.Error("two leader loops shared a term")
		}
	})
}

// TestFaultsKeepHistory: clients write under request ids and retry unknown outcomes, readers read linearizably, while
// links are cut in every shape. Each acknowledged write happened exactly once and is seen by every later read.
func TestFaultsKeepHistory(t *testing.T) {
	virtual(t, 3, func(t *testing.T, h *hub, all servers) {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		var acked [4]int // per client: the highest number acknowledged; written by one, read under mu
		var mu sync.Mutex
		for c := range acked {
			wg.Go(func() {
				for k := 1; ctx.Err() == nil; k++ {
					cmd := projector(fmt.Sprint("client", c), fmt.Sprintf("%06d", k))
					cmd.Request = &statecontext.Request{Principal: fmt.Sprint(c), Key: fmt.Sprint(k)}
					if !all.untilAccepted(ctx, cmd) {
						return
					}
					mu.Lock()
					acked[c] = k
					mu.Unlock()
					time.Sleep(25 * time.Millisecond)
				}
			})
		}
		wg.Go(func() { readers(ctx, t, all, &mu, &acked) })
		shapes := []func(){
			func() { l := all.leader(); h.isolate(l.name, true, all.names(l)...) },
			func() { f := all.follower(); h.isolate(f.name, true, all.names(f)...) },
			func() { l, f := all.leader(), all.follower(); h.oneWay(l.name, f.name, true) },
			func() { l, f := all.leader(), all.follower(); h.oneWay(f.name, l.name, true) },
			func() {
				for _, s := range all {
					h.isolate(s.name, true, all.names(s)...)
				}
			},
			func() { l := all.leader(); l.stop(); time.Sleep(time.Second); l.start() },
		}
		for round := range 18 {
			shapes[round%len(shapes)]()
			time.Sleep(time.Duration(100+rand.IntN(1200)) * time.Millisecond)
			for _, s := range all {
				h.isolate(s.name, false, all.names(s)...)
			}
			time.Sleep(time.Duration(rand.IntN(800)) * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		cancel()
		wg.Wait()
		all.agree()
		for c, k := range acked {
			if k < 50 {
				t.Errorf("client %d got only %d writes through", c, k)
			}
			if p := all[0].fsm.State().Projector(index.ProjectorID(fmt.Sprint("client", c))); p == nil || p.Admin < fmt.Sprintf("%06d", k) {
				t.Errorf("client %d was told of write %d, the state has %+v", c, k, p)
			}
		}
		t.Logf("acknowledged: %v; terms %d", acked, countTerms(all))
		if len(allTerms(all)) != countTerms(all) {
			t.Error("two leader loops shared a term")
		}
	})
}

// untilAccepted proposes at any server until one answers; an unknown outcome is asked again under the same id.
func (all servers) untilAccepted(ctx context.Context, c statecontext.Command) bool {
	for i := 0; ctx.Err() == nil; i++ {
		s := all[i%len(all)]
		one, cancel := context.WithTimeout(ctx, time.Second)
		node := s.running()
		if node == nil {
			cancel()
			time.Sleep(5 * time.Millisecond)
			continue
		}
		r, err := node.Propose(one, c)
		cancel()
		if err == nil {
			if r.Rejection != nil {
				s.t.Errorf("rejected: %v", r.Rejection)
			}
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// readers holds every linearizable read against what was acknowledged before it began.
func readers(ctx context.Context, t *testing.T, all servers, mu *sync.Mutex, acked *[4]int) {
	reads := 0
	for i := 0; ctx.Err() == nil; i++ {
		mu.Lock()
		before := *acked
		mu.Unlock()
		s := all[i%len(all)]
		node := s.running()
		if node == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		one, cancel := context.WithTimeout(ctx, time.Second)
		err := node.ReadBarrier(one)
		cancel()
		if err != nil {
			if !errors.Is(err, consensus.ErrNotLeader) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) && !errors.Is(err, consensus.ErrClosed) {
				t.Errorf("read: %v", err)
			}
			time.Sleep(time.Millisecond)
			continue
		}
		reads++
		state := node.State()
		for c, k := range before {
			p := state.Projector(index.ProjectorID(fmt.Sprint("client", c)))
			if k > 0 && (p == nil || p.Admin < fmt.Sprintf("%06d", k)) {
				t.Errorf("a read on %s saw %+v after write %d of client %d was acknowledged", s.name, p, k, c)
			}
		}
		time.Sleep(8 * time.Millisecond)
	}
	if reads < 100 {
		t.Errorf("only %d reads", reads)
	}
}
