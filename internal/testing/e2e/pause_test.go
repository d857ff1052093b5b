package e2e

import (
	"context"
	"fmt"
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

// pause stops a process for a while, like a long garbage collection or a suspended virtual machine.
func pause(t *testing.T, pid int, d time.Duration, during func()) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(d)
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}()
	began := time.Now()
	if during != nil {
		during()
	}
	time.Sleep(time.Until(began.Add(d + 100*time.Millisecond)))
}

// TestPausesAndOutages stops processes for seconds and resumes them, kills all managers at once, and finally all
// processes, with a writer, a scanner and a DDL client at work. What was acknowledged is present, streams restart
// only where they must, and every index equals the oracle after each step.
func TestPausesAndOutages(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	up := testcluster.Start(t, dir, "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 4)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	acknowledged := map[string]bool{}
	ddl := func(c *client.Client, name string, limit time.Duration) time.Duration {
		t.Helper()
		began := time.Now()
		limited, done := context.WithTimeout(ctx, limit)
		defer done()
		if _, err := c.Create(limited, v1.CreateRequest{Bucket: bucket, Name: name, IsPrimary: true,
			DeferBuild: true}); err != nil {
			t.Fatalf("DDL %s: %v", name, err)
		}
		acknowledged[name] = true
		return time.Since(began)
	}
	present := func(after string) {
		t.Helper()
		for _, e := range up.Manifest().Managers { // every manager lists the same
			one := client.New(e.REST)
			list, err := one.Indexes(ctx, bucket)
			one.Close()
			if err != nil {
				t.Fatalf("after %s: %s: %v", after, e.ID, err)
			}
			have := map[string]int{}
			for _, i := range list.Indexes {
				have[i.Name]++
			}
			for name := range acknowledged {
				if have[name] != 1 {
					t.Errorf("after %s: manager %s lists index %s %d times; its creation was acknowledged once", after, e.ID, name,
						have[name])
				}
			}
		}
	}
	// step runs f under load and compares everything at its end.
	step := func(name string, f func()) {
		t.Helper()
		load, stop := context.WithCancel(ctx)
		defer stop()
		var wg sync.WaitGroup
		var scans, cut atomic.Int64
		var all []harness.Scanned
		wg.Go(func() { w.Run(load, 5, 100) })
		wg.Go(func() {
			for load.Err() == nil {
				limited, done := context.WithTimeout(load, 5*time.Second)
				s, err := harness.Scan(limited, c, bucket, "airports_by_country", "any")
				done()
				if err == nil {
					scans.Add(1)
					all = append(all, s)
				} else if load.Err() == nil {
					cut.Add(1)
				}
				time.Sleep(400 * time.Millisecond)
			}
		})
		time.Sleep(500 * time.Millisecond)
		f()
		began := time.Now()
		if _, err := harness.ScanSoon(ctx, c, bucket, "airports_by_country", harness.Hang); err != nil {
			t.Fatalf("%s: no session scan within %s of its end: %v", name, harness.Hang, err)
		}
		back := time.Since(began)
		stop()
		wg.Wait()
		for _, s := range all {
			if d := s.Check(w.History); d != "" {
				t.Fatalf("%s: a scan meanwhile: %s", name, d)
			}
		}
		present(name)
		if t.Failed() {
			t.FailNow()
		}
		harness.CheckFinal(ctx, t, c, w, bucket)
		t.Logf("%s: %d scans equal the oracle's, %d failed; a session scan %s after it", name, scans.Load(), cut.Load(),
			back.Round(time.Millisecond))
	}
	unchanged := func(what string, f func()) {
		t.Helper()
		opens, streams, _ := streamCounters(ctx, t, up)
		before := fmt.Sprint(allPIDs(up.Manifest()))
		f()
		o, r, _ := streamCounters(ctx, t, up)
		if r != streams {
			t.Errorf("%s: streams went from %d to %d", what, streams, r)
		}
		t.Logf("%s: %d more DCP connections, %d more streams", what, o-opens, r-streams)
		if now := fmt.Sprint(allPIDs(up.Manifest())); now != before {
			t.Errorf("%s: a process was replaced: pids %s, then %s", what, before, now)
		}
	}

	unchanged("the leader's pause", func() {
		step("the leader stood still for 3 s", func() {
			id, pid := leaderPID(ctx, t, up, c)
			var others []string // a client of the stopped manager would get no answer
			for _, e := range up.Manifest().Managers {
				if e.ID != id {
					others = append(others, e.REST)
				}
			}
			awake := client.New(others...)
			defer awake.Close()
			obey := obedient(up)
			old, refused := fencesOf(ctx, t, obey)
			pause(t, pid, 3*time.Second, func() {
				for n := range 3 {
					t.Logf("DDL %d while leader %s stands still: %s", n, id,
						ddl(awake, fmt.Sprintf("paused_%d", n), ddlLimit).Round(time.Millisecond))
				}
			})
			ddl(c, "after_the_pause", ddlLimit)
			refuseOld(ctx, t, obey, old, refused) // late commands of the deposed leader change nothing
		})
	})
	step("an indexer stood still for 5 s", func() { pause(t, up.Manifest().Indexers[1].PID, 5*time.Second, nil) })
	step("a projector stood still for 5 s", func() { pause(t, up.Manifest().Projectors[1].PID, 5*time.Second, nil) })

	ddl(c, "before_the_outage", ddlLimit)
	_, streams, _ := streamCounters(ctx, t, up)
	step("all managers killed at once", func() {
		m := up.Manifest()
		for _, e := range m.Managers {
			if err := syscall.Kill(e.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		for i, e := range m.Managers {
			up.WaitRestart(e.PID, func(m *localcluster.Manifest) int { return m.Managers[i].PID })
		}
		t.Logf("the first DDL after the outage of all managers: %s",
			ddl(c, "after_the_outage", ddlLimit).Round(time.Millisecond))
	})
	if _, r, _ := streamCounters(ctx, t, up); r != streams {
		t.Errorf("the managers' outage: streams went from %d to %d: running streams were not adopted", streams, r)
	}

	// All processes at once, `up` included. Writes in flight at that moment have no known outcome, so the load stops
	// first.
	pids := append(allPIDs(up.Manifest()), up.PID())
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // a process may have ended with another one
	}
	<-up.Ended()
	noneAlive(t, pids)
	began := time.Now()
	up = testcluster.Start(t, dir)
	ready := time.Since(began)
	c, w.KV = up.Client(), up.KV(ctx)
	s, err := harness.ScanSoon(ctx, c, bucket, "world_ids", harness.Hang)
	if err != nil {
		t.Fatalf("everything was killed: no session scan: %v", err)
	}
	t.Logf("everything killed: all answer after %s, the first session scan (%d rows) after %s",
		ready.Round(time.Millisecond), len(s.IDs), time.Since(began).Round(time.Millisecond))
	present("everything was killed")
	harness.CheckFinal(ctx, t, c, w, bucket)
	if _, _, items := streamCounters(ctx, t, up); items > int64(len(w.Keys)) {
		t.Errorf("KV sent %d items after the restart, more than there are documents (%d): indexes were built again", items,
			len(w.Keys))
	}
}
