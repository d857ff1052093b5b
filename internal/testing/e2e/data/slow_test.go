package data

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/indexer"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
	"tidemark/projector/feed"
	"tidemark/projector/router"
	"tidemark/wire"
)

var (
	slowFor       = flag.Duration("slow.for", 2*time.Second, "how long TestSlowIndexer overloads an indexer")
	slowDocuments = flag.Int("slow.documents", 2000, "documents that it writes over and over")
)

// TestSlowIndexer writes to KV at full speed while one of three indexers runs a tenth of the time (SIGSTOP and
// SIGCONT in turn), with smart throttling. No queue and no process's memory exceeds its bound, however long that
// lasts; while the slow indexer's data is dropped, stability timestamps are promoted without it; afterwards it
// catches up by itself, and each copy equals KV. The durations of session scans are logged.
func TestSlowIndexer(t *testing.T) {
	const quota = 512 << 20
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+2**slowFor)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "3", "--throttle", "smart",
		"--memory-quota", strconv.Itoa(quota))
	m, c, kv := up.Manifest(), up.Client(), up.KV(ctx)
	harness.Create(ctx, t, c, fmt.Sprintf("CREATE INDEX big ON %s(k) WITH {\"num_replica\": 2}", m.Bucket))
	slow := m.Indexers[2]
	load, enough := context.WithCancel(ctx)
	defer enough()
	var group sync.WaitGroup
	group.Go(func() { pulse(load, slow.PID) })
	var written atomic.Int64
	for w := range 4 {
		group.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for load.Err() == nil {
				i := r.IntN(*slowDocuments)
				value := fmt.Appendf(nil, `{"k":"%d %d %s"}`, i, r.Uint64(), strings.Repeat("v", 3<<10))
				if _, err := kv.Set(load, fmt.Sprint("doc", i), value, kvclient.StoreOptions{}); err == nil {
					written.Add(1)
				}
			}
		})
	}
	o := overload{t: t, c: c, bucket: m.Bucket, projector: m.Projectors[0].Admin, slow: slow.ID,
		fills: map[string][2]int64{}}
	for _, x := range m.Indexers {
		o.indexers, o.pids = append(o.indexers, x.Admin), append(o.pids, x.PID)
	}
	o.pids = append(o.pids, m.Projectors[0].PID)
	group.Go(func() { o.scan(load) })
	began := time.Now()
	for o.number == 0 || time.Since(began) < *slowFor || o.without < 5 || o.scans.Load() < 3 {
		if ctx.Err() != nil {
			t.Fatalf("promotions while the slow one was left out: %d, session scans: %d, want some; %s", o.without,
				o.scans.Load(), o.String())
		}
		o.look(ctx)
		time.Sleep(100 * time.Millisecond)
	}
	lasted := time.Since(began)
	enough()
	group.Wait()
	t.Logf("%d documents of 3 KiB written in %s; %s", written.Load(), lasted.Round(time.Millisecond), o.String())
	for name, f := range o.fills {
		if f[0] > f[1] {
			t.Errorf("%s: %d bytes, want at most %d", name, f[0], f[1])
		}
	}
	// The collector runs when the heap has doubled, so queued bytes count twice.
	projector := int64(2*(3*(router.DefaultQueueBytes+router.DefaultReservedBytes)+feed.DefaultBufferBytes) +
		projectorBase)
	for i, pid := range o.pids {
		limit, what := int64(quota+quota/10+indexer.MemoryBase), fmt.Sprint("indexer ", i+1)
		if i == len(m.Indexers) {
			limit, what = projector, "projector"
		}
		peak := peakMemory(t, pid)
		t.Logf("%s: at most %d MiB resident (%v), %d allowed", what, peak>>20, o.resident[pid], limit>>20)
		if peak > limit {
			t.Errorf("%s: %d bytes resident, want at most %d", what, peak, limit)
		}
	}
	t.Log(harness.MustRun(ctx, t, up, "index", "verify", m.Bucket+"/big", "--rate", "1000000"))
}

// projectorBase is what a projector needs in addition to its queues: code, stacks, connections, and evaluators.
const projectorBase = 96 << 20

// pulse lets a process run a tenth of the time until ctx ends, and resumes it then.
func pulse(ctx context.Context, pid int) {
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	for ctx.Err() == nil {
		for _, p := range []struct {
			s syscall.Signal
			d time.Duration
		}{{syscall.SIGSTOP, 450 * time.Millisecond}, {syscall.SIGCONT, 50 * time.Millisecond}} {
			if syscall.Kill(pid, p.s) != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(p.d):
			}
		}
	}
}

// overload holds the measurements of a cluster under overload.
type overload struct {
	t                       *testing.T
	c                       *client.Client
	bucket, projector, slow string
	indexers                []string
	pids                    []int

	fills    map[string][2]int64 // the highest level of each queue, and its bound
	resident map[int][]int64     // MiB, the highest of each tenth second of the run so far
	number   uint64
	without  uint64 // promotions while the slow indexer was dropped or late
	held     int    // samples in which it delayed a promotion
	looks    int

	scans atomic.Int64
	mu    sync.Mutex
	took  []time.Duration
}

// scan counts the index repeatedly, with session consistency.
func (o *overload) scan(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		if _, err := o.c.Count(ctx, client.Ref(o.bucket, "big"), v1.ScanRequest{Consistency: "session"}); err == nil {
			o.scans.Add(1)
			o.mu.Lock()
			o.took = append(o.took, time.Since(began))
			o.mu.Unlock()
		}
	}
}

func (o *overload) fill(name string, filled, limit int64) {
	f := o.fills[name]
	o.fills[name] = [2]int64{max(f[0], filled), limit}
}

// look samples the levels of all queues.
func (o *overload) look(ctx context.Context) {
	o.looks++
	// A queue may exceed its bound by what is added after the check: a batch, or the space reserved for control
	// messages.
	const more = 2 << 20
	var s wire.ProjectorState
	if err := testcluster.GetJSON(ctx, o.projector+"/v1/state", &s); err != nil {
		o.t.Fatal(err)
	}
	for _, topic := range s.Topics {
		for _, e := range topic.Endpoints {
			o.fill(fmt.Sprintf("router %s node %d/%d", topic.Topic, e.Node, e.Connection), int64(e.Queue.Filled),
				int64(e.Queue.Limit)+more)
		}
	}
	for _, b := range s.Buckets {
		o.fill("window of bucket "+b.Bucket, b.HeldBytes, b.BufferBytes+more)
	}
	for i, admin := range o.indexers[:2] {
		_, text := harness.Get(ctx, o.t, admin+"/metrics")
		o.fill(fmt.Sprint("queue of indexer ", i+1), gauge(text, "tidemark_indexer_queue_bytes{"),
			gauge(text, "tidemark_indexer_queue_limit_bytes")+more)
	}
	if o.resident == nil {
		o.resident = map[int][]int64{}
	}
	for _, pid := range o.pids {
		if o.looks%50 == 1 {
			o.resident[pid] = append(o.resident[pid], 0)
		}
		last := len(o.resident[pid]) - 1
		o.resident[pid][last] = max(o.resident[pid][last], residentMiB(o.t, pid))
	}
	v, err := o.c.Timestamps(ctx, o.bucket, 0, 1)
	if err != nil {
		o.t.Fatal(err)
	}
	for _, p := range v.Indexers {
		if p.Name != o.slow {
			continue
		}
		if p.Holds {
			o.held++
		}
		if left := p.Ignored == "dropped" || p.Ignored == "late" || p.Ignored == "recovering"; left && o.number > 0 {
			o.without += v.Number - o.number
		}
	}
	o.number = v.Number
}

// String formats the measurements.
func (o *overload) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b strings.Builder
	for _, name := range sortedNames(o.fills) {
		fmt.Fprintf(&b, "\n%s: at most %.1f of %.1f MiB", name, float64(o.fills[name][0])/(1<<20),
			float64(o.fills[name][1])/(1<<20))
	}
	took := slices.Sorted(slices.Values(o.took))
	if n := len(took); n > 0 {
		fmt.Fprintf(&b, "\n%d session scans: p50 %s, p99 %s, at most %s", n, took[n/2].Round(time.Millisecond),
			took[n*99/100].Round(time.Millisecond), took[n-1].Round(time.Millisecond))
	}
	fmt.Fprintf(&b, "\n%d promotions, %d of them while the slow one was left out; it held promotion back at %d of %d "+
		"looks", o.number, o.without, o.held, o.looks)
	return b.String()
}

func sortedNames(m map[string][2]int64) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// gauge returns the first sample of a metric, 0 if there is none.
func gauge(text, name string) int64 {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name) {
			_, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			f, _ := strconv.ParseFloat(value, 64)
			return int64(f)
		}
	}
	return 0
}

// residentMiB returns the current resident memory of a process.
func residentMiB(t *testing.T, pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(b))
	if err != nil || len(fields) < 2 {
		t.Fatalf("%q: %v", b, err)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 53)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize()) >> 20
}
