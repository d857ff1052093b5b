// Package ddlhistory checks that DDL is exactly-once and linearizable (IM-12, IM-13): clients of all managers create,
// drop, split and read a few names while managers are killed and stopped and the links between them are cut, and
// porcupine checks the history of their requests and answers.
//
// A write whose answer is lost is retried with its Idempotency-Key, at once, much later, or never; in the last case
// it may take effect at any time until the end. Writes with an answer are repeated too, and must get the same answer.
package ddlhistory

import (
	"context"
	"flag"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"tidemark/internal/testing/testcluster"
)

var (
	operations = flag.Int("ddl.ops", 2000, "operations in the history, at least")
	seed       = flag.Uint64("ddl.seed", uint64(time.Now().UnixNano()), "of the choices of clients and faults")
)

const (
	readyWithin = 90 * time.Second // for the managers, after the last fault
	staleTries  = 100
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	testcluster.Cleanup()
	os.Exit(code)
}

// start runs a cluster with the smallest data path that DDL needs.
func start(t *testing.T) (up *testcluster.Cluster, links *testcluster.Links,
	newWorker func(r *recorder, n uint64) *worker) {
	t.Helper()
	up, links = testcluster.StartLinked(t, t.TempDir(), "--kv", "1", "--indexers", "1")
	m := up.Manifest()
	transport := &http.Transport{MaxIdleConnsPerHost: 2 * workers, MaxConnsPerHost: 0}
	t.Cleanup(transport.CloseIdleConnections)
	return up, links, func(r *recorder, n uint64) *worker {
		return &worker{recorder: r, rand: rand.New(rand.NewPCG(*seed, n)), http: &http.Client{Transport: transport},
			servers: m.Servers(), bucket: m.Bucket}
	}
}

// TestHistory checks that DDL is linearizable for its clients while managers are killed, stopped and resumed.
func TestHistory(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up, links, newWorker := start(t)
	t.Logf("-ddl.seed %d", *seed)
	r := newRecorder()
	trouble, calm := context.WithCancel(ctx)
	defer calm()
	f := &faults{t: t, up: up, links: links, rand: rand.New(rand.NewPCG(*seed, 1)), done: map[string]int{}}
	var faulty, working sync.WaitGroup
	faulty.Go(func() { f.run(trouble) })
	all := make([]*worker, workers)
	for i := range all {
		all[i] = newWorker(r, uint64(100+i))
		working.Go(func() {
			all[i].run(ctx, func() bool { return r.requests.Load() >= int64(*operations) && f.all.Load() })
		})
	}
	working.Wait()
	calm()
	faulty.Wait()
	settled, done := context.WithTimeout(ctx, readyWithin+patienceOfAll)
	defer done()
	for _, w := range all { // retry what is still open, and read once more
		working.Go(func() {
			for p, ok := w.takeDue(true); ok && w.failed() == nil; p, ok = w.takeDue(true) {
				w.again(settled, p)
			}
		})
	}
	working.Wait()
	for range 3 * len(all[0].servers) {
		all[0].list(settled, all[0].names())
	}
	if err := r.failed(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations (%d reads answered) in %s, %d entries; faults %s", r.requests.Load(), r.reads.Load(),
		time.Since(r.began).Round(time.Millisecond), len(r.history), f)
	t.Logf("%d attempts again, %d refused, %d outcomes asked for again and kept, %d sent twice at once, %d never learnt",
		r.retries.Load(), r.refusals.Load(), r.replays.Load(), r.hedges.Load(), r.givenUp.Load())
	begun, cancelled, ended := r.splits()
	t.Logf("%d splits, %d cancelled, %d seen to end", begun, cancelled, ended)
	if links.Passed() == 0 {
		t.Error("no connection between processes went through a proxy: no link was cut")
	}
	if r.replays.Load() == 0 {
		t.Error("no outcome was asked for again: the test has shown nothing")
	}
	began := time.Now()
	judge(t, r.history)
	t.Logf("judged in %s", time.Since(began).Round(time.Millisecond))
}

// TestStaleReadsAreCaught checks that the same check finds the violation when stale reads are allowed: a follower
// that was stopped while an index was created does not list it when it resumes.
func TestStaleReadsAreCaught(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up, links, newWorker := start(t)
	f := &faults{t: t, up: up, links: links, rand: rand.New(rand.NewPCG(*seed, 1)), done: map[string]int{}}
	r := newRecorder()
	w := newWorker(r, 100)
	w.query = "&consistency=stale"
	for try := range staleTries {
		leader, others := f.roles(ctx)
		if leader < 0 {
			wait(ctx, betweenLow)
			continue
		}
		managers := up.Manifest().Managers
		follower := managers[others[0]]
		f.signal(follower.PID, syscall.SIGSTOP)
		w.servers = []string{managers[leader].REST}
		w.write(ctx, input{kind: ensure, name: w.names()[0]})
		var looked sync.WaitGroup
		w.servers = []string{follower.REST}
		looked.Go(func() { w.list(ctx, w.names()) })        // it waits in the follower's listen queue
		wait(ctx, time.Duration(try+1)*10*time.Millisecond) // longer at each try: the machine may be slow
		f.signal(follower.PID, syscall.SIGCONT)
		looked.Wait()
		w.servers = []string{managers[leader].REST}
		if result, _ := linearizable(r.history); result == porcupine.Ok {
			w.write(ctx, input{kind: drop, name: w.names()[0]})
			continue
		}
		if err := r.failed(); err != nil {
			t.Fatal(err)
		}
		t.Logf("found with try %d", try+1)
		return
	}
	t.Errorf("%d stale reads and no violation found: the check finds nothing, or reads are not stale", staleTries)
}
