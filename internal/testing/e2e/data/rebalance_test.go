package data

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// mover moves slices to and fro.
type mover struct {
	t   *testing.T
	ctx context.Context
	c   *client.Client
	// steps of the newest plan that has begun
	steps []rebalance.Step
}

// begin starts a rebalance; it is tried again where no leader answers.
func (m *mover) begin(req v1.RebalanceRequest) (id uint64) {
	m.t.Helper()
	harness.Eventually(m.t, harness.Hang, "a rebalance begins", func() (bool, string) {
		r, err := m.c.Rebalance(m.ctx, req, false)
		if err != nil {
			return false, err.Error()
		}
		if id = r.ID; r.Plan != nil {
			m.steps = r.Plan.Steps
		}
		return true, ""
	})
	return id
}

// over waits for the end of a rebalance.
func (m *mover) over(id uint64) (r v1.RebalanceInfo) {
	m.t.Helper()
	harness.Eventually(m.t, harness.Hang, "the rebalance is over", func() (bool, string) {
		var err error
		if r, err = m.c.RebalanceStatus(m.ctx, id); err != nil {
			return false, err.Error()
		}
		return r.Phase.Over(), r.Phase.String()
	})
	return r
}

// midway waits until some slice is on its way; it returns the step. found is false when all was over before.
func (m *mover) midway(id uint64) (y partition.Rebalance, found bool) {
	m.t.Helper()
	harness.Eventually(m.t, harness.Hang, "a slice is on its way", func() (bool, string) {
		r, err := m.c.RebalanceStatus(m.ctx, id)
		if err != nil {
			return false, err.Error()
		}
		for i := range r.Moves {
			if y = r.Moves[i].Rebalance; y.State == partition.RebalancePending || y.State == partition.RebalanceCatchup {
				found = true
				return true, ""
			}
		}
		return r.Phase.Over(), "none yet"
	})
	return y, found
}

// scanner scans all sample indexes until it is told to stop, and keeps what came.
type scanner struct {
	mu       sync.Mutex
	scans    []harness.Scanned
	failures map[string]int
	wg       sync.WaitGroup
	pause    time.Duration // between two scans of an index, to leave the cores to the cluster; 0: scanPause
}

const scanPause = 200 * time.Millisecond

func (s *scanner) run(ctx context.Context, c *client.Client, bucket string) {
	s.failures = map[string]int{}
	for _, name := range harness.SampleIndexes() {
		s.wg.Go(func() {
			for ctx.Err() == nil {
				got, err := harness.Scan(ctx, c, bucket, name, "any")
				s.mu.Lock()
				switch {
				case err == nil:
					s.scans = append(s.scans, got)
				case ctx.Err() == nil:
					s.failures[name+": "+err.Error()]++
				}
				s.mu.Unlock()
				time.Sleep(cmp.Or(s.pause, scanPause))
			}
		})
	}
}

// wrong lists how often scans failed since it was asked last.
func (s *scanner) wrong() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failures
	s.failures = map[string]int{}
	return f
}

// fills counts the copies that were filled with another indexer's files, and those that were to be and were not.
func fills(ctx context.Context, t *testing.T, up *testcluster.Cluster) (installed, failed int) {
	t.Helper()
	for _, e := range up.Manifest().Indexers {
		_, page := harness.Get(ctx, t, e.Admin+"/metrics")
		for _, line := range strings.Split(page, "\n") {
			if rest, ok := strings.CutPrefix(line, `tidemark_indexer_fills_total{outcome="`); ok {
				outcome, number, _ := strings.Cut(rest, `"} `)
				n, _ := strconv.Atoi(number)
				switch outcome {
				case "installed":
					installed += n
				case "failed":
					failed += n
				}
			}
		}
	}
	return installed, failed
}

// TestRebalance: slices with a replica leave an indexer and come back while documents change. Scans all the time equal
// the oracle's answer at their own timestamps, also when the leader, the indexer that a slice goes to, the one that it
// comes from, or a projector is killed in the middle; while nothing is killed none fails. In the end every slice is
// where the plan wants it.
func TestRebalance(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir())
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 4)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	m := &mover{t: t, ctx: ctx, c: c}
	for _, name := range harness.SampleIndexes() {
		harness.MustRun(ctx, t, up, "index", "alter", bucket+"/"+name, "--replicas", "1")
		harness.MustRun(ctx, t, up, "index", "verify", bucket+"/"+name)
	}
	load, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	writers.Go(func() { w.Run(load, 1, 300) })
	var s scanner
	s.run(load, c, bucket)

	drop := v1.RebalanceRequest{Remove: []string{"i3"}, Receives: 2, Sends: 2}
	keep := v1.RebalanceRequest{Keep: []string{"i3"}, Receives: 2, Sends: 2}
	for _, req := range []v1.RebalanceRequest{drop, keep} {
		if r := m.over(m.begin(req)); r.Phase != statecontext.RebalanceFinished {
			t.Fatalf("%+v", r)
		}
	}
	if f := s.wrong(); len(f) > 0 {
		t.Errorf("scans failed while nothing was killed: %v", f)
	}

	if installed, failed := fills(ctx, t, up); installed == 0 || failed > 0 {
		t.Errorf("while nothing was killed %d copies were filled by files, %d were to be and were not", installed, failed)
	}

	indexerPID := func(node index.NodeID) func(*localcluster.Manifest) int {
		st, err := c.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(st.Indexers, func(i v1.IndexerStatus) bool { return i.Node == node })
		return func(f *localcluster.Manifest) int {
			return f.Indexers[slices.IndexFunc(f.Indexers,
				func(e localcluster.IndexerEntry) bool { return e.ID == st.Indexers[at].ID })].PID
		}
	}
	for n, kill := range []func(y partition.Rebalance){
		func(y partition.Rebalance) { up.Kill(indexerPID(y.Dst.Node)) },
		func(y partition.Rebalance) { up.Kill(indexerPID(y.Src.Node)) },
		func(partition.Rebalance) {
			leader := 0
			harness.Eventually(t, harness.Hang, "a leader", func() (bool,
				string) {
				leader = up.Leader(ctx, 0)
				return leader >= 0, ""
			})
			up.Kill(func(f *localcluster.Manifest) int { return f.Managers[leader].PID })
		},
		func(partition.Rebalance) { up.Kill(func(f *localcluster.Manifest) int { return f.Projectors[0].PID }) },
	} {
		req := drop
		if n%2 == 1 {
			req = keep
		}
		id := m.begin(req)
		if y, found := m.midway(id); found {
			kill(y)
		} else {
			t.Logf("rebalance %d was over before anything could be killed", id)
		}
		if r := m.over(id); r.Phase != statecontext.RebalanceFinished {
			t.Errorf("after kill %d: %+v", n, r)
		}
	}
	r, err := c.Rebalance(ctx, v1.RebalanceRequest{}, true)
	if err != nil || !r.Plan.Balanced {
		t.Errorf("the plan in the end: %+v, %v", r.Plan, err)
	}
	stop()
	writers.Wait()
	s.wg.Wait()
	for i, got := range s.scans {
		if d := got.Check(w.History); d != "" {
			t.Fatalf("scan %d of %s: %s", i, got.Index, d)
		}
	}
	t.Logf("%d writes, %d scans equal the oracle's; failed while processes were killed: %v", w.Writes.Load(), len(s.scans),
		s.wrong())
	harness.CheckFinal(ctx, t, c, w, bucket)
}
