package data

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/sample"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// splitter changes the slices of indexes, by name.
type splitter struct {
	t      *testing.T
	ctx    context.Context
	c      *client.Client
	bucket string
}

// alter runs ALTER INDEX with these WITH options, and returns the successor's id; it retries where no leader answers.
func (s *splitter) alter(name, with string) (next index.ID) {
	s.t.Helper()
	text := fmt.Sprintf("ALTER INDEX %s ON %s WITH {%s}", name, s.bucket, with)
	harness.Eventually(s.t, harness.Hang, text, func() (bool, string) {
		r, err := s.c.Statement(s.ctx, text)
		if err != nil {
			return false, err.Error()
		}
		next = r[0].ID
		return true, ""
	})
	return next
}

// over waits until the name belongs to the successor and the first index is gone.
func (s *splitter) over(name string, first, next index.ID) (x v1.IndexInfo) {
	s.t.Helper()
	harness.Eventually(s.t, 3*time.Minute, "the split of "+name+" is over", func() (bool, string) {
		list, err := s.c.Indexes(s.ctx, s.bucket)
		if err != nil {
			return false, err.Error()
		}
		there := false
		for _, i := range list.Indexes {
			if i.ID == next {
				x = i
			}
			there = there || i.ID == first
			if i.SplitFailed != "" {
				s.t.Fatalf("the split of %s failed: %s", name, i.SplitFailed)
			}
		}
		return x.ID == next && x.State == index.Maintenance && x.Replaces == 0 && !there, fmt.Sprintf("%+v", list.Indexes)
	})
	if now, err := s.c.Index(s.ctx, client.Ref(s.bucket, name)); err != nil || now.ID != next {
		s.t.Fatalf("%s is index %s, want %s (%v)", name, now.ID, next, err)
	}
	return x
}

// whole waits until every copy is whole: the indexer that was killed catches up with the writes of the meantime, and
// a verification waits for its copies only 10 s, as a scan does.
func (s *splitter) whole() {
	s.t.Helper()
	began := time.Now()
	harness.Eventually(s.t, 3*time.Minute, "every copy is whole", func() (bool, string) {
		list, err := s.c.Indexes(s.ctx, s.bucket)
		if err != nil {
			return false, err.Error()
		}
		for _, i := range list.Indexes {
			if i.Availability == nil || i.Availability.State != "available" {
				return false, fmt.Sprintf("%+v of %+v", i.Availability, i)
			}
		}
		return len(list.Indexes) > 0, "no index"
	})
	s.t.Logf("every copy is whole after %v", time.Since(began).Round(time.Millisecond))
}

// id returns the id of the index with a name.
func (s *splitter) id(name string) index.ID {
	s.t.Helper()
	x, err := s.c.Index(s.ctx, client.Ref(s.bucket, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return x.ID
}

// TestAutomaticSplits sets the managers' limit of bytes per slice, and checks that indexes above it get more
// slices, one index after the other, while documents change and scans by name continue: none fails, and each equals
// the oracle's answer at its own timestamp. Watchers receive the cause.
func TestAutomaticSplits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	up := testcluster.StartWith(t, []string{"TIDEMARK_SPLIT_ABOVE=110KiB", "TIDEMARK_SPLIT_AFTER=2s"}, t.TempDir(),
		"--managers", "1", "--kv", "1", "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 4)
	var causes sync.Map // causes of splits in events, by index
	load, stop := context.WithCancel(ctx)
	defer stop()
	var others sync.WaitGroup
	others.Go(func() {
		for e, err := range c.Watch(load, "", "index") {
			for _, x := range e.Changes {
				if d := x.Definition; err == nil && d != nil && d.Replaces != 0 {
					causes.Store(d.Replaces, d.SplitCause)
				}
			}
		}
	})
	first := map[string]index.ID{}
	s := &splitter{t: t, ctx: ctx, c: c, bucket: bucket}
	names := []string{"places_by_name", "airports_by_country"}
	for _, statement := range sampleStatements(bucket, names) {
		switch {
		case strings.Contains(statement, "places_by_name"):
			statement = "CREATE INDEX places_by_name ON " + bucket + `(name) PARTITION BY RANGE(name) VALUES ("M")`
		case strings.Contains(statement, "airports_by_country"):
			statement += ` WITH {"num_partition":3}`
		}
		harness.Create(ctx, t, c, statement)
	}
	for _, name := range names {
		first[name] = s.id(name)
	}
	others.Go(func() { w.Run(load, 1, 300) })
	scans := scanner{names: names, pause: 150 * time.Millisecond}
	scans.run(load, c, bucket)
	for name, id := range first {
		harness.Eventually(t, 3*time.Minute, name+" has more slices", func() (bool, string) {
			x, err := c.Index(ctx, client.Ref(bucket, name))
			return err == nil && x.ID != id && x.State == index.Maintenance && x.Partitions > 3, fmt.Sprintf("%+v, %v", x, err)
		})
		harness.Eventually(t, harness.Hang, "the reason why "+name+" is split is shown", func() (bool, string) {
			cause, _ := causes.Load(id)
			text, _ := cause.(string)
			return strings.Contains(text, " bytes, more than the 112640 of --split-above"), text
		})
	}
	stop()
	others.Wait()
	scans.wg.Wait()
	if f := scans.wrong(); len(f) > 0 {
		t.Errorf("scans failed: %v", f)
	}
	for i, got := range scans.scans {
		if d := got.Check(w.History); d != "" {
			t.Fatalf("scan %d of %s, %d writes without an answer: %s", i, got.Index, w.Failed.Load(), d)
		}
	}
	t.Logf("%d writes, %d scans equal the oracle's", w.Writes.Load(), len(scans.scans))
	s.whole()
	harness.CheckFinal(ctx, t, c, w, bucket, names...)
}

// TestSplit changes the slices of indexes while documents change and scans by name continue, of the Go client
// straight to the indexers and through the managers. None fails, and each equals the oracle's answer at its own
// timestamp; also when the leader, a projector or an indexer is killed in the middle. In the end every copy equals
// what KV has.
func TestSplit(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--kv", "1", "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 16)
	for _, statement := range sample.Statements(bucket) {
		if strings.Contains(statement, "places_by_name") {
			statement = "CREATE INDEX places_by_name ON " + bucket +
				`(name) PARTITION BY RANGE(name) VALUES ("M") WITH {"num_replica":1}`
		} else {
			statement += ` WITH {"num_replica":1, "num_partition":2}`
		}
		harness.Create(ctx, t, c, statement)
	}
	load, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	writers.Go(func() { w.Run(load, 1, 300) })
	const often = 250 * time.Millisecond // so that scans of both ways coincide with each switch
	direct, passed := scanner{pause: often}, scanner{pause: often}
	direct.run(load, c, bucket)
	byManagers := client.Open(client.Options{Servers: up.Manifest().Servers(), ViaManagers: true})
	defer byManagers.Close()
	passed.run(load, byManagers, bucket)

	s := &splitter{t: t, ctx: ctx, c: c, bucket: bucket}
	leader := func() {
		at := 0
		harness.Eventually(t, harness.Hang, "a leader", func() (bool, string) {
			at = up.Leader(ctx, 0)
			return at >= 0, ""
		})
		up.Kill(func(f *localcluster.Manifest) int { return f.Managers[at].PID })
	}
	for _, step := range []struct {
		name, with string
		slices     uint16
		kill       func()
		calm       bool // no scan may fail
	}{
		{"places_by_name", `"action":"split","at":["F","S"]`, 4, nil, true},
		{"airports_by_country", `"action":"split"`, 4, nil, true},
		{"places_by_name", `"action":"merge","at":["M","S"]`, 2, nil, true},
		{"places_by_name", `"action":"split","num_partition":5`, 5, leader, true},
		{"world_ids", `"action":"split","num_partition":4`, 4,
			func() { up.Kill(func(f *localcluster.Manifest) int { return f.Projectors[0].PID }) }, true},
		{"airports_by_elevation", `"action":"split","num_partition":3`, 3,
			func() { up.Kill(func(f *localcluster.Manifest) int { return f.Indexers[1].PID }) }, false},
	} {
		first := s.id(step.name)
		next := s.alter(step.name, step.with)
		if step.kill != nil {
			step.kill()
		}
		if x := s.over(step.name, first, next); x.Partitions != step.slices {
			t.Errorf("%s has %d slices, want %d: %s", step.name, x.Partitions, step.slices, x.Definition)
		}
		for way, f := range map[string]map[string]int{"direct": direct.wrong(), "by managers": passed.wrong()} {
			if len(f) > 0 && step.calm {
				t.Errorf("ALTER INDEX %s WITH {%s}: scans %s failed: %v", step.name, step.with, way, f)
			} else if len(f) > 0 {
				t.Logf("scans %s failed while an indexer was killed: %v", way, f)
			}
		}
	}

	stop()
	writers.Wait()
	direct.wg.Wait()
	passed.wg.Wait()
	for i, got := range append(direct.scans, passed.scans...) {
		if d := got.Check(w.History); d != "" {
			t.Fatalf("scan %d of %s, %d writes without an answer: %s", i, got.Index, w.Failed.Load(), d)
		}
	}
	t.Logf("%d writes, %d and %d scans equal the oracle's", w.Writes.Load(), len(direct.scans), len(passed.scans))
	s.whole()
	for _, name := range harness.SampleIndexes() {
		harness.MustRun(ctx, t, up, "index", "verify", bucket+"/"+name)
	}
	harness.CheckFinal(ctx, t, c, w, bucket)
}
