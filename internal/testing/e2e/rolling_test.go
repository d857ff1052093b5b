package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// readyAgain is the longest time that a restarted process may take until it is ready.
const readyAgain = harness.Hang

// gaps tracks the longest time between two answers.
type gaps struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
	answers int
}

func (g *gaps) answered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.last.IsZero() {
		g.longest = max(g.longest, time.Since(g.last))
	}
	g.last = time.Now()
	g.answers++
}

// take returns the longest gap since the last call.
func (g *gaps) take() (longest time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	longest, g.longest = g.longest, 0
	return longest
}

// rollingPause is the time between two writes, and two listings, of TestRollingRestart: many happen while each
// process is away.
const rollingPause = 100 * time.Millisecond

// TestRollingRestart restarts managers, projectors and indexers one after the other with SIGTERM, each when the one
// before is ready again, while clients write documents, create and drop indexes, list and scan. No write and no
// linearizable listing fails; the longest time without an answer is logged for each step.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--kv", "1", "--indexers", "2", "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)

	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	var ddl, reads, scans gaps
	var cut atomic.Int64
	wg.Go(func() { w.Run(load, 12, 200) })
	d := &ddlClient{name: "rolling", present: map[string]bool{}, unknown: map[string]bool{}}
	wg.Go(func() { d.run(load, t, c, bucket) })
	wg.Go(func() { // the load counts its writes; this goroutine times them
		for n := 0; load.Err() == nil; n++ {
			name := fmt.Sprintf("timed_%d", n)
			_, err := c.Create(context.WithoutCancel(load), v1.CreateRequest{Bucket: bucket, Name: name, IsPrimary: true,
				DeferBuild: true})
			if err == nil {
				ddl.answered()
				err = c.Drop(context.WithoutCancel(load), client.Ref(bucket, name), 0)
			}
			if err != nil {
				t.Errorf("a write during a rolling restart: %v", err)
				return
			}
			ddl.answered()
			time.Sleep(rollingPause)
		}
	})
	wg.Go(func() {
		for load.Err() == nil {
			if _, err := c.Indexes(context.WithoutCancel(load), bucket); err != nil {
				t.Errorf("a linearizable listing during a rolling restart: %v", err)
				return
			}
			reads.answered()
			time.Sleep(rollingPause)
		}
	})
	wg.Go(func() {
		for load.Err() == nil {
			limited, done := context.WithTimeout(ctx, 10*time.Second)
			_, err := harness.Scan(limited, c, bucket, "airports_by_elevation", "session")
			done()
			if err == nil {
				scans.answered()
			} else {
				cut.Add(1)
			}
			time.Sleep(200 * time.Millisecond)
		}
	})
	m := up.Manifest()
	var ids, urls []string
	for _, e := range m.Managers {
		ids, urls = append(ids, e.ID), append(urls, e.REST+"/readyz")
	}
	for _, e := range m.Projectors {
		ids, urls = append(ids, e.ID), append(urls, e.Admin+"/healthz")
	}
	for _, e := range m.Indexers {
		ids, urls = append(ids, e.ID), append(urls, e.Admin+"/readyz")
	}
	if leader := up.Leader(ctx, 0); leader > 0 { // the leader comes last of the managers, as in the runbook
		last := len(m.Managers) - 1
		ids[leader], ids[last], urls[leader], urls[last] = ids[last], ids[leader], urls[last], urls[leader]
	}
	for i, id := range ids {
		ddl.take()
		reads.take()
		scans.take()
		old := processPID(id)(up.Manifest())
		if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		up.WaitRestart(old, processPID(id))
		harness.Eventually(t, readyAgain, id+" is ready again", func() (bool, string) {
			status, body := harness.Get(ctx, t, urls[i])
			return status == 200, body
		})
		harness.Eventually(t, readyAgain, "everybody is active", func() (bool, string) {
			return everybodyActive(ctx, c,
				up.Manifest())
		})
		took := time.Since(began)
		if _, err := harness.ScanSoon(ctx, c, bucket, "airports_by_elevation", readyAgain); err != nil {
			t.Fatalf("%s was restarted, and no session scan: %v", id, err)
		}
		time.Sleep(300 * time.Millisecond) // load in between
		t.Logf("%s: ready after %s; longest time without an answer: DDL %s, listing %s, session scan %s", id,
			took.Round(time.Millisecond),
			ddl.take().Round(time.Millisecond), reads.take().Round(time.Millisecond), scans.take().Round(time.Millisecond))
	}
	stop()
	wg.Wait()
	list, err := c.Indexes(ctx, bucket)
	if err != nil {
		t.Fatal(err)
	}
	if diff := d.missing(list); diff != "" {
		t.Error(diff)
	}
	if n := w.Failed.Load(); n > 0 {
		t.Errorf("%d KV writes failed, and no KV node was restarted", n)
	}
	t.Logf("%d processes restarted; %d DDL writes and %d listings, none failed; %d session scans, %d failed; %d "+
		"documents written", len(ids),
		int64(ddl.answers)+d.writes.Load(), reads.answers, scans.answers, cut.Load(), w.Writes.Load())
	harness.CheckFinal(ctx, t, c, w, bucket)
}

// everybodyActive reports whether the leader lists all projectors and indexers as active.
func everybodyActive(ctx context.Context, c *client.Client, m *localcluster.Manifest) (bool, string) {
	s, err := c.Status(ctx)
	if err != nil {
		return false, err.Error()
	}
	var states []string
	for _, p := range s.Projectors {
		states = append(states, p.State)
	}
	for _, i := range s.Indexers {
		states = append(states, i.State)
	}
	return len(states) == len(m.Projectors)+len(m.Indexers) && !slices.ContainsFunc(states,
		func(s string) bool { return s != "active" }), fmt.Sprint(states)
}
