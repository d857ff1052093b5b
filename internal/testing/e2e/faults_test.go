package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/failpoint"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

var (
	faultCount = flag.Int("faults", 0, "faults in TestHundredFaults; 0: it is skipped")
	faultSeed  = flag.Uint64("faults.seed", uint64(time.Now().UnixNano()), "of the order of the faults and of the victims")
)

const (
	// readyAfterFault is the longest time after a fault's end for the next DDL and the next session scan.
	readyAfterFault = harness.Hang
	faultLasts      = 900 * time.Millisecond
	clockOff        = 26 * time.Hour // beyond the age at which the ledger drops requests
	slowWrite       = 700 * time.Millisecond
	pagesOfDDL      = 100 * time.Millisecond // between two rounds of a DDL client
)

// faultRun is a cluster under load and the faults made on it.
type faultRun struct {
	t     *testing.T
	ctx   context.Context
	up    *testcluster.Cluster
	links *testcluster.Links
	fail  failpoint.Dir
	rand  *rand.Rand
	disks bool // folders are on small disks
}

// faultKind is one kind of fault. It returns the victim's name after the fault is over.
type faultKind struct {
	name string
	f    func(r *faultRun) string
}

var faultKinds = []faultKind{
	{"SIGKILL leader", func(r *faultRun) string { return r.signal(r.leader(), syscall.SIGKILL) }},
	{"SIGKILL", func(r *faultRun) string { return r.signal(r.anyone(), syscall.SIGKILL) }},
	{"SIGTERM leader", func(r *faultRun) string { return r.signal(r.leader(), syscall.SIGTERM) }},
	{"SIGTERM", func(r *faultRun) string { return r.signal(r.anyone(), syscall.SIGTERM) }},
	{"SIGSTOP leader", func(r *faultRun) string { return r.stop(r.leader()) }},
	{"SIGSTOP", func(r *faultRun) string { return r.stop(r.anyone()) }},
	{"leader cut off from managers", func(r *faultRun) string {
		l := r.leader()
		r.links.Partition([]string{l}, without(r.managers(), l))
		return r.heal(l)
	}},
	{"leader cut off from all", func(r *faultRun) string {
		l := r.leader()
		r.links.Partition([]string{l}, without(r.everyone(), l))
		return r.heal(l)
	}},
	{"leader mute", func(r *faultRun) string {
		l := r.leader()
		for _, o := range without(r.everyone(), l) {
			r.links.CutOneWay(l, o)
		}
		return r.heal(l)
	}},
	{"indexer cut off from leader", func(r *faultRun) string {
		l, i := r.leader(), r.pick(r.indexers())
		r.links.Cut(l, i)
		return r.heal(l + "–" + i)
	}},
	{"projector cut off from managers", func(r *faultRun) string {
		p := r.pick(r.projectors())
		r.links.Partition([]string{p}, r.managers())
		return r.heal(p)
	}},
	{"router cut off from indexer", func(r *faultRun) string {
		p, i := r.pick(r.projectors()), r.pick(r.indexers())
		r.links.Cut(p, i)
		return r.heal(p + "–" + i)
	}},
	{"router's bytes held, one way", func(r *faultRun) string {
		p, i := r.pick(r.projectors()), r.pick(r.indexers())
		r.links.CutOneWay(p, i)
		return r.heal(p + "→" + i)
	}},
	{"indexers cut off from each other", func(r *faultRun) string {
		i := r.pick(r.indexers())
		r.links.Partition([]string{i}, without(r.indexers(), i))
		return r.heal(i)
	}},
	{"connections reset", func(r *faultRun) string {
		a := r.pick(r.everyone())
		b := r.pick(without(r.everyone(), a))
		r.links.Refuse(a, b)
		return r.heal(a + "–" + b)
	}},
	{"slow links", func(r *faultRun) string {
		a := r.pick(r.everyone())
		for _, b := range without(r.everyone(), a) {
			r.links.Delay(a, b, 40*time.Millisecond)
		}
		return r.heal(a)
	}},
	{"KV cut off from projector", func(r *faultRun) string {
		n := r.rand.IntN(len(r.projectors()))
		kv, p := r.up.Manifest().KV[n].ID, r.up.Manifest().Projectors[n].ID
		r.links.Cut(kv, p)
		return r.heal(kv + "–" + p)
	}},
	{"full disk under leader", func(r *faultRun) string { return r.full(r.leader()) }},
	{"full disk under indexer", func(r *faultRun) string { return r.full("i1") }},
	{"clock ahead, leader", func(r *faultRun) string { return r.clock(clockOff) }},
	{"clock behind, leader", func(r *faultRun) string { return r.clock(-clockOff) }},
	{"slow log under leader", func(r *faultRun) string {
		l := r.leader()
		r.must(r.fail.SetWrite(l, slowWrite))
		r.wait(2 * faultLasts)
		r.must(r.fail.SetWrite(l, 0))
		return l
	}},
}

func (r *faultRun) must(err error) {
	if err != nil {
		r.t.Errorf("making a fault: %v", err)
	}
}

func (r *faultRun) wait(d time.Duration) {
	select {
	case <-time.After(d + time.Duration(r.rand.Int64N(int64(d)))):
	case <-r.ctx.Done():
	}
}

func without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == one })
}

func (r *faultRun) pick(all []string) string { return all[r.rand.IntN(len(all))] }

func (r *faultRun) managers() (ids []string) {
	for _, e := range r.up.Manifest().Managers {
		ids = append(ids, e.ID)
	}
	return ids
}

func (r *faultRun) projectors() (ids []string) {
	for _, e := range r.up.Manifest().Projectors {
		ids = append(ids, e.ID)
	}
	return ids
}

func (r *faultRun) indexers() (ids []string) {
	for _, e := range r.up.Manifest().Indexers {
		ids = append(ids, e.ID)
	}
	return ids
}

// everyone returns all processes but the KV nodes, whose only link is to their projector.
func (r *faultRun) everyone() []string {
	return slices.Concat(r.managers(), r.projectors(), r.indexers())
}

// anyone returns a random process, KV nodes included.
func (r *faultRun) anyone() string {
	all := r.everyone()
	for _, e := range r.up.Manifest().KV {
		all = append(all, e.ID)
	}
	return r.pick(all)
}

// leader waits until a manager knows the leader.
func (r *faultRun) leader() string {
	for range 1800 {
		for n := range r.up.Manifest().Managers {
			ask, done := context.WithTimeout(r.ctx, time.Second)
			l := r.up.Leader(ask, n)
			done()
			if l >= 0 {
				return r.up.Manifest().Managers[l].ID
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-r.ctx.Done():
			return "m1"
		}
	}
	r.t.Error("no manager knows a leader for 90 s")
	return "m1"
}

func processPID(id string) func(m *localcluster.Manifest) int {
	return func(m *localcluster.Manifest) int {
		for _, e := range m.KV {
			if e.ID == id {
				return e.PID
			}
		}
		for _, e := range m.Projectors {
			if e.ID == id {
				return e.PID
			}
		}
		for _, e := range m.Indexers {
			if e.ID == id {
				return e.PID
			}
		}
		return managerPID(id)(m)
	}
}

// signal ends a process; `up` restarts it.
func (r *faultRun) signal(id string, s syscall.Signal) string {
	old := processPID(id)(r.up.Manifest())
	r.must(syscall.Kill(old, s))
	r.up.WaitRestart(old, processPID(id))
	return id
}

func (r *faultRun) stop(id string) string {
	pid := processPID(id)(r.up.Manifest())
	r.must(syscall.Kill(pid, syscall.SIGSTOP))
	r.wait(faultLasts)
	r.must(syscall.Kill(pid, syscall.SIGCONT))
	return id
}

func (r *faultRun) heal(who string) string {
	r.wait(faultLasts)
	r.links.HealAll()
	return who
}

func (r *faultRun) full(id string) string {
	if !r.disks {
		return id + " (not done: nothing may be mounted here)"
	}
	free := fill(r.t, filepath.Join(r.up.Dir, id))
	r.wait(faultLasts)
	free()
	return id
}

// clock restarts a manager with a wrong clock and makes it the leader: the others stop for a moment, so that it is
// elected.
func (r *faultRun) clock(off time.Duration) string {
	id := r.leader()
	r.must(r.fail.SetClock(id, off))
	r.signal(id, syscall.SIGKILL)
	r.must(r.fail.SetClock(id, 0)) // the next start has the correct clock
	for range 6 {                  // until it leads
		l := r.leader()
		if l == id {
			return id
		}
		r.stop(l)
	}
	return id + " (never elected)"
}

// ddlClient creates and drops its own indexes, one after the other, and records what was acknowledged.
type ddlClient struct {
	name    string
	present map[string]bool // acknowledged; false: dropped
	writes  atomic.Int64
	unknown map[string]bool
}

func (d *ddlClient) run(ctx context.Context, t *testing.T, c *client.Client, bucket string) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("%s_%d", d.name, n)
		limited, done := context.WithTimeout(context.WithoutCancel(ctx), readyAfterFault+30*time.Second)
		if _, err := c.Create(limited, v1.CreateRequest{Bucket: bucket, Name: name, IsPrimary: true,
			DeferBuild: true}); err != nil {
			t.Errorf("DDL under faults: create %s: %v", name, err)
			d.unknown[name] = true
		} else {
			d.present[name] = true
			d.writes.Add(1)
		}
		// linearizable: it includes what this client's answers have acknowledged
		list, err := c.Indexes(limited, bucket)
		if err != nil {
			t.Errorf("a listing under faults: %v", err)
		} else if diff := d.missing(list); diff != "" {
			t.Errorf("a linearizable listing after an acknowledged write: %s", diff)
		}
		if n%10 != 0 && d.present[name] {
			if err := c.Drop(limited, client.Ref(bucket, name), 0); err != nil {
				t.Errorf("DDL under faults: drop %s: %v", name, err)
				d.unknown[name] = true
			} else {
				d.present[name] = false
				d.writes.Add(1)
			}
		}
		done()
		time.Sleep(pagesOfDDL)
	}
}

// missing compares a listing with what this client's answers have acknowledged.
func (d *ddlClient) missing(list v1.IndexList) string {
	have := map[string]int{}
	for _, i := range list.Indexes {
		if i.State.String() != "dropping" {
			have[i.Name]++
		}
	}
	for name, present := range d.present {
		switch {
		case d.unknown[name]:
		case present && have[name] != 1:
			return fmt.Sprintf("%s was created and is listed %d times", name, have[name])
		case !present && have[name] != 0:
			return fmt.Sprintf("%s was dropped and is listed", name)
		}
	}
	return ""
}

// TestHundredFaults makes one fault after the other on the processes, their links, disks and clocks, under load
// (writes, scans, DDL). After each one the cluster becomes ready again without manual steps; at the end no
// acknowledged write is lost, and every index equals the oracle. `-faults 100` is the long form, `-faults.seed`
// repeats an order.
func TestHundredFaults(t *testing.T) {
	if *faultCount == 0 {
		t.Skip("a campaign: -faults 100")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*faultCount)*2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	fail := failpoint.Dir(t.TempDir())
	args := []string{"--failpoints", string(fail)}
	up, links := testcluster.StartLinked(t, dir, args...)
	r := &faultRun{t: t, ctx: ctx, fail: fail, rand: rand.New(rand.NewPCG(*faultSeed, 3)), disks: mayMount(t)}
	if r.disks {
		up.Stop()
		links.Close()
		for _, id := range []string{"i1", "m1", "m2", "m3"} {
			smallDisk(ctx, t, filepath.Join(dir, id), "160m")
		}
		up, links = testcluster.StartLinked(t, dir, args...)
		defer up.Stop() // before the disks are unmounted
	}
	r.up, r.links = up, links
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkload(ctx, t, up.KV(ctx))
	harness.CreateSampleIndexes(ctx, t, c, bucket)

	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(load, *faultSeed, 100) })
	clients := []*ddlClient{}
	for n := range 2 {
		d := &ddlClient{name: fmt.Sprintf("ddl%d", n), present: map[string]bool{}, unknown: map[string]bool{}}
		clients = append(clients, d)
		wg.Go(func() { d.run(load, t, c, bucket) })
	}
	t.Logf("-faults.seed %d", *faultSeed)
	done := r.all(c, w, bucket)
	stop()
	wg.Wait()
	writes := int64(0)
	for _, d := range clients {
		list, err := c.Indexes(ctx, bucket)
		if err != nil {
			t.Fatal(err)
		}
		if diff := d.missing(list); diff != "" {
			t.Errorf("at the end: %s", diff)
		}
		writes += d.writes.Load()
	}
	t.Logf("%v; %d acknowledged DDL writes, %d acknowledged KV writes, %d KV writes without an answer", done, writes,
		w.Writes.Load(), w.Failed.Load())
	if _, err := harness.ScanSoon(ctx, c, bucket, "world_ids", readyAfterFault); err != nil {
		t.Fatal(err)
	}
	harness.CheckFinal(ctx, t, c, w, bucket)
}

// all makes the faults and returns how long the cluster took after each.
func (r *faultRun) all(c *client.Client, w *harness.Workload, bucket string) string {
	var deck []int
	indexes := harness.SampleIndexes()
	var slowest, slowestDDL time.Duration
	counts := map[string]int{}
	for n := range *faultCount {
		if len(deck) == 0 {
			deck = r.rand.Perm(len(faultKinds))
		}
		k := faultKinds[deck[0]]
		deck = deck[1:]
		who := k.f(r)
		counts[k.name]++
		over := time.Now()
		limited, done := context.WithTimeout(r.ctx, readyAfterFault)
		name := fmt.Sprintf("after_fault_%d", n)
		_, err := c.Create(limited, v1.CreateRequest{Bucket: bucket, Name: name, IsPrimary: true, DeferBuild: true})
		if err == nil {
			err = c.Drop(limited, client.Ref(bucket, name), 0)
		}
		ddl := time.Since(over)
		if err != nil {
			r.t.Fatalf("fault %d, %s, %s: the next DDL: %v", n+1, k.name, who, err)
		}
		s, err := harness.ScanSoon(limited, c, bucket, indexes[n%len(indexes)], readyAfterFault-ddl)
		done()
		if err != nil {
			r.t.Fatalf("fault %d, %s, %s: no session scan within %s: %v", n+1, k.name, who, readyAfterFault, err)
		}
		ready := time.Since(over)
		slowest, slowestDDL = max(slowest, ready), max(slowestDDL, ddl)
		r.t.Logf("fault %d: %s: %s; DDL after %s, session scan (%d rows) after %s", n+1, k.name, who,
			ddl.Round(time.Millisecond), len(s.IDs), ready.Round(time.Millisecond))
		r.wait(200 * time.Millisecond)
		if r.ctx.Err() != nil || r.t.Failed() {
			r.t.Fatalf("stopped after %d faults", n+1)
		}
	}
	kinds := slices.Sorted(maps.Keys(counts))
	return fmt.Sprintf("%d faults of %d kinds; DDL again after at most %s, session scans after at most %s", *faultCount,
		len(kinds), slowestDDL.Round(time.Millisecond), slowest.Round(time.Millisecond))
}

// mayMount reports whether a tmpfs can be mounted here; in CI it must be possible.
func mayMount(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m")
	if err == nil {
		err = syscall.Unmount(dir, syscall.MNT_DETACH)
	}
	if err != nil && (os.Getenv("CI") == "true" || !errors.Is(err, syscall.EPERM)) {
		t.Fatalf("mounting a tmpfs: %v", err)
	}
	return err == nil
}
