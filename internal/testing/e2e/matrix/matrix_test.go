// Package matrix kills every kind of process, and makes KV lose data and move it, while a cluster is idle, under
// load, building and rolling back: in each case all indexes must end up equal to the oracle without manual steps. It
// also has the table of recovery times, changes of the leader under load, and the rollback of one vbucket of a large
// bucket.
package matrix

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/sample"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv"
)

var cellFlag = flag.String("matrix", "leader/load,indexer/build,rebalance/load",
	"cells of TestKillMatrix, FAULT/STATE, or all: "+strings.Join(faultNames(), ", ")+" with "+strings.Join(stateNames(),
		", "))

const (
	loadRate   = 300 // writes a second
	lostWrites = 300 // that no replica has at a failover
	probeKeys  = 64  // documents written after the fault that scans must show
	recoverIn  = 2 * time.Minute
	cellIn     = 4 * time.Minute // for each attempt to bring the cluster into the state
	stateTries = 5
	reportTime = 150 * time.Millisecond // the time within which a resumed indexer reports
	// an indexer is stopped for this long at a time, of the 5 s of silence after which it is ignored
	holdFor = 2 * time.Second
)

func TestMain(m *testing.M) { harness.Main(m) }

// world is a cluster and the faults made on it.
type world struct {
	t      *testing.T
	ctx    context.Context
	up     *testcluster.Cluster
	c      *client.Client
	admin  *kv.Admin
	w      *harness.Workload
	bucket string
	out    map[string]bool // KV nodes that were taken out
	turn   int             // the victims rotate
	held   []int           // pids that are stopped
}

// fault is a row of the matrix. strike makes the fault; back waits until the victim is back or the operation is over.
type fault struct {
	name   string
	loses  bool // needs writes that no replica has
	strike func(w *world) (back func())
}

func faults() []fault {
	return []fault{
		{name: "leader", strike: func(w *world) func() { return w.kill(manager(w.leader())) }},
		{name: "follower", strike: func(w *world) func() {
			l := w.leader()
			return w.kill(manager((l + 1 + w.turn%2) % 3))
		}},
		{name: "projector", strike: func(w *world) func() {
			n := w.turn % 2
			return w.kill(func(m *localcluster.Manifest) int { return m.Projectors[n].PID })
		}},
		{name: "indexer", strike: func(w *world) func() {
			n := w.turn % 2
			return w.kill(func(m *localcluster.Manifest) int { return m.Indexers[n].PID })
		}},
		{name: "kv", strike: func(w *world) func() { return w.kill(func(m *localcluster.Manifest) int { return m.KV[0].PID }) }},
		{name: "lose", loses: true, strike: func(w *world) func() {
			node := "kv2"
			if w.out[node] { // a rollback is in progress already
				node = "kv3"
			}
			w.lose(node)
			w.pause(false)
			return func() {}
		}},
		{name: "rebalance", strike: func(w *world) func() {
			args := []string{"kv", "rebalance", "--no-wait", "--remove", "kv2"}
			if w.out["kv2"] {
				args = []string{"kv", "rebalance", "--no-wait", "--add", harness.Addition(w.up.Manifest().KV[1])}
			}
			harness.MustRun(w.ctx, w.t, w.up, args...)
			w.out["kv2"] = !w.out["kv2"]
			return func() { w.moved() }
		}},
	}
}

func manager(n int) func(m *localcluster.Manifest) int {
	return func(m *localcluster.Manifest) int { return m.Managers[n].PID }
}

// state is a column of the matrix: the cluster's activity at the time of the fault. get starts it.
type state struct {
	name string
	load bool
	get  func(w *world, f *fault)
	// still, if set, reports whether the cluster is in the state at this moment; if it is not, get is called again.
	still func(w *world) bool
}

func states() []state {
	return []state{
		{name: "idle", get: func(*world, *fault) {}},
		{name: "load", load: true, get: func(w *world, _ *fault) { w.written(loadRate) }},
		{name: "build", get: (*world).building},
		{name: "rollback", get: (*world).rollingBack, still: (*world).inRollback},
	}
}

func faultNames() (names []string) {
	for _, f := range faults() {
		names = append(names, f.name)
	}
	return names
}

func stateNames() (names []string) {
	for _, s := range states() {
		names = append(names, s.name)
	}
	return names
}

// cells returns the cells that -matrix selects.
func cells(t *testing.T) (all [][2]string) {
	t.Helper()
	if *cellFlag == "all" {
		for _, f := range faultNames() {
			for _, s := range stateNames() {
				all = append(all, [2]string{f, s})
			}
		}
		return all
	}
	for text := range strings.SplitSeq(*cellFlag, ",") {
		f, s, ok := strings.Cut(text, "/")
		if !ok || !slices.Contains(faultNames(), f) || !slices.Contains(stateNames(), s) {
			t.Fatalf("-matrix %q: want FAULT/STATE of %v and %v", text, faultNames(), stateNames())
		}
		all = append(all, [2]string{f, s})
	}
	return all
}

// figures are a cell's recovery times after the fault.
type figures struct {
	scans time.Duration // until session scans of all indexes that were ready show what was written after the fault
	// until all processes are back, all vbuckets are streamed, and all indexes are ready and were scanned
	ready time.Duration
}

// TestKillMatrix runs each cell of -matrix, one after the other on one cluster.
func TestKillMatrix(t *testing.T) {
	t.Parallel()
	todo := cells(t)
	ctx := t.Context()
	up := testcluster.Start(t, t.TempDir(), "--kv", "3", "--kv-replicas", "2")
	w := &world{t: t, ctx: ctx, up: up, c: up.Client(), admin: harness.KVAdmin(up), bucket: up.Manifest().Bucket,
		out: map[string]bool{}}
	defer w.release()
	w.w = harness.NewWorkloadOf(ctx, t, up.KV(ctx), 4)
	harness.CreateSampleIndexes(ctx, t, w.c, w.bucket)

	table := map[[2]string]figures{}
	for _, c := range todo {
		f := faults()[slices.Index(faultNames(), c[0])]
		s := states()[slices.Index(stateNames(), c[1])]
		var done context.CancelFunc
		limit := cellIn
		if s.still != nil {
			limit *= stateTries
		}
		w.ctx, done = context.WithTimeout(ctx, limit)
		table[c] = w.cell(&f, &s)
		done()
		w.turn++
	}
	t.Log(render(table))
}

// render formats the table of docs/campaigns.md.
func render(table map[[2]string]figures) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seconds until scans / until all is ready\n| hit | %s |\n|---|%s\n", strings.Join(stateNames(), " | "),
		strings.Repeat("---|", len(stateNames())))
	for _, f := range faultNames() {
		fmt.Fprintf(&b, "| %s |", f)
		for _, s := range stateNames() {
			if x, ok := table[[2]string{f, s}]; ok {
				fmt.Fprintf(&b, " %.1f / %.1f |", x.scans.Seconds(), x.ready.Seconds())
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// cell brings the cluster into a state, makes the fault, waits until the cluster has recovered, and compares the
// indexes.
func (w *world) cell(f *fault, s *state) (x figures) {
	t, name := w.t, f.name+"/"+s.name
	load, stop := context.WithCancel(w.ctx)
	defer stop()
	var wg sync.WaitGroup
	if s.load {
		wg.Go(func() { w.w.Run(load, uint64(w.turn), loadRate) })
	}
	if f.loses && s.name != "rollback" {
		w.beyondReplicas()
	}
	usable, rollbacks := w.bring(f, s)
	struck := time.Now()
	back := f.strike(w)
	w.release()
	w.probe()

	ctx, cancel := context.WithDeadline(w.ctx, struck.Add(recoverIn))
	defer cancel()
	failed := make([]error, len(harness.SampleIndexes()))
	var scanned time.Duration
	var scans, early sync.WaitGroup
	for i, name := range harness.SampleIndexes() {
		scan := func() { _, failed[i] = harness.ScanSoon(ctx, w.c, w.bucket, name, recoverIn) }
		if slices.Contains(usable, name) {
			early.Go(scan)
		} else {
			scans.Go(scan)
		}
	}
	scans.Go(func() { early.Wait(); scanned = time.Since(struck) })
	back()
	scans.Wait()
	for i, name := range harness.SampleIndexes() {
		if failed[i] != nil {
			t.Fatalf("%s: no session scan of %s: %v\n%s", name, harness.SampleIndexes()[i], failed[i], w.picture())
		}
	}
	if why := w.ready(ctx); why != "" {
		t.Fatalf("%s: %s\n%s", name, why, w.picture())
	}
	if f.loses && s.name != "rollback" && w.rollbackID() == rollbacks {
		t.Errorf("%s: the bucket was not rolled back: nothing that the indexes had was lost, so the cell shows nothing", name)
	}
	x = figures{scans: scanned, ready: time.Since(struck)}
	stop()
	wg.Wait()
	harness.CheckFinal(w.ctx, t, w.c, w.w, w.bucket)
	if t.Failed() {
		t.Fatalf("%s: the indexes differ\n%s", name, w.picture())
	}
	t.Logf("%s: scans after %s, all ready after %s", name, x.scans.Round(time.Millisecond),
		x.ready.Round(time.Millisecond))
	w.whole()
	return x
}

// bring brings the cluster into the state in which the fault is to strike, and returns the indexes that can be
// scanned now, and the newest rollback. Nothing slow happens between the last check of the state and the return.
func (w *world) bring(f *fault, s *state) (usable []string, rollbacks uint64) {
	for try := 1; ; try++ {
		s.get(w, f)
		usable, rollbacks = w.readyIndexes(), w.rollbackID()
		if s.still == nil || s.still(w) {
			return usable, rollbacks
		}
		if try == stateTries {
			w.t.Fatalf("%s/%s: the state was over before the fault could strike, %d times\n%s", f.name, s.name, try, w.picture())
		}
		w.t.Logf("%s/%s: the state was over before the fault could strike; again", f.name, s.name)
		w.pause(false)
		w.release()
		w.whole()
	}
}

// leader waits until a manager knows the leader, and returns the leader's place.
func (w *world) leader() (n int) {
	harness.Eventually(w.t, harness.Hang, "a leader", func() (bool, string) {
		for asked := range w.up.Manifest().Managers {
			ctx, cancel := context.WithTimeout(w.ctx, time.Second)
			n = w.up.Leader(ctx, asked)
			cancel()
			if n >= 0 {
				return true, ""
			}
		}
		return false, "no manager knows one"
	})
	return n
}

// kill kills a process immediately; back waits until `up` has restarted it.
func (w *world) kill(pid func(m *localcluster.Manifest) int) (back func()) {
	old := pid(w.up.Manifest())
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	return func() { w.up.WaitRestart(old, pid) }
}

// hold stops a process until release.
func (w *world) hold(pid int) {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	w.held = append(w.held, pid)
}

func (w *world) release() {
	for _, pid := range w.held {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	w.held = nil
}

// written waits until the load has written n more documents.
func (w *world) written(n int64) {
	from := w.w.Writes.Load()
	harness.WaitFor(w.ctx, w.t, func() error {
		if have := w.w.Writes.Load() - from; have < n {
			return fmt.Errorf("%d of %d writes", have, n)
		}
		return nil
	})
}

// write changes n documents.
func (w *world) write(n int) {
	for i := range n {
		w.set(w.w.Keys[(i*7+w.turn*13)%len(w.w.Keys)], i)
	}
}

// probe writes documents of many vbuckets; scans that begin later must show them.
func (w *world) probe() {
	for i := range probeKeys {
		w.set(w.w.Keys[i*len(w.w.Keys)/probeKeys], w.turn)
	}
}

func (w *world) set(key string, n int) {
	ctx, cancel := context.WithTimeout(w.ctx, recoverIn)
	defer cancel()
	value := fmt.Sprintf(`{"kind":"airport","name":"written %d","iso_country":"CH","elevation_ft":%d,"scheduled_service":true}`, n, n)
	if err := w.w.Set(ctx, key, []byte(value)); err != nil {
		w.t.Fatalf("%v\n%s", err, w.picture())
	}
}

func (w *world) pause(on bool) {
	harness.WaitFor(w.ctx, w.t, func() error { return w.admin.Pause(w.ctx, kv.PauseRequest{Paused: on}) })
}

// beyondReplicas makes writes that no replica has and that the indexes show.
func (w *world) beyondReplicas() {
	w.pause(true)
	w.write(lostWrites)
	if _, err := harness.ScanSoon(w.ctx, w.c, w.bucket, "world_ids", recoverIn); err != nil {
		w.t.Fatalf("a scan of what the replicas have not: %v\n%s", err, w.picture())
	}
}

func (w *world) lose(node string) {
	w.out[node] = true
	harness.MustRun(w.ctx, w.t, w.up, "kv", "failover", node, "--lose")
}

// building starts the builds of two indexes, and stops a projector to hold them up until the fault has struck.
func (w *world) building(*fault) {
	for _, name := range []string{"airports_by_country", "places_by_name"} {
		if err := w.c.Drop(w.ctx, client.Ref(w.bucket, name), 0); err != nil {
			w.t.Fatal(err)
		}
	}
	w.hold(w.up.Manifest().Projectors[2].PID)
	for _, statement := range sample.Statements(w.bucket)[1:3] {
		if _, err := w.c.Statement(w.ctx, statement); err != nil {
			w.t.Fatalf("%s: %v", statement, err)
		}
	}
	harness.WaitFor(w.ctx, w.t, func() error {
		for _, name := range []string{"airports_by_country", "places_by_name"} {
			if i, err := w.c.Index(w.ctx, client.Ref(w.bucket, name)); err != nil || i.State != index.Backfill {
				return fmt.Errorf("%s is %s: %w", name, i.State, err)
			}
		}
		return nil
	})
}

// rollingBack starts a rollback of the bucket, and stops an indexer to hold the rollback up until the fault has
// struck. Before the rollback begins, which takes long on a slow machine, the indexer resumes for short moments, so
// that it does not count as silent and is not left out of the rollback.
func (w *world) rollingBack(f *fault) {
	w.beyondReplicas()
	pid, before := w.up.Manifest().Indexers[2].PID, w.rollbackID()
	w.hold(pid)
	held := time.Now()
	w.out["kv2"] = true
	if _, err := w.admin.Failover(w.ctx, kv.FailoverRequest{Nodes: []string{"kv2"}, Lose: true}); err != nil {
		w.t.Fatalf("failover: %v\n%s", err, w.picture())
	}
	if f.loses { // the writes that kv3 will lose
		w.write(lostWrites)
	}
	harness.WaitFor(w.ctx, w.t, func() error {
		if w.inRollback() || w.rollbackID() > before {
			return nil
		}
		if time.Since(held) > holdFor {
			w.release()
			time.Sleep(reportTime)
			w.hold(pid)
			held = time.Now()
		}
		return errors.New("no rollback has begun")
	})
	if !f.loses {
		w.pause(false)
	}
}

// inRollback reports whether a rollback is in progress at this moment.
func (w *world) inRollback() bool {
	list, err := w.c.Rollbacks(w.ctx)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, w.picture())
	}
	return len(list.Rollbacks) > 0 && list.Rollbacks[0].ID != 0
}

// readyIndexes returns the indexes that can be scanned now.
func (w *world) readyIndexes() (names []string) {
	list, err := w.c.Indexes(w.ctx, w.bucket)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, i := range list.Indexes {
		if i.State == index.Maintenance {
			names = append(names, i.Name)
		}
	}
	return names
}

// rollbackID returns the id of the bucket's newest rollback.
func (w *world) rollbackID() uint64 {
	ts, err := w.c.Timestamps(w.ctx, w.bucket, 0, 1)
	if err != nil {
		w.t.Fatal(err)
	}
	return ts.RollbackID
}

// moved waits until no KV operation is in progress.
func (w *world) moved() {
	harness.WaitFor(w.ctx, w.t, func() error {
		s, err := w.admin.Status(w.ctx)
		if err == nil && s.Progress != nil {
			err = fmt.Errorf("under way: %+v", s.Progress)
		}
		return err
	})
}

// ready waits until everything is ready; when ctx ends it returns what is not.
func (w *world) ready(ctx context.Context) (why string) {
	for {
		if why = w.wanting(ctx); why == "" || ctx.Err() != nil {
			return why
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// wanting returns what is not ready, "" if everything is.
func (w *world) wanting(ctx context.Context) string {
	s, err := w.c.Status(ctx)
	if err != nil {
		return err.Error()
	}
	if s.Coordinator != "active" {
		return "the coordinator is at " + s.Coordinator
	}
	for _, m := range s.Managers {
		if !m.Alive || len(m.NotReady) > 0 {
			return fmt.Sprintf("manager %+v", m)
		}
	}
	for _, p := range s.Projectors {
		if p.State != "active" {
			return fmt.Sprintf("projector %+v", p)
		}
	}
	for _, i := range s.Indexers {
		if i.State != "active" || i.Health != "" && i.Health != "ok" {
			return fmt.Sprintf("indexer %+v", i)
		}
	}
	for _, b := range s.Buckets {
		if b.StreamsMissing > 0 || b.Rollback != "" {
			return fmt.Sprintf("bucket %+v", b)
		}
	}
	list, err := w.c.Indexes(ctx, w.bucket)
	if err != nil {
		return err.Error()
	}
	ready := 0
	for _, i := range list.Indexes {
		if i.State == index.Maintenance {
			ready++
		}
	}
	if want := len(harness.SampleIndexes()); ready != want {
		return fmt.Sprintf("%d of %d indexes are ready: %+v", ready, want, list.Indexes)
	}
	return ""
}

// whole adds the KV nodes back that were taken out.
func (w *world) whole() {
	args := []string{"kv", "rebalance"}
	for _, e := range w.up.Manifest().KV {
		if w.out[e.ID] {
			args = append(args, "--add", harness.Addition(e))
			w.out[e.ID] = false
		}
	}
	if len(args) > 2 {
		harness.MustRun(w.ctx, w.t, w.up, args...)
	}
	harness.Settled(w.ctx, w.t, w.admin, w.up.Manifest().VBuckets)
	if why := w.ready(w.ctx); why != "" {
		w.t.Fatalf("between two cells: %s\n%s", why, w.picture())
	}
}

// picture returns the state of the cluster as an operator would inspect it.
func (w *world) picture() string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), 20*time.Second)
	defer cancel()
	all := ""
	for _, args := range [][]string{{"cluster", "status"}, {"cluster", "timestamps", w.bucket}, {"index", "list"},
		{"kv", "status"}} {
		out, err := harness.Tidemark(ctx, w.t, w.up, args...)
		all += fmt.Sprintf("$ tidemark %s\n%s%v\n", strings.Join(args, " "), out, err)
	}
	return all
}
