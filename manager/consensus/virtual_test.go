package consensus_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/index"
	"tidemark/internal/testing/need"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

var (
	losses = flag.Int("consensus.losses", 100, "leader losses of TestLeaderLosses")
	faults = flag.Int("consensus.faults", 6, "faults of TestFaultsKeepHistory, of twenty kinds, each kind at most once")
	seeded = flag.Uint64("consensus.seed", 1, "seed of the faults, as a failed test prints it; 0: another one each time")
)

// chance returns a source of random faults and logs how to repeat them. Elections have a source of their own.
func chance(t *testing.T) *rand.Rand {
	seed := *seeded
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the same faults again: go test ./manager/consensus -run '^%s$' -consensus.seed %d", t.Name(), seed)
		}
	})
	return rand.New(rand.NewPCG(seed, seed))
}

// monitorEvery is the interval at which the servers are checked, in virtual time.
const monitorEvery = 10 * time.Millisecond

// virtual runs a cluster of real nodes, on bbolt and connected by pipes, in virtual time. Throughout, no two servers
// serve in one term, and everything applied is compared with the ledger.
func virtual(t *testing.T, n int, tune func(*consensus.Config), test func(t *testing.T, h *hub, all servers)) {
	dir := need.Memory(t)
	r := chance(t)
	synctest.Test(t, func(t *testing.T) {
		h, log := newHub(), newLedger(t)
		all := make(servers, n)
		for i := range all {
			name := fmt.Sprintf("m%d", i+1)
			all[i] = &server{t: t, name: name, dir: filepath.Join(dir, name), addr: name, hub: h, log: log, tune: tune,
				chance: r}
			all[i].start()
		}
		all.bootstrap()
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		end := func() { cancel(); wg.Wait() }
		t.Cleanup(end)
		wg.Go(func() { all.monitor(ctx) })
		test(t, h, all)
		end()
		for _, s := range all {
			s.disk(nil)
		}
		for _, s := range all {
			s.stop()
		}
		if terms := allTerms(all); len(terms) > countTerms(all) {
			t.Errorf("leader loops ran %d times in %d terms", countTerms(all), len(terms))
		}
	})
}

// monitor verifies that no two servers serve in one term.
func (all servers) monitor(ctx context.Context) {
	owner := map[uint64]*server{}
	for ctx.Err() == nil {
		for _, s := range all {
			node := s.running()
			if node == nil {
				continue
			}
			if term, ok := node.Serving(); ok {
				if other := owner[term]; other != nil && other != s {
					s.t.Errorf("%s and %s serve in term %d", s.name, other.name, term)
				}
				owner[term] = s
			}
		}
		time.Sleep(monitorEvery)
	}
}

func (all servers) names(but *server) (names []string) {
	for _, s := range all {
		if s != but {
			names = append(names, s.name)
		}
	}
	return names
}

// TestLeaderLosses: the leader is cut off again and again; the next write is accepted soon, nothing acknowledged is
// lost, and no two leader loops share a term. The limits come from the design: a follower waits one to two heartbeats
// before it requests votes; a split vote costs another round.
func TestLeaderLosses(t *testing.T) {
	rounds := *losses
	if testing.Short() {
		rounds = min(rounds, 20)
	}
	virtual(t, 3, nil, func(t *testing.T, h *hub, all servers) {
		var took []time.Duration
		write := func(at servers, round int, when string) {
			if r := at.propose(projector(fmt.Sprint(when, round%50), fmt.Sprintf("%06d", round))); !r.Changed {
				t.Errorf("round %d, %s: %+v", round, when, r)
			}
		}
		for round := range rounds {
			write(all, round, "before-")
			old := all.leader()
			time.Sleep(time.Duration(old.chance.IntN(300)) * time.Millisecond)
			h.isolate(old.name, true, all.names(old)...)
			start := time.Now()
			rest := slices.DeleteFunc(slices.Clone(all), func(s *server) bool { return s == old })
			write(rest, round, "after-")
			took = append(took, time.Since(start))
			h.isolate(old.name, false, all.names(old)...)
			eventually(t, "the old leader follows", func() bool {
				_, serves := old.node.Serving()
				return !serves && old.fsm.State().CAS() == all.leader().fsm.State().CAS()
			})
			state := all.leader().fsm.State()
			for _, when := range []string{"before-", "after-"} {
				p := state.Projector(index.ProjectorID(fmt.Sprint(when, round%50)))
				if p == nil || p.Admin != fmt.Sprintf("%06d", round) {
					t.Errorf("round %d: acknowledged write %s is lost, the state has %+v", round, when, p)
				}
			}
		}
		slices.Sort(took)
		median, slowest := took[rounds/2], took[rounds-1]
		t.Logf("%d leader losses at heartbeat %v: median %v, 99 %% %v, max %v", rounds, heartbeat, median,
			took[rounds*99/100], slowest)
		if limit := heartbeat * 5 / 2; median > limit {
			t.Errorf("the median failover took %v, want at most %v", median, limit)
		}
		if limit := maxFailover; slowest > limit {
			t.Errorf("the slowest failover took %v, want at most %v", slowest, limit)
		}
		all.agree()
		if len(allTerms(all)) != countTerms(all) {
			t.Error("two leader loops shared a term")
		}
	})
}

// maxFailover is the limit for the slowest of any number of leader losses.
const maxFailover = heartbeat * 7 / 2

// unlucky is how long a change of leaders may take in virtual time. Nothing bounds how many votes in a row are split,
// or how often a server with a slow disk regains the lead, but fifty heartbeats of bad luck indicate another fault.
// The figures for users are medians.
const unlucky = 50 * heartbeat

// history is what the clients and readers of a test with faults have observed.
type history struct {
	t      *testing.T
	all    servers
	mu     sync.Mutex
	acked  [4]int // per client: the highest number acknowledged
	reads  int
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// work starts clients that write with request ids and retry unknown outcomes, and a reader that reads linearizably.
func (all servers) work(t *testing.T) *history {
	ctx, cancel := context.WithCancel(context.Background())
	w := &history{t: t, all: all, cancel: cancel}
	for c := range w.acked {
		w.wg.Go(func() {
			for k := 1; ctx.Err() == nil; k++ {
				cmd := projector(fmt.Sprint("client", c), fmt.Sprintf("%06d", k))
				cmd.Request = &statecontext.Request{Principal: fmt.Sprint(c), Key: fmt.Sprint(k)}
				if !all.untilAccepted(ctx, cmd) {
					return
				}
				w.mu.Lock()
				w.acked[c] = k
				w.mu.Unlock()
				time.Sleep(25 * time.Millisecond)
			}
		})
	}
	w.wg.Go(func() { w.read(ctx) })
	t.Cleanup(func() { cancel(); w.wg.Wait() })
	return w
}

// settled ends the work after enough operations: all servers agree, and each acknowledged write is present.
func (w *history) settled(writes, reads int) {
	eventually(w.t, fmt.Sprintf("%d writes of each client and %d reads", writes, reads), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Min(w.acked[:]) >= writes && w.reads >= reads
	})
	w.cancel()
	w.wg.Wait()
	w.all.agree()
	for c, k := range w.acked {
		if p := w.all[0].fsm.State().Projector(index.ProjectorID(fmt.Sprint("client", c))); k > 0 &&
			(p == nil || p.Admin < fmt.Sprintf("%06d", k)) {
			w.t.Errorf("client %d got the answer to write %d, the state has %+v", c, k, p)
		}
	}
	w.t.Logf("acknowledged: %v; reads %d; terms %d", w.acked, w.reads, countTerms(w.all))
}

// untilAccepted proposes at any server until one answers; an unknown outcome is retried with the same id.
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
		if !errors.Is(err, consensus.ErrNotLeader) && !errors.Is(err, consensus.ErrUnknownOutcome) &&
			!errors.Is(err, consensus.ErrClosed) && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			s.t.Errorf("%s: %v", s.name, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// read compares every linearizable read with what was acknowledged before it began.
func (w *history) read(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		w.mu.Lock()
		before := w.acked
		w.mu.Unlock()
		s := w.all[i%len(w.all)]
		node := s.running()
		if node == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		one, cancel := context.WithTimeout(ctx, time.Second)
		err := node.ReadBarrier(one)
		cancel()
		if err != nil {
			if !errors.Is(err, consensus.ErrNotLeader) && !errors.Is(err, context.DeadlineExceeded) &&
				!errors.Is(err, context.Canceled) && !errors.Is(err, consensus.ErrClosed) {
				w.t.Errorf("read: %v", err)
			}
			time.Sleep(time.Millisecond)
			continue
		}
		w.mu.Lock()
		w.reads++
		w.mu.Unlock()
		state := node.State()
		for c, k := range before {
			p := state.Projector(index.ProjectorID(fmt.Sprint("client", c)))
			if k > 0 && (p == nil || p.Admin < fmt.Sprintf("%06d", k)) {
				w.t.Errorf("a read on %s saw %+v after write %d of client %d was acknowledged", s.name, p, k, c)
			}
		}
		time.Sleep(8 * time.Millisecond)
	}
}
