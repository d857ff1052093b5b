package data

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/kv/server"
)

var (
	differentialRounds = flag.Int("differential.rounds", 0, "rounds of TestDifferential; 0: it is skipped")
	differentialSeed   = flag.Uint64("differential.seed", uint64(time.Now().UnixNano()), "of TestDifferential")
	differentialMoods  = flag.String("differential.moods", "none", "of KV nodes: none, drawn, or as kv --nasty has them")
	differentialFeed   = flag.String("differential.feed", "native", "feed of TestDifferential: native or gocbcore")
)

const (
	differentialKeys = 1500
	beyondReplicas   = 200             // lower bound of the writes that a failover loses
	roundPatience    = 4 * time.Minute // for indexes to become ready, and for a scan, after the faults of a round
)

// differential is one run of the campaign.
type differential struct {
	t      *testing.T
	up     *testcluster.Cluster
	c      *client.Client
	admin  *kv.Admin
	kv     *kvclient.Client
	bucket string
	keys   []string
	values [][]byte
	rand   *rand.Rand
	faults map[string]int
	rows   int
	writes atomic.Int64
	// KV purges deletions within a second: a component that lags by more starts again, so under writes an index may
	// never become ready
	purges bool
}

// TestDifferential runs rounds of random indexes of every scheme over documents of all shapes. They are built while
// documents change, processes are killed and stopped, and KV nodes are failed over with the loss of what no replica
// has and added again by a rebalance. After a round's faults, every index equals its definition applied to the
// documents that KV has then. It is a campaign: -differential.rounds 100.
func TestDifferential(t *testing.T) {
	if *differentialRounds == 0 {
		t.Skip("a campaign: go test ./internal/testing/e2e/data -run TestDifferential -differential.rounds 100 -timeout 3h")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*differentialRounds)*5*time.Minute)
	defer cancel()
	moods := differentialNasty()
	t.Logf("-differential.seed %d -differential.feed %s -differential.moods %s", *differentialSeed, *differentialFeed,
		moods)
	up := testcluster.Start(t, t.TempDir(), "--kv", "3", "--kv-replicas", "1", "--indexers", "3", "--vbuckets", "64",
		"--feed", *differentialFeed, "--nasty", moods)
	d := &differential{t: t, up: up, c: up.Client(), admin: harness.KVAdmin(up), kv: up.KV(ctx),
		bucket: up.Manifest().Bucket,
		rand:   rand.New(rand.NewPCG(*differentialSeed, 1)), faults: map[string]int{}}
	parsed, err := server.ParseMoods(moods)
	if err != nil {
		t.Fatal(err)
	}
	d.purges = parsed.Has(server.Purges)
	for i := range differentialKeys {
		d.keys = append(d.keys, fmt.Sprintf("doc::%d", i))
	}
	documents := oracle.Documents()
	for i := range pool {
		d.values = append(d.values, documents.Example(int(*differentialSeed%1_000_000)*pool+i))
	}
	for round := 0; round < *differentialRounds && !t.Failed(); round++ {
		began := time.Now()
		d.round(ctx, round)
		t.Logf("round %d: %s", round, time.Since(began).Round(time.Second))
	}
	t.Logf("%d writes, %d rows equal the oracle's; faults %v", d.writes.Load(), d.rows, d.faults)
}

// differentialNasty returns the moods of the KV nodes.
func differentialNasty() string {
	switch *differentialMoods {
	case "none":
		return ""
	case "drawn":
	default:
		return *differentialMoods
	}
	all := server.AllMoods
	if *differentialFeed == "gocbcore" { // see TestScenarios
		all &^= server.OldControls | server.NoCloseEnd | server.NoFlowControl
	}
	return all.Some(*differentialSeed).String()
}

// round creates indexes before and during faults, and compares all of them afterwards.
func (d *differential) round(ctx context.Context, round int) {
	seed := int(*differentialSeed%1_000_000) + 10*round
	load, stop := context.WithCancel(ctx)
	defer stop()
	var writing sync.WaitGroup
	writing.Go(func() { d.write(load, uint64(round)) })
	early := schemeIndexes(d.t, oracle.Statements(d.bucket, fmt.Sprintf("early_%d", round), nil, nil, nil).Example(seed))
	late := schemeIndexes(d.t, oracle.Statements(d.bucket, fmt.Sprintf("late_%d", round), nil, nil, nil).Example(seed+1))
	ids := d.create(ctx, early)
	if d.rand.IntN(2) == 0 && !d.purges {
		d.ready(ctx, ids)
	}
	for n := range 1 + d.rand.IntN(3) {
		d.fault(ctx, round, n)
		if n == 0 {
			ids = append(ids, d.create(ctx, late)...)
		}
	}
	stop()
	writing.Wait()
	d.ready(ctx, ids)
	harness.Settled(ctx, d.t, d.admin, d.up.Manifest().VBuckets)
	docs, err := testcluster.Documents(ctx, d.kv, d.keys)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, x := range append(early, late...) {
		d.compare(ctx, x, docs)
		if _, err := d.c.Statement(ctx, "DROP INDEX "+x.name+" ON "+d.bucket); err != nil {
			d.t.Error(err)
		}
	}
}

// write makes random updates and deletions until ctx ends. The outcome of a write without an answer shows at the end,
// when the documents are read.
func (d *differential) write(ctx context.Context, seed uint64) {
	const writers = 8
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(*differentialSeed+seed, uint64(n)))
			for ctx.Err() == nil {
				key := d.keys[r.IntN(len(d.keys))]
				one, cancel := context.WithTimeout(ctx, 10*time.Second)
				var err error
				if r.IntN(6) > 0 {
					_, err = d.kv.Set(one, key, d.values[r.IntN(pool)], kvclient.StoreOptions{})
				} else if _, err = d.kv.Delete(one, key, 0); errors.Is(err, kvclient.ErrKeyNotFound) {
					err = nil
				}
				cancel()
				if err == nil {
					d.writes.Add(1)
				}
				select {
				case <-ctx.Done():
				case <-time.After(15 * time.Millisecond):
				}
			}
		})
	}
	wg.Wait()
}

func (d *differential) create(ctx context.Context, all []schemeIndex) (ids []index.ID) {
	for _, x := range all {
		made, err := d.c.Statement(ctx, x.statement)
		if err != nil {
			d.t.Fatalf("%s: %v", x.statement, err)
		}
		ids = append(ids, made[0].ID)
	}
	return ids
}

func (d *differential) ready(ctx context.Context, ids []index.ID) {
	ctx, cancel := context.WithTimeout(ctx, roundPatience)
	defer cancel()
	if err := d.c.WaitReady(ctx, ids, nil); err != nil {
		d.t.Fatalf("indexes are not ready after %s: %v", roundPatience, err)
	}
}

func (d *differential) compare(ctx context.Context, x schemeIndex, docs map[string][]byte) {
	got, err := harness.ScanSoon(ctx, d.c, d.bucket, x.name, roundPatience)
	if err != nil {
		d.t.Errorf("%s: %v", x.statement, err)
		return
	}
	want, err := x.oracle.Rows(maps.Clone(docs))
	if err != nil {
		d.t.Error(err)
		return
	}
	if diff := oracle.Diff(want, got.Keys, got.IDs); diff != "" {
		d.t.Errorf("%s: %s", x.statement, diff)
	}
	d.rows += len(want)
}

// fault makes one fault; every third round loses writes.
func (d *differential) fault(ctx context.Context, round, n int) {
	m := d.up.Manifest()
	kinds := []struct {
		name string
		f    func()
	}{
		{"failover with loss", func() { d.failover(ctx, m.KV[d.rand.IntN(len(m.KV))]) }},
		{"manager killed", d.killed(len(m.Managers), func(m *localcluster.Manifest, i int) int { return m.Managers[i].PID })},
		{"indexer killed", d.killed(len(m.Indexers), func(m *localcluster.Manifest, i int) int { return m.Indexers[i].PID })},
		{"projector killed", d.killed(len(m.Projectors), func(m *localcluster.Manifest,
			i int) int {
			return m.Projectors[i].PID
		})},
		{"KV node killed", d.killed(len(m.KV), func(m *localcluster.Manifest, i int) int { return m.KV[i].PID })},
		{"indexer stopped", func() { d.stopped(ctx, m.Indexers[d.rand.IntN(len(m.Indexers))].PID) }},
		{"projector stopped", func() { d.stopped(ctx, m.Projectors[d.rand.IntN(len(m.Projectors))].PID) }},
		{"KV node stopped", func() { d.stopped(ctx, m.KV[d.rand.IntN(len(m.KV))].PID) }},
	}
	k := kinds[d.rand.IntN(len(kinds))]
	if n == 0 && round%3 == 0 {
		k = kinds[0]
	}
	d.faults[k.name]++
	k.f()
}

func (d *differential) killed(of int, pid func(m *localcluster.Manifest, i int) int) func() {
	i := d.rand.IntN(of)
	return func() { d.up.Kill(func(m *localcluster.Manifest) int { return pid(m, i) }) }
}

func (d *differential) stopped(ctx context.Context, pid int) {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		d.t.Error(err)
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(200+d.rand.IntN(4000)) * time.Millisecond):
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		d.t.Error(err)
	}
}

// failover fails a KV node over without what its replicas lack, and adds it again. In some cases the node hangs
// meanwhile.
func (d *differential) failover(ctx context.Context, e localcluster.KVEntry) {
	harness.Settled(ctx, d.t, d.admin, d.up.Manifest().VBuckets)
	if err := d.admin.Pause(ctx, kv.PauseRequest{Paused: true}); err != nil {
		d.t.Fatal(err)
	}
	from := d.writes.Load()
	harness.WaitFor(ctx, d.t, func() error {
		if n := d.writes.Load() - from; n < beyondReplicas {
			return fmt.Errorf("%d writes beyond the replicas", n)
		}
		return nil
	})
	if hangs := d.rand.IntN(3) == 0; hangs {
		if err := syscall.Kill(e.PID, syscall.SIGSTOP); err != nil {
			d.t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(e.PID, syscall.SIGCONT) }()
	}
	harness.MustRun(ctx, d.t, d.up, "kv", "failover", e.ID, "--lose")
	_ = syscall.Kill(e.PID, syscall.SIGCONT)
	harness.WaitFor(ctx, d.t, func() error { return d.admin.Pause(ctx, kv.PauseRequest{}) })
	harness.WaitFor(ctx, d.t, func() error {
		out, err := harness.Tidemark(ctx, d.t, d.up, "kv", "rebalance", "--add", harness.Addition(e))
		if err != nil {
			return fmt.Errorf("%s is not added again: %w: %s", e.ID, err, out)
		}
		return nil
	})
	harness.Settled(ctx, d.t, d.admin, d.up.Manifest().VBuckets)
}
