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
	"tidemark/internal/sample"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
	"tidemark/rebalance"
)

// mover moves slices back and forth.
type mover struct {
	t   *testing.T
	ctx context.Context
	c   *client.Client
	// steps of the newest plan that was started
	steps []rebalance.Step
}

// begin starts a rebalance; it retries where no leader answers.
func (m *mover) begin(req v1.RebalanceRequest) (id uint64) {
	m.t.Helper()
	harness.Eventually(m.t, harness.Hang, "rebalance starts", func() (bool, string) {
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
	harness.Eventually(m.t, 5*time.Minute, "rebalance is over", func() (bool, string) {
		var err error
		if r, err = m.c.RebalanceStatus(m.ctx, id); err != nil {
			return false, err.Error()
		}
		return r.Phase.Over(), r.Phase.String()
	})
	return r
}

// sampleStatements returns the statements that create the sample's indexes of these names.
func sampleStatements(bucket string, names []string) (all []string) {
	for _, statement := range sample.Statements(bucket) {
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(statement, " "+name+" ") }) {
			all = append(all, statement)
		}
	}
	return all
}

// scanner scans all sample indexes, or the named ones, until it is stopped, and keeps the results.
type scanner struct {
	mu       sync.Mutex
	scans    []harness.Scanned
	failures map[string]int
	wg       sync.WaitGroup
	names    []string
	pause    time.Duration // between two scans of an index, to leave the cores to the cluster; 0: scanPause
}

const scanPause = 200 * time.Millisecond

func (s *scanner) run(ctx context.Context, c *client.Client, bucket string) {
	s.failures = map[string]int{}
	names := s.names
	if names == nil {
		names = harness.SampleIndexes()
	}
	for _, name := range names {
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

// wrong returns how many times scans failed since the last call, by error.
func (s *scanner) wrong() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failures
	s.failures = map[string]int{}
	return f
}

// fills counts the copies that were filled with another indexer's files, and the failed attempts.
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
