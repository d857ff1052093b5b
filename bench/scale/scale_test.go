package scale

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/client"
	"tidemark/index"
	"tidemark/manager/api/v1"
)

var (
	managers   = flag.Int("scale.managers", 1, "managers")
	indexers   = flag.Int("scale.indexers", 6, "simulated indexers, 250 at most")
	projectors = flag.Int("scale.projectors", 3, "simulated projectors")
	buckets    = flag.Int("scale.buckets", 2, "buckets")
	vbuckets   = flag.Int("scale.vbuckets", 64, "vbuckets of each bucket")
	indexes    = flag.Int("scale.indexes", 1, "indexes of each bucket")
	partitions = flag.Int("scale.partitions", 4, "partitions of each index")
	replicas   = flag.Int("scale.replicas", 1, "replicas of each partition beside the first")
	rates      = flag.String("scale.rates", "100,100000", "mutations per second of all buckets, one measurement for each")
	window     = flag.Duration("scale.window", 1500*time.Millisecond, "how long each measurement takes")
	changes    = flag.Int("scale.changes", 0, "leaders that are killed at the end, one after the other; wants three "+
		"managers")
	profiles = flag.String("scale.profiles", "", "folder for a CPU profile of each manager that is not killed")
	logLevel = flag.String("scale.log", "error", "log level of the managers")
)

// patience detects hangs; it is not a measured limit.
const patience = 5 * time.Minute

// run is a cluster with its simulated components.
type run struct {
	t        *testing.T
	ctx      context.Context
	w        *world
	managers []*process
	client   *client.Client
	hosting  int // pairs of a bucket and an indexer that hosts some of it
}

// TestLeader checks that the leader's work for stability timestamps does not grow with the mutation rate, and that a
// leader change reopens no stream. With flags it is the scale run of docs/scale.md.
func TestLeader(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience+time.Duration(4+*changes)**window)
	defer cancel()
	r := &run{t: t, ctx: ctx, w: newWorld(*buckets, *vbuckets), managers: startManagers(t, *managers, *logLevel,
		*profiles)}
	for _, m := range r.managers {
		r.w.managers = append(r.w.managers, m.url)
	}
	r.client = client.New(r.w.managers...)
	defer r.client.Close()
	r.components()
	r.indexes()
	for text := range strings.SplitSeq(*rates, ",") {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		r.measure(rate)
	}
	for range *changes {
		r.change()
	}
}

// components starts all components and waits until they are registered with the leader.
func (r *run) components() {
	r.t.Helper()
	running, stop := context.WithCancel(context.WithoutCancel(r.ctx))
	group, running := errgroup.WithContext(running)
	r.t.Cleanup(func() {
		stop()
		if err := group.Wait(); err != nil {
			r.t.Error(err)
		}
	})
	for i := range *projectors {
		p, err := r.w.projector(i, *projectors)
		if err != nil {
			r.t.Fatal(err)
		}
		group.Go(func() error { return p.Run(running) })
	}
	for i := range *indexers {
		n, err := r.w.indexer(i + 1)
		if err != nil {
			r.t.Fatal(err)
		}
		group.Go(func() error { return n.Run(running) })
	}
	began := time.Now()
	r.until("all components known", func(s *v1.Status) bool {
		return len(s.Projectors) == *projectors &&
			len(s.Indexers) == *indexers
	})
	r.t.Logf("%d projectors and %d indexers registered after %v", *projectors, *indexers,
		time.Since(began).Round(time.Millisecond))
}

// until requests the status until a condition holds.
func (r *run) until(what string, ok func(*v1.Status) bool) v1.Status {
	r.t.Helper()
	for {
		s, err := r.client.Status(r.ctx)
		if err == nil && ok(&s) {
			return s
		}
		select {
		case <-r.ctx.Done():
			r.t.Fatalf("waiting for %s: %v; last: %+v, %v", what, r.ctx.Err(), s, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// indexes creates all indexes and waits until they are ready.
func (r *run) indexes() {
	r.t.Helper()
	began := time.Now()
	var ids []index.ID
	for _, b := range r.w.buckets {
		for i := range *indexes {
			info, err := r.client.Create(r.ctx, v1.CreateRequest{Name: fmt.Sprint("x", i), Bucket: b.name,
				Keys:       []index.KeyExpr{{Expr: fmt.Sprint("f", i)}},
				Partitions: uint16(*partitions), Replicas: uint8(*replicas)})
			if err != nil {
				r.t.Fatalf("index %d of %s: %v", i, b.name, err)
			}
			ids = append(ids, info.ID)
		}
	}
	created := time.Since(began)
	if err := r.client.WaitReady(r.ctx, ids, nil); err != nil {
		r.t.Fatal(err)
	}
	type pair struct{ bucket, node string }
	hosting := map[pair]bool{}
	copies := 0
	for _, id := range ids {
		x, err := r.client.Index(r.ctx, id.String())
		if err != nil {
			r.t.Fatal(err)
		}
		for _, c := range x.Copies {
			hosting[pair{x.Bucket, fmt.Sprint(c.Node)}] = true
			copies++
		}
	}
	r.hosting = len(hosting)
	r.t.Logf("%d indexes with %d copies created in %v, ready after %v; a bucket is on %.1f indexers, an indexer has "+
		"%.1f buckets", len(ids), copies,
		created.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), float64(r.hosting)/float64(*buckets),
		float64(r.hosting)/float64(*indexers))
}

// leader returns the leader's process.
func (r *run) leader() *process {
	r.t.Helper()
	s := r.until("a leader", func(s *v1.Status) bool {
		return s.Leader.REST != "" && s.Coordinator == "active" || s.Leader.REST != "" && len(r.managers) > 1
	})
	i := slices.IndexFunc(r.managers, func(p *process) bool { return p.url == s.Leader.REST })
	if i < 0 {
		r.t.Fatalf("no manager is the leader %+v", s.Leader)
	}
	return r.managers[i]
}

// counts holds the numbers of requests that the simulated components received.
type counts struct{ requests, stabilities, reports, refused int64 }

func (r *run) counts() counts {
	return counts{r.w.requests.Load(), r.w.stabilities.Load(), r.w.reports.Load(), r.w.refused.Load()}
}

// commits returns the number of commands that the leader has applied.
func (r *run) commits(l *process) int64 {
	r.t.Helper()
	v, ok := l.metric(r.ctx, "tidemark_manager_cas")
	if !ok {
		r.t.Fatalf("%s has no figure of its commits", l.name)
	}
	return int64(v)
}

// measure observes the leader for a while, at a mutation rate.
func (r *run) measure(rate float64) {
	r.t.Helper()
	r.w.setRate(rate)
	l := r.leader()
	before := r.numbers()
	r.until("the rate's first stability timestamps", func(s *v1.Status) bool {
		return slices.ContainsFunc(s.Buckets,
			func(b v1.BucketStatus) bool { return b.StabilityNumber >= before[b.Name]+2 })
	})
	r.w.latency.take()
	began := time.Now()
	first := r.commits(l) // timestamps sent from here on are of counted commits
	u, c := r.usage(l), r.counts()
	select {
	case <-time.After(*window): // the measurement itself
	case <-r.ctx.Done():
	}
	v, d := r.usage(l), r.counts()
	commits := r.commits(l) - first
	whole := time.Since(began).Seconds()
	took := v.at.Sub(u.at).Seconds()
	q, n := r.w.latency.take(0.5, 0.99, 1)
	per := func(a, b int64) float64 { return float64(b-a) / took }
	r.t.Logf("%8.0f mutations/s: leader %5.1f %% of a core, %.0f MiB (most %.0f); %.2f MB/s in, %.2f MB/s out; %.0f "+
		"reports/s (%.1f failed), %.1f commits/s, "+
		"%.0f stability timestamps/s, %.0f requests/s; mutation → held %.0f, %.0f, %.0f ms (p50, p99, most of %d)",
		rate, 100*(v.cpu-u.cpu).Seconds()/took, float64(v.rss)/(1<<20), float64(v.rssMost)/(1<<20),
		float64(v.in-u.in)/took/1e6, float64(v.out-u.out)/took/1e6,
		per(c.reports, d.reports), per(c.refused, d.refused), float64(commits)/whole, per(c.stabilities, d.stabilities),
		per(c.requests, d.requests), q[0], q[1], q[2], n)
	// Whatever the rate, the leader commits five promotions a second, and sends each to each host of a bucket once; a
	// timestamp that is not acknowledged is sent again after a second.
	if most := int64(5*whole) + 2; commits > most {
		r.t.Errorf("at %.0f mutations/s the leader committed %d times in %.1f s, want at most %d", rate, commits, whole, most)
	}
	if most := int64(r.hosting) * (commits + int64(whole) + 3); d.stabilities-c.stabilities > most {
		r.t.Errorf("at %.0f mutations/s %d stability timestamps were sent in %.1f s after %d commits, want at most %d", rate,
			d.stabilities-c.stabilities, whole, commits, most)
	}
}

// numbers returns the newest stability timestamp of each bucket.
func (r *run) numbers() map[string]uint64 {
	m := map[string]uint64{}
	s := r.until("a status", func(*v1.Status) bool { return true })
	for _, b := range s.Buckets {
		m[b.Name] = b.StabilityNumber
	}
	return m
}

func (r *run) usage(p *process) usage {
	r.t.Helper()
	u, err := p.usage()
	if err != nil {
		r.t.Fatal(err)
	}
	return u
}

// change kills the leader and waits until its successor has promoted a stability timestamp of every bucket.
func (r *run) change() {
	r.t.Helper()
	l := r.leader()
	reopened := r.w.reopened.Load()
	before := r.numbers()
	used := map[*process]usage{}
	for _, p := range r.managers {
		if p != l {
			used[p] = r.usage(p)
		}
	}
	killed := time.Now()
	if err := l.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	_ = l.cmd.Wait()
	s := r.until("another leader", func(s *v1.Status) bool {
		return s.Leader.REST != "" && s.Leader.REST != l.url && s.Coordinator == "active"
	})
	active := time.Since(killed)
	i := slices.IndexFunc(r.managers, func(p *process) bool { return p.url == s.Leader.REST })
	if i < 0 {
		r.t.Fatalf("no manager is the leader %+v", s.Leader)
	}
	next := r.managers[i]
	u := r.usage(next)
	r.until("stability timestamps of the new leader", func(s *v1.Status) bool {
		return len(s.Buckets) == *buckets && !slices.ContainsFunc(s.Buckets,
			func(b v1.BucketStatus) bool { return b.StabilityNumber <= before[b.Name]+1 })
	})
	was := used[next]
	r.t.Logf("leader killed: %s coordinates after %v, all buckets promoted twice after %v; until it coordinated it used "+
		"%v of CPU, read %.1f MB, wrote %.1f MB; %d streams opened anew",
		next.name, active.Round(time.Millisecond), time.Since(killed).Round(time.Millisecond),
		(u.cpu - was.cpu).Round(time.Millisecond),
		float64(u.in-was.in)/1e6, float64(u.out-was.out)/1e6, r.w.reopened.Load()-reopened)
	if n := r.w.reopened.Load() - reopened; n != 0 {
		r.t.Errorf("the new leader opened %d streams anew", n)
	}
	if err := l.start(); err != nil {
		r.t.Fatal(err)
	}
	for _, ok := l.metric(r.ctx, "tidemark_manager_cas"); !ok; _, ok = l.metric(r.ctx, "tidemark_manager_cas") {
		select {
		case <-r.ctx.Done():
			r.t.Fatalf("%s does not come back", l.name)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
